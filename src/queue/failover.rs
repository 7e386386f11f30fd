//! Laravel's failover connection: a job is pushed to the first of several connections that takes it.
//!
//! A connection whose reply was lost may have taken the job: none after it is tried then, and the caller hears that
//! the outcome is unknown. A repeated push of the same identity begins with that connection, and goes no further until
//! it answers. Laravel goes on to the next, and the job may be there twice. What must survive this process, such as a
//! step of a chain, has its connection [chosen](Queue::choose) and written down before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::{
    Abilities, Ability, Answer, CallListener, ConnectionName, Due, Error, Fate, Held, Once, Place,
    PopRequest, Popped, Push, PushListener, PushedOnce, Queue, QueueName, ReservedJob, Settled,
    Settlement, Sizes, Unsettled,
};
use crate::connection::{self, LockPlace, Transaction};
use crate::shown::with_causes;
use crate::time::UnixSeconds;

/// Several connections, tried in order by pushes. Everything else is for the first.
#[derive(Debug)]
pub struct FailoverQueue {
    first: Arc<dyn Queue>,
    all: Vec<Inner>,
    abilities: Abilities,
    /// Identities of pushes under way, and of those without a reply: the connection that may have them, and until when
    /// it would know.
    doubts: Mutex<HashMap<Box<str>, (usize, Instant)>>,
}

/// One of the connections.
#[derive(Debug)]
pub struct Inner {
    /// Its name.
    pub name: ConnectionName,
    /// The queue for jobs that name none.
    pub default_queue: QueueName,
    /// Its queues.
    pub queues: Arc<dyn Queue>,
}

impl FailoverQueue {
    /// These connections, in order; `None` for none.
    pub fn new(all: Vec<Inner>) -> Option<Self> {
        let first = &all.first()?.queues;
        let mut abilities = first.abilities().clone();
        let has = |one: &Inner, ability| one.queues.abilities().has(ability);
        // A payload may be pushed to any connection; what one connection needs does no harm to the others.
        let counts = all.iter().any(|one| has(one, Ability::CountsInPayload));
        abilities.can.retain(|ability| {
            // Only the first one's jobs are shown, and moved when they are due.
            matches!(ability, Ability::Shows | Ability::Migrates)
                || *ability != Ability::CountsInPayload && all.iter().all(|one| has(one, *ability))
        });
        abilities
            .can
            .extend(counts.then_some(Ability::CountsInPayload));
        Some(Self {
            first: Arc::clone(first),
            abilities,
            all,
            doubts: Mutex::default(),
        })
    }

    /// The queue of another connection for jobs of this one: jobs that name none go to the default queue of each.
    fn queue_of(&self, inner: &Inner, queue: &QueueName) -> QueueName {
        let is_default = self
            .all
            .first()
            .is_some_and(|first| first.default_queue == *queue);
        if is_default {
            inner.default_queue.clone()
        } else {
            queue.clone()
        }
    }

    /// Whether another connection is to be tried after this one.
    fn goes_on<T>(&self, at: usize, pushed: &Result<T, Error>) -> bool {
        let Err(error) = pushed else {
            return false;
        };
        let goes_on = !error.is_of_unknown_outcome() && at + 1 < self.all.len();
        if goes_on {
            tracing::warn!(
                connection = self.all[at].name.as_str(),
                error = with_causes(error),
                "a connection did not take a job: the next one of the failover connection is tried"
            );
        }
        goes_on
    }

    async fn push_one(
        &self,
        queue: &QueueName,
        due: Option<UnixSeconds>,
        payload: &[u8],
    ) -> Result<(), Error> {
        for (at, inner) in self.all.iter().enumerate() {
            let queue = self.queue_of(inner, queue);
            let pushed = match due {
                Some(due) => inner.queues.later(&queue, due, payload).await,
                None => inner.queues.push(&queue, &[payload.to_vec()]).await,
            };
            if !self.goes_on(at, &pushed) {
                return pushed;
            }
        }
        Ok(())
    }

    async fn push_all_once(&self, pushes: &[Push], once: Once<'_>) -> Result<PushedOnce, Error> {
        let may_have = self.may_have(once.id);
        for (at, inner) in self.all.iter().enumerate().skip(may_have.unwrap_or(0)) {
            let there = |push: &Push| Push {
                queue: self.queue_of(inner, &push.queue),
                ..push.clone()
            };
            let pushes: Vec<_> = pushes.iter().map(there).collect();
            // Before, because a call that is dropped may have been carried out as well.
            self.note_doubt(once, at);
            let answer = inner.queues.push_once(&pushes, once).await;
            match &answer {
                Err(error) if error.is_of_unknown_outcome() => return answer,
                // The connection refuses the push now, but may have taken it before.
                Err(_) if may_have == Some(at) => return answer.map_err(Error::doubtful),
                _ => self.doubts().remove(once.id),
            };
            if !self.goes_on(at, &answer) {
                return answer;
            }
        }
        Ok(PushedOnce::Now { locked: 0 })
    }

    fn doubts(&self) -> MutexGuard<'_, HashMap<Box<str>, (usize, Instant)>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that may have taken a push of this identity.
    fn may_have(&self, id: &str) -> Option<usize> {
        let doubts = self.doubts();
        let (at, until) = doubts.get(id)?;
        (Instant::now() < *until).then_some(*at)
    }

    fn note_doubt(&self, once: Once<'_>, at: usize) {
        let now = Instant::now();
        let mut doubts = self.doubts();
        // Before it grows.
        if doubts.len() == doubts.capacity() {
            doubts.retain(|_, (_, until)| now < *until);
        }
        doubts.insert(once.id.into(), (at, now + once.remembered));
    }

    /// The first connection that answers.
    async fn first_there(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(ConnectionName, QueueName)>, connection::Error> {
        let mut problem = None;
        for inner in &self.all {
            match inner.queues.ping().await {
                Ok(()) => return Ok(Some((inner.name.clone(), self.queue_of(inner, queue)))),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        problem.map_or(Ok(None), Err)
    }
}

impl Queue for FailoverQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn are_apart(&self, one: &QueueName, other: &QueueName) -> bool {
        self.first.are_apart(one, other)
    }

    fn ping(&self) -> Answer<'_, (), connection::Error> {
        self.first.ping()
    }

    fn open_on(&self, runtime: &Handle) {
        self.first.open_on(runtime);
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        self.first.pop(request)
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        self.first.settle(jobs)
    }

    fn puts_off(&self, job: &ReservedJob, settlement: &Settlement) -> bool {
        self.first.puts_off(job, settlement)
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        self.first.renew(jobs, now)
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        self.first.wait_for_push(queues, timeout)
    }

    fn end_waits(&self) -> Answer<'_, bool> {
        self.first.end_waits()
    }

    fn recorded(&self, queue: &QueueName) -> QueueName {
        self.first.recorded(queue)
    }

    /// Each job by itself, as in Laravel: a part of them may be taken before a connection fails.
    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            for (number, payload) in payloads.iter().enumerate() {
                let pushed = self.push_one(queue, None, payload).await;
                pushed.map_err(|error| error.doubtful_if(number > 0))?;
            }
            Ok(())
        })
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(self.push_one(queue, Some(due), payload))
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(self.push_all_once(pushes, once))
    }

    /// Only the first connection: no other one is tried in a transaction that has failed.
    fn push_within<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        pushes: &'a [Push],
    ) -> Answer<'a, bool> {
        self.first.push_within(transaction, pushes)
    }

    fn choose<'a>(
        &'a self,
        queue: &'a QueueName,
    ) -> Answer<'a, Option<(ConnectionName, QueueName)>, connection::Error> {
        Box::pin(self.first_there(queue))
    }

    /// A lock would be taken on one connection, and the job pushed to another.
    fn can_claim(&self, _queue: &QueueName, _place: &LockPlace) -> bool {
        false
    }

    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            for inner in &self.all {
                if inner
                    .queues
                    .was_pushed(&self.queue_of(inner, queue), id)
                    .await?
                {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        for inner in &self.all {
            inner.queues.tell_pushes(Arc::clone(&listener));
        }
    }

    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        self.first.tell_calls(listener);
    }

    fn migrate<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        self.first.migrate(queue, now)
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        self.first.due(queue, now)
    }

    fn first_due<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Option<UnixSeconds>> {
        self.first.first_due(queue)
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        self.first.sizes(queue)
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        self.first.look(queue, place, from, limit)
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        self.first.clear(queue, now)
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        self.first.queues()
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        self.first.quarantines()
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        self.first.dequarantine(queue, payloads, fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::faulty::{Fault, Server, push_of};

    struct Scene {
        servers: [Arc<Server>; 2],
        failover: FailoverQueue,
    }

    impl Scene {
        fn new() -> Self {
            let servers = [Server::new(), Server::new()];
            let inner = |(name, server): (&str, &Arc<Server>)| Inner {
                name: name.into(),
                default_queue: "default".into(),
                queues: Arc::clone(server) as Arc<dyn Queue>,
            };
            let all = ["first", "second"].into_iter().zip(&servers);
            let failover = FailoverQueue::new(all.map(inner).collect()).unwrap();
            Self { servers, failover }
        }

        async fn push(&self, id: &str) -> Result<PushedOnce, Error> {
            let once = Once {
                id,
                remembered: Duration::from_secs(60),
                note: "",
            };
            self.failover.push_once(&[push_of("default")], once).await
        }

        async fn pending(&self) -> [u64; 2] {
            let [first, second] = &self.servers;
            [first.sizes().await.pending, second.sizes().await.pending]
        }
    }

    #[tokio::test]
    async fn a_connection_that_refuses_is_passed_by() {
        let scene = Scene::new();
        scene.servers[0].next("push_once", [Some(Fault::Refused)]);
        scene.push("a").await.unwrap();
        assert_eq!(scene.pending().await, [0, 1]);
    }

    #[tokio::test]
    async fn a_connection_that_may_have_the_job_is_not_passed_by() {
        let scene = Scene::new();
        scene.servers[0].next("push_once", [Some(Fault::ReplyLost), Some(Fault::Refused)]);
        assert!(scene.push("a").await.unwrap_err().is_of_unknown_outcome());
        // The connection is away now and refuses the push; that says nothing about the first push.
        assert!(scene.push("a").await.unwrap_err().is_of_unknown_outcome());
        assert!(matches!(
            scene.push("a").await,
            Ok(PushedOnce::Before { .. })
        ));
        assert_eq!(scene.pending().await, [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_may_have_been_carried_out() {
        let scene = Scene::new();
        let second = Duration::from_secs(1);
        let faults = [Some(Fault::Slow(3 * second)), Some(Fault::Refused)];
        scene.servers[0].next("push_once", faults);
        let dropped = tokio::time::timeout(second, scene.push("a")).await;
        assert!(dropped.is_err());
        assert!(scene.push("a").await.unwrap_err().is_of_unknown_outcome());
        scene.push("a").await.unwrap();
        assert_eq!(scene.pending().await, [1, 0]);
    }

    #[tokio::test]
    async fn the_first_connection_that_answers_is_chosen() {
        let scene = Scene::new();
        let queue = QueueName::from("default");
        let chosen = async || scene.failover.choose(&queue).await;
        assert_eq!(chosen().await.unwrap().unwrap().0.as_str(), "first");
        scene.servers[0].next("ping", [Some(Fault::Refused)]);
        assert_eq!(chosen().await.unwrap().unwrap().0.as_str(), "second");
        for server in &scene.servers {
            server.next("ping", [Some(Fault::Refused)]);
        }
        assert!(chosen().await.is_err());
    }

    #[tokio::test]
    async fn a_doubtful_push_holds_up_no_other() {
        let scene = Scene::new();
        scene.servers[0].next("push_once", [Some(Fault::ReplyLost), Some(Fault::Refused)]);
        scene.push("a").await.unwrap_err();
        scene.push("b").await.unwrap();
        assert_eq!(scene.pending().await, [1, 1]);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_is_pushed_within_a_transaction_of_the_first_connection_waits_for_no_lock() {
        use crate::connection::{Database, DatabaseKind, DatabaseOptions};
        use crate::queue::{DatabaseQueue, DatabaseQueueOptions};
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("database.sqlite");
        std::fs::File::create(&file).unwrap();
        let options = DatabaseOptions {
            database: file.display().to_string(),
            ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
        };
        let database = Database::new(&options).unwrap();
        for statement in DatabaseQueue::TABLE_OF_JOBS {
            database.execute(statement, &[]).await.unwrap();
        }
        let queues = DatabaseQueue::new(&options, DatabaseQueueOptions::default()).unwrap();
        let inner = Inner {
            name: "database".into(),
            default_queue: "default".into(),
            queues: Arc::new(queues),
        };
        let failover = FailoverQueue::new(vec![inner]).unwrap();
        let mut transaction = database.begin().await.unwrap();
        let pushes = [push_of("default")];
        let is_pushed = failover.push_within(&mut transaction, &pushes).await;
        assert!(is_pushed.unwrap());
        transaction.commit().await.unwrap();
        let sizes = failover.sizes(&"default".into()).await.unwrap();
        assert_eq!(sizes.pending, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_has_forgotten_is_not_waited_for() {
        let scene = Scene::new();
        scene.servers[0].next("push_once", [Some(Fault::ReplyLost), Some(Fault::Refused)]);
        scene.push("a").await.unwrap_err();
        tokio::time::advance(Duration::from_secs(61)).await;
        scene.push("a").await.unwrap();
        assert_eq!(scene.pending().await, [1, 1]);
    }
}
