//! One reserved job, from its bytes to its verdict. Every way out of here settles it.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt;
use super::attempt::with_causes;
use super::completion::Completion;
use super::decide::{
    Asked, Decision, Defaults, Ended, Rules, after_attempt, before_attempt, timed_out,
};
use super::event::{EndKind, Event, FailedBy, JobException, Observers};
use super::exception::php_text;
use super::record::Recordings;
use super::renew::Running;
use super::settle::{Report, Verdict};
use super::stats::Shadow;
use super::triage::{BypassReason, Candidate, Refusal, Routed, Triage, Triaged};
use super::unique::Unique;
use super::unique::UntilProcessing;
use super::watchdog::Turns;
use crate::cache::{self, Cache};
use crate::failed::FailedJob;
use crate::handler::pool::{Pool, Seat};
use crate::handler::{
    BoxFuture, FailureText, Handler, InputError, JobContext, JobInfo, Middleware, Outcome,
    Pipeline, Request, UnmappedPolicy,
};
use crate::payload::{JobUuid, Version};
use crate::queue::{Effect, ReservedJob, Settled, Settlement, Spool};
use crate::time::UnixSeconds;

/// Asks the queue whether a job is still reserved, and renews it.
pub(super) type Confirm =
    Box<dyn Fn(Arc<ReservedJob>, UnixSeconds) -> BoxFuture<'static, bool> + Send + Sync>;

/// What all jobs of a worker share.
pub(super) struct Shared {
    /// Where jobs go, and what their ends bring about.
    pub(super) triage: Arc<Triage>,
    pub(super) defaults: Defaults,
    /// Whether a slot stays taken until its job is settled: of a single slot people expect one job after the other.
    pub(super) is_sequential: bool,
    /// False with `--once`, which in Laravel arms no timeout.
    pub(super) has_timeouts: bool,
    pub(super) rest: Duration,
    /// Renews the reservation of one job until this second; false unless the job was still reserved.
    pub(super) confirm: Confirm,
    /// How long a reservation lives.
    pub(super) retry_after: Option<Duration>,
    pub(super) verdicts: mpsc::Sender<Verdict>,
    pub(super) running: Arc<Running>,
    /// Handlers that are watched.
    pub(super) turns: Arc<Turns>,
    pub(super) observers: Observers,
    /// Cancelled at the stop deadline.
    pub(super) stop: CancellationToken,
    pub(super) company: Company,
    /// Cancelled when the worker begins to stop.
    pub(super) stopping: CancellationToken,
    /// Where exceptions are counted.
    pub(super) cache: Option<Cache>,
    /// PHP processes that run what no mapping matches; only under that policy.
    pub(super) pool: Option<Pool>,
    /// Tells when failed jobs are recorded, where the app's database takes nothing from PHP meanwhile.
    pub(super) recording: Option<Recordings>,
    /// Attempts that wait for nothing but the server to settle their job.
    pub(super) only_settling: AtomicUsize,
}

/// Wakes the loop once so many jobs have ended: under load, one wake for several slots.
#[derive(Debug, Default)]
pub(super) struct Company {
    missing: AtomicIsize,
    complete: Notify,
}

impl Company {
    /// Sets how many ends to wait for. Those just before count or not: whoever waits has a deadline as well.
    pub(super) fn expect(&self, missing: usize) {
        self.missing
            .store(missing.try_into().unwrap_or(isize::MAX), Ordering::Relaxed);
    }

    pub(super) async fn is_complete(&self) {
        self.complete.notified().await;
    }

    fn one_more(&self) {
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.complete.notify_one();
        }
    }
}

/// What the loop has to know of a job that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskEnd {
    /// The mapping whose limit it counted against.
    pub(super) mapping: Option<usize>,
    /// Its handler still runs and cannot be stopped.
    pub(super) is_stuck: bool,
    /// It was cut short at the stop deadline.
    pub(super) was_cut: bool,
    /// It was given back and not begun.
    pub(super) was_declined: bool,
}

impl Shared {
    /// Whether every job is for PHP.
    pub(super) fn has_only_php(&self) -> bool {
        self.pool.is_some() && self.triage.router.mappings().len() == 0
    }
}

/// What a job was popped for.
#[derive(Debug)]
pub(super) enum Given {
    /// A slot here.
    Slot,
    /// A PHP process, if that has not ended meanwhile; and what counts the job until its end is written down.
    Php(Option<Seat>, Arc<()>),
}

/// A job on its way through one attempt.
pub(super) struct Attempt {
    pub(super) shared: Arc<Shared>,
    pub(super) job: Arc<ReservedJob>,
    number: u64,
    /// When the reservation ends if nobody renews it; later than the job says if it was renewed before the start.
    lease: OnceLock<UnixSeconds>,
    /// Whether the verdict was handed over: then its reservation is renewed until it is carried out.
    is_handed_over: AtomicBool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_handed_over.load(Ordering::Relaxed) {
            // Something of ours failed: let the reservation run out, so that another worker gets the job.
            self.shared.running.remove(self.number);
        }
    }
}

/// Runs a reserved job and hands over its verdict; `candidate` is what was found out about it, if it was looked at before.
pub(super) async fn run(
    shared: Arc<Shared>,
    job: Arc<ReservedJob>,
    candidate: Option<Candidate>,
    number: u64,
    mapping: Option<usize>,
    given: Given,
) -> TaskEnd {
    let is_in_php = matches!(given, Given::Php(..));
    // A PHP process takes its rest by itself.
    let rest = if is_in_php {
        Duration::ZERO
    } else {
        shared.rest
    };
    let attempt = Attempt {
        shared,
        job,
        number,
        lease: OnceLock::new(),
        is_handed_over: AtomicBool::new(false),
    };
    let mut end = TaskEnd {
        mapping,
        is_stuck: false,
        was_cut: false,
        was_declined: false,
    };
    attempt.run(candidate, given, &mut end).await;
    if !rest.is_zero() && !end.was_cut {
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = attempt.shared.stopping.cancelled() => {}
        }
    }
    if !is_in_php {
        attempt.shared.company.one_more();
    }
    end
}

impl Attempt {
    async fn run(&self, candidate: Option<Candidate>, given: Given, end: &mut TaskEnd) {
        if !self.is_ours().await {
            // The worker that has it now settles it.
            tracing::warn!(
                queue = %self.job.queue,
                "a job came too late to begin: its reservation has ended, and another worker gets it"
            );
            end.was_declined = true;
            return;
        }
        let triage = &self.shared.triage;
        let candidate =
            candidate.map_or_else(|| triage.triage(&self.job.payload, &self.job.queue), Ok);
        let Candidate { payload, triaged } = match candidate {
            Ok(candidate) => candidate,
            Err(error) => {
                let settlement = self.quarantine().await;
                return self
                    .settle(settlement, Report::Quarantined(with_causes(&error)))
                    .await;
            }
        };
        let info = Arc::new(JobInfo {
            connection: triage.connection.clone(),
            queue: self.job.queue.clone(),
            attempts: self.job.attempts,
            payload,
            body: Arc::clone(&self.job.payload),
        });
        let is_given_back = matches!(triaged, Triaged::Unmapped(_) | Triaged::Bypass(_))
            && triage.leaves_unmapped()
            && !matches!(given, Given::Php(Some(_), _));
        if !is_given_back {
            self.shared.tell(Event::JobPopped(&info));
        }
        match triaged {
            Triaged::Run(routed) => {
                triage.stats.ran_here(routed.mapping);
                self.handle(routed, info, end).await;
            }
            Triaged::Forward(to) => {
                self.settle(Settlement::Forward(to), Report::Forwarded(info))
                    .await;
            }
            Triaged::Unmapped(refusal) => {
                self.go_elsewhere(info, given, refusal, None, end).await;
            }
            // Another worker has a look at it.
            Triaged::Bypass(_) if is_given_back => {
                self.go_elsewhere(info, given, None, None, end).await;
            }
            Triaged::Bypass(bypass) => {
                let is_mismatch = matches!(bypass.reason, BypassReason::Mismatch(_));
                triage.stats.went_beside(bypass.mapping, is_mismatch);
                let shadow = (bypass.reason == BypassReason::Shadow)
                    .then(|| Shadow::check(triage, bypass, &info));
                self.go_elsewhere(info, given, None, shadow, end).await;
            }
        }
    }

    /// Does what the policy for unmapped jobs says.
    async fn go_elsewhere(
        &self,
        info: Arc<JobInfo>,
        given: Given,
        refusal: Option<Refusal>,
        shadow: Option<Shadow>,
        end: &mut TaskEnd,
    ) {
        let (seat, unsettled) = match given {
            Given::Php(Some(seat), unsettled) => (seat, unsettled),
            Given::Php(None, _) => {
                end.was_declined = true;
                return self.give_back().await;
            }
            Given::Slot => return self.unmapped(info, refusal).await,
        };
        let run = self.run_in_php(info, seat, unsettled, end).await;
        if let Some(pool) = &self.shared.pool
            && pool.size() == 1
        {
            // Its process may be given the next one.
            pool.changed();
        }
        if let (Some(shadow), Some(run)) = (shadow, run) {
            let (triage, stop) = (&self.shared.triage, &self.shared.stop);
            shadow.compare(triage, stop, run).await;
        }
    }

    /// Nobody will run the job as it is: its lock is freed, if that can be read.
    async fn quarantine(&self) -> Settlement {
        let triage = &self.shared.triage;
        let lock = Unique::rescued(&triage.services, &self.job.payload);
        let freed = match lock {
            Some(lock) => lock.free(triage).await,
            None => None,
        };
        match freed {
            Some(freed) => Settlement::Finish(vec![Effect::Quarantine, freed]),
            None => Settlement::Quarantine,
        }
    }

    async fn unmapped(&self, info: Arc<JobInfo>, refusal: Option<Refusal>) {
        let triage = &self.shared.triage;
        match triage.router.unmapped() {
            UnmappedPolicy::Forward(to) => {
                self.settle(Settlement::Forward(to.clone()), Report::Forwarded(info))
                    .await;
            }
            UnmappedPolicy::Fail => {
                let name = info.payload.shown_name();
                let completion = match Completion::of(triage, &info.payload, &info.queue) {
                    Ok(completion) if refusal.is_none() && !info.payload.is_encrypted() => {
                        completion
                    }
                    _ => Completion::of_refused(triage, &info),
                };
                let message = match refusal {
                    Some(refusal) => refusal.of(&name),
                    None => {
                        format!("no mapping for {name}, and the policy for unmapped jobs is `fail`")
                    }
                };
                let failure = FailureText::new("Artisand\\UnmappedJob", message);
                self.shared.tell(Event::JobProcessing(&info));
                let by = FailedBy::Exception(failure.clone());
                let ended = (failure, by, Duration::ZERO);
                self.fail(None, Arc::clone(&info), &completion, ended).await;
            }
            UnmappedPolicy::Leave | UnmappedPolicy::Php => {
                triage.inspect_from_now_on(&self.job.payload);
                self.settle(Settlement::PutBack, Report::GivenBack).await;
            }
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "an attempt from its start to its verdict, in order"
    )]
    async fn handle(&self, routed: Routed, info: Arc<JobInfo>, end: &mut TaskEnd) {
        let Routed {
            mapping,
            handler,
            pipeline,
            completion,
        } = routed;
        let handler = &*handler;
        let name = info.payload.resolve_name();
        let rules = Rules::of(&info.payload.limits, &self.shared.defaults);
        let context = JobContext::new(
            Arc::clone(&info),
            CancellationToken::new(),
            Arc::clone(&self.shared.triage.services),
        );
        self.shared.tell(Event::JobProcessing(&info));
        if let Some(failure) =
            before_attempt(&rules, info.attempts, self.shared.triage.clock.now(), name)
        {
            let told = Some((handler, context));
            let by = FailedBy::Exception(failure.clone());
            let ended = (failure, by, Duration::ZERO);
            return self.fail(told, Arc::clone(&info), &completion, ended).await;
        }
        let timeout = rules.timeout.filter(|_| self.shared.has_timeouts);
        let began = Instant::now();
        let until = until_processing(
            &completion,
            info.attempts,
            self.shared.triage.services.version,
        );
        let (outcome, mut request) = self
            .run_through(handler, &pipeline, &context, timeout, until, &info)
            .await;
        let elapsed = began.elapsed();
        end.is_stuck = matches!(outcome, Outcome::Stuck);
        end.was_cut = matches!(outcome, Outcome::Stopped);
        let mut ended = attempt::ended_as(&outcome, || self.deletes_when_missing_models(&info));
        log_outcome(&info, &outcome, &ended, elapsed);
        if end.was_cut {
            self.log_cut(&info, elapsed);
        }
        let edits = std::mem::take(&mut request.chain);
        if let (Ended::Finished, Err(why)) = (
            &ended,
            completion.check_edits(&self.shared.triage, &info, &edits),
        ) {
            ended = Ended::Threw(FailureText::new("Artisand\\ChainError", why));
        }
        self.count_for_canary(mapping, &ended, &request);
        let asked = attempt::asked(request);
        let exceptions = self.count_exception(&info, &rules, &ended, &asked).await;
        let now = self.shared.triage.clock.now();
        let mut decision = after_attempt(
            &rules,
            info.attempts,
            ended.clone(),
            asked,
            exceptions,
            now,
            name,
        );
        if let (Decision::Release { delay, .. }, Outcome::Threw(error)) = (&mut decision, &outcome)
            && error.is::<InputError>()
            && let Some(wait) = rules.wait_of_unreadable(info.attempts)
        {
            *delay = wait.max(*delay);
        }
        let mut effects = Vec::new();
        if let (Decision::Delete, Ended::Finished) = (&decision, &ended) {
            match completion
                .on_success(&self.shared.triage, &info, edits)
                .await
            {
                Ok(found) => effects = found,
                Err(why) => {
                    // As in Laravel, whose exception comes from there, too: deleted now, the chain would be lost.
                    (ended, decision) = self.cannot_follow(&info, &rules, why, name).await;
                }
            }
        }
        if let (Ended::Threw(failure), false) = (&ended, matches!(decision, Decision::Fail(_))) {
            self.shared.tell(Event::JobExceptionOccurred(&JobException {
                job: &info,
                elapsed,
                failure,
            }));
        }
        let (settlement, kind) = match decision {
            Decision::Fail(failure) => {
                let told = Some((handler, context));
                let ended = (failure, FailedBy::of(ended), elapsed);
                return self.fail(told, Arc::clone(&info), &completion, ended).await;
            }
            Decision::Delete => {
                if !matches!(ended, Ended::Finished) {
                    effects = completion.on_deletion(&self.shared.triage).await;
                }
                (deleted(effects), EndKind::of_deletion(ended))
            }
            Decision::DeleteMissing => {
                let effects = completion
                    .on_missing_model(&self.shared.triage, &info)
                    .await;
                (deleted(effects), EndKind::of_deletion(ended))
            }
            Decision::Discard => (Settlement::Delete, EndKind::of_deletion(ended)),
            Decision::ReleaseUncounted { delay } => (
                Settlement::ReleaseUncounted(now.plus(delay)),
                EndKind::of_release(ended, delay, false),
            ),
            Decision::Release {
                delay,
                after_exception,
            } => {
                let kind = EndKind::of_release(ended, delay, after_exception);
                (Settlement::Release(now.plus(delay)), kind)
            }
            Decision::Leave => (
                Settlement::LeaveUntil(self.reservation_end(now)),
                EndKind::TimedOut(timed_out(name)),
            ),
        };
        self.settle(
            settlement,
            Report::Ended {
                info: Arc::clone(&info),
                elapsed,
                kind,
            },
        )
        .await;
    }

    /// Takes note of how an attempt ended, if it was one of a canary's: too many failures stop it.
    fn count_for_canary(&self, mapping: usize, ended: &Ended, request: &Request) {
        let has_failed = match ended {
            Ended::Stopped => return,
            Ended::Finished => request.fail.is_some() || request.has_thrown,
            Ended::ModelMissing { deletes, .. } => !deletes,
            Ended::Threw(_) | Ended::TimedOut => true,
        };
        if let Some(stop) = self.shared.triage.stats.ended(mapping, has_failed) {
            tracing::error!(
                mapping = stop.target,
                failures = stop.failures,
                runs = stop.runs,
                "a canary stopped itself, as too many of its last runs failed: its jobs go the way of unmapped ones until this worker starts again or hears of `artisand canary:resume`"
            );
            self.shared.tell(Event::CanaryStopped(&stop));
        }
    }

    /// Says that the stop deadline has cut a job, and what that means for it.
    pub(super) fn log_cut(&self, info: &JobInfo, elapsed: Duration) {
        let rules = Rules::of(&info.payload.limits, &self.shared.defaults);
        let next = info.attempts.saturating_add(1);
        let now = self.shared.triage.clock.now();
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
            ?elapsed,
            becomes,
            "job stopped at the deadline and released"
        );
    }

    /// What becomes of a job that was run and whose chain cannot go on.
    async fn cannot_follow(
        &self,
        info: &JobInfo,
        rules: &Rules,
        why: String,
        name: &str,
    ) -> (Ended, Decision) {
        tracing::error!(
            job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
            job.class = &*info.payload.shown_name(),
            error = why,
            "a job was run, and its chain cannot go on"
        );
        let ended = Ended::Threw(FailureText::new("Artisand\\ChainError", why));
        let asked = Asked::default();
        let exceptions = self.count_exception(info, rules, &ended, &asked).await;
        let now = self.shared.triage.clock.now();
        let of_ended = ended.clone();
        let decision = after_attempt(rules, info.attempts, of_ended, asked, exceptions, now, name);
        (ended, decision)
    }

    /// Runs the handler with all that is around it; what it asked for, too.
    async fn run_through(
        &self,
        handler: &dyn Handler,
        pipeline: &Pipeline,
        context: &JobContext,
        timeout: Option<Duration>,
        until: Option<Arc<UntilProcessing>>,
        info: &Arc<JobInfo>,
    ) -> (Outcome, Request) {
        let services = &self.shared.triage.services;
        let pipeline = around(pipeline, until.as_ref(), services.version);
        let stop = &self.shared.stop;
        let run = attempt::run(handler, &pipeline, context, timeout, stop);
        let turns = &self.shared.turns;
        let outcome = turns.watch(info, self.number, timeout, run).await;
        let request = context.take_request();
        let was_killed = matches!(
            outcome,
            Outcome::TimedOut | Outcome::Stuck | Outcome::Stopped
        );
        let is_kept = was_killed || request.release.is_some() || request.discard;
        if let Some(until) = until.filter(|_| !is_kept) {
            until.free_at_the_end(services).await;
        }
        (outcome, request)
    }

    /// Whether a job whose model is gone is deleted; not where nothing says so, as in Laravel.
    fn deletes_when_missing_models(&self, info: &JobInfo) -> bool {
        let deletes = self
            .shared
            .triage
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

    /// Counts the exception that ended an attempt, where the job has a limit of them.
    ///
    /// As in Laravel also if another limit fails the job, but not if it has failed itself.
    async fn count_exception(
        &self,
        info: &JobInfo,
        rules: &Rules,
        ended: &Ended,
        asked: &Asked,
    ) -> Option<i64> {
        let is_exception = matches!(ended, Ended::Threw(_) | Ended::TimedOut);
        if !is_exception || asked.fail.is_some() || asked.delete || asked.discard {
            return None;
        }
        let (cache, uuid) = (self.shared.cache.as_ref()?, info.payload.uuid.as_ref()?);
        let most = rules.max_exceptions?;
        let counting = cache::count_exception(cache, uuid.as_str(), most);
        let counted = tokio::select! {
            counted = tokio::time::timeout(COUNTING, counting) => counted,
            // The job has to be given back, now.
            () = self.shared.stop.cancelled() => return None,
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

    /// Whether the job may begin: not once its reservation has ended, as another worker may have it then.
    ///
    /// A reply that took long, or a process that was stopped meanwhile: the queue is asked, and only then.
    async fn is_ours(&self) -> bool {
        let (Some(lease), now) = (self.job.lease, self.shared.triage.clock.now()) else {
            return true;
        };
        if now.plus(CLOCKS_DIFFER) < lease {
            return true;
        }
        // As long as the reservation was made for.
        let until = now.plus(self.shared.retry_after.unwrap_or_default());
        let asked = (self.shared.confirm)(Arc::clone(&self.job), until);
        let is_ours = tokio::select! {
            is_ours = tokio::time::timeout(CONFIRMING, asked) => is_ours.unwrap_or(false),
            () = self.shared.stop.cancelled() => false,
        };
        // Set once, here.
        let _ = self.lease.set(until);
        is_ours
    }

    /// When another worker may have the job unless it is renewed; `None` for never.
    pub(super) fn lease(&self) -> Option<UnixSeconds> {
        self.lease.get().copied().or(self.job.lease)
    }

    /// The second at which Laravel's reservation, which nobody renews, would have ended.
    pub(super) fn reservation_end(&self, now: UnixSeconds) -> UnixSeconds {
        self.lease().map_or(now, |lease| lease.max(now))
    }

    /// Records a failure and deletes the job, then tells the handler.
    async fn fail(
        &self,
        handler: Option<(&dyn Handler, JobContext)>,
        info: Arc<JobInfo>,
        completion: &Completion,
        (failure, by, elapsed): (FailureText, FailedBy, Duration),
    ) {
        tracing::error!(
            job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
            job.class = &*info.payload.shown_name(),
            attempts = info.attempts,
            // As text: what a payload or a program says is quoted then, and forges no line.
            reason = failure.to_string(),
            "job failed for good"
        );
        let record = FailedJob {
            uuid: info.payload.uuid.as_ref().map(ToString::to_string),
            connection: info.connection.to_string(),
            queue: info.queue.to_string(),
            payload: String::from_utf8_lossy(&self.job.payload).into_owned(),
            exception: php_text(&failure, info.payload.resolve_name()),
            failed_at: self.shared.triage.clock.now().0,
        };
        let mut effects = vec![Effect::Append(Spool::FailedJobs, record.to_json())];
        effects.extend(
            completion
                .on_failure(&self.shared.triage, &info, &failure)
                .await,
        );
        let report = Report::Ended {
            info,
            elapsed,
            kind: EndKind::Failed {
                failure: failure.clone(),
                ended: by,
            },
        };
        let (done, settled) = oneshot::channel();
        self.send(Settlement::Finish(effects), report, Some(done))
            .await;
        // Told only of failures that were written down by us.
        if let (Some((handler, context)), Some(Settled::Done)) =
            (handler, self.wait_until(settled).await)
        {
            let told = attempt::failed(
                handler,
                context,
                Arc::new(failure),
                self.shared.defaults.timeout,
            )
            .await;
            if let Err(error) = told {
                tracing::error!(
                    job.uuid = record.uuid,
                    error,
                    "the failed hook of a job did not end well"
                );
            }
        }
    }

    pub(super) async fn settle(&self, settlement: Settlement, report: Report) {
        if !self.shared.is_sequential {
            return self.send(settlement, report, None).await;
        }
        let (done, settled) = oneshot::channel();
        self.send(settlement, report, Some(done)).await;
        self.wait_until(settled).await;
    }

    /// Waits until a job is settled; `None` if it could not be, which was reported.
    pub(super) async fn wait_until(&self, settled: oneshot::Receiver<Settled>) -> Option<Settled> {
        self.shared.only_settling.fetch_add(1, Ordering::Relaxed);
        let settled = settled.await.ok();
        self.shared.only_settling.fetch_sub(1, Ordering::Relaxed);
        settled
    }

    pub(super) async fn send(
        &self,
        settlement: Settlement,
        report: Report,
        done: Option<oneshot::Sender<Settled>>,
    ) {
        if matches!(settlement, Settlement::LeaveUntil(_)) {
            // A renewal on its way would push the end ahead again.
            self.shared.running.remove(self.number);
        }
        let verdict = Verdict {
            job: Arc::clone(&self.job),
            settlement,
            number: self.number,
            report,
            done,
        };
        if self.shared.verdicts.send(verdict).await.is_ok() {
            self.is_handed_over.store(true, Ordering::Relaxed);
        } else {
            tracing::error!(queue = %self.job.queue, "nobody settles jobs any more; a job stays reserved");
        }
    }
}

/// The lock of a job that is unique only until it is run.
///
/// Since Laravel 13.5, where nothing says whose the lock is, only the first
/// attempt frees it: later it may be that of a job dispatched since.
fn until_processing(
    completion: &Completion,
    attempts: u32,
    version: Version,
) -> Option<Arc<UntilProcessing>> {
    let lock = completion.lock_until_processing()?;
    let may_free = attempts <= 1 || lock.owner.is_some() || !version.is_at_least(13, 5);
    may_free.then(|| Arc::new(UntilProcessing::new(lock.clone())))
}

/// The pipeline with the step that frees a lock: since 11.40 behind all middleware, before that ahead of it.
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

/// How far ahead the clock of another worker may be that looks for reservations that have ended.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);
/// How long the queue may take to say whether a job is still reserved.
const CONFIRMING: Duration = Duration::from_secs(3);

/// How long the cache may take to count an exception.
const COUNTING: Duration = Duration::from_secs(3);

/// The settlement of a job that is gone, and what follows.
fn deleted(effects: Vec<Effect>) -> Settlement {
    if effects.is_empty() {
        Settlement::Delete
    } else {
        Settlement::Finish(effects)
    }
}

fn log_outcome(info: &JobInfo, outcome: &Outcome, ended: &Ended, elapsed: Duration) {
    let uuid = info.payload.uuid.as_ref().map(JobUuid::bounded);
    let class = &*info.payload.shown_name();
    match outcome {
        Outcome::Finished => {
            tracing::debug!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                ?elapsed,
                "job finished"
            );
        }
        Outcome::Threw(error) if matches!(ended, Ended::ModelMissing { .. }) => {
            tracing::info!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                error = with_causes(&**error),
                "a model of the job is gone"
            );
        }
        Outcome::Threw(error) => {
            tracing::error!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                error = with_causes(&**error),
                "job threw"
            );
        }
        Outcome::Panicked(message) => {
            tracing::error!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                message,
                "job panicked"
            );
        }
        Outcome::TimedOut => {
            tracing::error!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                ?elapsed,
                "job timed out"
            );
        }
        Outcome::Stuck => {
            tracing::error!(
                job.uuid = uuid,
                job.class = class,
                attempts = info.attempts,
                "job timed out and its blocking handler does not return; the worker stops after its other jobs"
            );
        }
        // Said with what becomes of it.
        Outcome::Stopped => {}
    }
}
