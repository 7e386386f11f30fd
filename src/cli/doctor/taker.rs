//! Which worker takes a job, in words.

use crate::payload::{Command, Payload, Target};
use crate::queue::QueueName;
use crate::routing::{Mode, Route, Router, UnmappedPolicy};
use crate::worker::Preview;

/// Describes in words which worker takes a job.
pub(super) fn taker(
    router: &Router,
    payload: &Payload,
    queue: &QueueName,
    preview: Option<&Preview>,
) -> String {
    let unmapped = || match router.unmapped() {
        UnmappedPolicy::Php => "PHP, in a process of the pool".to_owned(),
        UnmappedPolicy::Leave => "left in the queue for PHP".to_owned(),
        UnmappedPolicy::Fail => "fails, as no handler takes it".to_owned(),
        UnmappedPolicy::Forward(queue) => format!("forwarded to `{queue}`"),
    };
    let target = match (Target::of(payload), Command::of(payload)) {
        (Ok(target), Ok(_)) => target,
        (_, Err(crate::payload::Error::Encrypted { .. }))
        | (Err(crate::payload::Error::Encrypted { .. }), _) => {
            return format!("{} (encrypted)", unmapped());
        }
        _ => return unmapped(),
    };
    if let Some(why) = preview.and_then(|preview| preview.refusal(payload, queue)) {
        return format!("{} ({why})", unmapped());
    }
    match router.route(&target) {
        Route::Handler { mapping, .. } => {
            let handler = router
                .mappings()
                .nth(mapping)
                .map(|mapping| mapping.handler.to_string());
            let part = router.mapping(mapping).map_or(String::new(), |found| {
                match (found.mode, found.canary) {
                    (Mode::Shadow, _) => format!(" (shadow; the job itself: {})", unmapped()),
                    (Mode::Run, Some(canary)) => format!(" ({canary} %; the rest: {})", unmapped()),
                    (Mode::Run, None) => String::new(),
                }
            });
            format!(
                "mapping {}, {}{part}",
                mapping + 1,
                handler.unwrap_or_default()
            )
        }
        Route::Forward(queue) => format!("forwarded to `{queue}`"),
        Route::Unmapped => unmapped(),
    }
}
