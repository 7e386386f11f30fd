//! What PHP processes say: lines on the socket, and the messages in them. No I/O.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde::Deserialize;

use crate::shown;

/// Longest line that is accepted: two PHP texts of a megabyte each, with control characters escaped as JSON.
const LONGEST_LINE: usize = 16 << 20;

/// Bytes to read at once; most messages are much shorter.
const AT_ONCE: usize = 4096;

/// Room that is kept once a long line has been read.
const KEPT: usize = 16 * AT_ONCE;

/// A message from PHP about itself or the job it runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum PoolMessage {
    /// The app has booted.
    Booted(Booted),
    /// The process waits for a job.
    Ready {
        /// The process's clock when it sent this, in nanoseconds.
        clock: u64,
    },
    /// The worker loop came round, and the app does not let it ask for a job.
    Paused,
    /// The process did not begin the job: the app is to pause, or the process had ended.
    Declined,
    /// The job has to leave the queue.
    Deleted {
        /// Laravel has finished the job, and its worker loop continues.
        #[serde(default)]
        last: bool,
    },
    /// The job has to go back to the queue.
    Released {
        /// Seconds until the next attempt; negative ones count as none.
        delay: i64,
    },
    /// The job has failed for good.
    Failed {
        /// Class of the exception.
        class: String,
        /// Its message.
        message: String,
        /// Its whole text, as Laravel records it.
        exception: String,
        /// Whether PHP has recorded the failure itself, in a store that only the app knows.
        logged: bool,
    },
    /// The attempt threw an exception.
    Exception {
        /// Class of the exception.
        class: String,
        /// Its message.
        message: String,
    },
    /// The attempt ran longer than its timeout.
    Timeout,
    /// The attempt is over.
    Done,
    /// Parts of a helper's request are over.
    Progress {
        /// How many.
        done: u64,
    },
    /// A helper's answer to a request.
    Answer {
        /// The answer.
        answer: serde_json::Value,
        /// The process ends now.
        last: bool,
    },
    /// No message: the process checks whether this end of the socket is still open.
    Parting,
    /// The app cannot boot.
    Unbootable {
        /// The reason.
        message: String,
    },
    /// The process has ended; the text describes how.
    #[serde(skip)]
    Ended(String),
}

/// What a member reports about itself when it has booted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Booted {
    /// Version of the framework.
    pub laravel: String,
    /// Version of PHP.
    pub php: String,
    /// Whether SIGTERM lets the job finish, or ends the process at once.
    pub signals: bool,
    /// Whether it passes the signals that end a worker on to the running job (since Laravel 13).
    #[serde(default)]
    pub interruptible: bool,
    /// The exit status beyond the memory limit, if the app has set one (since Laravel 13).
    #[serde(default)]
    pub memory: Option<i32>,
    /// Its process id, as it sees it itself.
    #[serde(default)]
    pub pid: u32,
    /// The process's clock when it sent this, in nanoseconds.
    pub clock: u64,
}

/// The bytes of a process, out of which its messages are taken.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// How many of them belong to lines that were taken out.
    used: usize,
    /// How many of them are known to have no line break, besides those that are used.
    looked: usize,
    /// The key in front of each message of the process. Programs that its jobs start have the socket, but not
    /// this key.
    key: String,
    /// How many jobs the process has read, by the last line that it sent.
    orders_read: u64,
    /// Whether something that another process wrote was already reported.
    has_reported_foreign: bool,
}

impl Inbox {
    /// An inbox for a process that has this key.
    pub fn new(key: String) -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            looked: 0,
            key,
            orders_read: 0,
            has_reported_foreign: false,
        }
    }

    /// The key in front of each message.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// How many jobs the process has read, by the last line that was taken out.
    pub fn orders_read(&self) -> u64 {
        self.orders_read
    }

    /// The bytes, with room for more behind them.
    pub fn room(&mut self) -> &mut Vec<u8> {
        // Here and not for each line: moving the rest for each of many short lines takes quadratic time.
        self.bytes.drain(..self.used);
        self.looked -= self.used;
        self.used = 0;
        if self.bytes.len() < AT_ONCE {
            self.bytes.shrink_to(KEPT);
        }
        self.bytes.reserve(AT_ONCE);
        &mut self.bytes
    }

    /// Takes the next message out; `None` if there is no whole line.
    ///
    /// What other processes write is passed over, and so is what is said of a job before `running`, the number of the
    /// running one.
    ///
    /// # Errors
    ///
    /// The line is not part of the protocol, or has no end.
    pub fn next(&mut self, running: u64) -> io::Result<Option<PoolMessage>> {
        while let Some(at) = memchr::memchr(b'\n', &self.bytes[self.looked..]) {
            let line = &self.bytes[self.used..self.looked + at];
            self.used = self.looked + at + 1;
            self.looked = self.used;
            let own = read_own(&self.key, line);
            let is_all_own = own.is_some() && line.starts_with(self.key.as_bytes());
            if !is_all_own && !std::mem::replace(&mut self.has_reported_foreign, true) {
                tracing::warn!(
                    bytes = line.len(),
                    "a program that a job started has written to file descriptor 3, which is the pool's: it is ignored"
                );
            }
            let Some((orders, text)) = own else { continue };
            let said: PoolMessage = serde_json::from_slice(text).map_err(|error| {
                // It may repeat a text of the line.
                let problem = error.to_string();
                io::Error::new(ErrorKind::InvalidData, shown::short(&problem))
            })?;
            self.orders_read = orders;
            if said.is_of_a_job() && orders < running {
                tracing::debug!("a PHP process said something of an earlier job");
                continue;
            }
            return Ok(Some(said));
        }
        self.looked = self.bytes.len();
        if self.looked - self.used > LONGEST_LINE {
            let problem = format!("a line of more than {LONGEST_LINE} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        Ok(None)
    }
}

/// Splits the number of jobs and the message off a line; `None` if another process wrote the line.
///
/// In front of the key there may be what another process wrote without a line break.
fn read_own<'a>(key: &str, line: &'a [u8]) -> Option<(u64, &'a [u8])> {
    let key_at = memchr::memmem::find(line, key.as_bytes())?;
    let rest = line[key_at + key.len()..].strip_prefix(b" ")?;
    let at = memchr::memchr(b' ', rest)?;
    let orders = std::str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
    Some((orders, &rest[at + 1..]))
}

impl PoolMessage {
    /// Whether the message is about the running job.
    fn is_of_a_job(&self) -> bool {
        match self {
            Self::Declined
            | Self::Deleted { .. }
            | Self::Released { .. }
            | Self::Failed { .. }
            | Self::Exception { .. }
            | Self::Timeout
            | Self::Done => true,
            Self::Booted(_)
            | Self::Ready { .. }
            | Self::Paused
            | Self::Progress { .. }
            | Self::Answer { .. }
            | Self::Parting
            | Self::Unbootable { .. }
            | Self::Ended(_) => false,
        }
    }

    /// The wait of a release.
    pub fn wait(delay: i64) -> Duration {
        crate::time::seconds(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_php_are_read() {
        #[rustfmt::skip]
        let rows = [
            (r#"{"is":"done"}"#, PoolMessage::Done),
            (r#"{"is":"deleted"}"#, PoolMessage::Deleted { last: false }),
            (r#"{"is":"deleted","last":true}"#, PoolMessage::Deleted { last: true }),
            (r#"{"is":"released","delay":7}"#, PoolMessage::Released { delay: 7 }),
            (r#"{"is":"ready","clock":7}"#, PoolMessage::Ready { clock: 7 }),
            (r#"{"is":"paused"}"#, PoolMessage::Paused),
            (r#"{"is":"booted","laravel":"8.83.26","php":"8.2.29","signals":true,"clock":75}"#,
             PoolMessage::Booted(Booted { laravel: "8.83.26".into(), php: "8.2.29".into(), signals: true, interruptible: false, memory: None, pid: 0, clock: 75 })),
            (r#"{"is":"parting"}"#, PoolMessage::Parting),
            (r#"{"is":"exception","class":"E","message":"m"}"#, PoolMessage::Exception { class: "E".into(), message: "m".into() }),
        ];
        for (line, expected) in rows {
            let said: PoolMessage =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(said, expected);
        }
        assert!(serde_json::from_str::<PoolMessage>(r#"{"is":"ended"}"#).is_err());
    }

    #[test]
    fn lines_are_bounded_and_their_errors_are_short() {
        let mut inbox = Inbox::new("k".into());
        let line = format!("k 0 {{\"is\":\"{}\"}}\n", "x".repeat(1 << 20));
        inbox.room().extend_from_slice(line.as_bytes());
        let error = inbox.next(0).unwrap_err().to_string();
        assert!(error.len() < 3000, "{}", error.len());
        assert!(inbox.next(0).unwrap().is_none());
        assert!(inbox.room().capacity() <= KEPT);
        for _ in 0..LONGEST_LINE >> 20 {
            let length = inbox.room().len();
            inbox.room().resize((1 << 20) + length, b'x');
            assert!(inbox.next(0).unwrap().is_none());
        }
        inbox.room().push(b'x');
        assert!(inbox.next(0).is_err());
    }

    #[test]
    fn a_flood_of_lines_takes_time_in_proportion() {
        let mut inbox = Inbox::new("k".into());
        inbox.room().resize(8 << 20, b'\n');
        inbox.room().extend_from_slice(b"k 1 {\"is\":\"done\"}\nk");
        let began = std::time::Instant::now();
        assert_eq!(inbox.next(1).unwrap(), Some(PoolMessage::Done));
        assert_eq!(inbox.next(1).unwrap(), None);
        assert_eq!(inbox.room(), b"k");
        // Quadratic time would take minutes.
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
