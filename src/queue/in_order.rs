//! Queues whose server cannot apply the effects of a job's end: a ledger elsewhere notes them first.
//!
//! 1. The ledger notes the end of the job, and with it, in one step, all that the end brings about.
//! 2. The job is deleted.
//! 3. The note is removed.
//!
//! After a crash between 1 and 2 the server delivers the job again. Then the note says that it has ended, and the job
//! is deleted without being run. The note of a job without effects is written only if its deletion is not certain.
//! Every pop looks for notes: some servers count deliveries anew after a restart, so the number of attempts tells
//! nothing.
//!
//! A job that goes to quarantine has not ended: what follows from that is noted under another name, so that it happens
//! once, and the job goes there again if it is delivered again.
//!
//! A push that is due to an end is a follow-up: it happens after step 1, and again if the process dies, or the reply is
//! lost, before the follow-up is removed. Servers of this kind do not recognize a push that is repeated.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sha2::Digest as _;
use tokio::runtime::Handle;

use super::{
    Abilities, Answer, CallListener, ConnectionName, Delivery, Driver, Due, Effect, Error, Fate,
    Held, Ledger, Once, Place, PopRequest, Popped, Push, PushListener, PushedOnce, Queue,
    QueueName, ReservedJob, Settled, Settlement, Sizes, Spool, Unsettled,
};
use crate::connection::{LockPlace, Transaction};
use crate::time::{Clock, UnixSeconds};

/// Most ends that are noted at the same time.
const AT_ONCE: usize = 64;
/// Difference between two clocks that count whole seconds.
const SLACK: Duration = Duration::from_secs(2);

/// Queues on a server that deletes jobs and no more, with a ledger on another one.
#[derive(Debug)]
pub struct InOrder {
    connection: ConnectionName,
    queue: Arc<dyn Queue>,
    ledger: Arc<dyn Driver>,
    /// Makes of a push to a connection the record that a follow-up is left to do.
    put_off: fn(&ConnectionName, &Push) -> Effect,
    clock: Clock,
    /// Whether the ledger did not answer: then it is asked before a pop, so that no job loses an attempt in vain.
    is_away: AtomicBool,
    /// Ends that are noted, of jobs whose deletion has not succeeded.
    undeleted: Mutex<HashSet<String>>,
}

/// The name of a job in the ledger, and when it was pushed, where its server may give the same name to a later job.
type Identity = (String, Option<UnixSeconds>);

/// A job that is to end, and what the ledger notes of it.
struct NotedEnd<'a> {
    index: usize,
    id: String,
    effects: Vec<Effect>,
    job: &'a Arc<ReservedJob>,
}

impl InOrder {
    /// The queues of this connection, with a ledger for the ends of their jobs.
    pub fn new(
        connection: ConnectionName,
        queue: Arc<dyn Queue>,
        ledger: Arc<dyn Driver>,
        put_off: fn(&ConnectionName, &Push) -> Effect,
        clock: Clock,
    ) -> Self {
        Self {
            connection,
            queue,
            ledger,
            put_off,
            clock,
            is_away: AtomicBool::new(false),
            undeleted: Mutex::default(),
        }
    }

    fn undeleted(&self) -> MutexGuard<'_, HashSet<String>> {
        // Every change is a single insert or remove.
        self.undeleted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity of a job in the ledger: a server that lost its jobs may call another job the same.
    fn identity(&self, job: &ReservedJob) -> Option<Identity> {
        let Delivery { id, pushed, .. } = job.delivery.as_ref()?;
        let digest = sha2::Sha256::digest(&job.payload);
        let digest = u128::from_be_bytes(digest[..16].try_into().ok()?);
        Some((format!("{}:{id}:{digest:032x}", self.connection), *pushed))
    }

    /// The effect, as the ledger's server can apply it: a push to these queues is put off.
    fn put_off(&self, effect: &Effect) -> Effect {
        match effect {
            Effect::Push(push) => (self.put_off)(&self.connection, push),
            effect => effect.clone(),
        }
    }

    async fn pop_unended<'a>(&'a self, request: PopRequest<'a>) -> Result<Popped, Error> {
        if self.is_away.load(Ordering::Relaxed) {
            self.ledger.ends(&[self.connection.to_string()]).await?;
        }
        let mut popped = self.queue.pop(request).await?;
        if popped.jobs.is_empty() {
            return Ok(popped);
        }
        let identities: Vec<_> = popped.jobs.iter().map(|job| self.identity(job)).collect();
        let have_ended = self.have_ended(&identities).await;
        self.is_away.store(have_ended.is_err(), Ordering::Relaxed);
        let have_ended = match have_ended {
            Ok(have_ended) => have_ended,
            Err(error) => {
                let back = |job| (Arc::new(job), Settlement::PutBack);
                let back: Vec<_> = popped.jobs.into_iter().map(back).collect();
                // Those that do not go back come back when their reservation ends.
                drop(self.queue.settle(&back).await);
                return Err(error);
            }
        };
        let (mut jobs, mut ended) = (Vec::with_capacity(popped.jobs.len()), Vec::new());
        let looked_up = identities.into_iter().zip(have_ended);
        for (job, looked_up) in std::mem::take(&mut popped.jobs).into_iter().zip(looked_up) {
            match looked_up {
                (Some((id, _)), true) => ended.push((job, id)),
                _ => jobs.push(job),
            }
        }
        self.delete_ended(ended).await;
        popped.jobs = jobs;
        Ok(popped)
    }

    /// Whether each of these jobs has ended.
    ///
    /// The note of an earlier job that its server called the same is removed before the job runs: with it, the end of
    /// this one would count as noted, and nothing would follow.
    async fn have_ended(&self, identities: &[Option<Identity>]) -> Result<Vec<bool>, Error> {
        let ids = identities.iter().flatten().map(|(id, _)| id.clone());
        let ends = self.ledger.ends(&ids.collect::<Vec<_>>()).await?;
        let mut ends = ends.into_iter();
        let (mut have_ended, mut stale) = (Vec::with_capacity(identities.len()), Vec::new());
        for identity in identities {
            let noted = identity.as_ref().and_then(|(id, pushed)| {
                let at = ends.next().flatten()?;
                Some((id, is_that_one(at, *pushed)))
            });
            if let Some((id, false)) = noted {
                self.undeleted().remove(id);
                stale.push(id.clone());
            }
            have_ended.push(matches!(noted, Some((_, true))));
        }
        if !stale.is_empty() {
            self.ledger.forget_ends(&stale).await?;
        }
        Ok(have_ended)
    }

    /// Deletes jobs that had ended, and were delivered again.
    async fn delete_ended(&self, ended: Vec<(ReservedJob, String)>) {
        if ended.is_empty() {
            return;
        }
        tracing::info!(
            jobs = ended.len(),
            "jobs that had ended were delivered again; they are deleted and not run"
        );
        let (jobs, ids): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        self.queue.had_ended(&jobs);
        let delete = |job| (Arc::new(job), Settlement::Delete);
        let rows: Vec<_> = jobs.into_iter().map(delete).collect();
        let settled = match self.queue.settle(&rows).await {
            Ok(settled) => settled.into_iter().map(Some).collect(),
            Err(Unsettled { settled, .. }) => settled,
        };
        self.forget(ids.into_iter().zip(settled)).await;
    }

    /// Removes the notes of jobs that are certainly deleted.
    async fn forget(&self, ids: impl Iterator<Item = (String, Option<Settled>)>) {
        let deleted = ids.filter(|(_, settled)| *settled == Some(Settled::Done));
        let deleted: Vec<_> = deleted.map(|(id, _)| id).collect();
        if !deleted.is_empty() {
            // Notes that stay are forgotten by themselves.
            drop(self.ledger.forget_ends(&deleted).await);
        }
    }

    async fn settle_in_order(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        let mut results: Vec<Option<Settled>> = vec![None; jobs.len()];
        let mut problem = None;
        let mut rows: Vec<(Arc<ReservedJob>, Settlement)> = jobs.to_vec();
        let ends = self.noted_ends(jobs);
        let noted = self.note(&ends, &mut results, &mut problem).await;
        let mut waits = vec![false; jobs.len()];
        for end in &ends {
            waits[end.index] = !noted.contains_key(&end.index);
            rows[end.index].1 = if goes_to_quarantine(&jobs[end.index].1) {
                Settlement::Quarantine
            } else {
                Settlement::Delete
            };
        }
        let places: Vec<usize> = (0..jobs.len()).filter(|place| !waits[*place]).collect();
        let rows: Vec<_> = places.iter().map(|place| rows[*place].clone()).collect();
        let settled = match self.queue.settle(&rows).await {
            Ok(settled) => settled.into_iter().map(Some).collect(),
            Err(Unsettled { settled, source }) => {
                worse(&mut problem, source);
                settled
            }
        };
        let mut forgotten = Vec::new();
        for ((place, (job, settlement)), settled) in places.into_iter().zip(&rows).zip(settled) {
            results[place] = settled;
            if let Some(id) = noted.get(&place) {
                if settled.is_some() {
                    self.undeleted().remove(id);
                } else {
                    self.undeleted().insert(id.clone());
                }
                forgotten.push((id.clone(), settled));
                // It has ended, even if the server delivers it once more.
                results[place] = settled.map(|_| Settled::Done);
            } else if settled == Some(Settled::Gone) && *settlement == Settlement::Delete {
                self.note_deletion(job).await;
            }
        }
        self.forget(forgotten.into_iter()).await;
        match problem {
            None => Ok(results.into_iter().flatten().collect()),
            Some(source) => Err(Unsettled {
                settled: results,
                source,
            }),
        }
    }

    /// The jobs whose ends have effects.
    fn noted_ends<'a>(&self, jobs: &'a [(Arc<ReservedJob>, Settlement)]) -> Vec<NotedEnd<'a>> {
        let end = |(index, (job, settlement)): (usize, &'a (Arc<ReservedJob>, _))| {
            let Settlement::Finish(effects) = settlement else {
                return None;
            };
            let effects: Vec<_> = (effects.iter())
                .filter(|effect| **effect != Effect::Quarantine)
                .map(|effect| self.put_off(effect))
                .collect();
            let (id, _) = self.identity(job).filter(|_| !effects.is_empty())?;
            Some(NotedEnd {
                index,
                id: if goes_to_quarantine(settlement) {
                    // No pop looks for this one: such a job has not ended, and is not to be deleted if it comes again.
                    format!("{id}:quarantine")
                } else {
                    id
                },
                effects,
                job,
            })
        };
        jobs.iter().enumerate().filter_map(end).collect()
    }

    /// Notes the ends of the jobs that are still reserved; the answer has those that are noted, with their identity.
    async fn note(
        &self,
        ends: &[NotedEnd<'_>],
        results: &mut [Option<Settled>],
        problem: &mut Option<Error>,
    ) -> std::collections::HashMap<usize, String> {
        // These were noted before, and are only deleted: another worker may have deleted the job, and the note with it.
        let mut noted: std::collections::HashMap<_, _> = {
            let undeleted = self.undeleted();
            let before = ends.iter().filter(|end| undeleted.contains(&end.id));
            before.map(|end| (end.index, end.id.clone())).collect()
        };
        let new: Vec<_> = (ends.iter())
            .filter(|end| !noted.contains_key(&end.index))
            .collect();
        if new.is_empty() {
            return noted;
        }
        let now = self.clock.now();
        let jobs: Vec<_> = new.iter().map(|end| Arc::clone(end.job)).collect();
        // What another worker has is its to end.
        let held = match self.queue.renew(&jobs, now).await {
            Ok(held) => held,
            Err(error) => {
                worse(problem, error);
                return noted;
            }
        };
        let mut ours = Vec::with_capacity(new.len());
        for (end, held) in new.into_iter().zip(held) {
            match held {
                Held::Until(_) => ours.push(end),
                Held::Lost => results[end.index] = Some(Settled::Gone),
            }
        }
        for some in ours.chunks(AT_ONCE) {
            let mut noting = Vec::with_capacity(some.len());
            for end in some {
                noting.push(self.ledger.note_end(&end.id, now, &end.effects));
            }
            let answers = join_all(noting).await;
            for (end, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(()) => drop(noted.insert(end.index, end.id.clone())),
                    Err(error) => worse(problem, error),
                }
            }
        }
        noted
    }

    /// Notes that a job without effects has ended, though its server may deliver it again.
    async fn note_deletion(&self, job: &ReservedJob) {
        let Some((id, _)) = self.identity(job) else {
            return;
        };
        if let Err(error) = self.ledger.note_end(&id, self.clock.now(), &[]).await {
            tracing::warn!(
                error = crate::shown::with_causes(&error),
                queue = %job.queue,
                "a job has ended that its server may deliver again, and this could not be noted"
            );
        }
    }
}

/// Whether the job goes to quarantine, where it waits for an operator: all other jobs with effects have ended.
fn goes_to_quarantine(settlement: &Settlement) -> bool {
    matches!(settlement, Settlement::Finish(effects) if effects.contains(&Effect::Quarantine))
}

/// Whether the job that ended then is the one that was pushed at that time.
fn is_that_one(ended: UnixSeconds, pushed: Option<UnixSeconds>) -> bool {
    pushed.is_none_or(|pushed| pushed <= ended.plus(SLACK))
}

/// Keeps the problem that leaves more unknown.
fn worse(problem: &mut Option<Error>, error: Error) {
    let is_worse = |known: &Error| !known.is_of_unknown_outcome() && error.is_of_unknown_outcome();
    if problem.as_ref().is_none_or(is_worse) {
        *problem = Some(error);
    }
}

impl Queue for InOrder {
    fn abilities(&self) -> &Abilities {
        self.queue.abilities()
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        Box::pin(async {
            self.queue.ping().await?;
            self.ledger.ping().await
        })
    }

    fn open_on(&self, runtime: &Handle) {
        self.queue.open_on(runtime);
        self.ledger.open_on(runtime);
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        Box::pin(self.pop_unended(request))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        Box::pin(self.settle_in_order(jobs))
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        self.queue.renew(jobs, now)
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        self.queue.wait_for_push(queues, timeout)
    }

    fn end_waits(&self) -> Answer<'_, bool> {
        self.queue.end_waits()
    }

    fn recorded(&self, queue: &QueueName) -> QueueName {
        self.queue.recorded(queue)
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        self.queue.push(queue, payloads)
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        self.queue.later(queue, due, payload)
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        self.queue.push_once(pushes, once)
    }

    fn push_within<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        pushes: &'a [Push],
    ) -> Answer<'a, bool> {
        self.queue.push_within(transaction, pushes)
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.queue.can_claim(queue, place)
    }

    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        self.queue.was_pushed(queue, id)
    }

    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        self.queue.tell_pushes(listener);
    }

    fn tell_late(&self, pushes: &[Push]) {
        self.queue.tell_late(pushes);
    }

    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        self.queue.tell_calls(listener);
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        self.queue.due(queue, now)
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        self.queue.sizes(queue)
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        self.queue.look(queue, place, from, limit)
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        self.queue.clear(queue, now)
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        self.queue.queues()
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        self.queue.quarantines()
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        self.queue.dequarantine(queue, payloads, fate)
    }
}

/// All of it is the ledger's; pushes to these queues are put off.
impl Ledger for InOrder {
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        self.ledger.read(spool, from, max)
    }

    fn length(&self, spool: Spool) -> Answer<'_, u64> {
        self.ledger.length(spool)
    }

    fn ack<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let effects: Vec<_> = effects.iter().map(|effect| self.put_off(effect)).collect();
            self.ledger.ack(spool, owner, records, &effects).await
        })
    }

    fn lease<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        self.ledger.lease(spool, owner, lives)
    }

    fn keep<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        self.ledger.keep(spool, owner, lives)
    }

    fn confirm_lease<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        lives: Duration,
    ) -> Answer<'a, bool> {
        self.ledger.confirm_lease(spool, owner, lives)
    }

    fn unlease<'a>(&'a self, spool: Spool, owner: &'a str) -> Answer<'a, ()> {
        self.ledger.unlease(spool, owner)
    }

    fn keep_error<'a>(&'a self, job: &'a str, error: &'a str, lives: Duration) -> Answer<'a, ()> {
        self.ledger.keep_error(job, error, lives)
    }

    fn last_error<'a>(&'a self, job: &'a str) -> Answer<'a, Option<String>> {
        self.ledger.last_error(job)
    }

    fn keeps_heartbeats(&self) -> bool {
        self.ledger.keeps_heartbeats()
    }

    fn beat<'a>(&'a self, worker: &'a str, record: &'a [u8], lives: Duration) -> Answer<'a, ()> {
        self.ledger.beat(worker, record, lives)
    }

    fn end_beats<'a>(&'a self, worker: &'a str) -> Answer<'a, ()> {
        self.ledger.end_beats(worker)
    }

    fn beats(&self, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        self.ledger.beats(max)
    }

    fn note_end<'a>(
        &'a self,
        id: &'a str,
        at: UnixSeconds,
        effects: &'a [Effect],
    ) -> Answer<'a, ()> {
        self.ledger.note_end(id, at, effects)
    }

    fn ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<UnixSeconds>>> {
        self.ledger.ends(ids)
    }

    fn forget_ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, ()> {
        self.ledger.forget_ends(ids)
    }

    fn holds(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.ledger.holds(queue, place)
    }

    fn pushes_here(&self, _queue: &QueueName) -> bool {
        false
    }
}
