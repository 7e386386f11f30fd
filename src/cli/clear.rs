//! `queue:clear`

use std::io::IsTerminal as _;
use std::process::ExitCode;

use super::style::Screen;
use super::{GlobalArgs, named, open};
use crate::config::Config;
use crate::queue::QueueName;
use crate::time::Clock;

/// Arguments of `queue:clear`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ClearArgs {
    /// The name of the queue connection to clear [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// The names of the queues to clear, comma separated [default: the connection's queue]
    #[arg(long, value_name = "NAMES", num_args = 0..=1, default_missing_value = "")]
    queue: Option<String>,

    /// Force the operation to run when in production
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(args: ClearArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut screen = Screen::new(global);
    if is_prohibited(&config, "queue:clear", &mut screen)? {
        return Ok(ExitCode::FAILURE);
    }
    if !args.force && is_production(&config) && !confirm(&mut screen, global)? {
        return Ok(ExitCode::FAILURE);
    }
    let name = named(&config, args.connection.as_deref());
    if let Some(class) = not_clearable(&config, &name) {
        screen.error(&format!("Clearing queues is not supported on [{class}]"))?;
        return Ok(ExitCode::FAILURE);
    }
    let (queue, connection) = open(&config, &name).await?;
    let names = match filled(args.queue) {
        Some(names) => names,
        None => connection.default_queue.to_string(),
    };
    let names = parse(&names);
    let (now, mut count) = (Clock::System.now(), 0);
    for name in &names {
        count += queue.clear(&QueueName::from(*name), now).await?;
    }
    let jobs = if count == 1 { "job" } else { "jobs" };
    let queues = if names.len() == 1 { "queue" } else { "queues" };
    let names = names.join(", ");
    screen.info(&format!(
        "Cleared {count} {jobs} from the [{names}] {queues}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// An argument, unless it is falsy in PHP.
pub(super) fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !matches!(&**text, "" | "0"))
}

/// Whether the app's code forbids a command, according to its manifest; if so, this prints it.
///
/// # Source
///
/// `Illuminate\Console\Prohibitable`.
pub(super) fn is_prohibited(
    config: &Config,
    command: &str,
    screen: &mut Screen,
) -> anyhow::Result<bool> {
    let manifest = config.manifest();
    let is_prohibited = manifest.is_some_and(|(_, manifest)| {
        let prohibited = &manifest.code.prohibited;
        prohibited.iter().any(|name| name == command)
    });
    if is_prohibited {
        screen.warn("This command is prohibited from running in this environment")?;
    }
    Ok(is_prohibited)
}

/// Splits names at commas: trimmed, each once.
pub(super) fn parse(names: &str) -> Vec<&str> {
    let mut parsed = Vec::new();
    for name in names.split(',').map(str::trim) {
        if !matches!(name, "" | "0") && !parsed.contains(&name) {
            parsed.push(name);
        }
    }
    parsed
}

/// Whether the app is in production; an app with an unreadable environment counts as such.
fn is_production(config: &Config) -> bool {
    let environment = config.laravel().map(crate::config::Laravel::environment);
    environment.is_some_and(|name| name.is_err() || name.is_ok_and(|name| name == "production"))
}

/// Asks whether to continue; without a terminal, or with `--no-interaction`, the answer is no.
///
/// # Source
///
/// `Illuminate\Console\ConfirmableTrait`.
fn confirm(screen: &mut Screen, global: &GlobalArgs) -> anyhow::Result<bool> {
    screen.alert("Application In Production")?;
    let can_ask = !global.no_interaction && std::io::stdin().is_terminal();
    if can_ask && screen.confirm("Are you sure you want to run this command?")? {
        return Ok(true);
    }
    screen.warn("Command cancelled")?;
    Ok(false)
}

/// Class of a queue that Laravel cannot clear either.
fn not_clearable(config: &Config, connection: &str) -> Option<&'static str> {
    let driver = config.laravel()?.queue_driver(connection).ok()??;
    Some(match &*driver {
        "sync" => "SyncQueue",
        "null" => "NullQueue",
        "beanstalkd" => "BeanstalkdQueue",
        "background" => "BackgroundQueue",
        "deferred" => "DeferredQueue",
        "failover" => "FailoverQueue",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_cleared_once() {
        assert_eq!(parse(" a,b ,,a,0,c:d"), ["a", "b", "c:d"]);
    }
}
