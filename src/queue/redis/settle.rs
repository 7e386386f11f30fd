//! Settles and renews reservations.

use std::sync::Arc;

use futures_util::future::join_all;

use super::effects::EffectCall;
use super::{MOST_AT_ONCE, RedisQueue, failed};
use crate::connection::Arg;
use crate::queue::{
    Effect, Error, Held, Push, QueueName, ReservedJob, Settled, Settlement, Unsettled,
};
use crate::time::UnixSeconds;

/// How a settlement is carried out; jobs of the same kind and queue go together.
#[derive(PartialEq, Eq, Clone)]
struct Group {
    queue: QueueName,
    script: SettleScript,
}

#[derive(PartialEq, Eq, Clone)]
enum SettleScript {
    Delete,
    Delay,
    Expire,
    Prepend,
    Append(QueueName),
    Quarantine,
    Finish,
    /// To another slot of a cluster, which a follow-up does.
    PutOff(QueueName),
}

impl Group {
    fn of(queues: &RedisQueue, job: &ReservedJob, settlement: &Settlement) -> Self {
        let script = match settlement {
            Settlement::Delete => SettleScript::Delete,
            Settlement::Release(_) | Settlement::ReleaseUncounted(_) => SettleScript::Delay,
            Settlement::LeaveUntil(_) => SettleScript::Expire,
            Settlement::PutBack => SettleScript::Prepend,
            Settlement::Forward(to) if !queues.keys.are_together(&job.queue, to) => {
                SettleScript::PutOff(to.clone())
            }
            Settlement::Forward(to) => SettleScript::Append(to.clone()),
            Settlement::Quarantine => SettleScript::Quarantine,
            Settlement::Finish(_) => SettleScript::Finish,
        };
        Self {
            queue: job.queue.clone(),
            script,
        }
    }
}

impl RedisQueue {
    async fn settle_group(
        &self,
        group: &Group,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let queue = &group.queue;
        let reserved = self.keys.reserved(queue);
        let notify = |queue: &QueueName| self.options.notify.then(|| self.keys.notify(queue));
        let (mode, target, tell): (&[u8], String, Option<String>) = match &group.script {
            SettleScript::Delete => return self.delete_group(queue, jobs).await,
            SettleScript::Delay => (b"delay", self.keys.delayed(queue), None),
            SettleScript::Expire => (b"expire", reserved.clone(), None),
            SettleScript::Prepend => (b"prepend", self.keys.list(queue), notify(queue)),
            SettleScript::Append(to) => (b"append", self.keys.list(to), notify(to)),
            SettleScript::Quarantine => (b"append", self.keys.quarantine(queue), None),
            SettleScript::Finish => return self.finish_group(queue, jobs).await,
            SettleScript::PutOff(to) => return self.put_off_group(queue, to, jobs).await,
        };
        let mut args = vec![Arg::Bytes(mode)];
        for (job, settlement) in jobs {
            let (value, score): (&[u8], i64) = match settlement {
                Settlement::Release(due) | Settlement::LeaveUntil(due) => (b"", due.0),
                Settlement::ReleaseUncounted(due) => (&job.payload, due.0),
                _ => (&job.payload, 0),
            };
            args.extend([Arg::Bytes(&job.ticket), Arg::Bytes(value), Arg::Int(score)]);
        }
        let keys: Vec<String> = [reserved, target].into_iter().chain(tell).collect();
        self.call(queue, "move.lua", &self.scripts.r#move, &keys, &args)
            .await
    }

    /// Deletes jobs; returns the positions (from 1) of those that were not there.
    ///
    /// One plain command per job costs the server a third less than a script that gets all members as arguments,
    /// and each has an answer of its own.
    async fn delete_group(
        &self,
        queue: &QueueName,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let reserved = self.keys.reserved(queue);
        if self.redis.is_cluster() {
            return self.delete_each(queue, &reserved, jobs).await;
        }
        let mut deletions = redis::Pipeline::with_capacity(jobs.len());
        for (job, _) in jobs {
            deletions.cmd("ZREM").arg(&reserved).arg(&*job.ticket);
        }
        let removed: Vec<i64> = self
            .redis
            .pipeline(&deletions)
            .await
            .map_err(failed("ZREM", queue))?;
        let gone = (1..).zip(removed).filter(|(_, removed)| *removed == 0);
        Ok(gone.map(|(position, _)| position).collect())
    }

    /// Deletes jobs on a cluster: their slot may be moved to another node between two of them.
    async fn delete_each(
        &self,
        queue: &QueueName,
        reserved: &str,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let delete = async |job: &ReservedJob| {
            let command = redis::cmd("ZREM").arg(reserved).arg(&*job.ticket).take();
            self.redis.command::<i64>(&command).await
        };
        let removed = join_all(jobs.iter().map(|(job, _)| delete(job))).await;
        let mut gone = Vec::new();
        for (position, removed) in (1..).zip(removed) {
            if removed.map_err(failed("ZREM", queue))? == 0 {
                gone.push(position);
            }
        }
        Ok(gone)
    }

    /// Deletes jobs, and leaves it to follow-ups to push them to another queue.
    async fn put_off_group(
        &self,
        queue: &QueueName,
        to: &QueueName,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let effects: Vec<_> = (jobs.iter())
            .map(|(job, _)| {
                Effect::Push(Push {
                    queue: to.clone(),
                    payload: job.payload.to_vec(),
                    due: None,
                    claim: None,
                })
            })
            .collect();
        let rows = jobs.iter().zip(&effects);
        let rows = rows.map(|((job, _), effect)| (&**job, std::slice::from_ref(effect)));
        self.finish_rows(queue, rows.collect()).await
    }

    async fn finish_group(
        &self,
        queue: &QueueName,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let rows = jobs.iter().filter_map(|row| match &row.1 {
            Settlement::Finish(effects) => Some((&*row.0, &**effects)),
            _ => None,
        });
        self.finish_rows(queue, rows.collect()).await
    }

    async fn finish_rows(
        &self,
        queue: &QueueName,
        jobs: Vec<(&ReservedJob, &[Effect])>,
    ) -> Result<Vec<usize>, Error> {
        let mut call = EffectCall::new(self.keys.reserved(queue));
        for (job, effects) in jobs {
            call.args.push(Arg::Bytes(&job.ticket));
            call.number(effects.len());
            for effect in effects {
                call.effect(self, queue, &job.payload, effect);
            }
        }
        let script = &self.scripts.finish;
        self.call(queue, "finish.lua", script, &call.keys, &call.args)
            .await
    }

    pub(super) async fn settle_jobs(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        // One call per kind and queue; all calls run at the same time.
        let mut groups: Vec<(Group, Vec<usize>)> = Vec::new();
        for (index, (job, settlement)) in jobs.iter().enumerate() {
            let group = Group::of(self, job, settlement);
            let open = groups
                .iter_mut()
                .rev()
                .find(|(g, members)| *g == group && members.len() < MOST_AT_ONCE.get());
            match open {
                Some((_, members)) => members.push(index),
                None => groups.push((group, vec![index])),
            }
        }
        let calls = groups.iter().map(|(group, members)| async move {
            let rows: Vec<_> = members.iter().map(|index| &jobs[*index]).collect();
            self.settle_group(group, &rows).await
        });
        let replies = join_all(calls).await;
        let mut settled = vec![Some(Settled::Done); jobs.len()];
        let mut problem = None;
        for ((_, members), gone) in groups.iter().zip(replies) {
            match gone {
                Ok(gone) => {
                    let of = |position: usize| members.get(position.checked_sub(1)?);
                    for index in gone.into_iter().filter_map(of) {
                        settled[*index] = Some(Settled::Gone);
                    }
                }
                Err(error) => {
                    for index in members {
                        settled[*index] = None;
                    }
                    if problem.is_none() || error.is_of_unknown_outcome() {
                        problem = Some(error);
                    }
                }
            }
        }
        let mut effects: Vec<(&QueueName, &Effect)> = Vec::new();
        if self.tells_pushes() {
            for ((job, settlement), settled) in jobs.iter().zip(&settled) {
                if let (Settlement::Finish(done), Some(Settled::Done)) = (settlement, settled) {
                    effects.extend(done.iter().map(|effect| (&job.queue, effect)));
                }
            }
        }
        self.tell_effects(&effects).await;
        match problem {
            None => Ok(settled.into_iter().flatten().collect()),
            Some(source) => Err(Unsettled { settled, source }),
        }
    }

    pub(super) async fn renew_jobs(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Result<Vec<Held>, Error> {
        let Some(retry_after) = self.options.retry_after else {
            return Ok(vec![Held::Until(UnixSeconds(i64::MAX)); jobs.len()]);
        };
        let expires = now.plus(retry_after);
        let mut held = vec![Held::Until(expires); jobs.len()];
        let mut rest: Vec<usize> = (0..jobs.len()).collect();
        rest.sort_by_key(|index| &jobs[*index].queue);
        let chunks: Vec<&[usize]> = rest
            .chunk_by(|a, b| jobs[*a].queue == jobs[*b].queue)
            .flat_map(|same_queue| same_queue.chunks(MOST_AT_ONCE.get()))
            .collect();
        let renewals = chunks.iter().map(|chunk| async move {
            let queue = &jobs[chunk[0]].queue;
            let keys = [self.keys.reserved(queue)];
            let mut args = vec![Arg::Int(expires.0)];
            args.extend(chunk.iter().map(|index| Arg::Bytes(&jobs[*index].ticket)));
            let script = &self.scripts.renew;
            let lost = self.renewing.script::<Vec<usize>>(script, &keys, &args);
            lost.await.map_err(failed("renew.lua", queue))
        });
        // A queue that cannot be written must not cost other queues their reservations, nor their time.
        let mut result = Ok(());
        for (chunk, lost) in chunks.iter().zip(join_all(renewals).await) {
            match lost {
                Ok(lost) => {
                    let of = |position: usize| chunk.get(position.checked_sub(1)?);
                    for index in lost.into_iter().filter_map(of) {
                        held[*index] = Held::Lost;
                    }
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| held)
    }
}
