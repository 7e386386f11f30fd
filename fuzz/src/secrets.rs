//! Finds the secrets of an input in what is shown of it.

use std::error::Error;
use std::fmt::Write as _;

/// The message of an error and of its causes.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Whether a text that is shown can only be this one: it is long, looks like no word of a message, and stands in the
/// input once.
pub fn is_telling(input: &str, secret: &str) -> bool {
    let digits = secret.bytes().filter(u8::is_ascii_digit).count();
    secret.len() >= 12 && digits >= 3 && input.matches(secret).count() == 1
}

/// The password in a URL, as it is written.
pub fn password(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    Some(login.split_once(':')?.1)
}
