//! What a worker reports to its supervisor: a line for each change of a child.

use std::fmt;
use std::time::Duration;

use rustix::process::Pid;

/// Process name and `argv[0]`, by which the program knows that it is a supervisor.
///
/// The name differs from the worker's, so that `pkill artisand` leaves the
/// supervisor alone. It must not contain the word `horizon`, by which
/// `horizon:purge` finds processes to end.
pub(super) const NAME: &str = "jobs-supervisor";
/// The variable of a child's environment that holds its token.
pub(super) const VARIABLE: &str = "ARTISAND_CHILD";

/// A report about one child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The child is about to be started.
    Spawn(&'a str),
    /// The child leads the process group of its process id, which has this long to end by itself.
    Started(&'a str, Pid, Duration),
    /// The child has ended, or was not started.
    Ended(&'a str),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawn(token) => writeln!(f, "spawn {token}"),
            Self::Started(token, leader, farewell) => {
                let (leader, farewell) = (leader.as_raw_nonzero(), farewell.as_millis());
                writeln!(f, "started {token} {leader} {farewell}")
            }
            Self::Ended(token) => writeln!(f, "ended {token}"),
        }
    }
}

impl<'a> Line<'a> {
    /// Reads a line; `None` if it is not complete.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (verb, token) = (words.next()?, words.next()?);
        match verb {
            "spawn" => Some(Self::Spawn(token)),
            "started" => {
                let leader = Pid::from_raw(words.next()?.parse().ok()?)?;
                let farewell = Duration::from_millis(words.next()?.parse().ok()?);
                Some(Self::Started(token, leader, farewell))
            }
            "ended" => Some(Self::Ended(token)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_child_is_understood() {
        let pid = Pid::from_raw(7).unwrap();
        for line in [
            Line::Spawn("a-1"),
            Line::Started("a-1", pid, Duration::from_secs(1)),
            Line::Ended("a-1"),
        ] {
            assert_eq!(Line::parse(&line.to_string()), Some(line));
        }
        for line in ["", "spawn", "started a", "started a 0 5", "hello a"] {
            assert_eq!(Line::parse(line), None, "{line}");
        }
    }
}
