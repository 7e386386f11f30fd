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
use crate::time::{Clock, UnixSeconds};

/// Where the app leaves signals for its workers.
#[derive(Debug, Clone, Default)]
pub struct ControlPlane {
    /// The app's default cache store: restart and pause keys.
    pub cache: Option<Cache>,
    /// Where the app says that it is down; `None` if the worker ignores that (`--force`).
    pub maintenance: Option<Maintenance>,
    /// When the app's settings began to be read: a restart that is signalled later concerns the worker, even if it
    /// has not started yet. `None` if restarts count from the worker's start.
    pub settings_of: Option<UnixSeconds>,
    /// Signals that the app's own workers do not ask for, either.
    pub unpolled: Unpolled,
}

/// Which signals a worker does not obey.
///
/// # Source
///
/// `Illuminate\Queue\Worker::$restartable` and `$pausable` (since Laravel 12.41).
#[derive(Debug, Clone, Copy, Default)]
pub struct Unpolled {
    /// `queue:restart`.
    pub restart: bool,
    /// `queue:pause`.
    pub pause: bool,
}

/// The latest signals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AppSignals {
    /// The restart key changed since the start, or since the settings were read.
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
    settings_of: Option<UnixSeconds>,
    unpolled: Unpolled,
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
            settings_of: plane.settings_of,
            unpolled: plane.unpolled,
            at_start: None,
            before: None,
            is_reported: false,
            is_maintenance_reported: false,
        })
    }

    /// Sends every change to `sender`; drops `looked` after the first look.
    pub(super) async fn keep_looking(
        mut self,
        sender: watch::Sender<AppSignals>,
        looked: tokio::sync::oneshot::Sender<()>,
    ) {
        let mut looked = Some(looked);
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let before = sender.borrow().clone();
            let now = self.look(before).await;
            sender.send_if_modified(|known| {
                let is_news = *known != now;
                *known = now;
                is_news
            });
            looked.take();
        }
    }

    async fn look(&mut self, mut known: AppSignals) -> AppSignals {
        // Maintenance comes first, because its file can be read at once.
        if let Some(maintenance) = &self.maintenance {
            let down = tokio::time::timeout(ONE_LOOK, maintenance.is_down()).await;
            match down {
                Ok(Ok(down)) => {
                    known.down = down;
                    self.is_maintenance_reported = false;
                }
                Ok(Err(error)) if is_away(&error) => {}
                Ok(Err(error)) => self.report_maintenance(&with_causes(&error)),
                Err(_) => self.report_maintenance("there is no answer"),
            }
        }
        if let Some(watched) = &self.watched {
            match tokio::time::timeout(ONE_LOOK, watched.read()).await {
                Ok(Ok(signals)) => self.apply(&signals, &mut known),
                // The connection logs this once.
                Ok(Err(error)) if is_away(&error) => {}
                Ok(Err(error)) => self.report(&with_causes(&error)),
                Err(_) => self.report("there is no answer"),
            }
        }
        known
    }

    fn apply(&mut self, signals: &Signals, known: &mut AppSignals) {
        if std::mem::take(&mut self.is_reported) {
            tracing::info!("the cache answers again");
        }
        let paused = self.queues.iter().zip(&signals.paused);
        known.paused = paused
            .filter(|(_, paused)| **paused && !self.unpolled.pause)
            .map(|(queue, _)| queue.clone())
            .collect();
        // What was read before may be outdated. Later, a clock that is ahead would look like a new restart each time.
        let is_outdated = self.at_start.is_none()
            && self.settings_of.is_some_and(|settings_of| {
                signals.were_restarts_told(settings_of, Clock::System.now())
            });
        let at_start = self.at_start.get_or_insert_with(|| signals.clone());
        let before = self.before.replace(signals.clone());
        if before.is_some_and(|before| before.asks_to_resume(signals)) {
            known.resumes += 1;
        }
        let is_restart = is_outdated || at_start.asks_for_restart(signals);
        if is_restart && !self.unpolled.restart && !known.restart {
            known.restart = true;
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
                "the cache cannot be read: restart and pause are not noticed until it can be; jobs go on"
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::cache::keys;
    use crate::php::Value;
    use crate::worker::test_support::{S, files};

    fn watch(cache: Option<Cache>, maintenance: Option<Maintenance>) -> Option<Watch> {
        let plane = ControlPlane {
            cache,
            maintenance,
            ..ControlPlane::default()
        };
        Watch::new(&plane, "redis", &["high".into(), "low".into()])
    }

    /// All files below a directory.
    fn all_files(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .flat_map(|path| {
                if path.is_dir() {
                    all_files(&path)
                } else {
                    vec![path]
                }
            })
            .collect()
    }

    async fn set(cache: &Cache, key: &str, value: Option<i64>) {
        match value {
            Some(value) => cache.forever(key, &Value::Int(value)).await.unwrap(),
            None => drop(cache.forget(key).await.unwrap()),
        }
    }

    #[tokio::test]
    async fn a_restart_key_that_changes_or_goes_away_stops_the_worker() {
        #[rustfmt::skip]
        let rows = [
            // at the start, then => restart
            (None,    None,    false),
            (Some(5), Some(5), false),
            (None,    Some(5), true),
            (Some(5), Some(6), true),
            // `cache:clear`, as in Laravel.
            (Some(5), None,    true),
        ];
        for (start, then, expected) in rows {
            let directory = tempfile::tempdir().unwrap();
            let cache = files(directory.path());
            let mut watch = watch(Some(cache.clone()), None).unwrap();
            set(&cache, keys::RESTART, start).await;
            let known = watch.look(AppSignals::default()).await;
            assert!(!known.restart, "{start:?}");
            set(&cache, keys::RESTART, then).await;
            let known = watch.look(known).await;
            assert_eq!(known.restart, expected, "{start:?} {then:?}");
            // A worker that was told to stop does not change its mind.
            set(&cache, keys::RESTART, start).await;
            assert_eq!(watch.look(known).await.restart, expected);
        }
    }

    #[tokio::test]
    async fn a_restart_after_the_settings_were_read_stops_a_worker_that_starts_only_then() {
        let int = |at| Some(Value::Int(at));
        // As Redis gives it.
        let text = |at: &str| Some(Value::String(at.as_bytes().to_vec()));
        #[rustfmt::skip]
        let rows = [
            // the restart, the settings => restart
            (int(9),    Some(9), false),
            (int(9),    Some(8), true),
            (text("9"), Some(9), false),
            (text("9"), Some(8), true),
            (text("x"), Some(8), false),
            (None,      Some(8), false),
            (int(9),    None,    false),
            // The clock of the program that sends it is ahead.
            (int(i64::MAX), Some(8), false),
        ];
        for (restart, settings_of, expected) in rows {
            let directory = tempfile::tempdir().unwrap();
            let cache = files(directory.path());
            if let Some(restart) = &restart {
                cache.forever(keys::RESTART, restart).await.unwrap();
            }
            let mut watch = watch(Some(cache), None).unwrap();
            watch.settings_of = settings_of.map(UnixSeconds);
            let known = watch.look(AppSignals::default()).await;
            assert_eq!(known.restart, expected, "{restart:?} {settings_of:?}");
        }
    }

    #[tokio::test]
    async fn queues_are_paused_one_by_one_or_all_together() {
        let directory = tempfile::tempdir().unwrap();
        let cache = files(directory.path());
        let mut watch = watch(Some(cache.clone()), None).unwrap();
        let low = keys::paused("redis", "low");
        // A queue of the same name on another connection.
        let other = keys::paused("sqs", "high");
        #[rustfmt::skip]
        let rows: [(&str, Option<i64>, &[&str]); 6] = [
            (&other,           Some(1), &[]),
            (&low,             Some(1), &["low"]),
            (keys::ALL_PAUSED, Some(1), &["high", "low"]),
            (keys::ALL_PAUSED, Some(0), &["low"]),
            (&low,             None,    &[]),
            (keys::ALL_PAUSED, None,    &[]),
        ];
        let mut known = AppSignals::default();
        for (key, value, expected) in rows {
            set(&cache, key, value).await;
            known = watch.look(known).await;
            let paused: Vec<_> = known.paused.iter().map(QueueName::as_str).collect();
            assert_eq!(paused, expected, "{key} {value:?}");
        }
    }

    #[tokio::test]
    async fn a_signal_that_the_apps_workers_do_not_poll_is_not_obeyed() {
        for (restart, pause) in [(false, false), (true, false), (false, true), (true, true)] {
            let directory = tempfile::tempdir().unwrap();
            let cache = files(directory.path());
            let mut watch = watch(Some(cache.clone()), None).unwrap();
            watch.unpolled = Unpolled { restart, pause };
            let known = watch.look(AppSignals::default()).await;
            set(&cache, keys::RESTART, Some(5)).await;
            set(&cache, &keys::paused("redis", "low"), Some(1)).await;
            set(&cache, keys::CANARY_RESUME, Some(1)).await;
            let known = watch.look(known).await;
            assert_eq!((known.restart, known.paused.is_empty()), (!restart, pause));
            assert_eq!(known.resumes, 1, "it is artisand's own");
        }
    }

    #[tokio::test]
    async fn canaries_are_resumed_by_each_new_call_and_not_by_an_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let cache = files(directory.path());
        set(&cache, keys::CANARY_RESUME, Some(1)).await;
        let mut watch = watch(Some(cache.clone()), None).unwrap();
        let mut known = AppSignals::default();
        for (value, expected) in [(Some(1), 0), (Some(2), 1), (None, 1), (Some(2), 2)] {
            set(&cache, keys::CANARY_RESUME, value).await;
            known = watch.look(known).await;
            assert_eq!(known.resumes, expected, "{value:?}");
        }
    }

    #[tokio::test]
    async fn signals_stay_in_force_while_the_cache_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let cache = files(directory.path());
        let mut watch = watch(Some(cache.clone()), None).unwrap();
        set(&cache, &keys::paused("redis", "low"), Some(1)).await;
        let known = watch.look(AppSignals::default()).await;
        let [file] = &all_files(directory.path())[..] else {
            panic!("one key");
        };
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
        assert_eq!(watch.look(known.clone()).await, known);
        assert!(watch.is_reported);
        std::fs::remove_dir(file).unwrap();
        assert_eq!(watch.look(known).await, AppSignals::default());
        assert!(!watch.is_reported);
    }

    #[tokio::test]
    async fn maintenance_is_a_file_or_a_key_and_stays_while_neither_can_be_seen() {
        let directory = tempfile::tempdir().unwrap();
        let cache = files(&directory.path().join("cache"));
        set(&cache, keys::DOWN, Some(1)).await;
        let by_key = Maintenance::Cache(cache);
        let mut maintenance = watch(None, Some(by_key)).unwrap();
        assert!(maintenance.look(AppSignals::default()).await.down);
        let framework = directory.path().join("framework");
        std::fs::create_dir(&framework).unwrap();
        let by_file = Maintenance::File(framework.join("down"));
        let mut watch = watch(None, Some(by_file)).unwrap();
        let known = watch.look(AppSignals::default()).await;
        assert!(!known.down);
        std::fs::write(framework.join("down"), "{}").unwrap();
        let known = watch.look(known).await;
        assert!(known.down);
        // A deployment has replaced the directory by something else for a moment.
        std::fs::remove_dir_all(&framework).unwrap();
        std::fs::write(&framework, "").unwrap();
        let known = watch.look(known).await;
        assert!(known.down && watch.is_maintenance_reported);
        std::fs::remove_file(&framework).unwrap();
        assert!(!watch.look(known).await.down);
    }

    #[test]
    fn a_cache_that_no_other_process_sees_is_not_asked() {
        assert!(watch(None, None).is_none());
        assert!(watch(Some(Cache::unshared()), None).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_wait_for_the_first_look_but_not_for_ever() {
        let (looked, first) = tokio::sync::oneshot::channel();
        let began = Instant::now();
        first_look(first).await;
        assert_eq!(began.elapsed(), FIRST);
        drop(looked);
        let (looked, first) = tokio::sync::oneshot::channel();
        drop(looked);
        let began = Instant::now();
        first_look(first).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_signals_are_read_once_a_second_and_told_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let down = directory.path().join("down");
        let watch = watch(None, Some(Maintenance::File(down.clone()))).unwrap();
        let (sender, mut receiver) = tokio::sync::watch::channel(AppSignals::default());
        let (looked, mut first) = tokio::sync::oneshot::channel();
        let looking = tokio::spawn(watch.keep_looking(sender, looked));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(
            first
                .try_recv()
                .is_err_and(|error| { error == tokio::sync::oneshot::error::TryRecvError::Closed })
        );
        tokio::time::sleep(S(5)).await;
        assert!(!receiver.has_changed().unwrap());
        std::fs::write(&down, "").unwrap();
        let began = Instant::now();
        receiver.changed().await.unwrap();
        assert!(receiver.borrow_and_update().down && began.elapsed() <= EVERY);
        looking.abort();
    }
}
