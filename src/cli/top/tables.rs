//! The lists: their columns, and the lines with what was seen.

use ratatui::layout::{Alignment, Constraint};
use ratatui::text::Span;

use super::state::Pane;
use crate::shown::name;
use crate::telemetry::{Chart, Overview};

/// A column of a list.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: Constraint,
    pub(super) alignment: Alignment,
    /// What is lost of a text that is too long: its start, not its end.
    pub(super) loses_start: bool,
}

/// A column that takes what others leave.
const fn wide(title: &'static str) -> Column {
    Column {
        title,
        width: Constraint::Fill(1),
        alignment: Alignment::Left,
        loses_start: false,
    }
}

/// A column like [`wide`] for names that differ at their end: classes, and hosts with process ids.
const fn name_at_end(title: &'static str) -> Column {
    Column {
        loses_start: true,
        ..wide(title)
    }
}

const fn words(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width: Constraint::Length(width),
        alignment: Alignment::Left,
        loses_start: false,
    }
}

const fn number(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width: Constraint::Length(width),
        alignment: Alignment::Right,
        loses_start: false,
    }
}

impl Column {
    /// The text, cut to a width in cells of the terminal.
    pub(super) fn cut(&self, text: String, width: u16) -> String {
        let width = usize::from(width);
        let is_short = |text: &str| Span::raw(text).width() <= width;
        if is_short(&text) {
            return text;
        }
        let ends = text.char_indices().map(|(at, _)| at);
        let cut = if self.loses_start {
            ends.map(|at| format!("…{}", &text[at..]))
                .find(|cut| is_short(cut))
        } else {
            ends.rev()
                .map(|at| format!("{}…", &text[..at]))
                .find(|cut| is_short(cut))
        };
        cut.unwrap_or_default()
    }
}

/// A list as text.
pub(super) struct List {
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) lines: Vec<Vec<String>>,
    /// What stands there without lines.
    pub(super) empty: &'static str,
}

impl List {
    pub(super) fn of(pane: Pane, overview: &Overview) -> Self {
        match pane {
            Pane::Queues => queues(overview),
            Pane::Classes => classes(overview),
            Pane::Failures => failures(overview),
            Pane::Running => running(overview),
            Pane::Workers => workers(overview),
        }
    }

    fn new(title: impl Into<String>, columns: impl Into<Vec<Column>>) -> Self {
        Self {
            title: title.into(),
            columns: columns.into(),
            lines: Vec::new(),
            empty: "none",
        }
    }
}

fn queues(overview: &Overview) -> List {
    let columns = [
        wide("queue"),
        number("pending", 8),
        number("delayed", 8),
        number("due", 6),
        number("reserved", 8),
        number("oldest", 8),
        number("per min", 8),
        number("failed", 7),
    ];
    let mut list = List::new("Queues", columns);
    list.empty = "no artisand worker of this Redis is alive";
    for line in &overview.queues {
        let mut queue = name(&line.queue).into_owned();
        if line.connection != overview.connection {
            queue = format!("{}:{queue}", name(&line.connection));
        }
        if line.is_paused {
            queue.insert_str(0, "PAUSED ");
        }
        let sizes = line.sizes.as_ref();
        let size = |size: Option<u64>| size.map_or("?".to_owned(), count);
        // The minute before this one, which is not over.
        let rate = line.chart.as_ref().map(Chart::ended);
        let rate = rate.and_then(|ended| ended.into_iter().nth_back(1));
        list.lines.push(vec![
            queue,
            size(sizes.map(|sizes| sizes.pending)),
            size(sizes.map(|sizes| sizes.delayed)),
            size(sizes.map(|sizes| sizes.due + sizes.expired)),
            size(sizes.map(|sizes| sizes.reserved)),
            time(sizes.and_then(|sizes| sizes.oldest)),
            size(rate),
            count(line.failed),
        ]);
    }
    list
}

fn classes(overview: &Overview) -> List {
    let columns = [
        name_at_end("class"),
        number("attempts", 9),
        number("failed", 8),
        number("released", 8),
        number("avg", 8),
        number("max", 8),
    ];
    let mut list = List::new("Classes, in the last hour", columns);
    for line in &overview.classes {
        list.lines.push(vec![
            name(&line.class).into_owned(),
            count(line.attempts),
            count(line.failed),
            count(line.released),
            time(line.average),
            time(line.longest),
        ]);
    }
    list
}

fn failures(overview: &Overview) -> List {
    let (title, groups) = match &overview.failed {
        None => ("Failed jobs".to_owned(), &[][..]),
        Some(failed) => {
            let of = count(u64::try_from(failed.looked_at).unwrap_or(u64::MAX));
            let title = format!(
                "{} failed jobs, the latest {of} of them:",
                count(failed.total)
            );
            (title, &failed.groups[..])
        }
    };
    let columns = [
        name_at_end("class"),
        name_at_end("exception"),
        number("jobs", 7),
    ];
    let mut list = List::new(title, columns);
    for group in groups {
        list.lines.push(vec![
            name(&group.class).into_owned(),
            name(&group.exception).into_owned(),
            group.count.to_string(),
        ]);
    }
    list
}

fn running(overview: &Overview) -> List {
    let columns = [
        name_at_end("class"),
        words("queue", 12),
        number("for", 8),
        number("attempt", 8),
        Column {
            loses_start: true,
            ..words("worker", 18)
        },
    ];
    let mut list = List::new("Running jobs", columns);
    for job in &overview.running {
        list.lines.push(vec![
            name(&job.class).into_owned(),
            name(&job.queue).into_owned(),
            time(Some(overview.now - job.since)),
            job.attempts.to_string(),
            name(&job.worker).into_owned(),
        ]);
    }
    list
}

fn workers(overview: &Overview) -> List {
    let more = overview.more_workers;
    let title = match more {
        0 => "Workers".to_owned(),
        more => format!("Workers, and {more} more"),
    };
    let columns = [
        name_at_end("worker"),
        wide("queues"),
        words("state", 8),
        number("busy", 9),
        number("done", 9),
        number("failed", 7),
        number("up", 8),
        words("version", 7),
    ];
    let mut list = List::new(title, columns);
    for worker in &overview.workers {
        let queues: Vec<_> = worker.queues.iter().map(|queue| name(queue)).collect();
        list.lines.push(vec![
            format!("{}:{}", name(&worker.host), worker.pid),
            queues.join(","),
            worker.state.to_owned(),
            format!("{}/{}", worker.busy, worker.slots),
            count(worker.done),
            count(worker.failed),
            time(Some(overview.now - worker.started)),
            name(&worker.version).into_owned(),
        ]);
    }
    list
}

/// A number with commas between its thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in its two largest units; `-` for none.
pub(super) fn time(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds.filter(|seconds| seconds.is_finite()) else {
        return "-".to_owned();
    };
    let seconds = seconds.max(0.0);
    if seconds < 0.9995 {
        return format!("{:.0}ms", seconds * 1000.0);
    }
    if seconds < 59.95 {
        return format!("{seconds:.1}s");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and it is not negative"
    )]
    let whole = seconds.round() as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match (hours, days) {
        (0, _) => format!("{minutes}m {:02}s", whole % 60),
        (_, 0) => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

/// Columns that stand for numbers, the largest being the highest.
pub(super) fn bars(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let bar = |number: &u64| match number {
        0 => ' ',
        number => {
            let place = u128::from(number - 1) * BARS.len() as u128 / u128::from(most);
            BARS[usize::try_from(place).unwrap_or(0).min(BARS.len() - 1)]
        }
    };
    numbers.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        let rows = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (number, expected) in rows {
            assert_eq!(count(number), expected);
        }
        let rows = [
            (-5.0, "0ms"),
            (0.0123, "12ms"),
            (0.9996, "1.0s"),
            (59.94, "59.9s"),
            (59.96, "1m 00s"),
            (3599.0, "59m 59s"),
            (3725.0, "1h 02m"),
            (90_061.0, "1d 01h"),
            (f64::NAN, "-"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(time(Some(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn bars_are_as_high_as_numbers_are_large() {
        assert_eq!(bars(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(bars(&[u64::MAX, 1, 0]), "█▁ ");
        assert_eq!(bars(&[0, 0]), "  ");
    }
}
