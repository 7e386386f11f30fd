//! Every key name of the Redis driver.

use std::collections::BTreeMap;

use super::{QueueName, Spool};
use crate::connection::{slot, tag};

/// How the names of queues stand in keys where keys are spread over slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tagging {
    /// In braces, unless the name has a tag: Laravel 13.5 and later.
    Braces,
    /// As they are, so that the app has to give each of its queues a tag: before Laravel 13.5.
    AsNamed,
}

/// Makes key names: the client prefix, then Laravel's name.
///
/// On a cluster all keys of a queue lie in one slot, and artisand's own records of its jobs lie there too.
///
/// # Source
///
/// `Illuminate\Queue\RedisQueue::getQueue` (docs/protocol/redis-driver.md 2, cluster.md).
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
    /// Queues whose jobs are stored under the keys of another queue.
    forwards: BTreeMap<QueueName, QueueName>,
    /// `None` where all keys are in one place.
    tagging: Option<Tagging>,
}

impl Keys {
    /// Key names under this client prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            forwards: BTreeMap::new(),
            tagging: None,
        }
    }

    /// The same keys, on a cluster.
    #[must_use]
    pub fn with_tagging(self, tagging: Option<Tagging>) -> Self {
        Self { tagging, ..self }
    }

    /// The same keys, with forwarded queues (`Queue::forward`, Laravel 13): all commands for a forwarded queue use
    /// the keys of its target.
    #[must_use]
    pub fn with_forwards(self, forwards: BTreeMap<QueueName, QueueName>) -> Self {
        Self { forwards, ..self }
    }

    /// The queue under whose keys the jobs of `queue` are stored.
    fn kept<'q>(&'q self, queue: &'q QueueName) -> &'q QueueName {
        self.forwards.get(queue).unwrap_or(queue)
    }

    /// Whether keys lie in slots.
    pub fn are_tagged(&self) -> bool {
        self.tagging.is_some()
    }

    /// The slot of all keys of a queue; 0 where there are none.
    pub fn slot(&self, queue: &QueueName) -> u16 {
        match self.tagging {
            None => 0,
            Some(_) => slot(self.list(queue).as_bytes()),
        }
    }

    /// Whether all keys of both queues are in one place.
    pub fn are_together(&self, one: &QueueName, other: &QueueName) -> bool {
        self.tagging.is_none() || one == other || self.slot(one) == self.slot(other)
    }

    /// Whether the keys of a queue are in one place, which they are not if its name lacks a tag that it needs.
    pub fn is_usable(&self, queue: &QueueName) -> bool {
        self.tagging != Some(Tagging::AsNamed)
            || self.is_in_one_slot()
            || tag(self.kept(queue).as_str().as_bytes()).is_some()
    }

    /// Whether these keys are in one place.
    pub(super) fn is_one_slot(&self, keys: &[String]) -> bool {
        let mut slots = keys.iter().map(|key| slot(key.as_bytes()));
        let first = slots.next();
        self.tagging.is_none() || slots.all(|slot| Some(slot) == first)
    }

    /// Whether the prefix puts all keys into one slot.
    pub(super) fn is_in_one_slot(&self) -> bool {
        tag(self.prefix.as_bytes()).is_some()
    }

    /// The names before which keys of a queue carry their suffixes, and their braces if they have some.
    fn named<'q>(&'q self, queue: &'q QueueName) -> (&'static str, &'q QueueName, &'static str) {
        let kept = self.kept(queue);
        match self.tagging {
            Some(Tagging::Braces) if tag(kept.as_str().as_bytes()).is_none() => ("{", kept, "}"),
            _ => ("", kept, ""),
        }
    }

    fn of_queue(&self, queue: &QueueName, suffix: &str) -> String {
        let (open, name, close) = self.named(queue);
        format!("{}queues:{open}{name}{close}{suffix}", self.prefix)
    }

    /// The name of a queue in a key without its prefix, as the app knows it.
    pub fn queue_named(&self, name: &str) -> QueueName {
        let inner = || {
            let inner = name.strip_prefix('{')?.strip_suffix('}')?;
            (self.tagging == Some(Tagging::Braces) && !inner.contains(['{', '}'])).then_some(inner)
        };
        QueueName::from(inner().unwrap_or(name))
    }

    /// A key of artisand's own that lies with the keys of a queue.
    fn own(&self, name: &str, home: &QueueName) -> String {
        if self.tagging.is_none() || self.is_in_one_slot() {
            return format!("{}{name}", self.prefix);
        }
        let (open, home, close) = self.named(home);
        format!("{}{name}:{open}{home}{close}", self.prefix)
    }

    /// List of pending jobs, oldest at the left.
    pub fn list(&self, queue: &QueueName) -> String {
        self.of_queue(queue, "")
    }

    /// Sorted set of jobs that are not yet due.
    pub fn delayed(&self, queue: &QueueName) -> String {
        self.of_queue(queue, ":delayed")
    }

    /// Sorted set of jobs that are being run.
    pub fn reserved(&self, queue: &QueueName) -> String {
        self.of_queue(queue, ":reserved")
    }

    /// List of one `1` per pending job, since Laravel 5.8.
    pub fn notify(&self, queue: &QueueName) -> String {
        self.of_queue(queue, ":notify")
    }

    /// List of payloads that cannot be decoded; artisand's own key.
    pub fn quarantine(&self, queue: &QueueName) -> String {
        self.of_queue(queue, ":quarantine")
    }

    /// A list of records that wait to be moved elsewhere; artisand's own key. On a cluster each queue has one of its
    /// own, `home`.
    pub fn spool(&self, spool: Spool, home: &QueueName) -> String {
        self.own(spool.key(), home)
    }

    /// The process that drains such a list; artisand's own key.
    pub fn spool_lease(&self, spool: Spool, home: &QueueName) -> String {
        if self.tagging.is_none() || self.is_in_one_slot() {
            return format!("{}{}:lease", self.prefix, spool.key());
        }
        // In front of the name of the queue: behind it, a queue could be called so.
        self.own(&format!("{}-lease", spool.key()), home)
    }

    /// The queue of a list of records, from its key: whether a scan has found one.
    pub(super) fn home_of(&self, spool: Spool, key: &str) -> Option<QueueName> {
        let name = key.strip_prefix(&self.prefix)?.strip_prefix(spool.key())?;
        Some(self.queue_named(name.strip_prefix(':')?))
    }

    /// The set of queues that have such lists, on a cluster; artisand's own key.
    pub(super) fn homes(&self) -> String {
        format!("{}artisand:queues", self.prefix)
    }

    /// The last error of a job; artisand's own key.
    pub fn last_error(&self, job: &str) -> String {
        format!("{}artisand:last-error:{job}", self.prefix)
    }

    /// Sorted set of the names of workers, by the second of their last heartbeat; artisand's own key.
    pub fn workers(&self) -> String {
        format!("{}artisand:workers", self.prefix)
    }

    /// The record of a worker; artisand's own key.
    pub fn worker(&self, name: &str) -> String {
        format!("{}artisand:worker:{name}", self.prefix)
    }

    /// Notes the end of a job of another server; artisand's own key.
    pub(super) fn ended(&self, home: &QueueName, id: &str) -> String {
        format!("{}:{id}", self.own("artisand:ended", home))
    }

    /// Marks a payload with this identity as pushed; artisand's own key.
    pub fn pushed(&self, queue: &QueueName, id: &str) -> String {
        format!("{}:{id}", self.own("artisand:pushed", queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(prefix: &str, tagging: Option<Tagging>) -> Keys {
        Keys::new(prefix).with_tagging(tagging)
    }

    #[test]
    fn queues_have_the_keys_that_laravel_gives_them() {
        #[rustfmt::skip]
        let rows = [
            // how names stand in keys, queue => its list
            (None, "mail", "p_queues:mail"),
            (None, "{mail}", "p_queues:{mail}"),
            (Some(Tagging::Braces), "mail", "p_queues:{mail}"),
            (Some(Tagging::Braces), "{mail}", "p_queues:{mail}"),
            (Some(Tagging::Braces), "high:{mail}", "p_queues:high:{mail}"),
            (Some(Tagging::Braces), "a{}b", "p_queues:{a{}b}"),
            (Some(Tagging::AsNamed), "{mail}", "p_queues:{mail}"),
            (Some(Tagging::AsNamed), "mail", "p_queues:mail"),
        ];
        for (tagging, queue, expected) in rows {
            let (keys, queue) = (keys("p_", tagging), QueueName::from(queue));
            assert_eq!(keys.list(&queue), expected, "{tagging:?} {queue}");
            assert_eq!(keys.delayed(&queue), format!("{expected}:delayed"));
            let name = expected.strip_prefix("p_queues:").unwrap();
            let back = keys.queue_named(name);
            assert_eq!(keys.list(&back), expected, "{tagging:?} {queue}");
        }
    }

    #[test]
    fn records_lie_with_the_queue_whose_jobs_they_end_or_have_one_name_for_all() {
        let (a, b) = (QueueName::from("a"), QueueName::from("b"));
        let spool = Spool::FollowUps;
        for keys in [keys("p_", None), keys("{p}_", Some(Tagging::Braces))] {
            let prefix = keys
                .list(&a)
                .replace("queues:a", "")
                .replace("queues:{a}", "");
            assert_eq!(
                keys.spool(spool, &a),
                format!("{prefix}artisand:follow-ups")
            );
            assert_eq!(
                keys.spool_lease(spool, &a),
                format!("{prefix}artisand:follow-ups:lease")
            );
            assert_eq!(keys.pushed(&a, "1"), format!("{prefix}artisand:pushed:1"));
            assert!(keys.are_together(&a, &b), "{prefix}");
        }
        let keys = keys("p_", Some(Tagging::Braces));
        assert!(!keys.are_together(&a, &b));
        let own = [
            keys.spool(spool, &a),
            keys.spool_lease(spool, &a),
            keys.pushed(&a, "1"),
            keys.ended(&a, "1"),
            keys.quarantine(&a),
        ];
        for key in &own {
            assert_eq!(slot(key.as_bytes()), keys.slot(&a), "{key}");
        }
        assert_eq!(own[0], "p_artisand:follow-ups:{a}");
        assert_eq!(keys.home_of(spool, &own[0]), Some(a));
        assert_eq!(keys.home_of(spool, &own[1]), None);
    }

    #[test]
    fn before_13_5_a_queue_needs_a_tag_of_its_own_or_one_in_the_prefix() {
        let rows = [("p_", "a", false), ("p_", "{a}", true), ("{p}", "a", true)];
        for (prefix, queue, expected) in rows {
            let keys = keys(prefix, Some(Tagging::AsNamed));
            assert_eq!(keys.is_usable(&queue.into()), expected, "{prefix} {queue}");
        }
    }
}
