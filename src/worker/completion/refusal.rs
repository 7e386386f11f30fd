//! Why artisand does not run a job that has a mapping.

use std::fmt;

/// Why artisand does not run a job that has a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    why: String,
    /// Whether the job could not be decrypted.
    is_unread: bool,
}

impl Refusal {
    /// The refusal of a job that can be read.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_unread: false,
        }
    }

    /// The refusal of a job that cannot be decrypted.
    pub(crate) fn unread(why: String) -> Self {
        Self {
            why,
            is_unread: true,
        }
    }

    /// The failure message for a job of this name.
    pub(crate) fn of(&self, name: &str) -> String {
        let how = if self.is_unread {
            "is encrypted and cannot be read"
        } else {
            "cannot be run here"
        };
        format!("{name} {how}: {self}")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_whether_the_job_could_be_read() {
        let refusal = Refusal::new("it is in a batch");
        assert_eq!(refusal.of("A"), "A cannot be run here: it is in a batch");
        let refusal = Refusal::unread("the key is another one".to_owned());
        let expected = "A is encrypted and cannot be read: the key is another one";
        assert_eq!(refusal.of("A"), expected);
        assert_eq!(refusal.to_string(), "the key is another one");
    }
}
