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
//! * A payload is pushed to another Redis once: that Redis remembers the push. For a connection that tries several in
//!   order, the record is first replaced by one that names one of them.
//! * The lock of the next job of a chain is taken under the owner named in the record, after the locks that are to
//!   be freed; at first for a minute, and for its lifetime only under a lease that has lasted beyond the answer.
//!
//! An end that makes a batch's callbacks due is not counted here. PHP counts it when it runs a closure, which is
//! pushed in one step with removing the record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batch::{Batches, Ended};
use crate::cache::{self, Cache};
use crate::connection::Reconnect;
use crate::handler::Services;
use crate::outbox::follow_up::{Count, FollowUp, RemotePush};
use crate::outbox::lease::{DrainStatus, FencingToken, Lease, Progress, list_unreachable};
use crate::outbox::left::Left;
use crate::outbox::parts::{self, Parts, worst};
use crate::outbox::{OnRefusal, despite_panics};
use crate::queue::{ConnectionName, Effect, Ledger, Queue, QueueName, Spool};
use crate::shown::with_causes;
use crate::time::Clock;

/// What the task needs.
pub(crate) struct FollowUpRelay {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The queues that the worker serves.
    pub(crate) queues: Vec<QueueName>,
    pub(crate) services: Arc<Services>,
    /// The queues of the worker, and the name of their connection.
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) connection: ConnectionName,
    pub(crate) clock: Clock,
    /// Tells when records were left, and is told when all are done.
    pub(crate) left: Arc<Left>,
    /// Cancelled when no more records will be left.
    pub(crate) last: CancellationToken,
    pub(crate) progress: Progress,
    pub(crate) on_refusal: OnRefusal,
}

/// Number of records read at once: as many endings as a batch takes in one transaction.
pub(super) const PAGE: usize = Batches::MAX_EVENTS;
/// Number of records that a pass may leave behind before it ends.
const MOST_LEFT: usize = 10_000;
/// How often the list is checked without a notification: another process may have died.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long the list rests after a pass that left records.
const BETWEEN_PASSES: Duration = Duration::from_millis(500);

/// How long counts of batches in a `SQLite` file are gathered between two transactions.
///
/// Laravel reads a batch and then writes it in one transaction, which `SQLite` refuses if another process wrote in
/// between; PHP's job then runs again.
const GATHER: Duration = Duration::from_millis(200);

/// Most problems that are remembered as logged.
const MOST_PROBLEMS: usize = 64;

/// What was already logged, so that it is not logged every second.
#[derive(Debug, Default)]
pub(super) struct Logged {
    problems: BTreeSet<String>,
    /// Something was written to a `SQLite` file that PHP also writes.
    pub(super) has_counted: bool,
    /// Locks by store and name that this pass could not free: they must not be taken before that.
    pub(super) held: BTreeSet<(String, String)>,
    /// The database of batches was away in this pass: trying it again would cost each page another wait.
    pub(super) is_away: bool,
    /// Pushes by identity whose locks were taken, and since when that is so.
    pub(super) refused: BTreeMap<String, Instant>,
}

impl Logged {
    fn problem(&mut self, what: &'static str, error: String) {
        if self.problems.len() >= MOST_PROBLEMS {
            self.problems.clear();
        }
        if !self.problems.contains(&error) {
            tracing::error!(
                error,
                what,
                "something is left to do for jobs that have ended; it will be tried again"
            );
            self.problems.insert(error);
        }
    }

    fn all_done(&mut self) {
        if !self.problems.is_empty() {
            tracing::info!("what was left to do for jobs that have ended is done");
        }
        *self = Self::default();
    }
}

/// What is known of one list.
#[derive(Debug, Default)]
struct ListState {
    /// Where the next pass begins.
    start: usize,
    said: Logged,
}

/// Does follow-ups until no more will come; returns how the last passes ended.
///
/// Each list has a task of its own, so that those of healthy servers do not wait for one that does not answer.
pub(crate) async fn keep_following(relay: FollowUpRelay) -> DrainStatus {
    let relay = Arc::new(relay);
    let mut parts = Parts::<()>::new(Arc::clone(&relay.ledger), &relay.queues);
    let own = parts.all().len();
    relay.left.lie_in(own);
    let mut lists = JoinSet::new();
    let mut look_at = Instant::now();
    loop {
        for part in &parts.all()[lists.len()..] {
            let list = lists.len();
            let (relay, ledger) = (Arc::clone(&relay), Arc::clone(&part.ledger));
            lists.spawn(async move {
                let start = || Arc::clone(&relay).keep(Arc::clone(&ledger), list, list < own);
                let panicked = || relay.left.pass_ended(list, 0, DrainStatus::Failed);
                despite_panics(&relay.last, start, panicked).await
            });
        }
        let look = async {
            tokio::time::sleep_until(look_at).await;
            parts.due().await;
        };
        tokio::select! {
            () = relay.last.cancelled() => break,
            () = look => look_at = Instant::now() + parts::LOOK_EVERY,
        }
    }
    worst(lists.join_all().await)
}

/// A record with its bytes, which identify it in the list.
pub(super) struct Stored<T> {
    pub(super) record: Vec<u8>,
    pub(super) what: T,
}

/// What became of some records.
pub(super) enum RelayResult {
    /// The records are removed from the list.
    All,
    /// This many stay in the list, as something could not be reached.
    Left(usize),
    /// Another process has the lease.
    Lost,
    /// The list itself cannot be reached.
    Unreachable(crate::queue::Error),
}

impl RelayResult {
    pub(super) fn and_left(self, more: usize) -> Self {
        match self {
            Self::All if more > 0 => Self::Left(more),
            Self::Left(left) => Self::Left(left + more),
            done => done,
        }
    }
}

impl FollowUpRelay {
    /// Does the follow-ups in one list until no more will come; returns how the last pass ended.
    async fn keep(
        self: Arc<Self>,
        ledger: Arc<dyn Ledger>,
        list: usize,
        is_own: bool,
    ) -> DrainStatus {
        let mut reconnect = Reconnect::default();
        let mut noted = self.left.noted();
        let mut state = ListState::default();
        loop {
            let is_last = self.last.is_cancelled();
            if is_last && !is_own {
                return DrainStatus::All;
            }
            let seen = *noted.borrow_and_update();
            let drained = self.drain(&ledger, &mut state).await;
            self.left.pass_ended(list, seen, drained);
            if is_last && drained != DrainStatus::Later {
                return drained;
            }
            let wait = match drained {
                DrainStatus::All => {
                    state.said.all_done();
                    reconnect.reset();
                    LOOK_EVERY
                }
                // Another process holds the lease, or died with it.
                DrainStatus::Later => BETWEEN_PASSES,
                DrainStatus::Failed => reconnect.next_wait().max(BETWEEN_PASSES),
            };
            // The workers of another queue empty its list; this one looks whether it has lost its last worker.
            let wait = if is_own { wait } else { parts::LOOK_EVERY };
            if is_last {
                // The holder of the lease may be stopping, too, without having seen the last records.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            let news = async {
                if drained != DrainStatus::All {
                    // A record that cannot be done now must not make each job's end a pass over the list.
                    tokio::time::sleep(BETWEEN_PASSES).await;
                }
                noted.changed().await
            };
            tokio::select! {
                () = self.last.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
                Ok(()) = news, if is_own => {}
            }
        }
    }

    /// Something could not be done and stays in the list.
    pub(super) fn problem(&self, said: &mut Logged, what: &'static str, error: String) {
        self.on_refusal.tell(what);
        said.problem(what, error);
    }

    /// Walks through the list from where the course says, and notes there where to begin the next time.
    async fn drain(&self, ledger: &Arc<dyn Ledger>, course: &mut ListState) -> DrainStatus {
        let mut lease = match Lease::take(ledger, Spool::FollowUps, &self.progress).await {
            Ok(lease) => lease,
            Err(drained) => return drained,
        };
        let drained = self.drain_leased(&mut lease, course).await;
        lease.give_up().await;
        drained
    }

    async fn drain_leased(&self, lease: &mut Lease, course: &mut ListState) -> DrainStatus {
        let ListState { start, said } = course;
        let first = std::mem::take(start);
        let mut left = first;
        if first == 0 {
            said.held.clear();
        }
        said.is_away = false;
        loop {
            let records = match lease
                .hold()
                .ledger()
                .read(Spool::FollowUps, left, PAGE)
                .await
            {
                Ok(records) => records,
                Err(error) => return list_unreachable(&error),
            };
            let is_end = records.is_empty();
            if is_end || left - first >= MOST_LEFT {
                // The next pass continues here: records further on may well be possible.
                *start = if is_end { 0 } else { left };
                return if left == 0 {
                    DrainStatus::All
                } else {
                    DrainStatus::Failed
                };
            }
            let hold = lease.hold();
            match lease.during(self.follow(&hold, records, said)).await {
                // Without the lease another process does the work.
                None | Some(RelayResult::Lost) => return DrainStatus::Later,
                Some(RelayResult::All) => {}
                Some(RelayResult::Left(more)) => left += more,
                Some(RelayResult::Unreachable(error)) => return list_unreachable(&error),
            }
            if std::mem::take(&mut said.has_counted) {
                let gathering = async {
                    tokio::select! {
                        () = tokio::time::sleep(GATHER) => {}
                        () = self.last.cancelled() => {}
                    }
                };
                if lease.during(gathering).await.is_none() {
                    return DrainStatus::Later;
                }
            }
        }
    }

    async fn follow(
        &self,
        hold: &FencingToken,
        records: Vec<Vec<u8>>,
        said: &mut Logged,
    ) -> RelayResult {
        let mut counts: BTreeMap<String, Vec<Stored<Count>>> = BTreeMap::new();
        let mut forgets: BTreeMap<String, Vec<Stored<Vec<Ended>>>> = BTreeMap::new();
        let mut others = Vec::new();
        let mut left = 0;
        for record in records {
            match serde_json::from_slice(&record) {
                Ok(FollowUp::Count(what)) => {
                    let of_batch = counts.entry(what.batch.clone()).or_default();
                    of_batch.push(Stored { record, what });
                }
                Ok(FollowUp::Forget { batch, ended: what }) => {
                    let of_batch = forgets.entry(batch).or_default();
                    of_batch.push(Stored { record, what });
                }
                Ok(what) => others.push(Stored { record, what }),
                Err(error) => {
                    self.problem(
                        said,
                        "read a record in artisand:follow-ups",
                        error.to_string(),
                    );
                    left += 1;
                }
            }
        }
        // Free locks before anything takes them.
        others
            .sort_by_key(|noted: &Stored<FollowUp>| !matches!(noted.what, FollowUp::Unlock { .. }));
        for other in others {
            match self.follow_one(hold, other, said).await {
                RelayResult::All => {}
                RelayResult::Left(more) => left += more,
                over @ (RelayResult::Lost | RelayResult::Unreachable(_)) => return over,
            }
        }
        for (batch, counts) in counts {
            let counted = forgets.remove(&batch).unwrap_or_default();
            if said.is_away {
                left += counts.len() + counted.len();
                continue;
            }
            match self.count(hold, &batch, counts, counted, said).await {
                RelayResult::All => {}
                RelayResult::Left(more) => left += more,
                over @ (RelayResult::Lost | RelayResult::Unreachable(_)) => return over,
            }
        }
        for (batch, counted) in forgets {
            if said.is_away {
                left += counted.len();
                continue;
            }
            match self.forget(hold, &batch, counted, said).await {
                RelayResult::All => {}
                RelayResult::Left(more) => left += more,
                over @ (RelayResult::Lost | RelayResult::Unreachable(_)) => return over,
            }
        }
        if left == 0 {
            RelayResult::All
        } else {
            RelayResult::Left(left)
        }
    }

    /// Removes records from the list, and applies the effects.
    pub(super) async fn ack(
        &self,
        hold: &FencingToken,
        records: &[Vec<u8>],
        effects: &[Effect],
        said: &mut Logged,
    ) -> RelayResult {
        match hold.ack(records, effects).await {
            Ok(0) => RelayResult::Lost,
            Ok(_) => RelayResult::All,
            // The key that a job is to be pushed to is no queue. Other records have nothing to do with that.
            Err(error) if error.is_wrong_kind() => {
                self.problem(said, "push a job", with_causes(&error));
                RelayResult::Left(records.len())
            }
            Err(error) => RelayResult::Unreachable(error),
        }
    }

    async fn follow_one(
        &self,
        hold: &FencingToken,
        noted: Stored<FollowUp>,
        said: &mut Logged,
    ) -> RelayResult {
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
                        self.problem(said, what, error);
                        RelayResult::Left(1)
                    }
                };
            }
            FollowUp::Push(push) => match self.push(hold, push, said).await {
                Ok(Pushing::Pushed) => Ok(()),
                Ok(Pushing::Here(effects)) => {
                    return self.ack(hold, &[noted.record], &effects, said).await;
                }
                Ok(Pushing::There(push)) => {
                    let what = FollowUp::Push(push);
                    return self.replace(hold, noted.record, what, said).await;
                }
                Ok(Pushing::Waits) => return RelayResult::Left(1),
                Ok(Pushing::Lost) => return RelayResult::Lost,
                Err(problem) => Err(problem),
            },
            FollowUp::Count(_) | FollowUp::Forget { .. } => unreachable!("done together"),
        };
        match done {
            Ok(()) => self.ack(hold, &[noted.record], &[], said).await,
            Err((what, error)) => {
                self.problem(said, what, error);
                RelayResult::Left(1)
            }
        }
    }

    pub(super) fn cache(&self, store: &str, what: &'static str) -> Result<Cache, Problem> {
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
        hold: &FencingToken,
        record: Vec<u8>,
        (store, name): (String, String),
        owner: Option<String>,
        said: &mut Logged,
    ) -> RelayResult {
        if owner.is_none() {
            return self.ack(hold, &[record], &[], said).await;
        }
        let what = FollowUp::Unlock { store, name, owner };
        self.replace(hold, record, what, said).await
    }

    /// Puts a record that says more in the place of another one, and does what it says.
    async fn replace(
        &self,
        hold: &FencingToken,
        record: Vec<u8>,
        what: FollowUp,
        said: &mut Logged,
    ) -> RelayResult {
        match self.ack(hold, &[record], &[what.effect()], said).await {
            RelayResult::All => {
                let record = what.to_record();
                Box::pin(self.follow_one(hold, Stored { record, what }, said)).await
            }
            done => done,
        }
    }
}

/// What could not be done, and why.
pub(super) type Problem = (&'static str, String);

/// How far a push has come.
pub(super) enum Pushing {
    /// The push is done, or is not needed.
    Pushed,
    /// The effects, such as the push, are to be carried out in one step with removing the record.
    Here(Vec<Effect>),
    /// The record is to name this connection, of several that would be tried in order: a push that is repeated must not
    /// go to another one.
    There(RemotePush),
    /// The job's lock must be freed first, which was not possible yet.
    Waits,
    /// Another process has the lease.
    Lost,
}

#[cfg(test)]
pub(super) mod tests;
