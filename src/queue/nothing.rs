//! A connection that keeps no jobs (`sync`, `null`, `deferred`, `background`): its workers find nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Abilities, Answer, Due, Error, Fate, Held, Once, Place, PopRequest, Popped, Push, PushedOnce,
    Queue, QueueName, QueueRefusal, ReservedJob, Settled, Settlement, Sizes, Unsettled,
};
use crate::connection::LockPlace;
use crate::time::UnixSeconds;

/// Queues that are always empty.
#[derive(Debug)]
pub struct NoQueue {
    abilities: Abilities,
}

impl NoQueue {
    /// The queues of a connection with this driver.
    pub fn new(driver: &'static str) -> Self {
        Self {
            abilities: Abilities {
                driver,
                retry_after: None,
                most_at_once: NonZeroUsize::MAX,
                can: Vec::new(),
            },
        }
    }
}

fn at_once<'a, T: Send + 'a, E: Send + 'a>(answer: Result<T, E>) -> Answer<'a, T, E> {
    Box::pin(std::future::ready(answer))
}

/// Only PHP runs a job where it is pushed.
fn refused(queue: &QueueName) -> Error {
    Error::Refused {
        queue: queue.clone(),
        source: QueueRefusal::Nowhere,
    }
}

impl Queue for NoQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        at_once(Ok(()))
    }

    fn pop<'a>(&'a self, _request: PopRequest<'a>) -> Answer<'a, Popped> {
        at_once(Ok(Popped::default()))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        at_once(Ok(vec![Settled::Gone; jobs.len()]))
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        _now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        at_once(Ok(vec![Held::Lost; jobs.len()]))
    }

    fn wait_for_push<'a>(
        &'a self,
        _queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(async move {
            tokio::time::sleep(timeout).await;
            Ok(None)
        })
    }

    fn push<'a>(&'a self, queue: &'a QueueName, _payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        at_once(Err(refused(queue)))
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        _due: UnixSeconds,
        _payload: &'a [u8],
    ) -> Answer<'a, ()> {
        at_once(Err(refused(queue)))
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], _once: Once<'a>) -> Answer<'a, PushedOnce> {
        at_once(match pushes.first() {
            Some(push) => Err(refused(&push.queue)),
            None => Ok(PushedOnce::Now { locked: 0 }),
        })
    }

    fn can_claim(&self, _queue: &QueueName, _place: &LockPlace) -> bool {
        false
    }

    fn was_pushed<'a>(&'a self, _queue: &'a QueueName, _id: &'a str) -> Answer<'a, bool> {
        at_once(Ok(false))
    }

    fn due<'a>(&'a self, _queue: &'a QueueName, _now: UnixSeconds) -> Answer<'a, Due> {
        at_once(Ok(Due::default()))
    }

    fn sizes<'a>(&'a self, _queue: &'a QueueName) -> Answer<'a, Sizes> {
        at_once(Ok(Sizes::default()))
    }

    fn look<'a>(
        &'a self,
        _queue: &'a QueueName,
        _place: Place,
        _from: usize,
        _limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        at_once(Ok(Vec::new()))
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, _now: UnixSeconds) -> Answer<'a, u64> {
        at_once(Err(refused(queue)))
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        at_once(Ok(Vec::new()))
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        at_once(Ok(Vec::new()))
    }

    fn dequarantine<'a>(
        &'a self,
        _queue: &'a QueueName,
        _payloads: &'a [Vec<u8>],
        _fate: Fate,
    ) -> Answer<'a, u64> {
        at_once(Ok(0))
    }
}
