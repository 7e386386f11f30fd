//! Errors of connections.

use ::redis::{ErrorKind, RedisError, ServerError};

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
    /// The sentinels do not lead to a master.
    #[error("no master of `{service}` was found: {problem}")]
    NoMaster {
        /// Name of the service.
        service: String,
        /// What the sentinels say, or the server that they name.
        problem: String,
    },
    /// A file with certificates or a key for TLS cannot be read.
    #[error("could not read {} for TLS", path.display())]
    Certificate {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
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
    #[error("no node of {0} answers")]
    NoNodes(String),
    /// No master of a cluster takes commands for a slot now. A single command was not carried out; of several, some may
    /// have been.
    #[error("the slot of these keys has no master on {cluster} now")]
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
    /// A key of the cache, or of a lock, that has no room in its column.
    #[error("a key of {length} characters is longer than the {most} that its column holds")]
    LongKey {
        /// How many characters it has, with its prefix.
        length: usize,
        /// How many the column holds.
        most: usize,
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
    /// Why no connection could be opened, for another caller that has waited for it; `None` for other errors.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            Self::Connect { address, source } => Some(Self::Connect {
                address: address.clone(),
                source: source.clone(),
            }),
            Self::NoMaster { service, problem } => Some(Self::NoMaster {
                service: service.clone(),
                problem: problem.clone(),
            }),
            _ => None,
        }
    }

    /// True if a new connection may help: the old one is lost, or its server cannot serve for now.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::NoNodes(_)
            | Self::Unserved { .. }
            | Self::NoMaster { .. }
            | Self::Beanstalkd { .. }
            | Self::Sqs { .. }
            | Self::Away(_) => true,
            Self::Command { source, .. } => is_lost(source),
            Self::Sql { source, .. } => source.is_lost(),
            Self::Url { .. }
            | Self::Certificate { .. }
            | Self::NoTls
            | Self::OddReply { .. }
            | Self::Slots { .. }
            | Self::NoSqs
            | Self::UnknownDatabase { .. }
            | Self::Unusable { .. }
            | Self::NoDriver(_)
            | Self::NotText { .. }
            | Self::LongKey { .. }
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

    /// True if there was no connection to send anything by.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::NoMaster { .. } | Self::NoNodes(_) => true,
            Self::Beanstalkd { was_connected, .. } | Self::Sqs { was_connected, .. } => {
                !was_connected
            }
            Self::Away(source) => source.is_unsent(),
            _ => false,
        }
    }

    /// True if it is unknown whether the server carried out the command: it may have, and its reply was lost.
    pub fn is_of_unknown_outcome(&self) -> bool {
        match self {
            Self::Command { source, .. } => {
                source.is_io_error()
                    || source.is_timeout()
                    || source.is_connection_dropped()
                    // There is an answer, but it cannot be read.
                    || source.kind() == ErrorKind::Parse
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

    /// True if a moment is refused, such as one in the hour that a change to summer time skips.
    pub(crate) fn is_no_moment(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_no_moment())
    }

    /// True if another transaction was in the way: the caller may try its own again from the start.
    pub fn is_deadlock(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_deadlock())
    }
}

/// True if the connection is lost, or the server reports that it cannot serve for now.
pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_connection_dropped()
        || error.is_timeout()
        || error.is_connection_refusal()
        || matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
        || is_refused(error)
}

/// True if the server says that it cannot serve for now: it has done nothing of what was asked, of several commands
/// nothing of at least one.
///
/// A server does not become a replica while a script runs, so a script that is refused has changed nothing either.
pub(super) fn is_refused(error: &RedisError) -> bool {
    let refuses = |error: &ServerError| {
        let is_in_script = |details: &str| details.contains("-READONLY ");
        matches!(
            error.code(),
            "READONLY" | "MASTERDOWN" | "LOADING" | "NOREPLICAS" | "UNBLOCKED"
        )
        // Servers before Redis 7 wrap what a command of a script says.
        || error.details().is_some_and(is_in_script)
    };
    let errors = error.clone().into_server_errors();
    errors.is_some_and(|errors| errors.iter().any(|(_, error)| refuses(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_serve_has_done_nothing() {
        #[rustfmt::skip]
        let rows = [
            ("-READONLY You can't write against a read only replica.\r\n", true),
            ("-READONLY You can't write against a read only replica. script: f, on @user_script:1.\r\n", true),
            ("-ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -READONLY You can't write against a read only replica.\r\n", true),
            ("-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n", true),
            ("-LOADING Redis is loading the dataset in memory\r\n", true),
            ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n", true),
            ("-NOREPLICAS Not enough good replicas to write.\r\n", true),
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", false),
            ("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", false),
            ("-ERR unknown command\r\n", false),
        ];
        for (reply, expected) in rows {
            let value = ::redis::parse_redis_value(reply.as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            assert_eq!(is_refused(&error), expected, "{reply}");
            assert_eq!(is_lost(&error), expected, "{reply}");
        }
        let lost = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(is_lost(&lost) && !is_refused(&lost));
    }

    #[test]
    fn a_command_whose_answer_cannot_be_read_may_be_carried_out() {
        let unreadable = ::redis::parse_redis_value(b"?\r\n").unwrap_err();
        let another = ::redis::from_redis_value::<i64>(::redis::Value::SimpleString("OK".into()));
        let refused = ::redis::parse_redis_value(b"-OOM command not allowed\r\n").unwrap();
        let rows = [
            (unreadable, true),
            (another.unwrap_err().into(), true),
            (refused.extract_error().unwrap_err(), false),
        ];
        for (source, expected) in rows {
            let row = format!("{source:?}");
            let address = "test".to_owned();
            let error = Error::Command { address, source };
            assert_eq!(error.is_of_unknown_outcome(), expected, "{row}");
        }
    }
}
