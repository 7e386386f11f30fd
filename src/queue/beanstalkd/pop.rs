//! Pops jobs, and waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::ask::{Act, CommandResult, HeldJob};
use super::client::{Reply, fields, time_left};
use super::ticket::Ticket;
use super::tube::Tube;
use super::wanted::Wanted;
use super::{BeanstalkdQueue, MOST_AT_ONCE, failed, refused};
use crate::queue::{Delivery, Error, PopRequest, Popped, QueueName, QueueRefusal, ReservedJob};
use crate::time::UnixSeconds;

/// Longest wait in one command.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How long the end of a wait may take.
const ENDING: Duration = Duration::from_secs(2);

/// A job that was reserved, and what the server tells of it.
struct DescribedJob {
    taken: HeldJob,
    tube: String,
    attempts: u32,
    left: Duration,
    /// Seconds since it was pushed.
    age: u32,
}

impl BeanstalkdQueue {
    pub(super) async fn pop_jobs(&self, request: PopRequest<'_>) -> Result<Popped, Error> {
        let Some(first) = request.queues.first() else {
            return Ok(Popped::default());
        };
        if request.selection.is_some() {
            let refusal = QueueRefusal::Unsupported("take some jobs and leave the others");
            return Err(refused(first)(refusal));
        }
        let mut queues = Vec::with_capacity(request.queues.len());
        for queue in request.queues {
            queues.push((queue, self.tube(queue).map_err(refused(queue))?));
        }
        let most = request.max.min(MOST_AT_ONCE).get();
        let mut jobs = self.take_caught(&queues, most, request.now).await;
        let is_over = self.wanted.borrow().is_over;
        let more = if is_over { 0 } else { most - jobs.len() };
        let reserved = self.reserve_jobs(&queues, more).await;
        let (taken, problem) = match reserved {
            Ok(taken) => (taken, None),
            // Jobs that were caught by a wait are on another connection.
            Err(error) => (Vec::new(), Some(error)),
        };
        let found = self.describe(taken).await;
        let at = |found| reserved_job(&queues, found, request.now).ok();
        jobs.extend(found.into_iter().filter_map(at));
        let wanted = Wanted {
            queues: Some(request.queues.to_vec()),
            is_full: jobs.len() >= request.max.get(),
            is_over,
        };
        self.wanted.send_if_modified(|known| {
            let is_news = *known != wanted;
            *known = wanted;
            is_news
        });
        match problem {
            Some(error) if jobs.is_empty() => Err(error),
            _ => Ok(Popped {
                jobs,
                ..Popped::default()
            }),
        }
    }

    /// Reserves up to `most` ready jobs of the tubes in order.
    ///
    /// # Errors
    ///
    /// Nothing is reserved.
    async fn reserve_jobs(
        &self,
        queues: &[(&QueueName, Tube)],
        most: usize,
    ) -> Result<Vec<HeldJob>, Error> {
        let mut taken = Vec::new();
        for (queue, tube) in queues {
            if taken.len() >= most {
                break;
            }
            // Together with the connection, the jobs of earlier tubes are lost, too.
            let reserved = (self.holders.reserve(tube, most - taken.len()).await)
                .map_err(failed("reserve-with-timeout", queue))?;
            let is_nothing = taken.is_empty() && reserved.taken.is_empty();
            taken.extend(reserved.taken);
            if let Some(refusal) = reserved.problem {
                if is_nothing {
                    return Err(refused(queue)(refusal));
                }
                break;
            }
        }
        Ok(taken)
    }

    /// Takes jobs that a wait has caught, as far as they are of these tubes.
    async fn take_caught(
        &self,
        queues: &[(&QueueName, Tube)],
        most: usize,
        now: UnixSeconds,
    ) -> Vec<ReservedJob> {
        let caught = std::mem::take(&mut *self.holders.caught());
        if caught.is_empty() {
            return Vec::new();
        }
        let (mut jobs, mut others) = (Vec::new(), Vec::new());
        for found in self.describe(caught).await {
            if jobs.len() == most {
                others.push(found.taken);
                continue;
            }
            match reserved_job(queues, found, now) {
                Ok(job) => jobs.push(job),
                Err(other) => others.push(other),
            }
        }
        self.holders.caught().extend(others);
        jobs
    }

    /// Asks the server about reserved jobs; those that are reserved no more are left out.
    async fn describe(&self, taken: Vec<HeldJob>) -> Vec<DescribedJob> {
        if taken.is_empty() {
            return Vec::new();
        }
        // `stats-job` says "reserved" also of a job that another worker has by now; `touch` tells.
        let both = taken.iter().flat_map(|taken| {
            let ticket = Ticket::read(&taken.ticket);
            [(ticket, Act::Touch), (ticket, Act::Stats)]
        });
        let acts: Vec<_> = both.collect();
        let (asked, outcomes) = (taken.len(), self.holders.act(&acts).await);
        let found = taken.into_iter().zip(outcomes.chunks(2));
        let found: Vec<DescribedJob> = found
            .filter_map(|(taken, outcomes)| described(taken, outcomes))
            .collect();
        let lost = asked - found.len();
        if lost > 0 {
            tracing::warn!(
                jobs = lost,
                "reserved jobs are left to other workers: their connection is lost, or their time to run has passed"
            );
        }
        found
    }

    pub(super) async fn wait_for_job(
        &self,
        queues: &[QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let Some(first) = queues.first() else {
            return Ok(None);
        };
        let deadline = Instant::now() + timeout.min(LONGEST_WAIT);
        let mut changes = self.wanted.subscribe();
        loop {
            let wanted = changes.borrow_and_update().clone();
            let tubes = self.tubes_to_watch(queues, &wanted);
            let tubes = tubes.map_err(refused(first))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if tubes.is_empty() {
                if timeout_at(deadline, changed(&mut changes)).await.is_err() {
                    return Ok(None);
                }
                continue;
            }
            if let Some(queue) = self.caught_queue(&tubes).await {
                return Ok(Some(queue));
            }
            if left.is_zero() {
                return Ok(None);
            }
            // Whole seconds: a wait of 0 is none.
            let seconds = u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(1);
            let watched = tubes.iter().map(|(_, tube)| tube.clone()).collect();
            let cancel = CancellationToken::new();
            let waits = self.waiting.lock().await;
            if self.wanted.borrow().is_over {
                // A worker that stops has not waited for this.
                continue;
            }
            let mut waiting = std::pin::pin!(self.holders.wait(watched, seconds, cancel.clone()));
            let has_waited = tokio::select! {
                has_waited = &mut waiting => has_waited,
                () = changed(&mut changes) => {
                    cancel.cancel();
                    // A job that the server gave in the same moment is caught by then.
                    drop(waiting.await);
                    continue;
                }
            };
            drop(waits);
            if !has_waited.map_err(failed("reserve-with-timeout", first))? {
                // All connections have jobs.
                tokio::time::sleep_until(deadline).await;
                return Ok(None);
            }
        }
    }

    /// Ends the wait under way, and begins no more; returns whether waits have left jobs to pop.
    pub(super) async fn end_wait(&self) -> bool {
        self.wanted.send_modify(|wanted| wanted.is_over = true);
        // Only a connection that is being opened does not end at once.
        drop(timeout(ENDING, self.waiting.lock()).await);
        !self.holders.caught().is_empty()
    }

    /// The tubes whose jobs the next pop would take.
    fn tubes_to_watch<'a>(
        &self,
        queues: &'a [QueueName],
        wanted: &Wanted,
    ) -> Result<Vec<(&'a QueueName, Tube)>, QueueRefusal> {
        let is_asked = |queue| {
            let asked = wanted.queues.as_ref();
            let has_room = !wanted.is_full && !wanted.is_over;
            has_room && asked.is_none_or(|asked| asked.contains(queue))
        };
        let asked = queues.iter().filter(|queue| is_asked(queue));
        asked.map(|queue| Ok((queue, self.tube(queue)?))).collect()
    }

    /// The queue of a job that was caught; the job stays caught.
    async fn caught_queue(&self, queues: &[(&QueueName, Tube)]) -> Option<QueueName> {
        let caught = self.holders.caught().clone();
        let found = self.describe(caught).await;
        found.iter().find_map(|found| queue_of(queues, &found.tube))
    }
}

/// Waits for another pop to want something else.
async fn changed(changes: &mut watch::Receiver<Wanted>) {
    if changes.changed().await.is_err() {
        // The queue itself keeps the sender.
        std::future::pending::<()>().await;
    }
}

fn queue_of(queues: &[(&QueueName, Tube)], tube: &str) -> Option<QueueName> {
    let queue = queues.iter().find(|(_, of)| of.as_str() == tube);
    queue.map(|(queue, _)| (*queue).clone())
}

/// What `touch` and `stats-job` tell of a job; `None` if it is reserved here no more.
fn described(taken: HeldJob, outcomes: &[CommandResult]) -> Option<DescribedJob> {
    use CommandResult::Reply as Said;
    let [Said(Reply::Touched), Said(Reply::Ok(body))] = outcomes else {
        return None;
    };
    let fields = fields(body);
    let attempts: u64 = fields.get("reserves")?.parse().ok()?;
    let tube = (*fields.get("tube")?).to_owned();
    let left = time_left(&fields)?;
    let age: u32 = fields.get("age")?.parse().ok()?;
    let is_reserved = fields.get("state") == Some(&"reserved");
    is_reserved.then(|| DescribedJob {
        taken,
        tube,
        attempts: u32::try_from(attempts.max(1)).unwrap_or(u32::MAX),
        left,
        age,
    })
}

/// The job, if it is of one of these tubes.
fn reserved_job(
    queues: &[(&QueueName, Tube)],
    found: DescribedJob,
    now: UnixSeconds,
) -> Result<ReservedJob, HeldJob> {
    let Some(queue) = queue_of(queues, &found.tube) else {
        return Err(found.taken);
    };
    let delivery = Ticket::read(&found.taken.ticket).map(|ticket| Delivery {
        id: ticket.id.to_string(),
        // A server that comes back without its jobs gives their ids to others.
        pushed: Some(UnixSeconds(now.0.saturating_sub(found.age.into()))),
        receipt: None,
    });
    Ok(ReservedJob {
        queue,
        payload: Arc::clone(&found.taken.payload),
        attempts: found.attempts,
        lease: Some(now.plus(found.left)),
        choice: None,
        ticket: Arc::clone(&found.taken.ticket),
        delivery,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_another_worker_has_by_now_is_left_to_it() {
        let stats = "---\ntube: q\nstate: reserved\nage: 9\ntime-left: 90\nreserves: 2\n";
        #[rustfmt::skip]
        let rows = [
            (Reply::Touched,       stats.to_owned(),                    true),
            // This is what the server says of it.
            (Reply::NotFound,      stats.to_owned(),                    false),
            (Reply::InternalError, stats.to_owned(),                    false),
            (Reply::Touched,       stats.replace("reserved", "buried"), false),
        ];
        for (touched, stats, expected) in rows {
            let row = format!("{touched:?} {stats}");
            let stats = Reply::Ok(stats.into_bytes());
            let outcomes = [touched, stats].map(CommandResult::Reply);
            let taken = HeldJob {
                ticket: Arc::default(),
                payload: Arc::default(),
            };
            assert_eq!(described(taken, &outcomes).is_some(), expected, "{row}");
        }
    }
}
