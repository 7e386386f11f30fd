//! The journal: lines that the jobs of `php-interop/app` write when they run.

use serde::Deserialize;

use super::redis::RedisServer;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Line {
    /// `rust` or `php`.
    pub(crate) by: String,
    /// Name of the job.
    pub(crate) id: String,
    /// Absent in lines of callbacks.
    pub(crate) uuid: Option<String>,
    pub(crate) attempts: Option<u32>,
    pub(crate) pid: u32,
    /// Unix seconds.
    pub(crate) at: f64,
    pub(crate) event: String,
}

/// The journal from this line on.
pub(crate) fn since(redis: &RedisServer, first: usize) -> Vec<Line> {
    let first = first.to_string();
    let lines: Vec<Vec<u8>> =
        redis.query(&[b"LRANGE", b"interop:journal", first.as_bytes(), b"-1"]);
    lines.iter().map(|line| read(line)).collect()
}

/// A line as it is in the list.
pub(crate) fn read(line: &[u8]) -> Line {
    serde_json::from_slice(line)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(line)))
}
