//! `queue:work`

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;

mod args;
mod helpers;
mod plan;
mod records;
mod runtimes;
mod start;
mod warnings;

pub(super) use args::{WorkArgs, without_bounds};
use plan::Plan;
pub(super) use runtimes::Runtimes;
use start::Stores;

use super::console::{Console, banner};
use super::job_line::Style;
use super::output::{LineWriter, Log};
use super::summary::Summary;
use super::{GlobalArgs, log, output};
use crate::config::{self, Config};
use crate::handler::HeldLocks;
use crate::handler::Services;
use crate::process::raise_file_limit;
use crate::routing::Registry;
use crate::time::{Clock, UnixSeconds};
use crate::worker::{Control, Observer, Report};

/// Runs a worker; returns when it has stopped.
pub(super) fn run(
    args: &WorkArgs,
    global: &GlobalArgs,
    registry: &Registry,
    observers: Vec<Arc<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    let settings_of = Clock::System.now();
    let mut config = global.read_config()?;
    let lines = Log::new().context("could not start the thread that writes the log")?;
    log::start(global, args.json, config.timezone()?, lines.clone())?;
    config.ask_about_classes();
    // Whatever the result, write the log before reporting it.
    let ended = work((&config, settings_of), args, global, registry, observers);
    lines.finish();
    ended
}

/// Runs a worker after the log is set up.
fn work(
    (config, settings_of): (&Config, UnixSeconds),
    args: &WorkArgs,
    global: &GlobalArgs,
    registry: &Registry,
    observers: Vec<Arc<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    let mut plan = Plan::new(config, args, registry)?;
    plan.env.clone_from(&global.env);
    config.check_programs()?;
    warnings::warn_of_mappings(config, &plan);
    let runtimes = Runtimes::new(plan.runs_here(), plan.options.concurrency, plan.threads)?;
    let entered = runtimes.enter();
    let stores = Stores::open(config, &plan, settings_of)?;
    let (services, failed_jobs) = (&stores.services, stores.failed_jobs.as_ref());
    check_dispatched(registry, services)?;
    warnings::warn_of_gaps(config, &plan.router, services, failed_jobs);
    drop(entered);
    let held = services.middleware.held.clone();
    let console = Arc::new(console(config, args, global, &plan)?);
    let summary = args.summary.then(Arc::<Summary>::default);
    let observers = all_observers(&console, summary.as_ref(), observers);
    let control = Control::new();
    let beside = (runtimes.overseer(), runtimes.threads());
    let working = start::run(config, plan, stores, observers, beside, &control);
    // Before the first job starts.
    let signals = runtimes.obey_signals(&control)?;
    let ended = runtimes.block_on(async {
        let report = tokio::select! {
            report = working => report,
            code = control.abandoned() => {
                free_locks(runtimes.overseer(), &held, FREEING_LOCKS).await;
                return Ok(Err(code));
            }
            signals = signals => match signals.context("the task of signals ended")? {},
            summed = sum_up(summary.as_deref(), &console) => {
                summed.context("could not listen for SIGUSR1")?;
                unreachable!("signals are obeyed forever")
            }
        };
        if let Some(summary) = &summary {
            console.print(summary.lines(&console));
        }
        free_locks(runtimes.overseer(), &held, FREEING_LOCKS).await;
        report.map(Ok)
    });
    runtimes.shut_down();
    Ok(ended?.map_or_else(ExitCode::from, |report| exit_code(&report)))
}

/// Refuses to start if jobs that handlers dispatch do not fit their classes.
fn check_dispatched(registry: &Registry, services: &Services) -> anyhow::Result<()> {
    let Some(manifest) = services.manifest.as_deref().or(services.told.as_deref()) else {
        return Ok(());
    };
    // A manifest without classes knows the app's settings alone.
    let types = registry.dispatched_types().iter();
    for dispatched in types.filter(|_| !manifest.classes.is_empty()) {
        let checked = dispatched.check(manifest);
        let notes = checked.with_context(|| format!("handlers dispatch `{}`", dispatched.name))?;
        for note in notes {
            tracing::warn!("{note}");
        }
    }
    Ok(())
}

/// The console first, then the summary, then those of a custom program.
fn all_observers(
    console: &Arc<Console>,
    summary: Option<&Arc<Summary>>,
    observers: Vec<Arc<dyn Observer>>,
) -> Vec<Arc<dyn Observer>> {
    let mut all = vec![Arc::clone(console) as Arc<dyn Observer>];
    all.extend(summary.cloned().map(|summary| summary as Arc<dyn Observer>));
    all.extend(observers);
    all
}

/// The exit code of a worker's process.
fn exit_code(report: &Report) -> ExitCode {
    if report.released > 0 {
        tracing::warn!(jobs = report.released, "jobs were cancelled and released");
    }
    if report.unsettled > 0 {
        ExitCode::from(1)
    } else {
        report.reason.into()
    }
}

/// The writer of job lines on standard output; on a terminal it first prints the banner.
fn console(
    config: &Config,
    args: &WorkArgs,
    global: &GlobalArgs,
    plan: &Plan,
) -> anyhow::Result<Console> {
    let style = Style {
        json: args.json,
        quiet: global.quiet,
        verbose: global.verbose > 0,
        coloured: global.is_coloured(),
        width: output::width(),
        timezone: config.output_timezone()?,
    };
    if !args.json && !global.quiet && output::is_terminal() {
        let php = (plan.is_for_php())
            .then(|| config::pool_options(config, &plan.options, None).processes);
        output::data(&banner(&plan.options.queues, php, style.coloured))?;
    }
    let out = if style.json {
        LineWriter::alone()
    } else {
        LineWriter::new()
    };
    let out = out.context("could not start the output thread")?;
    Ok(Console::new(style, out))
}

/// Prints the summary on SIGUSR1; without a summary the system handles the signal, as in `queue:work`.
async fn sum_up(summary: Option<&Summary>, console: &Console) -> std::io::Result<()> {
    match summary {
        Some(summary) => summary.obey_signal(console).await,
        None => std::future::pending().await,
    }
}

/// How long the end of the process waits for locks that jobs still hold.
const FREEING_LOCKS: Duration = Duration::from_secs(3);

/// Frees the locks that jobs still hold: blocking handlers that did not return end with this process. Returns how many
/// could not be freed.
///
/// The wait runs on the overseer: where a handler blocks the only thread of the jobs, no timeout ends there. A lock stays
/// then if its connection was opened by that thread, as those of databases may be.
async fn free_locks(overseer: Option<Handle>, held: &HeldLocks, within: Duration) -> usize {
    let locks = match overseer {
        Some(overseer) => {
            let locks = held.clone();
            let freeing = overseer.spawn(async move { locks.free_all(within).await });
            freeing.await.unwrap_or_else(|_| held.len())
        }
        None => held.free_all(within).await,
    };
    if locks > 0 {
        tracing::error!(
            locks,
            "locks of jobs could not be freed: they stay until they run out"
        );
    }
    locks
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::mpsc;

    use super::*;
    use crate::cache::{Cache, FileStore, FileStoreOptions};
    use crate::handler::JobContext;
    use crate::time::Clock;

    #[test]
    fn a_handler_that_blocks_the_only_thread_keeps_its_lock_but_not_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let options = FileStoreOptions {
            directory: directory.path().to_owned(),
            lock_directory: directory.path().to_owned(),
            permission: None,
            separate_locks: true,
        };
        let cache = Cache::file(FileStore::new(options, Clock::System));
        let lock = cache.lock("lock", "me", Duration::ZERO);
        let (one, held) = (NonZeroUsize::MIN, HeldLocks::default());
        let runtimes = Runtimes::new(true, one, one).unwrap();
        let context = JobContext::of_payload(b"{\"job\":\"A\",\"data\":{}}").unwrap();
        let taken = held.take(lock.clone(), Duration::ZERO, context.holds());
        let taken = runtimes.block_on(taken).unwrap().unwrap();
        let (gate, waits) = mpsc::channel::<()>();
        let (tell, started) = mpsc::channel();
        let entered = runtimes.enter();
        tokio::spawn(async move {
            tell.send(()).unwrap();
            // Ends with an error once the other end is dropped.
            let _ = waits.recv();
        });
        drop(entered);
        started.recv().unwrap();
        let free = |within| free_locks(runtimes.overseer(), &held, within);
        assert_eq!(runtimes.block_on(free(Duration::from_millis(50))), 1);
        drop(gate);
        // As where other threads are left.
        assert_eq!(runtimes.block_on(free(Duration::from_secs(60))), 0);
        assert_eq!(runtimes.block_on(lock.current_owner()).unwrap(), None);
        drop(taken);
        runtimes.shut_down();
    }
}
