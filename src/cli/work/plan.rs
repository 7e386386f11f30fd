//! What a worker is to do: its connection, its options and its mappings.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use super::args::WorkArgs;
use crate::cli::{UsageError, block_on, connection, named};
use crate::config::{self, Config, QueuePlace};
use crate::queue::QueueName;
use crate::routing::{Registry, Router, UnmappedPolicy};
use crate::telemetry::{Endpoint, PageOptions, TokenError};
use crate::worker::WorkerOptions;

/// What a worker is to do.
pub(super) struct Plan {
    /// Name of the queue connection.
    pub(super) connection: String,
    /// The connection's driver, if its jobs wait nowhere.
    pub(super) nowhere: Option<&'static str>,
    pub(super) options: WorkerOptions,
    pub(super) router: Router,
    /// Threads for handlers that keep a thread busy.
    pub(super) threads: NonZeroUsize,
    /// Where to serve metrics, if anywhere.
    pub(super) metrics: Option<Endpoint>,
    /// The page that is served there.
    pub(super) page: Option<PageOptions>,
    /// `--env`
    pub(super) env: Option<String>,
    /// `--name`
    pub(super) name: String,
    /// Whether to write heartbeats.
    pub(super) heartbeat: bool,
}

impl Plan {
    /// Looks up connection and handlers, and refuses what would go round in circles.
    pub(super) fn new(
        config: &Config,
        args: &WorkArgs,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let name = named(config, args.connection.as_deref());
        let settings = block_on(async { Ok(connection(config, &name).await?) })?;
        let options = args.resolve(config, &settings)?;
        let router = config::router(config, registry)?;
        refuse_circles(config, &router, &options, settings.forwards())?;
        settings.check_choices(&router)?;
        // Also those that get what this worker does not run: it could never push there.
        settings.check_tags(options.queues.iter().chain(router.forward_targets()))?;
        let metrics = args.metrics(config);
        let nowhere = match settings.place {
            QueuePlace::Nowhere(driver) => Some(driver),
            _ => None,
        };
        // A process for one job is gone before it is looked for.
        let heartbeat = config.file.worker.heartbeat.unwrap_or(true) && !options.stop.once;
        Ok(Self {
            connection: name,
            nowhere,
            options,
            router,
            threads: args.threads(config),
            page: metrics
                .as_ref()
                .map(|endpoint| page(config, endpoint))
                .transpose()?,
            metrics,
            env: None,
            name: args.name.clone(),
            heartbeat,
        })
    }

    /// Whether PHP runs what has no mapping.
    pub(super) fn is_for_php(&self) -> bool {
        self.nowhere.is_none() && *self.router.unmapped() == UnmappedPolicy::Php
    }

    /// How many jobs can run at once, in PHP processes too.
    pub(super) fn slots(&self, config: &Config) -> usize {
        let here = if self.runs_here() {
            self.options.concurrency.get()
        } else {
            0
        };
        let in_php = || {
            config::pool_options(config, &self.options, None)
                .processes
                .get()
        };
        here + if self.is_for_php() { in_php() } else { 0 }
    }

    /// Whether handlers of this process may run: there are mappings, or PHP does not run the rest.
    pub(super) fn runs_here(&self) -> bool {
        self.router.mappings().len() > 0 || !self.is_for_php()
    }
}

/// The page at this address.
fn page(config: &Config, endpoint: &Endpoint) -> Result<PageOptions, UsageError> {
    const NAME: &str = "ARTISAND_HTTP_TOKEN";
    let http = &config.file.http;
    let token = match std::env::var(NAME).ok().filter(|token| !token.is_empty()) {
        Some(token) => Some(
            token
                .parse()
                .map_err(|error: TokenError| UsageError(format!("{NAME}: {error}")))?,
        ),
        None => http.token.clone(),
    };
    let mut page = PageOptions::new(endpoint, token, http.hosts.clone());
    page.is_served = http.page.unwrap_or(true);
    Ok(page)
}

/// Refuses to forward jobs to a queue that this worker works, and to fail the jobs that are handed to PHP.
fn refuse_circles(
    config: &Config,
    router: &Router,
    options: &WorkerOptions,
    forwards: &BTreeMap<QueueName, QueueName>,
) -> Result<(), UsageError> {
    let kept = |queue: &QueueName| forwards.get(queue).unwrap_or(queue).clone();
    if let Some(queue) = config.file.php.queue.as_deref()
        && matches!(router.unmapped(), UnmappedPolicy::Fail)
        && options.queues.contains(&queue.into())
    {
        let problem = format!(
            "what only PHP can do would be pushed to `{queue}` (`queue` under [php]), which this worker works, and fail there by the policy for unmapped jobs: name a queue that only PHP workers serve"
        );
        return Err(UsageError(problem));
    }
    if let Some(queue) = router.forward_targets().find(|queue| {
        options
            .queues
            .iter()
            .any(|worked| kept(worked) == kept(queue))
    }) {
        let problem = format!(
            "jobs would be forwarded to `{queue}`, which this worker works: they would go round forever"
        );
        return Err(UsageError(problem));
    }
    Ok(())
}
