//! Settles jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::address::Url;
use super::client::AT_ONCE;
use super::core::{is_gone, receipt, refused};
use super::leases::{LONGEST, Lease};
use super::options::Overflow;
use super::queue::SqsQueue;
use crate::queue::{
    Effect, Error, QueueName, QueueRefusal, ReservedJob, Settled, Settlement, Unsettled,
};
use crate::time::{Clock, UnixSeconds};

/// How a settlement is carried out.
enum Way<'a> {
    Delete,
    Hide(Duration),
    Forward(&'a QueueName),
    Refuse(QueueRefusal),
}

fn way<'a>(settlement: &'a Settlement, lease: &Lease) -> Way<'a> {
    let until = |due: UnixSeconds| {
        let (wanted, longest) = (Clock::System.until_whole(due), lease.longest());
        if wanted > longest {
            tracing::warn!(
                asked = wanted.as_secs(),
                possible = longest.as_secs(),
                "SQS hides a message for at most 12 hours: its job comes back earlier than it should"
            );
        }
        Way::Hide(wanted.min(longest))
    };
    match settlement {
        Settlement::Delete => Way::Delete,
        Settlement::Release(due)
        | Settlement::ReleaseUncounted(due)
        | Settlement::LeaveUntil(due) => until(*due),
        Settlement::PutBack => Way::Hide(Duration::ZERO),
        // SQS has no quarantine: the message is hidden for as long as the server allows, and the app's redrive policy,
        // if it has one, moves it in the end.
        Settlement::Quarantine => Way::Hide(lease.longest()),
        Settlement::Forward(to) => Way::Forward(to),
        Settlement::Finish(effects) => match &effects[..] {
            [] => Way::Delete,
            [Effect::Quarantine] => Way::Hide(lease.longest()),
            _ => Way::Refuse(QueueRefusal::Unsupported(
                "apply the effects of a job's end together with its deletion",
            )),
        },
    }
}

/// Jobs of one queue to settle in the same way.
#[derive(Default)]
struct Batch<'a> {
    deletes: Vec<(usize, &'a Arc<ReservedJob>)>,
    hides: Vec<(usize, &'a Arc<ReservedJob>, Duration)>,
}

/// Results per job; jobs of a failed request are absent.
#[derive(Default)]
struct Carried {
    settled: Vec<(usize, Settled)>,
    problems: Vec<Error>,
}

impl Carried {
    fn failed(error: Error) -> Self {
        Self {
            settled: Vec::new(),
            problems: vec![error],
        }
    }

    fn add(&mut self, index: usize, result: Result<Settled, Error>) {
        match result {
            Ok(settled) => self.settled.push((index, settled)),
            Err(error) => self.problems.push(error),
        }
    }

    fn join(&mut self, other: Self) {
        self.settled.extend(other.settled);
        self.problems.extend(other.problems);
    }
}

impl SqsQueue {
    pub(super) async fn settle_jobs(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        let mut results: Vec<Option<Settled>> = vec![None; jobs.len()];
        let mut problems = Vec::new();
        let mut batches: HashMap<Url, Batch<'_>> = HashMap::new();
        let mut forwards = Vec::new();
        for (index, (job, settlement)) in jobs.iter().enumerate() {
            let Some(lease) = self.core.leases.of(job) else {
                // It was settled before.
                results[index] = Some(Settled::Gone);
                continue;
            };
            let is_over = lease.left().is_zero();
            let way = match way(settlement, &lease) {
                // It is where it was to go: only its deletion is repeated.
                Way::Forward(_) if lease.is_forwarded => Way::Delete,
                way => way,
            };
            match way {
                // The job has run. Deleting it is right even if its reservation has ended and another worker has it.
                Way::Delete => {
                    let batch = batches.entry(lease.url).or_default();
                    batch.deletes.push((index, job));
                }
                _ if is_over => results[index] = Some(Settled::Gone),
                Way::Hide(time) => {
                    let batch = batches.entry(lease.url).or_default();
                    batch.hides.push((index, job, time));
                }
                Way::Forward(to) => forwards.push((index, job, to, lease)),
                Way::Refuse(source) => problems.push(Error::Refused {
                    queue: job.queue.clone(),
                    source,
                }),
            }
        }
        let mut carried = Carried {
            problems,
            ..Carried::default()
        };
        let batches = batches
            .iter()
            .map(|(url, batch)| self.carry_out(url, batch));
        for done in join_all(batches).await {
            carried.join(done);
        }
        for (index, job, to, lease) in forwards {
            carried.add(index, self.forward(job, to, &lease).await);
        }
        let Carried { settled, problems } = carried;
        for (index, settled) in settled {
            results[index] = Some(settled);
            self.core.leases.remove(&jobs[index].0);
        }
        // The outcome of a push may be unknown; that one counts.
        let unknown = problems.iter().position(Error::is_of_unknown_outcome);
        match problems.into_iter().nth(unknown.unwrap_or(0)) {
            None => Ok(results.into_iter().flatten().collect()),
            Some(source) => Err(Unsettled {
                settled: results,
                source,
            }),
        }
    }

    async fn carry_out(&self, url: &Url, batch: &Batch<'_>) -> Carried {
        let deletes = batch
            .deletes
            .chunks(AT_ONCE)
            .map(|jobs| self.delete(url, jobs));
        let hides = batch.hides.chunks(AT_ONCE).map(|jobs| self.hide(url, jobs));
        let (deletes, hides) = futures_util::future::join(join_all(deletes), join_all(hides)).await;
        let mut carried = Carried::default();
        for done in deletes.into_iter().chain(hides) {
            carried.join(done);
        }
        carried
    }

    async fn delete(&self, url: &Url, jobs: &[(usize, &Arc<ReservedJob>)]) -> Carried {
        let receipts: Vec<_> = jobs.iter().map(|(_, job)| receipt(job)).collect();
        let had_ended = jobs.iter().map(|(_, job)| self.core.leases.note_end(job));
        let had_ended: Vec<bool> = had_ended.collect();
        let queue = &jobs[0].1.queue;
        let entries = match self.core.client.delete(queue, url, &receipts).await {
            Ok(entries) => entries,
            Err(error) => return Carried::failed(error),
        };
        let mut carried = Carried::default();
        for (((index, job), entry), had_ended) in jobs.iter().zip(entries).zip(had_ended) {
            // With a reservation that has ended, the server may say so and keep the message.
            let lease = self.core.leases.of(job);
            let is_sure = lease.as_ref().is_some_and(|lease| !lease.left().is_zero());
            let result = match entry {
                Ok(()) if is_sure => Ok(Settled::Done),
                Ok(()) => Ok(Settled::Gone),
                Err((code, message)) if is_gone(&code, &message) => Ok(Settled::Gone),
                Err((code, message)) => Err(refused(queue, "DeleteMessageBatch", code, message)),
            };
            let key = lease.and_then(|lease| lease.overflow);
            // Since the job has ended, `queue:retry` may have stored its payload under the same key once more: one that
            // stays is better than one that is lost.
            let is_first = matches!(result, Ok(Settled::Done)) && !had_ended;
            if let Some(key) = key.filter(|_| is_first) {
                self.forget(&key).await;
            }
            carried.add(*index, result);
        }
        carried
    }

    /// Deletes a payload whose message is deleted.
    async fn forget(&self, key: &str) {
        let Some(overflow) = self.deleting_overflow() else {
            return;
        };
        if let Err(error) = overflow.store.forget(key).await {
            tracing::warn!(
                error = crate::shown::with_causes(&*error),
                key,
                "a payload stays in the cache store, though its message is deleted"
            );
        }
    }

    fn deleting_overflow(&self) -> Option<&Overflow> {
        let overflow = self.core.options.overflow.as_ref();
        overflow.filter(|overflow| overflow.deletes)
    }

    async fn hide(&self, url: &Url, jobs: &[(usize, &Arc<ReservedJob>, Duration)]) -> Carried {
        let (leases, began) = (&self.core.leases, Instant::now());
        // Kept until it is known that these are renewed no more.
        let turns = jobs.iter().map(|(_, job, _)| leases.turn_to_hide(job));
        let _turns = join_all(turns).await;
        let waited = began.elapsed();
        let receipts: Vec<_> = (jobs.iter())
            .map(|(_, job, time)| (receipt(job), time.saturating_sub(waited).min(LONGEST)))
            .collect();
        let queue = &jobs[0].1.queue;
        let entries = match self.core.client.hide(queue, url, &receipts).await {
            Ok(entries) => entries,
            Err(error) => {
                if error.is_of_unknown_outcome() {
                    for (_, job, _) in jobs {
                        leases.hidden(job);
                    }
                }
                return Carried::failed(error);
            }
        };
        let mut carried = Carried::default();
        for ((index, job, _), entry) in jobs.iter().zip(entries) {
            let result = match entry {
                Ok(()) => {
                    leases.hidden(job);
                    Ok(Settled::Done)
                }
                Err((code, message)) if is_gone(&code, &message) => Ok(Settled::Gone),
                Err((code, message)) => {
                    let call = "ChangeMessageVisibilityBatch";
                    Err(refused(queue, call, code, message))
                }
            };
            carried.add(*index, result);
        }
        carried
    }

    /// Sends a job to another queue, then deletes it here: a crash between both leaves it twice, and never loses it.
    ///
    /// # Errors
    ///
    /// The lease tells whether it was sent.
    async fn forward(
        &self,
        job: &Arc<ReservedJob>,
        to: &QueueName,
        lease: &Lease,
    ) -> Result<Settled, Error> {
        // A FIFO queue does not take it twice, if the reply is lost and it is sent again.
        let once = job.delivery.as_ref().map(|delivery| &*delivery.id);
        self.put(to, &[(&*job.payload, None)], lease.group.as_deref(), once)
            .await?;
        self.core.leases.forwarded(job);
        // Also done if the reservation ended just now: the job is where it was to go.
        let deleted = self.delete(&lease.url, &[(0, job)]).await;
        match deleted.problems.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Settled::Done),
        }
    }
}
