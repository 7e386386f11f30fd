//! Does follow-up work for ended jobs: counts them in their batch, frees locks kept elsewhere, pushes to other
//! connections.
//!
//! Settling leaves a record for each follow-up in the list `artisand:follow-ups`, in one step with the job's end.
//! Any worker does the work from there and removes the record. A lease allows one process at a time. If that
//! process dies in between, or sleeps for longer than its lease lives, its successor does the same work again. So
//! repeating any of it must make no difference:
//!
//! * The end of a job is marked in its batch together with the counters, with a token of its own: a retried job
//!   may fail again before the first mark is removed. The mark is removed when the record has become one that only
//!   asks for that. The process that counts checks, with the row locked, whether it still holds the lease, so it
//!   does not count an end that another process has counted and whose mark is already removed.
//! * A lock is freed by the owner it had when the job ended. If the owner was not known then, the record is first
//!   replaced by one that names the owner.
//! * A payload is pushed to another Redis once: that Redis remembers the push.
//! * The lock of the next job of a chain is taken under the owner named in the record, after the locks that are to
//!   be freed.
//!
//! An end that makes a batch's callbacks due is not counted here. PHP counts it when it runs a closure, which is
//! pushed in one step with removing the record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batch::{Batches, Ended, JobOutcome, Recorded};
use crate::cache::{self, Cache};
use crate::handler::Services;
use crate::queue::{ConnectionName, Effect, Ledger, Once, Push, Queue, QueueName, Spool};
use crate::shown::with_causes;
use crate::time::{Clock, UnixSeconds};
use crate::worker::backoff::Reconnect;
use crate::worker::completion::hand_over::HandOver;
use crate::worker::outbox::lease::{Drained, Hold, Lease, Progress, unreachable};

/// A record of follow-up work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum FollowUp {
    /// Count the end of a job in its batch.
    Count(Count),
    /// Remove the marks of counted ends from the batch.
    Forget {
        /// The batch.
        batch: String,
        /// The ends.
        ended: Vec<Ended>,
    },
    /// Free a lock.
    Unlock {
        /// Name of the cache store.
        store: String,
        /// Name of the lock, below the store's prefix.
        name: String,
        /// The owner when the job ended; `None` if it was not known.
        owner: Option<String>,
    },
    /// Push a job to another connection, or a job that needs a lock kept elsewhere.
    Push(Outgoing),
}

/// A job that must be pushed exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    /// Name of the queue connection.
    pub(crate) connection: String,
    /// Queue on it.
    pub(crate) queue: String,
    /// The payload.
    pub(crate) payload: String,
    /// When it becomes due.
    pub(crate) due: Option<i64>,
    /// Identity of the payload, by which the other Redis recognizes a repeated push.
    pub(crate) id: String,
    /// The lock that must be taken first; if another owner holds it, the job is not pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<Wanted>,
}

/// A lock to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Name of the cache store.
    pub(crate) store: String,
    /// Name of the lock, below the store's prefix.
    pub(crate) name: String,
    /// The owner that takes it.
    pub(crate) owner: String,
    /// Lifetime in seconds; 0 for as long as the store keeps such locks.
    pub(crate) seconds: u64,
}

/// The end of a job that is to be counted in its batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// The batch.
    pub(crate) batch: String,
    /// The job, and how it ended.
    #[serde(flatten)]
    pub(crate) ended: Ended,
    /// A queue that PHP workers serve, for when callbacks are due; they wait if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Why the job failed, for the callbacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Name of the job, for a closure that counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// A token that distinguishes the end of a job from other ends of the same job.
pub(crate) fn random_token() -> String {
    format!("{:016x}", fastrand::u64(..))
}

impl FollowUp {
    fn to_record(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are always JSON")
    }

    /// The effect that leaves this record.
    pub(crate) fn effect(&self) -> Effect {
        Effect::Append(Spool::FollowUps, self.to_record())
    }
}

/// What the task needs.
pub(crate) struct Follower {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) services: Arc<Services>,
    /// Name of the connection of `queue`.
    pub(crate) connection: ConnectionName,
    pub(crate) clock: Clock,
    /// Notified when a record was left; reports when all are done.
    pub(crate) left: Arc<Left>,
    /// Cancelled when no more records will be left.
    pub(crate) last: CancellationToken,
    pub(crate) progress: Progress,
}

/// The follow-ups of this worker's jobs, and how many of them are done.
#[derive(Debug)]
pub(crate) struct Left {
    /// How many records were left.
    noted: AtomicU64,
    told: Notify,
    done: watch::Sender<LeftDone>,
}

/// How many of the records are done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeftDone {
    /// Number of records done.
    up_to: u64,
    /// Something could not be reached, so the rest may take long.
    is_stuck: bool,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            noted: AtomicU64::new(0),
            told: Notify::new(),
            done: watch::Sender::new(LeftDone::default()),
        }
    }
}

impl Left {
    /// Notes that a record was left.
    pub(crate) fn note(&self) {
        self.noted.fetch_add(1, Ordering::Release);
        self.told.notify_one();
    }

    /// Whether all records so far are done, or it is unknown when they will be.
    pub(crate) fn is_clear(&self) -> bool {
        let LeftDone { up_to, is_stuck } = *self.done.borrow();
        is_stuck || up_to >= self.noted.load(Ordering::Acquire)
    }

    /// A receiver that changes whenever more of them are done.
    pub(crate) fn changes(&self) -> watch::Receiver<LeftDone> {
        self.done.subscribe()
    }

    /// Notes the end of a pass that began when `noted` records had been left.
    fn pass_ended(&self, noted: u64, drained: Drained) {
        self.done.send_if_modified(|done| {
            let up_to = if drained == Drained::All {
                noted
            } else {
                done.up_to
            };
            let now = LeftDone {
                up_to,
                is_stuck: drained == Drained::Failed,
            };
            std::mem::replace(done, now) != now
        });
    }
}

/// Number of records read at once: as many endings as a batch takes in one transaction.
const PAGE: usize = Batches::MAX_EVENTS;
/// Number of records that a pass may leave behind before it ends.
const MOST_LEFT: usize = 10_000;
/// How often the list is checked without a notification: another process may have died.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long counts of batches in a `SQLite` file are gathered between two transactions.
///
/// Laravel reads a batch and then writes it in one transaction, which `SQLite` refuses if another process wrote in
/// between; PHP's job then runs again.
const GATHER: Duration = Duration::from_millis(200);
/// How long another connection remembers a push; a record may stay in the list for that long.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// What was already logged, so that it is not logged every second.
#[derive(Debug, Default)]
struct Said {
    last: Option<String>,
    /// Something was written to a `SQLite` file that PHP also writes.
    has_counted: bool,
    /// Locks by store and name that this pass could not free: they must not be taken before that.
    held: BTreeSet<(String, String)>,
}

impl Said {
    fn problem(&mut self, what: &'static str, error: String) {
        if self.last.as_ref() != Some(&error) {
            tracing::error!(
                error,
                what,
                "something is left to do for jobs that have ended; it will be tried again"
            );
            self.last = Some(error);
        }
    }

    fn all_done(&mut self) {
        if self.last.is_some() {
            tracing::info!("what was left to do for jobs that have ended is done");
        }
        *self = Self::default();
    }
}

/// Does follow-ups until no more will come; returns how the last pass ended.
pub(crate) async fn keep_following(follower: Follower) -> Drained {
    let mut reconnect = Reconnect::default();
    let mut said = Said::default();
    let mut start = 0;
    loop {
        let is_last = follower.last.is_cancelled();
        let noted = follower.left.noted.load(Ordering::Acquire);
        let drained = follower.drain(&mut start, &mut said).await;
        follower.left.pass_ended(noted, drained);
        if is_last && drained != Drained::Later {
            return drained;
        }
        let wait = match drained {
            Drained::All => {
                said.all_done();
                reconnect.reset();
                LOOK_EVERY
            }
            // Another process holds the lease, or died with it.
            Drained::Later => Duration::from_millis(500),
            Drained::Failed => reconnect.next_wait().max(Duration::from_millis(500)),
        };
        if is_last {
            // The holder of the lease may be stopping, too, without having seen the last records.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let deadline = Instant::now() + wait;
        tokio::select! {
            () = follower.last.cancelled() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = follower.left.told.notified(), if drained == Drained::All => {}
        }
    }
}

/// A record with its bytes, which identify it in the list.
struct Noted<T> {
    record: Vec<u8>,
    what: T,
}

/// The ends that are to be counted.
fn ends(counts: &[Noted<Count>]) -> Vec<Ended> {
    let ends = counts.iter().map(|noted| noted.what.ended.clone());
    ends.collect()
}

/// Splits counted ends into their records and the ends.
fn apart(counted: Vec<Noted<Vec<Ended>>>) -> (Vec<Vec<u8>>, Vec<Ended>) {
    let (records, ended): (Vec<_>, Vec<_>) = counted
        .into_iter()
        .map(|noted| (noted.record, noted.what))
        .unzip();
    (records, ended.concat())
}

/// What became of some records.
enum Done {
    /// The records are removed from the list.
    All,
    /// This many stay in the list, as something could not be reached.
    Left(usize),
    /// Another process has the lease.
    Lost,
    /// The list itself cannot be reached.
    Unreachable(crate::queue::Error),
}

impl Done {
    fn and_left(self, more: usize) -> Self {
        match self {
            Self::All if more > 0 => Self::Left(more),
            Self::Left(left) => Self::Left(left + more),
            done => done,
        }
    }
}

impl Follower {
    /// Walks through the list from `start`, and stores there where to begin the next time.
    async fn drain(&self, start: &mut usize, said: &mut Said) -> Drained {
        let mut lease = match Lease::take(&self.ledger, Spool::FollowUps, &self.progress).await {
            Ok(lease) => lease,
            Err(drained) => return drained,
        };
        let drained = self.drain_leased(&mut lease, start, said).await;
        lease.give_up().await;
        drained
    }

    async fn drain_leased(&self, lease: &mut Lease, start: &mut usize, said: &mut Said) -> Drained {
        let first = std::mem::take(start);
        let mut left = first;
        if first == 0 {
            said.held.clear();
        }
        loop {
            let records = match self.ledger.read(Spool::FollowUps, left, PAGE).await {
                Ok(records) => records,
                Err(error) => return unreachable(&error),
            };
            let is_end = records.is_empty();
            if is_end || left - first >= MOST_LEFT {
                // The next pass continues here: records further on may well be possible.
                *start = if is_end { 0 } else { left };
                return if left == 0 {
                    Drained::All
                } else {
                    Drained::Failed
                };
            }
            let hold = lease.hold();
            match lease.during(self.follow(&hold, records, said)).await {
                // Without the lease another process does the work.
                None | Some(Done::Lost) => return Drained::Later,
                Some(Done::All) => {}
                Some(Done::Left(more)) => left += more,
                Some(Done::Unreachable(error)) => return unreachable(&error),
            }
            if std::mem::take(&mut said.has_counted) {
                let gathering = async {
                    tokio::select! {
                        () = tokio::time::sleep(GATHER) => {}
                        () = self.last.cancelled() => {}
                    }
                };
                if lease.during(gathering).await.is_none() {
                    return Drained::Later;
                }
            }
        }
    }

    async fn follow(&self, hold: &Hold, records: Vec<Vec<u8>>, said: &mut Said) -> Done {
        let mut counts: BTreeMap<String, Vec<Noted<Count>>> = BTreeMap::new();
        let mut forgets: BTreeMap<String, Vec<Noted<Vec<Ended>>>> = BTreeMap::new();
        let mut others = Vec::new();
        let mut left = 0;
        for record in records {
            match serde_json::from_slice(&record) {
                Ok(FollowUp::Count(what)) => {
                    let of_batch = counts.entry(what.batch.clone()).or_default();
                    of_batch.push(Noted { record, what });
                }
                Ok(FollowUp::Forget { batch, ended: what }) => {
                    let of_batch = forgets.entry(batch).or_default();
                    of_batch.push(Noted { record, what });
                }
                Ok(what) => others.push(Noted { record, what }),
                Err(error) => {
                    said.problem("read a record in artisand:follow-ups", error.to_string());
                    left += 1;
                }
            }
        }
        // Free locks before anything takes them.
        others
            .sort_by_key(|noted: &Noted<FollowUp>| !matches!(noted.what, FollowUp::Unlock { .. }));
        for other in others {
            match self.follow_one(hold, other, said).await {
                Done::All => {}
                Done::Left(more) => left += more,
                over @ (Done::Lost | Done::Unreachable(_)) => return over,
            }
        }
        let mut is_away = false;
        for (batch, counts) in counts {
            let counted = forgets.remove(&batch).unwrap_or_default();
            if is_away {
                left += counts.len() + counted.len();
                continue;
            }
            let done = self.count(hold, &batch, counts, counted, said, &mut is_away);
            match done.await {
                Done::All => {}
                Done::Left(more) => left += more,
                over @ (Done::Lost | Done::Unreachable(_)) => return over,
            }
        }
        for (batch, counted) in forgets {
            match self.forget(hold, &batch, counted, said).await {
                Done::All => {}
                Done::Left(more) => left += more,
                over @ (Done::Lost | Done::Unreachable(_)) => return over,
            }
        }
        if left == 0 {
            Done::All
        } else {
            Done::Left(left)
        }
    }

    /// Removes records from the list, and applies the effects.
    async fn advance(&self, hold: &Hold, records: &[Vec<u8>], effects: &[Effect]) -> Done {
        match hold.advance(records, effects).await {
            Ok(0) => Done::Lost,
            Ok(_) => Done::All,
            Err(error) => Done::Unreachable(error),
        }
    }

    async fn follow_one(&self, hold: &Hold, noted: Noted<FollowUp>, said: &mut Said) -> Done {
        let done = match &noted.what {
            FollowUp::Unlock {
                store,
                name,
                owner: Some(owner),
            } => {
                let freed = self.unlock(store, name, owner).await;
                if freed.is_err() {
                    said.held.insert((store.clone(), name.clone()));
                }
                freed
            }
            FollowUp::Unlock { store, name, .. } => {
                return match self.current_owner(store, name).await {
                    Ok(owner) => {
                        let lock = (store.clone(), name.clone());
                        self.unlock_of(hold, noted.record, lock, owner, said).await
                    }
                    Err((what, error)) => {
                        said.held.insert((store.clone(), name.clone()));
                        said.problem(what, error);
                        Done::Left(1)
                    }
                };
            }
            FollowUp::Push(push) => match self.push(hold, push, said).await {
                Ok(Pushing::Pushed) => Ok(()),
                Ok(Pushing::Here(push)) => {
                    return self.advance(hold, &[noted.record], &[push]).await;
                }
                Ok(Pushing::Waits) => return Done::Left(1),
                Ok(Pushing::Lost) => return Done::Lost,
                Err(problem) => Err(problem),
            },
            FollowUp::Count(_) | FollowUp::Forget { .. } => unreachable!("done together"),
        };
        match done {
            Ok(()) => self.advance(hold, &[noted.record], &[]).await,
            Err((what, error)) => {
                said.problem(what, error);
                Done::Left(1)
            }
        }
    }

    /// Removes the marks of counted ends from their batch.
    async fn forget(
        &self,
        hold: &Hold,
        batch: &str,
        counted: Vec<Noted<Vec<Ended>>>,
        said: &mut Said,
    ) -> Done {
        let what = "clean up a batch";
        let Some(batches) = &self.services.batches else {
            said.problem(what, NO_BATCHES.to_owned());
            return Done::Left(counted.len());
        };
        let (records, ended) = apart(counted);
        match batches.forget_marks(batch, &ended).await {
            Ok(()) => self.advance(hold, &records, &[]).await,
            Err(error) => {
                said.problem(what, with_causes(&error));
                Done::Left(records.len())
            }
        }
    }

    fn cache(&self, store: &str, what: &'static str) -> Result<Cache, Problem> {
        let Some(stores) = &self.services.stores else {
            return Err((what, "nothing is known of the app's cache".to_owned()));
        };
        let cache = stores.get(store);
        cache.map_err(|error| (what, with_causes(&error)))
    }

    async fn unlock(&self, store: &str, name: &str, owner: &str) -> Result<(), Problem> {
        let what = "free a lock";
        let cache = self.cache(store, what)?;
        let freed = cache::free_lock(&cache, name, Some(owner)).await;
        freed.map_err(|error| (what, with_causes(&error)))
    }

    async fn current_owner(&self, store: &str, name: &str) -> Result<Option<String>, Problem> {
        let what = "free a lock";
        let lock = self.cache(store, what)?.lock(name, "", Duration::ZERO);
        let owner = lock.current_owner().await;
        owner.map_err(|error| (what, with_causes(&error)))
    }

    /// Frees a lock whose record names no owner; on a repetition another job may hold the lock.
    async fn unlock_of(
        &self,
        hold: &Hold,
        record: Vec<u8>,
        (store, name): (String, String),
        owner: Option<String>,
        said: &mut Said,
    ) -> Done {
        if owner.is_none() {
            return self.advance(hold, &[record], &[]).await;
        }
        let what = FollowUp::Unlock { store, name, owner };
        match self.advance(hold, &[record], &[what.effect()]).await {
            Done::All => {
                let record = what.to_record();
                Box::pin(self.follow_one(hold, Noted { record, what }, said)).await
            }
            done => done,
        }
    }

    /// Takes the lock that a job needs, and pushes the job if it goes to another connection.
    async fn push(&self, hold: &Hold, push: &Outgoing, said: &Said) -> Result<Pushing, Problem> {
        let what = "push a job";
        let problem = |error: String| (what, error);
        let elsewhere = if push.connection == self.connection.as_str() {
            None
        } else {
            Some(self.queues(&push.connection).map_err(problem)?)
        };
        let failed = |error: crate::queue::Error| problem(with_causes(&error));
        if let Some(lock) = &push.lock {
            if said.held.contains(&(lock.store.clone(), lock.name.clone())) {
                return Ok(Pushing::Waits);
            }
            // The job may have run and freed its lock: if taken again now, nothing would free it.
            if let Some(queues) = elsewhere
                && queues.was_pushed(&push.id).await.map_err(failed)?
            {
                return Ok(Pushing::Pushed);
            }
            if !hold.lasts().await {
                return Ok(Pushing::Lost);
            }
            if !self.take(lock).await? {
                tracing::info!(
                    lock = lock.name,
                    "a chain ends: its next job is unique, and another one is queued"
                );
                return Ok(Pushing::Pushed);
            }
        }
        let job = Push {
            queue: push.queue.as_str().into(),
            payload: push.payload.as_bytes().to_vec(),
            due: push.due.map(UnixSeconds),
            claim: None,
        };
        let Some(queues) = elsewhere else {
            return Ok(Pushing::Here(Effect::Push(job)));
        };
        let once = Once {
            id: &push.id,
            remembered: REMEMBERED,
        };
        let pushed = queues.push_once(&[job], once).await;
        pushed.map(|_| Pushing::Pushed).map_err(failed)
    }

    /// The queues of another connection.
    fn queues(&self, connection: &str) -> Result<&dyn Queue, String> {
        let connections = self.services.connections.as_ref();
        let found = connections.and_then(|connections| connections.get(connection));
        let Some(destination) = found else {
            return Err(format!("there is no queue connection `{connection}`"));
        };
        let queues = destination.queues.as_ref();
        let problem = |problem: &String| format!("connection `{connection}`: {problem}");
        queues.map(|queues| &**queues).map_err(problem)
    }

    /// Takes a lock; true also if this owner already holds it.
    async fn take(&self, lock: &Wanted) -> Result<bool, Problem> {
        let what = "take a lock";
        let cache = self.cache(&lock.store, what)?;
        let failed = |error: crate::cache::Error| (what, with_causes(&error));
        let ttl = Duration::from_secs(lock.seconds);
        let handle = cache.lock(&*lock.name, &*lock.owner, ttl);
        if handle.acquire().await.map_err(failed)? {
            return Ok(true);
        }
        let owner = handle.current_owner().await.map_err(failed)?;
        Ok(owner.as_deref() == Some(&*lock.owner))
    }

    /// Counts ends of jobs of one batch, and removes the marks of those that were counted before.
    async fn count(
        &self,
        hold: &Hold,
        batch: &str,
        counts: Vec<Noted<Count>>,
        counted: Vec<Noted<Vec<Ended>>>,
        said: &mut Said,
        is_away: &mut bool,
    ) -> Done {
        let what = "count jobs in a batch";
        let all = counts.len() + counted.len();
        let Some(batches) = &self.services.batches else {
            said.problem(what, NO_BATCHES.to_owned());
            return Done::Left(all);
        };
        let may = || {
            let hold = hold.clone();
            async move { hold.lasts().await }
        };
        let (mut taken, forget) = apart(counted);
        let ended = ends(&counts);
        let recorded = batches.record_while(batch, &ended, &forget, may).await;
        let recorded = match recorded {
            Ok(Some(recorded)) => recorded,
            Ok(None) => return Done::Lost,
            Err(error) => {
                *is_away = error.is_lost_connection();
                said.problem(what, with_causes(&error));
                return Done::Left(all);
            }
        };
        said.has_counted = batches.are_in_a_file();
        let mut marked = Vec::new();
        let mut for_php = Vec::new();
        for (noted, recorded) in counts.into_iter().zip(recorded) {
            match recorded {
                Recorded::Counted | Recorded::AlreadyCounted => {
                    marked.push(noted.what.ended);
                    taken.push(noted.record);
                }
                Recorded::NoBatch => taken.push(noted.record),
                Recorded::NeedsPhp => for_php.push(noted),
            }
        }
        let mut left_behind = Vec::new();
        let mut counted = Vec::new();
        if !marked.is_empty() {
            let what = FollowUp::Forget {
                batch: batch.to_owned(),
                ended: marked.clone(),
            };
            left_behind.push(what.effect());
            counted.push(Noted {
                record: what.to_record(),
                what: marked,
            });
        }
        if !taken.is_empty() {
            match self.advance(hold, &taken, &left_behind).await {
                Done::All => {}
                done => return done.and_left(for_php.len()),
            }
        }
        if for_php.is_empty() {
            if counted.is_empty() || batches.are_in_a_file() {
                // In a file, marks are removed with the next count, or alone if none comes.
                return Done::All;
            }
            return self.forget(hold, batch, counted, said).await;
        }
        let (records, forget) = apart(counted);
        let ended = ends(&for_php);
        let marks = batches.hand_over(batch, &ended, &forget, may).await;
        let marks = match marks {
            Ok(Some(marks)) => marks,
            Ok(None) => return Done::Lost,
            Err(error) => {
                *is_away = error.is_lost_connection();
                said.problem(what, with_causes(&error));
                return Done::Left(for_php.len());
            }
        };
        if !records.is_empty() {
            match self.advance(hold, &records, &[]).await {
                Done::All => {}
                done => return done.and_left(for_php.len()),
            }
        }
        let mut left = 0;
        for (noted, mark) in for_php.into_iter().zip(marks) {
            match self.hand_over(hold, noted, mark.as_deref(), said).await {
                Done::All => {}
                Done::Left(more) => left += more,
                over @ (Done::Lost | Done::Unreachable(_)) => return over,
            }
        }
        if left == 0 {
            Done::All
        } else {
            Done::Left(left)
        }
    }

    /// Makes PHP count the end of a job.
    async fn hand_over(
        &self,
        hold: &Hold,
        noted: Noted<Count>,
        mark: Option<&str>,
        said: &mut Said,
    ) -> Done {
        let count = &noted.what;
        let Some(queue) = &count.queue else {
            said.problem("let PHP run a batch's callbacks", NO_PHP_QUEUE.to_owned());
            return Done::Left(1);
        };
        let hand_over = HandOver {
            services: &self.services,
            now: self.clock.now(),
            name: count.name.as_deref().unwrap_or_default(),
            is_secret: false,
        };
        let payload = match count.ended.outcome {
            JobOutcome::Succeeded => {
                hand_over.counts_success(&count.batch, &count.ended.uuid, mark)
            }
            JobOutcome::Failed => {
                let message = count.message.as_deref().unwrap_or_default();
                hand_over.counts_failure(&count.batch, &count.ended.uuid, message)
            }
        };
        match payload {
            Ok(payload) => {
                let push = Effect::Push(Push {
                    queue: QueueName::from(queue.as_str()),
                    payload,
                    due: None,
                    claim: None,
                });
                self.advance(hold, &[noted.record], &[push]).await
            }
            Err(error) => {
                said.problem("let PHP run a batch's callbacks", with_causes(&error));
                Done::Left(1)
            }
        }
    }
}

/// How far a push has come.
enum Pushing {
    /// The push is done, or is not needed.
    Pushed,
    /// The job is to be pushed in one step with removing its record.
    Here(Effect),
    /// The job's lock must be freed first, which was not possible yet.
    Waits,
    /// Another process has the lease.
    Lost,
}

/// What could not be done, and why.
type Problem = (&'static str, String);

/// Why something for PHP waits.
pub(crate) const NO_PHP_QUEUE: &str =
    "no queue is known that PHP serves: set `queue` under [php] in artisand.toml";

const NO_BATCHES: &str = "nothing is known of the app's batches";
