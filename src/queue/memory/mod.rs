//! Queues in memory, for tests and for running jobs in place: the same contract without a server.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    Abilities, Ability, Answer, Choice, Due, Effect, Fate, Held, Ledger, Once, Place, PopRequest,
    Popped, Push, PushedOnce, Queue, QueueName, ReservedJob, Settled, Settlement, Sizes, Spool,
    Unsettled,
};
use crate::connection::LockPlace;
use crate::time::UnixSeconds;

mod ledger;

/// Queues that live in this process.
#[derive(Debug)]
pub struct MemoryQueue {
    state: Mutex<State>,
    pushed: Notify,
    retry_after: Option<Duration>,
    abilities: Abilities,
    /// The lists of queues that have their own, as on a cluster.
    #[cfg(test)]
    pub(crate) parts: HashMap<QueueName, std::sync::Arc<MemoryQueue>>,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<QueueName, OneQueue>,
    spools: BTreeMap<Spool, Vec<Vec<u8>>>,
    /// The process that may drain each list, and until when.
    leases: BTreeMap<Spool, (String, Instant)>,
    /// The last errors of jobs, and until when each is kept.
    errors: HashMap<String, (String, Instant)>,
    /// The records of workers, and until when each is kept.
    beats: HashMap<String, (Vec<u8>, Instant)>,
    /// Locks by key, with their owners.
    locks: BTreeMap<String, String>,
    /// Identities of pushes that are made once.
    pushed: HashMap<String, String>,
    /// Ends of jobs of other servers.
    ended: HashMap<String, UnixSeconds>,
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
            abilities: Abilities {
                driver: "memory",
                retry_after,
                most_at_once: NonZeroUsize::MAX,
                can: Ability::ALL.to_vec(),
            },
            #[cfg(test)]
            parts: HashMap::new(),
        }
    }

    /// These queues, as on a server that lacks this ability.
    #[cfg(test)]
    pub(crate) fn without(mut self, ability: Ability) -> Self {
        self.abilities.can.retain(|can| *can != ability);
        self
    }

    /// Ends all reservations of a queue without its jobs, as if PHP had cleared it.
    #[cfg(test)]
    pub(crate) fn lose_reservations(&self, queue: &QueueName) {
        if let Some(jobs) = self.state().queues.get_mut(queue) {
            jobs.reserved.clear();
        }
    }

    /// Records of one of artisand's own lists, oldest first.
    pub fn spool(&self, spool: Spool) -> Vec<Vec<u8>> {
        self.state().spools.get(&spool).cloned().unwrap_or_default()
    }

    /// Adds a record to one of artisand's own lists, as a worker that died would have left it.
    #[cfg(any(test, feature = "internals"))]
    pub fn spool_record(&self, spool: Spool, record: Vec<u8>) {
        self.state().spools.entry(spool).or_default().push(record);
    }

    /// Adds a job, waiting or delayed.
    pub(crate) fn put(&self, queue: &QueueName, due: Option<UnixSeconds>, payload: Vec<u8>) {
        let mut state = self.state();
        let queue = state.queues.entry(queue.clone()).or_default();
        match due {
            Some(due) => drop(queue.delayed.insert((due, payload))),
            None => queue.pending.push_back(payload),
        }
    }

    /// The jobs of all queues that wait or are delayed, by queue.
    pub(crate) fn all(&self) -> Vec<(QueueName, Option<UnixSeconds>, Vec<u8>)> {
        let state = self.state();
        let mut all = Vec::new();
        for (name, queue) in &state.queues {
            let pending = queue.pending.iter().map(|payload| (None, payload));
            let delayed = queue
                .delayed
                .iter()
                .map(|(due, payload)| (Some(*due), payload));
            let jobs = pending.chain(delayed);
            all.extend(jobs.map(|(due, payload)| (name.clone(), due, payload.clone())));
        }
        drop(state);
        all.sort_by(|(one, ..), (other, ..)| one.as_str().cmp(other.as_str()));
        all
    }

    /// Takes the job of any queue that has been due for longest; those that were never delayed come first.
    pub(crate) fn take_next(&self, now: UnixSeconds) -> Option<(QueueName, Vec<u8>)> {
        let mut all = self.all();
        all.retain(|(_, due, _)| due.is_none_or(|due| due <= now));
        let (name, due, payload) = all.into_iter().min_by_key(|(_, due, _)| *due)?;
        let mut state = self.state();
        let queue = state.queues.get_mut(&name)?;
        match due {
            Some(due) => drop(queue.delayed.remove(&(due, payload.clone()))),
            None => drop(queue.pending.pop_front()),
        }
        Some((name, payload))
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
    fn migrate(&mut self, now: UnixSeconds, expiring: bool) -> Due {
        let later = self
            .delayed
            .split_off(&(UnixSeconds(now.0.saturating_add(1)), Vec::new()));
        let due = std::mem::replace(&mut self.delayed, later);
        let mut migrated = Due {
            delayed: due.len() as u64,
            reserved: 0,
        };
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
            migrated.reserved = ended.len() as u64;
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

    /// Adds a job, unless its lock is taken.
    ///
    /// Returns whether it was added.
    fn push(&mut self, push: &Push) -> bool {
        if let Some(claim) = &push.claim {
            if self.locks.contains_key(claim.place.key()) {
                return false;
            }
            let key = claim.place.key().to_owned();
            self.locks.insert(key, claim.owner.clone());
        }
        let queue = self.queues.entry(push.queue.clone()).or_default();
        match push.due {
            Some(due) => drop(queue.delayed.insert((due, push.payload.clone()))),
            None => queue.pending.push_back(push.payload.clone()),
        }
        true
    }

    /// Applies the effects of a job's end; the caller handles the job itself.
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Push(push) => drop(self.push(push)),
                Effect::Unlock(unlock) => {
                    let is_owned =
                        |owner: &String| self.locks.get(unlock.place.key()) == Some(owner);
                    if unlock.owner.as_ref().is_none_or(is_owned) {
                        self.locks.remove(unlock.place.key());
                    }
                }
                Effect::Record(job) => {
                    let spool = self.spools.entry(Spool::FailedJobs).or_default();
                    spool.push(job.to_json());
                }
                Effect::Append(spool, record) => {
                    self.spools.entry(*spool).or_default().push(record.clone());
                }
                Effect::Quarantine => {}
            }
        }
    }
}

impl MemoryQueue {
    fn pop_now(&self, mut request: PopRequest<'_>) -> Popped {
        let mut popped = Popped::default();
        let mut state = self.state();
        let expires = request.now.plus(self.retry_after.unwrap_or_default());
        for name in request.queues {
            if popped.jobs.len() >= request.max.get() {
                break;
            }
            let queue = state.queues.entry(name.clone()).or_default();
            let migrated = queue.migrate(request.now, self.retry_after.is_some());
            popped.migrated += migrated.delayed + migrated.reserved;
            let mut passed = VecDeque::new();
            let mut quarantined = 0;
            while popped.jobs.len() < request.max.get() {
                let Some(element) = queue.pending.pop_front() else {
                    break;
                };
                let choice = match &mut request.selection {
                    None => None,
                    Some(selection) => {
                        let Choice::Take(choice) = (selection.choose)(name, &element) else {
                            passed.push_back(element);
                            continue;
                        };
                        Some(choice)
                    }
                };
                if let Some((member, attempts)) = bump_attempts(&element) {
                    queue.reserved.insert(member.clone(), expires);
                    popped.jobs.push(ReservedJob {
                        delivery: None,
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
        popped
    }

    fn settle_now(&self, jobs: &[(Arc<ReservedJob>, Settlement)]) -> Vec<Settled> {
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
        let settled: Vec<_> = settled.collect();
        drop(state);
        self.pushed.notify_waiters();
        settled
    }

    async fn next_push(&self, queues: &[QueueName], timeout: Duration) -> Option<QueueName> {
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
                return ready;
            }
            if tokio::time::timeout_at(deadline, pushed).await.is_err() {
                return None;
            }
        }
    }
}

/// A result that is there at once.
fn at_once<'a, T: Send + 'a, E: Send + 'a>(result: Result<T, E>) -> Answer<'a, T, E> {
    Box::pin(std::future::ready(result))
}

impl Queue for MemoryQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        at_once(Ok(()))
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        Box::pin(async move { Ok(self.pop_now(request)) })
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        Box::pin(async move { Ok(self.settle_now(jobs)) })
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        Box::pin(async move {
            let expires = now.plus(self.retry_after.unwrap_or_default());
            let mut state = self.state();
            let held = jobs.iter().map(|job| {
                let queue = state.queues.get_mut(&job.queue);
                let end = queue.and_then(|queue| queue.reserved.get_mut(&job.ticket[..]));
                end.map_or(Held::Lost, |end| {
                    *end = expires;
                    Held::Until(expires)
                })
            });
            Ok(held.collect())
        })
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(async move { Ok(self.next_push(queues, timeout).await) })
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let queue = state.queues.entry(queue.clone()).or_default();
            queue.pending.extend(payloads.iter().cloned());
            drop(state);
            self.pushed.notify_waiters();
            Ok(())
        })
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let queue = state.queues.entry(queue.clone()).or_default();
            queue.delayed.insert((due, payload.to_vec()));
            Ok(())
        })
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(async move {
            let mut state = self.state();
            if let Some(note) = state.pushed.get(once.id) {
                return Ok(PushedOnce::Before { note: note.clone() });
            }
            let locked = pushes.iter().filter(|push| !state.push(push)).count();
            let note = if locked == 0 { once.note } else { "" };
            if locked == 0 || locked < pushes.len() {
                state.pushed.insert(once.id.to_owned(), note.to_owned());
            }
            drop(state);
            self.pushed.notify_waiters();
            Ok(PushedOnce::Now { locked })
        })
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.holds(queue, place)
    }

    fn was_pushed<'a>(&'a self, _queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move { Ok(self.state().pushed.contains_key(id)) })
    }

    fn migrate<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(async move {
            let expiring = self.retry_after.is_some();
            let mut state = self.state();
            let queue = state.queues.get_mut(queue);
            let migrated = queue.map(|queue| queue.migrate(now, expiring));
            Ok(migrated.unwrap_or_default())
        })
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(async move {
            let state = self.state();
            let due = state.queues.get(queue).map(|queue| {
                let delayed = queue.delayed.iter().filter(|(due, _)| *due <= now);
                let ended = queue.reserved.values().filter(|end| **end <= now);
                Due {
                    delayed: delayed.count() as u64,
                    reserved: self.retry_after.map_or(0, |_| ended.count() as u64),
                }
            });
            Ok(due.unwrap_or_default())
        })
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        Box::pin(async move {
            let state = self.state();
            let sizes = state.queues.get(queue).map(|queue| Sizes {
                pending: queue.pending.len() as u64,
                delayed: queue.delayed.len() as u64,
                reserved: queue.reserved.len() as u64,
                quarantined: queue.quarantine.len() as u64,
            });
            Ok(sizes.unwrap_or_default())
        })
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let state = self.state();
            let Some(queue) = state.queues.get(queue) else {
                return Ok(Vec::new());
            };
            let all: Vec<&Vec<u8>> = match place {
                Place::Pending => queue.pending.iter().collect(),
                Place::Delayed => queue.delayed.iter().map(|(_, payload)| payload).collect(),
                Place::Reserved => {
                    let mut reserved: Vec<_> = queue.reserved.iter().collect();
                    reserved.sort_by_key(|(_, end)| **end);
                    reserved.into_iter().map(|(member, _)| member).collect()
                }
                Place::Quarantine => queue.quarantine.iter().collect(),
            };
            Ok(all.into_iter().skip(from).take(limit).cloned().collect())
        })
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            let Some(queue) = state.queues.get_mut(queue) else {
                return Ok(0);
            };
            let reserved = queue.reserved.len();
            let has_ended = |end: UnixSeconds| self.retry_after.is_some() && end <= now;
            queue.reserved.retain(|_, end| !has_ended(*end));
            let ended = reserved - queue.reserved.len();
            let cleared = queue.pending.len() + queue.delayed.len() + ended;
            queue.pending.clear();
            queue.delayed.clear();
            Ok(cleared as u64)
        })
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        let state = self.state();
        let mut names: Vec<_> = (state.queues.iter())
            .filter(|(_, queue)| {
                let is_empty = queue.pending.is_empty() && queue.delayed.is_empty();
                !(is_empty && queue.reserved.is_empty() && queue.quarantine.is_empty())
            })
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        at_once(Ok(names))
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        let state = self.state();
        let queues = state.queues.iter();
        let mut names: Vec<_> = queues
            .filter(|(_, queue)| !queue.quarantine.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        at_once(Ok(names))
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            let queue = state.queues.entry(queue.clone()).or_default();
            let mut found = 0;
            for payload in payloads {
                let position = queue.quarantine.iter().position(|kept| kept == payload);
                let Some(position) = position else { continue };
                let payload = queue.quarantine.remove(position);
                if fate == Fate::Requeue {
                    queue.pending.push_back(payload);
                }
                found += 1;
            }
            Ok(found)
        })
    }
}
