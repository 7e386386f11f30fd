//! The command line: artisan's names and options, and artisand's own under a separate heading.
//!
//! A custom program with handlers in Rust calls [`run`] and gets the same commands:
//!
//! ```no_run
//! use artisand::handler::{self, JobContext};
//! use artisand::Registry;
//!
//! #[derive(serde::Deserialize)]
//! struct ProcessPodcast {
//!     title: String,
//! }
//!
//! async fn process_podcast(job: ProcessPodcast, _: JobContext) -> Result<(), std::io::Error> {
//!     println!("{}", job.title);
//!     Ok(())
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     artisand::cli::run(Registry::new().with("process_podcast", handler::function(process_podcast)))
//! }
//! ```

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

mod batches;
mod bench;
mod clear;
mod completions;
mod config_check;
mod connect;
mod console;
#[cfg(feature = "sqlite")]
mod demo;
mod dispatch;
mod doctor;
mod exit;
mod failed;
mod gaps;
mod global;
mod info;
mod init;
mod job_line;
mod json;
mod list;
mod listen;
mod log;
mod make_handler;
mod manifest;
mod migrate;
mod monitor;
mod names;
mod orders;
mod output;
mod paint;
mod pause;
mod peek;
mod prefixes;
mod program;
mod quarantine;
mod report;
mod restart;
mod retry;
mod retrying;
mod runtime;
mod stops;
mod style;
mod summary;
mod tail;
#[cfg(feature = "tui")]
mod top;
mod work;

use connect::{connection, named, open, open_to_work, record_for_horizon};
pub use exit::UsageError;
use global::GlobalArgs;
use program::Program;
use runtime::block_on;

use crate::routing::Registry;
use crate::worker::{Event, Observer};

/// The artisan queue daemon: runs Laravel queue jobs, beside PHP workers or instead of them
#[derive(Debug, Parser)]
#[command(
    name = "artisand",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    help_template = TEMPLATE,
    after_help = "Exit codes: 0 done, 1 error, 2 wrong usage or configuration, 12 memory limit, 137 a handler did not return",
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    global: GlobalArgs,
}

/// Sections in artisan's order.
const TEMPLATE: &str = "{about}\n\nUsage:\n  {usage}\n\n{all-args}{after-help}\n";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Process jobs of one or more queues until told to stop
    #[command(name = "queue:work", help_template = TEMPLATE)]
    Work(Box<work::WorkArgs>),
    /// Process jobs, and start again when a file of the app changes
    #[command(
        name = "queue:listen",
        help_template = TEMPLATE,
        mut_args(work::without_bounds)
    )]
    Listen(Box<listen::ListenArgs>),
    /// List all of the failed queue jobs
    #[command(name = "queue:failed", help_template = TEMPLATE)]
    Failed(failed::ListArgs),
    /// Retry a failed queue job
    #[command(name = "queue:retry", help_template = TEMPLATE)]
    Retry(retry::RetryArgs),
    /// Retry the failed jobs for a batch
    #[command(name = "queue:retry-batch", help_template = TEMPLATE)]
    RetryBatch(retry::RetryBatchArgs),
    /// Delete a failed queue job
    #[command(name = "queue:forget", help_template = TEMPLATE)]
    Forget(failed::ForgetArgs),
    /// Flush all of the failed queue jobs
    #[command(name = "queue:flush", help_template = TEMPLATE)]
    Flush(failed::FlushArgs),
    /// Prune stale entries from the failed jobs store
    #[command(name = "queue:prune-failed", help_template = TEMPLATE)]
    PruneFailed(failed::PruneArgs),
    /// Prune stale entries from the batches database
    #[command(name = "queue:prune-batches", help_template = TEMPLATE)]
    PruneBatches(batches::PruneArgs),
    /// Restart queue worker daemons after their current job
    #[command(name = "queue:restart", help_template = TEMPLATE)]
    Restart,
    /// Pause job processing for a specific queue
    #[command(name = "queue:pause", help_template = TEMPLATE)]
    Pause(pause::PauseArgs),
    /// Resume job processing for a paused queue
    #[command(name = "queue:resume", visible_alias = "queue:continue", help_template = TEMPLATE)]
    Resume(pause::PauseArgs),
    /// Push a job to its queue, as PHP would
    #[command(name = "dispatch", help_template = TEMPLATE)]
    Dispatch(dispatch::DispatchArgs),
    /// Let canaries that stopped themselves run jobs again
    #[command(name = "canary:resume", help_template = TEMPLATE)]
    CanaryResume,
    /// Delete all of the jobs from the specified queues
    #[command(name = "queue:clear", help_template = TEMPLATE)]
    Clear(clear::ClearArgs),
    /// Monitor the size of the specified queues
    #[command(name = "queue:monitor", help_template = TEMPLATE)]
    Monitor(monitor::MonitorArgs),
    /// Move due jobs to their queues, as workers do, without running any
    #[command(name = "queue:migrate", help_template = TEMPLATE)]
    Migrate(migrate::MigrateArgs),
    /// Show waiting jobs, decoded, without touching them
    #[command(name = "queue:peek", help_template = TEMPLATE)]
    Peek(peek::PeekArgs),
    /// Show the events of all artisand workers as they happen
    #[command(name = "tail", help_template = TEMPLATE)]
    Tail(tail::TailArgs),
    /// Watch all artisand workers in the terminal; pause queues, retry failed jobs
    #[cfg(feature = "tui")]
    #[command(name = "top", help_template = TEMPLATE)]
    Top(top::TopArgs),
    /// List payloads that could not be decoded; show, requeue or delete them
    #[command(name = "queue:quarantine", help_template = TEMPLATE)]
    Quarantine(quarantine::QuarantineArgs),
    /// Look for everything that could go wrong, and say what to do about it
    #[command(name = "doctor", help_template = TEMPLATE, after_help = config_check::EXIT_CODES)]
    Doctor(doctor::DoctorArgs),
    /// Demonstrate a run with captured jobs, without server and PHP
    #[cfg(feature = "sqlite")]
    #[command(name = "demo", help_template = TEMPLATE)]
    Demo(demo::DemoArgs),
    /// Measure this machine and Redis with jobs that do nothing, on a queue of its own
    #[command(name = "bench", help_template = TEMPLATE, after_help = bench::AFTER_HELP)]
    Bench(bench::BenchArgs),
    /// Check artisand.toml without Redis and PHP, and report all mistakes at once
    #[command(name = "config:check", help_template = TEMPLATE, after_help = config_check::EXIT_CODES)]
    ConfigCheck(config_check::ConfigCheckArgs),
    /// Write an artisand.toml to begin with, and a crate for a worker of your own
    #[command(name = "init", help_template = TEMPLATE)]
    Init(init::InitArgs),
    /// Print a handler in Rust for a class, with the types its jobs have
    #[command(name = "make:handler", help_template = TEMPLATE)]
    MakeHandler(make_handler::MakeHandlerArgs),
    /// Boot the app and write artisand.json, which describes its configuration and classes
    #[command(name = "manifest", help_template = TEMPLATE)]
    Manifest(manifest::ManifestArgs),
    /// List commands
    #[command(name = "list", help_template = TEMPLATE)]
    List(list::ListArgs),
    /// Display help for a command
    #[command(name = "help", help_template = TEMPLATE)]
    Help(list::HelpArgs),
    /// Print a completion script for a shell
    #[command(name = "completions", help_template = TEMPLATE)]
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    #[command(name = "man", help_template = TEMPLATE)]
    Man,
}

/// The command line under the name of the program.
fn command_line(program: &Program) -> clap::Command {
    Cli::command()
        .name(program.name.clone())
        .version(program.version.clone())
        // The last of several counts, as in artisan: scripts add theirs to those of others.
        .args_override_self(true)
}

/// Reads this process's arguments; an empty variable counts as unset.
fn parse(program: &Program) -> anyhow::Result<Cli> {
    fn without_empty_variables(command: clap::Command) -> clap::Command {
        let is_empty = |arg: &clap::Arg| {
            let value = arg.get_env().and_then(std::env::var_os);
            value.is_some_and(|value| value.is_empty())
        };
        command
            .mut_args(|arg| {
                if is_empty(&arg) {
                    arg.env(None::<&str>)
                } else {
                    arg
                }
            })
            .mut_subcommands(without_empty_variables)
    }
    let mut command = without_empty_variables(command_line(program));
    let mut args: Vec<_> = std::env::args_os().collect();
    names::complete(&command, &mut args)?;
    let matches = command.try_get_matches_from_mut(&args);
    let matches = matches.map_err(|mut error| {
        names::propose_option(&mut error, &command, &args);
        error
    })?;
    Ok(Cli::from_arg_matches(&matches)?)
}

/// Runs the command line of this process with these handlers.
///
/// Before this call a program should only create its handlers: it is started a second time as the
/// [supervisor](crate::process::supervise) of child processes.
pub fn run(registry: Registry) -> ExitCode {
    Application::new(registry).run()
}

/// A command line with handlers, and with observers of its workers' events.
///
/// ```no_run
/// use artisand::cli::Application;
/// use artisand::Registry;
/// use artisand::event::Event;
///
/// fn main() -> std::process::ExitCode {
///     Application::new(Registry::new())
///         .on(|event| {
///             if let Event::JobFailed(end) = event {
///                 eprintln!("{} failed", end.job.payload.resolve_name());
///             }
///         })
///         .run()
/// }
/// ```
pub struct Application {
    registry: Registry,
    observers: Vec<Arc<dyn Observer>>,
    program: Program,
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Application")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

impl Application {
    /// A command line with these handlers.
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            observers: Vec::new(),
            program: Program::default(),
        }
    }

    /// Sets the program's name and version, usually those of its package; the default name is that of its file.
    ///
    /// `--version`, `man`, `completions`, `list` and `doctor` show them.
    ///
    /// ```no_run
    /// use artisand::cli::Application;
    /// use artisand::Registry;
    ///
    /// fn main() -> std::process::ExitCode {
    ///     Application::new(Registry::new())
    ///         .named(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
    ///         .run()
    /// }
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>, version: impl fmt::Display) -> Self {
        let ours = env!("CARGO_PKG_VERSION");
        let name = name.into();
        let version = if name == env!("CARGO_PKG_NAME") {
            version.to_string()
        } else {
            format!("{version} (artisand {ours})")
        };
        self.program = Program { name, version };
        self
    }

    /// Adds an observer of the events of `queue:work`.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Adds a closure that receives all events of `queue:work`.
    #[must_use]
    pub fn on(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.with_observer(observer)
    }

    /// Runs the command line of this process.
    pub fn run(self) -> ExitCode {
        if let Some(code) = crate::process::supervise() {
            return code;
        }
        let cli = match parse(&self.program) {
            Ok(cli) => cli,
            Err(error) => match error.downcast::<clap::Error>() {
                Ok(error) => {
                    // For clap, help and version are "errors" that go to standard output and exit with 0.
                    let code = if error.use_stderr() { exit::USAGE } else { 0 };
                    output::clap(&error);
                    return ExitCode::from(code);
                }
                Err(error) => {
                    output::error(&error);
                    return exit::code_of(&error);
                }
            },
        };
        output::set_quiet(cli.global.quiet);
        match run_command(cli, self) {
            Ok(code) => code,
            Err(error) => {
                output::error(&error);
                exit::code_of(&error)
            }
        }
    }
}

fn run_command(cli: Cli, application: Application) -> anyhow::Result<ExitCode> {
    let Cli { command, global } = cli;
    let Application {
        registry,
        observers,
        program,
    } = application;
    // As in artisan, the list is the default command.
    let command = command.unwrap_or(Command::List(list::ListArgs::default()));
    match command {
        Command::Work(args) => work::run(&args, &global, &registry, observers),
        Command::Listen(args) => listen::run(*args, &global, &registry, observers),
        Command::Failed(args) => block_on(failed::list(args, &global)),
        Command::Retry(args) => block_on(retry::run(args, &global)),
        Command::RetryBatch(args) => block_on(retry::run_batches(args, &global)),
        Command::Forget(args) => block_on(failed::forget(args, &global)),
        Command::Flush(args) => block_on(failed::flush(args, &global)),
        Command::PruneFailed(args) => block_on(failed::prune(args, &global)),
        Command::PruneBatches(args) => block_on(batches::prune(args, &global)),
        Command::Restart => block_on(restart::run(&global)),
        Command::Dispatch(args) => block_on(dispatch::run(args, &global)),
        Command::CanaryResume => block_on(restart::resume_canaries(&global)),
        Command::Pause(args) => block_on(pause::pause(args, &global)),
        Command::Resume(args) => block_on(pause::resume(args, &global)),
        Command::Clear(args) => block_on(clear::run(args, &global)),
        Command::Monitor(args) => block_on(monitor::run(args, &global)),
        Command::Migrate(args) => block_on(migrate::run(args, &global)),
        Command::Peek(args) => block_on(peek::run(args, &global)),
        Command::Tail(args) => block_on(tail::run(args, &global)),
        #[cfg(feature = "tui")]
        Command::Top(args) => block_on(top::run(args, &global)),
        Command::Quarantine(args) => block_on(quarantine::run(args, &global)),
        Command::Doctor(args) => block_on(doctor::run(args, &global, &registry, &program)),
        #[cfg(feature = "sqlite")]
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Bench(args) => bench::run(&args, &global),
        Command::Init(args) => init::run(&args, &global),
        Command::ConfigCheck(args) => {
            // Pools of database connections need a runtime.
            block_on(async { config_check::run(&args, &global, &registry) })
        }
        Command::MakeHandler(args) => block_on(make_handler::run(args, &global)),
        Command::Manifest(args) => manifest::run(&args, &global),
        Command::List(args) => list::list(&args, command_line(&program)),
        Command::Help(args) => list::help(&args, command_line(&program)),
        Command::Completions(args) => completions::run(&args, command_line(&program)),
        Command::Man => completions::man(&command_line(&program)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_variable_of_the_command_line_is_doubted() {
        fn variables(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(clap::Arg::get_env);
            let own = own.map(|name| name.to_string_lossy().into_owned());
            own.chain(command.get_subcommands().flat_map(variables))
                .collect()
        }
        let names = variables(&Cli::command());
        assert!(names.len() > 4, "{names:?}");
        let here = tempfile::tempdir().unwrap();
        let process = names.into_iter().map(|name| (name, "1".to_owned()));
        let settings = ("ARTISAND_SETTINGS".to_owned(), "env".to_owned());
        let config = Config::load(None, Some(here.path()), process.chain([settings])).unwrap();
        let doubts = config.doubts();
        assert!(
            doubts
                .iter()
                .all(|doubt| !doubt.to_string().contains("variable")),
            "{doubts:?}"
        );
    }
}
