//! Keeps reservations alive while their jobs run.
//!
//! Laravel never extends a reservation: while a job runs longer than `retry_after`, a second worker runs it as
//! well. artisand renews the reservation while the handler runs within its own timeout. If this process dies, the
//! reservation ends as in Laravel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::is_away;
use crate::payload::{JobUuid, Payload};
use crate::queue::{Error, Held, Queue, QueueName, ReservedJob};
use crate::shown::with_causes;
use crate::time::Clock;
use crate::worker::event::{Event, Observers};

/// How long a pop waits for renewals that are overdue.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long after the first miss the second one counts.
const BETWEEN_MISSES: Duration = Duration::from_millis(400);

/// Running jobs, and when each began.
#[derive(Debug, Default)]
pub(super) struct Running {
    jobs: Mutex<HashMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    job: Arc<ReservedJob>,
    since: Instant,
    /// When the reservation was last made or renewed.
    renewed: Instant,
    /// How many renewals in a row found no reservation.
    misses: u8,
    /// Whether its loss was told.
    is_told: bool,
}

impl Running {
    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Every change is a single insert or remove.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, number: u64, job: Arc<ReservedJob>) {
        let now = Instant::now();
        self.jobs().insert(
            number,
            Entry {
                job,
                since: now,
                renewed: now,
                misses: 0,
                is_told: false,
            },
        );
    }

    pub(super) fn remove(&self, number: u64) {
        self.jobs().remove(&number);
    }

    /// Whether this job is running or not yet settled.
    pub(super) fn has(&self, number: u64) -> bool {
        self.jobs().contains_key(&number)
    }

    /// True if no job is running and all are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    /// Jobs whose reservations may have ended already, or will soon, because they could not be renewed in time.
    ///
    /// The server was away, or the process was suspended. A pop would move these jobs back to their queue.
    fn overdue(&self, retry_after: Duration) -> ByQueue {
        self.those(|entry| entry.renewed.elapsed() >= retry_after * 2 / 3)
    }

    /// Jobs that have run for at least `age`.
    fn older_than(&self, age: Duration) -> ByQueue {
        self.those(|entry| entry.since.elapsed() >= age)
    }

    fn those(&self, is_wanted: impl Fn(&Entry) -> bool) -> ByQueue {
        let mut wanted = ByQueue::new();
        for (number, entry) in self.jobs().iter().filter(|(_, entry)| is_wanted(entry)) {
            let queue = wanted.entry(entry.job.queue.clone()).or_default();
            queue.numbers.push(*number);
            queue.jobs.push(Arc::clone(&entry.job));
        }
        wanted
    }

    /// Notes what a renewal at `moment` has found.
    fn note(&self, renewed: &OfQueue, held: &[Held], moment: Instant) {
        let mut jobs = self.jobs();
        for (number, held) in renewed.numbers.iter().zip(held) {
            // It may have ended meanwhile.
            let Some(entry) = jobs.get_mut(number) else {
                continue;
            };
            let since = moment.saturating_duration_since(entry.renewed);
            entry.renewed = moment;
            if *held != Held::Lost {
                entry.misses = 0;
            } else if entry.misses == 0 || since >= BETWEEN_MISSES {
                entry.misses = entry.misses.saturating_add(1);
            }
        }
    }

    /// The jobs whose reservations turn out to be gone, each once.
    ///
    /// A job that is being settled has no reservation for a moment, so one miss does not count.
    fn newly_lost(&self) -> Vec<Arc<ReservedJob>> {
        let mut jobs = self.jobs();
        let newly_lost = (jobs.values_mut()).filter(|entry| entry.misses >= 2 && !entry.is_told);
        let tell = |entry: &mut Entry| {
            entry.is_told = true;
            Arc::clone(&entry.job)
        };
        newly_lost.map(tell).collect()
    }
}

/// Jobs, by their queue.
type ByQueue = BTreeMap<QueueName, OfQueue>;

/// Jobs of one queue.
#[derive(Debug, Default)]
struct OfQueue {
    numbers: Vec<u64>,
    jobs: Vec<Arc<ReservedJob>>,
}

/// What a renewal needs.
pub(super) struct Renewer {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) running: Arc<Running>,
    pub(super) observers: Observers,
    pub(super) clock: Clock,
}

impl Renewer {
    /// Renews the reservations of these jobs of a queue, and tells which are gone.
    async fn renew(&self, of_queue: &OfQueue) -> Result<(), Error> {
        let (moment, now) = (Instant::now(), self.clock.now());
        let held = self.queue.renew(&of_queue.jobs, now).await?;
        self.running.note(of_queue, &held, moment);
        for job in self.running.newly_lost() {
            self.tell_lost(&job);
        }
        Ok(())
    }

    fn tell_lost(&self, job: &ReservedJob) {
        self.observers.emit(&Event::ReservationLost(&job.queue));
        let payload = Payload::parse(&job.payload).ok();
        let uuid = payload.as_ref().and_then(|payload| payload.uuid.as_ref());
        tracing::warn!(
            job.uuid = uuid.map(JobUuid::bounded),
            job.class = payload.as_ref().map(|payload| payload.shown_name()).as_deref(),
            queue = %job.queue,
            attempts = job.attempts,
            "the reservation of a running job is gone: the queue was cleared, or another worker may run the job as well"
        );
    }
}

/// How a call ended, for a pop that waits for it.
#[derive(Debug)]
enum End {
    Renewed,
    Failed(Error),
    /// It was the call of another caller, and is over.
    OfAnother,
    /// Its task panicked.
    Died,
}

/// A call's place among those under way, until it is dropped.
struct Place {
    under_way: Arc<UnderWay>,
    name: QueueName,
    /// Closed with the place.
    _end: watch::Sender<()>,
}

/// The queues whose reservations are being renewed, with what closes when that is over.
type UnderWay = Mutex<HashMap<QueueName, watch::Receiver<()>>>;

fn locked(under_way: &UnderWay) -> MutexGuard<'_, HashMap<QueueName, watch::Receiver<()>>> {
    // Every change is a single insert or remove.
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// The place of a queue, or what tells when it is free.
    fn take(under_way: &Arc<UnderWay>, name: &QueueName) -> Result<Self, watch::Receiver<()>> {
        let mut queues = locked(under_way);
        if let Some(over) = queues.get(name) {
            return Err(over.clone());
        }
        let (end, over) = watch::channel(());
        queues.insert(name.clone(), over);
        Ok(Self {
            under_way: Arc::clone(under_way),
            name: name.clone(),
            _end: end,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.under_way).remove(&self.name);
    }
}

/// Renews the reservations of running jobs, with a call for each queue, one at a time. No call waits for that of another
/// queue: a server that hangs costs only its own queues their reservations.
pub(super) struct Renewals {
    renewer: Arc<Renewer>,
    under_way: Arc<UnderWay>,
    /// The calls. They are not dropped while the worker runs: not every driver can take that in the middle of a call.
    calls: Mutex<JoinSet<()>>,
    /// The runtime of all calls, and so of their connection: one that no handler can block.
    runtime: Handle,
}

impl Renewals {
    /// `overseer` is a runtime that no handler can block; without it, calls are made on this one.
    pub(super) fn new(renewer: Renewer, overseer: Option<&Handle>) -> Self {
        Self {
            renewer: Arc::new(renewer),
            under_way: Arc::default(),
            calls: Mutex::default(),
            runtime: overseer.cloned().unwrap_or_else(Handle::current),
        }
    }

    fn spawn(&self, call: impl Future<Output = ()> + Send + 'static) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        while calls.try_join_next().is_some() {}
        calls.spawn_on(call, &self.runtime);
    }

    /// Starts a call for this queue, unless one is under way, and says whether it did; the future waits for its end.
    fn call(
        &self,
        name: QueueName,
        of_queue: OfQueue,
    ) -> (bool, impl Future<Output = (QueueName, End)> + use<>) {
        let place = Place::take(&self.under_way, &name);
        let (end, ended) = oneshot::channel();
        let over = place.map_or_else(Some, |place| {
            let renewer = Arc::clone(&self.renewer);
            self.spawn(async move {
                let ended = match renewer.renew(&of_queue).await {
                    Ok(()) => End::Renewed,
                    Err(error) => End::Failed(error),
                };
                drop(place);
                // A pop that waits for it reports the error.
                if let Err(End::Failed(error)) = end.send(ended) {
                    log(&error, &of_queue);
                }
            });
            None
        });
        let is_new = over.is_none();
        let waiting = async move {
            let end = match over {
                Some(mut over) => {
                    // Nothing is ever sent: it is closed.
                    let _ = over.changed().await;
                    End::OfAnother
                }
                None => ended.await.unwrap_or(End::Died),
            };
            (name, end)
        };
        (is_new, waiting)
    }

    /// Renews reservations that could not be renewed in time, so that a pop takes no job that this worker runs; returns
    /// those of these queues that may be popped.
    ///
    /// # Errors
    ///
    /// No queue may be popped.
    pub(super) async fn make_ready(&self, queues: Vec<QueueName>) -> Result<Vec<QueueName>, Error> {
        let Renewer { queue, running, .. } = &*self.renewer;
        let Some(retry_after) = queue.abilities().retry_after else {
            return Ok(queues);
        };
        let overdue = running.overdue(retry_after);
        if overdue.is_empty() {
            return Ok(queues);
        }
        let mut blocked: BTreeSet<QueueName> = overdue.keys().cloned().collect();
        let mut calls = FuturesUnordered::new();
        let mut new_calls = 0;
        for (name, jobs) in overdue {
            let (is_new, call) = self.call(name, jobs);
            new_calls += usize::from(is_new);
            calls.push(call);
        }
        let mut patience = std::pin::pin!(tokio::time::sleep(PATIENCE));
        let mut problem = None;
        loop {
            let is_apart = |one: &&QueueName| blocked.iter().all(|name| queue.are_apart(one, name));
            let ready: Vec<_> = queues.iter().filter(is_apart).cloned().collect();
            // A queue whose call takes long is left out, and keeps no other queue waiting.
            let has_some = !ready.is_empty() || queues.is_empty();
            if has_some && new_calls == 0 {
                return Ok(ready);
            }
            let (name, end) = tokio::select! {
                biased;
                Some(ended) = calls.next() => ended,
                () = &mut patience, if has_some => return Ok(ready),
                else => return problem.map_or(Ok(ready), Err),
            };
            new_calls -= usize::from(!matches!(end, End::OfAnother));
            match end {
                End::Renewed => drop(blocked.remove(&name)),
                End::Failed(error) => problem = problem.or(Some(error)),
                End::Died => {}
                End::OfAnother => match running.overdue(retry_after).remove(&name) {
                    Some(jobs) => {
                        let (is_new, call) = self.call(name, jobs);
                        new_calls += usize::from(is_new);
                        calls.push(call);
                    }
                    None => drop(blocked.remove(&name)),
                },
            }
        }
    }

    /// Renews the reservation of a job that has not begun; `None` if the server does not say whether it is held.
    pub(super) async fn confirm(&self, job: Arc<ReservedJob>) -> Option<Held> {
        let (answer, held) = oneshot::channel();
        let renewer = Arc::clone(&self.renewer);
        self.spawn(async move {
            let held = renewer.queue.renew(&[job], renewer.clock.now()).await;
            let held = held.ok().and_then(|held| held.first().copied());
            // The attempt may have stopped waiting.
            let _ = answer.send(held);
        });
        held.await.ok().flatten()
    }

    /// Renews reservations until the future is dropped.
    pub(super) async fn keep_renewing(self: Arc<Self>) {
        let Renewer { queue, running, .. } = &*self.renewer;
        let Some(retry_after) = queue.abilities().retry_after else {
            return std::future::pending().await;
        };
        // Three tries before the reservation ends. Scores are whole seconds, so at most twice a second.
        let interval = (retry_after / 3).max(Duration::from_millis(500));
        let mut ticks = tokio::time::interval(interval.min(Duration::from_secs(10)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (name, jobs) in running.older_than(interval / 2) {
                drop(self.call(name, jobs));
            }
        }
    }
}

fn log(error: &Error, of_queue: &OfQueue) {
    // The connection logs once that a server is away.
    if !is_away(error) {
        tracing::warn!(
            error = with_causes(error),
            queue = of_queue.jobs.first().map(|job| job.queue.as_str()),
            jobs = of_queue.jobs.len(),
            "could not renew reservations"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::queue::{PopRequest, QueueName};
    use crate::time::UnixSeconds;
    use crate::worker::event::Observer;
    use crate::worker::test_support::{Fault, NOW, RETRY_AFTER, S, Server, Told, job};

    /// Renewals of two running jobs, of the queues `a` and `b`.
    async fn scene() -> (Arc<Server>, Arc<Running>, Renewals) {
        let server = Server::new();
        let queue = &server.jobs;
        let names = [QueueName::from("a"), QueueName::from("b")];
        for name in &names {
            let payload = br#"{"attempts":0}"#.to_vec();
            queue.push(name, &[payload]).await.unwrap();
        }
        let request = PopRequest {
            queues: &names,
            max: NonZeroUsize::MAX,
            now: UnixSeconds(0),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let running = Arc::<Running>::default();
        for (number, job) in (0..).zip(queue.pop(request).await.unwrap().jobs) {
            running.insert(number, Arc::new(job));
        }
        let renewals = Renewer {
            queue: Arc::clone(&server) as _,
            running: Arc::clone(&running),
            observers: Observers::default(),
            clock: Clock::Fixed(NOW),
        };
        (server, running, Renewals::new(renewals, None))
    }

    #[tokio::test(start_paused = true)]
    async fn only_jobs_that_could_not_be_renewed_are_overdue() {
        let (_server, running, renewals) = scene().await;
        let names = [QueueName::from("a"), QueueName::from("b")];
        let overdue = || -> Vec<_> { running.overdue(RETRY_AFTER).into_keys().collect() };
        tokio::time::advance(RETRY_AFTER / 2).await;
        assert_eq!(overdue(), []);
        let jobs = running.older_than(Duration::ZERO);
        renewals.renewer.renew(&jobs[&names[1]]).await.unwrap();
        tokio::time::advance(RETRY_AFTER / 2).await;
        assert_eq!(overdue(), names[..1]);
        let ready = renewals.make_ready(names.to_vec()).await.unwrap();
        assert_eq!(ready, names);
        assert_eq!(overdue(), []);
        running.remove(0);
        running.remove(1);
        tokio::time::advance(RETRY_AFTER).await;
        assert_eq!(overdue(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_whose_server_hangs_costs_no_other_its_reservations_and_its_pops() {
        let (server, running, renewals) = scene().await;
        let renewals = Arc::new(renewals);
        let names = [QueueName::from("a"), QueueName::from("b")];
        let (both, only_b) = (names.to_vec(), names[1..].to_vec());
        let overdue = || -> Vec<_> { running.overdue(RETRY_AFTER).into_keys().collect() };
        let hang = S(4 * RETRY_AFTER.as_secs());
        server.next("renew", [Some(Fault::Slow(hang))]);
        tokio::spawn(Arc::clone(&renewals).keep_renewing());
        tokio::time::sleep(3 * RETRY_AFTER).await;
        assert_eq!(overdue(), names[..1]);
        // One call hangs, however long; all others are those of `b`.
        let calls = server.sizes_of("renew").len() as u64;
        assert!(calls > 2 * RETRY_AFTER.as_secs() / 10, "{calls}");
        let began = Instant::now();
        assert_eq!(renewals.make_ready(both.clone()).await.unwrap(), only_b);
        assert_eq!(began.elapsed(), S(0), "that call is no new one");
        // With no other queue a pop waits for the server.
        let only_a = names[..1].to_vec();
        assert_eq!(renewals.make_ready(only_a.clone()).await.unwrap(), only_a);
        assert!(began.elapsed() > S(60) && overdue().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pop_hears_of_the_queues_that_could_not_be_renewed() {
        let (server, running, renewals) = scene().await;
        let names = [QueueName::from("a"), QueueName::from("b")];
        tokio::time::advance(RETRY_AFTER).await;
        let began = Instant::now();
        server.next("renew", [Some(Fault::Slow(S(7)))]);
        let ready = renewals.make_ready(names.to_vec()).await.unwrap();
        assert_eq!((ready, began.elapsed()), (names[1..].to_vec(), PATIENCE));
        tokio::time::advance(S(7)).await;
        tokio::task::yield_now().await;
        assert!(running.overdue(RETRY_AFTER).is_empty());
        tokio::time::advance(RETRY_AFTER).await;
        server.next("renew", [Some(Fault::Refused)]);
        let ready = renewals.make_ready(names.to_vec()).await.unwrap();
        assert_eq!(ready, names[1..]);
        server.next("renew", [Some(Fault::Refused)]);
        assert!(renewals.make_ready(names[..1].to_vec()).await.is_err());
        assert_eq!(renewals.make_ready(Vec::new()).await.unwrap(), []);
        let ready = renewals.make_ready(names.to_vec()).await.unwrap();
        assert_eq!(ready, names);
    }

    #[tokio::test(start_paused = true)]
    async fn two_misses_of_one_moment_are_one() {
        let (server, running, renewals) = scene().await;
        server.jobs.clear(&QueueName::from("a")).await.unwrap();
        let jobs = running.older_than(Duration::ZERO);
        let of_a = &jobs[&QueueName::from("a")];
        let missed = async || {
            renewals.renewer.renew(of_a).await.unwrap();
            running.jobs()[&0].misses
        };
        assert_eq!((missed().await, missed().await), (1, 1));
        tokio::time::advance(BETWEEN_MISSES).await;
        assert_eq!(missed().await, 2);
    }

    /// A task that renews the reservation of one job, number 1, which begins now.
    async fn renewing() -> (Arc<Server>, Arc<Running>, Told) {
        let (server, running, told) = (Server::new(), Arc::<Running>::default(), Told::default());
        server.push(&[job(1)]).await;
        running.insert(1, server.reserve().await.remove(0));
        let observer: Arc<dyn Observer> = Arc::new(told.clone());
        let renewals = Renewer {
            queue: Arc::clone(&server) as _,
            running: Arc::clone(&running),
            observers: std::iter::once(observer).collect(),
            clock: Clock::Fixed(NOW),
        };
        let renewals = Renewals::new(renewals, None);
        tokio::spawn(Arc::new(renewals).keep_renewing());
        (server, running, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_job_costs_no_renewal_and_a_long_one_is_renewed_every_ten_seconds() {
        let began = Instant::now();
        let (server, running, told) = renewing().await;
        tokio::time::sleep_until(began + S(65)).await;
        let seconds = |server: &Server| -> Vec<u64> {
            let calls = server.calls("renew");
            calls
                .iter()
                .map(|call| (call.at - began).as_secs())
                .collect()
        };
        assert_eq!(seconds(&server), [20, 30, 40, 50, 60]);
        running.remove(1);
        tokio::time::sleep(S(300)).await;
        assert_eq!(seconds(&server).len(), 5);
        assert!(told.take().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_is_lost_while_its_job_runs_is_told_once() {
        let (server, _running, told) = renewing().await;
        tokio::time::sleep(S(25)).await;
        server.jobs.clear(&"default".into()).await.unwrap();
        tokio::time::sleep(S(10)).await;
        assert!(told.take().is_empty(), "the job may be settled just now");
        tokio::time::sleep(S(300)).await;
        assert_eq!(told.take(), ["ReservationLost"]);
    }

    #[tokio::test(start_paused = true)]
    async fn reservations_that_could_not_be_renewed_are_overdue_before_they_end() {
        for fault in [Fault::Refused, Fault::ReplyLost, Fault::Hangs] {
            let began = Instant::now();
            let (server, running, told) = renewing().await;
            server.next("renew", [Some(fault); 9]);
            tokio::time::sleep_until(began + S(59)).await;
            assert!(running.overdue(RETRY_AFTER).is_empty(), "{fault:?}");
            tokio::time::sleep_until(began + S(61)).await;
            assert_eq!(running.overdue(RETRY_AFTER).len(), 1, "{fault:?}");
            assert!(told.take().is_empty(), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_in_between_makes_a_miss_no_loss() {
        let (_server, running, _told) = renewing().await;
        let jobs = running.older_than(Duration::ZERO);
        let misses = [true, false, true, false, true, true, true];
        let mut lost = 0;
        let mut found = Vec::new();
        for misses in misses {
            let held = if misses { Held::Lost } else { Held::Until(NOW) };
            tokio::time::advance(BETWEEN_MISSES).await;
            running.note(&jobs[&QueueName::from("default")], &[held], Instant::now());
            lost += running.newly_lost().len();
            found.push(lost);
        }
        assert_eq!(found, [0, 0, 0, 0, 0, 1, 1]);
    }
}
