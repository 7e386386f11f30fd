//! One place of the pool: it keeps a PHP process running and replaces the process when it has ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, SOCKET, STUB};
use super::message::{Booted, PoolMessage};
use super::output::{Lines, Log};
use super::shared::{Assignment, Offer, Pause, Served, Shared, Versions};
use crate::connection::{check_for_outage, servers_away};
use crate::handler::JobInfo;
use crate::process::child::ProcessGroup;
use crate::shown::{rounded, short};
use crate::time::sleep_until;

/// How long to read on after a process has ended: processes it started may hold its pipes open.
const LINGER: Duration = Duration::from_millis(200);
/// How long a process may take to end after it was asked to.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long PHP may run on after this worker is gone, to write down the result of its last job.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Waits between attempts to boot the app.
const SHORTEST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A process that ends sooner than this, without a job, counts as one that failed to boot.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// A process offered early must take its next job within this time after the last one ended.
const SOON: Duration = Duration::from_millis(100);
/// How long a waiting process may take to begin a job that was sent to it.
const TAKING: Duration = Duration::from_secs(3);
/// Jobs larger than this are not sent before the process waits: they may not fit into the socket.
const SMALL: usize = 64 << 10;
/// Pieces of output that are read before other events are handled.
const MOST_PRINTS: u32 = 64;

/// Keeps a place of the pool filled until the pool stops.
pub(super) async fn keep(pool: Arc<Shared>) {
    let mut failed = Failed::new(&pool);
    let mut away = servers_away();
    while !pool.is_closing.is_cancelled() {
        let was_away = *away.borrow_and_update() > 0;
        let started = Instant::now();
        let problem = match Member::boot(&pool).await {
            Ok(Some(member)) => {
                failed.note_boot();
                pool.health().serving += 1;
                let booted = Instant::now();
                let served = match &pool.requests {
                    Some(requests) => member.help(&pool, requests).await,
                    None => member.serve(&pool).await,
                };
                pool.health().serving -= 1;
                pool.note_end(pool.options.reason(&served, started.elapsed()));
                if served.count > 0 || booted.elapsed() >= SHORTEST_LIFE {
                    failed.times = 0;
                    continue;
                }
                "it ended right after it had booted the app".to_owned()
            }
            Ok(None) => return,
            Err(problem) => {
                pool.note_end("boot");
                problem
            }
        };
        if pool.is_closing.is_cancelled() {
            return;
        }
        let is_excused = was_away || check_for_outage().await;
        let wait = failed.note(&problem, is_excused);
        let retry_in = rounded(wait);
        if is_excused {
            // Apps ask Redis while they boot. That it is away is logged once, by its connection.
            tracing::debug!(
                error = problem,
                ?retry_in,
                "a PHP process of the pool could not start while Redis is away"
            );
        } else {
            tracing::error!(
                error = problem,
                ?retry_in,
                "a PHP process of the pool could not start"
            );
        }
        pool.changed();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // The sender is never dropped.
            _ = away.wait_for(|away| *away == 0), if is_excused => failed.times = 0,
            () = pool.is_closing.cancelled() => {}
        }
    }
}

/// The failures of a place of the pool to start a process, as the pool's health counts them.
struct Failed<'a> {
    pool: &'a Shared,
    /// Failures in a row.
    times: u32,
    is_broken: bool,
    is_excused: bool,
}

impl<'a> Failed<'a> {
    fn new(pool: &'a Shared) -> Self {
        Self {
            pool,
            times: 0,
            is_broken: false,
            is_excused: false,
        }
    }

    /// Notes a failure; returns how long to wait before the next attempt.
    fn note(&mut self, problem: &str, is_excused: bool) -> Duration {
        self.times = self.times.saturating_add(1);
        self.count(true, is_excused);
        problem.clone_into(&mut self.pool.health().problem);
        let longest =
            (SHORTEST_WAIT * 2_u32.saturating_pow(self.times.min(16) - 1)).min(LONGEST_WAIT);
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    fn note_boot(&mut self) {
        self.count(false, false);
    }

    fn count(&mut self, is_broken: bool, is_excused: bool) {
        let change = |count: &mut usize, was: &mut bool, is: bool| {
            *count = *count + usize::from(is) - usize::from(std::mem::replace(was, is));
        };
        let mut health = self.pool.health();
        change(&mut health.broken, &mut self.is_broken, is_broken);
        change(&mut health.excused, &mut self.is_excused, is_excused);
    }
}

/// A PHP process that has booted the app, or is booting it.
pub(super) struct Member {
    child: Child,
    pub(super) group: ProcessGroup,
    pub(super) channel: Channel,
    stdout: Stream<ChildStdout>,
    stderr: Stream<ChildStderr>,
    pub(super) log: Log,
    /// Pieces of output read since another event was handled.
    prints: u32,
    /// How the process reacts to signals that tell it to end.
    signals: Signals,
    /// Its exit status beyond the memory limit, if the app has set one.
    memory: Option<i32>,
    /// It was sent a signal that tells it to end.
    is_told: bool,
    /// The process has reported that it waits, and was given no job since.
    is_ready: bool,
    /// The job that was sent before the process was heard to be done with the last one.
    ahead: Option<GivenJob>,
    /// A message about it that was heard while the job before still counted as running.
    heard: Option<PoolMessage>,
    /// Jobs given to the process so far, and how many they were when it last printed something.
    pub(super) count: u64,
    printed: Option<u64>,
    /// Whether to offer the process early: jobs have no pause between them, and no early offer was withdrawn yet.
    comes_soon: bool,
    /// Set while the app does not let the process work, as far as it has reported.
    pause: Option<Pause>,
}

/// How a process reacts to signals that tell it to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signals {
    /// A signal kills it at once, or it was signalled already.
    Unheard,
    /// SIGTERM ends it after its job.
    Heard,
    /// It ends after its job on all signals that Laravel handles, and passes them on to the job.
    PassedOn,
}

/// One of the two streams of a process, read for the log.
struct Stream<R> {
    name: &'static str,
    /// `None` after the end of the stream.
    pipe: Option<R>,
    buffer: Box<[u8]>,
    lines: Lines,
}

/// The offer of a process that does not wait yet, and when that offer is withdrawn.
type Early = Option<(Offer, Instant)>;

/// A job that was given to a process.
struct GivenJob {
    info: Arc<JobInfo>,
    said: mpsc::Sender<PoolMessage>,
    answers: mpsc::UnboundedReceiver<bool>,
    kill: CancellationToken,
    /// The latest time at which the process begins the job; one that asked for it and has not taken it is killed then.
    until: Instant,
    /// It was sent before the process asked for it.
    was_ahead: bool,
    /// The process had not begun to read it by then, and the job was not sent whole.
    is_cut_off: bool,
    /// It is the last job of the process, by `maxJobs`.
    is_last: bool,
}

/// The result of waiting for a job.
enum Waited {
    Job(Assignment),
    /// The process no longer waits, and will report when it does.
    NotYet,
    /// The process is to end.
    Stop,
    /// The process has ended.
    Gone,
}

/// What follows when the attempt of a job is over.
enum After {
    /// The process runs the next job, or ends by itself.
    Next,
    /// It has ended: in the job, or before it began with it.
    End { is_in_job: bool },
}

/// An event of a process.
pub(super) enum ProcessEvent {
    Message(PoolMessage),
    /// It closed the socket, or sent a line that is not part of the protocol.
    Silent(Option<std::io::Error>),
    Output,
    Exited(Option<ExitStatus>),
}

impl Member {
    /// Starts a process and waits until it is ready; `None` if the pool stopped first.
    async fn boot(pool: &Shared) -> Result<Option<Self>, String> {
        let mut member = Self::spawn(pool)?;
        let deadline = Instant::now() + pool.options.boot;
        if let Err(error) = member.channel.begin(settings(pool)).await {
            // The process ended before it had read everything; its messages below say why.
            tracing::debug!(%error, "a PHP process did not read its script");
        }
        loop {
            let did = tokio::select! {
                did = member.next_event() => did,
                () = pool.is_closing.cancelled() => return Ok(None),
                () = tokio::time::sleep_until(deadline) => {
                    let limit = pool.options.boot;
                    return Err(format!("it did not boot the app within {limit:?}{}", member.printed()));
                }
            };
            match did {
                ProcessEvent::Message(PoolMessage::Booted(booted)) => {
                    member.channel.note_clock(booted.clock);
                    tracing::debug!(
                        php.process = member.log.process,
                        php.version = booted.php.as_str(),
                        laravel = booted.laravel.as_str(),
                        "a PHP process of the pool has booted the app"
                    );
                    member.group.signals_are_for(booted.pid);
                    member.memory = booted.memory;
                    member.signals = match booted {
                        Booted {
                            interruptible: true,
                            ..
                        } => Signals::PassedOn,
                        Booted { signals: true, .. } => Signals::Heard,
                        _ => Signals::Unheard,
                    };
                    let mut health = pool.health();
                    health.booted += 1;
                    health.versions = Versions {
                        laravel: booted.laravel,
                        php: booted.php,
                    };
                    drop(health);
                    pool.changed();
                    return Ok(Some(member));
                }
                ProcessEvent::Message(PoolMessage::Unbootable { message }) => return Err(message),
                ProcessEvent::Output => {}
                ProcessEvent::Exited(status) => {
                    member.read_rest().await;
                    let printed = member.printed();
                    return Err(format!(
                        "it ended while it booted the app ({}){printed}",
                        words(status)
                    ));
                }
                ProcessEvent::Message(said) => {
                    let said = format!("{said:?}");
                    let said = short(&said);
                    return Err(format!("it said {said} before it had booted the app"));
                }
                ProcessEvent::Silent(error) => {
                    if let Some(error) = error {
                        return Err(format!(
                            "it cannot be understood: {error}{}",
                            member.printed()
                        ));
                    }
                }
            }
        }
    }

    fn spawn(pool: &Shared) -> Result<Self, String> {
        let options = &pool.options;
        let Some((program, args)) = options.php.split_first() else {
            return Err("no PHP program is named".to_owned());
        };
        let (channel, theirs) =
            Channel::pair().map_err(|error| format!("no socket for it: {error}"))?;
        let mut command = Command::new(program);
        command
            .args(args)
            .args(["-d", "display_errors=stderr", "-r", STUB])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if options.app.is_dir() {
            command.current_dir(&options.app);
        }
        let socket = FdMapping {
            parent_fd: theirs,
            child_fd: SOCKET,
        };
        command
            .fd_mappings(vec![socket])
            .map_err(|error| format!("no socket for it: {error}"))?;
        // Its own process group keeps terminal signals from the process: Laravel's worker would end on some of
        // them.
        let spawned = ProcessGroup::spawn(&mut command, last_words(options.retry_after));
        let (mut child, group) = spawned.map_err(|error| {
            format!(
                "could not run `{program}`: {error}; name the app's PHP with `binary` under [php]"
            )
        })?;
        let mut log = Log::default();
        log.process = child.id();
        Ok(Self {
            group,
            channel,
            stdout: Stream::new("stdout", child.stdout.take()),
            stderr: Stream::new("stderr", child.stderr.take()),
            child,
            log,
            prints: 0,
            signals: Signals::Unheard,
            memory: None,
            is_told: false,
            is_ready: false,
            ahead: None,
            heard: None,
            count: 0,
            printed: None,
            comes_soon: pool.options.rest.is_zero(),
            pause: None,
        })
    }

    /// Runs jobs until the process ends.
    async fn serve(mut self, pool: &Shared) -> Served {
        let mut early = None;
        loop {
            let mut given = match self.ahead.take() {
                Some(given) => given,
                None => match self.next_job(&mut early, pool).await {
                    Waited::Job(assignment) => self.give(assignment, None, pool).await,
                    Waited::NotYet => continue,
                    Waited::Stop => {
                        drop(early);
                        return self.end().await;
                    }
                    Waited::Gone => {
                        drop(early);
                        for (said, _) in self.read_rest().await {
                            self.log_problem(&said).await;
                        }
                        return self.served().await;
                    }
                },
            };
            self.channel.moves_on();
            self.log.of(Some(Arc::clone(&given.info)));
            let after = self.run_job(&mut given, &mut early, pool).await;
            self.flush();
            self.log.of(None);
            if let After::End { is_in_job } = after {
                return Served {
                    is_in_job,
                    ..self.served().await
                };
            }
        }
    }

    /// Waits for a job that the process can take now.
    async fn next_job(&mut self, early: &mut Early, pool: &Shared) -> Waited {
        let other = if std::mem::take(&mut self.is_ready) {
            None
        } else {
            self.wait_until_ready(early, pool).await
        };
        match other {
            None => self.wait_for_job(early, pool).await,
            Some(other) => other,
        }
    }

    /// Sends a job to the process, which does not begin it after `until` if that is given.
    async fn give(
        &mut self,
        assignment: Assignment,
        until: Option<Instant>,
        pool: &Shared,
    ) -> GivenJob {
        let Assignment {
            info,
            reserved,
            lease,
            said,
            answers,
            kill,
            begun,
        } = assignment;
        self.count += 1;
        let now = Instant::now();
        // Only this task sets it, once per job.
        let _ = begun.set(now);
        let was_ahead = until.is_some();
        let taken_by = lease.map_or(now + TAKING, |lease| lease.min(now + TAKING));
        let until = until.map_or(taken_by, |until| until.min(taken_by));
        let is_last = pool.options.max_jobs() == Some(self.count);
        let soon = self.comes_soon && !is_last && self.is_quiet();
        let queue = info.queue.as_str();
        let written = tokio::select! {
            biased;
            written = self.channel.run(queue, &info.body, &reserved, until, lease, soon) => written,
            // Sending a large job waits for PHP to read it, which may not happen. The two branches below end
            // the wait.
            () = kill.cancelled() => Ok(()),
            () = pool.stop.cancelled() => Ok(()),
            _ = self.child.wait() => Ok(()),
        };
        let mut is_cut_off = false;
        if let Err(error) = written {
            // The rest of the job will not be sent.
            is_cut_off = error.kind() == std::io::ErrorKind::TimedOut;
            // If the process has ended just now, the code that reads its messages notices.
            tracing::debug!(%error, php.process = self.log.process, "a job could not be given to PHP");
        }
        GivenJob {
            info,
            said,
            answers,
            kill,
            until,
            was_ahead,
            is_cut_off,
            is_last,
        }
    }

    /// Waits until the process is ready for a job; it is not ready while the app lets no worker work.
    async fn wait_until_ready(&mut self, early: &mut Early, pool: &Shared) -> Option<Waited> {
        loop {
            let did = tokio::select! {
                biased;
                did = self.next_event() => did,
                () = sleep_until(withdrawal(early)) => {
                    self.withdraw_offer(early);
                    continue;
                }
                () = pool.stop.cancelled() => {
                    if self.signals != Signals::Unheard {
                        // The process may be asleep and not read the socket.
                        self.group.signal(Signal::TERM);
                        self.is_told = true;
                    }
                    return Some(Waited::Stop);
                }
            };
            match did {
                ProcessEvent::Message(PoolMessage::Ready { clock }) => {
                    self.note_turn(clock);
                    // A job that came too late for it may still be there: the process declines it.
                    if self.channel.has_read_all() {
                        return None;
                    }
                }
                ProcessEvent::Message(PoolMessage::Paused) => self.note_pause(pool),
                ProcessEvent::Output => {}
                ProcessEvent::Message(said) => self.log_problem(&said).await,
                ProcessEvent::Exited(status) => {
                    self.log_end(status);
                    return Some(Waited::Gone);
                }
                ProcessEvent::Silent(error) => {
                    if let Some(error) = error {
                        self.log_nonsense(&error);
                    }
                    return Some(Waited::Stop);
                }
            }
        }
    }

    /// Offers the process in the pool, and waits for a job.
    async fn wait_for_job(&mut self, early: &mut Early, pool: &Shared) -> Waited {
        let early = early.take().map(|(offer, _)| offer);
        let mut offer = early.unwrap_or_else(|| pool.offer());
        loop {
            let did = tokio::select! {
                biased;
                // First branch: a job that was assigned must not be lost to the other branches.
                assignment = &mut offer.0 => {
                    if let Ok(assignment) = assignment {
                        return Waited::Job(assignment);
                    }
                    // The offer was taken and dropped without a job.
                    offer = pool.offer();
                    continue;
                }
                did = self.next_event() => did,
                () = pool.stop.cancelled() => return Waited::Stop,
            };
            match did {
                ProcessEvent::Output => {}
                // Dropping the offer declines a job that was assigned in this moment.
                ProcessEvent::Message(PoolMessage::Paused) => {
                    self.note_pause(pool);
                    return Waited::NotYet;
                }
                ProcessEvent::Message(said) => self.log_problem(&said).await,
                ProcessEvent::Exited(status) => {
                    self.log_end(status);
                    drop(offer);
                    pool.changed();
                    return Waited::Gone;
                }
                ProcessEvent::Silent(error) => {
                    if let Some(error) = error {
                        self.log_nonsense(&error);
                    }
                    // The process ends, or has to be ended.
                    drop(offer);
                    pool.changed();
                    return Waited::Stop;
                }
            }
        }
    }

    /// Logs why the process cannot boot, if it reports that.
    pub(super) async fn log_problem(&self, said: &PoolMessage) {
        let PoolMessage::Unbootable { message } = said else {
            return;
        };
        let process = self.log.process;
        if check_for_outage().await {
            tracing::debug!(
                php.process = process,
                error = message,
                "a PHP process of the pool ended while Redis is away"
            );
        } else {
            tracing::error!(
                php.process = process,
                error = message,
                "a PHP process of the pool ended"
            );
        }
    }

    /// Logs the end of a process between two jobs: mostly its limits (jobs, time, memory) or a restart signal.
    pub(super) fn log_end(&self, status: Option<ExitStatus>) {
        let (process, how) = (self.log.process, words(status));
        let signal = status.and_then(|status| status.signal());
        // One that was about to end by itself no longer hears the signal, and ends by it.
        let is_told = self.is_told && signal != Some(Signal::KILL.as_raw());
        if signal.is_some() && !is_told {
            tracing::warn!(
                php.process = process,
                how,
                "a PHP process of the pool was killed"
            );
        } else {
            tracing::debug!(
                php.process = process,
                how,
                "a PHP process of the pool ended"
            );
        }
    }

    pub(super) fn log_nonsense(&self, error: &std::io::Error) {
        tracing::error!(%error, php.process = self.log.process, "a PHP process cannot be understood and is killed");
    }

    /// Forwards PHP's messages about a job until the attempt is over.
    async fn run_job(&mut self, given: &mut GivenJob, early: &mut Early, pool: &Shared) -> After {
        let (said, kill) = (&given.said, &given.kill);
        let mut taken_by = Some(given.until);
        let mut may_send = true;
        let (mut is_killed, mut is_refused) = (false, false);
        let mut signals = pool.signals.subscribe();
        loop {
            let begins_by = self.ahead.as_ref().map(|ahead| ahead.until);
            let (may_send_now, withdrawn_at) = (may_send && self.is_quiet(), withdrawal(early));
            let did = tokio::select! {
                did = self.next_event() => did,
                assignment = assigned(early), if may_send_now => {
                    may_send = self.send_ahead(assignment, early, pool).await;
                    continue;
                }
                () = sleep_until(begins_by) => {
                    if self.has_begun_next() {
                        let _ = said.send(PoolMessage::Done).await;
                        return After::Next;
                    }
                    // From this moment on the process would not begin it any more.
                    self.take_back().await;
                    continue;
                }
                () = sleep_until(withdrawn_at) => {
                    self.withdraw_offer(early);
                    continue;
                }
                Some(is_settled) = given.answers.recv() => {
                    self.answer(is_settled).await;
                    continue;
                }
                Ok(()) = signals.changed(), if self.signals == Signals::PassedOn => {
                    self.pass_on(*signals.borrow_and_update());
                    continue;
                }
                () = sleep_until(taken_by) => {
                    taken_by = None;
                    if self.decline_untaken(given).await { return After::Next; }
                    is_refused = self.kill_if_refused(given);
                    is_killed |= is_refused;
                    continue;
                }
                () = async { tokio::select! { () = kill.cancelled() => {}, () = pool.stop.cancelled() => {} } }, if !is_killed => {
                    if self.has_begun_next() {
                        // What is to be killed is over.
                        let _ = said.send(PoolMessage::Done).await;
                        return After::Next;
                    }
                    is_killed = true;
                    self.group.kill();
                    continue;
                }
            };
            match did {
                // A process that has closed the socket and runs on finishes its job by itself, and then ends.
                ProcessEvent::Output
                | ProcessEvent::Silent(None)
                | ProcessEvent::Message(PoolMessage::Parting) => {}
                ProcessEvent::Message(it) if self.channel.has_moved_on() => {
                    self.pause = self.pause.take().filter(|_| it == PoolMessage::Declined);
                    self.heard = Some(it);
                    let _ = said.send(PoolMessage::Done).await;
                    return After::Next;
                }
                ProcessEvent::Message(PoolMessage::Paused) => self.note_pause(pool),
                ProcessEvent::Message(PoolMessage::Ready { clock }) => {
                    self.note_turn(clock);
                    // Otherwise the process had not read this job when it sent the message.
                    if self.channel.has_read_running() {
                        self.is_ready = self.channel.has_read_all();
                        // Mostly this message alone reports the end of the attempt.
                        let _ = said.send(PoolMessage::Done).await;
                        return After::Next;
                    }
                }
                ProcessEvent::Message(it) => {
                    self.log_problem(&it).await;
                    self.log_delay(&it, given.until);
                    let is_soon = it == (PoolMessage::Deleted { last: true })
                        && self.comes_soon
                        && !is_killed
                        && !given.is_last;
                    let is_over = matches!(it, PoolMessage::Done | PoolMessage::Declined);
                    // The receiver may be dropped.
                    let _ = said.send(it).await;
                    if is_over {
                        return After::Next;
                    }
                    if is_soon {
                        // Only now: the pop then follows the settlement of this job, and both are sent at once.
                        *early = Some((pool.offer(), Instant::now() + SOON));
                    }
                }
                ProcessEvent::Silent(Some(error)) => {
                    self.log_nonsense(&error);
                    is_killed = true;
                    self.group.kill();
                }
                ProcessEvent::Exited(status) => {
                    *early = None;
                    let is_in_job = self.report_end(status, said, is_refused).await;
                    return After::End { is_in_job };
                }
            }
        }
    }

    /// Declines a job that was sent ahead if the process has not taken it; returns whether that was so.
    ///
    /// The process has not asked for it. It may be about to end, for which the app's code may take long.
    async fn decline_untaken(&mut self, given: &GivenJob) -> bool {
        let is_untaken = given.was_ahead && !given.is_cut_off && self.is_untaken();
        if is_untaken {
            self.decline(&given.said).await;
        }
        is_untaken
    }

    /// Kills a process that has not taken the job that it had asked for; returns whether that was so.
    ///
    /// The process would not begin the job any more.
    fn kill_if_refused(&mut self, given: &GivenJob) -> bool {
        let is_refused = given.is_cut_off || self.is_untaken();
        if is_refused {
            tracing::warn!(
                php.process = self.log.process,
                "a PHP process did not take the job it had asked for, and is killed; the job goes back"
            );
            self.group.kill();
        }
        is_refused
    }

    /// Whether the process has read nothing of the running job.
    fn is_untaken(&self) -> bool {
        // If there is another job by now, the process has read this one.
        !self.channel.is_ahead() && self.channel.is_untouched()
    }

    /// Logs that a job was declined because it came too late.
    fn log_delay(&self, said: &PoolMessage, until: Instant) {
        if *said == PoolMessage::Declined && Instant::now() > until {
            tracing::debug!(
                php.process = self.log.process,
                "a PHP process took a job too late to begin with it; the job goes back"
            );
        }
    }

    /// Reports the end of the process to its job, and to the job that was sent ahead; returns whether it was in the
    /// middle of a job.
    async fn report_end(
        &mut self,
        status: Option<ExitStatus>,
        said: &mpsc::Sender<PoolMessage>,
        is_refused: bool,
    ) -> bool {
        let is_ahead = self.channel.is_ahead();
        let is_untouched = self.channel.mark_exited();
        let ahead = self.ahead.take();
        let is_in_next = ahead.is_some() && !is_untouched;
        let mut is_over = false;
        for (it, is_of_next) in self.read_rest().await {
            self.log_problem(&it).await;
            is_over |=
                is_of_next == is_in_next && matches!(it, PoolMessage::Done | PoolMessage::Declined);
            let about = ahead.as_ref().filter(|_| is_of_next);
            let _ = about.map_or(said, |ahead| &ahead.said).send(it).await;
        }
        let ended = PoolMessage::Ended(words(status) + &self.printed());
        let (end, end_of_next) = match ahead {
            None if (is_untouched && !is_ahead) || is_refused => (PoolMessage::Declined, None),
            None => (ended, None),
            Some(next) if is_untouched => (ended, Some((next, PoolMessage::Declined))),
            Some(next) => (PoolMessage::Done, Some((next, ended))),
        };
        let is_in_job = !is_over && end != PoolMessage::Declined;
        let _ = said.send(end).await;
        if let Some((next, end)) = end_of_next {
            let _ = next.said.send(end).await;
        }
        is_in_job
    }

    /// Whether the process has read the job that was sent ahead, so that the one before is over.
    fn has_begun_next(&self) -> bool {
        self.ahead.is_some() && !self.channel.is_untouched()
    }

    /// Sends a job that was assigned early, or keeps it until the process waits; returns whether others may be sent.
    async fn send_ahead(
        &mut self,
        assignment: Option<Assignment>,
        early: &mut Early,
        pool: &Shared,
    ) -> bool {
        let Some((_, until)) = early.take() else {
            return true;
        };
        match assignment {
            // The offer was taken and dropped without a job.
            None => *early = Some((pool.offer(), until)),
            Some(assignment) if assignment.info.body.len() + assignment.reserved.len() <= SMALL => {
                self.ahead = Some(self.give(assignment, Some(until), pool).await);
            }
            Some(assignment) => {
                *early = Some((Offer::of(assignment), until));
                return false;
            }
        }
        true
    }

    /// Declines the job that was sent ahead, which the process has not read in time.
    async fn take_back(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.decline(&ahead.said).await;
        }
    }

    /// Declines a job that was sent before the process asked for it.
    async fn decline(&mut self, said: &mpsc::Sender<PoolMessage>) {
        self.comes_soon = false;
        let _ = said.send(PoolMessage::Declined).await;
    }

    /// Whether jobs may be sent ahead: output is then of the job before or of the next one, which cannot be told.
    fn is_quiet(&self) -> bool {
        self.ahead.is_none() && self.printed.is_none_or(|printed| self.count > printed + 1)
    }

    /// Tells a process that waits for it whether the failure of its job was written down.
    async fn answer(&mut self, is_settled: bool) {
        if let Err(error) = self.channel.answer(is_settled).await {
            // The code that reads its messages notices if the process has ended.
            tracing::debug!(%error, php.process = self.log.process, "a PHP process was not answered");
        }
    }

    /// Forwards the signal that tells this worker to quit.
    fn pass_on(&mut self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.group.signal(signal);
            self.is_told = true;
            // The process ends after its job, and must not be signalled a second time.
            self.signals = Signals::Unheard;
        }
    }

    /// Records that the process has come round: its clock, and that it does not pause.
    fn note_turn(&mut self, clock: u64) {
        self.channel.note_clock(clock);
        self.pause = None;
    }

    /// Records that the app does not let the process work.
    fn note_pause(&mut self, pool: &Shared) {
        if self.pause.is_none() {
            self.pause = Some(Pause::new(&pool.paused));
            pool.changed();
        }
    }

    /// Withdraws an early offer. The app's code after a job takes long: make no more early offers.
    fn withdraw_offer(&mut self, early: &mut Early) {
        *early = None;
        self.comes_soon = false;
    }

    /// What has become of the process, which has ended.
    pub(super) async fn served(mut self) -> Served {
        Served {
            count: self.count,
            is_in_job: false,
            status: self.child.wait().await.ok(),
            memory: self.memory,
        }
    }

    /// Lets the process end by itself, or kills it.
    pub(super) async fn end(mut self) -> Served {
        let deadline = Instant::now() + FAREWELL;
        // The process may have closed its end, or not read: it gets its time all the same.
        let _ = tokio::time::timeout_at(deadline, self.channel.stop()).await;
        loop {
            let did = tokio::select! {
                did = self.next_event() => did,
                () = tokio::time::sleep_until(deadline) => break,
            };
            if let ProcessEvent::Exited(status) = did {
                self.log_end(status);
                self.read_rest().await;
                return self.served().await;
            }
        }
        self.group.kill();
        // Reaped here, so that no zombie is left.
        self.served().await
    }

    /// Waits for the next event of the process.
    ///
    /// Cancel safe. Output comes before messages, as the process wrote them in
    /// that order: lines are then attributed to the right job.
    pub(super) async fn next_event(&mut self) -> ProcessEvent {
        if let Some(said) = self.heard.take() {
            return ProcessEvent::Message(said);
        }
        // Endless output, maybe from a program that the process started, must not starve other events.
        let may_print = self.prints < MOST_PRINTS;
        let did = tokio::select! {
            biased;
            read = self.stdout.read(), if may_print => Err((true, read)),
            read = self.stderr.read(), if may_print => Err((false, read)),
            said = self.channel.next(), if !self.channel.is_closed() => Ok(match said {
                Ok(Some(said)) => ProcessEvent::Message(said),
                Ok(None) => ProcessEvent::Silent(None),
                Err(error) => ProcessEvent::Silent(Some(error)),
            }),
            status = self.child.wait() => Ok(ProcessEvent::Exited(status.ok())),
            () = tokio::task::yield_now(), if !may_print => Ok(ProcessEvent::Output),
        };
        self.prints = if did.is_err() { self.prints + 1 } else { 0 };
        did.unwrap_or_else(|(is_stdout, read)| {
            self.printed = Some(self.count);
            if let Some(ahead) = self.ahead.as_ref().filter(|_| self.has_begun_next()) {
                let next = Arc::clone(&ahead.info);
                self.flush();
                self.log.of(Some(next));
            }
            if is_stdout {
                self.stdout.log(read, &mut self.log);
            } else {
                self.stderr.log(read, &mut self.log);
            }
            ProcessEvent::Output
        })
    }

    /// Logs what is left of lines without an end.
    fn flush(&mut self) {
        self.stdout.flush(&mut self.log);
        self.stderr.flush(&mut self.log);
    }

    /// Reads what is left in the pipes of a process that has ended; returns its last messages, and for each whether
    /// it is about the job that was sent ahead.
    pub(super) async fn read_rest(&mut self) -> Vec<(PoolMessage, bool)> {
        let mut said = Vec::new();
        // Without this the stream of messages would never end.
        self.channel.mark_exited();
        let deadline = Instant::now() + LINGER;
        while self.stdout.is_open() || self.stderr.is_open() || !self.channel.is_closed() {
            // Messages matter most, and output may be endless.
            tokio::select! {
                biased;
                next = self.channel.next(), if !self.channel.is_closed() => {
                    let next = next.ok().flatten();
                    said.extend(next.map(|next| (next, self.channel.has_moved_on())));
                }
                () = tokio::time::sleep_until(deadline) => break,
                read = self.stdout.read() => self.stdout.log(read, &mut self.log),
                read = self.stderr.read() => self.stderr.log(read, &mut self.log),
            }
        }
        self.flush();
        // As with Laravel's worker, programs that it started may run on: do not kill them.
        self.group.forget();
        said
    }

    /// The last lines of output, for a message.
    fn printed(&self) -> String {
        let last = self.log.last_lines();
        if last.is_empty() {
            last
        } else {
            format!(": {last}")
        }
    }
}

impl<R: tokio::io::AsyncRead + Unpin> Stream<R> {
    fn new(name: &'static str, pipe: Option<R>) -> Self {
        Self {
            name,
            pipe,
            buffer: vec![0; 8192].into(),
            lines: Lines::default(),
        }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads some bytes, 0 at the end of the stream; after that it waits forever.
    async fn read(&mut self) -> usize {
        match &mut self.pipe {
            Some(pipe) => pipe.read(&mut self.buffer).await.unwrap_or(0),
            None => std::future::pending().await,
        }
    }

    /// Logs bytes that were read.
    fn log(&mut self, read: usize, log: &mut Log) {
        if read == 0 {
            self.pipe = None;
        }
        self.lines.take(&self.buffer[..read], self.name, log);
    }

    fn flush(&mut self, log: &mut Log) {
        self.lines.flush(self.name, log);
    }
}

fn settings(pool: &Shared) -> serde_json::Value {
    let options = &pool.options;
    serde_json::json!({
        "app": options.app.to_string_lossy(),
        "env": options.env,
        "connection": options.connection,
        "queue": options.queue,
        "rest": options.rest.as_secs_f64(),
        "max_time": options.max_time.map(|limit| limit.as_secs_f64()),
        "failer": options.failer,
        "once": options.once,
        "serves": pool.requests.as_ref().map(|requests| requests.serves),
        "options": options.worker,
    })
}

/// How long PHP may run on after this worker is gone, without overlapping the next run of its job.
///
/// A reservation is renewed every third of `retry_after`, and first after a
/// sixth. So at least half of it is left when the worker ends, minus the
/// fraction of a second that is not stored.
fn last_words(retry_after: Option<Duration>) -> Duration {
    retry_after.map_or(LAST_WORDS, |retry_after| {
        LAST_WORDS.min((retry_after / 2).saturating_sub(Duration::from_secs(1)))
    })
}

/// Describes how a process ended.
fn words(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "unknown".to_owned(), |status| status.to_string())
}

/// When an early offer is withdrawn.
fn withdrawal(early: &Early) -> Option<Instant> {
    early.as_ref().map(|(_, until)| *until)
}

/// The job assigned to an early offer; `None` if there will be none.
async fn assigned(early: &mut Early) -> Option<Assignment> {
    match early {
        Some((offer, _)) => (&mut offer.0).await.ok(),
        None => std::future::pending().await,
    }
}
