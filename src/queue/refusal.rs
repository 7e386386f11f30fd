//! What servers refuse, or cannot do for a queue.

use std::time::Duration;

use super::QueueName;

/// Why a call was refused: nothing was changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueRefusal {
    /// The name of a queue cannot be the name of a tube.
    #[error(
        "`{name}` cannot be a tube: {problem} (1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), the first no hyphen)"
    )]
    TubeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A payload is longer than the server's limit.
    #[error("tube `{tube}` does not take a payload of {size} bytes (option -z of beanstalkd)")]
    TooBig {
        /// The tube.
        tube: String,
        /// Length of the payload in bytes.
        size: usize,
    },
    /// The server was told to take no more jobs.
    #[error(
        "tube `{tube}` does not take a payload of {size} bytes: the server is draining (SIGUSR1) and takes no jobs"
    )]
    Draining {
        /// The tube.
        tube: String,
        /// Length of the payload in bytes.
        size: usize,
    },
    /// The server has no memory left.
    #[error("tube `{tube}` does not take a payload of {size} bytes: the server is out of memory")]
    OutOfMemory {
        /// The tube.
        tube: String,
        /// Length of the payload in bytes.
        size: usize,
    },
    /// The server had no memory to queue a job: it keeps the job, buried, where no worker finds it.
    #[error(
        "a job of {size} bytes is buried in tube `{tube}` instead of waiting there: the server is out of memory"
    )]
    Buried {
        /// The tube.
        tube: String,
        /// Length of the payload in bytes.
        size: usize,
    },
    /// The server answered with one of its general errors.
    #[error("the server answered {0}")]
    Said(&'static str),
    /// No server keeps jobs of the connection.
    #[error("no job waits on this connection")]
    Nowhere,
    /// The keys of a queue are in different slots of a cluster.
    #[error(
        "Laravel before 13.5 keeps its keys in different slots of the cluster, where neither it nor artisand can move jobs (CROSSSLOT): call the queue `{{{0}}}` in the app and here, give the prefix of the keys a tag such as `{{app}}`, or update Laravel"
    )]
    Slots(QueueName),
    /// Something that the protocol has no command for.
    #[error("its server cannot {0}")]
    Unsupported(&'static str),
    /// The URL of an SQS queue cannot be told.
    #[error(
        "the queue's URL would be `{url}`: SQS needs a `prefix` such as https://sqs.eu-central-1.amazonaws.com/123456789012"
    )]
    QueueUrl {
        /// What name, prefix and suffix give.
        url: String,
    },
    /// SQS refused a request.
    #[error("SQS answered {call} with {code}: {message}")]
    Sqs {
        /// The request.
        call: &'static str,
        /// The code of the answer.
        code: String,
        /// Its text.
        message: String,
    },
    /// SQS delays a message by 15 minutes at most.
    #[error("SQS delays a message by at most 900 s, and the job is to wait for {} s", delay.as_secs())]
    Delay {
        /// The time until the job is due.
        delay: Duration,
    },
    /// SQS takes text only.
    #[error("the payload is not UTF-8 text, which is all that SQS takes")]
    NotText,
}

impl QueueRefusal {
    /// True if the same call is refused forever, whatever becomes of the server.
    pub fn is_final(&self) -> bool {
        // SQS says so of messages that are too long, and of characters that it takes not.
        const FINAL: [&str; 4] = [
            "InvalidMessageContents",
            "InvalidParameterValue",
            "BatchRequestTooLong",
            "MissingParameter",
        ];
        match self {
            Self::TubeName { .. }
            | Self::TooBig { .. }
            | Self::Nowhere
            | Self::Unsupported(_)
            | Self::QueueUrl { .. }
            | Self::Delay { .. }
            | Self::Slots(_)
            | Self::NotText => true,
            Self::Sqs { code, .. } => FINAL.iter().any(|known| code.ends_with(known)),
            Self::Draining { .. }
            | Self::OutOfMemory { .. }
            | Self::Buried { .. }
            | Self::Said(_) => false,
        }
    }
}
