//! State that the pool and its members share, and the two ends of a job that a member runs.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::message::PoolMessage;
use crate::handler::JobInfo;

/// How long members may take to end: longer than they let their processes live.
const ENDING: Duration = Duration::from_secs(10);

/// How to start the members of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The PHP program, and arguments to put before artisand's own.
    pub php: Vec<String>,
    /// The app's directory, as PHP sees it.
    pub app: PathBuf,
    /// The app's environment (`--env`), if one was named.
    pub env: Option<String>,
    /// Name of the queue connection whose jobs are run, as the app names it.
    pub connection: String,
    /// The queues, separated by commas.
    pub queue: String,
    /// How many members there are.
    pub processes: NonZeroUsize,
    /// Pause of a member after each job.
    pub rest: Duration,
    /// How long a member runs jobs before it is replaced.
    pub max_time: Option<Duration>,
    /// Laravel's class of the failed-job store that this worker writes itself; PHP writes all other stores.
    pub failer: Option<&'static str>,
    /// Properties of Laravel's `WorkerOptions`, by name.
    pub worker: serde_json::Map<String, serde_json::Value>,
    /// How long the app may take to boot.
    pub boot: Duration,
    /// How long a job stays reserved if its reservation is not renewed.
    pub retry_after: Option<Duration>,
    /// Whether the pool runs a single job, which the app's listeners of Laravel's `Looping` cannot prevent.
    pub once: bool,
}

/// State shared by the pool and its members.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: PoolOptions,
    /// What a helper is asked; `None` for members that run jobs.
    pub(super) requests: Option<Requests>,
    /// Members that wait for a job or are about to; the first offered is in front.
    pub(super) waiting: Mutex<VecDeque<IdleMember>>,
    /// Counts changes of `waiting`, so that tasks can wait for one.
    pub(super) changes: watch::Sender<u64>,
    pub(super) health: Mutex<Health>,
    /// Members that the app does not let work.
    pub(super) paused: Arc<AtomicUsize>,
    /// Cancelled when no more processes may be started.
    pub(super) is_closing: CancellationToken,
    /// The last signal that told this worker to end.
    pub(super) signals: watch::Sender<Option<Signal>>,
    /// Cancelled when all members have to end; jobs run on until then.
    pub(super) stop: CancellationToken,
    pub(super) members: tokio::sync::Mutex<JoinSet<()>>,
}

/// The health of the members.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// How many members failed to boot at their last try.
    pub(super) broken: usize,
    /// How many of those failed while a Redis server was away, which may be the reason.
    pub(super) excused: usize,
    /// The error message of the last failure.
    pub(super) problem: String,
    /// How many members have booted the app and run jobs or wait for them.
    pub(super) serving: usize,
    /// How many boots of any member have succeeded since the start.
    pub(super) booted: u64,
    /// How many processes had to be replaced, by the reason: one of [`REASONS`].
    pub(super) restarts: BTreeMap<&'static str, u64>,
    /// The versions that the last booted member reported.
    pub(super) versions: Versions,
}

/// What has become of a process that had booted the app.
pub(super) struct Served {
    /// How many jobs or requests it was given.
    pub(super) count: u64,
    /// Whether it ended while it ran one of these jobs.
    pub(super) is_in_job: bool,
    /// How it ended, if that is known.
    pub(super) status: Option<ExitStatus>,
    /// The exit status that the app has set for a process beyond its memory limit.
    pub(super) memory: Option<i32>,
}

/// Why a process of the pool was replaced, as metrics name it.
pub(super) const REASONS: [&str; 7] = [
    "boot", "crashed", "ended", "jobs", "killed", "memory", "time",
];

/// The exit status of Laravel's worker when its memory limit is exceeded, unless the app sets another.
const MEMORY: i32 = 12;

impl PoolOptions {
    /// Why a process ended: one of [`REASONS`].
    pub(super) fn reason(&self, served: &Served, lived: Duration) -> &'static str {
        let Some(status) = served.status else {
            return "crashed";
        };
        let has_done_all = (self.max_jobs()).is_some_and(|most| served.count >= most);
        let is_old = self.max_time.is_some_and(|most| lived >= most);
        match status.code() {
            Some(_) if served.is_in_job => "crashed",
            Some(0) if has_done_all => "jobs",
            Some(0) if is_old => "time",
            Some(0) => "ended",
            Some(code) if code == served.memory.unwrap_or(MEMORY) => "memory",
            None if status.signal() == Some(Signal::KILL.as_raw()) => "killed",
            _ => "crashed",
        }
    }

    /// After how many jobs a member ends.
    pub(super) fn max_jobs(&self) -> Option<u64> {
        let most = self.worker.get("maxJobs")?.as_u64()?;
        (most > 0).then_some(most)
    }
}

/// The versions of the software that runs the jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// The app's framework.
    pub laravel: String,
    /// PHP.
    pub php: String,
}

/// A member that waits for a job, or is about to. Dropping it leaves the member waiting.
#[derive(Debug)]
pub struct IdleMember(oneshot::Sender<Assignment>);

/// A job on its way to a member.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) info: Arc<JobInfo>,
    pub(super) reserved: Arc<[u8]>,
    /// The time before which no other worker can have the job; `None` if the reservation does not expire.
    pub(super) lease: Option<Instant>,
    pub(super) said: mpsc::Sender<PoolMessage>,
    /// Whether the end that the member reported, and waits for, was settled.
    pub(super) answers: mpsc::UnboundedReceiver<bool>,
    pub(super) kill: CancellationToken,
    /// When the member was given the job; before that it may have been busy.
    pub(super) begun: Arc<OnceLock<Instant>>,
}

/// A job that a member runs. Dropping it kills the member.
#[derive(Debug)]
pub struct Run {
    said: mpsc::Receiver<PoolMessage>,
    answers: mpsc::UnboundedSender<bool>,
    kill: CancellationToken,
    begun: Arc<OnceLock<Instant>>,
    guard: Option<DropGuard>,
}

impl Shared {
    pub(super) fn new(options: PoolOptions, requests: Option<Requests>) -> Self {
        Self {
            options,
            requests,
            waiting: Mutex::default(),
            changes: watch::Sender::new(0),
            health: Mutex::default(),
            paused: Arc::default(),
            is_closing: CancellationToken::new(),
            signals: watch::Sender::default(),
            stop: CancellationToken::new(),
            members: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<IdleMember>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error message of the last boot that failed, while a member is unable to boot.
    pub(super) fn last_problem(&self) -> Option<String> {
        let health = self.health();
        (health.broken > 0).then(|| health.problem.clone())
    }

    /// Notes why a process has to be replaced; nothing if none will be.
    pub(super) fn note_end(&self, reason: &'static str) {
        if !self.is_closing.is_cancelled() {
            *self.health().restarts.entry(reason).or_default() += 1;
        }
    }

    /// Ends all members, and waits for the ends of their processes, but not for ever.
    pub(super) async fn end_members(&self) {
        self.is_closing.cancel();
        self.stop.cancel();
        let mut members = self.members.lock().await;
        let ended = async { while members.join_next().await.is_some() {} };
        if tokio::time::timeout(ENDING, ended).await.is_err() {
            tracing::error!(
                processes = members.len(),
                "PHP processes do not end although they are killed: they hang in the system, and are left to it"
            );
            members.abort_all();
        }
    }

    pub(super) fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Offers a member to the tasks that have jobs.
    pub(super) fn offer(&self) -> Offer {
        let (idle, assigned) = oneshot::channel();
        self.waiting().push_back(IdleMember(idle));
        self.changed();
        Offer(assigned)
    }
}

/// How a request ended.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cli"),
    expect(dead_code, reason = "only `queue:work` starts helpers")
)]
pub enum Answer {
    /// The process has answered.
    Given(serde_json::Value),
    /// It died, hung or could not start.
    Missing {
        /// How many parts of the request the process had reported as done.
        done: u64,
    },
}

/// A request on its way to the process.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) line: Vec<u8>,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The process's end of the requests.
#[derive(Debug)]
pub(super) struct Requests {
    /// What it serves, for its title.
    pub(super) serves: &'static str,
    pub(super) waiting: tokio::sync::Mutex<mpsc::Receiver<Request>>,
}

/// Counts as a pausing member until it is dropped.
#[derive(Debug)]
pub(super) struct Pause(Arc<AtomicUsize>);

impl Pause {
    pub(super) fn new(paused: &Arc<AtomicUsize>) -> Self {
        paused.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(paused))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The member's end of a [`IdleMember`]. Dropping it withdraws the offer and declines a job that was assigned.
#[derive(Debug)]
pub(super) struct Offer(pub(super) oneshot::Receiver<Assignment>);

impl Offer {
    /// An offer to which this job is assigned already.
    pub(super) fn of(assignment: Assignment) -> Self {
        let (idle, assigned) = oneshot::channel();
        // The other end is here.
        let _ = idle.send(assignment);
        Self(assigned)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.close();
        if let Ok(assignment) = self.0.try_recv() {
            // This is the first message, so the channel has room. The receiver may be dropped.
            let _ = assignment.said.try_send(PoolMessage::Declined);
        }
    }
}

impl IdleMember {
    /// Whether the member has ended or withdrawn its offer.
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_closed()
    }

    /// Assigns a job to the member; `None` if the member has ended meanwhile.
    ///
    /// `reserved` is the job's entry in Redis' sorted set, which PHP needs if this worker is gone when the job
    /// ends. The member does not begin the job at `lease` or later, when another worker may have it.
    pub fn run(self, info: Arc<JobInfo>, reserved: &[u8], lease: Option<Instant>) -> Option<Run> {
        let (said, heard) = mpsc::channel(64);
        let (answers, answered) = mpsc::unbounded_channel();
        let kill = CancellationToken::new();
        let assignment = Assignment {
            info,
            reserved: reserved.into(),
            lease,
            said,
            answers: answered,
            kill: kill.clone(),
            begun: Arc::default(),
        };
        let begun = Arc::clone(&assignment.begun);
        self.0.send(assignment).ok()?;
        Some(Run {
            said: heard,
            answers,
            begun,
            guard: Some(kill.clone().drop_guard()),
            kill,
        })
    }
}

impl Run {
    /// The next message from PHP; `None` when the attempt is over.
    ///
    /// # Cancel safety
    ///
    /// No message is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<PoolMessage> {
        let said = self.said.recv().await;
        let is_over = matches!(
            said,
            None | Some(PoolMessage::Done | PoolMessage::Declined | PoolMessage::Ended(_))
        );
        if is_over && let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        said
    }

    /// When the member was given the job; `None` if it was not.
    pub fn began(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Tells PHP whether the end that it waits for was settled: PHP then continues behind it, or throws.
    pub fn answer(&self, is_settled: bool) {
        // PHP waits for each, so there are never many. A process that has ended does not need it.
        let _ = self.answers.send(is_settled);
    }

    /// Kills the process; messages it sent before can still be read.
    pub fn kill(&self) {
        self.kill.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_a_replacement_is_what_laravel_or_the_system_ended_it_for() {
        let mut worker = serde_json::Map::new();
        worker.insert("maxJobs".to_owned(), 10.into());
        let options = PoolOptions {
            max_time: Some(Duration::from_secs(60)),
            worker,
            ..PoolOptions::of(&[])
        };
        let reason_of = |raw: Option<i32>, count, is_in_job, seconds, memory| {
            let status = raw.map(ExitStatus::from_raw);
            let served = Served {
                count,
                is_in_job,
                status,
                memory,
            };
            options.reason(&served, Duration::from_secs(seconds))
        };
        let reason =
            |raw, count, is_in_job, seconds| reason_of(raw, count, is_in_job, seconds, None);

        assert_eq!(reason(Some(0), 10, false, 5), "jobs");
        assert_eq!(reason(Some(0), 9, false, 60), "time");
        assert_eq!(reason(Some(0), 9, false, 5), "ended");
        assert_eq!(reason(Some(0), 10, true, 5), "crashed");
        assert_eq!(reason(Some(12 << 8), 10, false, 5), "memory");
        assert_eq!(reason(Some(1 << 8), 10, false, 5), "crashed");
        assert_eq!(reason(Some(11), 1, false, 5), "crashed");
        assert_eq!(reason(Some(9), 10, true, 60), "killed");
        assert_eq!(reason(None, 10, false, 0), "crashed");
        assert_eq!(reason_of(Some(99 << 8), 9, false, 5, Some(99)), "memory");
        assert_eq!(reason_of(Some(12 << 8), 9, false, 5, Some(99)), "crashed");
        assert_eq!(reason_of(Some(0), 9, false, 5, Some(0)), "ended");
    }

    #[test]
    fn a_limit_of_no_jobs_is_none() {
        let mut options = PoolOptions::of(&[]);
        options.worker.insert("maxJobs".to_owned(), 0.into());

        assert_eq!(options.max_jobs(), None);
    }
}
