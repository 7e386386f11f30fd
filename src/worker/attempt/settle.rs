//! Holds, settles and fails the job of an attempt.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::handler::{FailureText, Handler, JobContext, JobInfo};
use crate::outbox::follow_up::random_token;
use crate::payload::{FailedJob, JobUuid};
use crate::queue::{self, Effect, Push, Settled, Settlement};
use crate::shown::{rounded, with_causes};
use crate::time::UnixSeconds;
use crate::worker::attempt::decide::{Decision, Rules, before_attempt, in_words_of, timed_out};
use crate::worker::attempt::ending::{Ending, RaisedByPhp};
use crate::worker::attempt::exception::php_text;
use crate::worker::attempt::log::log_failure;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::{Attempt, FinalAttempt, local};
use crate::worker::completion::Completion;
use crate::worker::settler::PendingSettlement;
use crate::worker::watchdog::Part;

/// How far ahead the clock may be of another worker that looks for ended reservations.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);
/// How long the queue may take to say whether a job is still reserved.
const CONFIRMING: Duration = Duration::from_secs(3);

impl Attempt {
    /// Renews a reservation that may have ended, or may before its first renewal; false if another worker may have the
    /// job.
    ///
    /// Less than half of the reservation is left if the server's reply took long, the job before it did, or the process
    /// was suspended. Only then the queue is asked.
    pub(super) async fn confirm_reservation(&self) -> bool {
        let (Some(lease), now) = (self.job.lease, self.shared.triage.app.clock.now()) else {
            return true;
        };
        // A running job is renewed after half of `retry_after` at the latest.
        let retry_after = self.shared.leases.queue.abilities().retry_after;
        let half = (retry_after.unwrap_or_default() / 2).max(CLOCKS_DIFFER);
        if now.plus(half) < lease {
            return true;
        }
        match self.renew_before_start().await {
            Some(queue::Held::Until(until)) => {
                // This is the only place that sets it.
                let _ = self.lease.set(until);
                true
            }
            Some(queue::Held::Lost) => false,
            // The server says nothing: the job begins if it is certainly reserved.
            None => self.shared.triage.app.clock.now().plus(CLOCKS_DIFFER) < lease,
        }
    }

    /// Renews the reservation of a job that has not begun; `None` if the queue does not answer in time.
    pub(super) async fn renew_before_start(&self) -> Option<queue::Held> {
        let asked = (self.shared.leases.renewals).confirm(Arc::clone(&self.job));
        tokio::select! {
            held = tokio::time::timeout(CONFIRMING, asked) => held.ok().flatten(),
            () = self.shared.stops.cut.cancelled() => None,
        }
    }

    /// When another worker may have the job unless it is renewed; `None` for never.
    pub(crate) fn lease(&self) -> Option<UnixSeconds> {
        self.lease.get().copied().or(self.job.lease)
    }

    /// When the reservation would have ended in Laravel, which never renews it.
    pub(crate) fn reservation_end(&self, now: UnixSeconds) -> UnixSeconds {
        self.lease().map_or(now, |lease| lease.max(now))
    }

    /// A failure that says nothing about the error gets the job's last error as its cause.
    async fn with_last_error(&self, info: &JobInfo, failure: FailureText) -> FailureText {
        let errors = &self.shared.triage.app.last_errors;
        match errors.behind(info, &failure).await {
            Some(error) => failure.caused_by(error),
            None => failure,
        }
    }

    /// Keeps the error of an attempt whose job is to be tried again.
    pub(super) async fn keep_error(&self, info: &JobInfo, outcome: &Outcome, decision: &Decision) {
        let is_tried_again = matches!(
            decision,
            Decision::Leave
                | Decision::Release {
                    after_exception: true,
                    ..
                }
        );
        let errors = &self.shared.triage.app.last_errors;
        match outcome {
            _ if !is_tried_again => {}
            Outcome::Threw { failure, .. } | Outcome::Lost(failure) => {
                errors.keep(info, failure).await;
            }
            Outcome::TimedOut => {
                errors
                    .keep(info, &timed_out(info.payload.resolve_name()))
                    .await;
            }
            _ => {}
        }
    }

    /// Records a failure and deletes the job, then calls the handler's `failed` hook.
    pub(super) async fn fail(
        &self,
        info: &Arc<JobInfo>,
        completion: &Completion,
        mut ended: FinalAttempt,
        failure: FailureText,
        hook: Option<(&dyn Handler, JobContext)>,
    ) {
        let (triage, name) = (&self.shared.triage, info.payload.resolve_name());
        let version = triage.app.services.version;
        if let Outcome::Threw { failure, .. } = &mut ended.outcome {
            *failure = in_words_of(version, failure.clone(), name);
        }
        let failure = self.with_last_error(info, failure).await;
        let failure = in_words_of(version, failure, name);
        log_failure(info, &failure, ended.elapsed);
        let mut effects = vec![self.failed_job(info, php_text(&failure, name))];
        let brought = completion.on_failure(&triage.app, info, &failure).await;
        effects.extend(brought.effects);
        if let Some((_, context)) = &hook {
            let cancelled = context.cancelled_batches();
            effects.extend(completion.tell_cancelled(&triage.app, info, &cancelled));
        }
        let decision = Decision::Fail(failure.clone());
        let raised_by_php = RaisedByPhp {
            all: completion.telling.raises_all,
            failure_in_closure: brought.is_event_raised,
            ..RaisedByPhp::default()
        };
        let ending = Ending::of(
            ended.outcome,
            decision,
            effects,
            &self.circumstances(info, ended.elapsed, ended.at, raised_by_php),
        );
        let settled = self.settle_and_wait(ending).await;
        // The hook runs only for failures that this worker has written down.
        let Some((handler, context)) = hook.filter(|_| settled == Some(Settled::Done)) else {
            return;
        };
        let timeout = local::hook_timeout(self.shared.terms.defaults.timeout);
        let stop = &self.shared.stops.cut;
        let hook = local::failed(handler, context, Arc::new(failure), timeout, stop);
        let turns = &self.shared.turns;
        let hook = turns.watch(info, self.number, Part::FailedHook, Some(timeout), hook);
        if let Err(error) = hook.await {
            tracing::error!(
                job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
                error,
                "the failed hook of a job did not end well"
            );
        }
    }

    /// The record of a job that has failed for good, with the exception as PHP prints it.
    pub(crate) fn failed_job(&self, info: &JobInfo, exception: String) -> Effect {
        let record = FailedJob {
            uuid: info.payload.uuid.as_ref().map(ToString::to_string),
            connection: info.connection.to_string(),
            queue: self.shared.leases.queue.recorded(&info.queue).to_string(),
            payload: String::from_utf8_lossy(&self.job.payload).into_owned(),
            exception,
            failed_at: self.shared.triage.app.clock.now().0,
            token: info.payload.uuid.is_none().then(random_token),
        };
        Effect::Record(record)
    }

    /// Effects of an attempt that ends its job, which belong to that end. If the job goes back to its queue, they are
    /// carried out now: a release has no effects, and as in Laravel they are not missing if the worker dies in between.
    pub(super) async fn before_the_end(
        &self,
        info: &JobInfo,
        decision: &Decision,
        effects: Vec<Effect>,
    ) -> Vec<Effect> {
        if matches!(decision, Decision::Delete | Decision::DeleteMissing) {
            return effects;
        }
        let queue = &self.shared.leases.queue;
        for effect in effects {
            let Effect::Push(Push {
                queue: to, payload, ..
            }) = effect
            else {
                continue;
            };
            if let Err(error) = queue.push(&to, &[payload]).await {
                tracing::warn!(
                    job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
                    error = with_causes(&error),
                    "PHP may not hear that a batch was cancelled"
                );
            }
        }
        Vec::new()
    }

    pub(super) async fn settle(&self, ending: Ending) {
        self.send(ending, None).await;
    }

    /// Hands a job over to be settled and waits for it; `None` if settling failed, which is already reported.
    pub(crate) async fn settle_and_wait(&self, ending: Ending) -> Option<Settled> {
        let (done, settled) = oneshot::channel();
        self.send(ending, Some(done)).await;
        self.wait_until(settled).await
    }

    /// Waits until a job is settled; `None` if settling failed, which is already reported.
    pub(crate) async fn wait_until(&self, settled: oneshot::Receiver<Settled>) -> Option<Settled> {
        let _waiting = self.shared.settlements.waiting.hold();
        settled.await.ok()
    }

    pub(crate) async fn send(&self, ending: Ending, done: Option<oneshot::Sender<Settled>>) {
        if matches!(ending.settlement, Settlement::LeaveUntil(_)) {
            // A later renewal would move the end of the reservation again; one that is under way may still do so.
            self.shared.leases.running.remove(self.number);
        }
        let pending = self.pending(ending, done);
        if self.shared.settlements.send(pending).await {
            self.is_handed_in.store(true, Ordering::Relaxed);
            (self.shared.leases.running).set_needs_thread(self.number, false);
        }
    }

    /// Settles a job that will run again, and whose handler runs on, when the process is about to end.
    pub(super) fn settle_stuck(&self, ending: Ending) {
        self.shared.leases.running.give_up(self.number);
        let pending = self.pending(ending, None);
        self.shared.settlements.keep_stuck(pending);
        self.is_handed_in.store(true, Ordering::Relaxed);
    }

    fn pending(&self, ending: Ending, done: Option<oneshot::Sender<Settled>>) -> PendingSettlement {
        PendingSettlement {
            job: Arc::clone(&self.job),
            ending,
            number: self.number,
            done,
            may_be_done: false,
            handed_in: Instant::now(),
        }
    }

    /// Logs that a job was cut, by the stop deadline or a second Ctrl-C, and what happens to the job.
    pub(crate) fn log_cut(&self, info: &JobInfo, elapsed: Duration) {
        let rules = Rules::of(&info.payload.limits, &self.shared.terms.defaults);
        let next = info.attempts.saturating_add(1);
        let now = self.shared.triage.app.clock.now();
        let becomes = if before_attempt(&rules, next, now, "").is_some() {
            "it will fail when it is popped again"
        } else {
            "it will be run again"
        };
        tracing::warn!(
            job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
            job.class = &*info.payload.shown_name(),
            attempts = info.attempts,
            max_tries = rules.max_tries,
            elapsed = ?rounded(elapsed),
            becomes,
            "job cancelled and released"
        );
    }
}

#[cfg(test)]
mod tests;
