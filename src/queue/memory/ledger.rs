//! artisand's own lists, in memory.

use std::time::Duration;

use tokio::time::Instant;

use super::{MemoryQueue, at_once};
use crate::connection::LockPlace;
use crate::queue::{Answer, Effect, Ledger, QueueName, Spool};
use crate::time::UnixSeconds;

impl MemoryQueue {
    fn ack_now(&self, spool: Spool, owner: &str, records: &[Vec<u8>], effects: &[Effect]) -> u64 {
        let mut state = self.state();
        if state.leaseholder(spool) != Some(owner) {
            return 0;
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
        taken
    }

    /// Gives the lease of a list to `owner` if `may` says so of the present holder.
    fn lease_if(
        &self,
        spool: Spool,
        owner: &str,
        lives: Duration,
        may: impl FnOnce(Option<&str>) -> bool,
    ) -> bool {
        let mut state = self.state();
        if !may(state.leaseholder(spool)) {
            return false;
        }
        let lease = (owner.to_owned(), Instant::now() + lives);
        state.leases.insert(spool, lease);
        true
    }
}

impl Ledger for MemoryQueue {
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        let state = self.state();
        let records = state.spools.get(&spool).into_iter().flatten();
        at_once(Ok(records.skip(from).take(max).cloned().collect()))
    }

    fn length(&self, spool: Spool) -> Answer<'_, u64> {
        at_once(Ok(self.spool(spool).len() as u64))
    }

    fn ack<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64> {
        at_once(Ok(self.ack_now(spool, owner, records, effects)))
    }

    fn keep_error<'a>(&'a self, job: &'a str, error: &'a str, lives: Duration) -> Answer<'a, ()> {
        let kept = (error.to_owned(), Instant::now() + lives);
        self.state().errors.insert(job.to_owned(), kept);
        at_once(Ok(()))
    }

    fn last_error<'a>(&'a self, job: &'a str) -> Answer<'a, Option<String>> {
        let mut state = self.state();
        let now = Instant::now();
        state.errors.retain(|_, (_, end)| *end > now);
        at_once(Ok(state.errors.get(job).map(|(error, _)| error.clone())))
    }

    fn keeps_heartbeats(&self) -> bool {
        true
    }

    fn beat<'a>(&'a self, worker: &'a str, record: &'a [u8], lives: Duration) -> Answer<'a, ()> {
        let kept = (record.to_owned(), Instant::now() + lives);
        self.state().beats.insert(worker.to_owned(), kept);
        at_once(Ok(()))
    }

    fn end_beats<'a>(&'a self, worker: &'a str) -> Answer<'a, ()> {
        self.state().beats.remove(worker);
        at_once(Ok(()))
    }

    fn beats(&self, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        let mut state = self.state();
        let now = Instant::now();
        state.beats.retain(|_, (_, end)| *end > now);
        let mut kept: Vec<_> = state.beats.values().cloned().collect();
        kept.sort_by_key(|(_, end)| std::cmp::Reverse(*end));
        at_once(Ok(kept.into_iter().take(max).map(|kept| kept.0).collect()))
    }

    fn lease<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        let may = |holder: Option<&str>| holder.is_none_or(|holder| holder == owner);
        at_once(Ok(self.lease_if(spool, owner, lives, may)))
    }

    fn keep<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        let may = |holder: Option<&str>| holder == Some(owner);
        at_once(Ok(self.lease_if(spool, owner, lives, may)))
    }

    fn unlease<'a>(&'a self, spool: Spool, owner: &'a str) -> Answer<'a, ()> {
        let mut state = self.state();
        if state.leaseholder(spool) == Some(owner) {
            state.leases.remove(&spool);
        }
        at_once(Ok(()))
    }

    fn note_end<'a>(
        &'a self,
        id: &'a str,
        at: UnixSeconds,
        effects: &'a [Effect],
    ) -> Answer<'a, ()> {
        let mut state = self.state();
        if !state.ended.contains_key(id) {
            state.ended.insert(id.to_owned(), at);
            state.apply(effects);
        }
        drop(state);
        self.pushed.notify_waiters();
        at_once(Ok(()))
    }

    fn ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<UnixSeconds>>> {
        let state = self.state();
        at_once(Ok(ids
            .iter()
            .map(|id| state.ended.get(id).copied())
            .collect()))
    }

    fn forget_ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, ()> {
        let mut state = self.state();
        for id in ids {
            state.ended.remove(id);
        }
        at_once(Ok(()))
    }

    fn holds(&self, _queue: &QueueName, place: &LockPlace) -> bool {
        matches!(place, LockPlace::Memory { .. })
    }

    #[cfg(test)]
    fn pushes_here(&self, _queue: &QueueName) -> bool {
        self.parts.is_empty()
    }

    #[cfg(test)]
    fn part(&self, queue: &QueueName) -> Option<std::sync::Arc<dyn Ledger>> {
        let part = self.parts.get(queue)?;
        Some(std::sync::Arc::clone(part) as _)
    }

    #[cfg(test)]
    fn note_parts<'a>(&'a self, _queues: &'a [QueueName]) -> Answer<'a, Vec<QueueName>> {
        at_once(Ok(self.parts.keys().cloned().collect()))
    }
}
