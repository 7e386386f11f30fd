//! `queue:migrate`
//!
//! Only a worker's pop moves due jobs to the list of their queue. Where no worker runs, because something starts
//! workers by the length of that list, this command does it.

use std::process::ExitCode;

use super::clear::{filled, parse};
use super::json::PhpJson;
use super::paint::GREY;
use super::style::Screen;
use super::{GlobalArgs, named, open, output, record_for_horizon};
use crate::queue::{Ability, Due, Error, Queue, QueueName};
use crate::time::{Clock, UnixSeconds};

/// Arguments of `queue:migrate`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct MigrateArgs {
    /// The name of the queue connection [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// The names of the queues, comma separated [default: the connection's queue]
    #[arg(long, value_name = "NAMES", env = "ARTISAND_QUEUE")]
    queue: Option<String>,

    /// Output the numbers of moved jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: MigrateArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let connection = named(&config, args.connection.as_deref());
    let (queue, settings) = open(&config, &connection).await?;
    let names = filled(args.queue).unwrap_or_else(|| settings.default_queue.to_string());
    let moves = queue.abilities().has(Ability::Migrates);
    let horizon = if moves {
        record_for_horizon(&config, &connection, &*queue)?
    } else {
        None
    };
    let screen = Screen::new(global);
    let done = migrate_queues(&*queue, &connection, &names, args.json, screen).await;
    if let Some(horizon) = horizon {
        horizon.finish().await;
    }
    done
}

/// Moves the due jobs of these queues, and shows how many they were.
async fn migrate_queues(
    queue: &(impl Queue + ?Sized),
    connection: &str,
    names: &str,
    is_json: bool,
    mut screen: Screen,
) -> anyhow::Result<ExitCode> {
    let abilities = queue.abilities();
    if !is_json {
        if !abilities.has(Ability::Migrates) {
            let driver = abilities.driver;
            screen.info(&format!(
                "Nothing to move on [{connection}]: workers of the driver [{driver}] find due jobs where they are"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        screen.new_line()?;
        let left = screen.column().painted(GREY, "Queue name");
        let right = screen.column().painted(GREY, "Moved jobs");
        screen.two_columns(&left, &right)?;
    }
    let now = Clock::System.now();
    let mut objects = Vec::new();
    for name in parse(names) {
        let moved = migrate_all(queue, &QueueName::from(name), now).await?;
        if is_json {
            objects.push(json(connection, name, abilities.driver, moved));
            continue;
        }
        let left = screen.column().plain(&format!("[{connection}] {name}"));
        let Due { delayed, reserved } = moved;
        let right = format!("{delayed} delayed, {reserved} expired");
        let right = screen.column().plain(&right);
        screen.two_columns(&left, &right)?;
    }
    if is_json {
        output::data(&format!("[{}]\n", objects.join(",")))?;
    } else {
        screen.new_line()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves all jobs of a queue that are due at this moment. Those that become due meanwhile stay, so that it ends.
async fn migrate_all(
    queue: &(impl Queue + ?Sized),
    name: &QueueName,
    now: UnixSeconds,
) -> Result<Due, Error> {
    let mut all = Due::default();
    loop {
        let moved = queue.migrate(name, now).await?;
        if moved == Due::default() {
            return Ok(all);
        }
        all.delayed += moved.delayed;
        all.reserved += moved.reserved;
    }
}

fn json(connection: &str, queue: &str, driver: &str, moved: Due) -> String {
    PhpJson::new()
        .any_text("connection", connection)
        .any_text("queue", queue)
        .any_text("driver", driver)
        .number("delayed", moved.delayed)
        .number("expired", moved.reserved)
        .object()
}
