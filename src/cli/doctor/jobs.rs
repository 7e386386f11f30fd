//! The waiting jobs of a queue: who takes them, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::context::Context;
use super::encryption::Encrypted;
use super::fit::Fit;
use super::retry_after;
use super::taker::taker;
use super::waiting::Waiting;
use crate::cli::report::Report;
use crate::outbox::hand_over::is_closure;
use crate::payload::Payload;
use crate::queue::{Ability, Driver, Place, QueueName, Sizes};
use crate::shown::with_causes;
use crate::time::{Clock, UnixSeconds};

/// Looks at the jobs that wait in a queue, and notes what they are.
pub(super) async fn check(
    context: &Context<'_>,
    queue: &dyn Driver,
    name: &QueueName,
    retry_after: Option<Duration>,
    waiting: &mut Waiting,
) -> Report {
    let mut report = Report::default();
    let shown = async {
        if queue.abilities().has(Ability::Shows) {
            queue.look(name, Place::Pending, 0, context.sample).await
        } else {
            Ok(Vec::new())
        }
    };
    let (sizes, elements) = match (queue.sizes(name).await, shown.await) {
        (Ok(sizes), Ok(elements)) => (sizes, elements),
        (Err(error), _) | (_, Err(error)) => {
            report.error(
                "queue",
                format!("`{name}`: {}", with_causes(&error)),
                "its keys must be a list and two sorted sets",
            );
            return report;
        }
    };
    let now = Clock::System.now();
    let oldest = elements
        .first()
        .and_then(|element| Payload::parse(element).ok()?.created_at);
    report.extend(check_sizes(name, &sizes, oldest, now));
    let mut sample = Sample::default();
    for element in &elements {
        sample.note(context, name, retry_after, element, waiting);
    }
    report.extend(sample.report(name, now));
    report
}

/// Reports how many jobs wait.
fn check_sizes(
    name: &QueueName,
    sizes: &Sizes,
    oldest: Option<UnixSeconds>,
    now: UnixSeconds,
) -> Report {
    let mut report = Report::default();
    let mut line = format!(
        "`{name}`: {} pending, {} delayed, {} reserved",
        sizes.pending, sizes.delayed, sizes.reserved
    );
    if let Some(oldest) = oldest {
        let age = now.0.saturating_sub(oldest.0).max(0);
        let _ = write!(line, ", the oldest {age} s old");
    }
    report.ok("queue", line);
    if sizes.quarantined > 0 {
        report.warn(
            "queue",
            format!("`{name}`: payloads in quarantine: {}", sizes.quarantined),
            format!("see `artisand queue:quarantine {name}`"),
        );
    }
    report
}

/// What the first jobs of a queue are.
#[derive(Default)]
struct Sample {
    /// Jobs by class and by who takes them.
    classes: BTreeMap<(String, String), usize>,
    /// Classes whose timeout is not shorter than their reservation.
    slow: BTreeSet<String>,
    encrypted: Encrypted,
    fit: Fit,
    closures: usize,
    oldest_closure: Option<UnixSeconds>,
    undecodable: usize,
}

impl Sample {
    fn note(
        &mut self,
        context: &Context<'_>,
        name: &QueueName,
        retry_after: Option<Duration>,
        element: &[u8],
        waiting: &mut Waiting,
    ) {
        let Ok(mut payload) = Payload::parse(element) else {
            self.undecodable += 1;
            return;
        };
        if let (Some(timeout), Some(retry_after)) = (payload.limits.timeout, retry_after)
            && timeout >= retry_after
        {
            self.slow.insert(payload.shown_name().into_owned());
        }
        self.encrypted.note(&mut payload, &context.key);
        if is_closure(&payload) {
            self.closures += 1;
            self.oldest_closure = self.oldest_closure.or(payload.created_at);
        }
        waiting.note(&payload, name);
        if let Some(preview) = &context.preview {
            self.fit.note(preview, &payload, name);
        }
        let taker = context.router().map_or_else(
            || "(mappings have an error)".to_owned(),
            |router| taker(router, &payload, name, context.preview.as_ref()),
        );
        let class = payload.shown_name().into_owned();
        *self.classes.entry((class, taker)).or_insert(0) += 1;
    }

    fn report(self, name: &QueueName, now: UnixSeconds) -> Report {
        let mut report = Report::default();
        for ((class, taker), count) in self.classes {
            report.ok("jobs", format!("`{name}`: {count} of {class} -> {taker}"));
        }
        if self.undecodable > 0 {
            report.warn(
                "jobs",
                format!(
                    "`{name}`: payloads that cannot be decoded and would go to the quarantine: {}",
                    self.undecodable
                ),
                format!("`artisand queue:peek {name}` says why; find out what pushes them"),
            );
        }
        report.extend(self.fit.report(name));
        report.extend(self.encrypted.report(name));
        report.extend(check_closures(
            name,
            self.closures,
            self.oldest_closure,
            now,
        ));
        report.extend(retry_after::check_slow(self.slow));
        report
    }
}

/// Warns of closures that have waited for long, because no PHP worker takes them.
fn check_closures(
    name: &QueueName,
    closures: usize,
    oldest: Option<UnixSeconds>,
    now: UnixSeconds,
) -> Report {
    let mut report = Report::default();
    let waited = oldest.map_or(0, |since| now.0.saturating_sub(since.0));
    if waited > 60 {
        report.warn(
            "php queue",
            format!("`{name}`: {closures} closures wait for PHP, which ends batches and chains with them, the oldest for {waited} s"),
            "let a PHP worker serve this queue",
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closures_may_wait_for_a_minute() {
        let now = UnixSeconds(1_000);
        for (oldest, expected) in [(None, ""), (Some(940), ""), (Some(939), "warning")] {
            let report = check_closures(&"q".into(), 2, oldest.map(UnixSeconds), now);
            assert_eq!(report.levels(), expected, "{oldest:?}");
        }
    }
}
