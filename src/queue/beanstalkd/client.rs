//! The protocol of beanstalkd: commands to bytes, and bytes to replies. No I/O.
//!
//! A reply says nothing about the command that it answers, so every command is noted by its [`Verb`] and a reply
//! that the verb cannot have means that both sides are out of step. Nothing is allocated for a length that a server
//! only announces: a reply is read from bytes that are there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use super::tube::Tube;
use crate::queue::QueueRefusal;

/// Longest line of a reply: `USING` and a tube's name of 200 bytes.
const LONGEST_LINE: usize = 256;
/// Longest body that a server can have: the limit of its option `-z`.
const LONGEST_BODY: usize = 1 << 30;
/// The priority of all jobs, Laravel's and pheanstalk's default.
const PRIORITY: u32 = 1024;

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Use,
    Put,
    Watch,
    Ignore,
    Reserve,
    Delete,
    Release,
    Bury,
    Touch,
    /// `stats-job`, `stats-tube`, `list-tubes`.
    Stats,
    /// `peek-ready` and the others.
    Peek,
    KickJob,
}

/// Commands to send in one go, and what they ask for.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) verbs: Vec<Verb>,
}

impl Batch {
    fn line(&mut self, verb: Verb, line: std::fmt::Arguments<'_>) {
        self.verbs.push(verb);
        // Writing to a vector cannot fail.
        let _ = write!(self.bytes, "{line}\r\n");
    }

    pub(super) fn use_tube(&mut self, tube: &Tube) {
        self.line(Verb::Use, format_args!("use {tube}"));
    }

    pub(super) fn tube_used(&mut self) {
        self.line(Verb::Use, format_args!("list-tube-used"));
    }

    pub(super) fn put(&mut self, delay: u32, time_to_run: u32, payload: &[u8]) {
        let length = payload.len();
        self.line(
            Verb::Put,
            format_args!("put {PRIORITY} {delay} {time_to_run} {length}"),
        );
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn watch(&mut self, tube: &Tube) {
        self.line(Verb::Watch, format_args!("watch {tube}"));
    }

    pub(super) fn ignore(&mut self, tube: &Tube) {
        self.line(Verb::Ignore, format_args!("ignore {tube}"));
    }

    pub(super) fn reserve(&mut self, seconds: u32) {
        self.line(
            Verb::Reserve,
            format_args!("reserve-with-timeout {seconds}"),
        );
    }

    pub(super) fn delete(&mut self, id: u64) {
        self.line(Verb::Delete, format_args!("delete {id}"));
    }

    pub(super) fn release(&mut self, id: u64, delay: u32) {
        self.line(
            Verb::Release,
            format_args!("release {id} {PRIORITY} {delay}"),
        );
    }

    pub(super) fn bury(&mut self, id: u64) {
        self.line(Verb::Bury, format_args!("bury {id} {PRIORITY}"));
    }

    pub(super) fn touch(&mut self, id: u64) {
        self.line(Verb::Touch, format_args!("touch {id}"));
    }

    pub(super) fn stats_job(&mut self, id: u64) {
        self.line(Verb::Stats, format_args!("stats-job {id}"));
    }

    pub(super) fn stats_tube(&mut self, tube: &Tube) {
        self.line(Verb::Stats, format_args!("stats-tube {tube}"));
    }

    pub(super) fn list_tubes(&mut self) {
        self.line(Verb::Stats, format_args!("list-tubes"));
    }

    /// Looks at the head of a place of the tube in use: `ready`, `delayed` or `buried`.
    pub(super) fn peek(&mut self, place: &'static str) {
        self.line(Verb::Peek, format_args!("peek-{place}"));
    }

    pub(super) fn kick_job(&mut self, id: u64) {
        self.line(Verb::KickJob, format_args!("kick-job {id}"));
    }
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "internals",
    expect(missing_docs, reason = "the protocol's own words")
)]
pub enum Reply {
    Using,
    /// The id is that of a put; `bury` and `release` answer without one.
    Inserted,
    Buried,
    Watching,
    Reserved {
        id: u64,
        body: Vec<u8>,
    },
    Found {
        id: u64,
        body: Vec<u8>,
    },
    Ok(Vec<u8>),
    TimedOut,
    DeadlineSoon,
    Deleted,
    Released,
    Touched,
    Kicked,
    NotFound,
    JobTooBig,
    Draining,
    OutOfMemory,
    InternalError,
    BadFormat,
    UnknownCommand,
}

impl Verb {
    /// Whether a server that is in step with this connection can answer so.
    pub(super) fn accepts(self, reply: &Reply) -> bool {
        use Reply as R;
        match reply {
            R::OutOfMemory | R::InternalError | R::BadFormat | R::UnknownCommand => {
                // After one of these it is not known which tubes the connection watches.
                !matches!(self, Self::Watch | Self::Ignore)
            }
            R::Using => self == Self::Use,
            R::Inserted | R::JobTooBig | R::Draining => self == Self::Put,
            R::Watching => matches!(self, Self::Watch | Self::Ignore),
            R::Reserved { .. } | R::TimedOut | R::DeadlineSoon => self == Self::Reserve,
            R::Found { .. } => self == Self::Peek,
            R::Ok(_) => self == Self::Stats,
            R::Deleted => self == Self::Delete,
            R::Released => self == Self::Release,
            R::Buried => matches!(self, Self::Put | Self::Release | Self::Bury),
            R::Touched => self == Self::Touch,
            R::Kicked => self == Self::KickJob,
            R::NotFound => matches!(
                self,
                Self::Delete
                    | Self::Release
                    | Self::Bury
                    | Self::Touch
                    | Self::Stats
                    | Self::Peek
                    | Self::KickJob
            ),
        }
    }
}

impl Reply {
    /// The refusal that a general error is; `None` for other replies.
    pub(super) fn error(&self) -> Option<QueueRefusal> {
        let said = match self {
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::InternalError => "INTERNAL_ERROR",
            Self::BadFormat => "BAD_FORMAT",
            Self::UnknownCommand => "UNKNOWN_COMMAND",
            _ => return None,
        };
        Some(QueueRefusal::Said(said))
    }

    /// Reads the reply that the bytes begin with, and its length; `None` if it is not all there.
    ///
    /// # Errors
    ///
    /// The bytes do not begin with a reply. The text says why, without any of the bytes: they may be a payload.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let head = &bytes[..bytes.len().min(LONGEST_LINE)];
        let Some(end) = memchr::memchr(b'\n', head) else {
            let is_too_long = head.len() == LONGEST_LINE;
            return if is_too_long {
                Err("a line without end")
            } else {
                Ok(None)
            };
        };
        let line =
            (head[..end].strip_suffix(b"\r")).ok_or("a line feed without carriage return")?;
        let line = std::str::from_utf8(line).map_err(|_| "a line that is no text")?;
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let words: Vec<&str> = words.take(3).collect();
        let with_body = match (name, &words[..]) {
            ("OK", [length]) => (None, length),
            ("RESERVED" | "FOUND", [id, length]) => (Some(number(id)?), length),
            _ => {
                let reply = Self::of_line(name, &words)?;
                return Ok(Some((reply, end + 1)));
            }
        };
        let (id, length) = with_body;
        let length = usize::try_from(number(length)?)
            .ok()
            .filter(|length| *length <= LONGEST_BODY)
            .ok_or("a body longer than any server has")?;
        let begin = end + 1;
        let Some(body) = bytes.get(begin..begin + length + 2) else {
            return Ok(None);
        };
        let body = (body.strip_suffix(b"\r\n")).ok_or("a body without its end")?;
        let body = body.to_vec();
        let reply = match (name, id) {
            ("RESERVED", Some(id)) => Self::Reserved { id, body },
            (_, Some(id)) => Self::Found { id, body },
            (_, None) => Self::Ok(body),
        };
        Ok(Some((reply, begin + length + 2)))
    }

    fn of_line(name: &str, words: &[&str]) -> Result<Self, &'static str> {
        let reply = match (name, words) {
            ("USING", [_]) => Self::Using,
            ("INSERTED", [id]) => number(id).map(|_| Self::Inserted)?,
            ("BURIED", [id]) => number(id).map(|_| Self::Buried)?,
            ("BURIED", []) => Self::Buried,
            ("WATCHING", [count]) => number(count).map(|_| Self::Watching)?,
            ("KICKED", []) => Self::Kicked,
            ("TIMED_OUT", []) => Self::TimedOut,
            ("DEADLINE_SOON", []) => Self::DeadlineSoon,
            ("DELETED", []) => Self::Deleted,
            ("RELEASED", []) => Self::Released,
            ("TOUCHED", []) => Self::Touched,
            ("NOT_FOUND", []) => Self::NotFound,
            ("JOB_TOO_BIG", []) => Self::JobTooBig,
            ("DRAINING", []) => Self::Draining,
            ("OUT_OF_MEMORY", []) => Self::OutOfMemory,
            ("INTERNAL_ERROR", []) => Self::InternalError,
            ("BAD_FORMAT", []) => Self::BadFormat,
            ("UNKNOWN_COMMAND", []) => Self::UnknownCommand,
            _ => return Err("a line that is no reply"),
        };
        Ok(reply)
    }
}

/// A number in digits, without a sign.
fn number(digits: &str) -> Result<u64, &'static str> {
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_plain.then(|| digits.parse().ok()).flatten();
    number.ok_or("a number that is none")
}

/// The fields of a `stats-job` or `stats-tube`: lines `name: value`, values quoted in some versions.
pub(super) fn fields(body: &[u8]) -> BTreeMap<&str, &str> {
    let lines = std::str::from_utf8(body).unwrap_or_default().lines();
    let pairs = lines.filter_map(|line| line.split_once(": "));
    pairs
        .map(|(name, value)| (name.trim(), unquoted(value)))
        .collect()
}

/// How long a reservation still lasts. A server that is late with its end tells less than nothing.
pub(super) fn time_left(fields: &BTreeMap<&str, &str>) -> Option<Duration> {
    let seconds: i64 = fields.get("time-left")?.parse().ok()?;
    // A time to run has 32 bits; a clock that jumped must not make more of it.
    let seconds = u32::try_from(seconds.max(0)).unwrap_or(u32::MAX);
    Some(Duration::from_secs(seconds.into()))
}

/// The items of a list: lines `- item`.
pub(super) fn items(body: &[u8]) -> impl Iterator<Item = &str> {
    let lines = std::str::from_utf8(body).unwrap_or_default().lines();
    lines.filter_map(|line| line.strip_prefix("- ").map(unquoted))
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn replies_are_read_when_they_are_whole() {
        let reserved = Reply::Reserved {
            id: 7,
            body: b"a\r\nb".to_vec(),
        };
        #[rustfmt::skip]
        let rows = [
            ("RESERVED 7 4\r\na\r\nb\r\nDELETED\r\n", Ok(Some((reserved, 20)))),
            ("DELETED\r\n", Ok(Some((Reply::Deleted, 9)))),
            ("OK 0\r\n\r\n", Ok(Some((Reply::Ok(Vec::new()), 8)))),
            ("BURIED 3\r\n", Ok(Some((Reply::Buried, 10)))),
            ("", Ok(None)),
            ("DELETED\r", Ok(None)),
            ("RESERVED 7 4\r\na\r\nb\r", Ok(None)),
            // Room for a body is made when it arrives.
            ("FOUND 1 1073741824\r\n", Ok(None)),
            ("FOUND 1 1073741825\r\n", Err("a body longer than any server has")),
            ("FOUND 1 99999999999999999999999\r\n", Err("a number that is none")),
            ("RESERVED -1 2\r\nhi\r\n", Err("a number that is none")),
            ("RESERVED 1 +2\r\nhi\r\n", Err("a number that is none")),
            ("RESERVED 1 1\r\nhi\r\n", Err("a body without its end")),
            ("DELETED \r\n", Err("a line that is no reply")),
            ("DELETED\n", Err("a line feed without carriage return")),
            ("+OK\r\n", Err("a line that is no reply")),
        ];
        for (bytes, expected) in rows {
            assert_eq!(Reply::read(bytes.as_bytes()), expected, "{bytes:?}");
        }
        assert_eq!(Reply::read(&[b'x'; 255]), Ok(None));
        assert_eq!(Reply::read(&[b'x'; 256]), Err("a line without end"));
    }

    #[test]
    fn what_a_server_tells_of_itself_is_read_quoted_or_not() {
        let job = b"---\nid: 1\ntube: \"a;b\"\nstate: reserved\ntime-left: 9\nreserves: 2\n";
        let fields = fields(job);
        let values = ["tube", "reserves", "none"].map(|name| fields.get(name).copied());
        assert_eq!(values, [Some("a;b"), Some("2"), None]);
        let tubes: Vec<&str> = items(b"---\n- default\n- \"t\"\n").collect();
        assert_eq!(tubes, ["default", "t"]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_no_reply_is_longer_than_they_are(
            start in "(RESERVED|FOUND|OK|USING|BURIED|) ?[0-9]{0,20} ?[0-9]{0,3}\r?\n?",
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let bytes = [start.as_bytes(), &rest].concat();
            if let Ok(Some((_, length))) = Reply::read(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            fields(&bytes);
            items(&bytes).count();
            // Random bytes are almost never a whole reply with a body.
            let line = format!("RESERVED 7 {}\r\n", rest.len());
            let whole = [line.as_bytes(), &rest, b"\r\n"].concat();
            let reserved = Reply::Reserved { id: 7, body: rest };
            prop_assert_eq!(Reply::read(&whole), Ok(Some((reserved, whole.len()))));
        }
    }
}
