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
