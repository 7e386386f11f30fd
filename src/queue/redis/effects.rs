//! Keys and arguments of the scripts that carry out effects.

use std::collections::HashMap;
use std::time::Duration;

use super::RedisQueue;
use crate::connection::Arg;
use crate::queue::{Effect, Push, QueueName, Spool};

/// Keys and arguments of a script that carries out effects.
pub(super) struct EffectCall<'a> {
    pub(super) keys: Vec<String>,
    positions: HashMap<String, i64>,
    pub(super) args: Vec<Arg<'a>>,
}

impl<'a> EffectCall<'a> {
    pub(super) fn new(first: String) -> Self {
        Self {
            positions: HashMap::from([(first.clone(), 1)]),
            keys: vec![first],
            args: Vec::new(),
        }
    }

    pub(super) fn number(&mut self, number: usize) {
        self.args
            .push(Arg::Int(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    /// Position of a key, which is added if it is new.
    pub(super) fn key(&mut self, key: String) -> i64 {
        if let Some(position) = self.positions.get(&key) {
            return *position;
        }
        self.keys.push(key.clone());
        let position = i64::try_from(self.keys.len()).unwrap_or(i64::MAX);
        self.positions.insert(key, position);
        position
    }

    /// Adds an effect of the end of the job with the payload `element`; its records lie with the queue.
    pub(super) fn effect(
        &mut self,
        queues: &RedisQueue,
        queue: &QueueName,
        element: &'a [u8],
        effect: &'a Effect,
    ) {
        let keys = &queues.keys;
        let (what, key, value): (&'static [u8], String, Arg<'a>) = match effect {
            Effect::Push(push) => match queues.put_off(queue, push) {
                None => return self.push(queues, push),
                Some((spool, record)) => (b"append", keys.spool(spool, queue), Arg::Owned(record)),
            },
            Effect::Record(job) => {
                let list = keys.spool(Spool::FailedJobs, queue);
                (b"append", list, Arg::Owned(job.to_json()))
            }
            Effect::Unlock(unlock) => {
                let owner = unlock.owner.as_deref().unwrap_or_default();
                let key = unlock.place.key().to_owned();
                (b"unlock", key, Arg::Bytes(owner.as_bytes()))
            }
            Effect::Append(spool, record) => {
                (b"append", keys.spool(*spool, queue), Arg::Bytes(record))
            }
            Effect::Quarantine => (b"append", keys.quarantine(queue), Arg::Bytes(element)),
        };
        self.row(what, key, value, &PushArgs::default());
    }

    /// Adds a push, and the lock that it takes first.
    pub(super) fn push(&mut self, queues: &RedisQueue, push: &'a Push) {
        let keys = &queues.keys;
        let mut rest = PushArgs::default();
        if let Some(claim) = &push.claim {
            rest.lock = self.key(claim.place.key().to_owned());
            rest.owner = claim.owner.as_bytes();
            // Redis refuses a longer lifetime, and does so in the middle of the effects.
            let ttl = claim.ttl.min(LONGEST_LOCK).as_secs();
            rest.ttl = i64::try_from(ttl).unwrap_or(i64::MAX);
        }
        let payload = Arg::Bytes(&push.payload);
        if let Some(due) = push.due {
            rest.due = due.0;
            return self.row(b"later", keys.delayed(&push.queue), payload, &rest);
        }
        if queues.options.notify {
            rest.notify = self.key(keys.notify(&push.queue));
        }
        self.row(b"push", keys.list(&push.queue), payload, &rest);
    }

    /// Adds the arguments of one effect, as effects.lua reads them.
    fn row(&mut self, what: &'static [u8], key: String, value: Arg<'a>, rest: &PushArgs<'a>) {
        let key = self.key(key);
        self.args.extend([
            Arg::Bytes(what),
            Arg::Int(key),
            value,
            Arg::Int(rest.due),
            Arg::Int(rest.notify),
            Arg::Int(rest.lock),
            Arg::Bytes(rest.owner),
            Arg::Int(rest.ttl),
        ]);
    }
}

impl RedisQueue {
    /// The record that stands for a push to another slot than that of `home`; `None` if it can be made there.
    pub(super) fn put_off(&self, home: &QueueName, push: &Push) -> Option<(Spool, Vec<u8>)> {
        let put_off = self.put_off.filter(|_| self.is_put_off(home, push))?;
        match put_off(&self.options.connection, push) {
            Effect::Append(spool, record) => Some((spool, record)),
            _ => None,
        }
    }
}

/// What only a push says; positions of keys, 0 for none.
#[derive(Default)]
struct PushArgs<'a> {
    due: i64,
    notify: i64,
    lock: i64,
    owner: &'a [u8],
    /// Lifetime of the lock in seconds.
    ttl: i64,
}

/// Longest lifetime of a lock that Redis can count in milliseconds, whatever the date.
const LONGEST_LOCK: Duration = Duration::from_secs(9_000_000_000_000_000);
