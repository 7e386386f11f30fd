//! The queues of a connection.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::core::Core;
use super::options::SqsOptions;
use super::polls::Polls;
use crate::connection::LockPlace;
use crate::queue::{
    Abilities, Ability, Answer, CallListener, Due, Error, Fate, Held, Once, Place, PopRequest,
    Popped, Push, PushListener, PushedOnce, Queue, QueueName, QueueRefusal, ReservedJob, Settled,
    Settlement, Sizes, Unsettled,
};
use crate::time::UnixSeconds;

/// Most jobs of one pop.
pub(super) const MOST_AT_ONCE: NonZeroUsize = NonZeroUsize::new(100).expect("100 is not 0");

/// The queues of one SQS connection.
pub struct SqsQueue {
    pub(super) core: Arc<Core>,
    abilities: Abilities,
    pub(super) polls: Arc<Polls>,
    pub(super) pushes: OnceLock<Arc<dyn PushListener>>,
    calls: OnceLock<Arc<dyn CallListener>>,
}

impl fmt::Debug for SqsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsQueue")
            .field("options", &self.core.options)
            .finish_non_exhaustive()
    }
}

impl SqsQueue {
    /// The queues of an account; nothing is sent yet.
    pub fn new(options: SqsOptions) -> Self {
        let core = Core::new(options);
        Self {
            abilities: Abilities {
                driver: "sqs",
                retry_after: Some(core.retry_after()),
                most_at_once: MOST_AT_ONCE,
                can: vec![Ability::Renews, Ability::AnnouncesPushes, Ability::Clears],
            },
            core: Arc::new(core),
            polls: Arc::default(),
            pushes: OnceLock::new(),
            calls: OnceLock::new(),
        }
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

    async fn count(&self, queue: &QueueName) -> Result<Sizes, Error> {
        let url = self.core.url(queue);
        let attributes = self.core.client.attributes(queue, &url).await?;
        Ok(Sizes {
            pending: attributes.visible,
            delayed: attributes.delayed,
            reserved: attributes.hidden,
            quarantined: 0,
        })
    }

    async fn purge(&self, queue: &QueueName) -> Result<u64, Error> {
        let sizes = self.count(queue).await?;
        let url = self.core.url(queue);
        self.core.client.purge(queue, &url).await?;
        Ok(sizes.pending + sizes.delayed + sizes.reserved)
    }
}

fn unsupported<'a, T: Send + 'a>(queue: &QueueName, what: &'static str) -> Answer<'a, T> {
    let error = Error::Refused {
        queue: queue.clone(),
        source: QueueRefusal::Unsupported(what),
    };
    Box::pin(std::future::ready(Err(error)))
}

impl Queue for SqsQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Asks nothing: what an account may do is known of each queue and call only.
    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        Box::pin(std::future::ready(Ok(())))
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

    fn had_ended(&self, jobs: &[ReservedJob]) {
        for job in jobs {
            self.core.leases.note_end(job);
        }
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        _now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        Box::pin(self.timed("renew", self.core.renew(jobs)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(self.polls.wait(&self.core, queues, timeout))
    }

    fn end_waits(&self) -> Answer<'_, bool> {
        Box::pin(async { Ok(self.polls.end().await) })
    }

    fn recorded(&self, queue: &QueueName) -> QueueName {
        self.core.url(queue).as_str().into()
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let jobs: Vec<_> = payloads.iter().map(|payload| (&**payload, None)).collect();
            self.put(queue, &jobs, None, None).await
        })
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(async move { self.put(queue, &[(payload, Some(due))], None, None).await })
    }

    /// Pushes the jobs. A standard queue takes them every time; a FIFO queue takes no job of the same identity for five
    /// minutes. After an error some of them may be pushed.
    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(self.push_all(pushes, once.id))
    }

    fn can_claim(&self, _queue: &QueueName, _place: &LockPlace) -> bool {
        false
    }

    /// Never true: the server does not say what it remembers.
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

    /// Shows nothing: to see a message is to take it.
    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        _place: Place,
        _from: usize,
        _limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        unsupported(queue, "show a message without delivering it")
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, _now: UnixSeconds) -> Answer<'a, u64> {
        Box::pin(self.purge(queue))
    }

    /// Always empty: an account has queues of other apps, and which are this one's nothing says.
    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        _payloads: &'a [Vec<u8>],
        _fate: Fate,
    ) -> Answer<'a, u64> {
        unsupported(queue, "keep payloads apart that cannot be decoded")
    }
}
