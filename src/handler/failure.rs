//! What code returns that runs a job: futures and errors.

use std::fmt;
use std::pin::Pin;

use crate::shown::causes;

/// A boxed future, as trait objects need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The error of a handler, of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a job failed for good: class-like name and message, as stores of failed jobs record them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureText {
    /// Class of the exception that PHP would have thrown, or the kind of Rust failure.
    pub class: String,
    /// The message with its chain of causes.
    pub message: String,
    /// The messages of the chain one by one, the root cause last; empty if there is only one message.
    pub chain: Vec<String>,
}

impl FailureText {
    /// The failure with one more cause; its own message stays.
    #[must_use]
    pub(crate) fn caused_by(mut self, cause: String) -> Self {
        if self.chain.is_empty() {
            self.chain.push(self.message.clone());
        }
        self.chain.push(cause);
        self
    }

    /// A failure without causes.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
            chain: Vec::new(),
        }
    }

    /// A failure with all causes of an error, each message once.
    pub fn of(class: impl Into<String>, error: &(dyn std::error::Error + 'static)) -> Self {
        let chain = causes(error);
        Self {
            class: class.into(),
            message: chain.join(": "),
            chain: if chain.len() > 1 { chain } else { Vec::new() },
        }
    }
}

impl fmt::Display for FailureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}
