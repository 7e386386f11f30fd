//! Errors of connections.

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use super::sql::SqlError;

/// An error from opening or using a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable connection.
    #[error("could not connect to Redis at {address}")]
    Connect {
        /// Host and port, or path of the socket; never the password.
        address: String,
        /// What the client reported.
        source: RedisError,
    },
    /// Redis answered a command with an error, or the connection broke.
    #[error("Redis at {address} did not carry out a command")]
    Command {
        /// Host and port, or path of the socket.
        address: String,
        /// What the client or the server reported.
        source: RedisError,
    },
    /// No node of a cluster told which others there are.
    #[error("no node of the cluster answers")]
    NoNodes,
    /// Nobody serves a slot of a cluster for now, so that nothing was done.
    #[error("nobody serves the keys on {cluster} for now")]
    Unserved {
        /// The cluster.
        cluster: String,
        /// What the node said that was asked last.
        source: Box<Self>,
    },
    /// A server answered with something else than a node of a cluster does.
    #[error("Redis at {address} did not answer `{command}` as a node of a cluster does")]
    OddReply {
        /// Host and port.
        address: String,
        /// The command.
        command: &'static str,
    },
    /// Keys that have to be in one slot are in several.
    #[error(
        "keys that are needed together lie in different slots of {cluster}: give their prefix a tag, such as `{{app}}`"
    )]
    Slots {
        /// The cluster.
        cluster: String,
    },
    /// The URL of a connection does not specify an address.
    #[error("`{url}` is not a Redis URL: {problem}")]
    Url {
        /// The URL without its password.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// TLS was requested, but this build does not have it.
    #[error("this build of artisand has no TLS (feature `tls`)")]
    NoTls,
    /// The database did not carry out a statement.
    #[error("the database connection `{name}` ({address}) did not carry out a statement")]
    Sql {
        /// Name of the connection in the app.
        name: String,
        /// Host, port and database, or the file.
        address: String,
        /// What the driver or the server reported.
        source: SqlError,
    },
    /// A beanstalkd server cannot be reached, or the connection to it was lost.
    #[error("{} beanstalkd at {address}", if *was_connected { "lost the connection to" } else { "could not connect to" })]
    Beanstalkd {
        /// Host and port.
        address: String,
        /// False if nothing was sent, because there was no connection.
        was_connected: bool,
        /// What the system reported, or what was wrong with the server's answers.
        source: std::io::Error,
    },
    /// SQS cannot be reached, or did not answer.
    #[error("{} SQS at {address}", if *was_connected { "no answer from" } else { "could not send a request to" })]
    Sqs {
        /// Scheme, host and port.
        address: String,
        /// False if nothing was sent.
        was_connected: bool,
        /// What the SDK reported.
        source: std::io::Error,
    },
    /// There is no database connection of this name.
    #[error("no database connection `{name}` (configured: {known})")]
    UnknownDatabase {
        /// The name asked for.
        name: String,
        /// The configured names.
        known: String,
    },
    /// A database connection is configured in a way that cannot be used.
    #[error("cannot use the database connection `{name}`: {problem}")]
    Unusable {
        /// Name of the connection in the app.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// This build lacks the driver for this kind of database.
    #[error("this build of artisand has no driver for this database (feature `{0}`)")]
    NoDriver(&'static str),
    /// This build has no SQS.
    #[error("this build of artisand has no SQS (feature `sqs`)")]
    NoSqs,
    /// The database of the queues is away, which the log says once.
    #[error(transparent)]
    Away(Box<Self>),
    /// A database keeps text only.
    #[error("{what} is not UTF-8 text, which is all that a database keeps")]
    NotText {
        /// What was to be kept.
        what: String,
    },
    /// A setting that cannot be used.
    #[error("`{name}` is `{value}`, expected {expected}")]
    Setting {
        /// Name of the setting.
        name: String,
        /// The value of the setting.
        value: String,
        /// Values that would work.
        expected: &'static str,
    },
}

impl Error {
    /// True if a new connection may help: the old one is lost, or its server cannot serve for now.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::NoNodes
            | Self::Unserved { .. }
            | Self::Beanstalkd { .. }
            | Self::Sqs { .. }
            | Self::Away(_) => true,
            Self::Command { source, .. } => is_lost(source),
            Self::Sql { source, .. } => source.is_lost(),
            Self::Url { .. }
            | Self::NoTls
            | Self::OddReply { .. }
            | Self::Slots { .. }
            | Self::NoSqs
            | Self::UnknownDatabase { .. }
            | Self::Unusable { .. }
            | Self::NoDriver(_)
            | Self::NotText { .. }
            | Self::Setting { .. } => false,
        }
    }

    /// How long an answer was waited for in vain, if that is the error.
    pub(crate) fn unanswered_for(&self) -> Option<std::time::Duration> {
        match self {
            Self::Sql {
                source: SqlError::Timeout(time),
                ..
            } => Some(*time),
            _ => None,
        }
    }

    /// True if it is unknown whether the server carried out the command: it may have, and its reply was lost.
    pub fn is_of_unknown_outcome(&self) -> bool {
        match self {
            Self::Command { source, .. } => {
                source.is_io_error() || source.is_timeout() || source.is_connection_dropped()
            }
            Self::Sql { source, .. } => source.is_of_unknown_outcome(),
            Self::Away(source) => source.is_of_unknown_outcome(),
            Self::Beanstalkd { was_connected, .. } | Self::Sqs { was_connected, .. } => {
                *was_connected
            }
            _ => false,
        }
    }

    /// True if a row with the same unique key exists.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_duplicate())
    }

    /// True if there is no such table.
    pub fn is_missing_table(&self) -> bool {
        match self {
            Self::Sql { source, .. } => source.is_missing_table(),
            Self::Away(source) => source.is_missing_table(),
            _ => false,
        }
    }

    /// True if another transaction was in the way: the caller may try its own again from the start.
    pub fn is_deadlock(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_deadlock())
    }
}

/// True if the connection is lost, or the server reports that it cannot serve for now.
pub(super) fn is_lost(error: &RedisError) -> bool {
    if error.is_io_error()
        || error.is_connection_dropped()
        || error.is_timeout()
        || error.is_connection_refusal()
    {
        return true;
    }
    matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
            )
    )
}
