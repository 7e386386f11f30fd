//! Places in the file, for messages.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in the file, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPlace {
    path: PathBuf,
    line: Option<usize>,
}

impl fmt::Display for ErrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}

/// The line of a byte offset; the file is read again, which only happens on the way to an error.
pub(super) fn place(path: &Path, offset: usize) -> ErrorPlace {
    let text = std::fs::read(path).ok();
    let line =
        text.and_then(|text| Some(memchr::memchr_iter(b'\n', text.get(..offset)?).count() + 1));
    ErrorPlace {
        path: path.to_owned(),
        line,
    }
}
