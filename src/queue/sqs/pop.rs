//! Pops jobs.

use std::time::Duration;

use futures_util::future::join_all;

use super::client::AT_ONCE;
use super::queue::{MOST_AT_ONCE, SqsQueue};
use crate::queue::{Error, PopRequest, Popped, QueueName, QueueRefusal, ReservedJob};

/// The server looks at all its parts only for a receipt that waits.
const THOROUGH: Duration = Duration::from_secs(1);

impl SqsQueue {
    pub(super) async fn pop_jobs(&self, request: PopRequest<'_>) -> Result<Popped, Error> {
        let Some(first) = request.queues.first() else {
            return Ok(Popped::default());
        };
        if request.selection.is_some() {
            return Err(Error::Refused {
                queue: first.clone(),
                source: QueueRefusal::Unsupported("take some jobs and leave the others"),
            });
        }
        let most = request.max.min(MOST_AT_ONCE).get();
        let (mut jobs, mut free) = self.polls.take(request.queues, most);
        let mut problem = None;
        for queue in request.queues {
            if free == 0 {
                break;
            }
            match self.receive_all(queue, free).await {
                Ok(found) => {
                    free -= found.len();
                    jobs.extend(found);
                }
                // The other queues are worked.
                Err(error) => problem = Some(error),
            }
        }
        if request.thorough && jobs.is_empty() && problem.is_none() && free > 0 {
            jobs = self.look_thoroughly(request.queues, free).await?;
        }
        let room = request.max.get().saturating_sub(jobs.len());
        self.polls.want(request.queues, room);
        match problem {
            Some(error) if jobs.is_empty() => Err(error),
            _ => Ok(Popped {
                jobs,
                ..Popped::default()
            }),
        }
    }

    /// Receives as many jobs of a queue as there are, up to `most`, without waiting.
    async fn receive_all(&self, queue: &QueueName, most: usize) -> Result<Vec<ReservedJob>, Error> {
        let url = self.core.url(queue);
        if self.polls.covers(&url) {
            return Ok(Vec::new());
        }
        // Messages that come in one receipt may be of one group, and would run side by side.
        let of_one = if url.is_fifo() { 1 } else { AT_ONCE };
        let mut jobs = Vec::new();
        let mut requests = 1;
        while jobs.len() < most {
            let left = most - jobs.len();
            let counts =
                (0..requests).map(|number| of_one.min(left.saturating_sub(number * of_one)));
            let counts: Vec<usize> = counts.filter(|count| *count > 0).collect();
            let receipts = counts
                .iter()
                .map(|count| self.core.receive(queue, &url, *count, Duration::ZERO));
            let answers = join_all(receipts).await;
            let mut is_full = true;
            let mut problem = None;
            for (answer, count) in answers.into_iter().zip(counts) {
                match answer {
                    Ok(found) => {
                        is_full &= found.len() == count;
                        jobs.extend(found);
                    }
                    Err(error) => problem = Some(error),
                }
            }
            match problem {
                Some(error) if jobs.is_empty() => return Err(error),
                Some(_) => break,
                None => {}
            }
            if !is_full {
                break;
            }
            requests = AT_ONCE;
        }
        Ok(jobs)
    }

    /// Looks at all parts of the queues: a queue that seems to be empty may have jobs.
    async fn look_thoroughly(
        &self,
        queues: &[QueueName],
        free: usize,
    ) -> Result<Vec<ReservedJob>, Error> {
        let look = async |queue: &QueueName, most: usize| {
            let url = self.core.url(queue);
            let most = if url.is_fifo() { 1 } else { most.min(AT_ONCE) };
            if self.polls.covers(&url) {
                Ok(Vec::new())
            } else {
                self.core.receive(queue, &url, most, THOROUGH).await
            }
        };
        let each = free / queues.len();
        if each > 0 {
            let answers = join_all(queues.iter().map(|queue| look(queue, each))).await;
            let (mut jobs, mut problem) = (Vec::new(), None);
            for answer in answers {
                match answer {
                    Ok(found) => jobs.extend(found),
                    Err(error) => problem = Some(error),
                }
            }
            return match problem {
                Some(error) if jobs.is_empty() => Err(error),
                _ => Ok(jobs),
            };
        }
        for queue in queues {
            let found = look(queue, free).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }
}
