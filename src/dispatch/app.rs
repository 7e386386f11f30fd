//! What dispatching needs of the app.

use std::sync::Arc;

use crate::handler::Services;
use crate::horizon::Horizon;
use crate::payload::LogContext;
use crate::time::Clock;

#[derive(Debug)]
pub(super) struct App {
    pub(super) services: Arc<Services>,
    /// Jobs that a handler dispatches inherit its log context.
    pub(super) context: Option<Arc<LogContext>>,
    pub(super) clock: Clock,
    /// Writers of Horizon's records, which end with this.
    pub(super) _horizons: Vec<Horizon>,
}
