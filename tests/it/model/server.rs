//! A server of the model: what a queue's server holds of one job, and what each call does to it.
//!
//! [`Server::answer`] says in ten lines what a script says in thirty. `replay.rs` makes each call that the
//! exploration meets on real queues, too, and compares.

use std::collections::{BTreeMap, BTreeSet};

use super::Rules;

/// Who holds the unique lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The job of the model, since it was dispatched.
    First,
    /// A job that the app dispatched once the lock was free.
    Other,
}

/// Who holds the lease on the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Drainer {
    Worker(u8),
    /// A process that no longer uses it: it crashed, or never learned that it has it.
    Dead,
}

/// A record in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Record {
    /// Push the chain's next job to another server.
    Push,
    /// Push a closure here, in one step with removing the record.
    PushHere,
    /// Free the unique lock on another server.
    Unlock,
    /// Count the end in the batch.
    Count,
    /// Remove the mark of a counted end.
    Forget,
    /// Write the row of the failed job.
    Row,
}

/// What happens in one step with something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Deed {
    Push,
    Unlock,
    Append(Record),
}

/// How a reserved job is settled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ending {
    Finish(Vec<Deed>),
    Release,
    PutBack,
}

/// A call to a server. Jobs are named by the attempts that their payload counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Call {
    Pop,
    Settle(u8, Ending),
    Renew(u8),
    Lease(u8),
    Keep(u8),
    Unlease(u8),
    Ack(u8, Record, Vec<Deed>),
    PushOnce,
    FreeLock,
    /// Effects apart from a settlement: only where [`Rules::ends_in_one_step`] is off.
    Apply(Vec<Deed>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    Popped(Option<u8>),
    Settled { done: bool },
    Yes(bool),
    Taken(u8),
    Nothing,
}

/// What a server holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Server {
    pub(crate) pending: Vec<u8>,
    /// Released jobs; all are due.
    pub(crate) delayed: BTreeSet<u8>,
    /// Whether each reservation has ended.
    pub(crate) reserved: BTreeMap<u8, bool>,
    pub(crate) lock: Option<Owner>,
    /// How many jobs were pushed to the queue of the chain's next job.
    pub(crate) next: u8,
    /// Whether the push of the next job is remembered.
    pub(crate) pushed: bool,
    pub(crate) records: Vec<Record>,
    pub(crate) lease: Option<Drainer>,
}

impl Server {
    /// How many copies of the job there are.
    pub(crate) fn copies(&self) -> usize {
        self.pending.len() + self.delayed.len() + self.reserved.len()
    }

    /// The reservations that the next pop ends.
    pub(crate) fn ended_reservations(&self) -> impl Iterator<Item = u8> {
        let ended = self.reserved.iter().filter(|(_, ended)| **ended);
        ended.map(|(member, _)| *member)
    }

    fn apply(&mut self, deeds: &[Deed]) {
        for deed in deeds {
            match deed {
                Deed::Push => self.next += 1,
                Deed::Unlock if self.lock == Some(Owner::First) => self.lock = None,
                Deed::Unlock => {}
                Deed::Append(record) => self.records.push(*record),
            }
        }
    }

    /// Carries out a call, in one step.
    pub(crate) fn answer(&mut self, call: &Call, rules: &Rules) -> Reply {
        match call {
            Call::Pop => Reply::Popped(self.pop(rules)),
            Call::Settle(member, ending) => {
                let there = self.reserved.contains_key(member);
                let must_be_there = match ending {
                    Ending::Finish(_) => rules.ends_only_what_is_reserved,
                    Ending::Release | Ending::PutBack => rules.moves_only_what_is_reserved,
                };
                if must_be_there && !there {
                    return Reply::Settled { done: false };
                }
                self.reserved.remove(member);
                match ending {
                    Ending::Finish(deeds) => self.apply(deeds),
                    Ending::Release => drop(self.delayed.insert(*member)),
                    Ending::PutBack => self.pending.insert(0, member.saturating_sub(1)),
                }
                Reply::Settled { done: true }
            }
            Call::Renew(member) => {
                let there = self.reserved.contains_key(member);
                if there || !rules.renews_only_what_is_reserved {
                    self.reserved.insert(*member, false);
                }
                Reply::Yes(there)
            }
            Call::Lease(worker) => {
                let own = Some(Drainer::Worker(*worker));
                let may = self.lease.is_none() || self.lease == own;
                if may {
                    self.lease = own;
                }
                Reply::Yes(may)
            }
            Call::Keep(worker) => Reply::Yes(self.lease == Some(Drainer::Worker(*worker))),
            Call::Unlease(worker) => {
                if self.lease == Some(Drainer::Worker(*worker)) {
                    self.lease = None;
                }
                Reply::Nothing
            }
            Call::Ack(worker, record, deeds) => {
                let own = self.lease == Some(Drainer::Worker(*worker));
                if rules.acks_under_the_lease && !own {
                    return Reply::Taken(0);
                }
                let at = self.records.iter().position(|one| one == record);
                if let Some(at) = at {
                    self.records.remove(at);
                }
                if at.is_some() || !rules.acks_what_is_there {
                    self.apply(deeds);
                }
                Reply::Taken(at.is_some().into())
            }
            Call::PushOnce => {
                let is_new = !self.pushed || !rules.remembers_pushes;
                if is_new {
                    self.next += 1;
                    self.pushed = true;
                }
                Reply::Yes(is_new)
            }
            Call::FreeLock => {
                let may = self.lock == Some(Owner::First)
                    || (self.lock.is_some() && !rules.frees_only_its_own_lock);
                if may {
                    self.lock = None;
                }
                Reply::Yes(may)
            }
            Call::Apply(deeds) => {
                self.apply(deeds);
                Reply::Nothing
            }
        }
    }

    fn pop(&mut self, rules: &Rules) -> Option<u8> {
        self.pending.extend(std::mem::take(&mut self.delayed));
        let ended: Vec<u8> = self.ended_reservations().collect();
        self.reserved.retain(|_, ended| !*ended);
        self.pending.extend(ended);
        if self.pending.is_empty() {
            return None;
        }
        let element = self.pending.remove(0);
        let member = element + u8::from(rules.counts_in_the_ticket);
        self.reserved.insert(member, false);
        Some(member)
    }
}
