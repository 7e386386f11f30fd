//! `queue:listen`
//!
//! Laravel starts a PHP process for each job, so that a change of the code counts at once. Here a worker goes on until
//! a file changes, ends its jobs, and is started anew.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

mod files;
mod worker;

use super::work::{self, WorkArgs};
use super::{GlobalArgs, UsageError, block_on, manifest, output};
use crate::config::Config;
use crate::routing::Registry;
use crate::worker::Observer;
use files::{Seen, Watched, is_source, sources};
use worker::{REST, Worker, code_of, end_of, rest};

/// Arguments of `queue:listen`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ListenArgs {
    #[command(flatten)]
    work: WorkArgs,

    /// Files and directories to watch besides those of the app, comma separated
    #[arg(
        long,
        value_name = "PATHS",
        value_delimiter = ',',
        help_heading = "Beyond Laravel"
    )]
    watch: Vec<PathBuf>,

    /// Command that builds this program when its source changes, such as "cargo build"
    #[arg(long, value_name = "COMMAND", help_heading = "Beyond Laravel")]
    exec: Option<String>,

    /// This process is the worker, and ends with the one that has started it
    #[arg(long, hide = true)]
    as_worker: bool,
}

/// Runs workers, one after the other, until told to stop.
pub(super) fn run(
    args: ListenArgs,
    global: &GlobalArgs,
    registry: &Registry,
    observers: Vec<Arc<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    if let Some(option) = args.work.bound() {
        return Err(UsageError(format!(
            "`{option}` ends a worker, and queue:listen starts it again: use it with queue:work"
        ))
        .into());
    }
    let (work, delay) = args.work.without_delay();
    if args.as_worker {
        end_with_parent()?;
        return work::run(&work, global, registry, observers);
    }
    if delay {
        output::notice("`--delay` does nothing, as in Laravel: `--backoff` does");
    }
    if is_supervised() {
        output::notice(
            "queue:listen watches files for those who write them; a process manager should run queue:work",
        );
    }
    block_on(Listener::new(args.watch, args.exec, global)?.listen())
}

/// Whether a process manager has started this process.
fn is_supervised() -> bool {
    ["SUPERVISOR_ENABLED", "NOTIFY_SOCKET"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Tells this process to stop as soon as its standard input ends: the process that has started it holds the other end.
fn end_with_parent() -> anyhow::Result<()> {
    let wait = || {
        let mut rest = Vec::new();
        // Nothing is ever written there; an error means the same as the end.
        let _ = std::io::stdin().read_to_end(&mut rest);
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
    };
    let thread = std::thread::Builder::new().name("artisand-parent".into());
    thread.spawn(wait).context("could not start a thread")?;
    Ok(())
}

/// Signals to this process, which it passes on.
fn signals() -> std::io::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(8);
    let passed = [
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
        (SignalKind::from_raw(Signal::CONT.as_raw()), Signal::CONT),
    ];
    for (kind, passed) in passed {
        let (mut arrivals, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move {
            while arrivals.recv().await.is_some() && sender.send(passed).await.is_ok() {}
        });
    }
    Ok(receiver)
}

/// What this process does next.
enum ListenEvent {
    Signal(Signal),
    Ended(ExitStatus),
    Changed(Vec<PathBuf>),
    /// A worker that has ended by itself has rested.
    Rested,
}

/// What starts workers, and when.
struct Listener<'a> {
    program: PathBuf,
    global: &'a GlobalArgs,
    exec: Option<String>,
    /// Files below these are shown without them.
    bases: Vec<PathBuf>,
    watched: Watched,
}

/// How it stands with the worker.
struct WorkerState {
    worker: Option<Worker>,
    /// Told to stop.
    is_told: bool,
    /// The worker ends for another one.
    has_changed: bool,
    /// When a worker that has ended by itself is started again; without a time and a worker a change is needed.
    rested: Option<Instant>,
    seen: Seen,
}

impl WorkerState {
    fn obey(&mut self, signal: Signal) {
        self.is_told |= is_stop(signal);
        if let Some(worker) = &self.worker {
            worker.signal(signal);
        }
    }
}

fn is_stop(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal)
}

impl<'a> Listener<'a> {
    fn new(
        watch: Vec<PathBuf>,
        exec: Option<String>,
        global: &'a GlobalArgs,
    ) -> anyhow::Result<Self> {
        let config = global.load_config()?;
        // A program that is built anew is another file with this name.
        let program = std::env::current_exe().context("could not find this program's file")?;
        let mut bases = vec![std::env::current_dir().context("could not find this directory")?];
        if let Some(missing) = watch.iter().find(|path| !path.exists()) {
            return Err(UsageError(format!(
                "`--watch` names {}, which is not there",
                missing.display()
            ))
            .into());
        }
        let sources = (exec.as_ref())
            .map(|command| sources(&program, &bases[0], &watch, command))
            .transpose()?;
        let mut roots = watch;
        roots.extend(sources.into_iter().flatten());
        if let Some(laravel) = config.laravel() {
            bases.push(laravel.base.clone());
            roots.extend(Watched::of_app(&laravel.base));
            let environment = global.env.as_ref().map(|env| format!(".env.{env}"));
            roots.extend(environment.map(|file| laravel.base.join(file)));
        }
        roots.push(file_of(&config));
        roots.extend(config.manifest().map(|(path, _)| path.to_owned()));
        roots.push(program.clone());
        Ok(Self {
            program,
            global,
            exec,
            bases,
            watched: Watched::new(roots),
        })
    }

    async fn listen(self) -> anyhow::Result<ExitCode> {
        let mut signals = signals().context("could not listen for signals")?;
        let (seen, is_too_much) = self.watched.look().await;
        if is_too_much {
            output::notice(&format!(
                "there are more than {} files to watch: changes of the others go unseen",
                seen.len()
            ));
        }
        let mut course = WorkerState {
            worker: Some(Worker::start(&self.program)?),
            is_told: false,
            has_changed: false,
            rested: None,
            seen,
        };
        loop {
            match self.next(&mut course, &mut signals).await? {
                ListenEvent::Signal(signal) => course.obey(signal),
                ListenEvent::Ended(status) if course.is_told => return Ok(code_of(status)),
                ListenEvent::Ended(_) if std::mem::take(&mut course.has_changed) => {
                    course.worker = None;
                    self.start_anew(&mut course).await?;
                }
                ListenEvent::Ended(status) => {
                    let lived = course.worker.take().map(|worker| worker.began.elapsed());
                    course.rested = rest(status, lived.unwrap_or_default());
                }
                ListenEvent::Rested => {
                    self.start_again(&mut course);
                }
                ListenEvent::Changed(files) => {
                    self.follow(files, &mut course, &mut signals).await?;
                }
            }
            if course.is_told && course.worker.is_none() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    async fn next(
        &self,
        course: &mut WorkerState,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> anyhow::Result<ListenEvent> {
        let rests = course.worker.is_none();
        Ok(tokio::select! {
            biased;
            Some(signal) = signals.recv() => ListenEvent::Signal(signal),
            status = end_of(course.worker.as_mut()) => {
                ListenEvent::Ended(status.context("could not wait for the worker")?)
            }
            () = crate::time::sleep_until(course.rested), if rests => ListenEvent::Rested,
            changed = self.watched.changed(&mut course.seen), if !course.is_told => {
                ListenEvent::Changed(changed)
            }
        })
    }

    /// Brings a change into effect.
    async fn follow(
        &self,
        files: Vec<PathBuf>,
        course: &mut WorkerState,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> anyhow::Result<()> {
        let Some(mut files) = self.build(files, course, signals).await? else {
            return Ok(());
        };
        // A linker takes the old program away before the new one is there, which is a change, too.
        let is_gone = |file: &PathBuf| *file == self.program && !file.exists();
        if files.iter().any(is_gone) {
            let name = self.named(std::slice::from_ref(&self.program));
            output::inform(&format!("{name} is gone: the worker goes on."));
        }
        files.retain(|file| !is_gone(file));
        if files.is_empty() {
            return Ok(());
        }
        let changed = self.named(&files);
        output::inform(&format!(
            "{changed} changed: the worker ends its jobs and starts again."
        ));
        if let Some(worker) = &course.worker {
            course.has_changed = true;
            worker.signal(Signal::TERM);
        } else {
            self.start_anew(course).await?;
        }
        Ok(())
    }

    /// Starts a worker; if its program cannot be started now, later.
    fn start_again(&self, course: &mut WorkerState) {
        course.rested = None;
        match Worker::start(&self.program) {
            Ok(worker) => course.worker = Some(worker),
            Err(error) => {
                output::notice(&output::with_causes(&error));
                course.rested = Some(Instant::now() + REST);
            }
        }
    }

    /// Starts a worker after a change.
    async fn start_anew(&self, course: &mut WorkerState) -> anyhow::Result<()> {
        let global = self.global.clone();
        let written = tokio::task::spawn_blocking(move || refresh_manifest(&global)).await;
        if let Some(path) = written.context("the manifest was not written")? {
            Watched::forgive(&path, &mut course.seen);
        }
        self.start_again(course);
        Ok(())
    }

    /// Builds the program if its source is among these files, and returns the others; `None` if there are none, or this
    /// process is told to stop.
    async fn build(
        &self,
        files: Vec<PathBuf>,
        course: &mut WorkerState,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let Some(command) = &self.exec else {
            return Ok(Some(files));
        };
        let (sources, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|path| is_source(path));
        if !sources.is_empty() {
            let changed = self.named(&sources);
            output::inform(&format!("{changed} changed: {command}"));
            let mut building = building(command)?;
            let status = loop {
                tokio::select! {
                    status = building.wait() => {
                        break status.with_context(|| format!("could not wait for `{command}`"))?;
                    }
                    Some(signal) = signals.recv() => course.obey(signal),
                }
                if course.is_told {
                    return Ok(None);
                }
            };
            if !status.success() {
                output::notice(&format!(
                    "`{command}` failed ({status}): the worker goes on as it was"
                ));
            }
        }
        // A program that is built anew is a change by itself.
        Ok((!others.is_empty()).then_some(others))
    }

    /// Some files in words.
    fn named(&self, files: &[PathBuf]) -> String {
        let Some(first) = files.first() else {
            return "Nothing".to_owned();
        };
        let base = (self.bases.iter())
            .filter_map(|base| first.strip_prefix(base).ok())
            .min_by_key(|short| short.as_os_str().len());
        let first = base.unwrap_or(first).display();
        match files.len() - 1 {
            0 => first.to_string(),
            1 => format!("{first} and another file"),
            others => format!("{first} and {others} other files"),
        }
    }
}

/// Starts a build, which is killed if it is dropped.
fn building(command: &str) -> anyhow::Result<Child> {
    // Standard output may be for a program to read.
    let output = std::io::stderr().as_fd().try_clone_to_owned();
    Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::from(output.context("could not start a build")?))
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("could not run `{command}`"))
}

/// The configuration file, or where it would be.
fn file_of(config: &Config) -> PathBuf {
    let default = Path::new(crate::config::DEFAULT_FILE);
    config.path().unwrap_or(default).to_owned()
}

/// Has PHP write the manifest anew if it is no longer true of the app; returns its path if it has.
fn refresh_manifest(global: &GlobalArgs) -> Option<PathBuf> {
    // The worker says what is wrong with the configuration.
    let config = global.read_config().ok()?;
    let (path, _) = config.manifest()?;
    if config.stale_manifest().is_empty() {
        return None;
    }
    let has_secrets = config.manifest_has_secrets();
    match manifest::write(path, has_secrets, global) {
        Ok(()) => {
            output::inform(&format!("{} was written again.", path.display()));
            Some(path.to_owned())
        }
        Err(error) => {
            output::notice(&format!(
                "{} stays as it is, though the app has changed: {}",
                path.display(),
                output::with_causes(&error)
            ));
            None
        }
    }
}
