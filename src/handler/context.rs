//! A handler's view of its job, and the requests it can make.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::dispatch::PushPlan;
use super::hold::Holds;
use super::{BoxError, DraftError, FailureText, Services, Template};
use crate::app::Class;
use crate::payload::{
    self, Data, Document, Error, Inherited, JobId, JobUuid, LogContext, Payload, Target, Trace,
};
use crate::php::{self, ClassName, Value};
use crate::queue::{ConnectionName, QueueName};
use crate::shown::with_causes;

/// The wait of a job for which the machine lacks something.
const WANT: Duration = Duration::from_secs(1);

/// A job as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct JobContext(Arc<Inner>);

struct Inner {
    info: Arc<JobInfo>,
    cancelled: CancellationToken,
    services: Arc<Services>,
    request: Mutex<Request>,
    /// The subject of the job, read on first use.
    properties: OnceLock<Value>,
    holds: Holds,
    /// Batches that the handler has cancelled, if the app is to hear of it.
    cancelled_batches: Mutex<Vec<Arc<str>>>,
}

/// The facts of one attempt.
#[derive(Debug, Clone)]
pub struct JobInfo {
    /// Queue connection the job came from.
    pub connection: ConnectionName,
    /// Queue the job came from.
    pub queue: QueueName,
    /// Number of this run, from 1.
    pub attempts: u32,
    /// What the payload says.
    pub payload: Arc<Payload>,
    /// The payload's bytes as popped.
    pub body: Arc<[u8]>,
    /// The payload's bytes while it is reserved: with this attempt counted.
    pub reserved: Arc<[u8]>,
    /// The span of the attempt, if jobs are traced and a handler runs this one.
    pub trace: Option<Arc<Trace>>,
}

impl JobInfo {
    /// What jobs inherit that this one pushes.
    pub(crate) fn inherited(&self) -> Inherited {
        Inherited {
            context: self.payload.context.clone(),
            trace: self.trace.clone(),
            tenant: self.payload.tenant.clone(),
        }
    }
}

/// The requests of a handler; only the first request of a kind that ends the job counts.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a request of its own"
)]
pub struct Request {
    /// Release the job to the queue with this wait.
    pub release: Option<Duration>,
    /// Whether that release leaves the attempt uncounted.
    pub is_uncounted: bool,
    /// Fail the job for good, for this reason.
    pub fail: Option<FailureText>,
    /// Delete the job without having handled it.
    pub delete: bool,
    /// Delete the job and let nothing follow: another job has replaced it.
    pub discard: bool,
    /// The handler threw, and a middleware has handled the error.
    pub has_thrown: bool,
    /// Jobs to add to the chain that the payload already has, in this order.
    pub chain: Vec<ChainEdit>,
    /// Jobs to push in the step that ends this one.
    pub(crate) then: Vec<PushPlan>,
}

/// A job that a handler adds to the chain of its own: the serialized object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainEdit {
    /// Before all other jobs of the chain.
    Prepend(Vec<u8>),
    /// After all other jobs of the chain.
    Append(Vec<u8>),
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("uuid", &self.uuid())
            .field("queue", &self.0.info.queue)
            .field("attempts", &self.0.info.attempts)
            .finish_non_exhaustive()
    }
}

impl JobContext {
    /// The context of the first attempt of a job, for tests of handlers: a payload as it lies in the queue
    /// `default` of the connection `redis`.
    ///
    /// # Errors
    ///
    /// The bytes are no payload.
    pub fn of_payload(body: &[u8]) -> Result<Self, Error> {
        let info = JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Arc::new(Payload::parse(body)?),
            body: body.into(),
            reserved: body.into(),
            trace: None,
        };
        Ok(Self::new(
            Arc::new(info),
            CancellationToken::new(),
            Arc::default(),
        ))
    }

    /// The context of one attempt.
    #[doc(hidden)]
    pub fn new(info: Arc<JobInfo>, cancelled: CancellationToken, services: Arc<Services>) -> Self {
        Self(Arc::new(Inner {
            info,
            cancelled,
            services,
            request: Mutex::default(),
            properties: OnceLock::new(),
            holds: Holds::default(),
            cancelled_batches: Mutex::default(),
        }))
    }

    /// The facts of the attempt.
    pub(crate) fn info(&self) -> &JobInfo {
        &self.0.info
    }

    /// Identity of the job (`uuid`, since Laravel 7).
    pub fn uuid(&self) -> Option<&JobUuid> {
        self.0.info.payload.uuid.as_ref()
    }

    /// The Redis driver's id of the job.
    pub fn id(&self) -> Option<&JobId> {
        self.0.info.payload.id.as_ref()
    }

    /// Number of this run, from 1.
    pub fn attempts(&self) -> u32 {
        self.0.info.attempts
    }

    /// Queue the job came from.
    pub fn queue(&self) -> &QueueName {
        &self.0.info.queue
    }

    /// Queue connection the job came from.
    pub fn connection(&self) -> &ConnectionName {
        &self.0.info.connection
    }

    /// What the payload says.
    pub fn payload(&self) -> &Payload {
        &self.0.info.payload
    }

    /// The payload's bytes as popped, before `attempts` is incremented.
    pub fn raw_body(&self) -> &[u8] {
        &self.0.info.body
    }

    /// The serialized command, decrypted if it was encrypted; `None` for a string job.
    pub fn raw_command(&self) -> Option<&[u8]> {
        match &self.0.info.payload.data {
            Data::Command { command, .. } => Some(command),
            Data::Json(_) => None,
        }
    }

    /// The job as one JSON object, as `exec` handlers get it.
    ///
    /// # Errors
    ///
    /// The serialized object cannot be read.
    pub fn document(&self) -> Result<String, Error> {
        let info = &self.0.info;
        let document = Document {
            connection: info.connection.as_str(),
            queue: info.queue.as_str(),
            attempts: info.attempts,
            payload: &info.payload,
        };
        document.to_json()
    }

    /// The log context of the process that queued the job, without hidden entries (Laravel 11 and later).
    ///
    /// Values have the forms of the job document; unreadable values are left out.
    pub fn log_context(&self) -> serde_json::Map<String, serde_json::Value> {
        let context = self.payload().context.as_deref();
        let keys = context.map(LogContext::keys).unwrap_or_default();
        let entry = |key: &str| Some((key.to_owned(), json(&context?.get(key)?)?));
        keys.into_iter().filter_map(entry).collect()
    }

    /// An entry of the hidden log context, which must never be logged.
    pub fn hidden_context(&self, key: &str) -> Option<serde_json::Value> {
        json(&self.payload().context.as_deref()?.hidden(key)?)
    }

    /// The span of this attempt, if jobs are traced: the parent of what a handler traces itself.
    ///
    /// Jobs that are dispatched from here carry it already. Requests to other services get its `traceparent` and
    /// `tracestate` from the handler.
    pub fn trace(&self) -> Option<&Trace> {
        self.0.info.trace.as_deref()
    }

    /// Id of the batch that the job is in, if it is in one.
    ///
    /// That is its property `batchId`, unless it is known that the job's class does not use
    /// `Illuminate\Bus\Batchable`.
    pub fn batch_id(&self) -> Option<String> {
        self.services().batch_id(self.payload())
    }

    /// Class of the job's object, or `Class@method` of a string job.
    pub fn class(&self) -> &str {
        match &self.0.info.payload.data {
            Data::Command { name, .. } => name,
            Data::Json(_) => &self.0.info.payload.job,
        }
    }

    /// The result of the class's `displayName()`; `None` for a class without that method, whose class is its name.
    pub fn display_name(&self) -> Option<&str> {
        let name = &*self.0.info.payload.display_name;
        let has_own = match self.facts() {
            Some(class) => class.display_name,
            None => name != self.class(),
        };
        (!name.is_empty() && has_own).then_some(name)
    }

    /// The target of the job: its class, or what is inside Laravel's wrapper.
    ///
    /// # Errors
    ///
    /// The serialized object cannot be read.
    pub fn target(&self) -> Result<Target, Error> {
        Target::of(&self.0.info.payload)
    }

    /// The name by which the job was routed to its handler: the name of its [`target`](Self::target), or its
    /// [`class`](Self::class) if the target cannot be read or has no name.
    pub fn routed_class(&self) -> String {
        match self.target() {
            Ok(target) if !target.name().is_empty() => target.name().to_owned(),
            _ => self.class().to_owned(),
        }
    }

    /// The manifest's facts about the job's class.
    fn facts(&self) -> Option<&Class> {
        let manifest = self.services().manifest.as_deref()?;
        manifest.class(&ClassName::new(self.class())?)
    }

    /// The subject of the job with its properties, read once: the job object, or what is inside Laravel's wrapper.
    ///
    /// The subject is the event of a listener or a broadcast, the notification,
    /// the mailable, the parameters of an artisan command, or the data of a
    /// string job. From Laravel 9.4 on, the payload omits properties that equal
    /// their default. With the app's manifest they are added here, after the
    /// others.
    ///
    /// # Errors
    ///
    /// The payload is encrypted or cannot be read.
    pub fn properties(&self) -> Result<&Value, Error> {
        if let Some(value) = self.0.properties.get() {
            return Ok(value);
        }
        let mut value = payload::subject_of(&self.0.info.payload)?;
        if let Value::Object(object) = &mut value
            && let Some(manifest) = self.services().manifest.as_deref()
            && let Some(class) = manifest.class(&object.class)
        {
            for property in &class.properties {
                if let Some(default) = &property.default
                    && object.get(&property.name).is_none()
                {
                    object.set(&property.name, default.clone());
                }
            }
        }
        Ok(self.0.properties.get_or_init(|| value))
    }

    /// Fills a template with properties of this job.
    ///
    /// # Errors
    ///
    /// See [`properties`](Self::properties); or a property that the template names is missing or has no text.
    pub fn render(&self, template: &Template) -> Result<String, BoxError> {
        if template.has_paths() {
            return Ok(template.render(self.properties()?)?);
        }
        Ok(template.render(&Value::Null)?)
    }

    /// The locks that this job holds.
    pub(crate) fn holds(&self) -> &Holds {
        &self.0.holds
    }

    /// The app's services for jobs.
    pub fn services(&self) -> &Services {
        &self.0.services
    }

    /// Cancelled when the job's timeout or the worker's stop deadline has passed.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancelled
    }

    /// True when the handler should stop: its timeout or the worker's stop deadline has passed.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }

    fn request(&self, ask: impl FnOnce(&mut Request)) {
        ask(&mut self
            .0
            .request
            .lock()
            .unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks to run the job again, not before this wait is over; the attempt counts.
    pub fn release(&self, delay: Duration) {
        self.request(|request| {
            request.release = Some(delay);
            request.is_uncounted = false;
        });
    }

    /// Asks to run the job again, not before this wait is over, as if it had not been popped: the attempt does not
    /// count.
    ///
    /// Laravel has no such release. Only `retryUntil` limits a job that is
    /// released like this again and again.
    pub fn release_without_attempt(&self, delay: Duration) {
        self.request(|request| {
            request.release = Some(delay);
            request.is_uncounted = true;
        });
    }

    /// Asks to run the job again in a second, as if it had not been popped, if it could not be begun because the machine
    /// lacks something for the moment; returns whether the error says so.
    pub(crate) fn release_for_want(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let is_for_want = is_for_want(error);
        if is_for_want {
            tracing::warn!(
                error = with_causes(error),
                "a job could not be begun for want of files, processes or memory, or as its program is being written: it goes back for a second"
            );
            self.release_without_attempt(WANT);
        }
        is_for_want
    }

    /// Asks to record the job as failed, without further attempts.
    pub fn fail(&self, error: impl Into<BoxError>) {
        const MANUALLY_FAILED: &str = "Illuminate\\Queue\\ManuallyFailedException";
        let error = error.into();
        self.request(|request| {
            request
                .fail
                .get_or_insert_with(|| FailureText::of(MANUALLY_FAILED, &*error));
        });
    }

    /// Asks to delete the job, whatever the handler returns.
    pub fn delete(&self) {
        self.request(|request| request.delete = true);
    }

    /// Adds a job to the chain, before all other jobs of the chain; it is dispatched if this one succeeds.
    ///
    /// The job needs only the properties for which its class has no default. With
    /// the app's manifest artisand pushes the job itself, otherwise PHP does.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Queueable::prependToChain`.
    pub fn prepend_to_chain(&self, job: php::Object) {
        let command = php::Value::Object(job).to_bytes();
        self.request(|request| request.chain.push(ChainEdit::Prepend(command)));
    }

    /// Adds a job to the chain, after all other jobs of the chain; see
    /// [`prepend_to_chain`](Self::prepend_to_chain).
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Queueable::appendToChain`.
    pub fn append_to_chain(&self, job: php::Object) {
        let command = php::Value::Object(job).to_bytes();
        self.request(|request| request.chain.push(ChainEdit::Append(command)));
    }

    /// Pushes a job in the step that ends this one, if it succeeds.
    ///
    /// # Errors
    ///
    /// It cannot be pushed from here.
    pub(crate) fn push_at_end(&self, planned: PushPlan) -> Result<(), DraftError> {
        planned.check(&self.0.services)?;
        self.request(|request| request.then.push(planned));
        Ok(())
    }

    pub(crate) fn shared_services(&self) -> &Arc<Services> {
        &self.0.services
    }

    /// Records that the handler threw, for a middleware that swallows the error.
    pub(crate) fn note_exception(&self) {
        self.request(|request| request.has_thrown = true);
    }

    /// Asks to delete the job because another job has replaced it: its chain does not go on, its batch does not
    /// count it and no lock is freed.
    pub fn discard(&self) {
        self.request(|request| request.discard = true);
    }

    pub(crate) fn note_cancelled_batch(&self, id: &str) {
        let batches = &self.0.cancelled_batches;
        let mut batches = batches.lock().unwrap_or_else(PoisonError::into_inner);
        if !batches.iter().any(|known| **known == *id) {
            batches.push(id.into());
        }
    }

    /// Batches that the handler has cancelled, and of which the app is to hear when the job has ended.
    pub(crate) fn cancelled_batches(&self) -> Vec<Arc<str>> {
        let batches = &self.0.cancelled_batches;
        let batches = batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.clone()
    }

    /// Takes the requests; the worker calls it when the handler has ended.
    pub fn take_request(&self) -> Request {
        std::mem::take(
            &mut self
                .0
                .request
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// Whether an error says that the machine lacks something that it may have in a moment.
fn is_for_want(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut codes = causes
        .filter_map(|cause| cause.downcast_ref())
        .filter_map(Errno::from_io_error);
    codes.any(|code| {
        matches!(
            code,
            Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM | Errno::TXTBSY
        )
    })
}

/// Converts a PHP value to the form of the job document.
fn json(value: &php::Value) -> Option<serde_json::Value> {
    serde_json::from_str(&value.to_json()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("could not start `x`")]
    struct Start(#[source] std::io::Error);

    #[test]
    fn what_the_machine_lacks_for_a_moment_costs_no_attempt() {
        #[rustfmt::skip]
        let rows = [
            (Errno::MFILE,       true),
            (Errno::NFILE,       true),
            (Errno::AGAIN,       true),
            (Errno::NOMEM,       true),
            (Errno::TXTBSY,      true),
            (Errno::NOENT,       false),
            (Errno::ACCESS,      false),
            (Errno::CONNREFUSED, false),
        ];
        for (code, is_released) in rows {
            let context = JobContext::of_payload(b"{\"job\":\"A\",\"data\":{}}").unwrap();
            let error = Start(code.into());
            assert_eq!(context.release_for_want(&error), is_released, "{code}");
            let request = context.take_request();
            assert_eq!(request.release, is_released.then_some(WANT), "{code}");
            assert_eq!(request.is_uncounted, is_released, "{code}");
        }
    }
}
