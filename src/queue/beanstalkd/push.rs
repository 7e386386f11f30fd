//! Pushes jobs.

use super::client::{Batch, Reply};
use super::tube::Tube;
use super::{BeanstalkdQueue, failed, refused};
use crate::queue::{Error, Push, PushedOnce, QueueName, QueueRefusal};
use crate::time::{Clock, UnixSeconds};

/// Most bytes of payloads that are sent before the answers to them are read.
const MOST_BYTES: usize = 1 << 20;
/// Most jobs of the same.
const MOST_JOBS: usize = 1024;

/// Whole seconds until a job is due, as the server takes them.
pub(super) fn delay(due: UnixSeconds) -> u32 {
    let wait = Clock::System.until_whole(due).as_secs();
    u32::try_from(wait).unwrap_or(u32::MAX)
}

impl BeanstalkdQueue {
    fn time_to_run(&self) -> u32 {
        let seconds = self.options.retry_after.as_secs().max(1);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// Pushes jobs to the end of a queue, each when it is due.
    ///
    /// # Errors
    ///
    /// Those before the one that the error names are pushed, and maybe some behind it: each is a command of its own.
    pub(super) async fn put(
        &self,
        queue: &QueueName,
        mut jobs: &[(&[u8], Option<UnixSeconds>)],
    ) -> Result<(), Error> {
        let tube = self.tube(queue).map_err(refused(queue))?;
        let mut is_begun = false;
        while !jobs.is_empty() {
            let mut batch = Batch::default();
            batch.use_tube(&tube);
            let mut sent = 0;
            for (payload, due) in jobs {
                let is_full = sent == MOST_JOBS || batch.bytes.len() + payload.len() > MOST_BYTES;
                if is_full && sent > 0 {
                    break;
                }
                batch.put(due.map_or(0, delay), self.time_to_run(), payload);
                sent += 1;
            }
            let replies = self.holders.plain(batch).await;
            let replies = replies.map_err(failed("put", queue));
            let replies = replies.map_err(|error| error.doubtful_if(is_begun))?;
            is_begun |= replies.contains(&Reply::Inserted);
            let (sent, rest) = jobs.split_at(sent);
            let told = self.tell(queue, &tube, sent, &replies);
            told.map_err(refused(queue))
                .map_err(|error| error.doubtful_if(is_begun))?;
            jobs = rest;
        }
        Ok(())
    }

    /// Tells of the jobs that were pushed.
    ///
    /// # Errors
    ///
    /// The first of them that was not.
    fn tell(
        &self,
        queue: &QueueName,
        tube: &Tube,
        jobs: &[(&[u8], Option<UnixSeconds>)],
        replies: &[Reply],
    ) -> Result<(), QueueRefusal> {
        let mut result = Ok(());
        // The first reply is that to `use`.
        for ((payload, _), reply) in jobs.iter().zip(replies.iter().skip(1)) {
            match not_put(tube, payload.len(), reply) {
                None => {
                    if let Some(listener) = self.pushes.get() {
                        listener.pushed(&self.options.connection, queue, payload);
                    }
                }
                Some(refusal) => result = result.and(Err(refusal)),
            }
        }
        let used = replies.first().and_then(Reply::error);
        used.map_or(result, Err)
    }

    pub(super) async fn push_all(&self, pushes: &[Push]) -> Result<PushedOnce, Error> {
        if let Some(push) = pushes.iter().find(|push| push.claim.is_some()) {
            let refusal = QueueRefusal::Unsupported("take a lock together with a push");
            return Err(refused(&push.queue)(refusal));
        }
        for (number, same_queue) in pushes.chunk_by(|a, b| a.queue == b.queue).enumerate() {
            let jobs: Vec<_> = (same_queue.iter())
                .map(|push| (&*push.payload, push.due))
                .collect();
            let put = self.put(&same_queue[0].queue, &jobs).await;
            put.map_err(|error| error.doubtful_if(number > 0))?;
        }
        Ok(PushedOnce::Now { locked: 0 })
    }
}

/// Why a job is not in its tube, if it is not.
fn not_put(tube: &Tube, size: usize, reply: &Reply) -> Option<QueueRefusal> {
    let tube = tube.as_str().to_owned();
    match reply {
        Reply::Inserted => None,
        Reply::JobTooBig => Some(QueueRefusal::TooBig { tube, size }),
        Reply::Draining => Some(QueueRefusal::Draining { tube, size }),
        Reply::OutOfMemory => Some(QueueRefusal::OutOfMemory { tube, size }),
        Reply::Buried => Some(QueueRefusal::Buried { tube, size }),
        other => Some(
            other
                .error()
                .unwrap_or(QueueRefusal::Said("something else than it should")),
        ),
    }
}
