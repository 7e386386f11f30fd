//! Watches what the app signals through its cache and files: restart, pause, maintenance.
//!
//! The signals are read once a second, independent of the jobs. Laravel asks before every pop; artisand may notice
//! a signal a second late, but a lost cache stops no job.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::cache::{Cache, Maintenance, Signals, Watched};
use crate::connection::is_away;
use crate::queue::QueueName;
use crate::shown::with_causes;

/// Where the app leaves signals for its workers.
#[derive(Debug, Clone, Default)]
pub struct ControlPlane {
    /// The app's default cache store: restart and pause keys, and counts of exceptions.
    pub cache: Option<Cache>,
    /// Where the app says that it is down; `None` if the worker ignores that (`--force`).
    pub maintenance: Option<Maintenance>,
}

/// The latest signals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The restart key changed since the start.
    pub(super) restart: bool,
    /// The app is down for maintenance.
    pub(super) down: bool,
    /// Queues that are paused.
    pub(super) paused: Vec<QueueName>,
    /// How often `canary:resume` was called since the start.
    pub(super) resumes: u64,
}

const EVERY: Duration = Duration::from_secs(1);
/// How long one answer may take; two answers together take less than [`FIRST`].
const ONE_LOOK: Duration = Duration::from_millis(1400);
/// How long the first look may take before jobs begin without it.
const FIRST: Duration = Duration::from_secs(3);

/// Reads the signals until the future is dropped.
pub(super) struct Watch {
    watched: Option<Watched>,
    maintenance: Option<Maintenance>,
    queues: Vec<QueueName>,
    at_start: Option<Signals>,
    before: Option<Signals>,
    is_reported: bool,
    is_maintenance_reported: bool,
}

impl Watch {
    /// `None` if there is nothing to look at.
    pub(super) fn new(
        plane: &ControlPlane,
        connection: &str,
        queues: &[QueueName],
    ) -> Option<Self> {
        let shared = plane.cache.clone().filter(Cache::is_shared);
        let watched = shared
            .map(|cache| Watched::new(cache, connection, queues.iter().map(QueueName::as_str)));
        let maintenance = plane.maintenance.clone();
        (watched.is_some() || maintenance.is_some()).then(|| Self {
            watched,
            maintenance,
            queues: queues.to_vec(),
            at_start: None,
            before: None,
            is_reported: false,
            is_maintenance_reported: false,
        })
    }

    /// Sends every change to `heard`; drops `looked` after the first look.
    pub(super) async fn keep_looking(
        mut self,
        heard: watch::Sender<Heard>,
        looked: tokio::sync::oneshot::Sender<()>,
    ) {
        let mut looked = Some(looked);
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let before = heard.borrow().clone();
            let now = self.look(before).await;
            heard.send_if_modified(|heard| {
                let is_news = *heard != now;
                *heard = now;
                is_news
            });
            looked.take();
        }
    }

    async fn look(&mut self, mut heard: Heard) -> Heard {
        // Maintenance comes first, because its file can be read at once.
        if let Some(maintenance) = &self.maintenance {
            let down = tokio::time::timeout(ONE_LOOK, maintenance.is_down()).await;
            match down {
                Ok(Ok(down)) => {
                    heard.down = down;
                    self.is_maintenance_reported = false;
                }
                Ok(Err(error)) if is_away(&error) => {}
                Ok(Err(error)) => self.report_maintenance(&with_causes(&error)),
                Err(_) => self.report_maintenance("there is no answer"),
            }
        }
        if let Some(watched) = &self.watched {
            match tokio::time::timeout(ONE_LOOK, watched.read()).await {
                Ok(Ok(signals)) => self.hear(&signals, &mut heard),
                // The connection logs this once.
                Ok(Err(error)) if is_away(&error) => {}
                Ok(Err(error)) => self.report(&with_causes(&error)),
                Err(_) => self.report("there is no answer"),
            }
        }
        heard
    }

    fn hear(&mut self, signals: &Signals, heard: &mut Heard) {
        if std::mem::take(&mut self.is_reported) {
            tracing::info!("the cache answers again");
        }
        let paused = self.queues.iter().zip(&signals.paused);
        heard.paused = paused
            .filter(|(_, paused)| **paused)
            .map(|(queue, _)| queue.clone())
            .collect();
        let at_start = self.at_start.get_or_insert_with(|| signals.clone());
        let before = self.before.replace(signals.clone());
        if before.is_some_and(|before| before.asks_to_resume(signals)) {
            heard.resumes += 1;
        }
        if at_start.asks_for_restart(signals) && !heard.restart {
            heard.restart = true;
            if at_start.was_cleared(signals) {
                tracing::info!(
                    "the cache was cleared, and with it the restart key: stopping, as Laravel's workers do"
                );
            }
        }
    }

    /// Logs once that the cache is away; the last known signals stay in force.
    fn report(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(
                error,
                "the cache cannot be read: restart and pause are not heard until it can; jobs go on"
            );
        }
    }

    fn report_maintenance(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_maintenance_reported, true) {
            tracing::warn!(
                error,
                "cannot tell whether the app is down for maintenance; jobs go on"
            );
        }
    }
}

/// Waits for the first look, but at most [`FIRST`].
pub(super) async fn first_look(looked: tokio::sync::oneshot::Receiver<()>) {
    // The sender is dropped, which ends the wait just like a message.
    let _ = tokio::time::timeout_at(Instant::now() + FIRST, looked).await;
}
