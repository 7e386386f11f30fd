//! One place of the pool: a PHP process, and the next one when it has ended.

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
use super::{Assignment, Offer, Pause, Shared, Versions};
use crate::handler::child::ProcessGroup;

/// How long to read on after a process has ended: what it started may hold its pipes open.
const LINGER: Duration = Duration::from_millis(200);
/// How long a process that was asked to end may take.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long a process runs on once this one is gone: it writes down what it has said of its last jobs.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Waits between attempts to boot the app.
const SHORTEST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A process that ends sooner than that, without a job, is no better than one that does not boot.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// How long a process may take to wait for a job once it has ended one, if the next is to be there by then.
const SOON: Duration = Duration::from_millis(100);
/// How long a process that waits for a job may take to take one.
const TAKING: Duration = Duration::from_secs(3);
/// Pieces of output that are read before something else has a turn.
const MOST_PRINTS: u32 = 64;

/// Keeps a place taken until the pool stops.
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

/// A PHP process that has booted the app, or is at it.
struct Member {
    child: Child,
    group: ProcessGroup,
    channel: Channel,
    stdout: Stream<ChildStdout>,
    stderr: Stream<ChildStderr>,
    log: Log,
    /// Pieces of output that were read since something else was looked at.
    prints: u32,
    /// What it does at a signal to end.
    signals: Signals,
    /// It has said that it waits, and was given nothing since.
    is_ready: bool,
    /// It was offered although it does not wait yet, and until when that holds.
    early: Option<(Offer, Instant)>,
    /// Whether it mostly waits soon after it has ended a job.
    comes_soon: bool,
    /// Set while the app does not let it work, as far as it has said.
    pause: Option<Pause>,
}

/// What a process does when it is told to end by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signals {
    /// It is killed by it, or was told once already.
    Unheard,
    /// SIGTERM ends it after its job.
    Heard,
    /// All of Laravel's end it after its job, which is told of them.
    PassedOn,
}

/// One of the two streams of a process, read for the log.
struct Stream<R> {
    name: &'static str,
    /// `None` once it is at its end.
    pipe: Option<R>,
    buffer: Box<[u8]>,
    lines: Lines,
}

/// A job that was given to a process.
struct Given {
    said: mpsc::Sender<Said>,
    answers: mpsc::Receiver<bool>,
    /// When it begins with it at the latest.
    until: Instant,
    /// It was not taken by then, nor sent whole.
    is_cut_off: bool,
    /// It is the last one of the process.
    is_last: bool,
}

/// What came of waiting for a job.
enum Waited {
    Job(Assignment),
    /// It does not wait any more, and will say when it does.
    NotYet,
    /// The process is to end.
    Stop,
    /// It has ended.
    Gone,
}

/// Something that a process did.
enum Did {
    Say(Said),
    /// It closed the socket, or said what is no line of ours.
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
            // It ended before it had read everything: why, it says below.
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
                    member.channel.has_clock(booted.clock);
                    tracing::debug!(
                        php.process = member.log.process,
                        php.version = booted.php.as_str(),
                        laravel = booted.laravel.as_str(),
                        "a PHP process of the pool has booted the app"
                    );
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

    fn spawn(pool: &Shared) -> Result<Self, String> {
        let options = &pool.options;
        let Some((program, args)) = options.php.split_first() else {
            return Err("no PHP program is named".to_owned());
        };
        let socket = || -> std::io::Result<(UnixStream, OwnedFd)> {
            let (ours, theirs) = UnixStream::pair()?;
            let theirs = theirs.into_std()?;
            // PHP reads and writes as from a file.
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
        // Signals of a terminal are for us, and not for its group; Laravel's worker would end on some.
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

    /// Runs jobs until the process ends; says how many.
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
            // Nobody else sets it.
            let _ = begun.set(now);
            let until = lease.map_or(now + TAKING, |lease| lease.min(now + TAKING));
            let written = tokio::select! {
                written = self.channel.run(queue, &info.body, &reserved, until, lease) => written,
                // A large one waits for PHP to read it, which it may not. The rest is done below.
                () = kill.cancelled() => Ok(()),
                () = pool.stop.cancelled() => Ok(()),
                _ = self.child.wait() => Ok(()),
            };
            let mut is_cut_off = false;
            if let Err(error) = written {
                // The rest will not follow.
                is_cut_off = error.kind() == std::io::ErrorKind::TimedOut;
                // If the process has ended just now, that is seen below.
                tracing::debug!(%error, php.process = self.log.process, "a job could not be given to PHP");
            }
            let is_last = max_jobs == Some(count);
            let given = Given {
                said,
                answers,
                until,
                is_cut_off,
                is_last,
            };
            let is_alive = self.run_job(given, &kill, pool).await;
            self.stdout.flush(&mut self.log);
            self.stderr.flush(&mut self.log);
            self.log.of(None);
            if !is_alive {
                return count;
            }
        }
    }

    /// Waits until the process waits for a job, which it does not while the app lets no worker work.
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
                        // It may sleep and not listen to us.
                        self.group.signal(Signal::TERM);
                    }
                    return Some(Waited::Stop);
                }
            };
            match did {
                Did::Say(Said::Ready { clock, .. }) => {
                    self.is_at_it(clock);
                    return None;
                }
                Did::Say(Said::Paused) => self.pauses(pool),
                Did::Print => {}
                Did::Say(said) => self.hears_problem(&said),
                Did::Exit(status) => {
                    self.has_ended(status);
                    return Some(Waited::Gone);
                }
                Did::FallSilent(error) => {
                    if let Some(error) = error {
                        self.cannot_be_understood(&error);
                    }
                    return Some(Waited::Stop);
                }
            }
        }
    }

    /// Offers the process to whoever has a job, and waits for one.
    async fn wait_for_job(&mut self, pool: &Shared) -> Waited {
        let early = self.early.take().map(|(offer, _)| offer);
        let mut offer = early.unwrap_or_else(|| pool.offer());
        loop {
            let did = tokio::select! {
                biased;
                // What was assigned must not be lost by what comes below.
                assignment = &mut offer.0 => {
                    if let Ok(assignment) = assignment {
                        return Waited::Job(assignment);
                    }
                    // Taken and not used.
                    offer = pool.offer();
                    continue;
                }
                did = self.does() => did,
                () = pool.stop.cancelled() => return Waited::Stop,
            };
            match did {
                Did::Print => {}
                // A job that it was given in this moment goes back.
                Did::Say(Said::Paused) => {
                    self.pauses(pool);
                    return Waited::NotYet;
                }
                Did::Say(said) => self.hears_problem(&said),
                Did::Exit(status) => {
                    self.has_ended(status);
                    drop(offer);
                    pool.changed();
                    return Waited::Gone;
                }
                Did::FallSilent(error) => {
                    if let Some(error) = error {
                        self.cannot_be_understood(&error);
                    }
                    // It ends, or has to.
                    drop(offer);
                    pool.changed();
                    return Waited::Stop;
                }
            }
        }
    }

    /// Logs what ended the process, if it says so.
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
    fn has_ended(&self, status: Option<ExitStatus>) {
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

    fn cannot_be_understood(&self, error: &std::io::Error) {
        tracing::error!(%error, php.process = self.log.process, "a PHP process cannot be understood and is killed");
    }

    /// Passes on what PHP says of a job, until the attempt is over; false if the process is gone.
    async fn run_job(&mut self, mut given: Given, kill: &CancellationToken, pool: &Shared) -> bool {
        let said = &given.said;
        let mut taken_by = Some(given.until);
        let mut is_killed = false;
        let mut is_refused = false;
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
                    if given.is_cut_off || self.channel.is_untouched() {
                        tracing::warn!(
                            php.process = self.log.process,
                            "a PHP process did not take the job it had asked for, and is killed; the job goes back"
                        );
                        // From now on it would not begin with it.
                        is_refused = true;
                        is_killed = true;
                        self.group.kill();
                    }
                    continue;
                }
                () = async { tokio::select! { () = kill.cancelled() => {}, () = pool.stop.cancelled() => {} } }, if !is_killed => {
                    is_killed = true;
                    self.group.kill();
                    continue;
                }
            };
            match did {
                // Who has closed the socket and runs on ends its job by itself, and then ends.
                Did::Print | Did::FallSilent(None) | Did::Say(Said::Parting) => {}
                Did::Say(Said::Paused) => self.pauses(pool),
                // It said so before it was given this job.
                Did::Say(Said::Ready { clock, orders, .. })
                    if !self.channel.has_read_all(orders) =>
                {
                    self.is_at_it(clock);
                }
                Did::Say(Said::Ready { clock, .. }) => {
                    self.is_at_it(clock);
                    // Mostly that alone says that the attempt is over.
                    self.is_ready = true;
                    let _ = said.send(Said::Done).await;
                    return true;
                }
                Did::Say(it) => {
                    self.hears_problem(&it);
                    if it == (Said::Deleted { last: true })
                        && self.comes_soon
                        && !is_killed
                        && !given.is_last
                    {
                        self.early = Some((pool.offer(), Instant::now() + SOON));
                    }
                    let is_over = matches!(it, Said::Done | Said::Declined);
                    if it == Said::Declined && Instant::now() > given.until {
                        tracing::warn!(
                            php.process = self.log.process,
                            "a PHP process took a job too late to begin with it; the job goes back"
                        );
                    }
                    // Whoever asked may have stopped waiting.
                    let _ = said.send(it).await;
                    if is_over {
                        return true;
                    }
                }
                Did::FallSilent(Some(error)) => {
                    self.cannot_be_understood(&error);
                    is_killed = true;
                    self.group.kill();
                }
                Did::Exit(status) => {
                    self.early = None;
                    let is_untouched = self.channel.bury();
                    for it in self.read_rest().await {
                        self.hears_problem(&it);
                        let _ = said.send(it).await;
                    }
                    let end = if is_untouched || is_refused {
                        Said::Declined
                    } else {
                        Said::Ended(words(status) + &self.printed())
                    };
                    let _ = said.send(end).await;
                    return false;
                }
            }
        }
    }

    /// Answers a process that waits until the failure of its job is written down.
    async fn answer(&mut self, is_settled: bool) {
        if let Err(error) = self.channel.answer(is_settled).await {
            // Its end is seen where its messages are read.
            tracing::debug!(%error, php.process = self.log.process, "a PHP process was not answered");
        }
    }

    /// Passes on the signal that tells this process to quit.
    fn pass_on(&mut self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.group.signal(signal);
            // It ends after its job, and is not to be told a second time.
            self.signals = Signals::Unheard;
        }
    }

    /// It waits for a job.
    fn is_at_it(&mut self, clock: u64) {
        self.channel.has_clock(clock);
        self.pause = None;
    }

    /// The app does not let it work.
    fn pauses(&mut self, pool: &Shared) {
        if self.pause.is_none() {
            self.pause = Some(Pause::new(&pool.paused));
            pool.changed();
        }
    }

    /// Until when an offer holds that was made before the process waits.
    fn patience(&self) -> Option<Instant> {
        self.early.as_ref().map(|(_, until)| *until)
    }

    /// Withdraws such an offer. What the app does behind its jobs takes long: no more of them.
    fn comes_late(&mut self) {
        self.early = None;
        self.comes_soon = false;
    }

    /// Lets the process end by itself, or kills it.
    async fn end(mut self) {
        self.early = None;
        let deadline = Instant::now() + FAREWELL;
        // It may have closed its end, or not read: it has its time all the same.
        let _ = tokio::time::timeout_at(deadline, self.channel.stop()).await;
        loop {
            let did = tokio::select! {
                did = self.does() => did,
                () = tokio::time::sleep_until(deadline) => break,
            };
            if let Did::Exit(status) = did {
                self.has_ended(status);
                self.read_rest().await;
                return;
            }
        }
        self.group.kill();
        // Reaped here, so that no zombie is left.
        let _ = self.child.wait().await;
    }

    /// Waits for what the process does next.
    ///
    /// Cancel safe. What it printed comes before what it said, as it did it in
    /// that order: lines are then of the right job.
    async fn does(&mut self) -> Did {
        // Output without end, maybe of something that it has started, must not hide all else.
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

    /// Reads what is left in the pipes of a process that has ended; what it said last.
    async fn read_rest(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        // Or the end of what it said would never come.
        self.channel.bury();
        let deadline = Instant::now() + LINGER;
        while self.stdout.is_open() || self.stderr.is_open() || !self.channel.is_closed() {
            // What it said counts most, and output may be without end.
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
        // What it started may run on, as it does with Laravel's worker; nobody kills that here.
        self.group.forget();
        said
    }

    /// What it printed last, for a message.
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

    /// Reads something, 0 at the end; waits for ever once that was said.
    async fn read(&mut self) -> usize {
        match &mut self.pipe {
            Some(pipe) => pipe.read(&mut self.buffer).await.unwrap_or(0),
            None => std::future::pending().await,
        }
    }

    /// Takes what was read.
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

/// How long a process may run on once this one is gone, without running into the next run of its job.
///
/// A reservation is renewed every third of `retry_after`, and first when a sixth
/// has passed: at least half of it is left then, less the part of a second that
/// is not written down.
fn last_words(retry_after: Option<Duration>) -> Duration {
    retry_after.map_or(LAST_WORDS, |retry_after| {
        LAST_WORDS.min((retry_after / 2).saturating_sub(Duration::from_secs(1)))
    })
}

/// How a process ended.
fn words(status: Option<ExitStatus>) -> String {
    status.map_or_else(
        || "nobody knows how".to_owned(),
        |status| status.to_string(),
    )
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
