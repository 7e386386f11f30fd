//! A server in memory whose calls fail as they are told, and that notes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::{self, LockPlace};
use crate::payload::FailedJob;
use crate::queue::{
    Abilities, Ability, Answer, Due, Error, Fate, Held, MemoryQueue, Once, Place, PopRequest,
    Popped, Push, PushedOnce, Queue, QueueName, QueueRefusal, ReservedJob, Settled, Settlement,
    Sizes, Spool, Unsettled,
};
use crate::time::UnixSeconds;

/// The second in which all tests happen.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1_760_000_000);
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(90);

/// A push without a lock.
pub(crate) fn push_of(queue: &str) -> Push {
    Push {
        queue: queue.into(),
        payload: b"{}".to_vec(),
        due: None,
        claim: None,
    }
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server refuses it, and does nothing.
    Refused,
    /// There is no connection to the server.
    Away,
    /// The server refuses it, and will always do so.
    Impossible,
    /// The server carries it out, and its reply is lost.
    ReplyLost,
    /// The server carries it out for the first of its jobs.
    OnlyFirst,
    /// The server carries it out after this long.
    Slow(Duration),
    /// The server does nothing and never answers.
    Hangs,
}

/// A call that came to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) what: &'static str,
    pub(crate) at: Instant,
    /// How many jobs it was for, or at most for.
    pub(crate) jobs: usize,
}

type Refuses = Box<dyn Fn(&Settlement) -> Option<Fault> + Send + Sync>;

/// Queues in memory on a server that fails when a test says so.
pub(crate) struct Server {
    pub(crate) jobs: Arc<MemoryQueue>,
    abilities: Abilities,
    /// What happens to the next calls of a name.
    next: Mutex<HashMap<&'static str, VecDeque<Option<Fault>>>>,
    /// What happens to calls with such a settlement.
    refuses: Mutex<Option<Refuses>>,
    calls: Mutex<Vec<Call>>,
    /// What waits have taken, if they take jobs.
    caught: Mutex<Vec<ReservedJob>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new() -> Arc<Self> {
        Self::without(&[])
    }

    /// A server that takes each reservation for an attempt, and gives the next job and no other.
    pub(crate) fn that_counts_reservations() -> Arc<Self> {
        Self::without(&[Ability::PutsBack, Ability::Chooses])
    }

    /// A server that is said to lack these abilities.
    pub(crate) fn without(lacking: &[Ability]) -> Arc<Self> {
        let jobs = Arc::new(MemoryQueue::new(Some(RETRY_AFTER)));
        let mut abilities = jobs.abilities().clone();
        abilities.can.retain(|ability| !lacking.contains(ability));
        Arc::new(Self {
            jobs,
            abilities,
            next: Mutex::default(),
            refuses: Mutex::default(),
            calls: Mutex::default(),
            caught: Mutex::default(),
        })
    }

    /// A wait takes the next job of this queue.
    pub(crate) async fn catch(&self, queue: &str) {
        let request = PopRequest {
            queues: &[queue.into()],
            max: std::num::NonZeroUsize::MIN,
            now: NOW,
            woken: &[],
            selection: None,
            thorough: false,
        };
        let taken = self.jobs.pop(request).await.unwrap().jobs;
        self.caught.lock().unwrap().extend(taken);
    }

    /// Says what happens to the next calls: `pop`, `settle`, `renew`, `wait`, `push_once`, `sizes` or
    /// `ping`.
    pub(crate) fn next(&self, what: &'static str, faults: impl IntoIterator<Item = Option<Fault>>) {
        let mut next = self.next.lock().unwrap();
        next.entry(what).or_default().extend(faults);
    }

    /// Says what happens to every call that has such a settlement.
    pub(crate) fn refuses(
        &self,
        refuses: impl Fn(&Settlement) -> Option<Fault> + Send + Sync + 'static,
    ) {
        *self.refuses.lock().unwrap() = Some(Box::new(refuses));
    }

    /// The calls of a name so far.
    pub(crate) fn calls(&self, what: &str) -> Vec<Call> {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.what == what)
            .cloned()
            .collect()
    }

    /// How many jobs each call of a name was for.
    pub(crate) fn sizes_of(&self, what: &str) -> Vec<usize> {
        self.calls(what).iter().map(|call| call.jobs).collect()
    }

    pub(crate) async fn push(&self, payloads: &[Vec<u8>]) {
        self.jobs.push(&"default".into(), payloads).await.unwrap();
    }

    pub(crate) async fn sizes(&self) -> Sizes {
        self.jobs.sizes(&"default".into()).await.unwrap()
    }

    /// Reserves all jobs that wait.
    pub(crate) async fn reserve(&self) -> Vec<Arc<ReservedJob>> {
        let request = PopRequest {
            queues: &["default".into()],
            max: std::num::NonZeroUsize::MAX,
            now: NOW,
            woken: &[],
            selection: None,
            thorough: false,
        };
        let popped = self.jobs.pop(request).await.unwrap();
        popped.jobs.into_iter().map(Arc::new).collect()
    }

    /// The names of all calls so far, but for waits.
    pub(crate) fn order(&self) -> Vec<&'static str> {
        let calls = self.calls.lock().unwrap();
        let names = calls.iter().map(|call| call.what);
        names.filter(|what| *what != "wait").collect()
    }

    /// The records of failed jobs.
    pub(crate) fn failed(&self) -> Vec<FailedJob> {
        let records = self.jobs.spool(Spool::FailedJobs);
        let read = |record: &Vec<u8>| serde_json::from_slice(record).unwrap();
        records.iter().map(read).collect()
    }

    fn note(&self, what: &'static str, jobs: usize) -> Option<Fault> {
        let at = Instant::now();
        self.calls.lock().unwrap().push(Call { what, at, jobs });
        let mut next = self.next.lock().unwrap();
        next.get_mut(what)?.pop_front()?
    }
}

fn away() -> connection::Error {
    connection::Error::Connect {
        address: "test".into(),
        source: std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
    }
}

/// An error of a call.
fn error(fault: Fault) -> Error {
    let queue = QueueName::from("default");
    match fault {
        Fault::Impossible => Error::Refused {
            queue,
            source: QueueRefusal::Nowhere,
        },
        Fault::ReplyLost => Error::Script {
            script: "a script",
            queue,
            source: connection::Error::Command {
                address: "test".into(),
                source: std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
            },
        },
        Fault::Away => Error::Script {
            script: "a script",
            queue,
            source: away(),
        },
        _ => Error::Overflow {
            queue,
            source: "the server says no".into(),
        },
    }
}

/// Carries out a call, with what happens to it.
async fn faulty<T>(
    fault: Option<Fault>,
    carry_out: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match fault {
        None => carry_out.await,
        Some(fault @ (Fault::Refused | Fault::Away | Fault::Impossible | Fault::OnlyFirst)) => {
            Err(error(fault))
        }
        Some(Fault::ReplyLost) => {
            carry_out.await?;
            Err(error(Fault::ReplyLost))
        }
        Some(Fault::Slow(wait)) => {
            tokio::time::sleep(wait).await;
            carry_out.await
        }
        Some(Fault::Hangs) => std::future::pending().await,
    }
}

impl Queue for Server {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn are_apart(&self, one: &QueueName, other: &QueueName) -> bool {
        one != other
    }

    fn ping(&self) -> Answer<'_, (), connection::Error> {
        let fault = self.note("ping", 0);
        Box::pin(async move {
            match fault {
                None => self.jobs.ping().await,
                Some(_) => Err(away()),
            }
        })
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        let fault = self.note("pop", request.max.get());
        let mut caught = self.caught.lock().unwrap();
        let is_of = |job: &ReservedJob| request.queues.contains(&job.queue);
        if let Some(place) = caught.iter().position(is_of) {
            let jobs = vec![caught.remove(place)];
            let popped = Popped {
                jobs,
                ..Popped::default()
            };
            return Box::pin(std::future::ready(Ok(popped)));
        }
        drop(caught);
        Box::pin(faulty(fault, self.jobs.pop(request)))
    }

    fn end_waits(&self) -> Answer<'_, bool> {
        let are_left = !self.caught.lock().unwrap().is_empty();
        Box::pin(std::future::ready(Ok(are_left)))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        let fault = self.note("settle", jobs.len()).or_else(|| {
            let refuses = self.refuses.lock().unwrap();
            let refuses = refuses.as_ref()?;
            jobs.iter().find_map(|(_, settlement)| refuses(settlement))
        });
        let none = vec![None; jobs.len()];
        Box::pin(async move {
            if fault == Some(Fault::OnlyFirst) {
                let mut settled = none;
                settled[0] = self.jobs.settle(&jobs[..1]).await?.pop();
                let source = error(Fault::OnlyFirst);
                return Err(Unsettled { settled, source });
            }
            let settling = async { Ok(self.jobs.settle(jobs).await.expect("memory")) };
            faulty(fault, settling).await.map_err(|source| Unsettled {
                settled: none,
                source,
            })
        })
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        let fault = self.note("renew", jobs.len());
        Box::pin(faulty(fault, self.jobs.renew(jobs, now)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        let fault = self.note("wait", 0);
        Box::pin(faulty(fault, self.jobs.wait_for_push(queues, timeout)))
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        self.jobs.push(queue, payloads)
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        self.jobs.later(queue, due, payload)
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        let fault = self.note("push_once", pushes.len());
        Box::pin(faulty(fault, self.jobs.push_once(pushes, once)))
    }

    fn tell_late(&self, pushes: &[Push]) {
        let _ = self.note("tell_late", pushes.len());
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.jobs.can_claim(queue, place)
    }

    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        self.jobs.was_pushed(queue, id)
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        self.jobs.due(queue, now)
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        let fault = self.note("sizes", 0);
        Box::pin(faulty(fault, Queue::sizes(&*self.jobs, queue)))
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        self.jobs.look(queue, place, from, limit)
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        self.jobs.clear(queue, now)
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        self.jobs.queues()
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        self.jobs.quarantines()
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        self.jobs.dequarantine(queue, payloads, fate)
    }
}
