//! `queue:monitor`

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use jiff::{Timestamp, Unit, tz::TimeZone};

use super::json::PhpJson;
use super::paint::{GREEN_BOLD, GREY, YELLOW_BOLD};
use super::style::Screen;
use super::{GlobalArgs, open, output};
use crate::payload::Payload;
use crate::queue::{Driver, QueueName, Sizes, first_waiting};
use crate::time::UnixSeconds;

/// Arguments of `queue:monitor`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct MonitorArgs {
    /// The names of the queues to monitor, comma separated: queue, or connection:queue
    #[arg(value_name = "QUEUES")]
    queues: String,

    /// The number of jobs from which on a queue is shown as ALERT
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max: u64,

    /// Output the queue size as JSON
    #[arg(long)]
    json: bool,
}

/// The report on one queue.
struct Monitored {
    connection: String,
    queue: QueueName,
    sizes: Sizes,
    oldest: Option<UnixSeconds>,
    is_busy: bool,
}

impl Monitored {
    fn size(&self) -> u64 {
        self.sizes.pending + self.sizes.delayed + self.sizes.reserved
    }

    fn json(&self) -> String {
        let oldest = self
            .oldest
            .map_or("null".to_owned(), |oldest| oldest.to_string());
        PhpJson::new()
            .any_text("connection", &self.connection)
            .any_text("queue", self.queue.as_str())
            .number("size", self.size())
            .number("pending", self.sizes.pending)
            .number("delayed", self.sizes.delayed)
            .number("reserved", self.sizes.reserved)
            .number("oldest_pending", oldest)
            .any_text("status", if self.is_busy { "ALERT" } else { "OK" })
            .object()
    }

    fn show(&self, screen: &mut Screen) -> anyhow::Result<()> {
        let name = screen
            .column()
            .plain(&format!("[{}] {}", self.connection, self.queue));
        let size = screen.column().plain(&format!("[{}] ", self.size()));
        let size = if self.is_busy {
            size.painted(YELLOW_BOLD, "ALERT")
        } else {
            size.painted(GREEN_BOLD, "OK")
        };
        screen.two_columns(&name, &size)?;
        let oldest = match self.oldest.filter(|oldest| oldest.0 != 0) {
            Some(oldest) => for_humans(oldest, Timestamp::now()),
            None => "N/A".to_owned(),
        };
        for (what, value) in [
            ("Pending jobs", self.sizes.pending.to_string()),
            ("Delayed jobs", self.sizes.delayed.to_string()),
            ("Reserved jobs", self.sizes.reserved.to_string()),
            ("Oldest pending job", oldest),
        ] {
            let (left, right) = (screen.column().plain(what), screen.column().plain(&value));
            screen.two_columns(&left, &right)?;
        }
        screen.new_line()
    }
}

pub(super) async fn run(args: MonitorArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut connections: HashMap<String, Arc<dyn Driver>> = HashMap::new();
    let mut monitored = Vec::new();
    for name in args.queues.split(',') {
        let (connection, queue) = match name.split_once(':') {
            Some((connection, queue)) => (connection.to_owned(), queue),
            None => (config.default_connection(), name),
        };
        if !connections.contains_key(&connection) {
            let (opened, _) = open(&config, &connection).await?;
            connections.insert(connection.clone(), opened);
        }
        monitored.push(look(&*connections[&connection], connection, queue, args.max).await?);
    }
    if args.json {
        let objects: Vec<String> = monitored.iter().map(Monitored::json).collect();
        output::data(&format!("[{}]\n", objects.join(",")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut screen = Screen::new(global);
    screen.new_line()?;
    let left = screen.column().painted(GREY, "Queue name");
    let right = screen.column().painted(GREY, "Size / Status");
    screen.two_columns(&left, &right)?;
    for queue in &monitored {
        queue.show(&mut screen)?;
    }
    screen.new_line()?;
    Ok(ExitCode::SUCCESS)
}

async fn look(
    opened: &dyn Driver,
    connection: String,
    queue: &str,
    max: u64,
) -> anyhow::Result<Monitored> {
    // As in Laravel, where these names mean `default` for every driver.
    let name = match queue {
        "" | "0" => "default",
        queue => queue,
    };
    let name = QueueName::from(name);
    let sizes = opened.sizes(&name).await?;
    let mut oldest = opened.first_due(&name).await?;
    if oldest.is_none() {
        let head = first_waiting(opened, &name).await?;
        oldest = head.and_then(|head| Payload::parse(&head).ok()?.created_at);
    }
    let mut monitored = Monitored {
        connection,
        queue: QueueName::from(queue),
        sizes,
        oldest,
        is_busy: false,
    };
    monitored.is_busy = monitored.size() >= max;
    Ok(monitored)
}

/// How long ago the moment is, in the largest full unit.
///
/// # Source
///
/// `Carbon\Carbon::diffForHumans`.
fn for_humans(moment: UnixSeconds, now: Timestamp) -> String {
    let utc = |timestamp: Timestamp| timestamp.to_zoned(TimeZone::UTC);
    let moment = Timestamp::from_second(moment.0).unwrap_or(now);
    let is_past = moment <= now;
    let (from, to) = if is_past {
        (moment, now)
    } else {
        (now, moment)
    };
    let span = utc(from).until((Unit::Year, &utc(to)));
    let span = span.unwrap_or_default();
    let days = span.get_days();
    let units = [
        (i32::from(span.get_years()), "year"),
        (span.get_months(), "month"),
        (days / 7, "week"),
        (days, "day"),
        (span.get_hours(), "hour"),
        (
            i32::try_from(span.get_minutes()).unwrap_or(i32::MAX),
            "minute",
        ),
    ];
    let seconds = i32::try_from(span.get_seconds()).unwrap_or(i32::MAX);
    let full = units.into_iter().find(|(count, _)| *count > 0);
    let (count, unit) = full.unwrap_or((seconds, "second"));
    let plural = if count == 1 { "" } else { "s" };
    let direction = if is_past { "ago" } else { "from now" };
    format!("{count} {unit}{plural} {direction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_said_as_carbon_says_them() {
        let now: Timestamp = "2026-03-31T12:00:00.9Z".parse().unwrap();
        #[rustfmt::skip]
        let rows = [
            ("2026-03-31T12:00:00Z", "0 seconds ago"), ("2026-03-31T11:59:59Z", "1 second ago"), ("2026-03-31T11:59:01Z", "59 seconds ago"),
            ("2026-03-31T11:59:00Z", "1 minute ago"), ("2026-03-31T10:00:01Z", "1 hour ago"), ("2026-03-30T12:00:00Z", "1 day ago"),
            ("2026-03-25T12:00:00Z", "6 days ago"), ("2026-03-24T12:00:00Z", "1 week ago"), ("2026-03-02T12:00:00Z", "4 weeks ago"),
            ("2026-02-28T12:00:00Z", "1 month ago"), ("2025-03-31T12:00:00Z", "1 year ago"), ("2026-03-31T12:00:11Z", "10 seconds from now"),
        ];
        for (moment, expected) in rows {
            let moment: Timestamp = moment.parse().unwrap();
            let said = for_humans(UnixSeconds(moment.as_second()), now);
            assert_eq!(said, expected, "{moment}");
        }
    }
}
