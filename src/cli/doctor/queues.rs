//! A queue connection: its server, its keys and the queues on it.

use super::context::Context;
use super::waiting::Waiting;
use super::{jobs, mappings, outbox, pauses, prefix, redis, retry_after};
use crate::cli::prefixes::queues_by_prefix;
use crate::cli::report::Report;
use crate::cli::{connection, open, output};
use crate::config::{Connection, Error};
use crate::queue::{QueueName, RedisQueue};
use crate::shown::with_causes;

/// Looks at the queues of a connection; also answers whether there are jobs in batches.
pub(super) async fn check(context: &Context<'_>) -> (Report, bool) {
    let mut report = Report::default();
    let Some((queue, settings)) = opened(context, &mut report).await else {
        return (report, false);
    };
    report.extend(redis::check(queue.redis()).await);
    let found = match queues_by_prefix(queue.redis()).await {
        Ok(found) => found,
        Err(error) => {
            report.error(
                "queues",
                with_causes(&error),
                "the user of this connection must be allowed to SCAN",
            );
            return (report, false);
        }
    };
    report.extend(prefix::check(&settings.redis.prefix, &found));
    let names: Vec<QueueName> = (found.get(&settings.redis.prefix).into_iter().flatten())
        .map(|name| QueueName::from(name.as_str()))
        .collect();
    let (config, name) = (context.config, &context.connection);
    let retry_after = settings.queue.retry_after;
    if let Some(retry_after) = retry_after {
        report.extend(retry_after::check(config, name, retry_after));
    }
    report.extend(pauses::check(config, name, &names, &settings.default_queue).await);
    let mut waiting = Waiting::default();
    for name in &names {
        report.extend(jobs::check(context, &queue, name, retry_after, &mut waiting).await);
    }
    if let Some(router) = context.router() {
        report.extend(mappings::check_kinds(config, router, &waiting));
    }
    if names.is_empty() {
        report.ok(
            "queues",
            format!("none of connection `{name}` holds jobs now"),
        );
    }
    report.extend(outbox::check_failed_jobs(&queue).await);
    let (follow_ups, has_counts) = outbox::check_follow_ups(&queue).await;
    report.extend(follow_ups);
    (report, waiting.has_batches | has_counts)
}

/// Opens the connection; `None` after a finding that says why that was not possible.
async fn opened(context: &Context<'_>, report: &mut Report) -> Option<(RedisQueue, Connection)> {
    let (config, name) = (context.config, &context.connection);
    if let Err(error) = connection(config, name).await {
        let (check, remedy) = match error {
            Error::NoPrefix { .. } => (
                "prefix",
                "without it the keys of the queues are unknown: nothing more of this connection was checked",
            ),
            _ => (
                "queue",
                "name a connection on Redis, or correct its settings",
            ),
        };
        report.error(check, with_causes(&error), remedy);
        return None;
    }
    match open(config, name).await {
        Ok(opened) => Some(opened),
        Err(error) => {
            report.error(
                "redis",
                output::with_causes(&error),
                "check that the server runs, and host, port and password of the connection",
            );
            None
        }
    }
}
