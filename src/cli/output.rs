//! The only module that prints.

#![expect(clippy::print_stderr, reason = "this is where everything is printed")]

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Prints data; a reader that has gone away ends nothing.
pub(super) fn data(text: &str) {
    let _ = write!(std::io::stdout().lock(), "{text}");
}

/// Prints an error with its causes, as artisan shows one.
pub(super) fn error(error: &anyhow::Error) {
    let mut message = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    eprintln!("\n   ERROR  {}\n", message.trim_end());
}

/// Prints what clap has to say: help to standard output, mistakes to standard error.
pub(super) fn clap(error: &clap::Error) {
    // A closed pipe is no reason to fail.
    let _ = error.print();
}

/// Whether to colour standard output.
pub(super) fn is_coloured(no_ansi: bool) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !no_ansi && !no_color && std::io::stdout().is_terminal()
}

/// Whether a person looks at standard output.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Columns of the terminal: `COLUMNS`, the terminal's own word, else 80.
pub(super) fn width() -> usize {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.trim().parse().ok());
    let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    columns
        .or_else(terminal)
        .filter(|width| *width > 0)
        .unwrap_or(80)
}

/// Writes lines on a thread of its own, so that a slow terminal keeps no job waiting.
#[derive(Debug)]
pub(super) struct LineWriter {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl LineWriter {
    /// Lines that may wait; beyond that whoever prints waits, so that memory has a bound.
    const WAITING: usize = 8192;

    pub(super) fn new() -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(Self::WAITING);
        let thread = std::thread::Builder::new()
            .name("output".into())
            .spawn(move || write_lines(&waiting))?;
        Ok(Self {
            lines: Some(lines),
            thread: Some(thread),
        })
    }

    /// Hands a line (or several, each ended) to the thread.
    pub(super) fn line(&self, line: String) {
        if let Some(lines) = &self.lines {
            // The thread ends only when we hang up, or when nobody can be written to.
            let _ = lines.send(line);
        }
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_lines(waiting: &Receiver<String>) {
    let mut out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout());
    while let Ok(line) = waiting.recv() {
        let mut next = Some(line);
        while let Some(line) = next {
            if out.write_all(line.as_bytes()).is_err() {
                return;
            }
            next = waiting.try_recv().ok();
        }
        if out.flush().is_err() {
            return;
        }
    }
}
