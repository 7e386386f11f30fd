//! Stops a worker: running jobs end or are cut, all jobs are settled, and the outbox is emptied last.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Report;
use super::background::Background;
use super::event::Event;
use super::limits::LIMITS_EVERY;
use super::outbox_tasks::DrainBudget;
use super::run::{Run, Steering};
use super::stop::{Orders, SERVER_AWAY, StopReason};
use crate::queue::Ability;
use crate::time::sleep_until;

/// How far a stop has come.
#[derive(Debug, Default)]
struct Stopping {
    /// When an order to quit was given; a process manager may then send SIGKILL soon.
    asked_at: Option<Instant>,
    /// When running jobs are cut.
    deadline: Option<Instant>,
    /// How long the worker waits for a lost server once nothing else is left to wait for.
    server_until: Option<Instant>,
}

impl Stopping {
    /// Notes orders; the deadline runs from the first order to quit.
    fn note(&mut self, orders: Orders, grace: Option<Duration>, now: Instant) {
        if orders.quit {
            self.asked_at.get_or_insert(now);
        }
        if self.deadline.is_none() {
            self.deadline = self.deadline_of(grace);
        }
    }

    /// When the grace period ends, if an order to quit was given.
    fn deadline_of(&self, grace: Option<Duration>) -> Option<Instant> {
        self.asked_at.zip(grace).map(|(at, grace)| at + grace)
    }

    /// Whether running jobs have to be cut now.
    fn cuts(&self, orders: Orders, now: Instant) -> bool {
        orders.hurry || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Notes whether the worker waits only for the server; true if it has waited long enough.
    fn note_wait_for_server(&mut self, only_server: bool, now: Instant) -> bool {
        let waits = self.asked_at.is_some() && only_server;
        self.server_until = waits.then(|| self.server_until.unwrap_or(now + SERVER_AWAY));
        self.server_until.is_some_and(|until| until <= now)
    }
}

impl Run {
    /// Lets running jobs finish, cuts them at the deadline, and waits until all are settled.
    pub(super) async fn stop(mut self, reason: StopReason) -> Report {
        self.heartbeat.excuse();
        self.close_pool();
        let mut stopping = Stopping {
            asked_at: self.steering.quit_at,
            deadline: None,
            // A server that did not answer the last pop in time gets no more time.
            server_until: self.steering.gave_up_pop,
        };
        self.finish_jobs(&mut stopping).await;
        let stats = &self.shared.triage.stats;
        self.announcer.announce_stats(&self.shared.observers, stats);
        if let Some(pool) = &self.shared.pool {
            pool.stop().await;
        }
        let (settlements, now) = (&self.shared.settlements, self.options.clock.now());
        settlements.settle_stuck(&self.shared.leases, now).await;
        // Dropping the last sender ends the settling task once it has done everything.
        let Self {
            shared,
            steering: Steering { orders, .. },
            options,
            slots,
            mut background,
            ..
        } = self;
        let observers = shared.observers.clone();
        let router = Arc::clone(&shared.triage.app.router);
        drop(shared);
        let unsettled = stopping.settle(&mut background, orders.clone()).await;
        let budget = DrainBudget {
            orders,
            deadline: stopping.deadline_of(options.grace),
            grace: options.grace,
        };
        let recorded = async {
            if let Some(recording) = background.recording {
                recording.finish(budget.clone()).await;
            }
        };
        let followed = background.following.finish(budget.clone());
        tokio::join!(recorded, followed, router.stop());
        // `--once` stops without this event, as in Laravel.
        if !options.stop.once {
            observers.emit(&Event::WorkerStopping {
                reason,
                jobs_processed: slots.begun(),
                options: &options,
            });
        }
        background.helpers.shutdown().await;
        Report {
            reason,
            jobs_processed: slots.begun(),
            released: slots.released(),
            unsettled: unsettled as u64,
        }
    }

    /// Starts no more processes, unless a job that cannot be put back as it was may need one in place of one that ends.
    fn close_pool(&self) {
        let puts_back = self.queue.abilities().has(Ability::PutsBack);
        if let Some(pool) = self.shared.pool.as_ref().filter(|_| puts_back) {
            pool.close();
        }
    }

    /// Waits until no job runs.
    async fn finish_jobs(&mut self, stopping: &mut Stopping) {
        while !self.slots.is_empty() {
            let now = Instant::now();
            let orders = *self.steering.orders.borrow_and_update();
            stopping.note(orders, self.options.grace, now);
            let (cut, give_up) = (&self.shared.stops.cut, &self.background.give_up);
            if stopping.cuts(orders, now) {
                cut.cancel();
                give_up.cancel();
            }
            let only_server = self.shared.settlements.waiting.count() == self.slots.len();
            if stopping.note_wait_for_server(only_server, now) {
                give_up.cancel();
            }
            let until = stopping.deadline.filter(|_| !cut.is_cancelled());
            let look_again = stopping.asked_at.map(|_| now + LIMITS_EVERY);
            let until = until.into_iter().chain(look_again).min();
            tokio::select! {
                end = self.slots.next_end() => self.ended(end),
                _ = self.steering.orders.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl Stopping {
    /// Waits until all jobs are settled; returns how many are not.
    async fn settle(
        &mut self,
        background: &mut Background,
        mut orders: watch::Receiver<Orders>,
    ) -> usize {
        let give_up = &background.give_up;
        let unsettled = tokio::select! {
            biased;
            settled = &mut background.settling => settled,
            never = self.watch_settling(&mut orders, give_up) => match never {},
        };
        unsettled.unwrap_or_else(|error| {
            tracing::error!(%error, "the settling task ended abnormally");
            1
        })
    }

    /// Gives up on the server after the wait for it, or at once when told to hurry.
    async fn watch_settling(
        &mut self,
        orders: &mut watch::Receiver<Orders>,
        give_up: &tokio_util::sync::CancellationToken,
    ) -> std::convert::Infallible {
        loop {
            let now = Instant::now();
            let Orders { quit, hurry, .. } = *orders.borrow_and_update();
            if quit {
                self.asked_at.get_or_insert(now);
            }
            let is_over = self.note_wait_for_server(true, now);
            if hurry || is_over || self.deadline.is_some() {
                give_up.cancel();
            }
            let until = self.server_until.filter(|_| !give_up.is_cancelled());
            tokio::select! {
                Ok(()) = orders.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::time::UnixSeconds;
    use crate::worker::stop::Control;
    use crate::worker::test_support::{Fault, NOW, S, Scene, Stuck, does, job, slow};

    fn orders(quit: bool, hurry: bool) -> Orders {
        Orders {
            quit,
            hurry,
            ..Orders::default()
        }
    }

    #[test]
    fn the_deadline_runs_from_the_first_order_to_quit() {
        let now = Instant::now();
        let mut stopping = Stopping::default();
        // A stop by the worker's own limit lets jobs finish.
        stopping.note(orders(false, false), Some(S(8)), now);
        assert!(!stopping.cuts(orders(false, false), now + S(999)));
        stopping.note(orders(true, false), Some(S(8)), now);
        stopping.note(orders(true, false), Some(S(8)), now + S(5));
        assert!(!stopping.cuts(orders(true, false), now + S(7)));
        assert!(stopping.cuts(orders(true, false), now + S(8)));
        assert!(stopping.cuts(orders(true, true), now));
        // Without a grace period jobs finish, as in Laravel.
        let mut stopping = Stopping::default();
        stopping.note(orders(true, false), None, now);
        assert!(!stopping.cuts(orders(true, false), now + S(999)));
    }

    #[test]
    fn a_server_that_is_away_is_waited_for_once_nothing_else_is() {
        let now = Instant::now();
        let mut stopping = Stopping::default();
        assert!(!stopping.note_wait_for_server(true, now));
        assert!(!stopping.note_wait_for_server(true, now + S(99)));
        stopping.asked_at = Some(now);
        assert!(!stopping.note_wait_for_server(true, now));
        assert!(!stopping.note_wait_for_server(true, now + S(4)));
        // A job ran in between.
        assert!(!stopping.note_wait_for_server(false, now + S(5)));
        assert!(!stopping.note_wait_for_server(true, now + S(6)));
        assert!(!stopping.note_wait_for_server(true, now + S(10)));
        assert!(stopping.note_wait_for_server(true, now + S(11)));
    }

    /// Runs one job that takes a minute, gives an order ten seconds later, and returns the report, the events and how
    /// long the stop took.
    async fn stopped(
        mut scene: Scene,
        grace: Option<Duration>,
        order: impl FnOnce(&Control),
    ) -> (Report, Vec<String>, Duration) {
        scene.options.grace = grace;
        scene.server.push(&[job(1)]).await;
        let control = scene.control.clone();
        let ordering = async {
            tokio::time::sleep(S(10)).await;
            order(&control);
            Instant::now()
        };
        let ((report, told), ordered) = tokio::join!(scene.run(), ordering);
        (report, told, ordered.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_job_has_its_time_until_the_deadline_and_comes_back_after_it() {
        let quit: fn(&Control) = Control::quit;
        let hurry: fn(&Control) = Control::hurry;
        #[rustfmt::skip]
        let rows = [
            // grace, order => the stop takes, jobs released
            (None,        quit,  S(50), 0),
            (Some(S(60)), quit,  S(50), 0),
            (Some(S(8)),  quit,  S(8),  1),
            (None,        hurry, S(0),  1),
        ];
        for (grace, order, takes, released) in rows {
            let scene = Scene::new(slow(S(60))).endless();
            let server = Arc::clone(&scene.server);
            let (report, told, took) = stopped(scene, grace, order).await;
            let row = format!("{grace:?} {takes:?}");
            assert_eq!((took, report.released), (takes, released), "{row}");
            assert_eq!((report.jobs_processed, report.unsettled), (1, 0), "{row}");
            let end = if released == 0 {
                "JobProcessed uuid-1"
            } else {
                "JobReleasedAfterException uuid-1"
            };
            let begun = "JobProcessing uuid-1 1";
            assert_eq!(told, [begun, end, "WorkerStopping interrupted"], "{row}");
            // A job that was cut waits for its next attempt, with this one counted.
            let left: Vec<_> = server.jobs.all();
            let attempts = left.iter().map(|(.., payload)| {
                let payload = crate::payload::Payload::parse(payload).unwrap();
                payload.attempts.unwrap()
            });
            assert_eq!(
                attempts.sum::<u32>(),
                u32::try_from(released).unwrap(),
                "{row}"
            );
            assert_eq!(server.sizes().await.reserved, 0, "{row}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_blocking_handler_runs_on_comes_back_after_the_process_has_ended() {
        let mut scene = Scene::new(Stuck).endless();
        scene.options.defaults.tries = 3;
        let server = Arc::clone(&scene.server);
        scene.options.defaults.timeout = S(600);
        let (report, told, took) = stopped(scene, Some(S(60)), Control::quit).await;
        assert_eq!((report.reason.exit_code(), took), (0, S(61)));
        let counts = (report.jobs_processed, report.released, report.unsettled);
        assert_eq!(counts, (1, 1, 0));
        let released = "JobReleasedAfterException uuid-1";
        assert_eq!(told[1..], [released, "WorkerStopping interrupted"]);
        let due: Vec<_> = server.jobs.all().iter().map(|(_, due, _)| *due).collect();
        assert_eq!(due, [Some(UnixSeconds(NOW.0 + 40))]);
        // It was reserved to the end.
        assert!(server.calls("renew").len() >= 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_order_to_quit_changes_nothing_and_one_to_hurry_cuts() {
        let scene = Scene::new(slow(S(60))).endless();
        let control = scene.control.clone();
        let again = async {
            tokio::time::sleep(S(15)).await;
            control.quit();
            tokio::time::sleep(S(5)).await;
            control.hurry();
        };
        let ((report, _, took), ()) =
            tokio::join!(stopped(scene, Some(S(30)), Control::quit), again);
        assert_eq!((took, report.released), (S(10), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_the_server_does_not_take_holds_up_a_stop_for_eight_seconds() {
        for fault in [Fault::Refused, Fault::Hangs] {
            let scene = Scene::new(slow(S(5))).endless();
            let server = Arc::clone(&scene.server);
            server.refuses(move |_| Some(fault));
            let (report, told, took) = stopped(scene, None, Control::quit).await;
            assert_eq!((report.unsettled, report.released), (1, 0), "{fault:?}");
            assert_eq!(took.as_secs(), 8, "{fault:?}: {took:?}");
            // What is not true of the queue is not told.
            let expected = ["JobProcessing uuid-1 1", "WorkerStopping interrupted"];
            assert_eq!(told, expected, "{fault:?}");
            assert_eq!(server.sizes().await.reserved, 1, "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pop_that_is_not_answered_makes_no_stop_longer() {
        #[rustfmt::skip]
        let rows = [
            // the job takes, grace => the stop takes, jobs released, jobs not settled
            (S(60), Some(S(8)), 8, 1, 0),
            (S(60), Some(S(2)), 2, 1, 0),
            // Both calls have waited for the server.
            (S(5),  None,       8, 0, 1),
        ];
        for (takes, grace, expected, released, unsettled) in rows {
            let mut scene = Scene::new(slow(takes)).endless();
            scene.options.concurrency = NonZeroUsize::new(2).unwrap();
            scene.server.next("pop", [None, Some(Fault::Hangs)]);
            if unsettled > 0 {
                scene.server.refuses(|_| Some(Fault::Hangs));
            }
            let (report, _, took) = stopped(scene, grace, Control::quit).await;
            let row = format!("{takes:?} {grace:?}");
            assert_eq!(took.as_secs(), expected, "{row}");
            assert_eq!(
                (report.released, report.unsettled),
                (released, unsettled),
                "{row}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_during_the_stop_gets_the_end_of_the_job() {
        let scene = Scene::new(slow(S(5))).endless();
        let server = Arc::clone(&scene.server);
        server.refuses(|_| Some(Fault::Refused));
        let back = async {
            tokio::time::sleep(S(16)).await;
            server.refuses(|_| None);
        };
        let ((report, told, took), ()) = tokio::join!(stopped(scene, None, Control::quit), back);
        assert_eq!(report.unsettled, 0);
        assert!(took < S(8), "{took:?}");
        assert_eq!(told[1], "JobProcessed uuid-1");
        assert_eq!(server.jobs.all(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_job_without_a_store_waits_in_the_spool_for_the_next_worker() {
        let scene = Scene::new(does(|_| Err("disk full".into()))).endless();
        let server = Arc::clone(&scene.server);
        let (report, told, _) = stopped(scene, None, Control::quit).await;
        assert_eq!(report.unsettled, 0);
        assert_eq!(
            told[1..3],
            ["JobFailed uuid-1", "JobExceptionOccurred disk full"]
        );
        assert_eq!(server.failed().len(), 1);
    }
}
