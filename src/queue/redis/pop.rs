//! Pops jobs: the heads of queues, or chosen jobs.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use redis::Value;

use super::{RedisQueue, failed};
use crate::connection::Arg;
use crate::payload::Payload;
use crate::queue::{
    Choice, Due, Error, PopRequest, Popped, QueueName, ReservedJob, Selection, number_of_attempts,
};
use crate::time::UnixSeconds;

/// What pop.lua says about the jobs of a queue that it did not take.
struct Shown {
    /// How many of the known jobs still stand at the head.
    start: usize,
    /// The first job of the list, if it is a known one.
    first: Vec<u8>,
    /// Whether no jobs are in sight behind those of this pop.
    is_end: bool,
    /// The jobs behind the known ones and before any other that stays: the caller has to choose.
    jobs: Vec<Vec<u8>>,
}

/// Most jobs that one call moves from each sorted set if that is all it does.
const MIGRATES_AT_ONCE: usize = 100;

impl RedisQueue {
    /// Moves some due jobs to the list.
    pub(super) async fn migrate_due(
        &self,
        queue: &QueueName,
        now: UnixSeconds,
    ) -> Result<Due, Error> {
        let keys = &self.pop_keys(queue)[..4];
        let args = [
            Arg::Int(now.0),
            number(self.options.migration_batch.min(MIGRATES_AT_ONCE)),
            Self::flag(self.options.notify),
            self.ends_reservations(),
        ];
        let script = &self.scripts.migrate;
        let (delayed, reserved, lost) = self
            .call::<(u64, u64, Vec<Vec<u8>>)>(queue, "migrate.lua", script, keys, &args)
            .await?;
        self.tell_migrated(&lost);
        Ok(Due { delayed, reserved })
    }

    pub(super) async fn pop_jobs(&self, mut request: PopRequest<'_>) -> Result<Popped, Error> {
        let mut popped = Popped::default();
        let result = match request.selection.take() {
            None => {
                let (queues, popped) = (request.queues, &mut popped);
                let popping = self.pop_heads(&request, queues, request.max, None, popped);
                popping.await.map(drop)
            }
            Some(selection) => self.pop_selected(&request, selection, &mut popped).await,
        };
        // Jobs that are already reserved must reach the caller; the error will come again.
        match result {
            Err(error) if popped.jobs.is_empty() => Err(error),
            _ => Ok(popped),
        }
    }

    /// Pops jobs that hold a needle or are chosen, in the order in which they stand.
    async fn pop_selected(
        &self,
        request: &PopRequest<'_>,
        mut selection: Selection<'_>,
        popped: &mut Popped,
    ) -> Result<(), Error> {
        selection.heads.begin(request.now);
        let mut queues = request.queues;
        // A small window comes first: mostly the wanted jobs are near the head.
        let mut window = request.max.get().max(32);
        while let Some(room) = NonZeroUsize::new(request.max.get() - popped.jobs.len()) {
            let by = Some((&mut selection, window));
            let Some((position, shown)) = self.pop_heads(request, queues, room, by, popped).await?
            else {
                break;
            };
            window = window.saturating_mul(4).min(self.options.look_ahead);
            let is_done = self
                .choose(request, &queues[position], shown, &mut selection, popped)
                .await?;
            queues = &queues[position + usize::from(is_done)..];
        }
        for queue in request.woken {
            if selection.heads.known(queue).0 > 0 && is_woken(request, queue, popped) {
                // The notification was for a job that another worker has to take: pass it on.
                let mut command = redis::cmd("RPUSH");
                command.arg(self.keys.notify(queue)).arg("1");
                let _: i64 =
                    (self.redis.command(&command).await).map_err(failed("RPUSH", queue))?;
            }
        }
        Ok(())
    }

    /// Pops the first jobs of `queues`, or those that hold a needle from a window behind the known jobs.
    ///
    /// Returns the jobs that the caller has to choose from, and the position of their queue, at which the pop ended.
    ///
    /// On a cluster this is a call for each run of queues in one slot, until one of them has jobs: reserved jobs must
    /// not wait for the answer of another node. A slot that cannot be reached does not keep the jobs of later queues.
    async fn pop_heads(
        &self,
        request: &PopRequest<'_>,
        queues: &[QueueName],
        max: NonZeroUsize,
        mut selection: Option<(&mut Selection<'_>, usize)>,
        popped: &mut Popped,
    ) -> Result<Option<(usize, Shown)>, Error> {
        if !self.keys.are_tagged() {
            return self.pop_run(request, queues, max, selection, popped).await;
        }
        let (before, mut at, mut problem) = (popped.jobs.len(), 0, None);
        for run in queues.chunk_by(|one, other| self.keys.are_together(one, other)) {
            if popped.jobs.len() > before {
                popped.is_cut = popped.jobs.len() - before < max.get();
                return Ok(None);
            }
            let by = selection
                .as_mut()
                .map(|(selection, window)| (&mut **selection, *window));
            match self.pop_run(request, run, max, by, popped).await {
                Ok(Some((position, shown))) => return Ok(Some((at + position, shown))),
                Ok(None) => {}
                Err(error) => problem = problem.or(Some(error)),
            }
            at += run.len();
        }
        match problem {
            Some(error) if popped.jobs.len() == before => Err(error),
            _ => Ok(None),
        }
    }

    /// Pops from queues whose keys are in one place.
    async fn pop_run(
        &self,
        request: &PopRequest<'_>,
        queues: &[QueueName],
        max: NonZeroUsize,
        mut selection: Option<(&mut Selection<'_>, usize)>,
        popped: &mut Popped,
    ) -> Result<Option<(usize, Shown)>, Error> {
        let Some(first) = queues.first() else {
            return Ok(None);
        };
        let keys: Vec<String> = queues
            .iter()
            .flat_map(|queue| self.pop_keys(queue))
            .collect();
        let (needles, window) = match &selection {
            // The caller then chooses from all jobs in the window, by their bytes.
            Some((selection, window)) if selection.heads.have_twins() => (&[][..], *window),
            Some((selection, window)) => (selection.needles, *window),
            None => (&[][..], 0),
        };
        let mut args = vec![
            Arg::Int(request.now.0),
            self.expires(request.now),
            number(max.get()),
            number(self.migration_limit(max)),
            Self::flag(self.options.notify),
            self.ends_reservations(),
            number(window),
            number(self.options.look_ahead),
            number(needles.len()),
        ];
        args.extend(needles.iter().map(|needle| Arg::Bytes(needle)));
        for queue in queues {
            let (known, last) = match &selection {
                Some((selection, _)) if !selection.heads.have_twins() => {
                    selection.heads.known(queue)
                }
                _ => (0, &[][..]),
            };
            args.push(Self::flag(is_woken(request, queue, popped)));
            args.extend([number(known), Arg::Bytes(last)]);
        }
        let reply: Vec<Value> = self
            .call(first, "pop.lua", &self.scripts.pop, &keys, &args)
            .await?;
        drop(args);
        let lease = self.lease(request.now);
        let mut ended = None;
        for (position, (queue, entry)) in queues.iter().zip(reply).enumerate() {
            let (mut shown, lost) =
                read_entry(queue, entry, lease, popped).ok_or_else(wrong("pop.lua", queue))?;
            self.tell_migrated(&lost);
            let is_known = (selection.as_mut()).is_none_or(|(selection, _)| {
                selection.heads.found(queue, shown.start, &shown.first)
            });
            if !is_known {
                // Another worker has put jobs back to the head, which are next.
                (shown.is_end, shown.jobs) = (false, Vec::new());
            }
            if !is_known || !shown.jobs.is_empty() {
                ended = ended.or(Some((position, shown)));
            }
        }
        Ok(ended)
    }

    /// Tells the listener of jobs whose reservations had ended.
    fn tell_migrated(&self, reserved: &[Vec<u8>]) {
        if let Some(listener) = self.pushes.get() {
            for reserved in reserved {
                listener.migrated(reserved);
            }
        }
    }

    /// Whether reservations end, as pop.lua and migrate.lua are told.
    pub(super) fn ends_reservations(&self) -> Arg<'static> {
        match (self.options.retry_after, self.pushes.get()) {
            (None, _) => number(0),
            (Some(_), None) => number(1),
            (Some(_), Some(_)) => number(2),
        }
    }

    /// Chooses from the jobs that pop.lua has shown; true if there is nothing more to do for their queue.
    async fn choose(
        &self,
        request: &PopRequest<'_>,
        queue: &QueueName,
        shown: Shown,
        selection: &mut Selection<'_>,
        popped: &mut Popped,
    ) -> Result<bool, Error> {
        let room = request.max.get() - popped.jobs.len();
        let mut chosen = Vec::new();
        let mut jobs = shown.jobs.into_iter();
        while chosen.len() < room
            && let Some(job) = jobs.next()
        {
            match (selection.choose)(queue, &job) {
                Choice::Take(choice) => chosen.push((job, choice)),
                Choice::NotNow => selection.heads.pass(queue, job, false),
                Choice::Never => selection.heads.pass(queue, job, true),
            }
        }
        if !chosen.is_empty() {
            self.claim(request, queue, chosen, popped).await?;
        }
        Ok(shown.is_end && jobs.len() == 0)
    }

    /// Reserves chosen jobs, as far as they are still there.
    async fn claim(
        &self,
        request: &PopRequest<'_>,
        queue: &QueueName,
        chosen: Vec<(Vec<u8>, usize)>,
        popped: &mut Popped,
    ) -> Result<(), Error> {
        let mut args = vec![
            self.expires(request.now),
            Self::flag(self.options.notify),
            Self::flag(is_woken(request, queue, popped)),
        ];
        args.extend(chosen.iter().map(|(element, _)| Arg::Bytes(element)));
        let keys = self.pop_keys(queue);
        let reply: Vec<Value> = self
            .call(queue, "claim.lua", &self.scripts.claim, &keys, &args)
            .await?;
        let mut reply = reply.into_iter();
        let mut quarantined = 0;
        for (element, choice) in chosen {
            let (offset, text) = reply
                .next()
                .zip(reply.next())
                .ok_or_else(wrong("claim.lua", queue))?;
            match offset {
                Value::Int(-2) => {}
                Value::Int(-3) => quarantined += 1,
                offset => {
                    let lease = self.lease(request.now);
                    let job = read_job(queue, Value::BulkString(element), &offset, text, lease);
                    let mut job = job.ok_or_else(wrong("claim.lua", queue))?;
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

/// Whether a notification was taken from the queue that is not yet accounted for by a job.
fn is_woken(request: &PopRequest<'_>, queue: &QueueName, popped: &Popped) -> bool {
    request.woken.contains(queue)
        && !popped.jobs.iter().any(|job| job.queue == *queue)
        && !popped.quarantined.iter().any(|(name, _)| name == queue)
}

fn number(n: usize) -> Arg<'static> {
    Arg::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn wrong(script: &'static str, queue: &QueueName) -> impl FnOnce() -> Error {
    let queue = queue.clone();
    move || Error::Reply { script, queue }
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

/// Reads the part of pop.lua's reply for one queue; also returns the jobs that have lost their reservation.
fn read_entry(
    queue: &QueueName,
    entry: Value,
    lease: Option<UnixSeconds>,
    popped: &mut Popped,
) -> Option<(Shown, Vec<Vec<u8>>)> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let mut entry = entry.into_iter();
    popped.next_due = earliest(popped.next_due, read_due(&entry.next()?)?);
    let quarantined = read_count(&entry.next()?)?;
    if quarantined > 0 {
        popped.quarantined.push((queue.clone(), quarantined));
    }
    popped.migrated += read_count(&entry.next()?)? as u64;
    let shown = Shown {
        start: read_count(&entry.next()?)?,
        first: redis::from_redis_value(entry.next()?).ok()?,
        is_end: read_count(&entry.next()?)? == 1,
        jobs: redis::from_redis_value(entry.next()?).ok()?,
    };
    let lost = redis::from_redis_value(entry.next()?).ok()?;
    while let Some(element) = entry.next() {
        let (offset, text) = (entry.next()?, entry.next()?);
        popped
            .jobs
            .push(read_job(queue, element, &offset, text, lease)?);
    }
    Some((shown, lost))
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
    let payload = Arc::<[u8]>::from(element);
    let (ticket, attempts) = if *offset == -1 {
        // An unreadable payload goes to quarantine, where attempts do not count.
        let read = Payload::parse(&text)
            .ok()
            .and_then(|payload| payload.attempts);
        (text.into(), read.unwrap_or(1).max(1))
    } else {
        let start = usize::try_from(*offset).ok()?;
        let digits = payload
            .get(start..)?
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let attempts = std::str::from_utf8(&text).ok()?.parse().ok()?;
        (
            replaced(&payload, start..start + digits, &text),
            number_of_attempts(attempts),
        )
    };
    Some(ReservedJob {
        delivery: None,
        queue: queue.clone(),
        payload,
        attempts,
        lease,
        choice: None,
        ticket,
    })
}

/// The payload with one part replaced; copied once if both have the same length, as most numbers of attempts have.
fn replaced(payload: &Arc<[u8]>, part: Range<usize>, by: &[u8]) -> Arc<[u8]> {
    if part.len() != by.len() {
        return [&payload[..part.start], by, &payload[part.end..]]
            .concat()
            .into();
    }
    let mut copy = Arc::clone(payload);
    Arc::make_mut(&mut copy)[part].copy_from_slice(by);
    copy
}
