//! How PHP processes are started.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use super::Config;
use super::connection::settings::connection;
use super::policy::app_for_php;
use crate::failed::FailedJobs;
use crate::process::pool::PoolOptions;
use crate::queue::QueueName;
use crate::worker::WorkerOptions;

/// How PHP processes are started for the jobs of a connection; `failed_jobs` is the store that artisand writes.
pub fn pool_options(
    config: &Config,
    worker: &WorkerOptions,
    failed_jobs: Option<&FailedJobs>,
) -> PoolOptions {
    let table = &config.file.php;
    let seconds = |duration: Duration| duration.as_secs();
    // Properties of `WorkerOptions`, by their names.
    let options = serde_json::json!({
        "name": "default",
        "backoff": worker.defaults.backoff.to_string(),
        "memory": match table.memory {
            Some(0) => i64::MAX,
            memory => i64::try_from(memory.unwrap_or(128)).unwrap_or(i64::MAX),
        },
        "timeout": if worker.stop.once { 0 } else { seconds(worker.defaults.timeout) },
        // Where it may not ask for jobs; it waits for one on the socket. Shorter than a job waits for being taken.
        "sleep": 1,
        "maxTries": worker.defaults.tries,
        // If the app's signals are not obeyed here, the PHP processes do not obey them either.
        "force": worker.force || config.file.worker.control_plane == Some(false),
        "stopWhenEmpty": false,
        "maxJobs": table.max_jobs.unwrap_or(10_000),
        // Up to Laravel 10 a worker that pauses takes the machine's uptime for its own.
        "maxTime": 0,
        "rest": 0,
    });
    // One job after the other, as one `queue:work`: more is for the app's people to decide.
    let processes = table.processes.unwrap_or(NonZeroUsize::MIN);
    let queues: Vec<&str> = worker.queues.iter().map(QueueName::as_str).collect();
    let boot = table.boot_timeout.map_or(60, NonZeroU64::get);
    PoolOptions {
        php: config.php_program(),
        app: app_for_php(config).unwrap_or_else(|| ".".into()),
        env: config.process.get("APP_ENV").cloned(),
        connection: worker.connection.to_string(),
        queue: queues.join(","),
        processes: if worker.stop.once {
            NonZeroUsize::MIN
        } else {
            processes
        },
        rest: worker.rest,
        max_time: Some(table.max_time.unwrap_or(3600))
            .filter(|seconds| *seconds > 0)
            .map(crate::time::seconds),
        failer: failed_jobs.map(FailedJobs::provider),
        worker: options.as_object().cloned().unwrap_or_default(),
        boot: crate::time::seconds(boot),
        retry_after: (connection(config, worker.connection.as_str()).ok())
            .and_then(|connection| connection.retry_after()),
        once: worker.stop.once,
    }
}
