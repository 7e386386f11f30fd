//! A queue connection: its server, its keys and the queues on it.

use super::context::Context;
use super::waiting::Waiting;
use std::sync::Arc;

use super::{
    database, doubts, jobs, mappings, outbox, pauses, prefix, redis, retry_after, sentinel, workers,
};
use crate::cli::report::Report;
use crate::cli::{connection, open, output};
use crate::config::{Config, Connection, Error, LedgerPlace, QueuePlace};
use crate::connection::{DatabaseKind, Redis, RedisAddress, RedisOptions};
use crate::queue::{Driver, Keys, QueueName, RedisQueueOptions, queues_by_prefix};
use crate::shown::with_causes;

/// Looks at the queues of a connection; also answers whether there are jobs in batches.
pub(super) async fn check(context: &Context<'_>) -> (Report, bool) {
    let mut report = Report::default();
    let Some((queue, settings)) = opened(context, &mut report).await else {
        return (report, false);
    };
    let Some(names) = names(context.config, &*queue, &settings, &mut report).await else {
        return (report, false);
    };
    let (config, name) = (context.config, &context.connection);
    let retry_after = settings.retry_after();
    if let Some(retry_after) = retry_after {
        report.extend(retry_after::check(config, name, retry_after));
    }
    if let Some(doubt) = config.doubt_of_encoding(name) {
        doubts::tell(&mut report, &doubt);
    }
    report.extend(pauses::check(config, name, &names, &settings.default_queue).await);
    report.extend(workers::check(&*queue).await);
    let mut waiting = Waiting::default();
    for name in &names {
        report.extend(jobs::check(context, &*queue, name, retry_after, &mut waiting).await);
    }
    if let Ok(place) = &settings.ledger {
        report.extend(check_ledger(place).await);
    }
    if let Some(router) = context.router() {
        if let Err(error) = settings.check_choices(router) {
            report.error("policy", error.to_string(), "queue:work does not start so");
        }
        report.extend(mappings::check_kinds(config, router, &waiting));
    }
    if names.is_empty() {
        report.ok(
            "queues",
            format!("none of connection `{name}` holds jobs now"),
        );
    }
    // A queue that Laravel cannot push to has no keys: so the default one is looked at as well.
    let default = [settings.default_queue.clone()];
    if let Err(error) = settings.check_tags([&names[..], &default].concat().iter()) {
        let remedy = "do that first: queue:work refuses this queue";
        report.error("queues", error.to_string(), remedy);
    }
    report.extend(outbox::check_parts(&*queue).await);
    report.extend(outbox::check_failed_jobs(&*queue).await);
    let (follow_ups, has_counts) = outbox::check_follow_ups(&*queue).await;
    report.extend(follow_ups);
    (report, waiting.has_batches | has_counts)
}

/// Looks at the place where the ends of jobs are noted.
async fn check_ledger(place: &LedgerPlace) -> Report {
    let mut report = Report::default();
    let found = format!("ends of jobs are noted: {place}");
    match place {
        LedgerPlace::Own => {}
        LedgerPlace::Redis { redis, .. } => {
            match place.doubt() {
                Some(doubt) => report.warn("ledger", doubt.to_string(), doubt.remedy),
                None => report.ok("ledger", found),
            }
            if let Err(error) = check_servers(redis, &mut report).await {
                report.error("ledger", error, "check that its Redis runs");
            }
        }
        LedgerPlace::Database { database, .. } if database.kind == DatabaseKind::Sqlite => {
            report.warn(
                "ledger",
                format!("{found}; PHP that counts a batch in the same file fails (`database is locked`) if a note is written meanwhile"),
                "name another place as `ledger` under [worker], such as `storage/artisand.sqlite`",
            );
        }
        LedgerPlace::Database { .. } | LedgerPlace::File(_) => report.ok("ledger", found),
    }
    report
}

/// Looks at the server, and finds the queues that hold jobs; `None` if they cannot be found.
async fn names(
    config: &Config,
    queue: &dyn Driver,
    settings: &Connection,
    report: &mut Report,
) -> Option<Vec<QueueName>> {
    let (found, remedy) = match &settings.place {
        QueuePlace::Redis {
            redis,
            queue: options,
        } => (
            on_redis(redis, options, report).await,
            "the user of this connection must be allowed to SCAN",
        ),
        QueuePlace::Database {
            database,
            queue: options,
        } => {
            report.extend(database::check(config, database, &options.table));
            let names = queue.queues().await.map_err(|error| with_causes(&error));
            (
                names,
                "the user of this connection must be allowed to read the table",
            )
        }
        QueuePlace::Nowhere(driver) => {
            report.warn(
                "queue",
                format!("connection `{}` has the driver `{driver}`, where no job waits: a worker finds none", settings.name),
                "set QUEUE_CONNECTION, or name another connection",
            );
            (Ok(Vec::new()), "")
        }
        QueuePlace::Sqs { .. } => {
            let counted = queue.sizes(&settings.default_queue).await;
            let names = counted.map(|_| vec![settings.default_queue.clone()]);
            (
                names.map_err(|error| with_causes(&error)),
                "the app's key must be allowed sqs:GetQueueAttributes, ReceiveMessage, DeleteMessage, ChangeMessageVisibility and SendMessage",
            )
        }
        QueuePlace::Beanstalkd { .. } | QueuePlace::Failover(_) => {
            let names = queue.queues().await.map_err(|error| with_causes(&error));
            (names, "the server must answer `list-tubes`")
        }
    };
    found
        .map_err(|error| report.error("queues", error, remedy))
        .ok()
}

/// Looks at the server of a Redis connection, or at all masters of its cluster.
async fn check_servers(options: &RedisOptions, report: &mut Report) -> Result<Redis, String> {
    let server = Redis::new(options).map_err(|error| with_causes(&error))?;
    let masters = server
        .masters()
        .await
        .map_err(|error| with_causes(&error))?;
    if server.is_cluster() {
        let count = masters.len();
        report.ok(
            "redis",
            format!("{}, with {count} masters", server.address()),
        );
    }
    for master in &masters {
        report.extend(redis::check(master).await);
        if server.is_cluster() {
            report.extend(sentinel::check_replicas(master).await);
        }
    }
    if let RedisAddress::Sentinel(sentinels) = &options.address {
        report.extend(sentinel::check(&server, sentinels).await);
    }
    Ok(server)
}

async fn on_redis(
    options: &RedisOptions,
    queue: &RedisQueueOptions,
    report: &mut Report,
) -> Result<Vec<QueueName>, String> {
    let server = check_servers(options, report).await?;
    let found = queues_by_prefix(&server).await;
    let found = found.map_err(|error| with_causes(&error))?;
    report.extend(prefix::check(&options.prefix, &found));
    let own = found.get(&options.prefix).into_iter().flatten();
    let keys = Keys::new(&*options.prefix).with_tagging(queue.tagging);
    Ok(own.map(|name| keys.queue_named(name)).collect())
}

/// Opens the connection; `None` after a finding that says why that was not possible.
async fn opened(
    context: &Context<'_>,
    report: &mut Report,
) -> Option<(Arc<dyn Driver>, Connection)> {
    let (config, name) = (context.config, &context.connection);
    let driver = match connection(config, name).await {
        Ok(settings) => settings.driver(),
        Err(error) => {
            let (check, remedy) = match error {
                Error::NoPrefix { .. } => (
                    "prefix",
                    "without it the keys of the queues are unknown: nothing more of this connection was checked",
                ),
                _ => (
                    "queue",
                    "name a connection on Redis or in a database, or correct its settings",
                ),
            };
            report.error(check, with_causes(&error), remedy);
            return None;
        }
    };
    match open(config, name).await {
        Ok(opened) => Some(opened),
        Err(error) => {
            report.error(
                driver,
                output::with_causes(&error),
                "check that the server runs, and host, port and password of the connection",
            );
            None
        }
    }
}
