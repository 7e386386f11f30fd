//! Prints for all commands; no other module does.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shown::causes;
use crate::shown::is_unfit;
pub(super) use crate::shown::printable;

/// Whether nothing but errors is printed (`-q`), as in artisan.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether nothing but errors is printed.
pub(super) fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Whether nothing but errors is printed.
pub(super) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints data.
///
/// A reader that has closed the pipe is no error; a full disk is one.
pub(super) fn data(text: &str) -> anyhow::Result<()> {
    stream(text).map(drop)
}

/// Prints data that goes on until someone stops it; false if the reader has closed the pipe.
pub(super) fn stream(text: &str) -> anyhow::Result<bool> {
    if is_quiet() {
        return Ok(true);
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::from(error).context("could not write to standard output")),
    }
}

/// An error's text and the texts of its causes, without repetitions.
pub(super) fn with_causes(error: &anyhow::Error) -> String {
    causes(error.as_ref()).join(": ")
}

/// Prints an error with its causes, as artisan shows one.
pub(super) fn error(error: &anyhow::Error) {
    let message = with_causes(error);
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n   ERROR  {}\n",
        message.trim_end()
    );
}

/// Prints a message for people on standard error, apart from the data.
pub(super) fn notice(text: &str) {
    if is_quiet() {
        return;
    }
    let text = super::paint::boxed(super::paint::Tag::Warn, text, false);
    let _ = write!(std::io::stderr().lock(), "\n{text}");
}

/// Prints what this program does by itself on standard error, apart from the data.
pub(super) fn inform(text: &str) {
    if is_quiet() {
        return;
    }
    let text = super::paint::boxed(super::paint::Tag::Info, text, false);
    let _ = write!(std::io::stderr().lock(), "\n{text}");
}

/// Prints clap's output: help to standard output, mistakes to standard error.
pub(super) fn clap(error: &clap::Error) {
    // A closed pipe is not an error here.
    let _ = error.print();
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Columns of the terminal: `COLUMNS`, the terminal's own report, or 80.
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

/// Writes lines on a thread of its own, so that a slow terminal does not block the caller.
///
/// A reader that stands still costs lines, never jobs: lines that do not fit into the buffer are dropped and
/// counted, and the count is printed.
#[derive(Debug)]
pub(super) struct LineWriter {
    lines: Option<Sender<String>>,
    /// Bytes that the waiting lines take.
    held: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    dropped: Arc<AtomicUsize>,
}

impl LineWriter {
    /// Most bytes that waiting lines may take; more lines are dropped, so that memory stays bounded.
    const MOST_BYTES: usize = 16 << 20;
    /// What a waiting line counts beside its text.
    const PER_LINE: usize = 256;

    /// A writer for standard output.
    pub(super) fn new() -> std::io::Result<Self> {
        Self::to("output", std::io::stdout())
    }

    /// A writer that alone has standard output: whatever else in this process or its children writes there goes to
    /// standard error from now on.
    pub(super) fn alone() -> std::io::Result<Self> {
        // Children must not inherit the duplicate.
        let out = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        Self::to("output", std::fs::File::from(out))
    }

    /// A writer for this file or stream; `name` is the thread's name.
    fn to(name: &str, out: impl Write + Send + 'static) -> std::io::Result<Self> {
        // A bounded channel would take the memory of a full one from the start.
        let (lines, waiting) = channel();
        let (dropped, held) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let thread = std::thread::Builder::new().name(name.into()).spawn({
            let (dropped, held) = (Arc::clone(&dropped), Arc::clone(&held));
            move || write_lines(out, &waiting, &held, &dropped)
        })?;
        Ok(Self {
            lines: Some(lines),
            held,
            thread: Some(thread),
            dropped,
        })
    }

    /// Hands one or more complete lines to the thread.
    pub(super) fn line(&self, line: String) {
        let Some(lines) = &self.lines else {
            return;
        };
        let length = line.len() + Self::PER_LINE;
        let held = self.held.fetch_add(length, Ordering::Relaxed);
        if held.saturating_add(length) > Self::MOST_BYTES || lines.send(line).is_err() {
            self.held.fetch_sub(length, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How long lines are gathered: waking the thread for each line costs more than the line itself.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);
/// How long writing the last lines may take after the worker has stopped.
const LAST_LINES: Duration = Duration::from_secs(2);

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.lines = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        let deadline = Instant::now() + LAST_LINES;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// The destination of the log, line by line.
#[derive(Debug, Clone)]
pub(super) struct Log(Arc<Mutex<Option<LineWriter>>>);

impl Log {
    /// A log on standard error.
    pub(super) fn new() -> std::io::Result<Self> {
        let lines = LineWriter::to("log", std::io::stderr())?;
        Ok(Self(Arc::new(Mutex::new(Some(lines)))))
    }

    /// Writes the waiting log lines; later lines are written at once.
    pub(super) fn finish(&self) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(lines);
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = fit_to_show(&String::from_utf8_lossy(line));
        match &*lines {
            Some(lines) => lines.line(shown),
            None => std::io::stderr().write_all(shown.as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Makes a log line safe to show: content of payloads and programs must not make it megabytes long, change the
/// terminal's writing direction, or forge another line.
///
/// The formatter has already escaped the logged content; the escapes that remain are the formatter's colours.
fn fit_to_show(line: &str) -> String {
    use std::fmt::Write as _;
    /// Most bytes of a line.
    const LONGEST: usize = 16 << 10;
    let text = line.strip_suffix('\n').unwrap_or(line);
    let is_for_people = !text.starts_with('{');
    if text.len() > LONGEST && !is_for_people {
        return shortened_json(text);
    }
    let end = text.floor_char_boundary(LONGEST);
    let mut shown = String::with_capacity(end + 1);
    let mut chars = text[..end].chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if is_for_people => {
                // An escape of the formatter. Names of classes have to be found as the app writes them, and no
                // other escape begins with a capital letter.
                let next = chars.next();
                let begins_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
                if next != Some('\\') || !begins_name(chars.as_str()) {
                    shown.push(c);
                }
                shown.extend(next);
            }
            '\u{1b}' => shown.push(c),
            '\n' => shown.push_str("\n    "),
            c if is_unfit(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    if end < text.len() {
        let _ = write!(shown, "… ({} bytes more)", text.len() - end);
    }
    shown.push('\n');
    shown
}

/// Cuts the long texts of a JSON record, so that it stays JSON.
fn shortened_json(record: &str) -> String {
    use std::fmt::Write as _;
    const LONGEST_TEXT: usize = 2 << 10;
    fn shorten(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) if text.len() > LONGEST_TEXT => {
                let end = text.floor_char_boundary(LONGEST_TEXT);
                let more = text.len() - end;
                text.truncate(end);
                let _ = write!(text, "… ({more} bytes more)");
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(shorten),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(shorten),
            _ => {}
        }
    }
    match serde_json::from_str(record) {
        Ok(mut value) => {
            shorten(&mut value);
            format!("{value}\n")
        }
        Err(_) => "{}\n".to_owned(),
    }
}

fn write_lines(
    mut out: impl Write,
    waiting: &Receiver<String>,
    held: &AtomicUsize,
    dropped: &AtomicUsize,
) {
    /// Approximate number of bytes per write.
    const PIECE: usize = 1 << 16;
    let mut text = String::new();
    while let Ok(line) = waiting.recv() {
        std::thread::sleep(FLUSH_INTERVAL);
        let mut lines = 0;
        let mut next = Some(line);
        while let Some(line) = next {
            text.push_str(&line);
            lines += 1;
            next = (text.len() < PIECE)
                .then(|| waiting.try_recv().ok())
                .flatten();
        }
        let written = write_patiently(&mut out, text.as_bytes());
        let length = text.len() + lines * LineWriter::PER_LINE;
        held.fetch_sub(length, Ordering::Relaxed);
        text.clear();
        match written {
            Ok(()) => {
                let dropped = dropped.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    tracing::warn!(
                        dropped,
                        "lines were not written: standard output or error did not take them, or not fast enough"
                    );
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return,
            // A full disk may have room again later.
            Err(_) => {
                dropped.fetch_add(lines, Ordering::Relaxed);
            }
        }
    }
}

/// Writes all bytes, even to a descriptor that another process has made non-blocking.
fn write_patiently(out: &mut impl Write, mut bytes: &[u8]) -> std::io::Result<()> {
    loop {
        let done = if bytes.is_empty() {
            out.flush().map(|()| None)
        } else {
            out.write(bytes).map(Some)
        };
        match done {
            Ok(None) => return Ok(()),
            Ok(Some(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(Some(written)) => bytes = &bytes[written..],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(FLUSH_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that blocks until it is released.
    struct Stuck(Receiver<()>, Arc<AtomicUsize>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // A closed channel releases it as well.
            let _ = self.0.recv();
            self.1.fetch_add(bytes.len(), Ordering::Relaxed);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A writer that fails like a full disk for the first two writes, and then accepts little at a time.
    struct Full(usize, Arc<Mutex<Vec<u8>>>, bool);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 | 2 => Err(std::io::ErrorKind::StorageFull.into()),
                3 => Err(std::io::ErrorKind::WouldBlock.into()),
                4 => Err(std::io::ErrorKind::Interrupted.into()),
                _ => {
                    let taken = bytes.len().min(3);
                    self.1.lock().unwrap().extend(&bytes[..taken]);
                    Ok(taken)
                }
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            // The flush fails once, as if there were no room for buffered bytes.
            if std::mem::take(&mut self.2) {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        }
    }

    #[test]
    fn names_of_classes_are_logged_as_the_app_writes_them() {
        let class = "App\\Jobs\\X \\\" \n\\n \\\\A";
        let line = format!("WARN job.class={class:?}\n");
        let shown = r#"WARN job.class="App\Jobs\X \\\" \n\\n \\\A""#.replace("App\\\\", "App\\");
        assert_eq!(fit_to_show(&line), shown + "\n");
        let json = "{\"class\":\"App\\\\Jobs\"}\n";
        assert_eq!(fit_to_show(json), json);
    }

    #[test]
    fn what_payloads_say_forges_and_floods_no_log() {
        let shown = fit_to_show("WARN\u{1b}[0m \u{202e}gpj\nERROR all is lost\u{7}\n");
        assert_eq!(
            shown,
            "WARN\u{1b}[0m \\u{202e}gpj\n    ERROR all is lost\\u{7}\n"
        );
        let shown = fit_to_show(&"x".repeat(1 << 20));
        assert!(shown.len() < 20 << 10 && shown.ends_with("bytes more)\n"));
        let record =
            serde_json::json!({"level": "ERROR", "fields": {"error": "é".repeat(1 << 20), "n": 3}});
        let shown = fit_to_show(&format!("{record}\n"));
        assert!(shown.len() < 4 << 10 && shown.ends_with("}\n"));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["fields"]["n"], 3);
    }

    #[test]
    fn lines_are_written_again_once_there_is_room() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = LineWriter::to("test", Full(0, Arc::clone(&written), true)).unwrap();
        for number in 0..2 {
            lines.line(format!("lost {number}\n"));
            let deadline = Instant::now() + Duration::from_secs(30);
            while lines.dropped.load(Ordering::Relaxed) <= number {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        lines.line("first\n".into());
        lines.line("second\n".into());
        assert!(lines.dropped.load(Ordering::Relaxed) <= 2);
        drop(lines);
        assert_eq!(&*written.lock().unwrap(), b"first\nsecond\n");
    }

    #[test]
    fn lines_that_nobody_takes_fill_no_memory() {
        const LINE: usize = 1 << 20;
        let (go, told) = std::sync::mpsc::sync_channel(0);
        let written = Arc::new(AtomicUsize::new(0));
        let lines = LineWriter::to("test", Stuck(told, Arc::clone(&written))).unwrap();
        for _ in 0..100 {
            lines.line("x".repeat(LINE));
        }
        assert!(lines.held.load(Ordering::Relaxed) <= LineWriter::MOST_BYTES);
        let most = LineWriter::MOST_BYTES / (LINE + LineWriter::PER_LINE);
        let dropped = lines.dropped.load(Ordering::Relaxed);
        assert!(
            (100 - most - 1..=100 - most).contains(&dropped),
            "{dropped}"
        );
        drop(go);
        drop(lines);
        assert_eq!(written.load(Ordering::Relaxed), (100 - dropped) * LINE);
    }
}
