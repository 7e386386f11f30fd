//! The worker's loop: pops jobs while slots are free, starts them, and waits for something to happen.

mod ask;
mod pop;
mod wait;

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::process::pool::Pool;
use crate::queue::{Ability, Queue, QueueName};
use crate::time::sleep_until;
use crate::worker::announcer::Announcer;
use crate::worker::attempt::shared::Shared;
use crate::worker::background::Background;
use crate::worker::backoff::PopRetry;
use crate::worker::event::Event;
use crate::worker::heartbeat::Heartbeat;
use crate::worker::intake::Intakes;
use crate::worker::limits::{Limits, Snapshot};
use crate::worker::options::WorkerOptions;
use crate::worker::slots::{Slots, TaskOutput};
use crate::worker::stop::{Orders, StopReason, told_to_hurry};
use crate::worker::wakeups::Wakeups;

/// A running worker.
pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) options: WorkerOptions,
    pub(super) steering: Steering,
    pub(super) heartbeat: Heartbeat,
    pub(super) slots: Slots,
    /// When to pop, for handlers in this process and for PHP.
    pub(super) intakes: Intakes,
    pub(super) wakeups: Wakeups,
    pub(super) retry: PopRetry,
    pub(super) limits: Limits,
    pub(super) announcer: Announcer,
    pub(super) background: Background,
}

/// What the worker is told to do, and how far its end has come once that is to quit.
pub(super) struct Steering {
    pub(super) orders: watch::Receiver<Orders>,
    /// When the worker was told to quit.
    pub(super) quit_at: Option<Instant>,
    /// When the wait for the reply of the last pop was given up.
    pub(super) gave_up_pop: Option<Instant>,
}

impl Steering {
    pub(super) fn new(orders: watch::Receiver<Orders>) -> Self {
        Self {
            orders,
            quit_at: None,
            gave_up_pop: None,
        }
    }

    /// The latest orders; the first look at an order to quit is noted as its time.
    fn latest(&mut self) -> Orders {
        let orders = *self.orders.borrow_and_update();
        if orders.quit {
            self.quit_at.get_or_insert_with(Instant::now);
        }
        orders
    }
}

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
            let has_news = self.announcer.announce(&self.shared.observers, stats);
            if has_news {
                self.intakes.look_again();
            }
            let orders = self.steering.latest();
            if has_news || orders.paused != paused {
                self.wait_for_open_queues(orders.paused);
            }
            if orders.paused != paused {
                paused = orders.paused;
                self.tell_pause(paused);
                self.intakes.look_again();
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
            let may_pop = !paused
                && self.has_open_queue()
                && self.retry.deadline(Instant::now()).is_none()
                && !self.is_held_up();
            let has_popped = may_pop && self.pop_if_due().await;
            if !has_popped {
                if self.may_start() {
                    self.slots.start_waiting(&self.shared);
                }
                self.wait(may_pop).await;
            }
        }
    }

    /// Pops for handlers and for PHP where a pop is due; false if none was.
    async fn pop_if_due(&mut self) -> bool {
        let is_busy = !self.slots.is_empty();
        let mut has_popped = false;
        if let Some(slots) = self.local_slots()
            && self.intakes.local.check_due(slots, is_busy, Instant::now())
        {
            self.pop_for_handlers(slots).await;
            has_popped = true;
        }
        // A server that has not answered one pop by now does not get another.
        let may_pop = self.steering.gave_up_pop.is_none() && !self.pops_for_both();
        if let Some(slots) = self.php_slots().filter(|_| may_pop)
            && self.intakes.php.check_due(slots, is_busy, Instant::now())
        {
            self.pop_for_php(slots).await;
            has_popped = true;
        }
        has_popped
    }

    /// Waits for pushes to the queues that may be worked, and to no others.
    fn wait_for_open_queues(&self, is_paused: bool) {
        let may_work = !is_paused && !self.announcer.announced().down;
        let open = may_work.then(|| self.open_queues());
        self.wakeups.wait_for(open.unwrap_or_default());
    }

    fn tell_pause(&self, is_paused: bool) {
        self.shared.emit(if is_paused {
            Event::WorkerPausing
        } else {
            Event::WorkerResuming
        });
    }

    /// Whether jobs that were taken may begin: with one slot, the job before them has to be settled.
    fn may_start(&self) -> bool {
        !self.is_sequential() || self.shared.settlements.settle_counts.are_settled()
    }

    /// Whether a pop has to wait: until the last job is settled and reported, or until the server takes the ends of
    /// jobs again.
    fn is_held_up(&self) -> bool {
        let settle_counts = &self.shared.settlements.settle_counts;
        let waits_for_last = self.is_sequential()
            && !settle_counts.are_settled()
            && (self.shared.observers.are_in_order() || self.pops_for_both());
        waits_for_last || settle_counts.are_too_many_parked()
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
        let signals = self.announcer.announced();
        let is_paused = |queue: &QueueName| signals.paused.contains(queue);
        !signals.down && !self.options.queues.iter().all(is_paused)
    }

    /// How many more jobs the worker may begin.
    fn left(&self) -> usize {
        let max_jobs = if self.options.stop.once {
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
    /// With `--once`, PHP also waits until local jobs have ended. With a single process, the deletion of job N is sent,
    /// and any other end of it settled, before job N+1 is popped; job N+1 begins when job N is settled, as in
    /// `queue:work`.
    fn php_slots(&self) -> Option<NonZeroUsize> {
        let pool = self.shared.pool.as_ref()?;
        let is_free = (!self.options.stop.once || self.slots.is_empty())
            && (pool.size() > 1 || self.slots.may_pop_for_one_process());
        NonZeroUsize::new(pool.waiting().min(self.left())).filter(|_| is_free)
    }

    /// Begins the jobs that waits have taken: given back, each would have spent an attempt. Those of queues that
    /// were paused since begin, too.
    ///
    /// Ends at the stop deadline, or if a pop takes none of them.
    async fn take_caught(&mut self) {
        self.wakeups.end();
        self.heartbeat.excuse();
        let from = self.steering.quit_at.unwrap_or_else(Instant::now);
        let deadline = self.options.grace.map(|grace| from + grace);
        loop {
            let are_left = tokio::select! {
                are_left = self.queue.end_waits() => are_left.unwrap_or(false),
                () = told_to_hurry(&mut self.steering.orders) => false,
            };
            if !are_left || self.left() == 0 {
                return;
            }
            let begun = self.slots.begun();
            if let Some(slots) = self.local_slots() {
                self.pop_for_handlers(slots).await;
            } else if let Some(slots) = self.php_slots() {
                self.pop_for_php(slots).await;
            } else if self.wait_for_room(deadline).await {
                continue;
            }
            if self.slots.begun() == begun {
                return;
            }
        }
    }

    /// Waits until a slot or a PHP process may have become free; false if none will in time.
    async fn wait_for_room(&mut self, deadline: Option<Instant>) -> bool {
        self.slots.start_waiting(&self.shared);
        let works = |pool: &Pool| pool.problem().is_none() && !pool.is_paused();
        let has_php = self.shared.pool.as_ref().is_some_and(works);
        if self.slots.is_empty() && !has_php {
            return false;
        }
        tokio::select! {
            end = self.slots.next_end() => self.ended(end),
            _ = self.wakeups.next() => {}
            () = told_to_hurry(&mut self.steering.orders) => return false,
            () = sleep_until(deadline) => return false,
        }
        true
    }

    /// Notes the end of a job's task.
    pub(super) fn ended(&mut self, end: Result<TaskOutput, JoinError>) {
        if self.is_bounded() {
            self.intakes.look_after_end(Instant::now());
        }
        if self.slots.note_end(end) {
            self.intakes.local.look_again();
        }
    }

    /// Whether the worker stops once there is no job.
    fn ends_when_empty(&self) -> bool {
        self.is_bounded() || self.options.stop.when_empty_for.is_some()
    }

    /// Whether the worker runs only until there is no job.
    fn is_bounded(&self) -> bool {
        self.options.stop.once || self.options.stop.when_empty
    }

    /// Why the worker has to stop now; `None` to go on.
    fn stop_reason(&self, orders: Orders) -> Option<StopReason> {
        let shared = &self.shared;
        // Closed queues count as empty, as in Laravel.
        let is_closed = !self.has_open_queue() && shared.leases.running.is_empty();
        // PHP processes that are paused find no jobs either.
        let is_php_idle =
            |pool: &Pool| self.intakes.php.is_empty() || self.pops_for_both() || pool.is_paused();
        let is_empty = (self.intakes.local.is_empty() || shared.has_only_php())
            && shared.pool.as_ref().is_none_or(is_php_idle);
        let is_busy = !self.slots.is_empty();
        let snapshot = Snapshot {
            quit: orders.quit,
            is_stuck: self.slots.is_stuck() || shared.turns.is_overdue(),
            has_given_up: shared.settlements.settle_counts.are_given_up(),
            restart: self.announcer.announced().restart,
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

#[cfg(test)]
mod tests;
