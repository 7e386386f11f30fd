//! Pops jobs for handlers in this process or for PHP, starts them, and notes what the pop says about the queues.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::is_away;
use crate::queue::{Popped, QueueName, ReservedJob};
use crate::shown::{rounded, with_causes};
use crate::worker::attempt::Executor;
use crate::worker::event::{Event, Looping};
use crate::worker::intake::{BEHIND_OTHERS, PopCounts};
use crate::worker::limits::LIMITS_EVERY;
use crate::worker::run::Run;
use crate::worker::select::Selector;
use crate::worker::triaged::{TriageResult, Triaged};

/// The result of a pop.
struct Fetched<'a> {
    popped: Popped,
    selector: Option<Selector<'a>>,
}

impl Fetched<'_> {
    /// The jobs, each with the result of the look at it during selection.
    fn into_jobs(self) -> impl Iterator<Item = (ReservedJob, Option<TriageResult>)> {
        let mut selector = self.selector;
        self.popped.jobs.into_iter().map(move |job| {
            let candidate = selector
                .as_mut()
                .and_then(|selector| selector.candidate(&job));
            (job, candidate)
        })
    }
}

impl Run {
    /// Pops and starts jobs for handlers in this process.
    pub(super) async fn pop_for_handlers(&mut self, slots: NonZeroUsize) {
        // Announced jobs that no handler here takes are for PHP, which pops next.
        let is_last = self.shared.pool.is_none() || self.php_slots().is_none();
        let woken = if is_last {
            self.wakeups.take()
        } else {
            Vec::new()
        };
        let shared = Arc::clone(&self.shared);
        if self.pops_for_both() {
            if let Some(fetched) = self.pop(slots, None, &woken, Executor::Local).await {
                self.start_each(fetched);
            }
            return;
        }
        let selects = shared.triage.leaves_unmapped() || shared.triage.has_limited_mappings();
        let selector =
            selects.then(|| Selector::for_handlers(&shared.triage, &self.slots.per_mapping()));
        let Some(fetched) = self.pop(slots, selector, &woken, Executor::Local).await else {
            return;
        };
        if selects && fetched.popped.jobs.is_empty() {
            let now = Instant::now();
            if !woken.is_empty() {
                // The announced job is for another worker: let that worker see the next announcements first.
                self.wakeups.rest_until(now + LIMITS_EVERY);
            }
            if self.shared.pool.is_some() && self.wakeups.rests(now) {
                // The announced job may be for this worker's own PHP processes, which are all busy. Jobs for
                // handlers are not announced meanwhile.
                self.intakes.local.look_by(now + BEHIND_OTHERS);
            }
        }
        self.start(fetched, Executor::Local);
    }

    /// Pops jobs for the waiting PHP processes, and gives each of them one.
    pub(super) async fn pop_for_php(&mut self, slots: NonZeroUsize) {
        let woken = self.wakeups.take();
        let shared = Arc::clone(&self.shared);
        let selector = (!shared.has_only_php()).then(|| Selector::for_php(&shared.triage));
        let Some(fetched) = self.pop(slots, selector, &woken, Executor::Php).await else {
            return;
        };
        let now = Instant::now();
        if fetched.popped.jobs.is_empty() {
            if !woken.is_empty() {
                // The announced job is for slots that are all taken: do not take its announcements over and over.
                self.wakeups.rest_until(now + LIMITS_EVERY);
            }
            if self.wakeups.rests(now) {
                self.intakes.php.look_by(now + BEHIND_OTHERS);
            }
        } else {
            // Jobs for handlers may stand behind those that PHP took.
            self.intakes.local.look_by(now + BEHIND_OTHERS);
        }
        self.start(fetched, Executor::Php);
    }

    fn start(&mut self, fetched: Fetched<'_>, executor: Executor) {
        // How many jobs of a mapping run is known once they have begun.
        let may_wait = executor == Executor::Local && !self.shared.triage.has_limited_mappings();
        if may_wait {
            return self.slots.take(fetched.into_jobs());
        }
        for (job, candidate) in fetched.into_jobs() {
            self.slots.start(&self.shared, job, candidate, executor);
        }
    }

    /// Starts jobs for handlers here and for PHP.
    fn start_each(&mut self, fetched: Fetched<'_>) {
        for (job, _) in fetched.into_jobs() {
            let candidate = self.shared.triage.triage(&job.payload, &job.queue);
            let executor = match candidate.as_ref().map(|candidate| &candidate.triaged) {
                Ok(Triaged::Unmapped(_) | Triaged::Bypass(_)) => Executor::Php,
                _ => Executor::Local,
            };
            self.slots
                .start(&self.shared, job, Some(candidate), executor);
        }
    }

    /// Pops up to `slots` jobs, and notes what the result says about the queues; `None` if there was no pop.
    async fn pop<'a>(
        &mut self,
        slots: NonZeroUsize,
        selector: Option<Selector<'a>>,
        woken: &[QueueName],
        executor: Executor,
    ) -> Option<Fetched<'a>> {
        // Read before the pop: a job settled later may be back in the queue.
        let was_quiet = self.slots.is_empty() && self.shared.leases.running.is_empty();
        self.intakes.of(executor).begin_pop();
        // What waits have taken before a stop is run in any case.
        if !self.wakeups.have_ended() && self.ask_listeners() {
            self.rest_after_veto(executor, was_quiet);
            return None;
        }
        let mut selector = selector;
        if let Some(selector) = &mut selector {
            selector.heads = std::mem::take(&mut self.intakes.of(executor).heads);
        }
        let asked = self.ask_queue(slots, selector.as_mut(), woken, executor);
        let popped = asked.await?;
        if let Some(selector) = &mut selector {
            self.intakes.of(executor).heads = std::mem::take(&mut selector.heads);
        }
        let now = Instant::now();
        let popped = match popped {
            Ok(popped) => popped,
            Err(error) => {
                self.rest_after_error(&error, now);
                return None;
            }
        };
        self.retry.succeed();
        let found = PopCounts {
            taken: popped.jobs.len(),
            has_moved: popped.migrated > 0 || !popped.quarantined.is_empty() || popped.is_cut,
            was_quiet,
            wait: if self.is_bounded() && !was_quiet && self.slots.is_empty() {
                if self.intakes.is_behind(executor) {
                    BEHIND_OTHERS
                } else {
                    // The last jobs are being settled: look again after that.
                    Duration::from_millis(2)
                }
            } else {
                self.idle_wait(&popped, selector.as_ref())
            },
        };
        self.intakes.of(executor).end_pop(slots, found, now);
        self.tell_quarantined(&popped);
        if found.taken > 0 {
            self.limits.note_jobs(now);
            // These jobs may push others for either executor.
            self.intakes.expect_jobs();
        }
        Some(Fetched { popped, selector })
    }

    fn tell_quarantined(&self, popped: &Popped) {
        for (queue, count) in &popped.quarantined {
            tracing::error!(%queue, count, "payloads cannot be decoded and went to quarantine");
            self.shared.emit(Event::JobsQuarantined {
                queue,
                count: *count,
            });
        }
    }

    /// Delays the next look at the queues after a pop that has failed.
    fn rest_after_error(&mut self, error: &crate::queue::Error, now: Instant) {
        let wait = self.retry.fail(now);
        // The connection logs once that the server is away.
        if !is_away(error) {
            tracing::error!(error = with_causes(error), retry_in = ?rounded(wait), "could not pop jobs");
        }
        self.intakes.fail_pop();
    }

    /// Delays the next look at the queues after a veto.
    fn rest_after_veto(&mut self, executor: Executor, is_quiet: bool) {
        let rest = if self.options.sleep.is_zero() {
            LIMITS_EVERY
        } else {
            self.options.sleep
        };
        let until = Instant::now() + rest;
        self.intakes.of(executor).veto(until, is_quiet);
        // Announcements do not matter until then.
        self.wakeups.rest_until(until);
    }

    /// Asks observers whether the worker may look at the queues; true if one of them vetoes.
    fn ask_listeners(&self) -> bool {
        if self.options.stop.once {
            return false;
        }
        let looping = Looping::new(&self.options);
        self.shared.emit(Event::Looping(&looping));
        looping.is_vetoed()
    }

    /// How long to wait without jobs: until the next one is due, at most `--sleep`.
    fn idle_wait(&self, popped: &Popped, selector: Option<&Selector<'_>>) -> Duration {
        if selector.is_some_and(|selector| selector.limited) {
            // Waiting jobs have a mapping without a free slot: the end of a job of that mapping makes the queue
            // due.
            return self.options.sleep;
        }
        let due = popped.next_due.map(|due| self.options.clock.until(due));
        // A moment past the second, so that the clock has surely reached it. At least 20 ms, so that a due job
        // that is not taken causes no busy loop.
        let due = due.map(|due| due.max(Duration::from_millis(20)) + Duration::from_millis(1));
        due.map_or(self.options.sleep, |due| due.min(self.options.sleep))
    }
}
