//! Building blocks of artisan's output: boxes, two columns, task lines, colours.
//!
//! Layout and colours are those of docs/protocol/worker.md 15.

use std::time::Duration;

use super::GlobalArgs;
use super::output;
use super::paint::{
    BLACK_ON_YELLOW, GREEN_BOLD, GREY, RED_BOLD, Tag, boxed, highlighted, is_punctuated, paint,
};
use crate::shown::printable;

/// Widest line that artisan fills with dots.
const WIDEST: usize = 150;

/// Text of one column with its colours, and its width without them.
#[derive(Debug, Default)]
pub(super) struct Column {
    text: String,
    width: usize,
    coloured: bool,
}

impl Column {
    /// Adds text.
    #[must_use]
    pub(super) fn plain(mut self, text: &str) -> Self {
        let text = printable(text);
        self.width += text.chars().count();
        self.text += &highlighted(self.coloured, &text);
        self
    }

    /// Adds text in a colour.
    #[must_use]
    pub(super) fn painted(mut self, colour: &str, text: &str) -> Self {
        let text = printable(text);
        self.width += text.chars().count();
        self.text += &paint(self.coloured, colour, &text);
        self
    }
}

/// Standard output of one command in artisan's style; every part is printed immediately.
#[derive(Debug)]
pub(super) struct Screen {
    coloured: bool,
    width: usize,
    /// Number of line ends printed last, so that boxes have exactly one blank line between them.
    line_ends: usize,
}

impl Screen {
    pub(super) fn new(global: &GlobalArgs) -> Self {
        Self {
            coloured: global.is_coloured(),
            width: output::width(),
            // The line end after the command itself.
            line_ends: 1,
        }
    }

    fn print(&mut self, text: &str) -> anyhow::Result<()> {
        let ends = text.len() - text.trim_end_matches('\n').len();
        if ends == text.len() {
            self.line_ends += ends;
        } else {
            self.line_ends = ends;
        }
        output::data(text)
    }

    /// Prints an empty line.
    pub(super) fn new_line(&mut self) -> anyhow::Result<()> {
        self.print("\n")
    }

    fn show(&mut self, tag: Tag, text: &str) -> anyhow::Result<()> {
        let above = "\n".repeat(2_usize.saturating_sub(self.line_ends));
        self.print(&(above + &boxed(tag, text, self.coloured)))
    }

    pub(super) fn info(&mut self, text: &str) -> anyhow::Result<()> {
        self.show(Tag::Info, text)
    }

    pub(super) fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.show(Tag::Warn, text)
    }

    /// An error that artisan prints to standard output.
    pub(super) fn error(&mut self, text: &str) -> anyhow::Result<()> {
        self.show(Tag::Error, text)
    }

    /// A large box over the whole width.
    pub(super) fn alert(&mut self, text: &str) -> anyhow::Result<()> {
        let end = if is_punctuated(text) { "" } else { "." };
        let text = format!("{text}{end}").to_uppercase();
        let width = self.width.saturating_sub(4);
        let line = |text: &str| {
            let text = paint(self.coloured, BLACK_ON_YELLOW, &format!("{text:^width$}"));
            format!("  {text}  \n")
        };
        let lines = ["\n", &line(""), &line(&text), &line(""), "\n"].concat();
        self.print(&lines)
    }

    /// An empty column of this screen.
    pub(super) fn column(&self) -> Column {
        Column {
            coloured: self.coloured,
            ..Column::default()
        }
    }

    /// Two columns with dots between them.
    pub(super) fn two_columns(&mut self, left: &Column, right: &Column) -> anyhow::Result<()> {
        let taken = left.width + right.width + 6;
        let dots = self.width.min(WIDEST).saturating_sub(taken);
        let dots = if dots > 0 {
            paint(self.coloured, GREY, &".".repeat(dots))
        } else {
            String::new()
        };
        self.print(&format!("  {} {dots} {}  \n", left.text, right.text))
    }

    /// The line of a task that has ended.
    pub(super) fn task(
        &mut self,
        label: &str,
        elapsed: Duration,
        is_done: bool,
    ) -> anyhow::Result<()> {
        let label = printable(label);
        // Artisan removes punctuation at the end.
        let label = label.strip_suffix(['.', '?', '!', ':']).unwrap_or(&label);
        let elapsed = run_time(elapsed);
        let taken = label.chars().count() + elapsed.chars().count() + 11;
        let dots = ".".repeat(self.width.min(WIDEST).saturating_sub(taken));
        let (colour, status) = if is_done {
            (GREEN_BOLD, "DONE")
        } else {
            (RED_BOLD, "FAIL")
        };
        let line = format!(
            "  {} {} {} {}\n",
            highlighted(self.coloured, label),
            paint(self.coloured, GREY, &dots),
            paint(self.coloured, GREY, &elapsed),
            paint(self.coloured, colour, status)
        );
        self.print(&line)
    }

    /// Asks a yes/no question; any other answer, the end of the input, and `-q` mean no.
    pub(super) fn confirm(&mut self, question: &str) -> anyhow::Result<bool> {
        if output::is_quiet() {
            return Ok(false);
        }
        output::data(&format!("  {question} (yes/no) [no]:\n > "))?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        self.line_ends = 1;
        Ok(matches!(&*answer.trim().to_lowercase(), "y" | "yes"))
    }
}

/// Units of a run time and their seconds.
const UNITS: [(&str, u64); 5] = [
    ("w", 604_800),
    ("d", 86_400),
    ("h", 3600),
    ("m", 60),
    ("s", 1),
];

/// Milliseconds up to one second, then whole units, largest first, as in Laravel since 10.13.1.
pub(super) fn run_time(elapsed: Duration) -> String {
    let milliseconds = elapsed.as_secs_f64() * 1000.0;
    if milliseconds <= 1000.0 {
        return if milliseconds >= 999.995 {
            "1,000.00ms".into()
        } else {
            format!("{milliseconds:.2}ms")
        };
    }
    let mut left = elapsed.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in UNITS {
        if left >= seconds {
            parts.push(format!("{}{unit}", left / seconds));
            left %= seconds;
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_shown_as_laravel_shows_them() {
        #[rustfmt::skip]
        let rows = [
            (0.00169, "1.69ms"), (0.999_999_9, "1,000.00ms"), (1.0, "1,000.00ms"), (1.5, "1s"), (59.9, "59s"), (61.0, "1m 1s"),
            (3661.0, "1h 1m 1s"), (90061.0, "1d 1h 1m 1s"), (604_800.0, "1w"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(run_time(Duration::from_secs_f64(seconds)), expected);
        }
    }
}
