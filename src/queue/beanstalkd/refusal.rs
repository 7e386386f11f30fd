//! What beanstalkd refuses, or cannot do for a queue.

/// Why a call was refused: nothing was changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
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
    /// Something that the protocol has no command for.
    #[error("beanstalkd cannot {0}")]
    Unsupported(&'static str),
}

impl Refusal {
    /// True if the same call is refused for ever, whatever becomes of the server.
    pub fn is_final(&self) -> bool {
        match self {
            Self::TubeName { .. } | Self::TooBig { .. } | Self::Unsupported(_) => true,
            Self::Draining { .. }
            | Self::OutOfMemory { .. }
            | Self::Buried { .. }
            | Self::Said(_) => false,
        }
    }
}
