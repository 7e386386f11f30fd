//! What pops that select jobs remember about the heads of queues, so that the next pop need not look at them again.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::QueueName;
use crate::time::UnixSeconds;

/// How far the heads of queues are known to hold only jobs that one executor does not take.
///
/// Other workers change the list meanwhile. A driver therefore verifies two jobs before it relies on what is known:
/// the last of the known ones, by which it finds where they end, and the first one of the list. New jobs enter a
/// list at its head or its end only, so no job gets between these two. What is known holds for the rest of the
/// second in which it was learnt: after that the worker looks again, as its mappings may answer differently.
#[derive(Debug, Default)]
pub struct Heads {
    queues: HashMap<QueueName, Head>,
    /// By queue, the rows that were passed by for good, where jobs are numbered rows.
    rows: HashMap<QueueName, HashSet<i64>>,
    learnt: Option<UnixSeconds>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Head {
    known: Known,
    /// What remains of `known` after the pop, if the pop passes by jobs that the next one may take.
    lasting: Option<Known>,
    /// Hashes of all jobs that were passed by for good.
    passed: HashSet<u64>,
    /// Hashes of those that only this pop passes by.
    waiting: HashSet<u64>,
    /// Whether two of the known jobs have the same bytes.
    has_twins: bool,
}

/// A number of jobs at the head of a queue.
#[derive(Debug, Default, Clone)]
struct Known {
    count: usize,
    /// The bytes of the last one.
    last: Vec<u8>,
}

impl Heads {
    /// Begins a pop: forgets what no longer holds.
    pub(super) fn begin(&mut self, now: UnixSeconds) {
        if self.learnt != Some(now) {
            self.queues.clear();
            self.rows.clear();
            self.learnt = Some(now);
        }
        for head in self.queues.values_mut() {
            if let Some(lasting) = head.lasting.take() {
                head.known = lasting;
                head.waiting.clear();
            }
        }
    }

    /// The rows that were passed by for good, where jobs are numbered rows.
    pub(super) fn rows(&mut self, queue: &QueueName) -> &mut HashSet<i64> {
        self.rows.entry(queue.clone()).or_default()
    }

    /// How many jobs at the head of a queue are known, and the bytes of the last one.
    pub(super) fn known(&self, queue: &QueueName) -> (usize, &[u8]) {
        self.queues.get(queue).map_or((0, &[]), |head| {
            (head.known.count, head.known.last.as_slice())
        })
    }

    /// Whether some queue has known jobs that cannot be told apart, so that it is unknown where they end.
    pub(super) fn have_twins(&self) -> bool {
        self.queues.values().any(|head| head.has_twins)
    }

    /// Notes that `count` of the known jobs are still there, and the first job of the list if there are any; false
    /// if that job is not a known one.
    pub(super) fn found(&mut self, queue: &QueueName, count: usize, first: &[u8]) -> bool {
        let first = self.hasher.hash_one(first);
        let Some(head) = self.queues.get_mut(queue) else {
            return count == 0;
        };
        head.known.count = count;
        let is_known = head.passed.contains(&first) || head.waiting.contains(&first);
        if count == 0 || !is_known {
            self.queues.remove(queue);
        }
        count == 0 || is_known
    }

    /// Adds the job behind the known ones, which stays where it is; `lasts` unless the next pop may take it.
    pub(super) fn pass(&mut self, queue: &QueueName, job: Vec<u8>, lasts: bool) {
        let head = self.queues.entry(queue.clone()).or_default();
        let hash = self.hasher.hash_one(&job[..]);
        let is_new = if lasts {
            head.passed.insert(hash) && !head.waiting.contains(&hash)
        } else {
            head.lasting.get_or_insert_with(|| head.known.clone());
            head.waiting.insert(hash) && !head.passed.contains(&hash)
        };
        head.has_twins |= !is_new;
        head.known.count += 1;
        head.known.last = job;
    }
}
