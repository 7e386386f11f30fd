//! Settles and renews reservations.

use std::sync::Arc;

use super::ask::{Act, CommandResult};
use super::client::{Reply, fields, time_left};
use super::push::delay;
use super::ticket::Ticket;
use super::{BeanstalkdQueue, refused};
use crate::queue::{
    Effect, Error, Held, QueueName, QueueRefusal, ReservedJob, Settled, Settlement, Unsettled,
};
use crate::time::UnixSeconds;

/// How a settlement is carried out.
enum Way<'a> {
    Act(Act),
    Forward(&'a QueueName),
    Refuse(QueueRefusal),
}

fn way(settlement: &Settlement) -> Way<'_> {
    match settlement {
        Settlement::Delete => Way::Act(Act::Delete),
        // The protocol has no release that takes its attempt back. A job that is left until its reservation ends need
        // not be held until then: no worker gets it earlier.
        Settlement::Release(due)
        | Settlement::ReleaseUncounted(due)
        | Settlement::LeaveUntil(due) => Way::Act(Act::Release(delay(*due))),
        Settlement::PutBack => Way::Act(Act::Release(0)),
        Settlement::Quarantine => Way::Act(Act::Bury),
        Settlement::Forward(to) => Way::Forward(to),
        Settlement::Finish(effects) => match &effects[..] {
            [] => Way::Act(Act::Delete),
            [Effect::Quarantine] => Way::Act(Act::Bury),
            _ => Way::Refuse(QueueRefusal::Unsupported(
                "apply the effects of a job's end together with its deletion",
            )),
        },
    }
}

/// What an answer means.
fn settled(outcome: &CommandResult, wanted: Act) -> Result<Settled, QueueRefusal> {
    let CommandResult::Reply(reply) = outcome else {
        return Ok(Settled::Gone);
    };
    match (reply, wanted) {
        (Reply::NotFound, _) => Ok(Settled::Gone),
        (Reply::Buried, Act::Release(_)) => Err(QueueRefusal::Said(
            "BURIED instead of releasing a job: it is out of memory, and no worker finds the job",
        )),
        (reply, _) => reply.error().map_or(Ok(Settled::Done), Err),
    }
}

impl BeanstalkdQueue {
    pub(super) async fn settle_jobs(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        let mut results = vec![None; jobs.len()];
        let mut problems = Vec::new();
        let (mut places, mut acts, mut forwards) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (job, settlement)) in jobs.iter().enumerate() {
            match way(settlement) {
                Way::Act(act) => {
                    places.push(index);
                    acts.push((Ticket::read(&job.ticket), act));
                }
                Way::Forward(to) => forwards.push((index, job, to)),
                Way::Refuse(refusal) => problems.push(refused(&job.queue)(refusal)),
            }
        }
        let outcomes = self.holders.act(&acts).await;
        for ((index, (_, act)), outcome) in places.into_iter().zip(acts).zip(&outcomes) {
            match settled(outcome, act) {
                Ok(settled) => results[index] = Some(settled),
                Err(refusal) => problems.push(refused(&jobs[index].0.queue)(refusal)),
            }
        }
        for (index, job, to) in forwards {
            match self.forward(job, to).await {
                Ok(settled) => results[index] = Some(settled),
                Err(error) => problems.push(error),
            }
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

    /// Puts a job into another tube, then deletes it here: a crash between both leaves it twice, and never loses it.
    async fn forward(&self, job: &ReservedJob, to: &QueueName) -> Result<Settled, Error> {
        let ticket = Ticket::read(&job.ticket);
        // A job that another worker has must not be doubled.
        if self.act(job, ticket, Act::Touch).await? == Settled::Gone {
            return Ok(Settled::Gone);
        }
        self.put(to, &[(&*job.payload, None)]).await?;
        // Also done if the reservation ended just now: the job is where it was to go.
        self.act(job, ticket, Act::Delete).await?;
        Ok(Settled::Done)
    }

    async fn act(
        &self,
        job: &ReservedJob,
        ticket: Option<Ticket>,
        act: Act,
    ) -> Result<Settled, Error> {
        let outcomes = self.holders.act(&[(ticket, act)]).await;
        let outcome = outcomes.first().unwrap_or(&CommandResult::Gone);
        settled(outcome, act).map_err(refused(&job.queue))
    }

    pub(super) async fn renew_jobs(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Result<Vec<Held>, Error> {
        // The time to run is the job's own, and may be another than `retry_after` here.
        let both = jobs.iter().flat_map(|job| {
            let ticket = Ticket::read(&job.ticket);
            [(ticket, Act::Touch), (ticket, Act::Stats)]
        });
        let acts: Vec<_> = both.collect();
        let outcomes = self.holders.act(&acts).await;
        let mut held = Vec::with_capacity(jobs.len());
        for (job, outcomes) in jobs.iter().zip(outcomes.chunks(2)) {
            let [touched, stats] = outcomes else {
                continue;
            };
            let touched = settled(touched, Act::Touch).map_err(refused(&job.queue))?;
            let left = match stats {
                CommandResult::Reply(Reply::Ok(body)) => time_left(&fields(body)),
                _ => None,
            };
            held.push(match touched {
                Settled::Done => Held::Until(now.plus(left.unwrap_or(self.options.retry_after))),
                Settled::Gone => Held::Lost,
            });
        }
        Ok(held)
    }
}
