//! The jobs of the benchmark: payloads as Laravel 13 writes them, each with a number.

/// Class of the jobs.
pub(super) const CLASS: &str = r"Artisand\Bench";

/// The smallest size of a payload: what Laravel writes around an empty property takes nearly all of it.
pub(super) const SMALLEST: u16 = 600;

/// The end of every payload.
pub(super) const END: &str = "0}";

/// What the handler gets.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Numbered {
    pub(super) n: usize,
}

/// A payload of about this size.
pub(super) fn payload(n: u32, size: u32) -> Vec<u8> {
    let padding = (size as usize).saturating_sub(with_padding(n, 0).len() + 2);
    with_padding(n, padding).into_bytes()
}

fn with_padding(n: u32, padding: usize) -> String {
    let class = r"Artisand\\Bench";
    let note = "x".repeat(padding);
    format!(
        r#"{{"uuid":"{n:08x}-0000-4000-8000-000000000000","displayName":"{class}","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"retryUntil":null,"deleteWhenMissingModels":false,"data":{{"commandName":"{class}","command":"O:14:\"{class}\":2:{{s:1:\"n\";i:{n};s:4:\"note\";s:{padding}:\"{note}\";}}","batchId":null}},"createdAt":1760000000,"id":"{n:032}","attempts":{END}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Payload, Target};

    #[test]
    fn jobs_have_about_the_size_asked_for_and_the_class_of_the_mapping() {
        for (n, size) in [(0, 600), (999_999, 600), (1, 650), (7, 1_000_000)] {
            let bytes = payload(n, size);
            assert!(
                bytes.len().abs_diff(size as usize) <= 6,
                "{} {size}",
                bytes.len()
            );
            let payload = Payload::parse(&bytes).unwrap();
            let target = Target::of(&payload).unwrap();
            assert!(matches!(target, Target::Job { class, .. } if class.as_str() == CLASS));
        }
    }
}
