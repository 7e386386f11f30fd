//! Asks the queue for jobs, once what must come before a pop is done.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::queue::{Popped, QueueName};
use crate::worker::attempt::Executor;
use crate::worker::event::Event;
use crate::worker::run::Run;
use crate::worker::select;
use crate::worker::select::Selector;
use crate::worker::stop::{Orders, SERVER_AWAY, told_to_hurry, told_to_quit};

/// How long the server has in any case to answer a pop once the worker is told to quit.
const AT_LEAST: Duration = Duration::from_secs(1);

impl Run {
    /// Asks the queue for jobs; `None` if it does not answer and the worker is told to quit.
    pub(super) async fn ask_queue(
        &mut self,
        slots: NonZeroUsize,
        selector: Option<&mut Selector<'_>>,
        woken: &[QueueName],
        executor: Executor,
    ) -> Option<Result<Popped, crate::queue::Error>> {
        let queues = self.open_queues();
        self.shared.emit(Event::JobPopping {
            connection: &self.options.connection,
            queues: &queues,
        });
        let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(&self.shared));
        let clock = self.options.clock;
        let is_sequential = match executor {
            Executor::Local => self.is_sequential(),
            Executor::Php => shared.has_one_member(),
        };
        // With jobs that run, there is a next look.
        let thorough =
            self.is_bounded() && self.slots.is_empty() && shared.leases.running.is_empty();
        let popping = async {
            if is_sequential {
                shared.settlements.settle_counts.sent().await;
            }
            let open = shared.leases.renewals.make_ready(queues).await?;
            select::pop(
                &*queue,
                &open,
                clock.now(),
                slots,
                woken,
                selector,
                thorough,
            )
            .await
        };
        let mut orders = self.steering.orders.clone();
        self.heartbeat.excuse();
        let (grace, mut quit_at) = (self.options.grace, self.steering.quit_at);
        let asked = unless_told_to_quit(popping, &mut orders, grace, &mut quit_at);
        let popped = self.start_jobs_during(asked).await;
        self.steering.quit_at = quit_at;
        if popped.is_none() {
            self.steering.gave_up_pop = Some(Instant::now());
            tracing::warn!(
                "the server does not answer: stopping without the reply of the last pop"
            );
        }
        popped
    }

    /// Waits for a pop, and starts the jobs that wait as soon as its request is on the way.
    async fn start_jobs_during<T>(&mut self, popping: impl Future<Output = T>) -> T {
        let mut popping = std::pin::pin!(popping);
        if self.slots.has_waiting() && self.may_start() {
            let popped = futures_util::poll!(popping.as_mut());
            if popped.is_pending() {
                // Lets the task of the connection send the request.
                tokio::task::yield_now().await;
            }
            self.slots.start_waiting(&self.shared);
            if let Poll::Ready(popped) = popped {
                return popped;
            }
        }
        popping.await
    }

    /// The queues that may be popped: those that are not paused, and while the worker stops all of them.
    pub(super) fn open_queues(&self) -> Vec<QueueName> {
        let paused = &self.announcer.announced().paused;
        let queues = self.options.queues.iter();
        queues
            .filter(|queue| self.wakeups.have_ended() || !paused.contains(queue))
            .cloned()
            .collect()
    }
}

/// Waits for a pop, and notes when the worker is told to quit; gives up only if it is, and the server does not answer.
/// That time is part of the grace period.
///
/// Jobs of a reply that never comes stay reserved until `retry_after`, and their attempt is spent, as if this process had
/// been killed. The worker therefore waits as long for the reply as for the ends of jobs.
async fn unless_told_to_quit<T>(
    pop: impl Future<Output = T>,
    orders: &mut watch::Receiver<Orders>,
    grace: Option<Duration>,
    quit_at: &mut Option<Instant>,
) -> Option<T> {
    let mut pop = std::pin::pin!(pop);
    let is_over = async {
        told_to_quit(orders).await;
        let now = Instant::now();
        let (quit_at, latest) = (*quit_at.get_or_insert(now), now + SERVER_AWAY);
        let until = grace.map_or(latest, |grace| latest.min(quit_at + grace));
        tokio::time::sleep(AT_LEAST).await;
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = told_to_hurry(orders) => {}
        }
    };
    tokio::select! {
        biased;
        popped = &mut pop => Some(popped),
        () = is_over => None,
    }
}
