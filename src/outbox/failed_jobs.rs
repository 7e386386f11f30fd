//! Moves failed jobs from the spool to the app's store, each exactly once.
//!
//! Settling moves a failed job from its queue into the spool in one step. From there any worker takes it to the
//! store: first it writes the row, then it removes the record from the spool. A lease allows one process at a
//! time. If that process dies in between, its successor finds the row that is already there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::Reconnect;
use crate::failed::{FailedJob, FailedJobs, Recorded};
use crate::outbox::lease::{DrainStatus, Lease, Progress, list_unreachable};
use crate::outbox::parts::{Part, Parts, worst};
use crate::outbox::{OnRefusal, despite_panics};
use crate::queue::{Ledger, QueueName, Spool};
use crate::shown::with_causes;
use crate::time::{Clock, UnixSeconds};

/// What the task needs.
pub(crate) struct FailedJobRelay {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The queues that the worker serves.
    pub(crate) queues: Vec<QueueName>,
    pub(crate) store: Arc<FailedJobs>,
    pub(crate) clock: Clock,
    /// Notified when a job went to the spool.
    pub(crate) spooled: Arc<Notify>,
    /// Cancelled when no more jobs will go to the spool.
    pub(crate) last: CancellationToken,
    pub(crate) progress: Progress,
    pub(crate) sweeps: watch::Sender<Sweeps>,
    /// Number of failed jobs whose aftermath PHP still writes to a database that takes one writer at a time.
    pub(crate) failing: watch::Receiver<usize>,
    pub(crate) on_refusal: OnRefusal,
}

/// What was already logged, so that it is not logged every second.
#[derive(Debug, Default)]
struct Logged {
    refusal: Option<String>,
    foreign: bool,
    /// Where the next pass begins: after refused records, so that they do not keep others from the store.
    from: usize,
}

impl Logged {
    fn refusal(&mut self, error: &crate::failed::Error, store: &FailedJobs) {
        let error = with_causes(error);
        if self.refusal.as_ref() != Some(&error) {
            tracing::error!(
                error,
                store = store.describe(),
                "failed jobs cannot be recorded; they wait in the spool until the store can be written"
            );
            self.refusal = Some(error);
        }
    }

    fn foreign(&mut self, error: &serde_json::Error) {
        if !std::mem::replace(&mut self.foreign, true) {
            tracing::error!(%error, "a record in the spool cannot be read; it stays there");
        }
    }
}

/// Number of records read at once.
pub(super) const PAGE: usize = 100;
/// Number of refusals in a pass after which the store gets a rest.
const MOST_REFUSALS: usize = 20;
/// How often the spool is checked without a notification: another process may have died.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long ago a job must have failed for an equal row to count as its own.
///
/// `queue:retry` pushes a job before it deletes its row. If the job fails again in between, the existing row is
/// the old one, which is about to be deleted.
const SAME_AFTER: i64 = 5;
/// How long ago a job must have failed for its record to replace the row of another failure of the same job.
const REPLACE_AFTER: i64 = 15;

/// How many sweeps over the spool have begun and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sweeps {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// The store does not take records, and no pass tries it again soon.
    pub(crate) is_refused: bool,
}

/// Connects attempts in PHP with the recorder, in both directions.
#[derive(Debug, Clone)]
pub(crate) struct Recordings {
    sweeps: watch::Receiver<Sweeps>,
    /// Number of failed jobs whose aftermath PHP still writes.
    failing: Arc<watch::Sender<usize>>,
}

impl Recordings {
    pub(crate) fn new(sweeps: watch::Receiver<Sweeps>, failing: Arc<watch::Sender<usize>>) -> Self {
        Self { sweeps, failing }
    }

    /// A receiver that changes with each pass over the spool.
    pub(crate) fn sweeps(&self) -> watch::Receiver<Sweeps> {
        self.sweeps.clone()
    }

    /// Makes the recorder wait until the returned guard is dropped.
    pub(crate) fn failing(&self) -> Failing {
        self.failing.send_modify(|failing| *failing += 1);
        Failing(Arc::clone(&self.failing))
    }
}

/// A guard that exists while PHP writes the aftermath of a job's failure.
#[derive(Debug)]
pub(crate) struct Failing(Arc<watch::Sender<usize>>);

impl Drop for Failing {
    fn drop(&mut self) {
        self.0.send_modify(|failing| *failing -= 1);
    }
}

/// How long the recorder waits for PHP's work after failures if there is always some.
const FAILING: Duration = Duration::from_secs(10);

/// Moves records to the store until no more will come; returns how the last pass ended.
pub(crate) async fn keep_recording(recorder: FailedJobRelay) -> DrainStatus {
    let panicked = || {
        recorder.sweeps.send_modify(|sweeps| {
            sweeps.ended = sweeps.begun;
            sweeps.is_refused = true;
        });
    };
    despite_panics(&recorder.last, || keep_sweeping(&recorder), panicked).await
}

async fn keep_sweeping(recorder: &FailedJobRelay) -> DrainStatus {
    let mut reconnect = Reconnect::default();
    let mut parts = Parts::<Logged>::new(Arc::clone(&recorder.ledger), &recorder.queues);
    loop {
        let mut quiet = Quiet::new(recorder.failing.clone());
        quiet.reached().await;
        let is_last = recorder.last.is_cancelled();
        if is_last {
            parts.states().for_each(|said| said.from = 0);
        }
        recorder.sweeps.send_modify(|sweeps| sweeps.begun += 1);
        let mut drained = Vec::new();
        for Part { ledger, state } in parts.due().await {
            drained.push(recorder.drain(ledger, state, &mut quiet).await);
        }
        let drained = worst(drained);
        recorder.sweeps.send_modify(|sweeps| {
            sweeps.ended += 1;
            sweeps.is_refused = drained == DrainStatus::Failed;
        });
        if is_last && drained != DrainStatus::Later {
            return drained;
        }
        if is_last {
            // The process that has the lease may have been killed, or be stopping without having seen the last records.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let wait = match drained {
            DrainStatus::All => {
                parts.states().for_each(|said| *said = Logged::default());
                reconnect.reset();
                LOOK_EVERY
            }
            DrainStatus::Later => Duration::from_secs(1),
            DrainStatus::Failed => reconnect.next_wait().max(Duration::from_millis(500)),
        };
        let deadline = Instant::now() + wait;
        tokio::select! {
            () = recorder.last.cancelled() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = recorder.spooled.notified(), if drained != DrainStatus::Failed => {}
        }
    }
}

/// Waits, during one pass, while PHP writes what failures of jobs bring about.
struct Quiet {
    failing: watch::Receiver<usize>,
    /// When to write in between. With many processes, some job may be failing all the time; then only the first
    /// record of a pass waits.
    patience: Instant,
}

impl Quiet {
    fn new(failing: watch::Receiver<usize>) -> Self {
        let patience = Instant::now() + FAILING;
        Self { failing, patience }
    }

    async fn reached(&mut self) {
        let is_quiet = self.failing.wait_for(|failing| *failing == 0);
        let waited = tokio::time::timeout_at(self.patience, is_quiet).await;
        if waited.is_ok() {
            self.patience = Instant::now() + FAILING;
        }
    }
}

impl FailedJobRelay {
    async fn drain(
        &self,
        ledger: &Arc<dyn Ledger>,
        said: &mut Logged,
        quiet: &mut Quiet,
    ) -> DrainStatus {
        let mut lease = match Lease::take(ledger, Spool::FailedJobs, &self.progress).await {
            Ok(lease) => lease,
            Err(drained) => return drained,
        };
        let mut drained = self.drain_leased(&mut lease, said, quiet).await;
        // A last pass that had the lease to its end has done what it could: the records that are left have to stay.
        let is_last = self.last.is_cancelled() && drained == DrainStatus::Later;
        if is_last && lease.hold().confirm_held().await {
            drained = DrainStatus::Failed;
        }
        lease.give_up().await;
        drained
    }

    async fn drain_leased(
        &self,
        lease: &mut Lease,
        said: &mut Logged,
        quiet: &mut Quiet,
    ) -> DrainStatus {
        let hold = lease.hold();
        let mut left = std::mem::take(&mut said.from);
        let mut drained = if left == 0 {
            DrainStatus::All
        } else {
            DrainStatus::Failed
        };
        let (mut outages, mut refusals) = (0, 0);
        loop {
            let records = match hold.ledger().read(Spool::FailedJobs, left, PAGE).await {
                Ok(records) if records.is_empty() => return drained,
                Ok(records) => records,
                Err(error) => return list_unreachable(&error),
            };
            for record in records {
                let bring = async {
                    // The job of this record may have failed after the pass began.
                    quiet.reached().await;
                    // This process may have slept, and the job's row be deleted by a retry meanwhile.
                    if !hold.confirm_held().await {
                        return None;
                    }
                    Some(self.bring(&record, said).await)
                };
                let Some(brought) = lease.during(bring).await.flatten() else {
                    return DrainStatus::Later;
                };
                match brought {
                    Ok(true) => {
                        (outages, refusals) = (0, 0);
                        match lease.hold().ack(&[record], &[]).await {
                            // Without the lease another process empties the spool.
                            Ok(0) => return DrainStatus::Later,
                            Ok(_) => {}
                            Err(error) => return list_unreachable(&error),
                        }
                    }
                    Ok(false) => {
                        outages = 0;
                        left += 1;
                        drained = drained.or(DrainStatus::Later);
                    }
                    Err(error) => {
                        self.on_refusal.tell("record a failed job");
                        said.refusal(&error, &self.store);
                        drained = DrainStatus::Failed;
                        left += 1;
                        // The error may concern this record alone, even if it looks like an outage: try the next
                        // one.
                        outages = if is_outage(&error) { outages + 1 } else { 0 };
                        refusals += 1;
                        // A stopping worker does not come back to the rest, so it goes on; another limit bounds
                        // its time.
                        let is_enough = refusals >= MOST_REFUSALS && !self.last.is_cancelled();
                        if outages == 2 || is_enough {
                            said.from = left;
                            return drained;
                        }
                    }
                }
            }
        }
    }

    /// Moves one record to the store; false if the record has to wait.
    async fn bring(&self, record: &[u8], said: &mut Logged) -> Result<bool, crate::failed::Error> {
        let job: FailedJob = match serde_json::from_slice(record) {
            Ok(job) => job,
            Err(error) => {
                said.foreign(&error);
                return Ok(false);
            }
        };
        bring(&self.store, &job, self.clock.now()).await
    }
}

/// Brings a job to the store; false if its record has to wait.
pub(super) async fn bring(
    store: &FailedJobs,
    job: &FailedJob,
    now: UnixSeconds,
) -> Result<bool, crate::failed::Error> {
    let age = now.0.saturating_sub(job.failed_at);
    match store.record(job).await? {
        Recorded::New => Ok(true),
        Recorded::Already => Ok(age >= SAME_AFTER),
        Recorded::Occupied if age >= REPLACE_AFTER => {
            if store.replace(job).await? == Recorded::Occupied {
                return Ok(false);
            }
            tracing::warn!(
                job.uuid = job.uuid,
                "a job failed again while its earlier failure was still stored; the later one stands there now"
            );
            Ok(true)
        }
        Recorded::Occupied => Ok(false),
    }
}

/// Whether the store as a whole cannot be used, rather than one record.
fn is_outage(error: &crate::failed::Error) -> bool {
    match error {
        crate::failed::Error::Database { source, .. } => source.is_lost_connection(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::failed::{FileFailedJobs, FileLock, Unlock};
    use crate::queue::MemoryQueue;

    const NOW: i64 = 1_800_000_000;

    /// A lock of the file that no other process takes.
    #[derive(Debug, Default)]
    struct Lock {
        /// How many of the next tries fail.
        away: AtomicUsize,
        /// How many tries there were.
        tried: AtomicUsize,
    }

    impl FileLock for Lock {
        fn lock(
            &self,
            _: Duration,
        ) -> BoxFuture<'_, Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>>
        {
            self.tried.fetch_add(1, Ordering::Relaxed);
            let less = |away: usize| away.checked_sub(1);
            let is_away = self
                .away
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            let unlock: Unlock = Box::new(|| Box::pin(async {}));
            Box::pin(async move {
                match is_away {
                    Ok(_) => Err("the lock's store is away".into()),
                    Err(_) => Ok(Some(unlock)),
                }
            })
        }
    }

    struct Scene {
        directory: tempfile::TempDir,
        queue: Arc<MemoryQueue>,
        lock: Arc<Lock>,
        spooled: Arc<Notify>,
        last: CancellationToken,
        refused: Arc<AtomicUsize>,
        progress: Progress,
        failing: watch::Sender<usize>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                directory: tempfile::tempdir().unwrap(),
                queue: Arc::new(MemoryQueue::new(None)),
                lock: Arc::default(),
                spooled: Arc::default(),
                last: CancellationToken::new(),
                refused: Arc::default(),
                progress: Progress::default(),
                failing: watch::channel(0).0,
            }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("failed.json")
        }

        fn store(&self) -> FailedJobs {
            let lock = Arc::clone(&self.lock) as _;
            FailedJobs::File(FileFailedJobs::new(self.path(), 1000, TimeZone::UTC, lock))
        }

        /// A relay to the file, and what it tells of its sweeps.
        fn relay(&self) -> (FailedJobRelay, watch::Receiver<Sweeps>) {
            let (sweeps, seen) = watch::channel(Sweeps::default());
            let refused = Arc::clone(&self.refused);
            let relay = FailedJobRelay {
                ledger: Arc::clone(&self.queue) as _,
                queues: vec!["default".into()],
                store: Arc::new(self.store()),
                clock: Clock::Fixed(UnixSeconds(NOW)),
                spooled: Arc::clone(&self.spooled),
                last: self.last.clone(),
                progress: self.progress.clone(),
                sweeps,
                failing: self.failing.subscribe(),
                on_refusal: OnRefusal::new(move |what| {
                    assert_eq!(what, "record a failed job");
                    refused.fetch_add(1, Ordering::Relaxed);
                }),
            };
            (relay, seen)
        }

        fn spool(&self, job: &FailedJob) {
            self.queue.spool_record(Spool::FailedJobs, job.to_json());
        }

        fn left(&self) -> usize {
            self.queue.spool(Spool::FailedJobs).len()
        }

        /// One pass over the spool, from where the last one has ended.
        async fn pass(&self, said: &mut Logged) -> DrainStatus {
            let (relay, _) = self.relay();
            let mut quiet = Quiet::new(relay.failing.clone());
            relay.drain(&relay.ledger, said, &mut quiet).await
        }

        /// The exceptions in the store, latest first.
        async fn stored(&self) -> Vec<String> {
            let jobs = self.store().all().await.unwrap();
            jobs.into_iter().map(|job| job.exception).collect()
        }

        /// Makes the next tries to take the lock fail, this many of them, and counts tries anew.
        fn away(&self, times: usize) {
            self.lock.away.store(times, Ordering::Relaxed);
            self.lock.tried.store(0, Ordering::Relaxed);
        }

        fn tried(&self) -> usize {
            self.lock.tried.load(Ordering::Relaxed)
        }
    }

    /// A failure of the job `uuid` this many seconds ago.
    fn failed(uuid: &str, exception: &str, seconds_ago: i64) -> FailedJob {
        FailedJob {
            uuid: Some(uuid.to_owned()),
            connection: "redis".to_owned(),
            queue: "default".to_owned(),
            payload: "{}".to_owned(),
            exception: exception.to_owned(),
            failed_at: NOW - seconds_ago,
            token: None,
        }
    }

    /// The rows break a rule of the table, so each of them is refused while the database itself works.
    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_table_that_refuses_many_records_gets_a_rest_unless_the_worker_stops() {
        use crate::connection::{Database, DatabaseKind, DatabaseOptions};
        use crate::failed::DatabaseFailedJobs;
        let scene = Scene::new();
        std::fs::File::create(scene.path()).unwrap();
        let options = DatabaseOptions {
            database: scene.path().display().to_string(),
            ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
        };
        let database = Database::new(&options).unwrap();
        let table = "create table \"failed_jobs\" (\"id\" integer primary key autoincrement not null, \
                     \"uuid\" varchar not null unique, \"connection\" text not null check (\"connection\" = 'sqs'), \
                     \"queue\" text not null, \"payload\" text not null, \"exception\" text not null, \
                     \"failed_at\" datetime not null default current_timestamp)";
        database.execute(table, &[]).await.unwrap();
        for number in 0..MOST_REFUSALS + 5 {
            scene.spool(&failed(&number.to_string(), "E", 0));
        }
        let (relay, _) = scene.relay();
        let store = DatabaseFailedJobs::new(database, "failed_jobs", true, TimeZone::UTC);
        let relay = FailedJobRelay {
            store: Arc::new(FailedJobs::Database(store)),
            ..relay
        };
        let mut said = Logged::default();
        let mut quiet = Quiet::new(relay.failing.clone());
        for (is_last, tried) in [
            (false, MOST_REFUSALS),
            (false, 5),
            (true, MOST_REFUSALS + 5),
        ] {
            if is_last {
                scene.last.cancel();
            }
            let drained = relay.drain(&relay.ledger, &mut said, &mut quiet).await;
            let refused = scene.refused.swap(0, Ordering::Relaxed);
            assert_eq!((drained, refused), (DrainStatus::Failed, tried));
            assert_eq!(scene.left(), MOST_REFUSALS + 5);
        }
    }

    #[tokio::test]
    async fn each_record_becomes_a_row_and_leaves_the_spool() {
        let scene = Scene::new();
        let mut said = Logged::default();
        assert_eq!(scene.pass(&mut said).await, DrainStatus::All);
        // More than are read at once.
        for number in 0..PAGE + 5 {
            scene.spool(&failed(&number.to_string(), "E", 0));
        }
        assert_eq!(scene.pass(&mut said).await, DrainStatus::All);
        assert_eq!((scene.left(), scene.stored().await.len()), (0, PAGE + 5));
        assert_eq!(scene.progress.records(), PAGE as u64 + 5);
        assert_eq!(scene.refused.load(Ordering::Relaxed), 0);
    }

    /// `queue:retry` pushes a job before it deletes its row, so that an equal row may be one that is about to go.
    #[tokio::test]
    async fn an_equal_row_counts_as_the_records_own_after_some_seconds() {
        let rows = [
            (0, 1, DrainStatus::Later),
            (SAME_AFTER - 1, 1, DrainStatus::Later),
            (SAME_AFTER, 0, DrainStatus::All),
        ];
        for (seconds_ago, left, expected) in rows {
            let scene = Scene::new();
            let job = failed("a", "E", seconds_ago);
            assert_eq!(scene.store().record(&job).await.unwrap(), Recorded::New);
            scene.spool(&job);
            let status = scene.pass(&mut Logged::default()).await;
            assert_eq!((scene.left(), status), (left, expected), "{seconds_ago}");
            assert_eq!(scene.stored().await, ["E"]);
        }
    }

    #[tokio::test]
    async fn a_later_failure_of_a_job_replaces_the_earlier_one_after_some_seconds() {
        let rows = [
            (REPLACE_AFTER - 1, 1, DrainStatus::Later, "earlier"),
            (REPLACE_AFTER, 0, DrainStatus::All, "later"),
        ];
        for (seconds_ago, left, expected, stored) in rows {
            let scene = Scene::new();
            let earlier = failed("a", "earlier", 100);
            assert_eq!(scene.store().record(&earlier).await.unwrap(), Recorded::New);
            scene.spool(&failed("a", "later", seconds_ago));
            let status = scene.pass(&mut Logged::default()).await;
            assert_eq!((scene.left(), status), (left, expected), "{seconds_ago}");
            assert_eq!(scene.stored().await, [stored]);
        }
    }

    #[tokio::test]
    async fn records_behind_one_that_has_to_wait_or_cannot_be_read_are_recorded() {
        let scene = Scene::new();
        let waits = failed("a", "E", 0);
        assert_eq!(scene.store().record(&waits).await.unwrap(), Recorded::New);
        scene.spool(&waits);
        scene
            .queue
            .spool_record(Spool::FailedJobs, b"from another program".to_vec());
        scene.spool(&failed("b", "behind", 0));
        let mut said = Logged::default();
        assert_eq!(scene.pass(&mut said).await, DrainStatus::Later);
        assert_eq!((scene.left(), said.foreign), (2, true));
        assert_eq!(scene.stored().await, ["behind", "E"]);
        // These are no refusals of the store.
        assert_eq!((scene.refused.load(Ordering::Relaxed), said.from), (0, 0));
    }

    #[tokio::test]
    async fn a_pass_ends_at_two_outages_in_a_row_and_the_next_one_begins_behind_them() {
        let scene = Scene::new();
        for uuid in ["a", "b", "c", "d"] {
            scene.spool(&failed(uuid, uuid, 0));
        }
        let mut said = Logged::default();
        scene.away(2);
        assert_eq!(scene.pass(&mut said).await, DrainStatus::Failed);
        assert_eq!((scene.tried(), scene.left(), said.from), (2, 4, 2));
        assert_eq!(scene.refused.load(Ordering::Relaxed), 2);
        // The store is back; what was refused is left for the pass after this one.
        assert_eq!(scene.pass(&mut said).await, DrainStatus::Failed);
        assert_eq!(
            (scene.stored().await, said.from),
            (vec!["d".into(), "c".into()], 0)
        );
        assert_eq!(scene.pass(&mut said).await, DrainStatus::All);
        assert_eq!((scene.left(), scene.stored().await.len()), (0, 4));
        // One error may concern its record alone.
        for uuid in ["e", "f"] {
            scene.spool(&failed(uuid, uuid, 0));
        }
        scene.away(1);
        assert_eq!(scene.pass(&mut said).await, DrainStatus::Failed);
        assert_eq!((scene.left(), scene.stored().await.len()), (1, 5));
    }

    /// An error that concerns one record does not end the pass, and is forgotten once a record was taken.
    #[tokio::test]
    async fn outages_between_records_that_are_taken_do_not_end_a_pass() {
        let scene = Scene::new();
        let waits = failed("waits", "E", 0);
        assert_eq!(scene.store().record(&waits).await.unwrap(), Recorded::New);
        scene.spool(&failed("a", "a", 0));
        scene.spool(&waits);
        scene.spool(&failed("b", "b", 0));
        let (relay, _) = scene.relay();
        let mut said = Logged::default();
        let mut lease = Lease::take(&relay.ledger, Spool::FailedJobs, &relay.progress)
            .await
            .unwrap();
        let mut quiet = Quiet::new(relay.failing.clone());
        scene.away(1);
        let status = relay.drain_leased(&mut lease, &mut said, &mut quiet).await;
        assert_eq!(
            (status, scene.tried(), scene.left()),
            (DrainStatus::Failed, 3, 2)
        );
        assert_eq!(scene.stored().await, ["b", "E"]);
        // The pass came to the end of the list, so the next one begins at its head.
        assert_eq!(said.from, 0);
    }

    #[tokio::test]
    async fn only_the_holder_of_the_lease_empties_the_spool() {
        let scene = Scene::new();
        scene.spool(&failed("a", "a", 0));
        let (relay, _) = scene.relay();
        let lease = Lease::take(&relay.ledger, Spool::FailedJobs, &relay.progress).await;
        let mut lease = lease.unwrap();
        assert_eq!(scene.pass(&mut Logged::default()).await, DrainStatus::Later);
        assert_eq!((scene.left(), scene.tried()), (1, 0));
        // A process that slept for longer than its lease lived writes no row: the record is not its own any more.
        relay
            .ledger
            .unlease(Spool::FailedJobs, lease.holder())
            .await
            .unwrap();
        let other = Lease::take(&relay.ledger, Spool::FailedJobs, &relay.progress).await;
        let mut quiet = Quiet::new(relay.failing.clone());
        let mut said = Logged::default();
        let status = relay.drain_leased(&mut lease, &mut said, &mut quiet).await;
        assert_eq!(status, DrainStatus::Later);
        assert_eq!((scene.left(), scene.tried()), (1, 0));
        other.unwrap().give_up().await;
        assert_eq!(scene.pass(&mut Logged::default()).await, DrainStatus::All);
        assert_eq!(scene.stored().await, ["a"]);
    }

    /// Waits in paused time until this holds.
    async fn until(what: impl Fn() -> bool) {
        let wait = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(600), wait).await;
        waited.expect("this came true within ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_moved_when_they_are_noticed_and_else_every_half_minute() {
        let scene = Scene::new();
        let (relay, seen) = scene.relay();
        let recording = tokio::spawn(keep_recording(relay));
        until(|| seen.borrow().ended == 1).await;
        let began = Instant::now();
        scene.spool(&failed("a", "a", 0));
        scene.spooled.notify_one();
        until(|| scene.left() == 0).await;
        assert!(began.elapsed() < Duration::from_secs(1));
        // Without a notification, as if another process had died before it sent one.
        let began = Instant::now();
        scene.spool(&failed("b", "b", 0));
        until(|| scene.left() == 0).await;
        let waited = began.elapsed();
        assert!(
            LOOK_EVERY / 2 < waited && waited <= LOOK_EVERY + Duration::from_secs(1),
            "{waited:?}"
        );
        let sweeps = *seen.borrow();
        assert_eq!((sweeps.begun, sweeps.is_refused), (3, false));
        scene.last.cancel();
        recording.await.unwrap();
        assert_eq!(seen.borrow().begun, seen.borrow().ended);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_is_tried_at_growing_waits_whatever_is_notified() {
        let scene = Scene::new();
        scene.spool(&failed("a", "a", 0));
        scene.away(5);
        let (relay, seen) = scene.relay();
        let recording = tokio::spawn(keep_recording(relay));
        until(|| scene.tried() == 1).await;
        let began = Instant::now();
        until(|| seen.borrow().is_refused).await;
        // The end of each further job notifies the task.
        let notifying = async {
            loop {
                scene.spooled.notify_one();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = notifying => {}
            () = until(|| scene.left() == 0) => {}
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(500) * 5, "{took:?}");
        until(|| !seen.borrow().is_refused).await;
        scene.last.cancel();
        recording.await.unwrap();
        assert_eq!(scene.stored().await, ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_has_to_wait_is_tried_again_within_a_second_and_once_more_at_the_end() {
        let scene = Scene::new();
        let job = failed("a", "E", 0);
        assert_eq!(scene.store().record(&job).await.unwrap(), Recorded::New);
        scene.spool(&job);
        let (relay, seen) = scene.relay();
        let recording = tokio::spawn(keep_recording(relay));
        until(|| seen.borrow().ended == 1).await;
        let began = Instant::now();
        until(|| seen.borrow().ended == 6).await;
        let waited = began.elapsed();
        assert!(
            waited > Duration::from_secs(4) && waited < Duration::from_secs(6),
            "{waited:?}"
        );
        // The retry deletes its row.
        assert!(scene.store().forget("a").await.unwrap());
        scene.last.cancel();
        recording.await.unwrap();
        assert_eq!(
            (scene.left(), scene.stored().await),
            (0, vec!["E".to_owned()])
        );
        assert_eq!(seen.borrow().ended, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorder_that_panicked_starts_again() {
        let scene = Scene::new();
        scene.spool(&failed("a", "a", 0));
        scene.away(1);
        let (relay, seen) = scene.relay();
        let relay = FailedJobRelay {
            on_refusal: OnRefusal::new(|_| panic!("a bug")),
            ..relay
        };
        let recording = tokio::spawn(keep_recording(relay));
        until(|| seen.borrow().is_refused).await;
        assert_eq!((seen.borrow().begun, seen.borrow().ended), (1, 1));
        until(|| scene.left() == 0).await;
        scene.last.cancel();
        assert_eq!(recording.await.unwrap(), DrainStatus::All);
        assert_eq!(scene.stored().await, ["a"]);
    }

    /// That process may have been killed, or be stopping, too.
    #[tokio::test(start_paused = true)]
    async fn a_stopping_worker_waits_for_the_lease_of_another_process() {
        let scene = Scene::new();
        scene.spool(&failed("a", "a", 0));
        let (relay, seen) = scene.relay();
        let other = Lease::take(&relay.ledger, Spool::FailedJobs, &relay.progress).await;
        scene.last.cancel();
        let recording = tokio::spawn(keep_recording(relay));
        until(|| seen.borrow().ended > 1).await;
        assert!(!recording.is_finished());
        assert_eq!(scene.left(), 1);
        other.unwrap().give_up().await;
        assert_eq!(recording.await.unwrap(), DrainStatus::All);
        assert_eq!(
            (scene.left(), scene.stored().await),
            (0, vec!["a".to_owned()])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_worker_goes_once_through_records_that_have_to_stay() {
        let scene = Scene::new();
        let foreign = b"from another program".to_vec();
        scene.queue.spool_record(Spool::FailedJobs, foreign);
        let (relay, seen) = scene.relay();
        scene.last.cancel();
        assert_eq!(keep_recording(relay).await, DrainStatus::Failed);
        assert_eq!((seen.borrow().ended, scene.left()), (1, 1));
    }

    /// The first records were refused, and the pass after that began behind them.
    #[tokio::test(start_paused = true)]
    async fn the_last_pass_begins_at_the_head_of_the_spool_and_goes_through_all_of_it() {
        let scene = Scene::new();
        for number in 0..MOST_REFUSALS + 5 {
            scene.spool(&failed(&number.to_string(), "E", 0));
        }
        scene.away(2);
        let (relay, seen) = scene.relay();
        let recording = tokio::spawn(keep_recording(relay));
        until(|| seen.borrow().ended == 1).await;
        assert_eq!(scene.left(), MOST_REFUSALS + 5);
        scene.last.cancel();
        recording.await.unwrap();
        assert_eq!((scene.left(), seen.borrow().ended), (0, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn records_wait_until_php_has_written_what_failures_bring_about() {
        let scene = Scene::new();
        scene.failing.send_replace(1);
        scene.spool(&failed("a", "a", 0));
        let (relay, seen) = scene.relay();
        let recording = tokio::spawn(keep_recording(relay));
        tokio::time::sleep(FAILING / 2).await;
        assert_eq!((scene.left(), seen.borrow().begun), (1, 0));
        scene.failing.send_replace(0);
        until(|| scene.left() == 0).await;
        scene.last.cancel();
        recording.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn records_wait_for_php_but_not_each_of_them_if_some_job_always_fails() {
        let (failing, receiver) = watch::channel(1);
        let begin = Instant::now();
        let mut quiet = Quiet::new(receiver);
        for _ in 0..100 {
            quiet.reached().await;
        }
        assert_eq!(begin.elapsed(), FAILING);

        // Once PHP has been quiet, records wait again.
        failing.send_replace(0);
        quiet.reached().await;
        failing.send_replace(1);
        let end = tokio::time::sleep(Duration::from_secs(3));
        let wait = async {
            quiet.reached().await;
            begin.elapsed()
        };
        let ((), elapsed) = tokio::join!(
            async {
                end.await;
                failing.send_replace(0);
            },
            wait
        );
        assert_eq!(elapsed, FAILING + Duration::from_secs(3));
    }

    #[test]
    fn the_recorder_knows_of_how_many_failures_php_still_writes() {
        let (failing, receiver) = watch::channel(0);
        let (_, sweeps) = watch::channel(Sweeps::default());
        let recordings = Recordings::new(sweeps, Arc::new(failing));
        let (first, second) = (recordings.failing(), recordings.failing());
        assert_eq!(*receiver.borrow(), 2);
        drop(first);
        assert_eq!(*receiver.borrow(), 1);
        drop(second);
        assert_eq!(*receiver.borrow(), 0);
    }
}
