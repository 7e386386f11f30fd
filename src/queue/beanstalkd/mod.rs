//! Laravel's beanstalkd driver.
//!
//! The server keeps the time: it makes delayed jobs ready, and ends reservations, by itself. So `now` counts for
//! nothing here but the seconds that are told to the caller, and no job is migrated. It also counts the attempts: a
//! job that is put back has one more, and payloads stay as they were pushed.
//!
//! What surprises:
//!
//! * Only the connection that reserved a job can end, release, bury or renew it. When it is lost, all its jobs are
//!   ready at once; they are reported as gone.
//! * A job brings the length of its reservation (`time to run`) from its producer.
//! * A job whose reservation has ended and that no worker has taken since is still deleted by [`Settlement::Delete`].
//! * The server may miss the end of a reservation while other connections look for jobs again and again
//!   (beanstalkd#380); it does not while they wait. So idle workers wait, and a reservation that is not needed is
//!   given back.
//! * A server that comes back with its log (`-b`) may count attempts from the start; without, it gives ids again.
//! * A released job is the first again: order is by priority, then by the age of the job.
//! * The protocol shows only the first job of each place, and cannot clear a tube.
//! * Nothing happens in one step: `Finish` with effects is refused, a forwarded job may be there twice after a crash.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{
    Abilities, Ability, Answer, CallListener, Due, Error, Fate, Held, Once, Place, PopRequest,
    Popped, Push, PushListener, PushedOnce, Queue, QueueName, QueueRefusal, ReservedJob, Settled,
    Settlement, Sizes, Unsettled,
};
use crate::connection::LockPlace;
use crate::time::UnixSeconds;

mod ask;
mod client;
mod holder;
mod holders;
mod link;
mod look;
mod options;
mod pop;
mod push;
mod settle;
mod ticket;
mod tube;
mod wanted;

#[cfg(feature = "internals")]
pub use client::Reply;
pub use options::BeanstalkdOptions;

use self::holders::Holders;
use self::tube::Tube;
use self::wanted::Wanted;

/// Most jobs of one pop.
const MOST_AT_ONCE: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not 0");

/// The queues of one beanstalkd connection.
pub struct BeanstalkdQueue {
    options: Arc<BeanstalkdOptions>,
    abilities: Abilities,
    holders: Holders,
    /// What the last pop asked for and still has room for.
    wanted: watch::Sender<Wanted>,
    /// Held by the wait under way.
    waiting: tokio::sync::Mutex<()>,
    pushes: OnceLock<Arc<dyn PushListener>>,
    calls: OnceLock<Arc<dyn CallListener>>,
}

impl fmt::Debug for BeanstalkdQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeanstalkdQueue")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl BeanstalkdQueue {
    /// The queues behind a server; nothing is sent yet.
    pub fn new(options: BeanstalkdOptions) -> Self {
        let waits = |ability: &Ability| options.waits || *ability != Ability::AnnouncesPushes;
        let can = [
            Ability::TellsGone,
            Ability::Renews,
            Ability::Quarantines,
            Ability::AnnouncesPushes,
            Ability::Shows,
        ];
        let abilities = Abilities {
            driver: "beanstalkd",
            retry_after: Some(options.retry_after),
            most_at_once: MOST_AT_ONCE,
            can: can.into_iter().filter(waits).collect(),
        };
        let options = Arc::new(options);
        Self {
            abilities,
            holders: Holders::new(Arc::clone(&options)),
            options,
            wanted: watch::Sender::new(Wanted::default()),
            waiting: tokio::sync::Mutex::default(),
            pushes: OnceLock::new(),
            calls: OnceLock::new(),
        }
    }

    /// The tube that holds the jobs of a queue.
    fn tube(&self, queue: &QueueName) -> Result<Tube, QueueRefusal> {
        let forwarded = self.options.forwards.get(queue).unwrap_or(queue);
        Tube::new(forwarded.as_str())
    }

    /// Tells how long a call takes, if anything listens.
    async fn timed<T, E>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(listener) = self.calls.get() else {
            return answer.await;
        };
        let sent = Instant::now();
        let answer = answer.await;
        listener.answered(call, sent.elapsed(), answer.is_err());
        answer
    }
}

/// Makes an error of what the connection reported.
fn failed(
    command: &'static str,
    queue: &QueueName,
) -> impl FnOnce(crate::connection::Error) -> Error {
    let queue = queue.clone();
    move |source| Error::Script {
        script: command,
        queue,
        source,
    }
}

/// Makes an error of a refusal.
fn refused(queue: &QueueName) -> impl FnOnce(QueueRefusal) -> Error {
    let queue = queue.clone();
    move |source| Error::Refused { queue, source }
}

impl Queue for BeanstalkdQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        Box::pin(self.ask_for_life())
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        Box::pin(self.timed("pop", self.pop_jobs(request)))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        Box::pin(self.timed("settle", self.settle_jobs(jobs)))
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        Box::pin(self.timed("renew", self.renew_jobs(jobs, now)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(self.wait_for_job(queues, timeout))
    }

    fn end_waits(&self) -> Answer<'_, bool> {
        Box::pin(async { Ok(self.end_wait().await) })
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let jobs: Vec<_> = payloads.iter().map(|payload| (&**payload, None)).collect();
            self.put(queue, &jobs).await
        })
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(async move { self.put(queue, &[(payload, Some(due))]).await })
    }

    /// Pushes the jobs, every time: the server remembers no identity. After an error some of them may be pushed.
    fn push_once<'a>(&'a self, pushes: &'a [Push], _once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(self.push_all(pushes))
    }

    fn can_claim(&self, _queue: &QueueName, _place: &LockPlace) -> bool {
        false
    }

    /// Never true: the server remembers no identity.
    fn was_pushed<'a>(&'a self, _queue: &'a QueueName, _id: &'a str) -> Answer<'a, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        // The first one stays.
        let _ = self.pushes.set(listener);
    }

    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        // The first one stays.
        let _ = self.calls.set(listener);
    }

    /// Never any: the server moves jobs by itself, without a pop.
    fn due<'a>(&'a self, _queue: &'a QueueName, _now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(std::future::ready(Ok(Due::default())))
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        Box::pin(self.count(queue))
    }

    /// Shows the first job of a place at most, and no reserved ones.
    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        Box::pin(self.head(queue, place, from, limit))
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, _now: UnixSeconds) -> Answer<'a, u64> {
        let refusal = QueueRefusal::Unsupported("clear a tube");
        Box::pin(std::future::ready(Err(refused(queue)(refusal))))
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(self.tubes_where(|sizes| *sizes != Sizes::default()))
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(self.tubes_where(|sizes| sizes.quarantined > 0))
    }

    /// Takes payloads out as long as the first buried job is one of them: the server shows no other.
    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        Box::pin(self.take_buried(queue, payloads, fate))
    }
}
