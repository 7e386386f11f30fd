//! The worker's loop: pops jobs while slots are free, starts them, and waits for something to happen.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::announcer::Announcer;
use super::attempt::Executor;
use super::attempt::shared::Shared;
use super::background::Background;
use super::backoff::PopRetry;
use super::event::{Event, Looping};
use super::heartbeat::Heartbeat;
use super::intake::{Found, Intake};
use super::limits::{LIMITS_EVERY, Limits, Snapshot};
use super::options::WorkerOptions;
use super::renew::Running;
use super::select::{self, Selector};
use super::slots::{Slots, TaskOutput};
use super::stop::{Orders, StopReason};
use super::triaged::{Candidate, Triaged};
use super::wakeups::{Wakeups, Woken};
use crate::connection::is_away;
use crate::process::pool::Pool;
use crate::queue::{Ability, Popped, Queue, QueueName, ReservedJob};
use crate::shown::{rounded, with_causes};
use crate::time::{Clock, UnixSeconds};

/// A running worker.
pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) options: WorkerOptions,
    pub(super) orders: watch::Receiver<Orders>,
    pub(super) heartbeat: Heartbeat,
    pub(super) slots: Slots,
    /// When to pop for handlers in this process.
    pub(super) local: Intake,
    /// When to pop for PHP.
    pub(super) php: Intake,
    pub(super) wakeups: Wakeups,
    pub(super) retry: PopRetry,
    pub(super) limits: Limits,
    pub(super) announcer: Announcer,
    pub(super) background: Background,
}

/// Something that happened while the loop waited.
enum Wake {
    Ended(Result<TaskOutput, JoinError>),
    Woken(Woken),
    /// An order, or a change in the app's signals.
    Told,
    /// A released job comes back at this moment.
    Returns(UnixSeconds),
    /// Follow-ups of ended jobs are done.
    FollowedUp,
    Time,
}

/// The result of a pop.
struct Fetched<'a> {
    popped: Popped,
    selector: Option<Selector<'a>>,
}

impl Fetched<'_> {
    /// The jobs, each with the result of the look at it during selection.
    fn into_jobs(self) -> impl Iterator<Item = (ReservedJob, Option<Candidate>)> {
        let mut selector = self.selector;
        self.popped.jobs.into_iter().map(move |job| {
            let candidate = selector
                .as_mut()
                .and_then(|selector| selector.candidate(&job));
            (job, candidate)
        })
    }
}

/// How often to look for jobs of one executor that stand behind jobs the other has not taken yet.
const BEHIND_OTHERS: Duration = Duration::from_millis(100);
/// How long the server may take to answer a pop once the worker is told to quit.
const LAST_POP: Duration = Duration::from_secs(1);

impl Run {
    /// Works the queues until something stops the worker; returns the reason.
    pub(super) async fn work(&mut self) -> StopReason {
        let mut paused = false;
        loop {
            self.heartbeat.beat();
            while let Some(end) = self.slots.try_next_end() {
                self.ended(end);
            }
            let stats = &self.shared.triage.stats;
            if self.announcer.announce(&self.shared.observers, stats) {
                self.look_again();
            }
            let orders = *self.orders.borrow_and_update();
            if orders.paused != paused {
                paused = orders.paused;
                self.shared.emit(if paused {
                    Event::WorkerPausing
                } else {
                    Event::WorkerResuming
                });
                self.look_again();
            }
            self.limits.measure_memory(self.options.stop.memory);
            let stats = &self.shared.triage.stats;
            self.announcer
                .announce_stats_sometimes(&self.shared.observers, stats);
            if let Some(reason) = self.stop_reason(orders) {
                self.take_caught().await;
                self.slots.start_waiting(&self.shared);
                return reason;
            }
            let now = Instant::now();
            let may_pop = !paused
                && self.has_open_queue()
                && self.retry.deadline(now).is_none()
                && !self.is_held_up();
            let mut has_popped = false;
            let is_busy = !self.slots.is_empty();
            if let Some(slots) = self.local_slots().filter(|_| may_pop)
                && self.local.check_due(slots, is_busy, now)
            {
                self.pop_for_handlers(slots).await;
                has_popped = true;
            }
            if let Some(slots) = self
                .php_slots()
                .filter(|_| may_pop && !self.pops_for_both())
                && self.php.check_due(slots, is_busy, Instant::now())
            {
                self.pop_for_php(slots).await;
                has_popped = true;
            }
            if !has_popped {
                if self.may_start() {
                    self.slots.start_waiting(&self.shared);
                }
                self.wait(may_pop).await;
            }
        }
    }

    /// Whether jobs that were taken may begin: with one slot, the job before them has to be settled.
    fn may_start(&self) -> bool {
        !self.is_sequential() || self.shared.settlements.handed.are_settled()
    }

    /// Whether a pop has to wait until the last job is settled and reported.
    fn is_held_up(&self) -> bool {
        self.is_sequential()
            && !self.shared.settlements.handed.are_settled()
            && (self.shared.observers.are_in_order() || self.pops_for_both())
    }

    /// Whether one pop is for handlers here and for PHP: the queue cannot leave the jobs of either.
    fn pops_for_both(&self) -> bool {
        self.shared.pool.is_some()
            && !self.shared.has_only_php()
            && !self.queue.abilities().has(Ability::Chooses)
    }

    fn is_sequential(&self) -> bool {
        self.options.concurrency == NonZeroUsize::MIN
    }

    /// Whether the app allows any of the queues to be worked now.
    fn has_open_queue(&self) -> bool {
        let heard = self.announcer.heard();
        let is_paused = |queue: &QueueName| heard.paused.contains(queue);
        !heard.down && !self.options.queues.iter().all(is_paused)
    }

    /// Makes a pop due now for both executors.
    fn look_again(&mut self) {
        self.local.look_again();
        self.php.look_again();
    }

    /// How many more jobs the worker may begin.
    fn left(&self) -> usize {
        let max_jobs = if self.options.once {
            Some(1)
        } else {
            self.options.stop.max_jobs
        };
        let begun = self.slots.begun();
        let left = max_jobs.map_or(u64::MAX, |max_jobs| max_jobs.saturating_sub(begun));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Free slots that jobs may fill now.
    fn local_slots(&self) -> Option<NonZeroUsize> {
        if self.shared.has_only_php() {
            return None;
        }
        let most = self.queue.abilities().most_at_once.get();
        let slots = NonZeroUsize::new(self.slots.free().min(self.left()).min(most))?;
        if self.pops_for_both() {
            // Every job must have a place, whichever it is for.
            return self.php_slots().map(|php| php.min(slots));
        }
        Some(slots)
    }

    /// PHP processes that wait for a job.
    ///
    /// With `--once`, PHP also waits until local jobs have ended. With a single process, job N is settled before job
    /// N+1 is popped, as in `queue:work`.
    fn php_slots(&self) -> Option<NonZeroUsize> {
        let pool = self.shared.pool.as_ref()?;
        let is_free = (!self.options.once || self.slots.is_empty())
            && (pool.size() > 1 || self.slots.is_php_settled());
        NonZeroUsize::new(pool.waiting().min(self.left())).filter(|_| is_free)
    }

    /// Begins the jobs that a wait has taken: given back, each would have spent an attempt.
    async fn take_caught(&mut self) {
        let are_left = tokio::select! {
            are_left = self.queue.end_waits() => are_left.unwrap_or(false),
            () = told_to_hurry(&mut self.orders) => false,
        };
        if !are_left {
            return;
        }
        if let Some(slots) = self.local_slots() {
            self.pop_for_handlers(slots).await;
        } else if let Some(slots) = self.php_slots() {
            self.pop_for_php(slots).await;
        }
    }

    /// Pops and starts jobs for handlers in this process.
    async fn pop_for_handlers(&mut self, slots: NonZeroUsize) {
        // Announced jobs that no handler here takes are for PHP, which pops next.
        let is_last = self.shared.pool.is_none() || self.php_slots().is_none();
        let woken = if is_last {
            self.wakeups.take()
        } else {
            Vec::new()
        };
        let shared = Arc::clone(&self.shared);
        if self.pops_for_both() {
            if let Some(fetched) = self.pop(slots, None, &woken, Executor::Local).await {
                self.start_each(fetched);
            }
            return;
        }
        let selects = shared.triage.leaves_unmapped() || shared.triage.has_limited_mappings();
        let selector =
            selects.then(|| Selector::for_handlers(&shared.triage, self.slots.per_mapping()));
        let Some(fetched) = self.pop(slots, selector, &woken, Executor::Local).await else {
            return;
        };
        if selects && fetched.popped.jobs.is_empty() {
            let now = Instant::now();
            if !woken.is_empty() {
                // The announced job is for another worker: let that worker see the next announcements first.
                self.wakeups.rest_until(now + LIMITS_EVERY);
            }
            if self.shared.pool.is_some() && self.wakeups.rests(now) {
                // The announced job may be for this worker's own PHP processes, which are all busy. Jobs for
                // handlers are not announced meanwhile.
                self.local.look_by(now + BEHIND_OTHERS);
            }
        }
        self.start(fetched, Executor::Local);
    }

    /// Pops jobs for the waiting PHP processes, and gives each of them one.
    async fn pop_for_php(&mut self, slots: NonZeroUsize) {
        let woken = self.wakeups.take();
        let shared = Arc::clone(&self.shared);
        let selector = (!shared.has_only_php()).then(|| Selector::for_php(&shared.triage));
        let Some(fetched) = self.pop(slots, selector, &woken, Executor::Php).await else {
            return;
        };
        let now = Instant::now();
        if fetched.popped.jobs.is_empty() {
            if !woken.is_empty() {
                // The announced job is for slots that are all taken: do not take its announcements over and over.
                self.wakeups.rest_until(now + LIMITS_EVERY);
            }
            if self.wakeups.rests(now) {
                self.php.look_by(now + BEHIND_OTHERS);
            }
        } else {
            // Jobs for handlers may stand behind those that PHP took.
            self.local.look_by(now + BEHIND_OTHERS);
        }
        self.start(fetched, Executor::Php);
    }

    fn start(&mut self, fetched: Fetched<'_>, executor: Executor) {
        // How many jobs of a mapping run is known once they have begun.
        let may_wait = executor == Executor::Local && !self.shared.triage.has_limited_mappings();
        if may_wait {
            return self.slots.take(fetched.into_jobs());
        }
        for (job, candidate) in fetched.into_jobs() {
            self.slots.start(&self.shared, job, candidate, executor);
        }
    }

    /// Starts jobs for handlers here and for PHP.
    fn start_each(&mut self, fetched: Fetched<'_>) {
        for (job, _) in fetched.into_jobs() {
            let candidate = self.shared.triage.triage(&job.payload, &job.queue).ok();
            let executor = match candidate.as_ref().map(|candidate| &candidate.triaged) {
                Some(Triaged::Unmapped(_) | Triaged::Bypass(_)) => Executor::Php,
                _ => Executor::Local,
            };
            self.slots.start(&self.shared, job, candidate, executor);
        }
    }

    fn intake(&mut self, executor: Executor) -> &mut Intake {
        match executor {
            Executor::Local => &mut self.local,
            Executor::Php => &mut self.php,
        }
    }

    /// Pops up to `slots` jobs, and notes what the result says about the queues; `None` if there was no pop.
    async fn pop<'a>(
        &mut self,
        slots: NonZeroUsize,
        selector: Option<Selector<'a>>,
        woken: &[QueueName],
        executor: Executor,
    ) -> Option<Fetched<'a>> {
        // Read before the pop: a job settled later may be back in the queue.
        let was_quiet = self.slots.is_empty() && self.shared.leases.running.is_empty();
        self.intake(executor).begin_pop();
        if self.ask_listeners() {
            self.rest_after_veto(executor, was_quiet);
            return None;
        }
        let mut selector = selector;
        if let Some(selector) = &mut selector {
            selector.heads = std::mem::take(&mut self.intake(executor).heads);
        }
        let asked = self.ask_queue(slots, selector.as_mut(), woken, executor);
        let popped = asked.await?;
        if let Some(selector) = &mut selector {
            self.intake(executor).heads = std::mem::take(&mut selector.heads);
        }
        let now = Instant::now();
        let popped = match popped {
            Ok(popped) => popped,
            Err(error) => {
                let wait = self.retry.fail(now);
                // The connection logs once that the server is away.
                if !is_away(&error) {
                    tracing::error!(error = with_causes(&error), retry_in = ?rounded(wait), "could not pop jobs");
                }
                self.local.fail_pop();
                self.php.fail_pop();
                return None;
            }
        };
        self.retry.succeed();
        let found = Found {
            taken: popped.jobs.len(),
            has_moved: popped.migrated > 0 || !popped.quarantined.is_empty(),
            was_quiet,
            wait: if self.is_bounded() && !was_quiet && self.slots.is_empty() {
                // The last jobs are being settled: look again after that.
                Duration::from_millis(2)
            } else {
                self.idle_wait(&popped, selector.as_ref())
            },
        };
        self.intake(executor).end_pop(slots, found, now);
        for (queue, count) in &popped.quarantined {
            tracing::error!(%queue, count, "payloads cannot be decoded and went to quarantine");
            self.shared.emit(Event::JobsQuarantined {
                queue,
                count: *count,
            });
        }
        if found.taken > 0 {
            self.limits.note_jobs(now);
            // These jobs may push others for either executor.
            self.local.expect_jobs();
            self.php.expect_jobs();
        }
        Some(Fetched { popped, selector })
    }

    /// Asks the queue for jobs; `None` if it does not answer and the worker is told to quit.
    async fn ask_queue(
        &mut self,
        slots: NonZeroUsize,
        selector: Option<&mut Selector<'_>>,
        woken: &[QueueName],
        executor: Executor,
    ) -> Option<Result<Popped, crate::queue::Error>> {
        let paused = &self.announcer.heard().paused;
        let open = self.options.queues.iter();
        let queues: Vec<QueueName> = open
            .filter(|queue| !paused.contains(queue))
            .cloned()
            .collect();
        self.shared.emit(Event::JobPopping {
            connection: &self.options.connection,
            queues: &queues,
        });
        let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(&self.shared));
        let clock = self.options.clock;
        let is_sequential = match executor {
            Executor::Local => self.is_sequential(),
            Executor::Php => shared.has_one_member(),
        };
        // With jobs that run, there is a next look.
        let thorough =
            self.is_bounded() && self.slots.is_empty() && shared.leases.running.is_empty();
        let popping = async {
            if is_sequential {
                shared.settlements.handed.sent().await;
            }
            renew_overdue(&*queue, &shared.leases.running, clock).await?;
            select::pop(
                &*queue,
                &queues,
                clock.now(),
                slots,
                woken,
                selector,
                thorough,
            )
            .await
        };
        let mut orders = self.orders.clone();
        self.heartbeat.excuse();
        let mut popping = std::pin::pin!(unless_told_to_quit(popping, &mut orders));
        let mut popped = Poll::Pending;
        if self.slots.has_waiting() && self.may_start() {
            popped = futures_util::poll!(popping.as_mut());
            if popped.is_pending() {
                // Lets the task of the connection send the request.
                tokio::task::yield_now().await;
            }
            self.slots.start_waiting(&self.shared);
        }
        let popped = match popped {
            Poll::Ready(popped) => popped,
            Poll::Pending => popping.await,
        };
        if popped.is_none() {
            tracing::warn!(
                "the server does not answer: stopping without the reply of the last pop"
            );
        }
        popped
    }

    /// Delays the next look at the queues after a veto.
    fn rest_after_veto(&mut self, executor: Executor, is_quiet: bool) {
        let rest = if self.options.sleep.is_zero() {
            LIMITS_EVERY
        } else {
            self.options.sleep
        };
        let until = Instant::now() + rest;
        self.intake(executor).veto(until, is_quiet);
        // Announcements do not matter until then.
        self.wakeups.rest_until(until);
    }

    /// Asks observers whether the worker may look at the queues; true if one of them vetoes.
    fn ask_listeners(&self) -> bool {
        if self.options.once {
            return false;
        }
        let looping = Looping::new(&self.options);
        self.shared.emit(Event::Looping(&looping));
        looping.is_vetoed()
    }

    /// How long to wait without jobs: until the next one is due, at most `--sleep`.
    fn idle_wait(&self, popped: &Popped, selector: Option<&Selector<'_>>) -> Duration {
        if selector.is_some_and(|selector| selector.limited) {
            // Waiting jobs have a mapping without a free slot: the end of a job of that mapping makes the queue
            // due.
            return self.options.sleep;
        }
        let due = popped.next_due.map(|due| self.options.clock.until(due));
        // A moment past the second, so that the clock has surely reached it. At least 20 ms, so that a due job
        // that is not taken causes no busy loop.
        let due = due.map(|due| due.max(Duration::from_millis(20)) + Duration::from_millis(1));
        due.map_or(self.options.sleep, |due| due.min(self.options.sleep))
    }

    /// Notes the end of a job's task.
    pub(super) fn ended(&mut self, end: Result<TaskOutput, JoinError>) {
        if self.is_bounded() {
            // The job may have left another in the queue.
            self.look_again();
        }
        if self.slots.note_end(end) {
            self.local.look_again();
        }
    }

    /// Waits for the next thing that concerns the loop.
    async fn wait(&mut self, may_pop: bool) {
        let now = Instant::now();
        let local_slots = self.local_slots().filter(|_| may_pop);
        let can_pop_for_php = may_pop && !self.pops_for_both() && self.php_slots().is_some();
        let local = local_slots.map(|_| self.local.next_pop(now));
        let php = can_pop_for_php.then(|| self.php.next_pop(now));
        let next_pop = local.into_iter().chain(php).min();
        let is_busy = !self.slots.is_empty();
        let until = next_pop.unwrap_or(now + LIMITS_EVERY);
        let until = (self
            .limits
            .next_look(&self.options, is_busy, now)
            .into_iter())
        .chain(self.wakeups.rest_end(now))
        .chain(self.retry.deadline(now))
        .fold(until, Instant::min);
        let is_idle = (local.is_none() || self.local.is_waiting())
            && (php.is_none() || self.php.is_waiting());
        // No BLPOP with `--stop-when-empty`: the end of this process would swallow a notification meant for another.
        if next_pop.is_some() && is_idle && !self.is_bounded() {
            self.wakeups.arm(now);
        }
        let missing = local_slots.and_then(|slots| self.local.missing(slots));
        if let Some(missing) = missing {
            self.shared.ends.expect(missing);
        }
        match self.next_wake(until, missing.is_some()).await {
            Wake::Ended(end) => self.ended(end),
            Wake::Woken(Woken::Pushed) => self.look_again(),
            Wake::Returns(at) => {
                let wait = self.options.clock.until(at);
                // A moment past the second, as for delayed jobs that a pop has seen.
                let wait = if wait.is_zero() {
                    wait
                } else {
                    wait + Duration::from_millis(1)
                };
                let moment = Instant::now() + wait;
                self.local.look_by(moment);
                self.php.look_by(moment);
            }
            Wake::FollowedUp => {
                self.local.expect_jobs();
                self.php.expect_jobs();
                self.look_again();
            }
            Wake::Woken(Woken::Php) | Wake::Told | Wake::Time => {}
        }
    }

    /// The next thing that happens, or `Wake::Time` at `until`.
    async fn next_wake(&mut self, until: Instant, lingers: bool) -> Wake {
        let follows = self.ends_when_empty();
        let is_held_up = self.slots.has_waiting() || self.is_held_up();
        let background = &mut self.background;
        tokio::select! {
            biased;
            () = self.shared.settlements.handed.changed(), if is_held_up => Wake::Time,
            // While a pop lingers, ended jobs are counted instead of waking the loop one by one.
            () = self.shared.ends.reached(), if lingers => Wake::Time,
            end = self.slots.next_end(), if !lingers => Wake::Ended(end),
            woken = self.wakeups.next() => Wake::Woken(woken),
            _ = self.orders.changed() => Wake::Told,
            () = self.announcer.changed() => Wake::Told,
            at = background.returns.next() => Wake::Returns(at),
            Ok(()) = background.followed_up.changed(), if follows => Wake::FollowedUp,
            () = tokio::time::sleep_until(until) => Wake::Time,
        }
    }

    /// Whether the worker stops once there is no job.
    fn ends_when_empty(&self) -> bool {
        self.is_bounded() || self.options.stop.when_empty_for.is_some()
    }

    /// Whether the worker runs only until there is no job.
    fn is_bounded(&self) -> bool {
        self.options.once || self.options.stop.when_empty
    }

    /// Why the worker has to stop now; `None` to go on.
    fn stop_reason(&self, orders: Orders) -> Option<StopReason> {
        let shared = &self.shared;
        // Closed queues count as empty, as in Laravel.
        let is_closed = !self.has_open_queue() && shared.leases.running.is_empty();
        // PHP processes that are paused find no jobs either.
        let is_php_idle =
            |pool: &Pool| self.php.is_empty() || self.pops_for_both() || pool.is_paused();
        let is_empty = (self.local.is_empty() || shared.has_only_php())
            && shared.pool.as_ref().is_none_or(is_php_idle);
        let is_busy = !self.slots.is_empty();
        let snapshot = Snapshot {
            quit: orders.quit,
            is_stuck: self.slots.is_stuck() || shared.turns.is_overdue(),
            restart: self.announcer.heard().restart,
            has_no_php: shared.pool.as_ref().and_then(Pool::problem).is_some(),
            lost_connection: self.retry.has_failed(),
            is_busy,
            // An ended job may lead to more jobs, such as the callbacks of its batch.
            is_idle: (is_empty || is_closed) && !is_busy && self.background.left.is_clear(),
            begun: self.slots.begun(),
            in_php: self.slots.in_php(),
        };
        let now = Instant::now();
        self.limits.stop_reason(snapshot, &self.options, now)
    }
}

/// Renews reservations that could not be renewed in time, so that the pop takes no job that this worker runs.
async fn renew_overdue(
    queue: &dyn Queue,
    running: &Running,
    clock: Clock,
) -> Result<(), crate::queue::Error> {
    let Some(retry_after) = queue.abilities().retry_after else {
        return Ok(());
    };
    let now = Instant::now();
    let overdue = running.overdue(retry_after);
    if !overdue.is_empty() {
        queue.renew(&overdue, clock.now()).await?;
        running.renewed_at(now);
    }
    Ok(())
}

/// Returns when the worker is told to quit.
pub(super) async fn told_to_quit(orders: &mut watch::Receiver<Orders>) {
    while !orders.borrow_and_update().quit {
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns when the worker is told not to wait for its jobs.
async fn told_to_hurry(orders: &mut watch::Receiver<Orders>) {
    while !orders.borrow_and_update().hurry {
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits for a pop; gives up only if the worker is told to quit and the server does not answer.
///
/// Jobs of a lost reply stay reserved until `retry_after`, as if this process had been killed, which is what would
/// happen next.
async fn unless_told_to_quit<T>(
    pop: impl Future<Output = T>,
    orders: &mut watch::Receiver<Orders>,
) -> Option<T> {
    let mut pop = std::pin::pin!(pop);
    let told = async {
        told_to_quit(orders).await;
        tokio::time::sleep(LAST_POP).await;
    };
    tokio::select! {
        biased;
        popped = &mut pop => Some(popped),
        () = told => None,
    }
}
