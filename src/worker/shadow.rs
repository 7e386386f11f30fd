//! A handler that looks at jobs that PHP runs, and may compare what it would have done.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::triage::{Triage, check_input};
use super::triaged::Bypass;
use crate::handler::{BoxError, Handler, JobContext, JobInfo, RunInPhp, panic_text};
use crate::payload::JobUuid;
use crate::shown::with_causes;

/// Comparisons at the same time; jobs beyond that are not compared.
static COMPARISONS: Semaphore = Semaphore::const_new(64);
/// How long a comparison may take.
const COMPARING: Duration = Duration::from_secs(60);

/// A handler that looks at a job that PHP runs.
pub(super) struct Shadow {
    handler: Arc<dyn Handler>,
    mapping: usize,
    context: JobContext,
    is_readable: bool,
}

impl Shadow {
    /// Reads the job's input, and asks what would keep the handler from running the job.
    pub(super) fn check(triage: &Triage, bypass: Bypass, info: &Arc<JobInfo>) -> Self {
        let Bypass {
            mapping,
            handler,
            pipeline,
            ..
        } = bypass;
        let services = Arc::clone(&triage.app.services);
        let context = JobContext::new(Arc::clone(info), CancellationToken::new(), services);
        let (payload, queue) = (&info.payload, &info.queue);
        let fit = triage.fit(payload, queue, mapping, &pipeline);
        let checked = check_input(&*handler, &context)
            .and_then(|()| fit.map(drop).map_err(|refusal| refusal.to_string()));
        if let Some(counters) = triage.stats.of(mapping) {
            let counter = match checked {
                Ok(()) => &counters.shadow.readable,
                Err(_) => &counters.shadow.unreadable,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = &checked
                && counters.note_said()
            {
                tracing::warn!(
                    job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
                    job.class = &*info.payload.shown_name(),
                    error,
                    "a shadow cannot read a job: its handler would fail"
                );
            }
        }
        Self {
            handler,
            mapping,
            context,
            is_readable: checked.is_ok(),
        }
    }

    /// Compares what the handler would do with what PHP did, if it can.
    pub(super) async fn compare(self, triage: &Triage, stop: &CancellationToken, run: RunInPhp) {
        if !self.is_readable {
            return;
        }
        let Some(counters) = triage.stats.of(self.mapping) else {
            return;
        };
        // A slow one must not keep jobs waiting, nor memory.
        let Ok(_permit) = COMPARISONS.try_acquire() else {
            return;
        };
        let payload = Arc::clone(&self.context.info().payload);
        let comparing = async {
            match self.handler.compare(self.context.clone(), Arc::new(run)) {
                Some(comparing) => comparing.await.map(Some),
                None => Ok::<_, BoxError>(None),
            }
        };
        let comparing = AssertUnwindSafe(comparing).catch_unwind();
        let compared = tokio::select! {
            compared = tokio::time::timeout(COMPARING, comparing) => compared,
            () = stop.cancelled() => return,
        };
        let different = match compared {
            Ok(Ok(Ok(None))) => return,
            Ok(Ok(Ok(Some(())))) => None,
            Ok(Ok(Err(error))) => Some(with_causes(&*error)),
            Ok(Err(panic)) => Some(format!("it panicked: {}", panic_text(&*panic))),
            Err(_) => Some(format!("it took longer than {COMPARING:?}")),
        };
        counters.shadow.compared.fetch_add(1, Ordering::Relaxed);
        let Some(difference) = different else { return };
        counters.shadow.different.fetch_add(1, Ordering::Relaxed);
        if counters.note_said() {
            tracing::warn!(
                job.uuid = payload.uuid.as_ref().map(JobUuid::bounded),
                job.class = &*payload.shown_name(),
                difference,
                "a shadow compared a job with its run in PHP, and there is a difference"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::cache::{Cache, Stores};
    use crate::handler::{self, EndInPhp, Services};
    use crate::routing::{Mapping, Mode, UnmappedPolicy};
    use crate::worker::stats::MappingCounts;
    use crate::worker::test_support::{
        S, app, info, job, mapping, nothing, payload, payload_of, router, services,
    };
    use crate::worker::triaged::Triaged;

    #[derive(Deserialize)]
    struct Job {
        n: u32,
    }

    fn triage(handler: impl Handler, services: Services) -> Triage {
        let shadow = Mapping {
            mode: Mode::Shadow,
            ..mapping("App\\Jobs\\A")
        };
        let policy = UnmappedPolicy::Forward("php".into());
        Triage::new(app(router(vec![shadow], policy, handler), services))
    }

    /// Looks at a job and compares it with its run in PHP; returns the counts, and how long that took.
    async fn look(
        triage: &Triage,
        payload: &[u8],
        stop: &CancellationToken,
    ) -> (MappingCounts, Duration) {
        let candidate = triage.triage(payload, &"default".into()).unwrap();
        let Triaged::Bypass(bypass) = candidate.triaged else {
            panic!("{candidate:?}");
        };
        triage.stats.bypassed(0, false);
        let run = RunInPhp {
            end: EndInPhp::Deleted,
            thrown: None,
            elapsed: S(1),
        };
        let began = tokio::time::Instant::now();
        let shadow = Shadow::check(triage, *bypass, &info(payload));
        shadow.compare(triage, stop, run).await;
        (triage.stats.read().remove(0), began.elapsed())
    }

    fn values(counts: &MappingCounts) -> [u64; 4] {
        let MappingCounts {
            readable,
            unreadable,
            compared,
            different,
            ..
        } = *counts;
        [readable, unreadable, compared, different]
    }

    #[tokio::test(start_paused = true)]
    async fn a_comparison_ends_with_one_count_whatever_it_does() {
        async fn run(_: Job, _: JobContext) -> Result<(), BoxError> {
            panic!("a shadow runs no job");
        }
        let handler = handler::function(run).with_compare(
            |job: Job, _: JobContext, run: Arc<RunInPhp>| async move {
                match job.n {
                    1 if run.has_succeeded() => Ok::<(), BoxError>(()),
                    2 => Err("another total".into()),
                    3 => panic!("a bug"),
                    _ => std::future::pending().await,
                }
            },
        );
        let triage = triage(handler, services("13.31.0"));
        let stop = CancellationToken::new();
        #[rustfmt::skip]
        let rows = [
            (1, [1, 0, 1, 0], S(0)),
            (2, [2, 0, 2, 1], S(0)),
            (3, [3, 0, 3, 2], S(0)),
            // It must not hold up the worker's stop, nor keep its memory.
            (4, [4, 0, 4, 3], COMPARING),
        ];
        for (n, expected, takes) in rows {
            let (counts, took) = look(&triage, &job(n), &stop).await;
            assert_eq!((values(&counts), took), (expected, takes), "{n}");
        }
        stop.cancel();
        let (counts, took) = look(&triage, &job(4), &stop).await;
        assert_eq!((values(&counts), took), ([5, 0, 4, 3], S(0)));
        // A job that the handler cannot read is not compared.
        let command = "O:10:\"App\\Jobs\\A\":0:{}";
        let odd = payload_of("App\\Jobs\\A", command, 1, &json!({}));
        let (counts, _) = look(&triage, &odd, &CancellationToken::new()).await;
        assert_eq!(values(&counts), [5, 1, 4, 3]);
        assert!(counts.is_shadow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_compares_nothing_is_not_counted_as_compared() {
        let triage = triage(nothing(), services("13.31.0"));
        let (counts, _) = look(&triage, &job(1), &CancellationToken::new()).await;
        assert_eq!(values(&counts), [1, 0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_could_not_be_run_here_counts_as_unreadable() {
        let stores = Stores::new("x", |_: &str| {
            Err::<Cache, _>("its driver is not supported")
        });
        let services = Services {
            stores: Some(stores),
            ..services("13.31.0")
        };
        let triage = triage(nothing(), services);
        let limited = payload("A", 1, &json!({"maxExceptions": 2}));
        let (counts, _) = look(&triage, &limited, &CancellationToken::new()).await;
        assert_eq!(values(&counts), [0, 1, 0, 0]);
    }
}
