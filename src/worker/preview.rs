//! What a worker would make of waiting jobs, for those who only look.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::attempt::with_causes;
use super::event::Observers;
use super::fetch::find;
use super::job::{Company, Shared};
use super::options::WorkerOptions;
use super::tally::Tallies;
use crate::handler::{JobContext, JobInfo, Route, Router, Services, panic_text};
use crate::payload::{Payload, Target};
use crate::queue::{ConnectionName, QueueName};

/// What a worker would make of waiting jobs, without one.
pub(crate) struct Preview(Shared);

impl Preview {
    /// A worker of this connection.
    pub(crate) fn new(
        router: Arc<Router>,
        services: Arc<Services>,
        connection: ConnectionName,
    ) -> Self {
        let options = WorkerOptions::default();
        Self(Shared {
            tallies: Tallies::new(&router),
            router,
            connection,
            defaults: options.defaults,
            is_sequential: true,
            has_timeouts: true,
            rest: options.rest,
            confirm: Box::new(|_, _| Box::pin(async { true })),
            retry_after: None,
            clock: options.clock,
            verdicts: mpsc::channel(1).0,
            running: Arc::default(),
            turns: Arc::default(),
            observers: Observers::default(),
            stop: CancellationToken::new(),
            company: Company::default(),
            stopping: CancellationToken::new(),
            distrusted: Mutex::default(),
            refused: Mutex::default(),
            cache: None,
            pool: None,
            services,
            can_sign: OnceLock::new(),
            is_on_queue: Box::new(|_| false),
            recording: None,
            only_settling: AtomicUsize::default(),
        })
    }

    /// Reads the input of a job as its handler would, also one that only looks; `None` if no handler is to.
    pub(crate) fn check(&self, payload: &Payload, queue: &QueueName) -> Option<Result<(), String>> {
        let mut payload = payload.clone();
        let handler = match find(&self.0, &mut payload, queue).ok()? {
            Route::Handler { handler, .. } => handler,
            // The last are those that their mapping gives to PHP.
            Route::Forward(_)
            | Route::Unmapped
            | Route::Beside {
                mismatch: Some(_), ..
            } => return None,
            // What it would be without canary and shadow: others of its class are run, or will be.
            Route::Beside { .. } => match self.0.router.route(&Target::of(&payload).ok()?) {
                Route::Handler { handler, .. } => handler,
                _ => return None,
            },
        };
        let info = JobInfo {
            connection: self.0.connection.clone(),
            queue: queue.clone(),
            attempts: payload.attempts.unwrap_or(0).saturating_add(1),
            payload: Arc::new(payload),
            body: Arc::default(),
        };
        let services = Arc::clone(&self.0.services);
        let context = JobContext::new(Arc::new(info), CancellationToken::new(), services);
        let check = AssertUnwindSafe(|| handler.check(&context));
        Some(match catch_unwind(check) {
            Ok(read) => read.map_err(|error| with_causes(&*error)),
            Err(panic) => Err(format!("it panicked: {}", panic_text(&*panic))),
        })
    }

    /// Why a job that has a mapping would not be run.
    pub(crate) fn refusal(&self, payload: &Payload, queue: &QueueName) -> Option<String> {
        match find(&self.0, &mut payload.clone(), queue) {
            Err(why) => Some(why),
            Ok(Route::Beside { mismatch, .. }) => mismatch.map(|why| why.to_string()),
            Ok(_) => None,
        }
    }
}
