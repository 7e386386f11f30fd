//! `queue:pause`, `queue:resume`

use std::process::ExitCode;

use super::GlobalArgs;
use super::restart::shared_cache;
use super::style::Screen;
use crate::cache::{Cache, Error, keys};
use crate::config::Config;
use crate::php::Value;

/// Arguments of `queue:pause` and `queue:resume`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    /// The name of the queue, or connection:queue
    #[arg(value_name = "QUEUE")]
    queue: Option<String>,

    /// All queues on all connections
    #[arg(long)]
    all: bool,
}

/// What is paused: its cache key, its name in messages, and the first Laravel version whose workers obey the key.
struct Subject {
    key: String,
    name: String,
    since: (u32, u32),
}

impl Subject {
    /// `None` if the arguments name nothing.
    fn of(args: &PauseArgs, config: &Config) -> Option<Self> {
        if args.all {
            return Some(Self {
                key: keys::ALL_PAUSED.to_owned(),
                name: "all queues across all connections".to_owned(),
                since: (13, 25),
            });
        }
        let named = args.queue.as_deref();
        let named = named.filter(|queue| !matches!(*queue, "" | "0"))?;
        let (connection, queue) = parse(named, || config.default_connection());
        Some(Self {
            key: keys::paused(&connection, queue),
            name: format!("queue [{connection}:{queue}]"),
            since: (12, 40),
        })
    }

    /// Warns if the app's own workers ignore the pause.
    fn warn_if_unknown(&self, config: &Config, screen: &mut Screen) -> anyhow::Result<()> {
        let laravel = config.known_laravel()?;
        if laravel.major_minor() >= self.since {
            return Ok(());
        }
        let version = laravel.version.as_deref().unwrap_or("this version");
        let (major, minor) = self.since;
        screen.warn(&format!(
            "PHP workers of Laravel {version} ignore it, those of {major}.{minor} and later follow it, as do artisand's workers"
        ))
    }
}

/// Splits an argument into connection and queue.
///
/// # Source
///
/// `Illuminate\Queue\Console\Concerns\ParsesQueue`.
fn parse(argument: &str, default_connection: impl FnOnce() -> String) -> (String, &str) {
    let (connection, queue) = match argument.split_once(':') {
        Some((connection, queue)) => (connection.to_owned(), queue),
        None => (default_connection(), argument),
    };
    let is_empty = matches!(queue, "" | "0");
    (connection, if is_empty { "default" } else { queue })
}

pub(super) async fn pause(args: PauseArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    run(&args, global, true).await
}

pub(super) async fn resume(args: PauseArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    run(&args, global, false).await
}

async fn run(args: &PauseArgs, global: &GlobalArgs, pauses: bool) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut screen = Screen::new(global);
    if pauses && is_unpolled(&config, "pause") {
        screen.error("Queue pausing is currently disabled.")?;
        return Ok(ExitCode::FAILURE);
    }
    let Some(subject) = Subject::of(args, &config) else {
        screen.error("A queue name is required unless the --all option is used")?;
        return Ok(ExitCode::FAILURE);
    };
    let Some(cache) = shared_cache(&config, &mut screen)? else {
        return Ok(ExitCode::FAILURE);
    };
    signal(&cache, &subject.key, pauses).await?;
    let done = if pauses { "paused" } else { "resumed" };
    let name = &subject.name;
    screen.info(&format!("Job processing on {name} has been {done}"))?;
    subject.warn_if_unknown(&config, &mut screen)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the app's code keeps its workers from asking for a signal, according to its manifest.
pub(super) fn is_unpolled(config: &Config, signal: &str) -> bool {
    let manifest = config.manifest();
    manifest.is_some_and(|(_, known)| known.code.unpolled.iter().any(|known| known == signal))
}

/// Sets or removes the mark that workers obey.
pub(super) async fn signal(cache: &Cache, key: &str, pauses: bool) -> Result<(), Error> {
    if pauses {
        cache.forever(key, &Value::Bool(true)).await
    } else {
        cache.forget(key).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_named_as_laravel_names_them() {
        #[rustfmt::skip]
        let rows = [
            ("high", ("main", "high")), ("redis:high", ("redis", "high")), ("redis:a:b", ("redis", "a:b")),
            ("redis:", ("redis", "default")), (":high", ("", "high")), ("redis:0", ("redis", "default")),
        ];
        for (argument, (connection, queue)) in rows {
            let parsed = parse(argument, || "main".to_owned());
            assert_eq!(parsed, (connection.to_owned(), queue), "{argument}");
        }
    }
}
