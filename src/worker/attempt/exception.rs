//! A failure as PHP prints an exception: what people and tools find in `failed_jobs.exception`.

use std::fmt::Write as _;

use crate::handler::FailureText;

/// Stands in for the file name of a PHP exception; a Rust failure has none.
const FILE: &str = "artisand";

/// The text of a failure of the job `name`: the deepest cause first, as PHP prints previous exceptions.
///
/// # Source
///
/// `Throwable::__toString` (docs/protocol/failed-and-batches.md 2.3).
pub(crate) fn php_text(failure: &FailureText, name: &str) -> String {
    let single = std::slice::from_ref(&failure.message);
    let chain = if failure.chain.is_empty() {
        single
    } else {
        &failure.chain
    };
    let mut text = String::new();
    for (depth, message) in chain.iter().enumerate().rev() {
        if !text.is_empty() {
            text.push_str("\n\nNext ");
        }
        // Only the outermost failure has a PHP class; the causes are Rust errors.
        let class = if depth == 0 {
            &failure.class
        } else {
            "Artisand\\Cause"
        };
        text.push_str(class);
        if !message.is_empty() {
            text.push_str(": ");
            text.push_str(message);
        }
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            " in {FILE}:0\nStack trace:\n#0 [internal function]: {name}->handle()\n#1 {{main}}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("could not save")]
    struct Save(#[source] std::io::Error);

    #[test]
    fn a_failure_reads_as_php_prints_an_exception() {
        let failure = FailureText::new("E", "boom");
        let trace = "Stack trace:\n#0 [internal function]: App\\X->handle()\n#1 {main}";
        assert_eq!(
            php_text(&failure, "App\\X"),
            format!("E: boom in artisand:0\n{trace}")
        );
        let silent = FailureText::new("E", "");
        assert!(php_text(&silent, "App\\X").starts_with("E in artisand:0\n"));
        let cause = std::io::Error::other("disk");
        let failure = FailureText::of("E", &Save(cause));
        assert_eq!(failure.message, "could not save: disk");
        assert_eq!(
            php_text(&failure, "App\\X"),
            format!(
                "Artisand\\Cause: disk in artisand:0\n{trace}\n\nNext E: could not save in artisand:0\n{trace}"
            )
        );
    }
}
