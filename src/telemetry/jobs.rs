//! Figures of jobs, counted from the worker's events.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::handler::{FailureText, JobInfo};
use crate::listeners::ListenerFigures;
use crate::outbox::hand_over::shown_name;
use crate::queue::{CallListener, ConnectionName, QueueName};
use crate::routing::Runner;
use crate::telemetry::minutes::{Minute, Minutes};
use crate::telemetry::outcome::OutcomeLabel;
use crate::telemetry::uncounted::Uncounted;
use crate::worker::{Event, JobEnd, Observer};

/// Most pairs of queue and class that are counted one by one: names come from payloads, which are not trusted.
const MOST_CLASSES: usize = 200;
/// The name under which all further classes are counted together.
const OTHER: &str = "other";
/// Upper bounds of times, in seconds: those of OpenTelemetry, and four for long jobs.
const SECONDS: [f64; 18] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
    300.0, 900.0,
];
/// Upper bounds of round trips, in seconds.
const ROUND_TRIP_SECONDS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0,
];

impl EncodeLabelValue for OutcomeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.as_str().encode(encoder)
    }
}

impl EncodeLabelValue for Runner {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.as_str().encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QueueLabels {
    pub(super) connection: String,
    pub(super) queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    connection: String,
    queue: String,
    job_class: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    connection: String,
    queue: String,
    job_class: String,
    outcome: OutcomeLabel,
    runner: Runner,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    connection: String,
    queue: String,
    job_class: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SinkLabels {
    sink: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

/// Counts what the worker's events say. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobFigures(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: String,
    state: Mutex<State>,
    jobs: Family<JobLabels, Counter>,
    failed: Family<FailureLabels, Counter>,
    runtime: Histograms<ClassLabels>,
    last_success: Family<ClassLabels, Seconds>,
    wait: Histograms<QueueLabels>,
    renewed: Family<QueueLabels, Counter>,
    lost: Family<QueueLabels, Counter>,
    calls: Histograms<CallLabels>,
    call_errors: Family<CallLabels, Counter>,
    store_errors: Family<StoreLabels, Counter>,
    listeners: ListenerFigures,
    lost_records: Family<SinkLabels, Counter>,
}

#[derive(Debug, Default)]
struct State {
    /// What is counted, by queue and class.
    queues: HashMap<QueueName, QueueCounts>,
    classes: usize,
    /// Jobs that run, by the address of their facts, which stay where they are as long as they are here.
    running: HashMap<usize, Begun>,
    uncounted: Uncounted,
    paused: Vec<QueueName>,
    is_paused: bool,
    totals: Totals,
}

#[derive(Debug)]
struct QueueCounts {
    labels: QueueLabels,
    wait: Histogram,
    minutes: Minutes,
    classes: HashMap<Box<str>, Class>,
}

/// The figures of one class on one queue.
#[derive(Debug)]
struct Class {
    labels: ClassLabels,
    runtime: Histogram,
    last_success: Option<Seconds>,
    minutes: Minutes,
    /// A class has few of them.
    jobs: Vec<((OutcomeLabel, Runner), Counter)>,
}

#[derive(Debug)]
struct Begun {
    job: Arc<JobInfo>,
    since: Instant,
}

/// A job that runs.
#[derive(Debug)]
pub(super) struct RunningJob {
    pub(super) job: Arc<JobInfo>,
    pub(super) elapsed: Duration,
}

/// What all jobs came to since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Attempts that ended.
    pub attempts: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Attempts after which the job waits for another one.
    pub released: u64,
}

impl Totals {
    fn count(&mut self, outcome: OutcomeLabel) {
        self.attempts += 1;
        match outcome {
            OutcomeLabel::Done => self.done += 1,
            OutcomeLabel::Failed => self.failed += 1,
            OutcomeLabel::Released | OutcomeLabel::Retried => self.released += 1,
            OutcomeLabel::Forwarded | OutcomeLabel::Quarantined | OutcomeLabel::Lost => {}
        }
    }
}

impl Minute {
    fn count(&mut self, outcome: OutcomeLabel, elapsed: Duration) {
        match outcome {
            OutcomeLabel::Done => self.done += 1,
            OutcomeLabel::Failed => self.failed += 1,
            OutcomeLabel::Released | OutcomeLabel::Retried => self.released += 1,
            // Another worker counts it, or it did not run.
            OutcomeLabel::Forwarded | OutcomeLabel::Quarantined | OutcomeLabel::Lost => return,
        }
        self.ran(elapsed);
    }
}

/// What is known of the worker's jobs at a moment.
#[derive(Debug)]
pub(super) struct Moment {
    /// Jobs that run, the longest first.
    pub(super) running: Vec<RunningJob>,
    /// Queues that the app has paused.
    pub(super) paused: Vec<QueueName>,
    /// Whether the worker is paused.
    pub(super) is_paused: bool,
    pub(super) totals: Totals,
}

/// What the last hour came to, by queue and by class, those with most attempts first.
#[derive(Debug, Default)]
pub(super) struct Hour {
    pub(super) queues: Vec<(String, Minutes)>,
    pub(super) classes: Vec<(String, Minutes)>,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

fn round_trip_histogram() -> Histogram {
    Histogram::new(ROUND_TRIP_SECONDS)
}

impl JobFigures {
    /// Counts nothing yet; for jobs of this connection.
    pub fn new(connection: &ConnectionName) -> Self {
        Self(Arc::new(Inner {
            connection: connection.to_string(),
            state: Mutex::default(),
            jobs: Family::default(),
            failed: Family::default(),
            runtime: Family::new_with_constructor(histogram),
            last_success: Family::default(),
            wait: Family::new_with_constructor(histogram),
            renewed: Family::default(),
            lost: Family::default(),
            calls: Family::new_with_constructor(round_trip_histogram),
            call_errors: Family::default(),
            store_errors: Family::default(),
            listeners: ListenerFigures::default(),
            lost_records: Family::default(),
        }))
    }

    /// Adds the figures to what is served.
    pub(super) fn register(&self, registry: &mut Registry) {
        let all = &*self.0;
        registry.register(
            "jobs",
            "Attempts that ended and jobs that moved, by what became of the job and what ran it",
            all.jobs.clone(),
        );
        registry.register(
            "jobs_failed",
            "Jobs that failed for good, by reason",
            all.failed.clone(),
        );
        registry.register_with_unit(
            "job_runtime",
            "How long attempts ran",
            Unit::Seconds,
            all.runtime.clone(),
        );
        registry.register_with_unit(
            "job_last_success_timestamp",
            "When a job of the class last ended well, in unix seconds",
            Unit::Seconds,
            all.last_success.clone(),
        );
        registry.register_with_unit(
            "job_wait",
            "How long jobs waited for their first attempt after they were due, as far as the payload tells",
            Unit::Seconds,
            all.wait.clone(),
        );
        registry.register(
            "reservation_renewals",
            "Reservations of running jobs that were renewed",
            all.renewed.clone(),
        );
        registry.register(
            "reservations_lost",
            "Running jobs whose reservation was gone, so that another worker may have run them too",
            all.lost.clone(),
        );
        registry.register_with_unit(
            "redis_round_trip",
            "How long Redis took to answer, by call",
            Unit::Seconds,
            all.calls.clone(),
        );
        registry.register(
            "redis_errors",
            "Calls to Redis that failed",
            all.call_errors.clone(),
        );
        registry.register(
            "store_errors",
            "Times that a database, a cache or a queue refused what an ended job has left to do, which is tried again",
            all.store_errors.clone(),
        );
        registry.register(
            "telemetry_errors",
            "Records and entries about jobs that were lost on their way to where operators look; the jobs are not affected",
            all.lost_records.clone(),
        );
        all.listeners.register(registry);
    }

    /// Counts what is lost on its way to `sink`.
    pub fn losses(&self, sink: &'static str) -> impl Fn(u64) + Send + Sync + use<> {
        let counter = (self.0.lost_records).get_or_create_owned(&SinkLabels { sink });
        move |lost| {
            counter.inc_by(lost);
        }
    }

    /// The figures of the app's listeners, which are served with the others.
    pub fn listeners(&self) -> ListenerFigures {
        self.0.listeners.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the counts as they are or one further.
        (self.0.state.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known at this moment.
    pub(super) fn now(&self) -> Moment {
        let state = self.state();
        let mut running: Vec<_> = (state.running.values())
            .map(|begun| RunningJob {
                job: Arc::clone(&begun.job),
                elapsed: begun.since.elapsed(),
            })
            .collect();
        running.sort_by_key(|job| std::cmp::Reverse(job.elapsed));
        Moment {
            running,
            paused: state.paused.clone(),
            is_paused: state.is_paused,
            totals: state.totals,
        }
    }

    /// What the hour that ends with this minute came to, for the queues and classes with most attempts.
    pub(super) fn hour(&self, now: u64, most_queues: usize, most_classes: usize) -> Hour {
        let state = self.state();
        let queues = state.queues.iter();
        let queues = queues.map(|(queue, counts)| (queue.as_str(), &counts.minutes));
        // A class may be on several queues.
        let mut classes = HashMap::<&str, Vec<&Minutes>>::new();
        for (class, counts) in state.queues.values().flat_map(|queue| &queue.classes) {
            classes.entry(class).or_default().push(&counts.minutes);
        }
        let queues = queues.map(|(queue, minutes)| (queue, vec![minutes]));
        Hour {
            queues: busiest(queues, now, most_queues),
            classes: busiest(classes.into_iter(), now, most_classes),
        }
    }

    /// How many jobs run, and what all jobs came to.
    pub fn totals(&self) -> (usize, Totals) {
        let state = self.state();
        (state.running.len(), state.totals)
    }

    fn popped(&self, job: &JobInfo) {
        if job.attempts > 1 {
            return;
        }
        let Some(due) = job.payload.first_due() else {
            return;
        };
        let now = unix_seconds();
        let mut state = self.state();
        if !state.uncounted.is_first(job) {
            return;
        }
        let queue = self.0.queue(&mut state.queues, &job.queue);
        // Clocks of producer and worker may differ.
        let waited = (now - due).max(0.0);
        queue.wait.observe(waited);
        let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
        queue.minutes.at(minute(now)).waited(waited);
    }

    fn ended(&self, end: &JobEnd<'_>) {
        let (outcome, now) = (OutcomeLabel::of(end), unix_seconds());
        let mut state = self.state();
        state.running.remove(&address(end.job));
        if !end.is_counted {
            state.uncounted.note(end.job);
        }
        state.totals.count(outcome);
        let queue = self.0.queue(&mut state.queues, &end.job.queue);
        queue.minutes.at(minute(now)).count(outcome, end.elapsed);
        let class = self.0.class(&mut state, end.job);
        class.minutes.at(minute(now)).count(outcome, end.elapsed);
        class.runtime.observe(end.elapsed.as_secs_f64());
        self.0.count(class, outcome, end.runner);
        if outcome == OutcomeLabel::Done {
            let last = (class.last_success)
                .get_or_insert_with(|| self.0.last_success.get_or_create_owned(&class.labels));
            last.set(now);
        }
    }

    fn failed(&self, end: &JobEnd<'_>) {
        let mut state = self.state();
        let ClassLabels {
            connection,
            queue,
            job_class,
        } = self.0.class(&mut state, end.job).labels.clone();
        let labels = FailureLabels {
            connection,
            queue,
            job_class,
            reason: end.failure.map_or("none", reason),
        };
        self.0.failed.get_or_create(&labels).inc();
    }
}

impl Inner {
    fn of_queue(&self, queue: &QueueName) -> QueueLabels {
        QueueLabels {
            connection: self.connection.clone(),
            queue: queue.to_string(),
        }
    }

    fn queue<'a>(
        &self,
        queues: &'a mut HashMap<QueueName, QueueCounts>,
        queue: &QueueName,
    ) -> &'a mut QueueCounts {
        // A worker has few queues, all named by its operator.
        queues.entry(queue.clone()).or_insert_with(|| {
            let labels = self.of_queue(queue);
            QueueCounts {
                wait: self.wait.get_or_create_owned(&labels),
                labels,
                minutes: Minutes::default(),
                classes: HashMap::new(),
            }
        })
    }

    fn class<'a>(&self, state: &'a mut State, job: &JobInfo) -> &'a mut Class {
        let queue = self.queue(&mut state.queues, &job.queue);
        let name = &*shown_name(&job.payload);
        let is_new = !queue.classes.contains_key(name);
        let name = if is_new && state.classes >= MOST_CLASSES {
            OTHER
        } else {
            state.classes += usize::from(is_new);
            name
        };
        let labels = &queue.labels;
        if queue.classes.contains_key(name) {
            // Known classes cost no allocation.
            return queue.classes.get_mut(name).expect("it is there");
        }
        queue.classes.entry(name.into()).or_insert_with(|| {
            let labels = ClassLabels {
                connection: labels.connection.clone(),
                queue: labels.queue.clone(),
                job_class: name.to_owned(),
            };
            Class {
                runtime: self.runtime.get_or_create_owned(&labels),
                labels,
                last_success: None,
                minutes: Minutes::default(),
                jobs: Vec::new(),
            }
        })
    }

    fn count(&self, class: &mut Class, outcome: OutcomeLabel, runner: Runner) {
        let kind = (outcome, runner);
        if let Some((_, counter)) = class.jobs.iter().find(|(known, _)| *known == kind) {
            counter.inc();
            return;
        }
        let counter = self.jobs.get_or_create_owned(&JobLabels {
            connection: class.labels.connection.clone(),
            queue: class.labels.queue.clone(),
            job_class: class.labels.job_class.clone(),
            outcome,
            runner,
        });
        counter.inc();
        class.jobs.push((kind, counter));
    }
}

/// Those with most attempts in the hour that ends with this minute, the busiest first.
fn busiest<'a>(
    series: impl Iterator<Item = (&'a str, Vec<&'a Minutes>)>,
    now: u64,
    most: usize,
) -> Vec<(String, Minutes)> {
    let mut series: Vec<_> = series
        .map(|(name, parts)| {
            let attempts = parts.iter().map(|part| part.sum(now).attempts());
            (attempts.sum::<u64>(), name, parts)
        })
        .filter(|(attempts, ..)| *attempts > 0)
        .collect();
    series.sort_by_key(|(attempts, name, _)| (std::cmp::Reverse(*attempts), *name));
    let busiest = series.into_iter().take(most);
    let merged = busiest.map(|(_, name, parts)| {
        let mut minutes = Minutes::default();
        for part in parts {
            minutes.merge(&part.latest(now));
        }
        (name.to_owned(), minutes)
    });
    merged.collect()
}

/// The minute of a moment.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time after 1970, in minutes"
)]
pub(super) fn minute(unix_seconds: f64) -> u64 {
    (unix_seconds / 60.0) as u64
}

fn address(job: &Arc<JobInfo>) -> usize {
    Arc::as_ptr(job).addr()
}

/// The current time in unix seconds.
pub(super) fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// Why a job failed for good, in one of a few words.
fn reason(failure: &FailureText) -> &'static str {
    match failure.class.rsplit('\\').next().unwrap_or_default() {
        "MaxAttemptsExceededException" => "attempts",
        "TimeoutExceededException" => "timeout",
        "ManuallyFailedException" => "failed by itself",
        "UnmappedJob" => "unmapped",
        _ => "exception",
    }
}

impl Observer for JobFigures {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::JobPopped(job) => self.popped(job),
            Event::JobProcessing { job, began } => {
                let begun = Begun {
                    job: Arc::clone(job),
                    since: *began,
                };
                self.state().running.insert(address(job), begun);
            }
            Event::JobAttempted(end) => self.ended(end),
            Event::JobGivenBack(job) => self.state().uncounted.note(job),
            Event::JobFailed(end) if !end.is_gone => self.failed(end),
            Event::JobForwarded { job, .. } => {
                let mut state = self.state();
                let class = self.0.class(&mut state, job);
                self.0.count(class, OutcomeLabel::Forwarded, Runner::None);
            }
            Event::JobsQuarantined { queue, count } => {
                let labels = JobLabels {
                    connection: self.0.connection.clone(),
                    queue: queue.to_string(),
                    // A payload that cannot be decoded has no class.
                    job_class: String::new(),
                    outcome: OutcomeLabel::Quarantined,
                    runner: Runner::None,
                };
                self.0.jobs.get_or_create(&labels).inc_by(*count as u64);
            }
            Event::ReservationsRenewed { queue, count } => {
                let labels = self.0.of_queue(queue);
                self.0.renewed.get_or_create(&labels).inc_by(*count as u64);
            }
            Event::ReservationLost(queue) => {
                self.0.lost.get_or_create(&self.0.of_queue(queue)).inc();
            }
            Event::StoreFailed(kind) => {
                let labels = StoreLabels { kind };
                self.0.store_errors.get_or_create(&labels).inc();
            }
            Event::WorkerPausing => self.state().is_paused = true,
            Event::WorkerResuming => self.state().is_paused = false,
            Event::WorkerQueuePaused(queue) => self.state().paused.push((*queue).clone()),
            Event::WorkerQueueResumed(queue) => {
                self.state().paused.retain(|paused| paused != *queue);
            }
            _ => {}
        }
    }

    /// Figures do not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }
}

impl CallListener for JobFigures {
    fn answered(&self, call: &'static str, took: Duration, has_failed: bool) {
        let labels = CallLabels { call };
        if has_failed {
            self.0.call_errors.get_or_create(&labels).inc();
        } else {
            let histogram = self.0.calls.get_or_create(&labels);
            histogram.observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;
    use crate::worker::JobResult;

    fn job(class: &str, attempts: u32) -> Arc<JobInfo> {
        let payload = format!(
            r#"{{"job":"{class}@run","uuid":"{class}","createdAt":1000000000,"delay":5,"attempts":0}}"#
        );
        Arc::new(JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts,
            payload: Arc::new(Payload::parse(payload.as_bytes()).unwrap()),
            body: Arc::default(),
            reserved: Arc::default(),
            trace: None,
        })
    }

    fn end<'a>(job: &'a Arc<JobInfo>, failure: Option<&'a FailureText>) -> JobEnd<'a> {
        JobEnd {
            job,
            elapsed: Duration::from_millis(20),
            ended: Instant::now(),
            result: JobResult::Deleted,
            failure,
            delay: None,
            is_counted: true,
            has_failed: failure.is_some(),
            is_gone: false,
            is_raised_by_php: false,
            is_heard_by_php: false,
            is_failure_heard_by_php: false,
            runner: Runner::Rust,
        }
    }

    fn text(figures: &JobFigures) -> String {
        let mut registry = Registry::default();
        figures.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn classes_beyond_the_bound_are_counted_together() {
        let figures = JobFigures::new(&"redis".into());
        for number in 0..MOST_CLASSES + 50 {
            let job = job(&format!("C{number}"), 1);
            let began = Instant::now();
            figures.on_event(&Event::JobProcessing { job: &job, began });
            figures.on_event(&Event::JobAttempted(&end(&job, None)));
        }
        let text = text(&figures);
        let classes = text.lines().filter(|line| line.starts_with("jobs_total{"));
        assert_eq!(classes.count(), MOST_CLASSES + 1);
        let others = r#"jobs_total{connection="redis",queue="default",job_class="other",outcome="done",runner="rust"} 50"#;
        assert!(text.contains(others), "{text}");
        assert_eq!(figures.totals().0, 0);
    }

    #[test]
    fn reservations_are_counted_by_their_queue() {
        let figures = JobFigures::new(&"redis".into());
        let queue = &"mail".into();
        figures.on_event(&Event::ReservationsRenewed { queue, count: 3 });
        figures.on_event(&Event::ReservationsRenewed { queue, count: 2 });
        figures.on_event(&Event::ReservationLost(queue));
        let text = text(&figures);
        for (name, count) in [("reservation_renewals", 5), ("reservations_lost", 1)] {
            let line = format!(r#"{name}_total{{connection="redis",queue="mail"}} {count}"#);
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn ends_are_told_apart() {
        let figures = JobFigures::new(&"redis".into());
        let job = job("C", 2);
        let failure = FailureText::new("Illuminate\\Queue\\MaxAttemptsExceededException", "");
        let with = |change: &dyn Fn(&mut JobEnd<'_>)| {
            let mut end = end(&job, None);
            change(&mut end);
            figures.on_event(&Event::JobAttempted(&end));
        };
        with(&|end| end.result = JobResult::Released);
        with(&|end| end.result = JobResult::Left);
        with(&|end| end.is_gone = true);
        with(&|end| end.runner = Runner::Php);
        let mut released = end(&job, Some(&failure));
        (released.result, released.has_failed) = (JobResult::Released, false);
        figures.on_event(&Event::JobAttempted(&released));
        let failed = end(&job, Some(&failure));
        figures.on_event(&Event::JobFailed(&failed));
        figures.on_event(&Event::JobAttempted(&failed));
        let text = text(&figures);
        for (outcome, runner, count) in [
            ("released", "rust", 1),
            ("retried", "rust", 2),
            ("lost", "rust", 1),
            ("done", "php", 1),
            ("failed", "rust", 1),
        ] {
            let line = format!(r#"outcome="{outcome}",runner="{runner}"}} {count}"#);
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(text.contains(r#"reason="attempts"} 1"#), "{text}");
        assert_eq!(
            figures.totals(),
            (
                0,
                Totals {
                    attempts: 6,
                    done: 1,
                    failed: 1,
                    released: 3,
                }
            )
        );
    }

    #[test]
    fn only_first_attempts_have_waited_since_they_were_due() {
        let figures = JobFigures::new(&"redis".into());
        assert_eq!(job("C", 1).payload.first_due(), Some(1_000_000_005.0));
        let pop = |job: &Arc<JobInfo>| figures.on_event(&Event::JobPopped(job));
        let [job, released, given_back] = ["C", "D", "E"].map(|class| job(class, 1));
        pop(&job);
        pop(&self::job("C", 2));
        // Their attempts do not count: the next ones are the first again.
        let mut end = end(&released, None);
        (end.result, end.is_counted) = (JobResult::Released, false);
        pop(&released);
        figures.on_event(&Event::JobAttempted(&end));
        pop(&released);
        pop(&given_back);
        figures.on_event(&Event::JobGivenBack(&given_back));
        pop(&given_back);
        let text = text(&figures);
        let waited = r#"job_wait_seconds_count{connection="redis",queue="default"} 3"#;
        assert!(text.contains(waited), "{text}");
    }
}
