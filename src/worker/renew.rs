//! Keeps reservations alive while their jobs run.
//!
//! Laravel never extends a reservation: while a job runs longer than `retry_after`, a second worker runs it as
//! well. artisand renews the reservation while the handler runs within its own timeout. If this process dies, the
//! reservation ends as in Laravel.

use std::collections::{BTreeSet, HashMap};
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
use crate::worker::running::{OfQueue, Running};

/// How long a pop waits for renewals that are overdue.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a renewal needs.
pub(super) struct Renewer {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) running: Arc<Running>,
    pub(super) observers: Observers,
    pub(super) clock: Clock,
}

impl Renewer {
    pub(super) fn new(
        queue: &Arc<dyn Queue>,
        running: &Arc<Running>,
        observers: &Observers,
        clock: Clock,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            running: Arc::clone(running),
            observers: observers.clone(),
            clock,
        }
    }

    /// Renews the reservations of these jobs of a queue, and tells which are gone.
    async fn renew(&self, of_queue: &OfQueue) -> Result<(), Error> {
        let (moment, now) = (Instant::now(), self.clock.now());
        let held = self.queue.renew(&of_queue.jobs, now).await?;
        self.running.note(of_queue, &held, moment);
        let renewed = held.iter().filter(|held| matches!(held, Held::Until(_)));
        if let Some(job) = of_queue.jobs.first() {
            self.observers.emit(&Event::ReservationsRenewed {
                queue: &job.queue,
                count: renewed.count(),
            });
        }
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
    // A panic leaves no entry half changed, so the map stays usable.
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

/// Renews the reservations of running jobs, with a call for each queue, one at a time. No call waits for that of
/// another queue: a server that hangs costs only its own queues their reservations.
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
        while let Some(ended) = calls.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a renewal of reservations ended abnormally");
            }
        }
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
                // A pop that waits for this call gets the error; if no pop waits, it is logged here.
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
        let Renewer {
            queue,
            running,
            clock,
            ..
        } = &*self.renewer;
        let Some(retry_after) = queue.abilities().retry_after else {
            return Ok(queues);
        };
        let overdue = running.overdue(retry_after, clock.now());
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
                End::OfAnother => match running.overdue(retry_after, clock.now()).remove(&name) {
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
    use crate::worker::event::Observer;
    use crate::worker::running::BETWEEN_MISSES;
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
            now: NOW,
            woken: &[],
            selection: None,
            thorough: false,
        };
        let running = Arc::<Running>::default();
        for (number, job) in (0..).zip(queue.pop(request).await.unwrap().jobs) {
            running.insert(number, Arc::new(job), Duration::ZERO);
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
        let overdue = || -> Vec<_> { running.overdue(RETRY_AFTER, NOW).into_keys().collect() };
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
        let overdue = || -> Vec<_> { running.overdue(RETRY_AFTER, NOW).into_keys().collect() };
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
        assert!(running.overdue(RETRY_AFTER, NOW).is_empty());
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

    /// Notes which reservations were renewed.
    #[derive(Default)]
    struct Renewed(Mutex<Vec<(QueueName, usize)>>);

    impl Observer for Renewed {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::ReservationsRenewed { queue, count } = *event {
                self.0.lock().unwrap().push((queue.clone(), count));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_are_told_for_what_is_still_reserved() {
        let (server, running, renewals) = scene().await;
        let told = Arc::<Renewed>::default();
        let observer: Arc<dyn Observer> = Arc::clone(&told) as _;
        let mut renewer = Arc::into_inner(renewals.renewer).unwrap();
        renewer.observers = std::iter::once(observer).collect();
        let [a, b] = ["a", "b"].map(QueueName::from);
        server.jobs.lose_reservations(&a);
        let jobs = running.older_than(Duration::ZERO);
        for queue in [&a, &b] {
            renewer.renew(&jobs[queue]).await.unwrap();
        }
        assert_eq!(*told.0.lock().unwrap(), [(a, 0), (b, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn two_misses_of_one_moment_are_one() {
        let (server, running, renewals) = scene().await;
        server.jobs.lose_reservations(&QueueName::from("a"));
        let jobs = running.older_than(Duration::ZERO);
        let of_a = &jobs[&QueueName::from("a")];
        let missed = async || {
            renewals.renewer.renew(of_a).await.unwrap();
            running.misses(0)
        };
        assert_eq!((missed().await, missed().await), (1, 1));
        tokio::time::advance(BETWEEN_MISSES).await;
        assert_eq!(missed().await, 2);
    }

    #[tokio::test]
    async fn a_handler_that_blocks_its_thread_delays_no_renewal() {
        let (server, running, of_this_thread) = scene().await;
        let renewer = Arc::into_inner(of_this_thread.renewer).unwrap();
        let overseer = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let renewals = Renewals::new(renewer, Some(overseer.handle()));
        for (name, jobs) in running.older_than(Duration::ZERO) {
            drop(renewals.call(name, jobs));
        }
        // This thread runs no task meanwhile.
        let deadline = std::time::Instant::now() + S(30);
        while server.sizes_of("renew").len() < 2 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        overseer.shutdown_background();
    }

    /// A task that renews the reservation of one job, number 1, which begins now.
    async fn renewing() -> (Arc<Server>, Arc<Running>, Told) {
        let (server, running, told) = (Server::new(), Arc::<Running>::default(), Told::default());
        server.push(&[job(1)]).await;
        running.insert(1, server.reserve().await.remove(0), Duration::ZERO);
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
        server.jobs.lose_reservations(&"default".into());
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
            assert!(running.overdue(RETRY_AFTER, NOW).is_empty(), "{fault:?}");
            tokio::time::sleep_until(began + S(61)).await;
            assert_eq!(running.overdue(RETRY_AFTER, NOW).len(), 1, "{fault:?}");
            assert!(told.take().is_empty(), "{fault:?}");
        }
    }
}
