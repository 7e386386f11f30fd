//! Pops jobs: the heads of queues, or chosen jobs.

use redis::Value;

use super::{RedisQueue, failed};
use crate::connection::Arg;
use crate::payload::Payload;
use crate::queue::{Choose, Error, PopRequest, Popped, QueueName, ReservedJob, number_of_attempts};
use crate::time::UnixSeconds;

impl RedisQueue {
    pub(super) async fn pop_jobs(&self, mut request: PopRequest<'_>) -> Result<Popped, Error> {
        let Some(selection) = request.selection.take() else {
            return self
                .pop_heads(&request, &[])
                .await
                .map(|(popped, _)| popped);
        };
        let (mut popped, ended) = match selection.needles {
            [] => (Popped::default(), Some(0)),
            needles => self.pop_heads(&request, needles).await?,
        };
        if let Some(ended) = ended {
            let chosen = self
                .pop_chosen(
                    &request,
                    &request.queues[ended..],
                    selection.choose,
                    &mut popped,
                )
                .await;
            // Jobs that are already reserved must reach the caller; the error will come again.
            if let Err(error) = chosen
                && popped.jobs.is_empty()
            {
                return Err(error);
            }
        }
        Ok(popped)
    }

    /// Pops the first jobs, or the run of first jobs that each hold one of `needles`.
    ///
    /// Returns the position of the queue at which a job without a needle ended the pop.
    async fn pop_heads(
        &self,
        request: &PopRequest<'_>,
        needles: &[Vec<u8>],
    ) -> Result<(Popped, Option<usize>), Error> {
        let mut popped = Popped::default();
        let Some(first) = request.queues.first() else {
            return Ok((popped, None));
        };
        let keys: Vec<String> = request
            .queues
            .iter()
            .flat_map(|queue| self.pop_keys(queue))
            .collect();
        let mut args = vec![
            Arg::Int(request.now.0),
            self.expires(request.now),
            Arg::Int(i64::try_from(request.max.get()).unwrap_or(i64::MAX)),
            self.migration_limit(),
            Self::flag(self.options.notify),
            Self::flag(self.options.retry_after.is_some()),
            Arg::Int(i64::try_from(needles.len()).unwrap_or(i64::MAX)),
        ];
        args.extend(needles.iter().map(|needle| Arg::Bytes(needle)));
        args.extend(
            request
                .queues
                .iter()
                .map(|queue| Self::flag(request.woken.contains(queue))),
        );
        let reply: Vec<Value> = self
            .call(first, "pop.lua", &self.scripts.pop, &keys, &args)
            .await?;
        let mut ended = None;
        let lease = self.lease(request.now);
        for (position, (queue, entry)) in request.queues.iter().zip(reply).enumerate() {
            let is_end = read_entry(queue, entry, lease, &mut popped)
                .ok_or_else(|| wrong_reply("pop.lua", queue))?;
            ended = ended.or(is_end.then_some(position));
        }
        Ok((popped, ended))
    }

    /// Pops only chosen jobs: shows a window of each queue, then claims.
    async fn pop_chosen(
        &self,
        request: &PopRequest<'_>,
        queues: &[QueueName],
        choose: Choose<'_>,
        popped: &mut Popped,
    ) -> Result<(), Error> {
        for queue in queues {
            // A small window comes first: mostly the wanted jobs are near the head.
            let (mut start, mut size) = (0, request.max.get().max(32));
            while start < self.options.look_ahead && popped.jobs.len() < request.max.get() {
                size = size.min(self.options.look_ahead - start);
                let before = popped.jobs.len();
                let seen = self
                    .pop_window(request, queue, (start, size), choose, popped)
                    .await?;
                // Taken jobs no longer stand before the next window.
                start += seen.saturating_sub(popped.jobs.len() - before);
                if seen < size {
                    break;
                }
                size *= 4;
            }
        }
        Ok(())
    }

    /// Shows one window of a queue and claims what is chosen; returns how many jobs it showed.
    async fn pop_window(
        &self,
        request: &PopRequest<'_>,
        queue: &QueueName,
        (start, size): (usize, usize),
        choose: Choose<'_>,
        popped: &mut Popped,
    ) -> Result<usize, Error> {
        let window = self.show(request, queue, (start, size), popped).await?;
        let seen = window.len();
        let room = request.max.get().saturating_sub(popped.jobs.len());
        let mut chosen = Vec::new();
        for element in window {
            let Value::BulkString(element) = element else {
                return Err(wrong_reply("peek.lua", queue));
            };
            if chosen.len() < room
                && let Some(choice) = choose(queue, &element)
            {
                chosen.push((element, choice));
            }
        }
        let is_woken = start == 0 && request.woken.contains(queue);
        if !chosen.is_empty() {
            self.claim(request.now, queue, chosen, is_woken, popped)
                .await?;
        } else if is_woken && seen > 0 {
            // The notification was for a job that another worker has to take: pass it on.
            let command = redis::cmd("RPUSH")
                .arg(self.keys.notify(queue))
                .arg("1")
                .take();
            let _: i64 = self
                .redis
                .command(&command)
                .await
                .map_err(failed("RPUSH", queue))?;
        }
        Ok(seen)
    }

    /// Migrates due jobs, and shows a part of the queue.
    async fn show(
        &self,
        request: &PopRequest<'_>,
        queue: &QueueName,
        (start, size): (usize, usize),
        popped: &mut Popped,
    ) -> Result<std::vec::IntoIter<Value>, Error> {
        let number = |n: usize| Arg::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let keys = self.pop_keys(queue);
        let args = [
            Arg::Int(request.now.0),
            self.migration_limit(),
            Self::flag(self.options.notify),
            Self::flag(self.options.retry_after.is_some()),
            number(start),
            number(size),
        ];
        let reply: Vec<Value> = self
            .call(queue, "peek.lua", &self.scripts.peek, &keys, &args)
            .await?;
        let mut reply = reply.into_iter();
        let due = reply.next().and_then(|value| read_due(&value));
        let due = due.ok_or_else(|| wrong_reply("peek.lua", queue))?;
        popped.next_due = earliest(popped.next_due, due);
        let migrated = reply.next().and_then(|value| read_count(&value));
        popped.migrated += migrated.ok_or_else(|| wrong_reply("peek.lua", queue))?;
        Ok(reply)
    }

    /// Reserves those of the chosen jobs that are still there.
    async fn claim(
        &self,
        now: UnixSeconds,
        queue: &QueueName,
        chosen: Vec<(Vec<u8>, usize)>,
        is_woken: bool,
        popped: &mut Popped,
    ) -> Result<(), Error> {
        let keys = self.pop_keys(queue);
        let mut args = vec![
            self.expires(now),
            Self::flag(self.options.notify),
            Self::flag(is_woken),
        ];
        args.extend(chosen.iter().map(|(element, _)| Arg::Bytes(element)));
        let reply: Vec<Value> = self
            .call(queue, "claim.lua", &self.scripts.claim, &keys, &args)
            .await?;
        let mut reply = reply.into_iter();
        let mut quarantined = 0;
        for (element, choice) in chosen {
            let (offset, text) = reply
                .next()
                .zip(reply.next())
                .ok_or_else(|| wrong_reply("claim.lua", queue))?;
            match offset {
                Value::Int(-2) => {}
                Value::Int(-3) => quarantined += 1,
                offset => {
                    let lease = self.lease(now);
                    let job = read_job(queue, Value::BulkString(element), &offset, text, lease);
                    let mut job = job.ok_or_else(|| wrong_reply("claim.lua", queue))?;
                    job.choice = Some(choice);
                    popped.jobs.push(job);
                }
            }
        }
        if quarantined > 0 {
            popped.quarantined.push((queue.clone(), quarantined));
        }
        Ok(())
    }
}

fn wrong_reply(script: &'static str, queue: &QueueName) -> Error {
    Error::Reply {
        script,
        queue: queue.clone(),
    }
}

/// A due second, if the reply has one; the outer `None` if the reply is something else.
#[expect(
    clippy::option_option,
    reason = "nothing due and nothing understood are two things"
)]
fn read_due(value: &Value) -> Option<Option<UnixSeconds>> {
    match value {
        Value::Nil | Value::Boolean(false) => Some(None),
        Value::BulkString(text) => {
            // A score can be any float, even one that no clock reaches. A malformed score is no reason to drop
            // jobs.
            let due = std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
            let due = due.map(|due| UnixSeconds(due as i64));
            Some(due)
        }
        _ => None,
    }
}

fn read_count(value: &Value) -> Option<usize> {
    match value {
        Value::Int(count) => usize::try_from(*count).ok(),
        _ => None,
    }
}

fn earliest(a: Option<UnixSeconds>, b: Option<UnixSeconds>) -> Option<UnixSeconds> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Reads the part of pop.lua's reply for one queue; true if a job without a needle ended the pop.
fn read_entry(
    queue: &QueueName,
    entry: Value,
    lease: Option<UnixSeconds>,
    popped: &mut Popped,
) -> Option<bool> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let mut entry = entry.into_iter();
    popped.next_due = earliest(popped.next_due, read_due(&entry.next()?)?);
    let quarantined = read_count(&entry.next()?)?;
    if quarantined > 0 {
        popped.quarantined.push((queue.clone(), quarantined));
    }
    popped.migrated += read_count(&entry.next()?)?;
    let is_end = read_count(&entry.next()?)? == 1;
    while let Some(element) = entry.next() {
        let (offset, text) = (entry.next()?, entry.next()?);
        popped
            .jobs
            .push(read_job(queue, element, &offset, text, lease)?);
    }
    Some(is_end)
}

/// Builds a job from its element and the script's description of its member: an edit, or the whole member.
fn read_job(
    queue: &QueueName,
    element: Value,
    offset: &Value,
    text: Value,
    lease: Option<UnixSeconds>,
) -> Option<ReservedJob> {
    let (Value::BulkString(element), Value::Int(offset), Value::BulkString(text)) =
        (element, offset, text)
    else {
        return None;
    };
    let (member, attempts) = if *offset == -1 {
        // An unreadable payload goes to quarantine, where attempts do not count.
        let read = Payload::parse(&text)
            .ok()
            .and_then(|payload| payload.attempts);
        (text, read.unwrap_or(1).max(1))
    } else {
        let start = usize::try_from(*offset).ok()?;
        let digits = element
            .get(start..)?
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let attempts = std::str::from_utf8(&text).ok()?.parse().ok()?;
        let attempts = number_of_attempts(attempts);
        let member = [&element[..start], &text, &element[start + digits..]].concat();
        (member, attempts)
    };
    Some(ReservedJob {
        queue: queue.clone(),
        payload: element.into(),
        attempts,
        lease,
        choice: None,
        ticket: member.into(),
    })
}
