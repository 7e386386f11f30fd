//! What a worker's events are written to for others: Horizon, Pulse, `artisand tail`, and traces.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::runtime::Handle;

use super::plan::Plan;
use crate::config::{self, Config, Connection};
use crate::horizon::{Horizon, HorizonOptions};
use crate::pulse::Pulse;
use crate::queue::{PushListener, Queue};
use crate::shown::with_causes;
use crate::task::Losses;
#[cfg(feature = "otlp")]
use crate::telemetry::Traces;
use crate::telemetry::{Feed, JobFigures};
use crate::worker::Worker;

/// As the events of the other files of this folder have it.
const TARGET: &str = "artisand::cli::work";

/// The writers of one worker; each has a task of its own.
pub(super) struct Records {
    horizon: Option<Horizon>,
    pulse: Option<Pulse>,
    feed: Option<Feed>,
    #[cfg(feature = "otlp")]
    traces: Option<Traces>,
}

impl Records {
    /// Starts what the app's settings and those of the worker ask for; records that are dropped count in the figures.
    pub(super) fn start(
        config: &Config,
        plan: &Plan,
        horizon: Option<HorizonOptions>,
        figures: Option<&JobFigures>,
        runtime: &Handle,
    ) -> anyhow::Result<Self> {
        let losses = |sink| -> Losses {
            let losses = figures.map(|figures| figures.losses(sink));
            losses.map_or_else(|| Arc::new(|_| ()) as Losses, |losses| Arc::new(losses))
        };
        #[cfg(feature = "otlp")]
        let traces = config::traces(config, &plan.connection)?
            .map(|options| Traces::start(&options, losses("otlp"), runtime))
            .transpose()?;
        #[cfg(not(feature = "otlp"))]
        config::traces(config, &plan.connection)?;
        let horizon = horizon.map(|options| Horizon::start(options, losses("horizon"), runtime));
        Ok(Self {
            horizon: horizon.transpose()?,
            pulse: start_pulse(config, plan, losses("pulse"), runtime)?,
            feed: None,
            #[cfg(feature = "otlp")]
            traces,
        })
    }

    /// Starts what writes the events for `artisand tail`, if the queues are on Redis.
    ///
    /// A process for one job ends before it would notice a listener.
    pub(super) fn with_feed(
        mut self,
        config: &Config,
        plan: &Plan,
        connection: &Connection,
        runtime: &Handle,
    ) -> anyhow::Result<Self> {
        let redis = (connection.redis()).filter(|_| config.obeys_app() && !plan.options.stop.once);
        let feed = redis.map(|redis| Feed::start(redis, runtime));
        self.feed = feed.transpose()?;
        Ok(self)
    }

    /// Records what is pushed onto these queues.
    pub(super) fn listen_to(&self, queues: Vec<Arc<dyn Queue>>) {
        let mut hearing: Vec<Arc<dyn PushListener>> = Vec::new();
        if let Some(horizon) = &self.horizon {
            hearing.push(Arc::new(horizon.recorder()));
        }
        if let Some(pulse) = &self.pulse {
            hearing.push(Arc::new(pulse.recorder()));
        }
        if hearing.is_empty() {
            return;
        }
        let hearing: Arc<dyn PushListener> = Arc::new(hearing);
        for queue in queues {
            queue.tell_pushes(Arc::clone(&hearing));
        }
    }

    /// Records what the worker does, which begins now.
    pub(super) fn observe(&self, mut worker: Worker) -> Worker {
        if let Some(horizon) = &self.horizon {
            horizon.begin();
            worker = worker.with_observer(horizon.recorder());
        }
        if let Some(feed) = &self.feed {
            worker = worker.with_observer(feed.observer());
        }
        if let Some(pulse) = &self.pulse {
            worker = worker.with_observer(pulse.recorder());
        }
        #[cfg(feature = "otlp")]
        if let Some(traces) = &self.traces {
            worker = worker.with_observer(traces.clone());
        }
        worker
    }

    /// Writes the last records.
    pub(super) async fn finish(self) {
        if let Some(feed) = self.feed {
            feed.finish().await;
        }
        if let Some(horizon) = self.horizon {
            horizon.finish().await;
        }
        if let Some(pulse) = self.pulse {
            pulse.finish().await;
        }
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            traces.finish().await;
        }
    }
}

/// Starts to write the app's Pulse entries, if it has Pulse.
///
/// A worker does not stay down for cards of a dashboard, unless its operator asks for them.
fn start_pulse(
    config: &Config,
    plan: &Plan,
    losses: Losses,
    runtime: &Handle,
) -> anyhow::Result<Option<Pulse>> {
    let options = match config::pulse(config) {
        Ok(options) => options,
        Err(error) if config.file.pulse.enabled != Some(true) => {
            tracing::warn!(
                target: TARGET,
                error = with_causes(&error),
                "nothing is written for Pulse; `enabled = false` under [pulse] says that it is not wanted"
            );
            None
        }
        Err(error) => return Err(error.into()),
    };
    let Some(options) = options else {
        return Ok(None);
    };
    for (doubt, advice) in &options.doubts {
        tracing::warn!(target: TARGET, advice, "{doubt}");
    }
    let connection = plan.options.connection.clone();
    let started = Pulse::start(options, connection, losses, runtime);
    started
        .map(Some)
        .context("Pulse's entries cannot be written")
}
