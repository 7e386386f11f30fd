//! Tells observers about changes: the app's signals (restart, pause, maintenance) and the counts of mappings.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::event::{Event, Observers};
use super::options::WorkerOptions;
use super::signals::{AppSignals, ControlPlane, Watch, first_look};
use super::stats::{MappingCounts, MappingStats};
use crate::queue::QueueName;

/// How often observers are told the counts of canaries and shadows.
const STATS_EVERY: Duration = Duration::from_secs(60);

/// The app's signals and the counts of mappings, and which of them observers know.
pub(super) struct Announcer {
    signals: watch::Receiver<AppSignals>,
    announced: AppSignals,
    /// Resolves when the first look at the app's signals is over.
    first_look: Option<oneshot::Receiver<()>>,
    announced_stats: Vec<MappingCounts>,
    stats_announced_at: Instant,
}

impl Announcer {
    /// Starts to look at the app's signals, if there is anything to look at.
    pub(super) fn start(
        control_plane: &ControlPlane,
        options: &WorkerOptions,
        helpers: &mut JoinSet<()>,
    ) -> Self {
        let (sender, signals) = watch::channel(AppSignals::default());
        let paused_as = options.paused_as.as_ref().unwrap_or(&options.connection);
        let watch = Watch::new(control_plane, paused_as.as_str(), &options.queues);
        let first_look = watch.map(|watch| {
            let (looked, first_look) = oneshot::channel();
            helpers.spawn(watch.keep_looking(sender, looked));
            first_look
        });
        Self {
            signals,
            announced: AppSignals::default(),
            first_look,
            announced_stats: Vec::new(),
            stats_announced_at: Instant::now(),
        }
    }

    /// Waits for the first look at the app's signals, so that the app can say that it is down.
    pub(super) async fn first_look(&mut self) {
        if let Some(looked) = self.first_look.take() {
            first_look(looked).await;
        }
    }

    /// Waits for a change in the app's signals; never returns if nothing looks for them.
    pub(super) async fn changed(&mut self) {
        if self.signals.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Tells observers what has changed in the app's signals since the last call; true if something has.
    pub(super) fn announce(&mut self, observers: &Observers, stats: &MappingStats) -> bool {
        let now = self.signals.borrow_and_update().clone();
        if now == self.announced {
            return false;
        }
        let before = std::mem::replace(&mut self.announced, now);
        let now = &self.announced;
        let new = |queues: &[QueueName], before: &[QueueName]| {
            let new = queues.iter().filter(|queue| !before.contains(queue));
            new.cloned().collect::<Vec<_>>()
        };
        for queue in new(&now.paused, &before.paused) {
            observers.emit(&Event::WorkerQueuePaused(&queue));
        }
        for queue in new(&before.paused, &now.paused) {
            observers.emit(&Event::WorkerQueueResumed(&queue));
        }
        if now.down != before.down {
            observers.emit(&Event::MaintenanceMode(now.down));
        }
        if now.resumes != before.resumes {
            for target in stats.resume() {
                tracing::info!(
                    mapping = target,
                    "a canary that had stopped itself runs jobs again"
                );
                observers.emit(&Event::CanaryResumed(target));
            }
        }
        true
    }

    /// The app's signals, as observers were last told.
    pub(super) fn announced(&self) -> &AppSignals {
        &self.announced
    }

    /// Tells observers the counts of mappings that have changed, at most once per [`STATS_EVERY`].
    pub(super) fn announce_stats_sometimes(&mut self, observers: &Observers, stats: &MappingStats) {
        if self.stats_announced_at.elapsed() >= STATS_EVERY {
            self.announce_stats(observers, stats);
        }
    }

    /// Tells observers the counts of mappings that have changed.
    pub(super) fn announce_stats(&mut self, observers: &Observers, stats: &MappingStats) {
        let counted = stats.read();
        for counts in counted
            .iter()
            .filter(|counts| !self.announced_stats.contains(counts))
        {
            observers.emit(&Event::Tallied(counts));
        }
        self.announced_stats = counted;
        self.stats_announced_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::routing::{Registry, Router, UnmappedPolicy};
    use crate::worker::event::Observer;

    #[tokio::test]
    async fn what_the_app_says_is_told_once_when_it_changes() {
        let (sender, signals) = watch::channel(AppSignals::default());
        let mut announcer = Announcer {
            signals,
            announced: AppSignals::default(),
            first_look: None,
            announced_stats: Vec::new(),
            stats_announced_at: Instant::now(),
        };
        let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &Registry::new()).unwrap();
        let stats = MappingStats::new(&router);
        let events = Arc::new(Mutex::new(Vec::new()));
        let listener: Arc<dyn Observer> = {
            let events = Arc::clone(&events);
            Arc::new(move |event: &Event<'_>| {
                events.lock().unwrap().push(match event {
                    Event::WorkerQueuePaused(queue) => format!("paused {queue}"),
                    Event::WorkerQueueResumed(queue) => format!("resumed {queue}"),
                    Event::MaintenanceMode(down) => format!("down {down}"),
                    event => event.name().to_owned(),
                });
            })
        };
        let observers: Observers = [listener].into_iter().collect();
        let paused = |queues: &[&str]| AppSignals {
            paused: queues.iter().map(|queue| QueueName::from(*queue)).collect(),
            ..AppSignals::default()
        };
        let down = AppSignals {
            down: true,
            ..paused(&["b"])
        };
        let rows = [
            (paused(&[]), ""),
            (paused(&["a", "b"]), "paused a, paused b"),
            (paused(&["a", "b"]), ""),
            (down, "resumed a, down true"),
            (paused(&[]), "resumed b, down false"),
        ];
        for (signals, expected) in rows {
            sender.send_replace(signals.clone());
            let is_news = announcer.announce(&observers, &stats);
            let emitted = std::mem::take(&mut *events.lock().unwrap()).join(", ");
            assert_eq!(emitted, expected, "{signals:?}");
            assert_eq!(is_news, !expected.is_empty(), "{signals:?}");
            assert_eq!(*announcer.announced(), signals);
        }
    }
}
