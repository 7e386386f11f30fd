//! What a PHP process prints: lines for the log, with the job that ran.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::handler::JobInfo;
use crate::payload::JobUuid;

/// Longest line of the log; longer ones are cut into several.
const LONGEST_LINE: usize = 8 << 10;
/// Most bytes of one job that are logged.
const MOST_LOGGED: usize = 256 << 10;
/// What a line of the log takes beside its text: many short ones are no less than a few long ones.
const PER_LINE: usize = 128;
/// Lines that are kept to say why a process ended.
const LAST_LINES: usize = 5;

/// Lines of one of the two streams.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
}

/// Where lines go.
#[derive(Debug, Default)]
pub(super) struct Log {
    job: Option<Arc<JobInfo>>,
    logged: usize,
    dropped: u64,
    last: VecDeque<String>,
    /// Process id, for the log.
    pub(super) process: Option<u32>,
}

impl Lines {
    /// Takes what was read and logs the lines that are whole.
    pub(super) fn take(&mut self, read: &[u8], stream: &'static str, log: &mut Log) {
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_whole) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            for part in text.chunks(LONGEST_LINE) {
                if self.buffer.len() + part.len() > LONGEST_LINE {
                    self.flush(stream, log);
                }
                self.buffer.extend_from_slice(part);
            }
            if is_whole {
                self.flush(stream, log);
            }
        }
    }

    /// Logs what has no end of a line.
    pub(super) fn flush(&mut self, stream: &'static str, log: &mut Log) {
        let text = String::from_utf8_lossy(&self.buffer);
        let text = text.trim_end();
        if !text.is_empty() {
            log.line(text, stream);
        }
        self.buffer.clear();
    }
}

impl Log {
    /// Lines from now on are of this job, or of none.
    pub(super) fn of(&mut self, job: Option<Arc<JobInfo>>) {
        if self.dropped > 0 {
            tracing::warn!(
                job.uuid = self.uuid(),
                php.process = self.process,
                bytes = self.dropped,
                "a job printed more than is logged: the rest was left out"
            );
        }
        if job.is_some() {
            // Why this one ends the process, another has not said.
            self.last.clear();
        }
        self.job = job;
        self.logged = 0;
        self.dropped = 0;
    }

    fn uuid(&self) -> Option<&str> {
        let payload = &self.job.as_ref()?.payload;
        payload.uuid.as_ref().map(JobUuid::bounded)
    }

    fn line(&mut self, text: &str, stream: &'static str) {
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(text.to_owned());
        if self.logged >= MOST_LOGGED {
            self.dropped += text.len() as u64;
            return;
        }
        self.logged += text.len() + PER_LINE;
        tracing::info!(
            job.uuid = self.uuid(),
            job.class = self
                .job
                .as_ref()
                .map(|job| job.payload.shown_name())
                .as_deref(),
            php.process = self.process,
            stream,
            // Quoted by whoever prints it: what a job prints forges no line.
            text,
            "php printed"
        );
    }

    /// The last lines, for a message.
    pub(super) fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_the_last_ones_kept() {
        let (mut lines, mut log) = (Lines::default(), Log::default());
        lines.take(b"one\ntw", "stdout", &mut log);
        assert_eq!(log.last_lines(), "one");
        lines.take(b"o\n\n\nthree", "stdout", &mut log);
        assert_eq!(log.last_lines(), "one; two");
        lines.flush("stdout", &mut log);
        assert_eq!(log.last_lines(), "one; two; three");
        lines.take(&vec![b'x'; 3 * LONGEST_LINE + 1], "stdout", &mut log);
        assert!(lines.buffer.len() <= LONGEST_LINE);
        for _ in 0..100 {
            lines.take(&vec![b'y'; LONGEST_LINE], "stdout", &mut log);
        }
        assert!(log.dropped > 0 && log.logged <= MOST_LOGGED + LONGEST_LINE + PER_LINE);
        assert!(log.last.len() <= LAST_LINES);
        log.of(None);
        assert_eq!((log.logged, log.dropped), (0, 0));
    }
}
