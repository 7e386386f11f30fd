//! Dispatches jobs: puts them on the app's queues as PHP would, for PHP workers or for artisand.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use artisand::dispatch::{Dispatch, Dispatched};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! #[serde(rename = "App\\Jobs\\SendReceipt", rename_all = "camelCase")]
//! struct SendReceipt {
//!     order_id: u64,
//!     note: Option<String>,
//! }
//!
//! # async fn example() -> Result<(), artisand::dispatch::DispatchError> {
//! let dispatch = Dispatch::to_app("/var/www/app")?;
//! dispatch.check::<SendReceipt>()?;
//! let receipt = SendReceipt { order_id: 42, note: None };
//! dispatch.job(&receipt).await?;
//! let later = dispatch.job(&receipt).on_queue("mail").delay(Duration::from_secs(60));
//! match later.await? {
//!     Dispatched::Queued { uuid, .. } => println!("{uuid}"),
//!     Dispatched::Unique => println!("one is waiting already"),
//!     _ => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The struct names its class by serde, as values in properties do. Visibility, order and defaults of the properties,
//! and what PHP would ask the class for, come from the manifest, or from PHP itself if there is none. Constructors do
//! not run, and observers of the push (`JobQueued`) see nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::config::{self, Config};
use crate::handler::dispatch::{self as draft};
use crate::handler::{BoxError, JobContext, Services};
use crate::horizon::Horizon;
use crate::payload::Inherited;
use crate::php::{ClassName, Object};
use crate::routing::DispatchedType;
use crate::telemetry::current_trace;

mod app;
mod batch;
mod bulk;
mod by_php;
mod callbacks;
mod chain;
mod error;
mod in_handler;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod inside;
mod pending;
mod push;
mod recipient;
#[cfg(test)]
mod tests;

pub use batch::PendingBatch;
pub use bulk::{Bulk, BulkError};
pub use chain::Chain;
pub use error::DispatchError;
pub use pending::Pending;
pub use push::{Dispatched, Prepared};
pub use recipient::Recipient;

use app::App;
use pending::Pushable;

/// Pushes jobs to the app's queues. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dispatch {
    app: Arc<App>,
    /// Writers of Horizon's records, until they are finished.
    horizons: Arc<Mutex<Vec<Horizon>>>,
}

impl Dispatch {
    /// For the app in this directory, with the settings that its PHP, its manifest or its `.env` say, and those of
    /// `artisand.toml` in the current directory.
    ///
    /// Asks PHP, so it may take a second: make one and keep it.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Setup`].
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn to_app(directory: impl AsRef<Path>) -> Result<Self, DispatchError> {
        Self::load(None, Some(directory.as_ref()))
    }

    /// For the app of this `artisand.toml`.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Setup`].
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn from_settings(file: impl AsRef<Path>) -> Result<Self, DispatchError> {
        Self::load(Some(file.as_ref()), None)
    }

    fn load(file: Option<&Path>, app: Option<&Path>) -> Result<Self, DispatchError> {
        let text = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let config = Config::load(file, app, text);
        Self::of_config(config.map_err(setup)?)
    }

    pub(crate) fn of_config(mut config: Config) -> Result<Self, DispatchError> {
        if config.classes().is_none() {
            config.ask_about_all_classes();
        }
        let mut services = config::services(&config).map_err(setup)?;
        if services.manifest.is_none() {
            services.manifest.clone_from(&services.told);
        }
        let mut horizons = Vec::new();
        for name in config.connections() {
            let (Ok(Some(options)), Some(connections)) =
                (config::horizon(&config, &name), &services.connections)
            else {
                continue;
            };
            if let Some(destination) = connections.get(&name)
                && let Ok(queues) = &destination.queues
            {
                let runtime = tokio::runtime::Handle::current();
                let horizon = Horizon::start(options, Arc::new(|_| ()), &runtime).map_err(setup)?;
                queues.tell_pushes(Arc::new(horizon.recorder()));
                horizons.push(horizon);
            }
        }
        Ok(Self::with(
            Arc::new(services),
            Inherited::default(),
            horizons,
        ))
    }

    /// With these services, for tests.
    #[cfg(not(feature = "internals"))]
    pub(crate) fn of_services(services: Services) -> Self {
        Self::with(Arc::new(services), Inherited::default(), Vec::new())
    }

    /// With these services, for tests.
    #[cfg(feature = "internals")]
    pub fn of_services(services: Services) -> Self {
        Self::with(Arc::new(services), Inherited::default(), Vec::new())
    }

    fn with(services: Arc<Services>, inherited: Inherited, horizons: Vec<Horizon>) -> Self {
        Self {
            app: Arc::new(App {
                services,
                inherited,
            }),
            horizons: Arc::new(Mutex::new(horizons)),
        }
    }

    /// The app, for jobs that inherit the span in which they are dispatched, if there is one.
    fn app(&self) -> Arc<App> {
        let is_in_job = self.app.inherited.trace.is_some();
        let Some(trace) = current_trace().filter(|_| !is_in_job) else {
            return Arc::clone(&self.app);
        };
        Arc::new(App {
            services: Arc::clone(&self.app.services),
            inherited: Inherited {
                context: self.app.inherited.context.clone(),
                trace: Some(Arc::new(trace)),
                tenant: self.app.inherited.tenant.clone(),
            },
        })
    }

    /// Waits until Horizon's records of the jobs that were dispatched are written, for a few seconds at most.
    ///
    /// They are written in the background, so a program of an app with Horizon calls this before it ends. What is
    /// dispatched afterwards has no records.
    pub async fn finish(&self) {
        let horizons = self.horizons.lock();
        let horizons = std::mem::take(&mut *horizons.unwrap_or_else(PoisonError::into_inner));
        for horizon in horizons {
            horizon.finish().await;
        }
    }

    /// Checks that structs of this type can be dispatched: the class exists and is queued, each field is one of its
    /// properties, and each property without a default is a field.
    ///
    /// What the constructor of the class does besides is logged as a warning.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`] with the nearest name, or [`DispatchError::OnlyPhp`].
    pub fn check<'de, T: Deserialize<'de>>(&self) -> Result<(), DispatchError> {
        let manifest = draft::manifest(&self.app.services)?;
        for note in DispatchedType::of::<T>().check(manifest)? {
            tracing::warn!("{note}");
        }
        Ok(())
    }

    /// What the constructor of a class does beyond setting these properties.
    #[cfg(feature = "cli")]
    pub(crate) fn constructor_notes(&self, class: &str, fields: &[&str]) -> Vec<String> {
        let manifest = self.app.services.manifest.as_deref();
        let class = ClassName::in_code(class);
        let known = manifest.zip(class);
        known.map_or_else(Vec::new, |(manifest, class)| {
            manifest.constructor_notes(&class, fields)
        })
    }

    /// A job of a struct whose serde name is its class: `#[serde(rename = "App\\Jobs\\SendReceipt")]`.
    pub fn job<T: Serialize>(&self, job: &T) -> Pending {
        Pending::of(self.app(), self.app.read(job).map(Pushable::Object))
    }

    /// A job of this class without properties; [`with`](Pending::with) adds them.
    pub fn class(&self, class: &str) -> Pending {
        let name = ClassName::in_code(class);
        let name = name.ok_or_else(|| DispatchError::unfit(format!("`{class}` is no class name")));
        Pending::of(
            self.app(),
            name.map(|name| Pushable::Object(Object::new(name))),
        )
    }

    /// A job that is this object. Names of properties are those of PHP's source.
    pub fn object(&self, object: Object) -> Pending {
        Pending::of(self.app(), Ok(Pushable::Object(object)))
    }

    /// `Queue::push('Class@method', $data)`.
    pub fn string<T: Serialize>(&self, job: &str, data: &T) -> Pending {
        let data = serde_json::value::to_raw_value(data).map_err(DispatchError::unfit);
        let what = data.map(|data| Pushable::Method {
            job: job.into(),
            data,
        });
        Pending::of(self.app(), what)
    }

    /// A queued listener, for this event: what `event()` pushes for one of its listeners. `Class`, or `Class@method`.
    ///
    /// Neither other listeners nor its `shouldQueue()` are asked.
    pub fn listener<T: Serialize>(&self, listener: &str, event: &T) -> Pending {
        let (class, method) = listener.split_once('@').unwrap_or((listener, "handle"));
        let name = ClassName::in_code(class);
        let name = name.ok_or_else(|| DispatchError::unfit(format!("`{class}` is no class name")));
        let what = name.and_then(|class| {
            Ok(Pushable::Listener {
                class,
                method: method.into(),
                event: self.app.read(event)?,
            })
        });
        Pending::of(self.app(), what)
    }

    /// A queued notification: [`to`](Pending::to) a recipient, [`via`](Pending::via) a channel.
    pub fn notification<T: Serialize>(&self, notification: &T) -> Pending {
        let what = self.app.read(notification).map(Pushable::Notification);
        Pending::of(self.app(), what)
    }

    /// A queued mail [`to`](Pending::to) its recipients.
    pub fn mailable<T: Serialize>(&self, mailable: &T) -> Pending {
        let what = self.app.read(mailable).map(Pushable::Mailable);
        Pending::of(self.app(), what)
    }

    /// `Artisan::queue`: a line that a PHP worker runs as `php artisan` would.
    pub fn command<'a>(&self, name: &str, arguments: impl IntoIterator<Item = &'a str>) -> Pending {
        let mut line = name.to_owned();
        for argument in arguments {
            line.push(' ');
            line.push_str(&quoted(argument));
        }
        self.command_line(&line)
    }

    pub(crate) fn command_line(&self, line: &str) -> Pending {
        Pending::of(self.app(), Ok(Pushable::Command(line.into())))
    }

    /// Jobs that run one after the other: [`then`](Chain::then) adds each.
    pub fn chain(&self) -> Chain {
        Chain::of(self.app())
    }

    /// Jobs that are counted together.
    ///
    /// ```no_run
    /// # use artisand::dispatch::{Dispatch, DispatchError};
    /// # #[derive(serde::Serialize)]
    /// # #[serde(rename = "App\\Jobs\\ImportPage")]
    /// # struct ImportPage { page: u64 }
    /// # async fn example(dispatch: &Dispatch, pages: Vec<ImportPage>, done: ImportPage) -> Result<(), DispatchError> {
    /// let batch = dispatch.batch().name("import").jobs(&pages).allow_failures().then(&done).await?;
    /// println!("{}: {} jobs", batch.id, batch.total_jobs);
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> PendingBatch {
        PendingBatch::of(self.app())
    }

    /// Many jobs, a thousand in each step; they are read while the ones before are being pushed.
    pub fn bulk<'a, T, I>(&self, jobs: I) -> Bulk<'a>
    where
        T: Serialize,
        I: IntoIterator<Item = T>,
        I::IntoIter: Send + 'a,
    {
        let app = self.app();
        let jobs = jobs.into_iter().map(move |job| app.read(&job));
        Bulk::of(self.app(), jobs)
    }
}

/// One argument, as Symfony's `StringInput` reads it.
fn quoted(argument: &str) -> std::borrow::Cow<'_, str> {
    let is_plain = |c: char| !(c.is_whitespace() || matches!(c, '"' | '\'' | '\\'));
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.into();
    }
    let escaped = argument.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"").into()
}

fn setup(error: impl Into<BoxError>) -> DispatchError {
    DispatchError::Setup(error.into())
}
