//! One place of the pool: it keeps a PHP process running and replaces the process when it has ended.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::{Booted, Channel, SOCKET, STUB, Said};
use super::output::{Lines, Log};
use super::shared::{Assignment, Offer, Pause, Shared, Versions};
use crate::process::child::ProcessGroup;
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
/// A process offered early must wait for its next job within this time after the last one ended.
const SOON: Duration = Duration::from_millis(100);
/// How long a waiting process may take to begin a job that was sent to it.
const TAKING: Duration = Duration::from_secs(3);
/// Pieces of output that are read before other events are handled.
const MOST_PRINTS: u32 = 64;

/// Keeps a place of the pool filled until the pool stops.
pub(super) async fn keep(pool: Arc<Shared>) {
    let (mut failures, mut is_broken) = (0_u32, false);
    while !pool.is_closing.is_cancelled() {
        let problem = match Member::boot(&pool).await {
            Ok(Some(member)) => {
                pool.health().broken -= usize::from(std::mem::take(&mut is_broken));
                let booted = Instant::now();
                if member.serve(&pool).await > 0 || booted.elapsed() >= SHORTEST_LIFE {
                    failures = 0;
                    continue;
                }
                "it ended right after it had booted the app".to_owned()
            }
            Ok(None) => return,
            Err(problem) => problem,
        };
        if pool.is_closing.is_cancelled() {
            return;
        }
        failures = failures.saturating_add(1);
        let longest =
            (SHORTEST_WAIT * 2_u32.saturating_pow(failures.min(16) - 1)).min(LONGEST_WAIT);
        let wait = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        {
            let mut health = pool.health();
            health.broken += usize::from(!std::mem::replace(&mut is_broken, true));
            health.problem.clone_from(&problem);
        }
        tracing::error!(error = problem, retry_in = ?wait, "a PHP process of the pool could not start");
        pool.changed();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = pool.is_closing.cancelled() => {}
        }
    }
}

/// A PHP process that has booted the app, or is booting it.
struct Member {
    child: Child,
    group: ProcessGroup,
    channel: Channel,
    stdout: Stream<ChildStdout>,
    stderr: Stream<ChildStderr>,
    log: Log,
    /// Pieces of output read since another event was handled.
    prints: u32,
    /// How the process reacts to signals that tell it to end.
    signals: Signals,
    /// The process has reported that it waits, and was given no job since.
    is_ready: bool,
    /// The offer of a process that does not wait yet, and when that offer is withdrawn.
    early: Option<(Offer, Instant)>,
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

/// A job that was given to a process.
struct Given {
    said: mpsc::Sender<Said>,
    answers: mpsc::Receiver<bool>,
    /// The latest time at which the process begins the job.
    until: Instant,
    /// The process had not begun to read it by then, and the job was not sent whole.
    is_cut_off: bool,
    /// It is the last job of the process, by `maxJobs`.
    is_last: bool,
    killed: Option<Killed>,
}

/// Why a process with a job was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// It did not take the job.
    NotTaken,
    /// The job was cut short, or the process cannot be understood.
    Running,
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

/// An event of a process.
enum Did {
    Say(Said),
    /// It closed the socket, or sent a line that is not part of the protocol.
    FallSilent(Option<std::io::Error>),
    Print,
    Exit(Option<ExitStatus>),
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
                did = member.does() => did,
                () = pool.is_closing.cancelled() => return Ok(None),
                () = tokio::time::sleep_until(deadline) => {
                    let limit = pool.options.boot;
                    return Err(format!("it did not boot the app within {limit:?}{}", member.printed()));
                }
            };
            match did {
                Did::Say(Said::Booted(booted)) => {
                    member.note_boot(booted, pool);
                    return Ok(Some(member));
                }
                Did::Say(Said::Unbootable { message }) => return Err(message),
                Did::Print => {}
                Did::Exit(status) => {
                    member.read_rest().await;
                    let printed = member.printed();
                    return Err(format!(
                        "it ended while it booted the app ({}){printed}",
                        words(status)
                    ));
                }
                Did::Say(said) => {
                    return Err(format!("it said {said:?} before it had booted the app"));
                }
                Did::FallSilent(error) => {
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

    /// Records what the process reports once it has booted the app.
    fn note_boot(&mut self, booted: Booted, pool: &Shared) {
        self.channel.note_clock(booted.clock);
        tracing::debug!(
            php.process = self.log.process,
            php.version = booted.php.as_str(),
            laravel = booted.laravel.as_str(),
            "a PHP process of the pool has booted the app"
        );
        self.signals = match booted {
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
    }

    fn spawn(pool: &Shared) -> Result<Self, String> {
        let options = &pool.options;
        let Some((program, args)) = options.php.split_first() else {
            return Err("no PHP program is named".to_owned());
        };
        let socket = || -> std::io::Result<(UnixStream, OwnedFd)> {
            let (ours, theirs) = UnixStream::pair()?;
            let theirs = theirs.into_std()?;
            // PHP reads and writes the socket as a blocking file.
            theirs.set_nonblocking(false)?;
            Ok((ours, OwnedFd::from(theirs)))
        };
        let pair = socket().and_then(|(ours, theirs)| Ok((ours, theirs.try_clone()?, theirs)));
        let (ours, copy, theirs) = pair.map_err(|error| format!("no socket for it: {error}"))?;
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
            channel: Channel::new(ours, copy),
            stdout: Stream::new("stdout", child.stdout.take()),
            stderr: Stream::new("stderr", child.stderr.take()),
            child,
            log,
            prints: 0,
            signals: Signals::Unheard,
            is_ready: false,
            early: None,
            comes_soon: pool.options.rest.is_zero(),
            pause: None,
        })
    }

    /// Runs jobs until the process ends; returns their number.
    async fn serve(mut self, pool: &Shared) -> u64 {
        let max_jobs = (pool.options.worker.get("maxJobs")).and_then(serde_json::Value::as_u64);
        let mut count = 0;
        loop {
            let other = if std::mem::take(&mut self.is_ready) {
                None
            } else {
                self.wait_until_ready(pool).await
            };
            let waited = match other {
                None => self.wait_for_job(pool).await,
                Some(other) => other,
            };
            let assignment = match waited {
                Waited::Job(assignment) => assignment,
                Waited::NotYet => continue,
                Waited::Stop => {
                    self.end().await;
                    return count;
                }
                Waited::Gone => {
                    self.early = None;
                    for said in self.read_rest().await {
                        self.hears_problem(&said);
                    }
                    return count;
                }
            };
            count += 1;
            if !self.give(assignment, max_jobs == Some(count), pool).await {
                return count;
            }
        }
    }

    /// Gives the process a job and follows it to its end; false if the process is gone.
    async fn give(&mut self, assignment: Assignment, is_last: bool, pool: &Shared) -> bool {
        let Assignment {
            info,
            reserved,
            lease,
            said,
            answers,
            kill,
            begun,
        } = assignment;
        self.log.of(Some(Arc::clone(&info)));
        let queue = info.queue.as_str();
        let now = Instant::now();
        // Only this task sets it, once per job.
        let _ = begun.set(now);
        let until = lease.map_or(now + TAKING, |lease| lease.min(now + TAKING));
        let written = tokio::select! {
            written = self.channel.run(queue, &info.body, &reserved, until, lease) => written,
            // Sending a large job waits for PHP to read it, which may not happen. The branches below end the wait.
            () = kill.cancelled() => Ok(()),
            () = pool.stop.cancelled() => Ok(()),
            _ = self.child.wait() => Ok(()),
        };
        let mut is_cut_off = false;
        if let Err(error) = written {
            // The rest of the job will not be sent.
            is_cut_off = error.kind() == std::io::ErrorKind::TimedOut;
            // If the process has ended just now, the code below notices.
            tracing::debug!(%error, php.process = self.log.process, "a job could not be given to PHP");
        }
        let given = Given {
            said,
            answers,
            until,
            is_cut_off,
            is_last,
            killed: None,
        };
        let is_alive = self.run_job(given, &kill, pool).await;
        self.stdout.flush(&mut self.log);
        self.stderr.flush(&mut self.log);
        self.log.of(None);
        is_alive
    }

    /// Waits until the process is ready for a job; it is not ready while the app lets no worker work.
    async fn wait_until_ready(&mut self, pool: &Shared) -> Option<Waited> {
        loop {
            let patience = self.patience();
            let did = tokio::select! {
                biased;
                did = self.does() => did,
                () = sleep_until(patience) => {
                    self.comes_late();
                    continue;
                }
                () = pool.stop.cancelled() => {
                    if self.signals != Signals::Unheard {
                        // The process may be asleep and not read the socket.
                        self.group.signal(Signal::TERM);
                    }
                    return Some(Waited::Stop);
                }
            };
            match did {
                Did::Say(Said::Ready { clock, .. }) => {
                    self.note_turn(clock);
                    return None;
                }
                Did::Say(Said::Paused) => self.pauses(pool),
                Did::Print => {}
                Did::Say(said) => self.hears_problem(&said),
                Did::Exit(status) => {
                    self.log_end(status);
                    return Some(Waited::Gone);
                }
                Did::FallSilent(error) => {
                    self.log_silence(error.as_ref());
                    return Some(Waited::Stop);
                }
            }
        }
    }

    /// Offers the process in the pool, and waits for a job.
    async fn wait_for_job(&mut self, pool: &Shared) -> Waited {
        let early = self.early.take().map(|(offer, _)| offer);
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
                did = self.does() => did,
                () = pool.stop.cancelled() => return Waited::Stop,
            };
            match did {
                Did::Print => {}
                // Dropping the offer declines a job that was assigned in this moment.
                Did::Say(Said::Paused) => {
                    self.pauses(pool);
                    return Waited::NotYet;
                }
                Did::Say(said) => self.hears_problem(&said),
                Did::Exit(status) => {
                    self.log_end(status);
                    drop(offer);
                    pool.changed();
                    return Waited::Gone;
                }
                Did::FallSilent(error) => {
                    self.log_silence(error.as_ref());
                    // The process ends, or has to be ended.
                    drop(offer);
                    pool.changed();
                    return Waited::Stop;
                }
            }
        }
    }

    /// Logs why the process cannot boot, if it reports that.
    fn hears_problem(&self, said: &Said) {
        if let Said::Unbootable { message } = said {
            tracing::error!(
                php.process = self.log.process,
                error = message,
                "a PHP process of the pool ended"
            );
        }
    }

    /// Logs the end of a process between two jobs: mostly its limits (jobs, time, memory) or a restart signal.
    fn log_end(&self, status: Option<ExitStatus>) {
        let (process, how) = (self.log.process, words(status));
        if status.is_some_and(|status| status.signal().is_some()) {
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

    fn log_silence(&self, error: Option<&std::io::Error>) {
        if let Some(error) = error {
            tracing::error!(%error, php.process = self.log.process, "a PHP process cannot be understood and is killed");
        }
    }

    /// Forwards PHP's messages about a job until the attempt is over; false if the process is gone.
    async fn run_job(&mut self, mut given: Given, kill: &CancellationToken, pool: &Shared) -> bool {
        let mut taken_by = Some(given.until);
        let mut signals = pool.signals.subscribe();
        loop {
            let patience = self.patience();
            let did = tokio::select! {
                did = self.does() => did,
                () = sleep_until(patience) => {
                    self.comes_late();
                    continue;
                }
                Some(is_settled) = given.answers.recv() => {
                    self.answer(is_settled).await;
                    continue;
                }
                Ok(()) = signals.changed(), if self.signals == Signals::PassedOn => {
                    let signal = *signals.borrow_and_update();
                    self.pass_on(signal);
                    continue;
                }
                () = sleep_until(taken_by) => {
                    taken_by = None;
                    self.check_taken(&mut given);
                    continue;
                }
                () = either(kill, &pool.stop), if given.killed.is_none() => {
                    given.killed = Some(Killed::Running);
                    self.group.kill();
                    continue;
                }
            };
            match did {
                // A process that has closed the socket and runs on finishes its job by itself, and then ends.
                Did::Print | Did::FallSilent(None) | Did::Say(Said::Parting) => {}
                Did::Say(Said::Paused) => self.pauses(pool),
                // The message was sent before the process read this job.
                Did::Say(Said::Ready { clock, orders, .. })
                    if !self.channel.has_read_all(orders) =>
                {
                    self.note_turn(clock);
                }
                Did::Say(Said::Ready { clock, .. }) => {
                    self.note_turn(clock);
                    // Mostly this message alone reports the end of the attempt.
                    self.is_ready = true;
                    let _ = given.said.send(Said::Done).await;
                    return true;
                }
                Did::Say(said) => {
                    if self.forward(said, &given, pool).await {
                        return true;
                    }
                }
                Did::FallSilent(Some(error)) => {
                    self.log_silence(Some(&error));
                    given.killed.get_or_insert(Killed::Running);
                    self.group.kill();
                }
                Did::Exit(status) => {
                    self.end_job(status, &given).await;
                    return false;
                }
            }
        }
    }

    /// Kills a process that has not begun to read its job in time.
    fn check_taken(&mut self, given: &mut Given) {
        if given.is_cut_off || self.channel.is_untouched() {
            tracing::warn!(
                php.process = self.log.process,
                "a PHP process did not take the job it had asked for, and is killed; the job goes back"
            );
            // After this time the process would not begin the job any more.
            given.killed = Some(Killed::NotTaken);
            self.group.kill();
        }
    }

    /// Forwards a message about the job; true if the attempt is over.
    async fn forward(&mut self, said: Said, given: &Given, pool: &Shared) -> bool {
        self.hears_problem(&said);
        if said == (Said::Deleted { last: true })
            && self.comes_soon
            && given.killed.is_none()
            && !given.is_last
        {
            self.early = Some((pool.offer(), Instant::now() + SOON));
        }
        if said == Said::Declined && Instant::now() > given.until {
            tracing::warn!(
                php.process = self.log.process,
                "a PHP process took a job too late to begin with it; the job goes back"
            );
        }
        let is_over = matches!(said, Said::Done | Said::Declined);
        // The receiver may be dropped.
        let _ = given.said.send(said).await;
        is_over
    }

    /// Reports the end of a process that had a job.
    async fn end_job(&mut self, status: Option<ExitStatus>, given: &Given) {
        self.early = None;
        let is_untouched = self.channel.bury();
        for said in self.read_rest().await {
            self.hears_problem(&said);
            let _ = given.said.send(said).await;
        }
        let end = if is_untouched || given.killed == Some(Killed::NotTaken) {
            Said::Declined
        } else {
            Said::Ended(words(status) + &self.printed())
        };
        let _ = given.said.send(end).await;
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
    fn pauses(&mut self, pool: &Shared) {
        if self.pause.is_none() {
            self.pause = Some(Pause::new(&pool.paused));
            pool.changed();
        }
    }

    /// When an offer is withdrawn that was made before the process waited.
    fn patience(&self) -> Option<Instant> {
        self.early.as_ref().map(|(_, until)| *until)
    }

    /// Withdraws an early offer. The app's code after a job takes long: make no more early offers.
    fn comes_late(&mut self) {
        self.early = None;
        self.comes_soon = false;
    }

    /// Lets the process end by itself, or kills it.
    async fn end(mut self) {
        self.early = None;
        let deadline = Instant::now() + FAREWELL;
        // The process may have closed its end, or not read: it gets its time all the same.
        let _ = tokio::time::timeout_at(deadline, self.channel.stop()).await;
        loop {
            let did = tokio::select! {
                did = self.does() => did,
                () = tokio::time::sleep_until(deadline) => break,
            };
            if let Did::Exit(status) = did {
                self.log_end(status);
                self.read_rest().await;
                return;
            }
        }
        self.group.kill();
        // Reaped here, so that no zombie is left.
        let _ = self.child.wait().await;
    }

    /// Waits for the next event of the process.
    ///
    /// Cancel safe. Output comes before messages, as the process wrote them in
    /// that order: lines are then attributed to the right job.
    async fn does(&mut self) -> Did {
        // Endless output, maybe from a program that the process started, must not starve other events.
        let may_print = self.prints < MOST_PRINTS;
        let did = tokio::select! {
            biased;
            read = self.stdout.read(), if may_print => Err((true, read)),
            read = self.stderr.read(), if may_print => Err((false, read)),
            said = self.channel.next(), if !self.channel.is_closed() => Ok(match said {
                Ok(Some(said)) => Did::Say(said),
                Ok(None) => Did::FallSilent(None),
                Err(error) => Did::FallSilent(Some(error)),
            }),
            status = self.child.wait() => Ok(Did::Exit(status.ok())),
            () = tokio::task::yield_now(), if !may_print => Ok(Did::Print),
        };
        self.prints = if did.is_err() { self.prints + 1 } else { 0 };
        did.unwrap_or_else(|(is_stdout, read)| {
            if is_stdout {
                self.stdout.log(read, &mut self.log);
            } else {
                self.stderr.log(read, &mut self.log);
            }
            Did::Print
        })
    }

    /// Reads what is left in the pipes of a process that has ended; returns its last messages.
    async fn read_rest(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        // Without this the stream of messages would never end.
        self.channel.bury();
        let deadline = Instant::now() + LINGER;
        while self.stdout.is_open() || self.stderr.is_open() || !self.channel.is_closed() {
            // Messages matter most, and output may be endless.
            tokio::select! {
                biased;
                next = self.channel.next(), if !self.channel.is_closed() => said.extend(next.ok().flatten()),
                () = tokio::time::sleep_until(deadline) => break,
                read = self.stdout.read() => self.stdout.log(read, &mut self.log),
                read = self.stderr.read() => self.stderr.log(read, &mut self.log),
            }
        }
        self.stdout.flush(&mut self.log);
        self.stderr.flush(&mut self.log);
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

async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
}
