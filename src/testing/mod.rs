//! An app in memory, for tests of handlers and of programs that dispatch jobs.
//!
//! ```
//! use artisand::handler::{self, BoxError, JobContext};
//! use artisand::testing::App;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! #[serde(rename = "App\\Jobs\\SendReceipt", rename_all = "camelCase")]
//! struct SendReceipt {
//!     order_id: u64,
//! }
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! #[serde(rename = "App\\Jobs\\Archive", rename_all = "camelCase")]
//! struct Archive {
//!     order_id: u64,
//! }
//!
//! async fn send_receipt(job: SendReceipt, context: JobContext) -> Result<(), BoxError> {
//!     context.then(&Archive { order_id: job.order_id })?;
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), BoxError> {
//! let app = App::new().class::<SendReceipt>().class::<Archive>();
//! let end = app.run(handler::function(send_receipt), &SendReceipt { order_id: 42 }).await?;
//! assert!(end.is_processed());
//! assert_eq!(app.dispatched::<Archive>().once(), Archive { order_id: 42 });
//! # Ok(())
//! # }
//! ```
//!
//! Jobs run through the worker itself: limits, middleware of the handler, chains and effects are those of production.
//! No server is needed, and the clock stands still until [`App::advance`] moves it. There are no batches, caches and
//! databases here.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::app::Manifest;
use crate::dispatch::{Dispatch, DispatchError};
use crate::handler::{BoxError, Handler, JobContext, Services, input};
use crate::payload::{Encrypter, Kind, Pattern, Payload, Target, TargetPattern, Version};
use crate::php::Fields;
use crate::queue::{Connections, Destination, MemoryQueue, QueueName};
use crate::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use crate::time::{Clock, UnixSeconds};
use crate::worker::{Control, Event, JobEnd, JobResult, StopRules, Worker, WorkerOptions};

mod classes;
mod found;

pub use found::{Found, Pushed};

/// When tests begin: 2026-01-01 00:00 UTC.
const BEGIN: UnixSeconds = UnixSeconds(1_767_225_600);
/// The newest Laravel that artisand is proven beside.
const NEWEST: &str = "13.31.0";
/// Any 32 bytes.
const KEY: &str = "0123456789abcdef0123456789abcdef";
const CONNECTION: &str = "redis";

/// An app in memory: its queues, its classes, its clock.
#[derive(Debug)]
pub struct App {
    queue: Arc<MemoryQueue>,
    manifest: Manifest,
    now: Mutex<UnixSeconds>,
    tries: u32,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The job ran, or middleware skipped it, or it deleted itself.
    Processed,
    /// It will run again.
    Released {
        /// After this long.
        delay: Duration,
        /// What the handler returned as an error, if it did.
        failure: Option<String>,
    },
    /// It failed for good.
    Failed {
        /// Why: the message that `failed_jobs` would have.
        failure: String,
    },
}

impl Ended {
    /// Whether the job is done.
    pub fn is_processed(&self) -> bool {
        *self == Self::Processed
    }

    /// Why the attempt failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { failure } => Some(failure),
            Self::Released { failure, .. } => failure.as_deref(),
            Self::Processed => None,
        }
    }

    fn of(end: &JobEnd<'_>) -> Self {
        let failure = end.failure.map(ToString::to_string);
        match end.result {
            _ if end.has_failed => Self::Failed {
                failure: failure.unwrap_or_default(),
            },
            JobResult::Deleted => Self::Processed,
            JobResult::Released | JobResult::Left => Self::Released {
                delay: end.delay.unwrap_or_default(),
                failure,
            },
        }
    }
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

impl App {
    /// An app of the newest Laravel, without classes.
    pub fn new() -> Self {
        Self {
            queue: Arc::new(MemoryQueue::new(None)),
            manifest: classes::manifest(NEWEST),
            now: Mutex::new(BEGIN),
            tries: 1,
        }
    }

    /// With the classes and the version of a manifest, as `artisand manifest` writes it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no manifest.
    pub fn manifest(mut self, path: impl AsRef<Path>) -> Result<Self, BoxError> {
        let path = path.as_ref();
        let known = std::mem::take(&mut self.manifest.classes);
        self.manifest = Manifest::parse(path, &std::fs::read(path)?)?;
        self.manifest.classes.extend(known);
        Ok(self)
    }

    /// With the payloads of this version of Laravel: `"10.48"`.
    ///
    /// # Errors
    ///
    /// It is no version.
    pub fn laravel(mut self, version: &str) -> Result<Self, BoxError> {
        version.parse::<Version>()?;
        version.clone_into(&mut self.manifest.laravel);
        Ok(self)
    }

    /// With a class that no manifest describes: a queued one, `Queueable` and with `SerializesModels`, whose public
    /// properties are the fields of this struct.
    ///
    /// # Panics
    ///
    /// The struct's serde name is no class.
    #[must_use]
    pub fn class<'de, T: Deserialize<'de>>(mut self) -> Self {
        let Some(fields) = Fields::of::<T>().filter(|fields| fields.class.contains('\\')) else {
            let of_type = std::any::type_name::<T>();
            panic!("`{of_type}` names no PHP class: #[serde(rename = \"App\\\\Jobs\\\\..\")]");
        };
        let class = classes::class(fields.class, fields.fields);
        self.manifest.classes.insert(fields.class.to_owned(), class);
        self
    }

    /// With this number of tries for jobs that do not say one (`queue:work --tries`); 1 by default.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// The time, which stands still; it begins with the year 2026.
    pub fn now(&self) -> SystemTime {
        let seconds = u64::try_from(self.clock().now().0).unwrap_or(0);
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Lets time pass, in whole seconds.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.plus(by);
    }

    fn clock(&self) -> Clock {
        Clock::Fixed(*self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn services(&self) -> Services {
        let version = self.manifest.version().unwrap_or_default();
        let here = Destination {
            default_queue: "default".into(),
            queues: Ok(Arc::clone(&self.queue) as _),
        };
        let encrypter = Encrypter::new(version, KEY, "AES-256-CBC");
        Services {
            version,
            manifest: Some(Arc::new(self.manifest.clone())),
            connections: Some(Connections::new(
                CONNECTION,
                [(CONNECTION.to_owned(), here)],
            )),
            encrypter: encrypter.ok().map(Arc::new),
            timezone: "UTC".to_owned(),
            clock: self.clock(),
            ..Services::default()
        }
    }

    /// What dispatches to the app's queues.
    pub fn dispatch(&self) -> Dispatch {
        Dispatch::of_services(self.services())
    }

    /// Runs a job once, whatever its delay.
    ///
    /// If it is released, it waits for [`run_next`](Self::run_next).
    ///
    /// # Errors
    ///
    /// The job cannot be made.
    pub async fn run<T: Serialize>(
        &self,
        handler: impl Handler,
        job: &T,
    ) -> Result<Ended, DispatchError> {
        let prepared = self.dispatch().job(job).prepare().await?;
        let (queue, payload) = (prepared.queue().clone(), prepared.payload().to_vec());
        Ok(self.run_in(queue, payload, handler).await)
    }

    /// Runs a payload once, such as a captured one.
    pub async fn run_payload(&self, handler: impl Handler, payload: &[u8]) -> Ended {
        self.run_in("default".into(), payload.to_vec(), handler)
            .await
    }

    /// Runs the next job that is due; `None` if there is none. Whose it is, the handler decides.
    pub async fn run_next(&self, handler: impl Handler) -> Option<Ended> {
        let (queue, payload) = self.queue.take_next(self.clock().now())?;
        Some(self.run_in(queue, payload, handler).await)
    }

    /// The job runs on queues of its own; what is there afterwards comes to those of the app.
    async fn run_in(&self, queue: QueueName, payload: Vec<u8>, handler: impl Handler) -> Ended {
        let unreadable = |error: &dyn std::fmt::Display| Ended::Failed {
            failure: error.to_string(),
        };
        let target = match Payload::parse(&payload).and_then(|payload| Target::of(&payload)) {
            Ok(target) => pattern(&target),
            Err(error) => return unreadable(&error),
        };
        let registry = Registry::new().with("handler", handler);
        let mapping = Mapping::new(target, HandlerChoice::Named("handler".to_owned()));
        let router = match Router::new(vec![mapping], UnmappedPolicy::Leave, &registry) {
            Ok(router) => router,
            Err((_, error)) => return unreadable(&error),
        };
        let own = Arc::new(MemoryQueue::new(None));
        own.put(&queue, None, payload);
        let mut options = WorkerOptions {
            connection: CONNECTION.into(),
            queues: vec![queue],
            stop: StopRules {
                once: true,
                memory: None,
                when_empty: true,
                ..StopRules::default()
            },
            clock: self.clock(),
            ..WorkerOptions::default()
        };
        options.defaults.tries = i64::from(self.tries);
        let ended = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&ended);
        let worker = Worker::new(Arc::clone(&own), router, options).with_services(self.services());
        let worker = worker.on(move |event| {
            if let Event::JobAttempted(end) | Event::JobFailed(end) = event {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                // The event of the failure has the reason; the one of the attempt only an exception.
                if !matches!(*seen, Some(Ended::Failed { .. })) {
                    *seen = Some(Ended::of(end));
                }
            }
        });
        worker.run(&Control::new()).await;
        for (queue, due, payload) in own.all() {
            self.queue.put(&queue, due, payload);
        }
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended.unwrap_or_else(|| unreadable(&"the payload cannot be read, and is in quarantine"))
    }

    /// The payload that the app would push for a job, with these names instead of random ones.
    ///
    /// # Errors
    ///
    /// The job cannot be made.
    pub async fn payload<T: Serialize>(
        &self,
        job: &T,
        uuid: &str,
        id: &str,
    ) -> Result<Vec<u8>, DispatchError> {
        let prepared = self.dispatch().job(job).prepare().await?;
        let text = String::from_utf8_lossy(prepared.payload());
        let text = text.replace(prepared.uuid().as_str(), uuid);
        Ok(text.replace(prepared.id().as_str(), id).into_bytes())
    }

    /// Reads the job of a captured payload as a handler gets it: one line as it lies in the queue.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the job does not fit the type.
    pub fn read<T: DeserializeOwned>(&self, path: impl AsRef<Path>) -> Result<T, BoxError> {
        let text = std::fs::read(path)?;
        Ok(input(&JobContext::of_payload(text.trim_ascii())?)?)
    }

    /// The jobs of this type that wait in the queues: those that were dispatched, and those that were released.
    ///
    /// # Panics
    ///
    /// The struct's serde name is no class, or a job of the class does not fit the struct.
    #[track_caller]
    pub fn dispatched<T: DeserializeOwned>(&self) -> Found<T> {
        let encrypter = self.services().encrypter;
        Found::of(&self.queue, self.clock().now(), encrypter.as_deref())
    }
}

/// What matches this target and its like.
fn pattern(target: &Target) -> TargetPattern {
    let any = || Pattern::parse("*").expect("a pattern");
    match target.kind() {
        Kind::Listener => TargetPattern::Listener {
            class: any(),
            method: None,
            event: None,
        },
        Kind::Notification => TargetPattern::Notification {
            class: any(),
            channel: None,
        },
        Kind::Mailable => TargetPattern::Mailable(any()),
        Kind::Broadcast => TargetPattern::Broadcast(any()),
        Kind::Command => TargetPattern::Command(any()),
        Kind::String => TargetPattern::String {
            class: any(),
            method: any(),
        },
        Kind::Job | Kind::Closure | Kind::Batch => TargetPattern::Job(any()),
    }
}
