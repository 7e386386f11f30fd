//! Makes every call that the model's servers carry out on real queues, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use artisand::cache::{Cache, RedisStore};
use artisand::queue::{
    Claim, Effect, Held, MemoryQueue, Once, Place, Push, PushedOnce, RedisQueue, ReservedJob,
    Settled, Settlement, Spool, Unlock,
};

use super::explore::explore;
use super::server::{Call, Deed, Drainer, Ending, Owner, Record, Reply, Server};
use super::{Model, Rules, Scenario};
use crate::contract::{Subject, at, name, pop, redis_queue, settle, sizes};
use crate::harness::redis::RedisServer;

/// The second at which the call is made.
const NOW: i64 = 200;
const LIVES: Duration = Duration::from_secs(3600);
const LOCK: &str = "p_lock";
const PUSH: Once<'static> = Once {
    id: "next",
    remembered: LIVES,
    note: "1",
};

const RECORDS: [Record; 6] = [
    Record::Push,
    Record::PushHere,
    Record::Unlock,
    Record::Count,
    Record::Forget,
    Record::Row,
];

/// The job's payload after this many attempts; keys in the order in which every driver writes them.
fn payload(attempts: u8) -> Vec<u8> {
    format!(
        r#"{{"attempts":{attempts},"data":"","displayName":"A","id":"i","job":"A@run","uuid":"u"}}"#
    )
    .into_bytes()
}

fn attempts_of(payload: &[u8]) -> u8 {
    let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
    u8::try_from(payload["attempts"].as_u64().unwrap()).unwrap()
}

fn owner(owner: Owner) -> &'static str {
    match owner {
        Owner::First => "first",
        Owner::Other => "other",
    }
}

fn drainer(drainer: Drainer) -> &'static str {
    match drainer {
        Drainer::Worker(0) => "worker 0",
        Drainer::Worker(_) => "worker 1",
        Drainer::Dead => "dead",
    }
}

fn record(record: Record) -> Vec<u8> {
    format!("{record:?}").into_bytes()
}

/// A queue with the job in the state of the model.
struct Stage<Q> {
    queue: Q,
    /// Reservations of the job, some of them gone.
    reserved: BTreeMap<u8, ReservedJob>,
}

impl<Q: Subject> Stage<Q> {
    /// Brings an empty queue into a state; `named` is a reservation that the call names.
    async fn set(queue: Q, server: &Server, named: Option<u8>) -> Self {
        let mut stage = Self {
            queue,
            reserved: BTreeMap::new(),
        };
        let members: BTreeSet<u8> = server.reserved.keys().copied().chain(named).collect();
        let queue = &stage.queue;
        for member in members {
            let element = payload(member - 1);
            queue.push(&name("q"), &[element]).await.unwrap();
            let job = pop(queue, &["q"], 1, 0).await.jobs.remove(0);
            match server.reserved.get(&member) {
                Some(true) => {}
                Some(false) => {
                    let held = queue.renew(&[Arc::new(job.clone())], at(NOW)).await;
                    assert!(matches!(held.unwrap()[..], [Held::Until(_)]));
                }
                None => {
                    let deleted = settle(queue, &job, Settlement::Delete).await;
                    assert_eq!(deleted, Settled::Done);
                }
            }
            stage.reserved.insert(member, job);
        }
        for attempts in &server.delayed {
            let (q, due) = (name("q"), at(NOW - 50));
            queue.later(&q, due, &payload(*attempts)).await.unwrap();
        }
        for attempts in &server.pending {
            queue.push(&name("q"), &[payload(*attempts)]).await.unwrap();
        }
        if let Some(holder) = server.lock {
            assert!(stage.claim(owner(holder)).await);
        }
        let records = server.records.iter().map(|one| Deed::Append(*one));
        stage.apply(&records.collect::<Vec<_>>()).await;
        let mut next = server.next;
        if server.pushed {
            next -= 1;
            stage.perform(&Call::PushOnce).await;
        }
        for _ in 0..next {
            stage.apply(&[Deed::Push]).await;
        }
        if let Some(holder) = server.lease {
            let ledger = stage.queue.ledger();
            let leased = ledger.lease(Spool::FollowUps, drainer(holder), LIVES);
            assert!(leased.await.unwrap());
        }
        stage
    }

    fn effects(&self, deeds: &[Deed]) -> Vec<Effect> {
        let effect = |deed: &Deed| match deed {
            Deed::Push => Effect::Push(Push {
                queue: name("next"),
                payload: payload(0),
                due: None,
                claim: None,
            }),
            Deed::Unlock => self.unlock(Owner::First),
            Deed::Append(one) => Effect::Append(Spool::FollowUps, record(*one)),
        };
        deeds.iter().map(effect).collect()
    }

    fn unlock(&self, holder: Owner) -> Effect {
        Effect::Unlock(Unlock {
            place: self.queue.lock("q", LOCK),
            owner: Some(owner(holder).into()),
        })
    }

    /// Applies effects with the end of a job that is none of the model's.
    async fn aside(&self, effects: Vec<Effect>) {
        let queue = &self.queue;
        queue.push(&name("aside"), &[payload(0)]).await.unwrap();
        let job = pop(queue, &["aside"], 1, 0).await.jobs.remove(0);
        let finish = Settlement::Finish(effects);
        assert_eq!(settle(queue, &job, finish).await, Settled::Done);
    }

    async fn apply(&self, deeds: &[Deed]) {
        for deed in deeds {
            self.aside(self.effects(&[*deed])).await;
        }
    }

    /// Takes the lock; false if it is taken.
    async fn claim(&self, holder: &str) -> bool {
        let before = sizes(&self.queue, "locked").await.pending;
        let claim = Claim {
            place: self.queue.lock("q", LOCK),
            owner: holder.into(),
            ttl: LIVES,
        };
        let push = Effect::Push(Push {
            queue: name("locked"),
            payload: payload(0),
            due: None,
            claim: Some(claim),
        });
        self.aside(vec![push]).await;
        sizes(&self.queue, "locked").await.pending > before
    }

    async fn perform(&self, call: &Call) -> Reply {
        let queue = &self.queue;
        let ledger = queue.ledger();
        let spool = Spool::FollowUps;
        let name_of = |worker: &u8| drainer(Drainer::Worker(*worker));
        match call {
            Call::Pop => {
                let popped = pop(queue, &["q"], 1, NOW).await;
                let member = |job: &ReservedJob| {
                    assert_eq!(u32::from(attempts_of(&job.ticket)), job.attempts);
                    attempts_of(&job.ticket)
                };
                Reply::Popped(popped.jobs.first().map(member))
            }
            Call::Settle(member, ending) => {
                let settlement = match ending {
                    Ending::Finish(deeds) => Settlement::Finish(self.effects(deeds)),
                    Ending::Release => Settlement::Release(at(NOW - 50)),
                    Ending::PutBack => Settlement::PutBack,
                };
                let settled = settle(queue, &self.reserved[member], settlement).await;
                Reply::Settled {
                    done: settled == Settled::Done,
                }
            }
            Call::Renew(member) => {
                let job = Arc::new(self.reserved[member].clone());
                let held = queue.renew(&[job], at(NOW)).await.unwrap();
                Reply::Yes(held != [Held::Lost])
            }
            Call::Lease(worker) => {
                let leased = ledger.lease(spool, name_of(worker), LIVES).await;
                Reply::Yes(leased.unwrap())
            }
            Call::Keep(worker) => {
                let kept = ledger.keep(spool, name_of(worker), LIVES).await;
                Reply::Yes(kept.unwrap())
            }
            Call::Unlease(worker) => {
                ledger.unlease(spool, name_of(worker)).await.unwrap();
                Reply::Nothing
            }
            Call::Ack(worker, one, deeds) => {
                let effects = self.effects(deeds);
                let records = [record(*one)];
                let taken = ledger.ack(spool, name_of(worker), &records, &effects);
                Reply::Taken(u8::try_from(taken.await.unwrap()).unwrap())
            }
            Call::PushOnce => {
                let push = Push {
                    queue: name("next"),
                    payload: payload(0),
                    due: None,
                    claim: None,
                };
                let pushed = queue.push_once(&[push], PUSH).await.unwrap();
                Reply::Yes(matches!(pushed, PushedOnce::Now { locked: 0 }))
            }
            Call::FreeLock | Call::Apply(_) => panic!("not a call of queues: {call:?}"),
        }
    }

    /// The state that the queue is in now. Destroys it: locks cannot be seen otherwise.
    async fn state(self) -> Server {
        let queue = &self.queue;
        let look = async |place| {
            let payloads = queue.look(&name("q"), place, 0, 9).await.unwrap();
            payloads
                .iter()
                .map(|it| attempts_of(it))
                .collect::<Vec<u8>>()
        };
        let reserved = look(Place::Reserved).await;
        let ended = queue.due(&name("q"), at(NOW)).await.unwrap().reserved;
        // Which of two has ended would not be seen.
        assert!(reserved.len() <= 1);
        let records = queue.ledger().read(Spool::FollowUps, 0, 9).await.unwrap();
        let known = |bytes: &Vec<u8>| {
            let found = RECORDS.into_iter().find(|one| record(*one) == *bytes);
            found.unwrap()
        };
        let mut lease = None;
        for holder in [Drainer::Worker(0), Drainer::Worker(1), Drainer::Dead] {
            let kept = (queue.ledger()).keep(Spool::FollowUps, drainer(holder), LIVES);
            if kept.await.unwrap() {
                lease = Some(holder);
            }
        }
        let mut server = Server {
            pending: look(Place::Pending).await,
            delayed: look(Place::Delayed).await.into_iter().collect(),
            reserved: reserved.into_iter().map(|it| (it, ended == 1)).collect(),
            lock: None,
            next: u8::try_from(sizes(queue, "next").await.pending).unwrap(),
            pushed: queue.was_pushed(&name("q"), PUSH.id).await.unwrap(),
            records: records.iter().map(known).collect(),
            lease,
        };
        for holder in [Owner::First, Owner::Other] {
            if self.claim("test").await {
                break;
            }
            server.lock = Some(holder);
            self.aside(vec![self.unlock(holder)]).await;
        }
        server
    }
}

/// Every call of every scenario, with the server before it.
fn calls() -> BTreeSet<(Server, Call)> {
    let mut calls = BTreeSet::new();
    for scenario in Scenario::ALL {
        let model = Model {
            scenario,
            rules: Rules::ALL,
            faults: 2,
        };
        calls.extend(explore(&model).unwrap().calls);
    }
    calls
}

fn named(call: &Call) -> Option<u8> {
    match call {
        Call::Settle(member, _) | Call::Renew(member) => Some(*member),
        _ => None,
    }
}

async fn replay<Q: Subject>(fresh: impl Fn() -> Q) {
    let mut replayed = 0;
    for (before, call) in calls() {
        if call == Call::FreeLock {
            continue;
        }
        let mut after = before.clone();
        let expected = after.answer(&call, &Rules::ALL);
        let stage = Stage::set(fresh(), &before, named(&call)).await;
        let reply = stage.perform(&call).await;
        assert_eq!(reply, expected, "{call:?} on {before:?}");
        assert_eq!(stage.state().await, after, "{call:?} on {before:?}");
        replayed += 1;
    }
    assert!(replayed > 500, "{replayed}");
}

#[tokio::test]
async fn the_memory_queue_does_what_the_model_says() {
    replay(|| MemoryQueue::new(Some(Duration::from_secs(90)))).await;
}

#[tokio::test]
async fn the_scripts_do_what_the_model_says() {
    let server = RedisServer::start();
    replay(|| {
        let _: () = server.query(&[b"FLUSHALL"]);
        redis_queue(&server, true)
    })
    .await;
}

#[tokio::test]
async fn locks_elsewhere_are_freed_as_the_model_says() {
    let server = RedisServer::start();
    let freed = calls()
        .into_iter()
        .filter(|(_, call)| *call == Call::FreeLock);
    let freed: BTreeSet<Option<Owner>> = freed.map(|(before, _)| before.lock).collect();
    assert_eq!(freed.len(), 3);
    for lock in freed {
        let mut after = Server {
            lock,
            ..Server::default()
        };
        let _: () = server.query(&[b"FLUSHALL"]);
        let queue = redis_queue(&server, true);
        let redis = queue.redis().clone();
        let stage: Stage<RedisQueue> = Stage::set(queue, &after, None).await;
        let expected = after.answer(&Call::FreeLock, &Rules::ALL);
        let cache = Cache::redis(RedisStore::new(redis.clone(), redis, ""));
        let freed = cache.lock("lock", "first", Duration::ZERO).release().await;
        assert_eq!(Reply::Yes(freed.unwrap()), expected, "{lock:?}");
        assert_eq!(stage.state().await, after);
    }
}
