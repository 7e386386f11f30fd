//! Output of a PHP process, logged line by line with the job that ran.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::handler::JobInfo;
use crate::payload::JobUuid;

/// Longest line of the log; longer ones are cut into several.
const LONGEST_LINE: usize = 8 << 10;
/// Most bytes of one job's output that are logged.
const MOST_LOGGED: usize = 256 << 10;
/// Bytes that each line counts in addition to its text, so that many short lines use up the limit, too.
const PER_LINE: usize = 128;
/// Last lines that are kept to explain why a process ended.
const LAST_LINES: usize = 5;

/// Splits one of the two streams into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
}

/// Logs lines, and keeps the last ones.
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
    /// Takes new bytes and logs the complete lines.
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

    /// Logs the rest that has no line break.
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
    /// Attributes the lines that follow to this job, or to none.
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
            // Lines of an earlier job do not explain why this job ends the process.
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
            // The log's formatter quotes it: output of a job cannot forge log lines.
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
