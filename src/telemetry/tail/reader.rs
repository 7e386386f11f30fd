//! The listener's side: says what it wants, and reads what workers write.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Keys, TailLevel};
use crate::connection::{Error, Redis, RedisOptions};

/// How often a listener says what it wants, and for how many seconds it counts.
const RENEW: Duration = Duration::from_secs(3);
const LIVES: u64 = 12;
/// How long one read waits for events, in milliseconds.
const BLOCK: u64 = 1000;
/// How long the server may take to answer a read: it has hung, or the network is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most entries of one read.
const AT_ONCE: usize = 64;
/// Most workers whose numbers are remembered.
const MOST_WORKERS: usize = 4096;
/// Before the first entry of any stream.
const BEGINNING: &str = "0-0";

/// Something that a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// An event of this worker, as it wrote it: [`TailEvent::read`](super::TailEvent::read) reads it.
    Event {
        /// Host and process.
        worker: String,
        /// The event.
        line: Vec<u8>,
    },
    /// Events of this worker that are missing: it had no room for them, Redis was away, or the listener was too slow.
    Dropped {
        /// Host and process.
        worker: String,
        /// How many.
        events: u64,
    },
}

/// Listens to all workers whose queues are on this Redis, under the same prefix.
#[derive(Debug)]
pub struct Tail {
    redis: Redis,
    /// A read blocks its connection.
    reading: Redis,
    keys: Keys,
    wanted: TailLevel,
    /// When the listener last said what it wants.
    renewed: Option<Instant>,
    /// The entry that was read last; `None` if it has to be looked up.
    last: Option<String>,
    /// Whether the stream may have begun anew.
    is_in_doubt: bool,
    numbers: HashMap<String, u64>,
}

/// The identity of an entry, and its fields.
type Entry = (String, HashMap<String, Vec<u8>>);

impl Tail {
    /// Prepares to listen from now on.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn new(redis: &RedisOptions, wanted: TailLevel) -> Result<Self, Error> {
        let redis = Redis::new(redis)?;
        Ok(Self {
            reading: redis.another(PATIENCE),
            keys: Keys::new(redis.prefix()),
            redis,
            wanted,
            renewed: None,
            last: None,
            is_in_doubt: false,
            numbers: HashMap::new(),
        })
    }

    /// What was heard within about a second, maybe nothing.
    ///
    /// # Errors
    ///
    /// The server cannot be asked. The next call tries again, and goes on where this one left off.
    pub async fn next(&mut self) -> Result<Vec<Heard>, Error> {
        let heard = self.read().await;
        if heard.is_err() {
            self.renewed = None;
            self.is_in_doubt = true;
        }
        heard
    }

    async fn read(&mut self) -> Result<Vec<Heard>, Error> {
        if self.last.is_none() || self.is_in_doubt {
            let newest = self.newest().await?;
            // A server that has lost its data may have another clock, too.
            let is_behind = |last: &String| moment(&newest) < moment(last);
            if self.last.as_ref().is_none_or(is_behind) {
                self.last = Some(newest);
            }
            self.is_in_doubt = false;
        }
        if self.renewed.is_none_or(|at| at.elapsed() >= RENEW) {
            let now = Instant::now();
            let mut listen = redis::cmd("SETEX");
            listen.arg(self.keys.listener(self.wanted)).arg(LIVES);
            self.redis.command::<()>(listen.arg(1)).await?;
            self.renewed = Some(now);
        }
        let mut read = redis::cmd("XREAD");
        (read.arg("COUNT").arg(AT_ONCE).arg("BLOCK").arg(BLOCK))
            .arg("STREAMS")
            .arg(&self.keys.stream)
            .arg(self.last.as_deref().unwrap_or(BEGINNING));
        let streams: Option<Vec<(String, Vec<Entry>)>> = self.reading.command(&read).await?;
        let mut heard = Vec::new();
        for (id, fields) in streams.into_iter().flatten().flat_map(|(_, all)| all) {
            self.hear(&fields, &mut heard);
            self.last = Some(id);
        }
        Ok(heard)
    }

    /// The newest entry of the stream.
    async fn newest(&self) -> Result<String, Error> {
        let mut newest = redis::cmd("XREVRANGE");
        (newest.arg(&self.keys.stream).arg("+").arg("-"))
            .arg("COUNT")
            .arg(1);
        let newest: Vec<Entry> = self.redis.command(&newest).await?;
        let newest = newest.into_iter().next();
        Ok(newest.map_or_else(|| BEGINNING.to_owned(), |(id, _)| id))
    }

    fn hear(&mut self, fields: &HashMap<String, Vec<u8>>, heard: &mut Vec<Heard>) {
        let text = |name: &str| {
            let value = fields.get(name)?;
            std::str::from_utf8(value).ok()
        };
        let number = |name: &str| text(name)?.parse::<u64>().ok();
        let (Some(name), Some(first), Some(events)) =
            (text("worker"), number("number"), fields.get("events"))
        else {
            return;
        };
        // The last word only tells processes apart.
        let worker = name.rsplit_once(':').map_or(name, |(worker, _)| worker);
        let dropped = match self.numbers.get(name) {
            Some(next) => first.saturating_sub(*next),
            None => number("dropped").unwrap_or(0),
        };
        if dropped > 0 {
            heard.push(Heard::Dropped {
                worker: worker.to_owned(),
                events: dropped,
            });
        }
        let lines = events.split(|byte| *byte == b'\n');
        let before = heard.len();
        heard.extend(
            lines
                .filter(|line| !line.is_empty())
                .map(|line| Heard::Event {
                    worker: worker.to_owned(),
                    line: line.to_owned(),
                }),
        );
        let count = u64::try_from(heard.len() - before).unwrap_or(u64::MAX);
        if self.numbers.len() >= MOST_WORKERS && !self.numbers.contains_key(name) {
            self.numbers.clear();
        }
        (self.numbers).insert(name.to_owned(), first.saturating_add(count));
    }
}

/// The parts of an entry's identity, in order.
fn moment(id: &str) -> (u64, u64) {
    let (milliseconds, number) = id.split_once('-').unwrap_or((id, "0"));
    let number_of = |text: &str| text.parse().unwrap_or(0);
    (number_of(milliseconds), number_of(number))
}
