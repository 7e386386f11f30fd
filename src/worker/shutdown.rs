//! Stops a worker: running jobs end or are cut, all jobs are settled, and the outbox is emptied last.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Report;
use super::background::Background;
use super::event::Event;
use super::limits::LIMITS_EVERY;
use super::outbox_tasks::Patience;
use super::run::Run;
use super::stop::{Orders, StopReason};
use crate::time::sleep_until;

/// How long a stopping worker without running jobs waits for a lost server; after that there is one last chance.
const SERVER_AWAY: Duration = Duration::from_secs(5);

/// How far a stop has come.
#[derive(Debug, Default)]
struct Stopping {
    /// Whether an order to quit was given; a supervisor may then send SIGKILL soon.
    is_asked: bool,
    /// When running jobs are cut.
    deadline: Option<Instant>,
    /// How long the worker waits for a lost server once nothing else is left to wait for.
    server_until: Option<Instant>,
}

impl Stopping {
    /// Notes orders; the deadline runs from the first order to quit.
    fn note(&mut self, orders: Orders, grace: Option<Duration>, now: Instant) {
        self.is_asked |= orders.quit;
        if self.is_asked && self.deadline.is_none() {
            self.deadline = grace.map(|grace| now + grace);
        }
    }

    /// Whether running jobs have to be cut now.
    fn cuts(&self, orders: Orders, now: Instant) -> bool {
        orders.hurry || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Notes whether the worker waits only for the server; true if it has waited long enough.
    fn gives_up_on_server(&mut self, only_server: bool, now: Instant) -> bool {
        self.server_until =
            (self.is_asked && only_server).then(|| self.server_until.unwrap_or(now + SERVER_AWAY));
        self.server_until.is_some_and(|until| until <= now)
    }
}

impl Run {
    /// Lets running jobs finish, cuts them at the deadline, and waits until all are settled.
    pub(super) async fn stop(mut self, reason: StopReason) -> Report {
        self.heartbeat.excuse();
        if let Some(pool) = &self.shared.pool {
            pool.close();
        }
        let mut stopping = Stopping {
            is_asked: reason == StopReason::Interrupted,
            ..Stopping::default()
        };
        self.finish_jobs(&mut stopping).await;
        let stats = &self.shared.triage.stats;
        self.announcer.announce_stats(&self.shared.observers, stats);
        if let Some(pool) = &self.shared.pool {
            pool.stop().await;
        }
        // Dropping the last sender ends the settling task once it has done everything.
        let Self {
            shared,
            orders,
            options,
            slots,
            mut background,
            ..
        } = self;
        let observers = shared.observers.clone();
        let router = Arc::clone(&shared.triage.app.router);
        drop(shared);
        let unsettled = stopping.settle(&mut background, orders.clone()).await;
        let patience = Patience {
            orders,
            deadline: stopping.deadline,
            grace: options.grace,
        };
        let recorded = async {
            if let Some(recording) = background.recording {
                recording.finish(patience.clone()).await;
            }
        };
        let followed = background.following.finish(patience.clone());
        tokio::join!(recorded, followed, router.stop());
        // `--once` stops without this event, as in Laravel.
        if !options.once {
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

    /// Waits until no job runs.
    async fn finish_jobs(&mut self, stopping: &mut Stopping) {
        while !self.slots.is_empty() {
            let now = Instant::now();
            let orders = *self.orders.borrow_and_update();
            stopping.note(orders, self.options.grace, now);
            let (cut, give_up) = (&self.shared.stops.cut, &self.background.give_up);
            if stopping.cuts(orders, now) {
                cut.cancel();
                give_up.cancel();
            }
            let only_server = self.shared.settlements.waiting.count() == self.slots.len();
            if stopping.gives_up_on_server(only_server, now) {
                give_up.cancel();
            }
            let until = stopping.deadline.filter(|_| !cut.is_cancelled());
            let look_again = stopping.is_asked.then(|| now + LIMITS_EVERY);
            let until = until.into_iter().chain(look_again).min();
            tokio::select! {
                end = self.slots.next_end() => self.ended(end),
                _ = self.orders.changed() => {}
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
            self.is_asked |= quit;
            let is_over = self.gives_up_on_server(true, now);
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
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

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
        assert!(!stopping.gives_up_on_server(true, now));
        assert!(!stopping.gives_up_on_server(true, now + S(99)));
        stopping.is_asked = true;
        assert!(!stopping.gives_up_on_server(true, now));
        assert!(!stopping.gives_up_on_server(true, now + S(4)));
        // A job ran in between.
        assert!(!stopping.gives_up_on_server(false, now + S(5)));
        assert!(!stopping.gives_up_on_server(true, now + S(6)));
        assert!(!stopping.gives_up_on_server(true, now + S(10)));
        assert!(stopping.gives_up_on_server(true, now + S(11)));
    }
}
