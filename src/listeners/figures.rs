//! What became of the events, for metrics and the log.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Counts attempts whose events the app's listeners were to hear. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ListenerFigures {
    pub(super) raised: Counter,
    pub(super) missed: Counter,
    pub(super) threw: Counter,
    pub(super) ignored: Counter,
}

impl ListenerFigures {
    /// Adds the figures to what is served.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "listener_attempts",
            "Attempts whose events PHP raised for the app's listeners",
            self.raised.clone(),
        );
        registry.register(
            "listener_attempts_missed",
            "Attempts whose events PHP did not raise: there was no room, or its process died, hung or could not start",
            self.missed.clone(),
        );
        registry.register(
            "listener_exceptions",
            "Events whose listeners threw",
            self.threw.clone(),
        );
        registry.register(
            "listener_requests_ignored",
            "Requests of listeners to release, delete or fail a job that had ended",
            self.ignored.clone(),
        );
    }
}
