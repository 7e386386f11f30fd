//! Entries of a short time, summed up as Pulse keeps them.

use std::collections::{BTreeMap, HashMap};

use crate::queue::{ConnectionName, QueueName};

/// Seconds of the shortest bucket; all others consist of whole ones.
const MINUTE: u64 = 60;
/// Most keys of slow jobs and exceptions, each in each minute.
const MOST_KEYS: usize = 10_000;
/// Most single entries that are kept besides the sums.
const MOST_SINGLE: usize = 5000;
/// Seconds that entries are kept while the database is away.
const KEPT: u64 = 600;

/// What may happen to a job; the order is that of [`TYPES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It was pushed.
    Queued,
    /// An attempt began.
    Processing,
    /// An attempt ended without an exception.
    Processed,
    /// An attempt threw, and the job is tried again.
    Released,
    /// The job failed for good.
    Failed,
}

/// Pulse's types of these entries.
pub(super) const TYPES: [&str; 5] = ["queued", "processing", "processed", "released", "failed"];

/// How often each of them happened.
pub(super) type Counts = [u64; TYPES.len()];

/// Of an entry that has a value: type, key, and the minute's first second.
type Key = (&'static str, Box<str>, u64);

/// A value's greatest, and how many there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greatest {
    pub(super) value: u64,
    pub(super) count: u64,
}

/// One entry as it stands in `pulse_entries`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Single {
    pub(super) timestamp: u64,
    pub(super) kind: &'static str,
    pub(super) key: Box<str>,
    pub(super) value: u64,
}

/// Entries that are not written yet.
#[derive(Debug, Default)]
pub struct Gathered {
    /// By connection, queue and the minute's first second.
    pub(super) queues: HashMap<(ConnectionName, QueueName, u64), Counts>,
    pub(super) greatest: BTreeMap<Key, Greatest>,
    pub(super) single: Vec<Single>,
    /// Entries that found no room.
    pub(super) dropped: u64,
}

/// The first second of the minute.
fn minute(timestamp: u64) -> u64 {
    timestamp - timestamp % MINUTE
}

impl Gathered {
    /// True if there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.greatest.is_empty() && self.single.is_empty()
    }

    /// Counts what happened to a job of this queue.
    pub(super) fn count(
        &mut self,
        connection: &ConnectionName,
        queue: &QueueName,
        timestamp: u64,
        happened: Happened,
    ) {
        let key = (connection.clone(), queue.clone(), minute(timestamp));
        self.queues.entry(key).or_default()[happened as usize] += 1;
    }

    /// Adds an entry with a value.
    pub(super) fn add(&mut self, kind: &'static str, key: &str, timestamp: u64, value: u64) {
        let single = Single {
            timestamp,
            kind,
            key: key.into(),
            value,
        };
        let sums = Greatest { value, count: 1 };
        self.merge((kind, key.into(), minute(timestamp)), sums);
        self.keep(single);
    }

    fn merge(&mut self, key: Key, sums: Greatest) {
        if let Some(known) = self.greatest.get_mut(&key) {
            known.value = known.value.max(sums.value);
            known.count += sums.count;
        } else if self.greatest.len() < MOST_KEYS {
            self.greatest.insert(key, sums);
        } else {
            self.dropped += sums.count;
        }
    }

    fn keep(&mut self, single: Single) {
        // A card shows the sums, and looks up names here: of very many entries the first ones are enough for that.
        if self.single.len() < MOST_SINGLE {
            self.single.push(single);
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> u64 {
        let counted: u64 = self.queues.values().flatten().sum();
        let valued: u64 = self.greatest.values().map(|sums| sums.count).sum();
        counted + valued
    }

    /// Adds entries that were not written when they should have been, and drops what is too old.
    pub(super) fn add_again(&mut self, earlier: Self, now: u64) {
        let oldest = now.saturating_sub(KEPT);
        for (key, counts) in earlier.queues {
            if key.2 < oldest {
                self.dropped += counts.iter().sum::<u64>();
                continue;
            }
            let sums = self.queues.entry(key).or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        for (key, sums) in earlier.greatest {
            if key.2 < oldest {
                self.dropped += sums.count;
            } else {
                self.merge(key, sums);
            }
        }
        for single in earlier.single {
            if single.timestamp >= oldest {
                self.keep(single);
            }
        }
        self.dropped += earlier.dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_minute_are_summed_up() {
        let mut gathered = Gathered::default();
        let (connection, queue) = (ConnectionName::from("redis"), QueueName::from("default"));
        for at in [119, 120, 121, 179, 180] {
            gathered.count(&connection, &queue, at, Happened::Processed);
            gathered.add("slow_job", "App\\A", at, at);
        }
        let counts: BTreeMap<u64, u64> = (gathered.queues.iter())
            .map(|((.., minute), counts)| (*minute, counts[Happened::Processed as usize]))
            .collect();
        assert_eq!(counts, BTreeMap::from([(60, 1), (120, 3), (180, 1)]));
        let greatest: Vec<_> = (gathered.greatest.values())
            .map(|sums| (sums.value, sums.count))
            .collect();
        assert_eq!(greatest, [(119, 1), (179, 3), (180, 1)]);
        assert_eq!((gathered.single.len(), gathered.len()), (5, 10));
    }

    #[test]
    fn what_could_not_be_written_is_kept_for_some_minutes_and_counted_after_that() {
        let (connection, queue) = (ConnectionName::from("redis"), QueueName::from("default"));
        let mut earlier = Gathered::default();
        for at in [60, 720] {
            earlier.count(&connection, &queue, at, Happened::Failed);
            earlier.add("exception", "[]", at, at);
        }
        let mut gathered = Gathered::default();
        gathered.count(&connection, &queue, 725, Happened::Failed);
        gathered.add_again(earlier, 725);
        let counts = gathered.queues[&(connection, queue, 720)];
        assert_eq!(counts[Happened::Failed as usize], 2);
        assert_eq!(
            (
                gathered.greatest.len(),
                gathered.single.len(),
                gathered.dropped
            ),
            (1, 1, 2)
        );
    }

    #[test]
    fn memory_is_bounded_and_what_finds_no_room_is_counted() {
        let mut gathered = Gathered::default();
        for number in 0..MOST_KEYS + 7 {
            gathered.add("slow_job", &number.to_string(), 60, 1);
        }
        assert_eq!(gathered.greatest.len(), MOST_KEYS);
        assert_eq!((gathered.single.len(), gathered.dropped), (MOST_SINGLE, 7));
    }
}
