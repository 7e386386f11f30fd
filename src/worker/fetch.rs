//! Which jobs next: one call for as many as there are free slots.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::aftermath::{Aftermath, Refusal};
use super::attempt::with_causes;
use super::backoff::Reconnect;
use super::job::Shared;
use crate::handler::{
    Handler, JobContext, JobInfo, Mode, OnMismatch, Pipeline, Route, in_payload, panic_text,
};
use crate::payload::{Command, JobUuid, Kind, Payload, Target};
use crate::php::ClassName;
use crate::queue::{Error, PopRequest, Popped, Queue, QueueName, Selection};
use crate::time::UnixSeconds;

/// What came up while jobs were chosen.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Some were passed by because their mapping had no slot.
    pub(super) limited: bool,
    /// Payloads that were decrypted to be chosen, by what they were popped as: once is dear enough.
    pub(super) opened: HashMap<Vec<u8>, Payload>,
}

impl Chosen {
    /// The payload of a job, if it was read to be chosen.
    pub(super) fn take(&mut self, element: &[u8]) -> Option<Payload> {
        if self.opened.is_empty() {
            return None;
        }
        self.opened.remove(element)
    }
}

/// Chooses jobs that can run: mapped ones, within the limits of their mapping; or those for PHP.
pub(super) struct Chooser<'a> {
    shared: &'a Shared,
    is_for_php: bool,
    /// Free slots per mapping.
    room: Vec<usize>,
    needles: Vec<Vec<u8>>,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(shared: &'a Shared, per_mapping: &[usize]) -> Self {
        let room = |(mapping, running): (&crate::handler::Mapping, &usize)| {
            mapping
                .concurrency
                .map_or(usize::MAX, |limit| limit.get().saturating_sub(*running))
        };
        let room = shared
            .router
            .mappings()
            .zip(per_mapping)
            .map(room)
            .collect();
        let distrusted = shared.distrusted();
        let classes = shared.router.unlimited_classes();
        let needles = classes
            .iter()
            .filter(|class| !distrusted.contains(class.as_str()))
            .map(|class| needle(class));
        Self {
            shared,
            is_for_php: false,
            room,
            needles: needles.collect(),
        }
    }

    /// Chooses those that no mapping matches; `None` if that is all of them.
    pub(super) fn for_php(shared: &'a Shared) -> Option<Self> {
        let chooser = Self {
            shared,
            is_for_php: true,
            room: Vec::new(),
            needles: Vec::new(),
        };
        (!shared.has_only_php()).then_some(chooser)
    }

    /// Says whether there is a slot for this payload, and takes it.
    fn choose(&mut self, queue: &QueueName, element: &[u8], chosen: &mut Chosen) -> bool {
        // What cannot be read is taken: it belongs into quarantine and not into anybody's way.
        let Ok(mut payload) = Payload::parse(element) else {
            return true;
        };
        if payload.attempts.is_none() {
            return true;
        }
        match route(self.shared, &mut payload, queue) {
            Route::Unmapped | Route::Beside { .. } if self.is_for_php => {
                chosen.opened.insert(element.to_vec(), payload);
                true
            }
            _ if self.is_for_php => false,
            Route::Forward(_) => true,
            Route::Unmapped | Route::Beside { .. } => !self.shared.leaves_unmapped(),
            Route::Handler { mapping, .. } => {
                if let Some(left) = self.room[mapping].checked_sub(1) {
                    self.room[mapping] = left;
                    if payload.was_encrypted() {
                        chosen.opened.insert(element.to_vec(), payload);
                    }
                    true
                } else {
                    chosen.limited = true;
                    false
                }
            }
        }
    }
}

/// The text that Laravel writes into a payload of this class, and of a plain command.
fn needle(class: &str) -> Vec<u8> {
    let class = serde_json::to_string(class).expect("text is always JSON");
    format!("\"commandName\":{class},\"command\":\"O:").into_bytes()
}

/// Classes whose needle this payload holds.
pub(super) fn classes_in(shared: &Shared, element: &[u8]) -> Vec<String> {
    let mut classes = shared.router.unlimited_classes();
    classes.retain(|class| memchr::memmem::find(element, &needle(class)).is_some());
    classes
}

/// Where a job goes. Its command is decrypted if a handler is to run it.
///
/// One that cannot be decrypted is nobody's here: its input cannot be read.
///
/// So is one whose end could not be seen to.
pub(super) fn route(shared: &Shared, payload: &mut Payload, queue: &QueueName) -> Route {
    find(shared, payload, queue).unwrap_or_else(|why| {
        warn_once(shared, payload, &why);
        Route::Unmapped
    })
}

/// The same; an error says why a job that has a mapping cannot be run here.
pub(super) fn find(
    shared: &Shared,
    payload: &mut Payload,
    queue: &QueueName,
) -> Result<Route, String> {
    if payload.is_encrypted() {
        // The class it names outside says whether the rest is worth a look. What a wrapper
        // wraps is not said: the name that is shown is what the app pleases.
        match Target::of(payload).map(|target| shared.router.route(&target)) {
            Ok(Route::Handler { .. }) => {}
            Ok(elsewhere) => return Ok(elsewhere),
            Err(_) if may_be_mapped(shared, payload) => {}
            Err(_) => return Ok(Route::Unmapped),
        }
        decrypt(shared, payload)?;
    }
    let (Ok(target), Ok(_)) = (Target::of(payload), Command::of(payload)) else {
        return Ok(Route::Unmapped);
    };
    let (mapping, handler, pipeline) = match shared.router.route(&target) {
        Route::Handler {
            mapping,
            handler,
            pipeline,
        } => (mapping, handler, pipeline),
        elsewhere => return Ok(elsewhere),
    };
    if let Some(beside) = beside(shared, payload, mapping, &handler) {
        return Ok(beside);
    }
    if let Some(why) = handler.refuses(payload, &shared.services) {
        return Err(why);
    }
    Aftermath::of(shared, payload, queue).map_err(|Refusal(why)| why)?;
    if let Some(why) = uncountable(shared, payload) {
        return Err(why);
    }
    let pipeline = around(shared, payload, mapping, pipeline)?;
    if let Some(why) = mismatch(shared, payload, queue, mapping, &*handler) {
        say_mismatch_once(shared, payload, &why);
        return Ok(Route::Beside {
            mapping,
            shadow: None,
            mismatch: Some(why.into()),
        });
    }
    Ok(Route::Handler {
        mapping,
        handler,
        pipeline,
    })
}

/// Why exceptions of a job that has a limit of them could not be counted with those that PHP has counted.
fn uncountable(shared: &Shared, payload: &Payload) -> Option<String> {
    payload.limits.max_exceptions?;
    let stores = shared.services.stores.as_ref()?;
    let error = stores.get(stores.default_name()).err()?;
    Some(format!(
        "it has `maxExceptions`, which are counted in the default cache store: {}",
        with_causes(&error)
    ))
}

/// Why a job does not fit its handler's input, where its mapping sends such jobs to PHP.
fn mismatch(
    shared: &Shared,
    payload: &Payload,
    queue: &QueueName,
    mapping: usize,
    handler: &dyn Handler,
) -> Option<String> {
    let falls_back = shared.router.mapping(mapping)?.on_mismatch == OnMismatch::Php;
    if !falls_back {
        return None;
    }
    let info = JobInfo {
        connection: shared.connection.clone(),
        queue: queue.clone(),
        attempts: payload.attempts.unwrap_or(0).saturating_add(1),
        payload: Arc::new(payload.clone()),
        // It is looked at before it is popped, too.
        body: Arc::default(),
    };
    let services = Arc::clone(&shared.services);
    let context = JobContext::new(Arc::new(info), CancellationToken::new(), services);
    // Code of the app's: reading its types may panic, and here a panic would end the worker.
    let check = AssertUnwindSafe(|| handler.check(&context));
    match std::panic::catch_unwind(check) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(with_causes(&*error)),
        Err(panic) => Some(format!("reading it panicked: {}", panic_text(&*panic))),
    }
}

/// Says that jobs of a class do not fit, once, whatever else does not fit later.
fn say_mismatch_once(shared: &Shared, payload: &Payload, why: &str) {
    let class = &*payload.shown_name();
    if shared.is_news_of_refusal(&format!("{class} does not fit")) {
        tracing::warn!(
            job.uuid = payload.uuid.as_ref().map(JobUuid::bounded),
            job.class = class,
            why,
            "a job does not fit its handler's input and goes the way of unmapped jobs (`on_mismatch`); of its class this is said once"
        );
    }
}

/// Where a job goes that its mapping does not run, although it could.
fn beside(
    shared: &Shared,
    payload: &Payload,
    position: usize,
    handler: &Arc<dyn Handler>,
) -> Option<Route> {
    let mapping = shared.router.mapping(position)?;
    let is_shadow = mapping.mode == Mode::Shadow;
    let is_left_out = mapping.canary.is_some_and(|canary| !canary.takes(payload))
        || shared.tallies.is_stopped(position);
    (is_shadow || is_left_out).then(|| Route::Beside {
        mapping: position,
        shadow: is_shadow.then(|| Arc::clone(handler)),
        mismatch: None,
    })
}

/// Whether what an encrypted wrapper holds may have a mapping.
fn may_be_mapped(shared: &Shared, payload: &Payload) -> bool {
    let class = payload.command_name().and_then(ClassName::new);
    class.is_some_and(|class| shared.router.maps(Kind::of_class(&class)))
}

/// Puts the plain command into a payload, or says why not and what would help.
fn decrypt(shared: &Shared, payload: &mut Payload) -> Result<(), String> {
    let Some(encrypter) = &shared.services.encrypter else {
        let why = shared.services.encrypter_missing.as_deref();
        return Err(why
            .unwrap_or("the worker was not given the app's key")
            .to_owned());
    };
    payload.decrypt(encrypter).map_err(|error| {
        let remedy = if shared.services.version.is_at_least(11, 0) {
            "if APP_KEY was changed, put the old key into APP_PREVIOUS_KEYS".to_owned()
        } else {
            let version = shared.services.version;
            format!(
                "Laravel {version} reads the current key only: if APP_KEY was changed, change it back until such jobs are done"
            )
        };
        format!("{}; {remedy}", with_causes(&error))
    })
}

/// Says why jobs of a class are not run here, once for each reason.
fn warn_once(shared: &Shared, payload: &Payload, why: &str) {
    let class = payload.command_name().unwrap_or_default();
    // A wrapper's class would say nothing.
    let is_wrapper = ClassName::new(class).is_some_and(|class| Kind::of_class(&class) != Kind::Job);
    let class = &*if is_wrapper {
        payload.shown_name()
    } else {
        crate::shown::name(class)
    };
    if shared.is_news_of_refusal(&format!("{class}: {why}")) {
        tracing::warn!(
            job.class = class,
            why,
            "jobs of a class have a handler and cannot be run here: they count as unmapped"
        );
    }
}

/// Why what a job's own bytes put around it keeps a mapping from running it.
pub(super) fn refusal_around(shared: &Shared, payload: &Payload) -> Option<String> {
    let target = Target::of(payload).ok()?;
    match shared.router.route(&target) {
        Route::Handler {
            mapping, pipeline, ..
        } => around(shared, payload, mapping, pipeline).err(),
        _ => None,
    }
}

/// Why a job that has a mapping cannot be run here.
pub(super) fn refusal(shared: &Shared, payload: &Payload, queue: &QueueName) -> Option<String> {
    let mut opened = payload.clone();
    let why = find(shared, &mut opened, queue).err()?;
    let name = payload.shown_name();
    Some(if opened.is_encrypted() {
        format!("{name} is encrypted and cannot be read: {why}")
    } else {
        format!("{name} cannot be run here: {why}")
    })
}

/// What is around a job: the pipeline of its mapping, and what its own bytes say; or why that is not for us.
fn around(
    shared: &Shared,
    payload: &Payload,
    mapping: usize,
    pipeline: Pipeline,
) -> Result<Pipeline, String> {
    let command = Command::of(payload).map_err(|error| with_causes(&error))?;
    let Some(command) = command else {
        return Ok(pipeline);
    };
    let debounce = shared.router.debounce(mapping);
    in_payload(&command, &pipeline, debounce, &shared.services).map_err(|why| why.to_string())
}

/// The mapping that runs a payload, if that mapping has a limit.
pub(super) fn mapping_of(
    shared: &Shared,
    payload: &mut Payload,
    queue: &QueueName,
) -> Option<usize> {
    match route(shared, payload, queue) {
        Route::Handler { mapping, .. } => shared
            .router
            .mappings()
            .nth(mapping)?
            .concurrency
            .is_some()
            .then_some(mapping),
        Route::Forward(_) | Route::Beside { .. } | Route::Unmapped => None,
    }
}

/// Pops up to `slots` jobs.
pub(super) async fn pop<Q: Queue>(
    queue: &Q,
    queues: &[QueueName],
    now: UnixSeconds,
    slots: NonZeroUsize,
    woken: &[QueueName],
    chooser: Option<Chooser<'_>>,
    chosen: &mut Chosen,
) -> Result<Popped, Error> {
    let request = PopRequest {
        queues,
        max: slots,
        now,
        woken,
        selection: None,
    };
    let Some(mut chooser) = chooser else {
        return queue.pop(request).await;
    };
    let needles = std::mem::take(&mut chooser.needles);
    let mut choose = |queue: &QueueName, element: &[u8]| chooser.choose(queue, element, chosen);
    let selection = Some(Selection {
        needles: &needles,
        choose: &mut choose,
    });
    queue
        .pop(PopRequest {
            selection,
            ..request
        })
        .await
}

/// Waits for pushes whenever armed, and says to which queue one came, until the future is dropped.
pub(super) async fn keep_waiting<Q: Queue>(
    queue: Arc<Q>,
    queues: Vec<QueueName>,
    armed: Arc<Notify>,
    announce: mpsc::Sender<QueueName>,
) {
    const AT_A_TIME: Duration = Duration::from_secs(10);
    let mut reconnect = Reconnect::default();
    loop {
        armed.notified().await;
        let pushed = loop {
            match queue.wait_for_push(&queues, AT_A_TIME).await {
                Ok(Some(queue)) => break queue,
                Ok(None) => reconnect.reset(),
                Err(error) => {
                    // The loop that pops reports the loss; here it would be said twice.
                    tracing::debug!(error = with_causes(&error), "could not wait for pushes");
                    reconnect.wait().await;
                }
            }
        };
        reconnect.reset();
        if announce.send(pushed).await.is_err() {
            return;
        }
    }
}
