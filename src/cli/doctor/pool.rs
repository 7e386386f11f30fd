//! Whether a PHP process of the pool boots the app.

use std::num::NonZeroUsize;

use super::context::Context;
use crate::cli::report::Report;
use crate::config;
use crate::process::pool::{Pool, PoolOptions};
use crate::routing::{Router, UnmappedPolicy};
use crate::worker::WorkerOptions;

/// Reports whether a PHP process of the pool boots the app.
pub(super) async fn check(context: &Context<'_>, router: &Router) -> Report {
    let mut report = Report::default();
    if *router.unmapped() != UnmappedPolicy::Php {
        return report;
    }
    let worker = WorkerOptions {
        connection: context.connection.as_str().into(),
        ..WorkerOptions::default()
    };
    let options = config::pool_options(context.config, &worker, None);
    let processes = options.processes;
    let one = PoolOptions {
        processes: NonZeroUsize::MIN,
        ..options
    };
    let began = std::time::Instant::now();
    match Pool::start(one).await {
        Ok(pool) => {
            let (versions, took) = (pool.versions(), began.elapsed());
            pool.stop().await;
            report.ok(
                "php pool",
                format!(
                    "{processes} processes of PHP {} run what is not mapped; the app (Laravel {}) boots in {} ms",
                    versions.php,
                    versions.laravel,
                    took.as_millis()
                ),
            );
        }
        Err(error) => report.error(
            "php pool",
            error.to_string(),
            "queue:work does not start like this: mend the app, or set `policy` under [unmapped] to `leave` or `forward`",
        ),
    }
    report
}
