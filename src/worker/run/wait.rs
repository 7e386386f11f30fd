//! Waits for the next thing that concerns the loop.

use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::Instant;

use crate::time::UnixSeconds;
use crate::worker::limits::LIMITS_EVERY;
use crate::worker::run::Run;
use crate::worker::slots::TaskOutput;
use crate::worker::wakeups::Woken;

/// Something that happened while the loop waited.
enum Wake {
    Ended(Result<TaskOutput, JoinError>),
    Woken(Woken),
    /// An order, or a change in the app's signals.
    Told,
    /// A released job comes back at this moment.
    NextRelease(UnixSeconds),
    /// Follow-ups of ended jobs are done.
    FollowedUp,
    Time,
}

impl Run {
    /// Waits for the next thing that concerns the loop.
    pub(super) async fn wait(&mut self, may_pop: bool) {
        let now = Instant::now();
        let local_slots = self.local_slots().filter(|_| may_pop);
        let can_pop_for_php = may_pop && !self.pops_for_both() && self.php_slots().is_some();
        let local = local_slots.map(|_| self.intakes.local.next_pop(now));
        let php = can_pop_for_php.then(|| self.intakes.php.next_pop(now));
        let next_pop = local.into_iter().chain(php).min();
        let is_busy = !self.slots.is_empty();
        let until = next_pop.unwrap_or(now + LIMITS_EVERY);
        let until = (self
            .limits
            .next_look(&self.options, is_busy, now)
            .into_iter())
        .chain(self.wakeups.rest_end(now))
        .chain(self.retry.deadline(now))
        .fold(until, Instant::min);
        let is_idle = (local.is_none() || self.intakes.local.is_waiting())
            && (php.is_none() || self.intakes.php.is_waiting());
        // No BLPOP with `--stop-when-empty`: the end of this process would swallow a notification meant for another.
        if next_pop.is_some() && is_idle && !self.is_bounded() {
            self.wakeups.arm(now);
        }
        let missing = local_slots.and_then(|slots| self.intakes.local.missing(slots));
        if let Some(missing) = missing {
            self.shared.ends.expect(missing);
        }
        match self.next_wake(until, missing.is_some()).await {
            Wake::Ended(end) => self.ended(end),
            Wake::Woken(Woken::Pushed) => self.intakes.look_again(),
            Wake::NextRelease(at) => {
                let wait = self.options.clock.until(at);
                // A moment past the second, as for delayed jobs that a pop has seen.
                let wait = if wait.is_zero() {
                    wait
                } else {
                    wait + Duration::from_millis(1)
                };
                let moment = Instant::now() + wait;
                self.intakes.look_by(moment);
            }
            Wake::FollowedUp => {
                self.intakes.expect_jobs();
                self.intakes.look_again();
            }
            Wake::Woken(Woken::Php) | Wake::Told | Wake::Time => {}
        }
    }

    /// The next thing that happens, or `Wake::Time` at `until`.
    async fn next_wake(&mut self, until: Instant, lingers: bool) -> Wake {
        let follows = self.ends_when_empty();
        let is_held_up = self.slots.has_waiting() || self.is_held_up();
        let background = &mut self.background;
        tokio::select! {
            biased;
            () = self.shared.settlements.settle_counts.changed(), if is_held_up => Wake::Time,
            // While a pop lingers, ended jobs are counted instead of waking the loop one by one.
            () = self.shared.ends.reached(), if lingers => Wake::Time,
            end = self.slots.next_end(), if !lingers => Wake::Ended(end),
            woken = self.wakeups.next() => Wake::Woken(woken),
            _ = self.steering.orders.changed() => Wake::Told,
            () = self.announcer.changed() => Wake::Told,
            at = background.returns.next() => Wake::NextRelease(at),
            Ok(()) = background.followed_up.changed(), if follows => Wake::FollowedUp,
            () = tokio::time::sleep_until(until) => Wake::Time,
        }
    }
}
