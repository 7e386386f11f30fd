//! Waits for announced pushes.
//!
//! One `BLPOP` waits for all queues of a server. A cluster takes keys of one slot in a command, so each slot has a
//! waiter on a connection of its own; beyond [`MOST_WAITERS`] the other queues are looked at every so often.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use super::failed::failed;
use crate::connection::Redis;
use crate::queue::{Error, Keys, QueueName};

/// Longest wait for a push in one blocking command.
const LONGEST_BLOCK: Duration = Duration::from_secs(10);
/// Most connections that wait.
const MOST_WAITERS: usize = 8;
/// How often the queues are looked at for which no connection waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Connections for commands that block.
pub(super) struct Waits {
    /// A reply may take as long as the command blocks.
    blocking: Redis,
    /// On a cluster, the connections that do not wait now.
    idle: Mutex<Vec<Redis>>,
}

impl Waits {
    pub(super) fn new(redis: &Redis) -> Self {
        Self {
            blocking: redis.another(LONGEST_BLOCK + Duration::from_secs(5)),
            idle: Mutex::default(),
        }
    }

    pub(super) async fn wait(
        &self,
        keys: &Keys,
        queues: &[QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let Some(first) = queues.first() else {
            return Ok(None);
        };
        let are_together = |queue| keys.are_together(first, queue);
        if !keys.are_tagged() || queues.iter().all(are_together) {
            let queues: Vec<_> = queues.iter().collect();
            return block(&self.blocking, keys, &queues, timeout).await;
        }
        let mut slots: Vec<Vec<&QueueName>> = Vec::new();
        for queue in queues {
            match slots
                .iter_mut()
                .find(|slot| keys.are_together(slot[0], queue))
            {
                Some(slot) => slot.push(queue),
                None => slots.push(vec![queue]),
            }
        }
        let looked_at = slots.split_off(slots.len().min(MOST_WAITERS)).concat();
        let waiting = slots
            .iter()
            .map(|slot| self.wait_for_slot(keys, slot, timeout));
        let first = select_all(waiting.map(Box::pin));
        if looked_at.is_empty() {
            return first.await.0;
        }
        // The others are dropped, and their connections closed: notifications of their queues are then left for other
        // workers.
        tokio::select! {
            (pushed, _, _) = first => pushed,
            pushed = self.look(keys, &looked_at, timeout) => pushed,
        }
    }

    /// Waits for the queues of a slot, on a connection that is kept if the wait ends by itself.
    async fn wait_for_slot(
        &self,
        keys: &Keys,
        queues: &[&QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let redis = kept.unwrap_or_else(|| {
            self.blocking
                .another(LONGEST_BLOCK + Duration::from_secs(5))
        });
        let pushed = block(&redis, keys, queues, timeout).await;
        idle().push(redis);
        pushed
    }

    /// Looks at queues until one of them has a notification, and takes that.
    async fn look(
        &self,
        keys: &Keys,
        queues: &[&QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let end = Instant::now() + timeout;
        loop {
            let take = async |queue: &QueueName| {
                let command = redis::cmd("LPOP").arg(keys.notify(queue)).take();
                let taken = self.blocking.command::<Option<Vec<u8>>>(&command).await;
                taken.map_err(failed("LPOP", queue))
            };
            let taken = join_all(queues.iter().map(|queue| take(queue))).await;
            for (queue, taken) in queues.iter().zip(taken) {
                if taken?.is_some() {
                    return Ok(Some((*queue).clone()));
                }
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Waits for a notification of one of these queues, and takes it.
async fn block(
    redis: &Redis,
    keys: &Keys,
    queues: &[&QueueName],
    timeout: Duration,
) -> Result<Option<QueueName>, Error> {
    // Whole seconds: servers before Redis 6 accept no fractions. 0 would block without end.
    let seconds = timeout.min(LONGEST_BLOCK).as_secs().max(1);
    let mut command = redis::cmd("BLPOP");
    for queue in queues {
        command.arg(keys.notify(queue));
    }
    command.arg(seconds);
    let reply: Option<(String, Vec<u8>)> =
        (redis.command(&command).await).map_err(failed("BLPOP", queues[0]))?;
    let pushed = reply.and_then(|(key, _)| {
        let is_told = |queue: &&&QueueName| keys.notify(queue) == key;
        queues.iter().find(is_told)
    });
    Ok(pushed.map(|queue| (*queue).clone()))
}
