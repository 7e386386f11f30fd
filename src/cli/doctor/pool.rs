//! Whether a PHP process of the pool boots the app.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::context::Context;
use crate::cli::report::Report;
use crate::config::{self, PayloadHooks};
use crate::process::pool::{Pool, PoolOptions, Versions};
use crate::routing::{Router, UnmappedPolicy};
use crate::worker::WorkerOptions;

/// The result if a process boots the app.
fn running(processes: NonZeroUsize, versions: &Versions, took: Duration) -> String {
    let run = match processes.get() {
        1 => format!("1 process of PHP {} runs", versions.php),
        count => format!("{count} processes of PHP {} run", versions.php),
    };
    format!(
        "{run} what is not mapped; the app (Laravel {}) boots in {} ms",
        versions.laravel,
        took.as_millis()
    )
}

/// Reports what becomes of the app's payload hooks.
fn hooks(context: &Context<'_>, has_pool: bool) -> Report {
    let mut report = Report::default();
    let config = context.config;
    let known = config.manifest();
    let names = known.map_or(&[][..], |(_, manifest)| &manifest.payload_hooks);
    if names.is_empty() {
        return report;
    }
    let adds = format!("{} adds to payloads", names.join(", "));
    match config.file.php.payload_hooks {
        PayloadHooks::Skip => report.warn(
            "payload hooks",
            format!("{adds}, and jobs that artisand pushes go without that"),
            "if PHP needs it, take `payload_hooks = \"ask\"` under [php]",
        ),
        PayloadHooks::Ask if has_pool => report.ok(
            "payload hooks",
            format!("{adds}; a PHP process is asked what, for jobs that artisand pushes"),
        ),
        PayloadHooks::Ask => report.ok(
            "payload hooks",
            format!("{adds}; PHP pushes the jobs that follow others, in closures"),
        ),
    }
    report
}

/// Reports whether a PHP process of the pool boots the app.
pub(super) async fn check(context: &Context<'_>, router: &Router) -> Report {
    let has_pool = *router.unmapped() == UnmappedPolicy::Php;
    let mut report = hooks(context, has_pool);
    if !has_pool {
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
            report.ok("php pool", running(processes, &versions, took));
        }
        Err(error) => report.error(
            "php pool",
            error.to_string(),
            "queue:work does not start like this: fix the app, or set `policy` under [unmapped] to `leave` or `forward`",
        ),
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_processes_is_said_in_plain_english() {
        let versions = Versions {
            laravel: "13.0.0".to_owned(),
            php: "8.4.1".to_owned(),
        };
        let rows = [
            (
                1,
                "1 process of PHP 8.4.1 runs what is not mapped; the app (Laravel 13.0.0) boots in 7 ms",
            ),
            (
                2,
                "2 processes of PHP 8.4.1 run what is not mapped; the app (Laravel 13.0.0) boots in 7 ms",
            ),
        ];
        for (count, expected) in rows {
            let count = NonZeroUsize::new(count).unwrap();
            assert_eq!(
                running(count, &versions, Duration::from_millis(7)),
                expected
            );
        }
    }
}
