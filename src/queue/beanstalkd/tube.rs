//! Names of tubes.

use std::fmt;
use std::sync::Arc;

use crate::queue::QueueRefusal;

/// The name of a tube, which the server accepts and which cannot end a line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tube(Arc<str>);

impl Tube {
    const LONGEST: usize = 200;

    /// # Errors
    ///
    /// The server would refuse the name.
    pub(super) fn new(name: &str) -> Result<Self, QueueRefusal> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte);
        let problem = if name.is_empty() {
            "it is empty"
        } else if name.len() > Self::LONGEST {
            "it is longer than 200 bytes"
        } else if name.starts_with('-') {
            "it begins with a hyphen"
        } else if !name.bytes().all(is_allowed) {
            "it has other characters"
        } else {
            return Ok(Self(name.into()));
        };
        Err(QueueRefusal::TubeName {
            name: name.chars().take(Self::LONGEST).collect(),
            problem,
        })
    }

    /// The tube that every new connection watches.
    pub(super) fn of_new_connections() -> Self {
        Self("default".into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tube {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_server_takes_are_tubes() {
        let long = "x".repeat(200);
        for name in ["default", "a-b+c/d;e.f$g_h(i)", "9", &long] {
            assert_eq!(Tube::new(name).unwrap().as_str(), name);
        }
        let too_long = "x".repeat(201);
        for name in ["", "-a", "a b", "a:b", "a\r\nput", "ä", &too_long] {
            assert!(Tube::new(name).is_err(), "{name:?}");
        }
    }
}
