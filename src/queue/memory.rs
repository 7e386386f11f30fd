//! Queues in memory, for tests and for running jobs in place: the same contract without a server.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    Effect, Error, PopRequest, Popped, Queue, QueueName, ReservedJob, Settled, Settlement, Sizes,
    Spool, Unsettled,
};
use crate::connection::Redis;
use crate::time::UnixSeconds;

/// Queues that live in this process.
#[derive(Debug)]
pub struct MemoryQueue {
    state: Mutex<State>,
    pushed: Notify,
    retry_after: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<QueueName, OneQueue>,
    spools: BTreeMap<Spool, Vec<Vec<u8>>>,
    /// The process that may drain each list, and until when.
    leases: BTreeMap<Spool, (String, Instant)>,
    /// Locks by key, with their owners.
    locks: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct OneQueue {
    pending: VecDeque<Vec<u8>>,
    /// By due second, then bytes: the order of a Redis sorted set.
    delayed: BTreeSet<(UnixSeconds, Vec<u8>)>,
    /// Member and the second its reservation ends.
    reserved: BTreeMap<Vec<u8>, UnixSeconds>,
    quarantine: Vec<Vec<u8>>,
}

impl MemoryQueue {
    /// Empty queues whose reservations live for `retry_after`.
    pub fn new(retry_after: Option<Duration>) -> Self {
        Self {
            state: Mutex::default(),
            pushed: Notify::new(),
            retry_after,
        }
    }

    /// Records of one of artisand's own lists, oldest first.
    pub fn spool(&self, spool: Spool) -> Vec<Vec<u8>> {
        self.state().spools.get(&spool).cloned().unwrap_or_default()
    }

    /// Adds a record to one of artisand's own lists, as a worker that died would have left it.
    pub fn spool_record(&self, spool: Spool, record: Vec<u8>) {
        self.state().spools.entry(spool).or_default().push(record);
    }

    /// The owner of a lock; `None` if the lock is free.
    pub fn lock_owner(&self, key: &str) -> Option<String> {
        self.state().locks.get(key).cloned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The payload with one more attempt, or `None` if Redis would quarantine it.
fn bump_attempts(element: &[u8]) -> Option<(Vec<u8>, u32)> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_slice(element).ok()?;
    let attempts = fields.get("attempts")?.get();
    let attempts: i64 = attempts.trim_matches('"').parse().ok()?;
    let members: Vec<String> = fields
        .iter()
        .map(|(name, value)| {
            let bumped = (attempts + 1).to_string();
            let value = if *name == "attempts" {
                &bumped
            } else {
                value.get()
            };
            format!("{}:{value}", serde_json::Value::from(*name))
        })
        .collect();
    let member = format!("{{{}}}", members.join(",")).into_bytes();
    Some((member, super::number_of_attempts(attempts + 1)))
}

impl OneQueue {
    fn migrate(&mut self, now: UnixSeconds, expiring: bool) -> usize {
        let later = self
            .delayed
            .split_off(&(UnixSeconds(now.0.saturating_add(1)), Vec::new()));
        let due = std::mem::replace(&mut self.delayed, later);
        let mut migrated = due.len();
        self.pending
            .extend(due.into_iter().map(|(_, payload)| payload));
        if expiring {
            let mut ended: Vec<_> = self
                .reserved
                .iter()
                .filter(|(_, end)| **end <= now)
                .map(|(m, e)| (*e, m.clone()))
                .collect();
            ended.sort();
            migrated += ended.len();
            for (_, member) in ended {
                self.reserved.remove(&member);
                self.pending.push_back(member);
            }
        }
        migrated
    }

    fn next_due(&self, expiring: bool) -> Option<UnixSeconds> {
        let delayed = self.delayed.first().map(|(due, _)| *due);
        let reserved = self.reserved.values().min().copied().filter(|_| expiring);
        delayed.into_iter().chain(reserved).min()
    }
}

impl State {
    /// The process that may drain a list now.
    fn leaseholder(&self, spool: Spool) -> Option<&str> {
        let (owner, until) = self.leases.get(&spool)?;
        (*until > Instant::now()).then_some(owner)
    }

    /// Applies the effects of a job's end; the caller handles the job itself.
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Push(push) => {
                    if let Some(claim) = &push.claim {
                        if self.locks.contains_key(&claim.key) {
                            continue;
                        }
                        self.locks.insert(claim.key.clone(), claim.owner.clone());
                    }
                    let queue = self.queues.entry(push.queue.clone()).or_default();
                    match push.due {
                        Some(due) => drop(queue.delayed.insert((due, push.payload.clone()))),
                        None => queue.pending.push_back(push.payload.clone()),
                    }
                }
                Effect::Unlock(unlock) => {
                    let is_owned = |owner: &String| self.locks.get(&unlock.key) == Some(owner);
                    if unlock.owner.as_ref().is_none_or(is_owned) {
                        self.locks.remove(&unlock.key);
                    }
                }
                Effect::Append(spool, record) => {
                    self.spools.entry(*spool).or_default().push(record.clone());
                }
                Effect::Quarantine => {}
            }
        }
    }
}

impl Queue for MemoryQueue {
    async fn pop(&self, mut request: PopRequest<'_>) -> Result<Popped, Error> {
        let mut popped = Popped::default();
        let mut state = self.state();
        let expires = request.now.plus(self.retry_after.unwrap_or_default());
        for name in request.queues {
            if popped.jobs.len() >= request.max.get() {
                break;
            }
            let queue = state.queues.entry(name.clone()).or_default();
            popped.migrated += queue.migrate(request.now, self.retry_after.is_some());
            let mut passed = VecDeque::new();
            let mut quarantined = 0;
            while popped.jobs.len() < request.max.get() {
                let Some(element) = queue.pending.pop_front() else {
                    break;
                };
                let choice = match &mut request.selection {
                    None => None,
                    Some(selection) => {
                        let Some(choice) = (selection.choose)(name, &element) else {
                            passed.push_back(element);
                            continue;
                        };
                        Some(choice)
                    }
                };
                if let Some((member, attempts)) = bump_attempts(&element) {
                    queue.reserved.insert(member.clone(), expires);
                    popped.jobs.push(ReservedJob {
                        queue: name.clone(),
                        payload: element.into(),
                        attempts,
                        lease: self.retry_after.map(|_| expires),
                        choice,
                        ticket: member.into(),
                    });
                } else {
                    queue.quarantine.push(element);
                    quarantined += 1;
                }
            }
            passed.append(&mut queue.pending);
            queue.pending = passed;
            if quarantined > 0 {
                popped.quarantined.push((name.clone(), quarantined));
            }
            let due = queue.next_due(self.retry_after.is_some());
            popped.next_due = popped.next_due.into_iter().chain(due).min();
        }
        Ok(popped)
    }

    async fn settle(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        let mut state = self.state();
        let settled = jobs.iter().map(|(job, settlement)| {
            let queue = state.queues.entry(job.queue.clone()).or_default();
            if queue.reserved.remove(&job.ticket[..]).is_none() {
                return Settled::Gone;
            }
            match settlement {
                Settlement::Delete => {}
                Settlement::LeaveUntil(end) => {
                    queue.reserved.insert(job.ticket.to_vec(), *end);
                }
                Settlement::Release(due) => drop(queue.delayed.insert((*due, job.ticket.to_vec()))),
                Settlement::ReleaseUncounted(due) => {
                    queue.delayed.insert((*due, job.payload.to_vec()));
                }
                Settlement::PutBack => queue.pending.push_front(job.payload.to_vec()),
                Settlement::Quarantine => queue.quarantine.push(job.payload.to_vec()),
                Settlement::Finish(effects) => {
                    if effects.contains(&Effect::Quarantine) {
                        queue.quarantine.push(job.payload.to_vec());
                    }
                    state.apply(effects);
                }
                Settlement::Forward(to) => {
                    state
                        .queues
                        .entry(to.clone())
                        .or_default()
                        .pending
                        .push_back(job.payload.to_vec());
                }
            }
            Settled::Done
        });
        let settled = settled.collect();
        drop(state);
        self.pushed.notify_waiters();
        Ok(settled)
    }

    async fn renew(&self, jobs: &[Arc<ReservedJob>], now: UnixSeconds) -> Result<(), Error> {
        let expires = now.plus(self.retry_after.unwrap_or_default());
        let mut state = self.state();
        for job in jobs {
            let end = state
                .queues
                .get_mut(&job.queue)
                .and_then(|queue| queue.reserved.get_mut(&job.ticket[..]));
            if let Some(end) = end {
                *end = expires;
            }
        }
        Ok(())
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    async fn wait_for_push(
        &self,
        queues: &[QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let pushed = self.pushed.notified();
            let ready = {
                let state = self.state();
                let is_ready = |queue: &&QueueName| {
                    state
                        .queues
                        .get(*queue)
                        .is_some_and(|queue| !queue.pending.is_empty())
                };
                queues.iter().find(is_ready).cloned()
            };
            if ready.is_some() {
                return Ok(ready);
            }
            if tokio::time::timeout_at(deadline, pushed).await.is_err() {
                return Ok(None);
            }
        }
    }

    fn announces_pushes(&self) -> bool {
        true
    }

    async fn push(&self, queue: &QueueName, payloads: &[Vec<u8>]) -> Result<(), Error> {
        self.state()
            .queues
            .entry(queue.clone())
            .or_default()
            .pending
            .extend(payloads.iter().cloned());
        self.pushed.notify_waiters();
        Ok(())
    }

    async fn later(
        &self,
        queue: &QueueName,
        due: UnixSeconds,
        payload: &[u8],
    ) -> Result<(), Error> {
        self.state()
            .queues
            .entry(queue.clone())
            .or_default()
            .delayed
            .insert((due, payload.to_vec()));
        Ok(())
    }

    async fn sizes(&self, queue: &QueueName) -> Result<Sizes, Error> {
        let state = self.state();
        Ok(state
            .queues
            .get(queue)
            .map_or_else(Sizes::default, |queue| Sizes {
                pending: queue.pending.len() as u64,
                delayed: queue.delayed.len() as u64,
                reserved: queue.reserved.len() as u64,
                quarantined: queue.quarantine.len() as u64,
            }))
    }

    fn is_on(&self, _: &Redis) -> bool {
        false
    }

    async fn spooled(&self, spool: Spool, from: usize, max: usize) -> Result<Vec<Vec<u8>>, Error> {
        let state = self.state();
        let records = state.spools.get(&spool).into_iter().flatten();
        Ok(records.skip(from).take(max).cloned().collect())
    }

    async fn advance(
        &self,
        spool: Spool,
        owner: &str,
        records: &[Vec<u8>],
        effects: &[Effect],
    ) -> Result<u64, Error> {
        let mut state = self.state();
        if state.leaseholder(spool) != Some(owner) {
            return Ok(0);
        }
        let spooled = state.spools.entry(spool).or_default();
        let mut taken = 0;
        for record in records {
            if let Some(at) = spooled.iter().position(|spooled| spooled == record) {
                spooled.remove(at);
                taken += 1;
            }
        }
        if taken > 0 {
            state.apply(effects);
        }
        drop(state);
        self.pushed.notify_waiters();
        Ok(taken)
    }

    async fn lease_spool(&self, spool: Spool, owner: &str, lives: Duration) -> Result<bool, Error> {
        let mut state = self.state();
        if state.leaseholder(spool).is_some_and(|other| other != owner) {
            return Ok(false);
        }
        let lease = (owner.to_owned(), Instant::now() + lives);
        state.leases.insert(spool, lease);
        Ok(true)
    }

    async fn keep_spool(&self, spool: Spool, owner: &str, lives: Duration) -> Result<bool, Error> {
        let mut state = self.state();
        if state.leaseholder(spool) != Some(owner) {
            return Ok(false);
        }
        let lease = (owner.to_owned(), Instant::now() + lives);
        state.leases.insert(spool, lease);
        Ok(true)
    }

    async fn unlease_spool(&self, spool: Spool, owner: &str) -> Result<(), Error> {
        let mut state = self.state();
        if state.leaseholder(spool) == Some(owner) {
            state.leases.remove(&spool);
        }
        Ok(())
    }

    async fn clear(&self, queue: &QueueName) -> Result<u64, Error> {
        let mut state = self.state();
        let Some(queue) = state.queues.get_mut(queue) else {
            return Ok(0);
        };
        let cleared = queue.pending.len() + queue.delayed.len() + queue.reserved.len();
        queue.pending.clear();
        queue.delayed.clear();
        queue.reserved.clear();
        Ok(cleared as u64)
    }
}
