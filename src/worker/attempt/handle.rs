//! Runs a job with its handler, and decides what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache;
use crate::handler::{FailureText, JobContext, JobInfo, Middleware, Pipeline, Request};
use crate::payload::{JobUuid, Version};
use crate::queue::Effect;
use crate::shown::with_causes;
use crate::worker::attempt::decide::{Decision, Rules, after_attempt, before_attempt};
use crate::worker::attempt::ending::{Ending, RaisedByPhp};
use crate::worker::attempt::local::Ran;
use crate::worker::attempt::log::log_outcome;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::TaskEnd;
use crate::worker::attempt::{Attempt, FinalAttempt, local};
use crate::worker::completion::Completion;
use crate::worker::completion::unique::UntilProcessing;
use crate::worker::event::Event;
use crate::worker::next_release::returns_at;
use crate::worker::triaged::Routed;
use crate::worker::watchdog::Part;

/// How long the cache may take to count an exception.
const COUNTING: Duration = Duration::from_secs(3);
/// Failure class of a job whose chain cannot go on.
const CHAIN_ERROR: &str = "Artisand\\ChainError";

impl Attempt {
    /// Runs a job with its handler, and settles it.
    pub(super) async fn handle(&self, routed: Box<Routed>, info: Arc<JobInfo>, end: &mut TaskEnd) {
        let triage = &self.shared.triage;
        let rules = Rules::of(&info.payload.limits, &self.shared.terms.defaults);
        let context = JobContext::new(
            Arc::clone(&info),
            CancellationToken::new(),
            Arc::clone(&triage.app.services),
        );
        let began = Instant::now();
        self.announce(&info, began);
        let (handler, completion) = (&*routed.handler, &routed.completion);
        let name = info.payload.resolve_name();
        if let Some(failure) = before_attempt(&rules, info.attempts, triage.app.clock.now(), name) {
            let ended = FinalAttempt::at_once(Outcome::threw(failure.clone()), began);
            let hook = Some((handler, context));
            return Box::pin(self.fail(&info, completion, ended, failure, hook)).await;
        }
        if let Some(mapping) = triage.app.router.mapping(routed.mapping) {
            let _ = self.runner.set(mapping.handler.runner());
        }
        let began = Instant::now();
        let version = triage.app.services.version;
        let until = until_processing(completion, info.attempts, version);
        let ran = self.run_handler(&routed, &info, &context, &rules, until.as_ref());
        let (ran, request) = ran.await;
        let elapsed = began.elapsed();
        let mut outcome = ran.outcome;
        end.is_stuck = ran.is_stuck;
        end.was_cut = outcome == Outcome::Stopped;
        if end.was_cut && !end.is_stuck {
            self.log_cut(&info, elapsed);
        }
        let until = until.as_deref();
        let (decision, mut effects) = self
            .judge(&routed, &info, &rules, &mut outcome, request, until)
            .await;
        let cancelled = context.cancelled_batches();
        if !cancelled.is_empty() && !matches!(decision, Decision::Fail(_)) {
            let told = completion.tell_cancelled(&triage.app, &info, &cancelled);
            effects.extend(Box::pin(self.before_the_end(&info, &decision, told)).await);
        }
        log_outcome(&info, &outcome, &decision, ran.is_stuck, elapsed);
        if let Decision::Fail(failure) = decision {
            let ended = FinalAttempt::after(outcome, elapsed, began);
            let hook = Some((handler, context));
            return Box::pin(self.fail(&info, completion, ended, failure, hook)).await;
        }
        self.keep_error(&info, &outcome, &decision).await;
        self.emit_exception(&info, &outcome, elapsed);
        let raised_by_php = RaisedByPhp {
            all: completion.telling.raises_all,
            ..RaisedByPhp::default()
        };
        let circumstances = self.circumstances(&info, elapsed, began + elapsed, raised_by_php);
        let ending = Ending::of(outcome, decision, effects, &circumstances);
        self.settle_unless_stuck(ending, end.is_stuck).await;
    }

    /// Settles a job. If the job will run again and its handler is stuck, that waits for the end of the process: the
    /// next attempt must not run beside this one.
    async fn settle_unless_stuck(&self, mut ending: Ending, is_stuck: bool) {
        if is_stuck && returns_at(&mut ending.settlement).is_some() {
            return self.settle_stuck(ending);
        }
        self.settle(ending).await;
    }

    /// Decides what becomes of a job that a handler ran, and what its end brings about; a chain that cannot go on
    /// makes the outcome an exception.
    async fn judge(
        &self,
        routed: &Routed,
        info: &Arc<JobInfo>,
        rules: &Rules,
        outcome: &mut Outcome,
        mut request: Request,
        until: Option<&UntilProcessing>,
    ) -> (Decision, Vec<Effect>) {
        let (app, completion) = (&self.shared.triage.app, &routed.completion);
        let edits = std::mem::take(&mut request.chain);
        let then = std::mem::take(&mut request.then);
        if let (Outcome::Finished, Err(why)) =
            (&*outcome, completion.check_edits(app, info, &edits))
        {
            *outcome = Outcome::threw(FailureText::new(CHAIN_ERROR, why));
        }
        self.count_for_canary(routed.mapping, outcome, &request);
        let decision = self.decide(info, rules, outcome, &request).await;
        let effects = match (&decision, &*outcome) {
            (Decision::Delete, Outcome::Finished) => {
                match completion.on_success(app, info, edits, then).await {
                    Ok(effects) => effects,
                    Err(why) => {
                        // As in Laravel, the job has failed: deleting it now would lose the chain.
                        *outcome = Outcome::threw(FailureText::new(CHAIN_ERROR, why));
                        let request = Request::default();
                        let decision = self.decide(info, rules, outcome, &request).await;
                        return (decision, Vec::new());
                    }
                }
            }
            (Decision::Delete, _) => completion.on_deletion(app, &info.queue, until).await,
            (Decision::DeleteMissing, _) => completion.on_missing_model(app, info, until).await,
            _ => Vec::new(),
        };
        (decision, effects)
    }

    /// Decides what becomes of a job after an attempt; counts its exception if the job limits them.
    async fn decide(
        &self,
        info: &JobInfo,
        rules: &Rules,
        outcome: &Outcome,
        request: &Request,
    ) -> Decision {
        let exceptions = self.count_exception(info, rules, outcome, request).await;
        let now = self.shared.triage.app.clock.now();
        let name = info.payload.resolve_name();
        after_attempt(
            rules,
            info.attempts,
            outcome,
            request,
            exceptions,
            now,
            name,
        )
    }

    /// Records how a canary's attempt ended; too many failures stop the canary.
    fn count_for_canary(&self, mapping: usize, outcome: &Outcome, request: &Request) {
        let has_failed = match outcome {
            Outcome::Stopped => return,
            Outcome::Finished => request.fail.is_some() || request.has_thrown,
            Outcome::ModelMissing { deletes, .. } => !deletes,
            Outcome::Threw { .. } | Outcome::TimedOut | Outcome::Lost(_) => true,
        };
        if let Some(stop) = self.shared.triage.stats.ended(mapping, has_failed) {
            tracing::error!(
                mapping = stop.target,
                failures = stop.failures,
                runs = stop.runs,
                "a canary stopped itself, as too many of its last runs failed: its jobs go the way of unmapped ones until this worker starts again or hears of `artisand canary:resume`"
            );
            self.shared.emit(Event::CanaryStopped(&stop));
        }
    }

    /// Runs the handler with its middleware; returns the outcome and what the handler asked for.
    async fn run_handler(
        &self,
        routed: &Routed,
        info: &Arc<JobInfo>,
        context: &JobContext,
        rules: &Rules,
        until: Option<&Arc<UntilProcessing>>,
    ) -> (Ran, Request) {
        let services = &self.shared.triage.app.services;
        let timeout = rules.timeout.filter(|_| self.shared.terms.has_timeouts);
        let pipeline = around(&routed.pipeline, until, services.version);
        let deletes = || self.deletes_when_missing_models(info);
        let stop = &self.shared.stops.cut;
        let run = local::run(&*routed.handler, &pipeline, context, timeout, stop, deletes);
        let turns = &self.shared.turns;
        // Pinned here: each of the two wrappers would hold it twice, and every job would be as much larger.
        let run = std::pin::pin!(run);
        let run = self.shared.weights.measure(routed.mapping, run);
        let ran = turns.watch(info, self.number, Part::Handler, timeout, run);
        let ran = ran.await;
        let request = context.take_request();
        let was_killed = matches!(ran.outcome, Outcome::TimedOut | Outcome::Stopped);
        let is_kept = was_killed || request.release.is_some() || request.discard;
        if let Some(until) = until.filter(|_| !is_kept) {
            Box::pin(until.free_at_the_end(services)).await;
        }
        (ran, request)
    }

    /// Whether a job whose model is gone is deleted; false if nothing says so, as in Laravel.
    fn deletes_when_missing_models(&self, info: &JobInfo) -> bool {
        let deletes = self
            .shared
            .triage
            .app
            .services
            .deletes_when_missing_models(&info.payload);
        deletes.unwrap_or_else(|| {
            tracing::warn!(
                job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
                job.class = &*info.payload.shown_name(),
                "a model of a job is gone, and nothing says whether its class has `deleteWhenMissingModels`: the job fails; a new manifest would say it (`artisand manifest`)"
            );
            false
        })
    }

    /// Counts the exception that ended an attempt if the job limits its exceptions.
    ///
    /// As in Laravel, an exception counts also if another limit fails the job, but not if the job has failed
    /// itself.
    async fn count_exception(
        &self,
        info: &JobInfo,
        rules: &Rules,
        outcome: &Outcome,
        request: &Request,
    ) -> Option<i64> {
        let is_exception = matches!(outcome, Outcome::Threw { .. } | Outcome::TimedOut);
        if !is_exception || request.fail.is_some() || request.delete || request.discard {
            return None;
        }
        let cache = &self.shared.triage.app.services.middleware.cache;
        let (cache, uuid) = (cache.as_ref()?, info.payload.uuid.as_ref()?);
        let most = rules.max_exceptions?;
        let counting = Box::pin(cache::count_exception(cache, uuid.as_str(), most));
        let counted = tokio::select! {
            counted = tokio::time::timeout(COUNTING, counting) => counted,
            // The job has to be given back now.
            () = self.shared.stops.cut.cancelled() => return None,
        };
        let problem = match counted {
            Ok(Ok(count)) => return Some(count),
            Ok(Err(error)) => with_causes(&error),
            Err(_) => format!("no answer within {COUNTING:?}"),
        };
        tracing::warn!(
            job.uuid = uuid.bounded(),
            error = problem,
            "an exception of a job could not be counted: the cache cannot be used"
        );
        None
    }
}

/// The lock of a job that is unique only until it runs; `None` if this attempt does not free it.
fn until_processing(
    completion: &Completion,
    attempts: u32,
    version: Version,
) -> Option<Arc<UntilProcessing>> {
    let lock = completion.lock_until_processing()?;
    let may_free = attempts <= 1 || lock.owner.is_some() || !version.spares_locks_in_retries();
    may_free.then(|| Arc::new(UntilProcessing::new(lock.clone())))
}

/// The pipeline plus the step that frees the lock: since Laravel 11.40 after all middleware, before that in front
/// of it.
fn around(pipeline: &Pipeline, until: Option<&Arc<UntilProcessing>>, version: Version) -> Pipeline {
    let Some(until) = until else {
        return pipeline.clone();
    };
    let until: Arc<dyn Middleware> = Arc::<UntilProcessing>::clone(until);
    let (ahead, behind) = if version.is_at_least(11, 40) {
        (None, Some(until))
    } else {
        (Some(until), None)
    };
    let all = ahead.into_iter().chain(pipeline.iter().cloned());
    all.chain(behind).collect()
}

#[cfg(test)]
mod tests;
