//! Takes one reserved job from its bytes to its verdict. Every path through here settles the job.

pub(crate) mod decide;
pub(crate) mod ending;
pub(crate) mod exception;
mod local;
mod log;
pub(crate) mod outcome;
mod php;
mod settle;
pub(crate) mod shared;
mod span;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::{self};
use crate::handler::{FailureText, JobContext, JobInfo, Middleware, Pipeline, Request};
use crate::payload::{JobUuid, Payload, Version};
use crate::process::pool::Seat;
use crate::queue::{Ability, Effect, ReservedJob, Settlement};
use crate::routing::{Runner, UnmappedPolicy};
use crate::shown::with_causes;
use crate::time::UnixSeconds;
use crate::worker::attempt::decide::{Decision, Rules, after_attempt, before_attempt};
use crate::worker::attempt::ending::{Circumstances, Ending, Heard, Report};
use crate::worker::attempt::local::Ran;
use crate::worker::attempt::log::log_outcome;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::{Shared, TaskEnd};
use crate::worker::completion::Completion;
use crate::worker::completion::refusal::Refusal;
use crate::worker::completion::unique::Unique;
use crate::worker::completion::unique::UntilProcessing;
use crate::worker::event::{Event, JobException};
use crate::worker::gauge::Held;
use crate::worker::shadow::Shadow;
use crate::worker::triaged::{BypassReason, Candidate, Routed, Triaged};

/// The executor that a job was popped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// Handlers in this process.
    Local,
    /// PHP processes.
    Php,
}

/// Where a job runs.
#[derive(Debug)]
pub(crate) enum Placement {
    /// In a slot of this process.
    Local,
    /// In a PHP process.
    Php {
        /// The process; `None` if it has ended.
        seat: Option<Seat>,
        /// Counts the job until its end is written to the queue.
        unsettled: Held,
    },
}

/// A job on its way through one attempt.
pub(crate) struct Attempt {
    pub(crate) shared: Arc<Shared>,
    pub(crate) job: Arc<ReservedJob>,
    number: u64,
    /// When the reservation ends unless renewed; overrides the job's own value after a renewal before the start.
    lease: OnceLock<UnixSeconds>,
    /// What runs the job, once that is known.
    runner: OnceLock<Runner>,
    /// Whether the verdict was handed over. The reservation is then renewed until the job is settled.
    is_handed_over: AtomicBool,
}

/// How the last attempt of a job that failed for good ended.
struct Ended {
    outcome: Outcome,
    elapsed: Duration,
    at: Instant,
}

impl Ended {
    /// An attempt that did not run.
    fn at_once(outcome: Outcome, at: Instant) -> Self {
        Self {
            outcome,
            elapsed: Duration::ZERO,
            at,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_handed_over.load(Ordering::Relaxed) {
            // The attempt ended without a verdict: let the reservation run out, so that another worker gets the
            // job.
            self.shared.leases.running.remove(self.number);
        }
    }
}

/// Runs a reserved job and hands over its verdict.
pub(crate) async fn run(
    shared: Arc<Shared>,
    job: Arc<ReservedJob>,
    candidate: Result<Candidate, crate::payload::Error>,
    number: u64,
    mapping: Option<usize>,
    placement: Placement,
) -> TaskEnd {
    let is_in_php = matches!(placement, Placement::Php { .. });
    // A PHP process rests by itself.
    let rest = if is_in_php {
        Duration::ZERO
    } else {
        shared.terms.rest
    };
    let attempt = Attempt {
        shared,
        job,
        number,
        lease: OnceLock::new(),
        runner: OnceLock::new(),
        is_handed_over: AtomicBool::new(false),
    };
    let mut end = TaskEnd {
        mapping,
        is_stuck: false,
        was_cut: false,
        was_declined: false,
    };
    attempt.run(candidate, placement, &mut end).await;
    if !rest.is_zero() && !end.was_cut {
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = attempt.shared.stops.begun.cancelled() => {}
        }
    }
    if !is_in_php {
        attempt.shared.ends.count();
    }
    end
}

impl Attempt {
    async fn run(
        &self,
        candidate: Result<Candidate, crate::payload::Error>,
        placement: Placement,
        end: &mut TaskEnd,
    ) {
        if matches!(placement, Placement::Php { .. }) && !self.follows().await {
            end.was_declined = true;
            return self.give_back().await;
        }
        if !self.confirm_reservation().await {
            // The worker that has it now settles it.
            tracing::warn!(
                queue = %self.job.queue,
                "a job came too late to begin: its reservation has ended, and another worker gets it"
            );
            end.was_declined = true;
            return;
        }
        let triage = &self.shared.triage;
        let Candidate { payload, triaged } = match candidate {
            Ok(candidate) => candidate,
            Err(error) => {
                let ending = Ending {
                    settlement: self.quarantine().await,
                    report: Report::Quarantined(with_causes(&error)),
                };
                return self.settle(ending).await;
            }
        };
        let info = self.info(payload, &triaged);
        let is_given_back = matches!(triaged, Triaged::Unmapped(_) | Triaged::Bypass(_))
            && triage.leaves_unmapped()
            && !matches!(placement, Placement::Php { seat: Some(_), .. });
        if !is_given_back {
            self.shared.emit(Event::JobPopped(&info));
        }
        match triaged {
            Triaged::Run(routed) => {
                triage.stats.ran_here(routed.mapping);
                self.handle(routed, info, end).await;
            }
            Triaged::Forward(to) => self.settle(Ending::forward(info, to)).await,
            Triaged::Unmapped(refusal) => {
                Box::pin(self.go_elsewhere(info, placement, refusal, None, end)).await;
            }
            // Another worker has to take it.
            Triaged::Bypass(_) if is_given_back => {
                Box::pin(self.go_elsewhere(info, placement, None, None, end)).await;
            }
            Triaged::Bypass(bypass) => {
                let is_mismatch = matches!(bypass.reason, BypassReason::Mismatch(_));
                triage.stats.went_beside(bypass.mapping, is_mismatch);
                let shadow = (bypass.reason == BypassReason::Shadow)
                    .then(|| Shadow::check(triage, *bypass, &info));
                Box::pin(self.go_elsewhere(info, placement, None, shadow, end)).await;
            }
        }
    }

    /// The facts of the attempt; jobs that end here get a span.
    fn info(&self, payload: Arc<Payload>, triaged: &Triaged) -> Arc<JobInfo> {
        let app = &self.shared.triage.app;
        let ends_here = match triaged {
            Triaged::Run(_) => true,
            Triaged::Forward(_) => false,
            // What PHP runs is traced there.
            Triaged::Unmapped(_) | Triaged::Bypass(_) => {
                *app.router.unmapped() == UnmappedPolicy::Fail
            }
        };
        let abilities = self.shared.leases.queue.abilities();
        let reserved = if abilities.has(Ability::CountsInPayload) {
            &self.job.ticket
        } else {
            &self.job.payload
        };
        let mut info = JobInfo {
            connection: app.connection.clone(),
            queue: self.job.queue.clone(),
            attempts: self.job.attempts,
            payload,
            body: Arc::clone(&self.job.payload),
            reserved: Arc::clone(reserved),
            trace: None,
        };
        if ends_here {
            info.trace = self.shared.observers.trace(&info);
        }
        Arc::new(info)
    }

    /// Applies the policy for unmapped jobs.
    async fn go_elsewhere(
        &self,
        info: Arc<JobInfo>,
        placement: Placement,
        refusal: Option<Refusal>,
        shadow: Option<Shadow>,
        end: &mut TaskEnd,
    ) {
        let (seat, unsettled) = match placement {
            Placement::Php {
                seat: Some(seat),
                unsettled,
            } => (seat, unsettled),
            Placement::Php { seat: None, .. } => {
                end.was_declined = true;
                return self.give_back().await;
            }
            Placement::Local => return self.unmapped(info, refusal).await,
        };
        // Each job takes one way only, so nothing is set before.
        let _ = self.runner.set(Runner::Php);
        let run = self.run_in_php(info, seat, unsettled, end).await;
        if let Some(pool) = &self.shared.pool
            && pool.size() == 1
        {
            // With the end settled, its process may be given the next job.
            pool.changed();
        }
        if let (Some(shadow), Some(run)) = (shadow, run) {
            let (triage, stop) = (&self.shared.triage, &self.shared.stops.cut);
            shadow.compare(triage, stop, run).await;
        }
    }

    /// Quarantines a job that nothing can run; frees its lock if the lock can be read from the payload.
    async fn quarantine(&self) -> Settlement {
        let triage = &self.shared.triage;
        let lock = Unique::rescued(&triage.app.services, &self.job.payload);
        let freed = match lock {
            Some(lock) => Box::pin(lock.free(&triage.app)).await,
            None => None,
        };
        match freed {
            Some(freed) => Settlement::Finish(vec![Effect::Quarantine, freed]),
            None => Settlement::Quarantine,
        }
    }

    async fn unmapped(&self, info: Arc<JobInfo>, refusal: Option<Refusal>) {
        let triage = &self.shared.triage;
        match triage.app.router.unmapped() {
            UnmappedPolicy::Forward(to) => self.settle(Ending::forward(info, to.clone())).await,
            UnmappedPolicy::Fail => {
                let name = info.payload.shown_name();
                let completed = Completion::of(&triage.app, &info.payload, &info.queue, None);
                let mut completion = match completed {
                    Ok(completion) if refusal.is_none() && !info.payload.is_encrypted() => {
                        completion
                    }
                    _ => Completion::of_refused(&triage.app, &info),
                };
                completion.telling = triage.app.router.telling(None);
                let message = match refusal {
                    Some(refusal) => refusal.of(&name),
                    None => {
                        format!("no mapping for {name}, and the policy for unmapped jobs is `fail`")
                    }
                };
                let failure = FailureText::new("Artisand\\UnmappedJob", message);
                let now = Instant::now();
                self.announce(&info, now);
                let ended = Ended::at_once(Outcome::threw(failure.clone()), now);
                self.fail(&info, &completion, ended, failure, None).await;
            }
            UnmappedPolicy::Leave | UnmappedPolicy::Php => {
                triage.inspect_from_now_on(&self.job.payload);
                self.settle(Ending::put_back()).await;
            }
        }
    }

    /// Runs a job with its handler, and settles it.
    async fn handle(&self, routed: Box<Routed>, info: Arc<JobInfo>, end: &mut TaskEnd) {
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
            let ended = Ended::at_once(Outcome::threw(failure.clone()), began);
            let hook = Some((handler, context));
            return Box::pin(self.fail(&info, completion, ended, failure, hook)).await;
        }
        if let Some(mapping) = triage.app.router.mapping(routed.mapping) {
            let _ = self.runner.set(mapping.handler.runner());
        }
        let began = Instant::now();
        let (ran, request) = self.run_handler(&routed, &info, &context, &rules).await;
        let elapsed = began.elapsed();
        let mut outcome = ran.outcome;
        end.is_stuck = ran.is_stuck;
        end.was_cut = outcome == Outcome::Stopped;
        if end.was_cut {
            self.log_cut(&info, elapsed);
        }
        let (decision, effects) = self
            .judge(&routed, &info, &rules, &mut outcome, request)
            .await;
        log_outcome(&info, &outcome, &decision, ran.is_stuck, elapsed);
        if let Decision::Fail(failure) = decision {
            let ended = Ended {
                outcome,
                elapsed,
                at: began + elapsed,
            };
            let hook = Some((handler, context));
            return Box::pin(self.fail(&info, completion, ended, failure, hook)).await;
        }
        self.keep_error(&info, &outcome, &decision).await;
        self.emit_exception(&info, &outcome, elapsed);
        let heard = Heard {
            all: completion.telling.raises_all,
            failure: false,
        };
        let circumstances = self.circumstances(&info, elapsed, began + elapsed, heard);
        self.settle(Ending::of(outcome, decision, effects, &circumstances))
            .await;
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
            (Decision::Delete, _) => completion.on_deletion(app).await,
            (Decision::DeleteMissing, _) => completion.on_missing_model(app, info).await,
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

    /// Tells observers that the job has begun.
    pub(crate) fn announce(&self, job: &Arc<JobInfo>, began: Instant) {
        let began = began.into_std();
        self.shared.emit(Event::JobProcessing { job, began });
    }

    /// Emits the exception event of a job that will be tried again or has settled itself, before the job is
    /// settled.
    pub(crate) fn emit_exception(&self, job: &Arc<JobInfo>, outcome: &Outcome, elapsed: Duration) {
        if let Some(failure) = outcome.thrown() {
            self.shared.emit(Event::JobExceptionOccurred(&JobException {
                job,
                elapsed,
                failure,
                runner: self.runner(),
            }));
        }
    }

    pub(crate) fn circumstances<'a>(
        &self,
        job: &'a Arc<JobInfo>,
        elapsed: Duration,
        ended: Instant,
        heard: Heard,
    ) -> Circumstances<'a> {
        let now = self.shared.triage.app.clock.now();
        Circumstances {
            job,
            elapsed,
            ended: ended.into_std(),
            now,
            reservation_end: self.reservation_end(now),
            heard,
            runner: self.runner(),
        }
    }

    /// What runs the job, as far as it is known.
    fn runner(&self) -> Runner {
        self.runner.get().copied().unwrap_or(Runner::None)
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
    ) -> (Ran, Request) {
        let services = &self.shared.triage.app.services;
        let timeout = rules.timeout.filter(|_| self.shared.terms.has_timeouts);
        let until = until_processing(&routed.completion, info.attempts, services.version);
        let pipeline = around(&routed.pipeline, until.as_ref(), services.version);
        let deletes = || self.deletes_when_missing_models(info);
        let stop = &self.shared.stops.cut;
        let run = local::run(&*routed.handler, &pipeline, context, timeout, stop, deletes);
        let turns = &self.shared.turns;
        // Pinned here: each of the two wrappers would hold it twice, and every job would be as much larger.
        let run = std::pin::pin!(run);
        let run = self.shared.weights.measure(routed.mapping, run);
        let ran = turns.watch(info, self.number, timeout, run).await;
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
                "a model of a job is gone, and without a manifest nothing says whether its class has `deleteWhenMissingModels`: the job fails"
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
        let (cache, uuid) = (self.shared.cache.as_ref()?, info.payload.uuid.as_ref()?);
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

/// The lock of a job that is unique only until it runs.
///
/// Since Laravel 13.5, only the first attempt frees a lock without a known owner: later the lock may belong to a
/// job dispatched since.
fn until_processing(
    completion: &Completion,
    attempts: u32,
    version: Version,
) -> Option<Arc<UntilProcessing>> {
    let lock = completion.lock_until_processing()?;
    let may_free = attempts <= 1 || lock.owner.is_some() || !version.is_at_least(13, 5);
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

/// How long the cache may take to count an exception.
const COUNTING: Duration = Duration::from_secs(3);

/// Failure class of a job whose chain cannot go on.
const CHAIN_ERROR: &str = "Artisand\\ChainError";
