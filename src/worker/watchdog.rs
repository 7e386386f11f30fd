//! Detects handlers that block a thread which other jobs, timers and signals need.
//!
//! An async handler that calls `std::thread::sleep`, or computes for long, cannot be cancelled: the thread that it
//! blocks is the one that checks its timeout. If it blocks the last thread of the runtime, everything stops. So
//! the watchdog runs on a runtime of its own ([`Worker::with_overseer`]), together with signals and the renewal of
//! reservations, and reads the marks that each handler leaves when it is polled ([`Turn`]).
//!
//! * A handler that does not return to its thread for a second is named in the log, once per class.
//! * The thread that blocks may be the one that waits for sockets and timers on behalf of all, while the others sleep
//!   until they are notified. So a runtime that is not heard from is given an empty task, which wakes one of them.
//! * A handler that blocks beyond its timeout is treated like a blocking handler that does not return: the worker
//!   takes no more jobs, other jobs finish, and the process ends with Laravel's code. The handler's job is renewed
//!   until then and stays reserved until `retry_after`, with its attempt counted, as if the process had been killed.
//!   No other job can finish if it blocks the thread of the worker itself; those on the threads for busy handlers
//!   cannot if such handlers block all of them.
//! * The same holds for a handler that blocks beyond the stop deadline, but the process then ends with code 0.
//! * A `failed` hook is watched like a handler. Its job is settled, so it has some seconds more at the stop deadline.
//!
//! [`Worker::with_overseer`]: super::Worker::with_overseer

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::handler::JobInfo;
use crate::payload::JobUuid;
use crate::worker::running::Running;
use crate::worker::stop::{BEHIND_THE_END, Control, Orders, StopReason};

/// How often the watchdog checks.
const TICK: Duration = Duration::from_millis(250);
/// Number of ticks during one poll after which a handler counts as blocking.
const LONG: u64 = 4;
/// How long a handler may block beyond its deadline; the same time that a blocking handler has to notice it.
const NOTICE: Duration = Duration::from_secs(1);
/// Number of ticks without a sign of life after which the runtime is given a task, to wake one of its threads.
const QUIET: u64 = 1;
/// Most such tasks of one runtime that wait for a thread.
const MOST_NUDGES: usize = 16;
/// Number of ticks without a sign of life after which the runtime counts as blocked.
const SILENT: u64 = 8;
/// Number of named classes that are remembered; limited, because names come from payloads.
const MOST_NAMES: usize = 1000;

/// What runs of a job's handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The handler itself.
    Handler,
    /// Its `failed` hook: the job is settled.
    FailedHook,
}

/// A job whose handler runs in this process.
#[derive(Debug)]
struct Turn {
    part: Part,
    info: Arc<JobInfo>,
    number: u64,
    /// When its timeout has passed.
    deadline: Option<Instant>,
    /// The tick in which its current poll began; 0 if it is not being polled.
    polled: AtomicU64,
    /// Whether the log says that its hook is given up.
    is_given_up: AtomicBool,
}

/// The marks that the watchdog reads, and its findings.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Counts from 1; 0 without a watchdog.
    tick: AtomicU64,
    /// The tick of the last sign of life, of the worker's own runtime and of the one for heavy handlers.
    alive: [AtomicU64; 2],
    /// Turns by job number.
    list: Mutex<HashMap<u64, Arc<Turn>>>,
    /// Whether a handler blocks beyond its timeout, so that the worker has to stop.
    is_overdue: AtomicBool,
}

/// Removes a turn from the list when dropped.
struct Guard<'a>(&'a Turns, u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.turns().remove(&self.1);
    }
}

impl Turns {
    /// An empty list; `is_watched` says whether there will be a watchdog.
    pub(super) fn new(is_watched: bool) -> Self {
        Self {
            tick: AtomicU64::new(is_watched.into()),
            ..Self::default()
        }
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<u64, Arc<Turn>>> {
        // A panic leaves no entry half changed, so the map stays usable.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a handler blocks beyond its timeout.
    pub(super) fn is_overdue(&self) -> bool {
        self.is_overdue.load(Ordering::Relaxed)
    }

    /// Runs a part of a handler under the watchdog.
    pub(super) async fn watch<T>(
        &self,
        info: &Arc<JobInfo>,
        number: u64,
        part: Part,
        timeout: Option<Duration>,
        run: impl Future<Output = T>,
    ) -> T {
        if self.tick.load(Ordering::Relaxed) == 0 {
            return run.await;
        }
        let turn = Arc::new(Turn {
            part,
            info: Arc::clone(info),
            number,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            polled: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
        });
        self.turns().insert(number, Arc::clone(&turn));
        let _guard = Guard(self, number);
        let mut run = std::pin::pin!(run);
        std::future::poll_fn(|context| {
            let tick = self.tick.load(Ordering::Relaxed);
            turn.polled.store(tick, Ordering::Relaxed);
            let polled = run.as_mut().poll(context);
            turn.polled.store(0, Ordering::Relaxed);
            polled
        })
        .await
    }

    /// Gives signs of life until the future is dropped; runs on the watched runtime of this position.
    pub(super) async fn keep_alive(self: Arc<Self>, position: usize) {
        loop {
            self.alive[position].store(self.tick.load(Ordering::Relaxed), Ordering::Relaxed);
            tokio::time::sleep(TICK).await;
        }
    }

    /// The numbers of the jobs whose handlers have a thread now.
    fn polled(&self) -> Vec<u64> {
        let turns = self.turns();
        let polled = turns
            .values()
            .filter(|turn| turn.polled.load(Ordering::Relaxed) > 0);
        polled.map(|turn| turn.number).collect()
    }

    /// Whether a `failed` hook is not given up, and has a thread now, or may get one if no runtime is blocked.
    fn have_hook_within_its_time(&self, is_any_blocked: bool) -> bool {
        self.turns().values().any(|turn| {
            turn.part == Part::FailedHook
                && !turn.is_given_up.load(Ordering::Relaxed)
                && (!is_any_blocked || turn.polled.load(Ordering::Relaxed) > 0)
        })
    }

    /// Handlers that block now, and how long each has blocked.
    fn blocked(&self) -> Vec<(Arc<Turn>, Duration)> {
        let tick = self.tick.load(Ordering::Relaxed);
        let turns = self.turns();
        let blocked = turns.values().filter_map(|turn| {
            let polled = turn.polled.load(Ordering::Relaxed);
            let ticks = tick.saturating_sub(polled);
            let for_so_long = TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
            (polled > 0 && ticks >= LONG).then(|| (Arc::clone(turn), for_so_long))
        });
        blocked.collect()
    }
}

/// Watches the handlers of a worker.
pub(super) struct Watchdog {
    pub(super) turns: Arc<Turns>,
    pub(super) running: Arc<Running>,
    pub(super) control: Control,
    /// The watched runtimes, the worker's own first; at most two.
    pub(super) runtimes: Vec<tokio::runtime::Handle>,
    pub(super) orders: watch::Receiver<Orders>,
    /// How long jobs may continue after a stop order.
    pub(super) grace: Option<Duration>,
}

/// What the watchdog remembers from tick to tick.
#[derive(Default)]
struct Memory {
    /// Classes that were named in the log.
    named: HashSet<Box<str>>,
    told_to_quit: Option<Instant>,
    /// Since when running jobs are being cut short.
    cut_since: Option<Instant>,
    /// Tasks that wait for a thread of each runtime.
    nudges: [JoinSet<()>; 2],
}

impl Watchdog {
    /// Watches until the future is dropped.
    pub(super) async fn keep_watching(self) {
        let mut memory = Memory::default();
        let mut ticks = tokio::time::interval(TICK);
        // After a suspension of the whole process, missed ticks must not count as blocked time.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.turns.tick.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            memory.note_orders(*self.orders.borrow(), self.grace, now);
            let blocked = self.turns.blocked();
            memory.name(&blocked);
            let code = self.give_up_overdue(&blocked, memory.cut_since, now);
            let silent = self.nudge(&mut memory.nudges);
            if let Some(code) = code
                && self.is_nothing_left(silent)
            {
                self.control.abandon(code);
            }
        }
    }

    /// Gives up jobs whose handlers block beyond their timeout or the stop deadline; returns the exit code that
    /// this calls for.
    fn give_up_overdue(
        &self,
        blocked: &[(Arc<Turn>, Duration)],
        cut_since: Option<Instant>,
        now: Instant,
    ) -> Option<u8> {
        let is_late = |since: Instant| now >= since + NOTICE;
        let mut code = None;
        for (turn, blocked_for) in blocked {
            let more = match turn.part {
                Part::Handler => Duration::ZERO,
                Part::FailedHook => BEHIND_THE_END,
            };
            let is_over = cut_since.is_some_and(|since| is_late(since + more));
            if turn.deadline.is_some_and(is_late) {
                self.give_up(turn, "it ran longer than its timeout", *blocked_for);
                self.turns.is_overdue.store(true, Ordering::Relaxed);
                code = Some(StopReason::TimedOut.exit_code());
            } else if is_over {
                self.give_up(turn, "the stop deadline has passed", *blocked_for);
                code = code.or(Some(StopReason::Interrupted.exit_code()));
            }
        }
        code
    }

    /// Whether no more jobs can end, given which of the runtimes are not heard from.
    ///
    /// Without its own runtime the worker settles no job; without the other, jobs of light handlers and of PHP go on.
    fn is_nothing_left(&self, [own, threads]: [bool; 2]) -> bool {
        if self.turns.have_hook_within_its_time(own || threads) {
            return false;
        }
        let polled = self.turns.polled();
        // A handler that is within its time may give its thread back.
        let is_blocked = |is_silent: bool, needs_thread| {
            is_silent && !(self.running).has_one_within_its_time(&polled, needs_thread)
        };
        is_blocked(own, false) || self.running.are_given_up(is_blocked(threads, true))
    }

    fn give_up(&self, turn: &Turn, why: &str, blocked_for: Duration) {
        let (is_new, becomes) = match turn.part {
            Part::Handler => {
                let is_new = self.running.give_up(turn.number);
                (is_new, "the job stays reserved until `retry_after`")
            }
            Part::FailedHook => {
                let is_new = !turn.is_given_up.swap(true, Ordering::Relaxed);
                (
                    is_new,
                    "the job has failed, and its `failed` hook does not end",
                )
            }
        };
        if !is_new {
            return;
        }
        tracing::error!(
            job.uuid = uuid(turn),
            job.class = &*turn.info.payload.shown_name(),
            attempts = turn.info.attempts,
            ?blocked_for,
            why,
            becomes,
            "a handler blocks its thread and cannot be ended; the process ends"
        );
    }

    /// Wakes runtimes that were not heard from; says which of them count as blocked.
    fn nudge(&self, nudges: &mut [JoinSet<()>; 2]) -> [bool; 2] {
        let tick = self.turns.tick.load(Ordering::Relaxed);
        let mut silent = [false; 2];
        let runtimes = self.runtimes.iter().zip(&self.turns.alive);
        for (((runtime, alive), nudges), is_silent) in runtimes.zip(nudges).zip(&mut silent) {
            while nudges.try_join_next().is_some() {}
            let silent_for = tick.saturating_sub(alive.load(Ordering::Relaxed));
            // While every thread is blocked the tasks stay, so their number is limited.
            if silent_for > QUIET && nudges.len() < MOST_NUDGES {
                nudges.spawn_on(async {}, runtime);
            }
            *is_silent = silent_for > SILENT;
        }
        silent
    }
}

impl Memory {
    fn note_orders(&mut self, orders: Orders, grace: Option<Duration>, now: Instant) {
        if orders.quit {
            self.told_to_quit.get_or_insert(now);
        }
        let deadline = self.told_to_quit.zip(grace);
        let is_over = deadline.is_some_and(|(since, grace)| now >= since + grace);
        if orders.hurry || is_over {
            self.cut_since.get_or_insert(now);
        }
    }

    /// Names handlers that block in the log, once per class.
    fn name(&mut self, blocked: &[(Arc<Turn>, Duration)]) {
        for (turn, blocked_for) in blocked {
            let name = turn.info.payload.shown_name();
            if self.named.len() < MOST_NAMES && self.named.insert(name.as_ref().into()) {
                tracing::warn!(
                    job.uuid = uuid(turn),
                    job.class = &*name,
                    ?blocked_for,
                    "a handler blocks a thread that other jobs need, so that it cannot be timed out or cut short: make it with `handler::blocking`, or let it await what it waits for"
                );
            }
        }
    }
}

fn uuid(turn: &Turn) -> Option<&str> {
    turn.info.payload.uuid.as_ref().map(JobUuid::bounded)
}

#[cfg(test)]
mod tests;
