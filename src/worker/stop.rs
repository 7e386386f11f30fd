//! Why and how a worker stops: signals, limits, and what its process reports.

use std::convert::Infallible;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::heartbeat::Heartbeat;

/// How long what follows the end of a job may continue at the stop deadline: a `failed` hook, and in PHP also a batch
/// or a chain. No other worker would do it again.
pub(crate) const BEHIND_THE_END: Duration = Duration::from_secs(10);

/// How long a worker that is told to quit waits for a server that does not answer; for ends of jobs there is one last
/// chance after that.
pub(super) const SERVER_AWAY: Duration = Duration::from_secs(5);

/// Why a worker stopped.
///
/// # Source
///
/// `Illuminate\Queue\WorkerStopReason`; descriptions as Laravel 13.31 prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// SIGTERM, SIGINT or SIGQUIT.
    Interrupted,
    /// `--memory` is exceeded.
    MemoryLimit,
    /// The app asked its workers to restart.
    RestartSignal,
    /// `--stop-when-empty`, or `--once`.
    QueueEmpty,
    /// `--stop-when-empty-for` has passed.
    QueueEmptyFor,
    /// `--max-time` has passed.
    MaxTime,
    /// `--max-jobs` were begun.
    MaxJobs,
    /// A blocking handler did not return after its timeout.
    TimedOut,
    /// The queue could not be reached, and the worker was asked to run only until it is empty.
    LostConnection,
    /// No PHP process could be started, and the worker was asked to run only until the queue is empty.
    NoPhp,
    /// The task that settles jobs has panicked.
    SettlingFailed,
}

impl StopReason {
    /// Laravel's short name, as in `--json` output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::MemoryLimit => "memory",
            Self::RestartSignal => "restart_signal",
            Self::QueueEmpty => "empty",
            Self::QueueEmptyFor => "empty_for",
            Self::MaxTime => "max_time",
            Self::MaxJobs => "max_jobs",
            Self::TimedOut => "timed_out",
            Self::LostConnection => "lost_connection",
            Self::NoPhp => "no_php",
            Self::SettlingFailed => "settling_failed",
        }
    }

    /// Laravel's description for people.
    pub fn description(self) -> &'static str {
        match self {
            Self::Interrupted => "Interrupted",
            Self::MemoryLimit => "Memory limit exceeded",
            Self::RestartSignal => "Received restart signal",
            Self::QueueEmpty => "Queue empty",
            Self::QueueEmptyFor => "Queue empty for the configured duration",
            Self::MaxTime => "Maximum run time exceeded",
            Self::MaxJobs => "Maximum jobs exceeded",
            Self::TimedOut => "Job timed out",
            Self::LostConnection => "Lost connection",
            Self::NoPhp => "No PHP process could be started",
            Self::SettlingFailed => "The end of a job could not be written down",
        }
    }

    /// Exit code of the process: Laravel's, if it has one.
    ///
    /// 12 for the memory limit; 137 after a timeout, as Laravel's worker then kills itself; 1 if the queue could
    /// not be reached or settling failed. Laravel reports a lost queue as 0, as if the queue had been empty.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::MemoryLimit => 12,
            Self::TimedOut => 137,
            Self::LostConnection | Self::NoPhp | Self::SettlingFailed => 1,
            _ => 0,
        }
    }
}

impl From<StopReason> for ExitCode {
    fn from(reason: StopReason) -> Self {
        Self::from(reason.exit_code())
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

/// Orders to a worker from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an order of its own")]
pub struct Orders {
    /// Pop no more jobs, finish the running ones, stop.
    pub quit: bool,
    /// Stop now, without waiting for running jobs.
    pub hurry: bool,
    /// The order to quit is a person's, who can press Ctrl-C again to hurry.
    pub is_interrupted: bool,
    /// Pop no more jobs until resumed.
    pub paused: bool,
}

/// Gives orders to a worker.
#[derive(Debug, Clone)]
pub struct Control {
    orders: watch::Sender<Orders>,
    /// The last signal that told the process to quit.
    signals: watch::Sender<Option<Signal>>,
    /// The exit code for a process that cannot end by itself.
    abandoned: watch::Sender<Option<u8>>,
    heartbeat: Heartbeat,
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Control {
    /// A control that has given no order.
    pub fn new() -> Self {
        Self {
            orders: watch::Sender::default(),
            signals: watch::Sender::default(),
            abandoned: watch::Sender::new(None),
            heartbeat: Heartbeat::default(),
        }
    }

    /// Asks for a stop after the running jobs.
    pub fn quit(&self) {
        self.orders.send_modify(|orders| orders.quit = true);
    }

    /// Asks for a stop after the running jobs, on the first Ctrl-C.
    fn interrupt(&self) {
        self.orders.send_modify(|orders| {
            orders.is_interrupted |= !orders.quit;
            orders.quit = true;
        });
    }

    /// Asks for a stop without waiting for running jobs, which are released.
    pub fn hurry(&self) {
        self.orders.send_modify(|orders| {
            orders.quit = true;
            orders.hurry = true;
        });
    }

    /// Pauses or resumes the worker.
    pub fn pause(&self, paused: bool) {
        self.orders
            .send_if_modified(|orders| std::mem::replace(&mut orders.paused, paused) != paused);
    }

    /// Signs of life of the worker's loop.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Whether a stop order was given.
    pub fn is_told_to_quit(&self) -> bool {
        self.orders.borrow().quit
    }

    /// Waits for a stop order.
    pub async fn told_to_quit(&self) {
        let mut orders = self.subscribe();
        // `self` holds the sender, so the wait cannot fail.
        let _ = orders.wait_for(|orders| orders.quit).await;
    }

    /// The signals that told the process to quit.
    pub(super) fn signals(&self) -> watch::Receiver<Option<Signal>> {
        self.signals.subscribe()
    }

    /// Waits until a handler blocks the worker for good, beyond a deadline; returns the exit code for the process.
    ///
    /// Wait for it on a thread that runs no handlers, and end the process then.
    /// Only for workers [with an overseer](super::Worker::with_overseer).
    pub async fn abandoned(&self) -> u8 {
        let mut abandoned = self.abandoned.subscribe();
        match abandoned.wait_for(Option::is_some).await.map(|code| *code) {
            Ok(Some(code)) => code,
            // `self` holds the sender, so this is never reached.
            _ => std::future::pending().await,
        }
    }

    /// Reports that the worker cannot end by itself.
    pub(super) fn abandon(&self, code: u8) {
        self.abandoned.send_replace(Some(code));
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    /// Obeys the process signals that `queue:work` obeys, until the future is dropped.
    ///
    /// SIGTERM, SIGINT and SIGQUIT quit, and running jobs finish. A second SIGINT a second or more after the first
    /// hurries, as a waiting person presses Ctrl-C again. Earlier ones, and further signals to quit, change
    /// nothing: process groups and wrappers deliver signals twice. SIGUSR2 pauses and SIGCONT resumes.
    ///
    /// Signals are caught from this call on, and obeyed while the future is awaited. Call it in a runtime.
    ///
    /// # Errors
    ///
    /// A signal handler cannot be installed.
    pub fn obey_signals(&self) -> std::io::Result<impl Future<Output = Infallible> + Send + use<>> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut pause = signal(SignalKind::user_defined2())?;
        let mut resume = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
        let (control, mut interrupts) = (self.clone(), Interrupts::default());
        Ok(async move {
            loop {
                let order = tokio::select! {
                    _ = terminate.recv() => Order::Quit(Signal::TERM),
                    _ = quit.recv() => Order::Quit(Signal::QUIT),
                    _ = interrupt.recv() => Order::Interrupt,
                    _ = pause.recv() => Order::Pause(true),
                    _ = resume.recv() => Order::Pause(false),
                };
                let signal = match order {
                    Order::Quit(signal) => Some(signal),
                    Order::Interrupt => Some(Signal::INT),
                    Order::Pause(_) => None,
                };
                match order {
                    Order::Interrupt if interrupts.note(Instant::now()) => control.hurry(),
                    Order::Interrupt => control.interrupt(),
                    Order::Quit(_) => control.quit(),
                    Order::Pause(paused) => control.pause(paused),
                }
                // Sent after the order: processes that end by the signal must not be replaced.
                if signal.is_some() {
                    control.signals.send_replace(signal);
                }
            }
        })
    }
}

/// Distinguishes a person's second SIGINT from one signal delivered twice.
#[derive(Debug, Default)]
struct Interrupts {
    first: Option<Instant>,
}

impl Interrupts {
    /// How long after the first one a second SIGINT counts.
    const APART: Duration = Duration::from_secs(1);

    /// Remembers the first SIGINT; true if this is a second one that counts.
    fn note(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) >= Self::APART
    }
}

enum Order {
    Quit(Signal),
    Interrupt,
    Pause(bool),
}

/// Resident memory of this process in bytes; `None` if the system does not report it.
pub fn resident_memory() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * u64::try_from(rustix::param::page_size()).ok()?)
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
pub(super) async fn told_to_hurry(orders: &mut watch::Receiver<Orders>) {
    while !orders.borrow_and_update().hurry {
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sigint_that_comes_at_once_again_is_the_same_one() {
        let (mut interrupts, start) = (Interrupts::default(), Instant::now());
        // Milliseconds after the first, and whether it is the second press of a person.
        let rows = [
            (0, false),
            (3, false),
            (999, false),
            (1000, true),
            (1500, true),
        ];
        for (after, is_second) in rows {
            let now = start + Duration::from_millis(after);
            assert_eq!(interrupts.note(now), is_second, "{after} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_person_who_has_not_been_obeyed_yet_is_offered_to_hurry() {
        let control = Control::new();
        let mut orders = control.subscribe();
        control.interrupt();
        assert!(orders.borrow_and_update().is_interrupted);
        // A process manager's SIGTERM came first: the Ctrl-C of its process group is no wish of a person.
        let control = Control::new();
        let mut orders = control.subscribe();
        control.quit();
        control.interrupt();
        let now = *orders.borrow_and_update();
        assert!(now.quit && !now.is_interrupted && !now.hurry);
        control.hurry();
        assert!(orders.borrow_and_update().hurry);
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_with_its_own_order() {
        let second = Duration::from_secs(1);
        let control = Control::new();
        let (mut quit, mut hurry) = (control.subscribe(), control.subscribe());
        let told = async |wait: std::pin::Pin<&mut (dyn Future<Output = ()> + Send)>| {
            tokio::time::timeout(second, wait).await.is_ok()
        };
        control.pause(true);
        assert!(!told(std::pin::pin!(told_to_quit(&mut quit))).await);
        assert!(!told(std::pin::pin!(control.told_to_quit())).await);
        control.quit();
        assert!(told(std::pin::pin!(told_to_quit(&mut quit))).await);
        assert!(told(std::pin::pin!(control.told_to_quit())).await);
        assert!(!told(std::pin::pin!(told_to_hurry(&mut hurry))).await);
        control.hurry();
        assert!(told(std::pin::pin!(told_to_hurry(&mut hurry))).await);
        // The control is gone: no order can come, and no wait ends.
        let control = Control::new();
        let (mut quit, mut hurry) = (control.subscribe(), control.subscribe());
        drop(control);
        assert!(!told(std::pin::pin!(told_to_quit(&mut quit))).await);
        assert!(!told(std::pin::pin!(told_to_hurry(&mut hurry))).await);
    }

    #[test]
    fn an_order_to_pause_that_changes_nothing_wakes_nothing() {
        let control = Control::new();
        let mut orders = control.subscribe();
        orders.borrow_and_update();
        control.pause(false);
        assert!(!orders.has_changed().unwrap());
        control.pause(true);
        assert!(orders.has_changed().unwrap());
    }

    #[test]
    fn a_supervisor_reads_laravels_exit_codes_and_names() {
        use StopReason::{
            Interrupted, LostConnection, MaxJobs, MaxTime, MemoryLimit, NoPhp, QueueEmpty,
            QueueEmptyFor, RestartSignal, SettlingFailed, TimedOut,
        };
        #[rustfmt::skip]
        let rows = [
            (Interrupted,   "interrupted",    0), (MemoryLimit,    "memory",          12),
            (RestartSignal, "restart_signal", 0), (QueueEmpty,     "empty",           0),
            (QueueEmptyFor, "empty_for",      0), (MaxTime,        "max_time",        0),
            (MaxJobs,       "max_jobs",       0), (TimedOut,       "timed_out",       137),
            // Laravel says 0 here, as if the queue had been empty.
            (LostConnection, "lost_connection", 1), (NoPhp,        "no_php",          1),
            (SettlingFailed, "settling_failed", 1),
        ];
        for (reason, name, code) in rows {
            assert_eq!((reason.as_str(), reason.exit_code()), (name, code));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_cannot_end_by_itself_is_told_its_exit_code() {
        let control = Control::new();
        let mut waits = std::pin::pin!(control.abandoned());
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        control.clone().abandon(137);
        assert_eq!(waits.await, 137);
    }
}
