//! Where a job goes, as triage found out: the answer that travels with the job until it is settled.

use std::fmt;
use std::sync::Arc;

use crate::handler::{Handler, Pipeline};
use crate::payload::{self, Payload};
use crate::queue::QueueName;
use crate::worker::completion::Completion;
use crate::worker::completion::refusal::Refusal;

/// A job's payload and where the job goes.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) payload: Arc<Payload>,
    pub(super) triaged: Triaged,
}

/// What triage found out about a job, or why its payload cannot be read.
pub(super) type TriageResult = Result<Candidate, payload::Error>;

/// Where a job goes.
#[derive(Debug)]
pub(super) enum Triaged {
    /// A handler of this process runs the job.
    Run(Box<Routed>),
    /// The job's mapping does not run it: the policy for unmapped jobs applies.
    Bypass(Box<Bypass>),
    /// The job goes unchanged to the end of another queue.
    Forward(QueueName),
    /// The policy for unmapped jobs applies; the refusal says why, if the job has a mapping.
    Unmapped(Option<Refusal>),
}

/// A job that a handler runs here.
pub(super) struct Routed {
    /// Position of the mapping.
    pub(super) mapping: usize,
    pub(super) handler: Arc<dyn Handler>,
    /// The middleware around the handler.
    pub(super) pipeline: Pipeline,
    pub(super) completion: Completion,
}

/// A job that its mapping leaves to the policy for unmapped jobs.
pub(super) struct Bypass {
    /// Position of the mapping.
    pub(super) mapping: usize,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) pipeline: Pipeline,
    pub(super) reason: BypassReason,
}

/// Why a mapping does not run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BypassReason {
    /// The handler is a shadow, which only looks at jobs that PHP runs.
    Shadow,
    /// The job is not in the canary's share, or the canary has stopped itself.
    Canary,
    /// The job does not fit the handler's input; the text says why.
    Mismatch(String),
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routed")
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bypass")
            .field("mapping", &self.mapping)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::routing::UnmappedPolicy;
    use crate::worker::test_support::{
        app, mapping, nothing, object, payload_of, router, services,
    };
    use crate::worker::triage::Triage;

    #[test]
    fn what_is_shown_of_a_job_on_its_way_is_not_its_content() {
        let router = router(
            vec![mapping("App\\Jobs\\A")],
            UnmappedPolicy::Leave,
            nothing(),
        );
        let triage = Triage::new(app(router, services("13.31.0")));
        let command = object("App\\Jobs\\A", 1, "s:4:\"card\";s:4:\"4242\";");
        let payload = payload_of("App\\Jobs\\A", &command, 1, &serde_json::json!({}));
        let candidate = triage.triage(&payload, &"default".into()).unwrap();
        let shown = format!("{candidate:?}");
        assert!(
            shown.contains("Routed") && !shown.contains("4242"),
            "{shown}"
        );
    }
}
