//! What Laravel would do with a job of a class: the payload's fields, its queue, its lock.
//!
//! The bytes of a job do not contain its class's defaults, attributes,
//! methods and interfaces. The manifest has them, as far as they are known
//! without running the class. A property of the concrete object
//! wins over its class's default or attribute by the rules of the version
//! (docs/protocol/payload.md 4). If only PHP knows the answer, the result is
//! [`Missing`](super::Missing), and the caller lets PHP make the payload.

use serde_json::Value as Json;

use super::manifest::{Class, Manifest};
use super::subject::{
    Answers, NO_ANSWERS, Result, Subject, is_method, is_true, missing, unknown_class,
};
use crate::payload::{
    Delay, DelayError, Envelope, Kind, NewData, NewPayload, Scalar, UNIQUE_BROADCAST_EVENT,
    Version, VersionError, Waits, random_uuid,
};
use crate::php::json::Graph;
use crate::php::{ClassName, Object, Value, Visibility};
use crate::time::UnixSeconds;

/// The properties of a dispatched job, as PHP would compute them.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Class of the object.
    pub class: ClassName,
    /// `displayName`.
    pub display_name: Box<str>,
    /// Limits of the payload.
    pub envelope: Envelope,
    /// Whether PHP encrypts the command.
    pub is_encrypted: bool,
    /// The lock to take before the job is pushed.
    pub unique: Option<Unique>,
    /// Queue connection; `None` for the app's default one.
    pub connection: Option<Box<str>>,
    /// Queue; `None` for the connection's default one.
    pub queue: Option<Box<str>>,
    /// Wait before the first run; `Some` of zero is a delay, too.
    pub delay: Option<Delay>,
    /// `batchId` of the object.
    pub batch_id: Option<Box<str>>,
    /// False if `dispatch()` would run the job at once, in the dispatching process, instead of queueing it.
    pub is_queued: bool,
    /// Whether the object has the properties of `Illuminate\Bus\Queueable`, such as the owner of its unique lock.
    pub is_queueable: bool,
}

/// The lock of a unique job without its name, which depends on the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// `displayName` if the class has such a method: since Laravel 12.41 the lock's name contains it.
    pub display_name: Option<Box<str>>,
    /// `uniqueId`; empty if the class has none.
    pub id: Box<str>,
    /// Longest life of the lock in seconds; 0 for no limit.
    pub seconds: i64,
    /// Whether it is freed when the job begins to run (`ShouldBeUniqueUntilProcessing`).
    pub until_processing: bool,
}

/// Names of a connection and a queue; `None` for the default ones.
pub(crate) type Places = (Option<Box<str>>, Option<Box<str>>);

/// Laravel's interfaces that decide on these facts.
const SHOULD_QUEUE: &str = "Illuminate\\Contracts\\Queue\\ShouldQueue";
pub(super) const SHOULD_BE_ENCRYPTED: &str = "Illuminate\\Contracts\\Queue\\ShouldBeEncrypted";

/// The trait with the properties of queued jobs.
const QUEUEABLE: &str = "Illuminate\\Bus\\Queueable";

/// The trait that writes models as references to their rows.
const SERIALIZES_MODELS: &str = "Illuminate\\Queue\\SerializesModels";

impl Facts {
    /// The payload of the job if it is pushed now, under a new random uuid.
    ///
    /// `command` is the object's text, or its encrypted form; `zone` is the
    /// app's time zone. The payload has no `id` and no fields of payload hooks:
    /// the code that pushes it adds the fields of the driver and the context.
    ///
    /// # Errors
    ///
    /// The delay is an interval that cannot be added to `now`.
    pub fn payload(
        &self,
        command: Vec<u8>,
        now: UnixSeconds,
        zone: &str,
    ) -> std::result::Result<NewPayload, DelayError> {
        let delay = self.delay.as_ref().map(|delay| delay.seconds(now, zone));
        Ok(NewPayload {
            uuid: random_uuid(),
            display_name: self.display_name.clone(),
            envelope: self.envelope.clone(),
            data: NewData::Command {
                class: self.class.as_str().into(),
                command,
                batch_id: self.batch_id.clone(),
            },
            created_at: now,
            extra: Vec::new(),
            id: None,
            delay: delay.transpose()?,
            horizon: None,
        })
    }
}

impl Manifest {
    /// Version of the framework.
    ///
    /// # Errors
    ///
    /// The manifest's text is not a version.
    pub fn version(&self) -> std::result::Result<Version, VersionError> {
        self.laravel.parse()
    }

    /// The app's time zone (`app.timezone`).
    pub fn timezone(&self) -> &str {
        let zone = self.config.pointer("/app/timezone").and_then(Json::as_str);
        zone.unwrap_or("UTC")
    }

    /// A class by its name, ignoring case.
    pub fn class(&self, name: &ClassName) -> Option<&Class> {
        self.entry(name).map(|(_, class)| class)
    }

    /// A class by its name.
    ///
    /// # Errors
    ///
    /// [`Missing`], if the manifest does not have the class.
    pub fn known_class(&self, name: &ClassName) -> Result<&Class> {
        self.class(name).ok_or_else(|| unknown_class(self, name))
    }

    /// A class with its declared name.
    fn entry(&self, name: &ClassName) -> Option<(&str, &Class)> {
        let found = self.classes.get_key_value(name.as_str()).or_else(|| {
            // Runs for every job, also for classes that the manifest does not have.
            let declared = self.declared.get_or_init(|| {
                let names = self.classes.keys();
                names
                    .map(|name| (name.to_ascii_lowercase(), name.clone()))
                    .collect()
            });
            let declared = declared.get(&name.as_str().to_ascii_lowercase())?;
            self.classes.get_key_value(declared)
        });
        found.map(|(name, class)| (name.as_str(), class))
    }

    /// Connection and queue that `Queue::route` and `Queue::forward` give to a class with these names (Laravel 13).
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\QueueRoutes`.
    pub(super) fn route<'n, I: Iterator<Item = &'n str>>(
        &self,
        names: impl Fn() -> I,
        queue: Option<&str>,
    ) -> (Option<&str>, Option<&str>) {
        let route = || names().find_map(|name| self.queue_routes.get(name));
        let routed = (!self.queue_routes.is_empty()).then(route).flatten();
        match routed {
            Some(Json::String(queue)) => (None, Some(queue)),
            Some(route) => {
                let part = |index: usize| route.get(index).and_then(Json::as_str);
                (part(0), part(1))
            }
            None => {
                let forward = queue.and_then(|queue| self.queue_forwards.get(queue));
                (forward.and_then(|forward| forward.get(0)?.as_str()), None)
            }
        }
    }

    /// The properties of this command, as PHP would compute them if it were dispatched now; payload hooks may add to
    /// its payload.
    ///
    /// # Errors
    ///
    /// [`Missing`](super::Missing), if only PHP can know.
    pub fn facts(&self, command: &Value, now: UnixSeconds) -> Result<Facts> {
        self.facts_with(command, &NO_ANSWERS, now)
    }

    /// The same, where the code that dispatches the job says what methods of its class return.
    ///
    /// # Errors
    ///
    /// [`Missing`](super::Missing), if only PHP can know another fact.
    pub fn facts_with(
        &self,
        command: &Value,
        answers: &Answers,
        now: UnixSeconds,
    ) -> Result<Facts> {
        let graph = Graph::new(command);
        let subject = Subject {
            answers,
            ..self.subject(command, &graph, now)?
        };
        match Kind::of_class(&subject.object.class) {
            Kind::Job => subject.job(),
            kind => subject.wrapper(kind),
        }
    }

    /// Connection and queue of the job with this command, as in its [`facts`](Self::facts).
    ///
    /// # Errors
    ///
    /// [`Missing`](super::Missing), if only PHP can know.
    pub(crate) fn places(&self, command: &Value) -> Result<Places> {
        let graph = Graph::new(command);
        let subject = self.subject(command, &graph, UnixSeconds(0))?;
        let entry = self.entry(&subject.object.class);
        let (name, class) = entry.ok_or_else(|| unknown_class(self, &subject.object.class))?;
        subject.places(name, class)
    }

    /// The lock that the job with this command holds while it is queued; `None` if its class is not unique.
    ///
    /// # Errors
    ///
    /// [`Missing`](super::Missing), if only PHP can know. A class that the manifest does not
    /// have may be unique.
    pub fn unique(&self, command: &Value) -> Result<Option<Unique>> {
        let graph = Graph::new(command);
        self.subject(command, &graph, UnixSeconds(0))?.lock()
    }

    /// Whether jobs of a class have a lock while they are queued, if their properties are enough to tell.
    ///
    /// # Errors
    ///
    /// [`Missing`], if they have a lock that only PHP can compute.
    pub fn can_tell_lock(&self, class: &ClassName) -> Result<bool> {
        let mut job = Object::new(class.clone());
        let properties = self.known_class(class)?.properties.iter();
        for property in properties.filter(|property| property.default.is_none()) {
            let visibility = match &*property.visibility {
                "private" => Visibility::Private(property.class.as_bytes()),
                "protected" => Visibility::Protected,
                _ => Visibility::Public,
            };
            // Any value that has a text form.
            job = job.with(visibility, &property.name, 1);
        }
        Ok(self.unique(&job.into())?.is_some())
    }

    /// Says whether methods of a job's class, or of the class in its wrapper, choose its group on SQS.
    ///
    /// # Errors
    ///
    /// [`Missing`], if they do: only PHP can ask them.
    pub(crate) fn refuse_own_groups(&self, facts: &Facts) -> Result<()> {
        let shown = ClassName::in_code(&facts.display_name);
        for name in [Some(&facts.class), shown.as_ref()].into_iter().flatten() {
            if self
                .class(name)
                .is_some_and(|class| class.is("groups_itself"))
            {
                let what = "its methods choose the job's group or deduplication id, and only PHP can run them";
                return Err(missing(name.as_str(), what));
            }
        }
        Ok(())
    }

    /// Whether methods of a job's class choose its group on SQS; of a wrapper, those of the class that is shown.
    ///
    /// `None` if the manifest does not say it.
    #[cfg(feature = "cli")]
    pub(crate) fn groups_itself(&self, class: &str, shown: &str) -> Option<bool> {
        let class = ClassName::new(class)?;
        let class = match Kind::of_class(&class) {
            Kind::Job => class,
            Kind::Listener | Kind::Notification | Kind::Mailable | Kind::Broadcast => {
                ClassName::new(shown)?
            }
            // Laravel's own.
            Kind::Command | Kind::Closure | Kind::Batch | Kind::String => return Some(false),
        };
        self.class(&class)?.flags.get("groups_itself")?.as_bool()
    }

    pub(super) fn subject<'a>(
        &'a self,
        command: &'a Value,
        graph: &'a Graph<'a>,
        now: UnixSeconds,
    ) -> Result<Subject<'a>> {
        let Value::Object(object) = command else {
            let what = "the command is no object, and only PHP can know of it";
            return Err(missing("a job", what));
        };
        let version = self.version();
        Ok(Subject {
            manifest: self,
            object,
            graph,
            answers: &NO_ANSWERS,
            version: version.map_err(|error| missing(&self.laravel, &error.to_string()))?,
            now,
        })
    }

    /// Default value of a class's public property, for [`Chain::next`](crate::payload::Chain::next).
    ///
    /// `None` if the manifest does not have the class, or the property has no
    /// default value.
    pub fn default(&self, class: &ClassName, property: &str) -> Option<Value> {
        self.class(class)?.default(property)
    }

    /// The queue that a push to this one ends up in (`Queue::forward`, Laravel 13).
    pub fn forwarded_queue<'q>(&'q self, queue: &'q str, connection: &str) -> &'q str {
        let Some(forward) = self.queue_forwards.get(queue).and_then(Json::as_array) else {
            return queue;
        };
        match forward.first().and_then(Json::as_str) {
            Some(other) if other != connection => queue,
            _ => forward.get(1).and_then(Json::as_str).unwrap_or(queue),
        }
    }
}

impl Class {
    /// Whether jobs of this class can be in batches.
    pub fn is_batchable(&self) -> bool {
        self.is("batchable")
    }

    /// Whether no batch counts jobs of this class, even if they have a property `batchId`.
    pub(crate) fn is_never_batched(&self) -> bool {
        self.is_not("batchable")
    }

    /// Whether no batch counts jobs of this class that succeed: they do not know their own uuid.
    pub(crate) fn is_success_uncounted(&self) -> bool {
        self.is_not("interacts_with_queue")
    }

    /// Whether jobs of this class have a lock while they are queued.
    pub fn is_unique(&self) -> bool {
        self.is("unique")
    }

    /// Whether the class has a method `failed`, according to the manifest.
    pub fn has_failed(&self) -> bool {
        self.is("failed")
    }

    /// Whether jobs of this class are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is("encrypted")
    }

    /// Whether its objects have the properties of `Illuminate\Bus\Queueable`, such as those of chains.
    pub fn is_queueable(&self) -> bool {
        self.uses(QUEUEABLE)
    }

    /// Whether `Illuminate\Queue\SerializesModels` writes its objects, since Laravel 9.4 without default values.
    pub fn serializes_models(&self) -> bool {
        self.uses(SERIALIZES_MODELS)
    }
}

impl Subject<'_> {
    fn batch_id(&self, class: Option<&Class>) -> Option<Box<str>> {
        self.property(class, "batchId").as_str().map(Into::into)
    }

    /// A job class of the app.
    fn job(&self) -> Result<Facts> {
        let Some((name, class)) = self.manifest.entry(&self.object.class) else {
            return Err(unknown_class(self.manifest, &self.object.class));
        };
        self.check(class)?;
        let name = ClassName::new(name).unwrap_or_else(|| self.object.class.clone());
        let scalar = |name: &str| self.scalar(name, &self.limit(class, name)?);
        let delete = if self.since(13, 0) {
            scalar("deleteWhenMissingModels")?
        } else {
            Scalar::Null
        };
        let envelope = Envelope {
            max_tries: self.tries(class)?,
            max_exceptions: scalar("maxExceptions")?,
            fail_on_timeout: scalar("failOnTimeout")?,
            backoff: self.backoff(class)?,
            timeout: scalar("timeout")?,
            retry_until: self.retry_until(class)?,
            delete_when_missing_models: delete,
        };
        let display_name = self.display_name(class)?;
        let display_name = display_name.unwrap_or_else(|| name.as_str().into());
        let (connection, queue) = self.places(name.as_str(), class)?;
        let is_encrypted = self.since(8, 19) && class.implements(SHOULD_BE_ENCRYPTED)
            || self.since(8, 25) && is_true(&self.property(Some(class), "shouldBeEncrypted"));
        Ok(Facts {
            display_name,
            envelope,
            is_encrypted,
            unique: self.unique(class)?,
            connection,
            queue,
            delay: self.delay(&self.limit(class, "delay")?)?,
            batch_id: self.batch_id(Some(class)),
            is_queued: class.implements(SHOULD_QUEUE),
            is_queueable: class.is_queueable(),
            class: name,
        })
    }

    /// Connection and queue of a job of this class.
    fn places(&self, name: &str, class: &Class) -> Result<Places> {
        let own_queue = self.limit(class, "queue")?;
        let names = || {
            let rest = class.parents.iter().chain(&class.interfaces);
            let rest = rest.chain(&class.uses).map(String::as_str);
            std::iter::once(name).chain(rest)
        };
        let (connection, queue) = self.manifest.route(names, own_queue.as_str());
        Ok((
            self.place("connection", &self.limit(class, "connection")?, connection)?,
            self.place("queue", &own_queue, queue)?,
        ))
    }

    /// Fails if code of the class has to run before its jobs are pushed.
    fn check(&self, class: &Class) -> Result<()> {
        if class.interfaces.is_empty() && class.is("queued") {
            return Err(self.missing(
                "the manifest was written by an older artisand; write it again with `artisand manifest`",
            ));
        }
        if class.is("queues_itself") {
            return Err(
                self.missing("its method `queue()` pushes the job, and only PHP can run it")
            );
        }
        if class.is("prepares_for_dispatch") {
            return Err(self.missing(
                "its method `prepareForDispatch()` must be asked, and only PHP can run it",
            ));
        }
        if self.since(13, 6) && !self.limit(class, "debounceFor")?.is_null() {
            return Err(
                self.missing("the job is debounced (`debounceFor`), and only PHP can do that")
            );
        }
        Ok(())
    }

    /// The result of the method `displayName`; `None` if the class has none.
    fn display_name(&self, class: &Class) -> Result<Option<Box<str>>> {
        if !class.display_name && !self.answers.contains_key("displayName") {
            return Ok(None);
        }
        let name = self.method(class, "displayName")?;
        self.text("displayName", &name).map(Some)
    }

    fn unique(&self, class: &Class) -> Result<Option<Unique>> {
        if !class.is("unique") || !self.since(8, 14) {
            return Ok(None);
        }
        if class.unique_via {
            return Err(self.missing(
                "its method `uniqueVia()` chooses a cache store, and only PHP can run it",
            ));
        }
        // PHP would not hear of these answers, and so free another lock.
        for (name, exists) in [
            ("uniqueId", class.unique_id.is_some()),
            // Locks have the name since then.
            ("displayName", class.display_name || !self.since(12, 41)),
        ] {
            if !exists && self.answers.contains_key(name) {
                let what =
                    format!("it is unique and has no `{name}`, so its lock cannot depend on one");
                return Err(self.missing(&what));
            }
        }
        let id = match &class.unique_id {
            Some(source) if source.method => self.method(class, "uniqueId")?,
            _ => self.property(Some(class), "uniqueId"),
        };
        let has_method = class.unique_for.as_ref().is_some_and(is_method);
        let seconds = if has_method && self.since(9, 1) {
            self.method(class, "uniqueFor")?
        } else if has_method {
            self.property(Some(class), "uniqueFor")
        } else {
            self.value(class, "uniqueFor", class.unique_for.as_ref())?
        };
        Ok(Some(Unique {
            display_name: self.display_name(class)?,
            id: self.text("uniqueId", &id)?,
            seconds: self.seconds(&seconds)?,
            until_processing: class.is("unique_until_processing"),
        }))
    }

    fn seconds(&self, value: &Value) -> Result<i64> {
        match self.scalar("uniqueFor", value)? {
            Scalar::Null => Ok(0),
            Scalar::Int(seconds) => Ok(seconds),
            _ => Err(self.missing("`uniqueFor` is no number of seconds")),
        }
    }

    /// One of Laravel's own classes around a class of the app: its properties have everything except some methods.
    fn wrapper(&self, kind: Kind) -> Result<Facts> {
        let own = |name: &str| self.property(None, name);
        let scalar = |name: &str| self.scalar(name, &own(name));
        let (inner, display_name) = self.inner(kind)?;
        let (backoff, retry_until) = match (kind, inner) {
            (Kind::Listener, _) => {
                let (wait, until) = if self.since(8, 0) {
                    ("backoff", "retryUntil")
                } else {
                    ("retryAfter", "timeoutAt")
                };
                (self.waits(&own(wait))?, self.moment(until, &own(until))?)
            }
            (Kind::Broadcast, _) => (self.waits(&own("backoff"))?, Scalar::Null),
            (_, Some(inner)) => inner.asked_by(kind)?,
            _ => (Waits::None, Scalar::Null),
        };
        let delete = match own("deleteWhenMissingModels") {
            Value::Null if kind == Kind::Broadcast => Scalar::Bool(true),
            value => self.scalar("deleteWhenMissingModels", &value)?,
        };
        let envelope = Envelope {
            max_tries: scalar("tries")?,
            max_exceptions: scalar("maxExceptions")?,
            fail_on_timeout: scalar("failOnTimeout")?,
            backoff,
            timeout: scalar("timeout")?,
            retry_until,
            delete_when_missing_models: delete,
        };
        let is_queued = kind != Kind::Mailable;
        let is_unique = self.object.class == *UNIQUE_BROADCAST_EVENT;
        let names = || {
            let parent = is_unique.then_some("Illuminate\\Broadcasting\\BroadcastEvent");
            let interface = is_queued.then_some(SHOULD_QUEUE);
            [Some(self.name()), parent, interface, Some(QUEUEABLE)]
                .into_iter()
                .flatten()
        };
        let (connection, queue) = self.manifest.route(names, own("queue").as_str());
        Ok(Facts {
            class: self.object.class.clone(),
            display_name,
            envelope,
            is_encrypted: self.since(8, 25) && is_true(&own("shouldBeEncrypted")),
            // Only the event dispatcher takes a listener's lock.
            unique: if is_unique { self.lock()? } else { None },
            connection: self.place("connection", &own("connection"), connection)?,
            queue: self.place("queue", &own("queue"), queue)?,
            delay: self.delay(&own("delay"))?,
            batch_id: self.batch_id(None),
            is_queued,
            is_queueable: kind != Kind::Listener || self.since(8, 0),
        })
    }

    /// The object inside a wrapper, and the wrapper's display name.
    fn inner(&self, kind: Kind) -> Result<(Option<Self>, Box<str>)> {
        let nameless = || self.missing("it does not say what it is about");
        let property = match kind {
            Kind::Notification => "notification",
            Kind::Mailable => "mailable",
            Kind::Broadcast => "event",
            Kind::Listener => {
                let class = self.property(None, "class");
                return Ok((None, class.as_str().ok_or_else(nameless)?.into()));
            }
            Kind::Command if self.since(10, 29) => {
                let data = self
                    .graph
                    .property(self.object, "data")
                    .and_then(Value::as_array);
                let name = data.and_then(|data| data.values().next());
                let name = name
                    .map(|name| self.graph.resolve(name))
                    .and_then(Value::as_str);
                return Ok((None, name.ok_or_else(nameless)?.into()));
            }
            Kind::Command => return Ok((None, self.name().into())),
            Kind::Closure => {
                return Err(self.missing("a closure is PHP, and only PHP can queue it"));
            }
            _ => return Err(self.missing("only PHP can start a batch")),
        };
        let inner = self
            .graph
            .property(self.object, property)
            .and_then(Value::as_object);
        let inner = inner.ok_or_else(nameless)?;
        let inner = Self {
            object: inner,
            ..*self
        };
        Ok((Some(inner), inner.name().into()))
    }

    /// The facts that a wrapper's methods `backoff` and `retryUntil` read from this object.
    fn asked_by(&self, wrapper: Kind) -> Result<(Waits, Scalar)> {
        let class = self.class()?;
        let has = |name: &str| class.limits.get(name).is_some_and(|limit| !limit.is_null());
        // It is not known since which version the wrappers do this, so only PHP can tell.
        let asks = |since| self.since(since, 0) || !(has("backoff") || has("retryUntil"));
        let is_known = match wrapper {
            Kind::Mailable => asks(10) || (self.since(8, 0) && !self.since(9, 0)),
            _ => asks(8),
        };
        if !is_known {
            return Err(self.missing("whether its limits count is known to PHP only"));
        }
        let retry_until = if wrapper == Kind::Mailable && !self.since(10, 0) {
            Scalar::Null
        } else {
            self.retry_until(class)?
        };
        Ok((self.backoff(class)?, retry_until))
    }

    /// The lock of a wrapper, according to its properties, if no method chooses its store.
    fn unique_wrapper(&self, chooser: &str, display_name: Box<str>) -> Result<Unique> {
        let class = ClassName::in_code(chooser).and_then(|name| self.manifest.class(&name));
        if class.is_none_or(|class| class.unique_via) {
            let what = format!(
                "whether `uniqueVia()` of {chooser} chooses a cache store is known to PHP only"
            );
            return Err(self.missing(&what));
        }
        let own = |name: &str| self.property(None, name);
        Ok(Unique {
            display_name: Some(display_name),
            id: self.text("uniqueId", &own("uniqueId"))?,
            seconds: self.seconds(&own("uniqueFor"))?,
            until_processing: is_true(&own("shouldBeUniqueUntilProcessing")),
        })
    }

    /// The lock of a running job.
    fn lock(&self) -> Result<Option<Unique>> {
        let kind = Kind::of_class(&self.object.class);
        match kind {
            Kind::Job => self.unique(self.class()?),
            Kind::Listener
                if self.since(12, 50) && is_true(&self.property(None, "shouldBeUnique")) =>
            {
                let (_, class) = self.inner(kind)?;
                self.unique_wrapper(&class.clone(), class).map(Some)
            }
            Kind::Broadcast if self.object.class == *UNIQUE_BROADCAST_EVENT => {
                let (_, event) = self.inner(kind)?;
                self.unique_wrapper(&event.clone(), event).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::php::{Array, Object};

    type Properties = Vec<(&'static str, Value)>;

    /// A manifest with the class `App\Jobs\A`.
    fn manifest(laravel: &str, class: &Json, more: &Json) -> Manifest {
        let mut json = serde_json::json!({
            "artisand": 1, "laravel": laravel, "generated_at": 0,
            "paths": {"base": "/app", "storage": "/app/storage"}, "config": {},
            "classes": {"App\\Jobs\\A": {
                "kind": "job", "file": "A.php", "flags": {"queued": true},
                "interfaces": [SHOULD_QUEUE], "uses": [QUEUEABLE],
            }},
        });
        let merge = |into: &mut Json, from: &Json| {
            let into = into.as_object_mut().unwrap();
            into.extend(from.as_object().unwrap().clone());
        };
        merge(&mut json["classes"]["App\\Jobs\\A"], class);
        merge(&mut json, more);
        Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
    }

    fn property(name: &str, visibility: &str, default: Option<&Value>) -> Json {
        let default = default.map(|value| {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(value.to_bytes())
        });
        serde_json::json!({"name": name, "visibility": visibility, "class": "App\\Jobs\\A", "default": default})
    }

    fn command(properties: &[(&str, Value)]) -> Value {
        let mut object = Object::new(ClassName::new("app\\jobs\\a").unwrap());
        for (name, value) in properties {
            object = object.public(name, value.clone());
        }
        object.into()
    }

    const NOW: UnixSeconds = UnixSeconds(1_000);

    #[test]
    fn a_class_is_found_in_any_case_and_named_as_declared() {
        let manifest = manifest("13.31.0", &serde_json::json!({}), &serde_json::json!({}));
        let facts = manifest.facts(&command(&[]), NOW).unwrap();
        assert_eq!(facts.class.as_str(), "App\\Jobs\\A");
        assert_eq!(&*facts.display_name, "App\\Jobs\\A");
        assert_eq!(facts.envelope, Envelope::default());
        assert!(facts.is_queued && facts.is_queueable && !facts.is_encrypted);
        assert_eq!(
            (facts.unique, facts.connection, facts.queue),
            (None, None, None)
        );
    }

    #[test]
    fn tries_come_from_where_the_version_looks() {
        let two = Value::from(2);
        let with = |limit: Json| {
            serde_json::json!({
                "properties": [property("tries", "public", Some(&two))],
                "limits": {"tries": limit},
                "methods": {"tries": {"text": false, "parts": [{"literal": 9}]}},
            })
        };
        let (method, attribute) = (serde_json::json!({"$method": true}), Json::from(5));
        let none: Option<i64> = None;
        #[rustfmt::skip]
        let rows = [
            // version, limit in the manifest, value in the bytes => maxTries
            ("8.83.0", &method, None, Scalar::Int(2)),
            ("8.83.0", &method, Some(none.into()), Scalar::Null),
            ("10.39.0", &method, None, Scalar::Int(2)),
            ("10.39.0", &method, Some(none.into()), Scalar::Int(9)),
            ("13.31.0", &method, Some(Value::from(7)), Scalar::Int(9)),
            ("13.31.0", &attribute, None, Scalar::Int(5)),
            ("13.31.0", &attribute, Some(Value::from(2)), Scalar::Int(5)),
            ("13.31.0", &attribute, Some(Value::from(7)), Scalar::Int(7)),
            ("13.31.0", &attribute, Some(none.into()), Scalar::Int(5)),
            ("13.4.0", &attribute, Some(Value::from(7)), Scalar::Int(7)),
            ("13.3.0", &attribute, Some(Value::from(7)), Scalar::Int(5)),
            ("12.60.0", &attribute, Some(Value::from(7)), Scalar::Int(7)),
            ("13.31.0", &Json::from(2), Some(Value::from("3")), "3".into()),
        ];
        for (version, limit, written, expected) in rows {
            let manifest = manifest(version, &with(limit.clone()), &serde_json::json!({}));
            let written: Vec<_> = written.into_iter().map(|value| ("tries", value)).collect();
            let facts = manifest.facts(&command(&written), NOW).unwrap();
            assert_eq!(
                facts.envelope.max_tries, expected,
                "{version} {limit} {written:?}"
            );
        }
    }

    #[test]
    fn backoff_and_dates_become_what_the_payload_has() {
        let date = |seconds: i64| {
            let text = format!(
                "1970-01-01 00:{:02}:{:02}.500000",
                seconds / 60,
                seconds % 60
            );
            let class = ClassName::new("Carbon\\Carbon").unwrap();
            let date = Object::new(class)
                .public("date", text)
                .public("timezone_type", 3);
            Value::from(date.public("timezone", "UTC"))
        };
        let waits: Array = [date(1_007), date(5), Value::from(3)].into_iter().collect();
        let manifest = manifest("13.31.0", &serde_json::json!({}), &serde_json::json!({}));
        let written = [("backoff", waits.into()), ("retryUntil", date(2_000))];
        let envelope = manifest.facts(&command(&written), NOW).unwrap().envelope;
        assert_eq!(
            envelope.backoff,
            Waits::List(vec![7.into(), 0.into(), 3.into()])
        );
        assert_eq!(envelope.retry_until, Scalar::Int(2_000));
    }

    #[test]
    fn jobs_go_where_properties_attributes_routes_and_forwards_send_them() {
        let routed = |routes: Json, forwards: Json, limits: Json, properties: &[(&str, Value)]| {
            let manifest = manifest(
                "13.31.0",
                &serde_json::json!({"parents": ["App\\Jobs\\Base"], "limits": limits}),
                &serde_json::json!({"queue_routes": routes, "queue_forwards": forwards}),
            );
            let facts = manifest.facts(&command(properties), NOW).unwrap();
            let text = |name: Option<Box<str>>| name.map_or(String::new(), String::from);
            let queue = text(facts.queue);
            let connection = text(facts.connection);
            let end = manifest.forwarded_queue(&queue, "redis").to_owned();
            [connection, queue, end].join("|")
        };
        let (none, no) = (|| serde_json::json!([]), || serde_json::json!({}));
        let base = || serde_json::json!({"App\\Jobs\\Base": ["c", "q"]});
        let trait_route = || serde_json::json!({"Illuminate\\Bus\\Queueable": "t"});
        let forwards =
            || serde_json::json!({"a": ["elsewhere", "b"], "x": [null, "y"], "z": ["other", "w"]});
        let queue = |name: &str| [("queue", Value::from(name))];
        #[rustfmt::skip]
        let rows = [
            (routed(none(), none(), no(), &[]), "||"),
            (routed(base(), none(), no(), &[]), "c|q|q"),
            (routed(trait_route(), none(), no(), &[]), "|t|t"),
            (routed(base(), none(), no(), &queue("own")), "c|own|own"),
            (routed(none(), none(), serde_json::json!({"queue": "attr", "connection": "redis"}), &[]), "redis|attr|attr"),
            (routed(none(), forwards(), no(), &queue("a")), "elsewhere|a|a"),
            (routed(none(), forwards(), no(), &queue("x")), "|x|y"),
            (routed(none(), forwards(), no(), &queue("z")), "other|z|z"),
            (routed(base(), forwards(), no(), &queue("")), "c||"),
        ];
        for (index, (found, expected)) in rows.iter().enumerate() {
            assert_eq!(found, expected, "row {index}");
        }
    }

    #[test]
    fn unique_locks_are_told_by_class_and_object() {
        let class = serde_json::json!({
            "flags": {"queued": true, "unique": true, "unique_until_processing": true},
            "properties": [
                property("uniqueId", "public", Some(&Value::from(7))),
                property("number", "private", Some(&Value::from(3))),
            ],
            "unique_id": {"property": true}, "unique_for": 60, "display_name": true,
            "methods": {"displayName": {"text": true, "parts": [{"literal": "No. "}, {"property": "number"}]}},
        });
        let manifest = manifest("13.31.0", &class, &serde_json::json!({}));
        let unique = |id: &str| {
            Some(Unique {
                display_name: Some("No. 3".into()),
                id: id.into(),
                seconds: 60,
                until_processing: true,
            })
        };
        let none: Option<i64> = None;
        assert_eq!(manifest.unique(&command(&[])), Ok(unique("7")));
        assert_eq!(
            manifest.unique(&command(&[("uniqueId", Value::from("x"))])),
            Ok(unique("x"))
        );
        assert_eq!(
            manifest.facts(&command(&[]), NOW).unwrap().unique,
            unique("7")
        );
        assert_eq!(
            manifest.unique(&command(&[("uniqueId", none.into())])),
            Ok(unique(""))
        );

        let listener = |shared: bool| {
            let class = ClassName::new("Illuminate\\Events\\CallQueuedListener").unwrap();
            let object = Object::new(class).public("class", "App\\Jobs\\A");
            let object = object
                .public("shouldBeUnique", shared)
                .public("uniqueId", "e");
            Value::from(object.public("uniqueFor", 5))
        };
        let expected = Unique {
            display_name: Some("App\\Jobs\\A".into()),
            id: "e".into(),
            seconds: 5,
            until_processing: false,
        };
        assert_eq!(manifest.unique(&listener(true)), Ok(Some(expected)));
        assert_eq!(manifest.unique(&listener(false)), Ok(None));
        // The event dispatcher takes a listener's lock; the step of a chain does not.
        assert_eq!(manifest.facts(&listener(true), NOW).unwrap().unique, None);
    }

    #[test]
    fn a_lock_depends_on_no_answer_that_php_does_not_know() {
        let flags = serde_json::json!({"queued": true, "unique": true});
        let bare = serde_json::json!({"flags": flags});
        let full = serde_json::json!({"flags": flags, "unique_id": {"method": true}, "display_name": true});
        for name in ["uniqueId", "displayName"] {
            let manifest = |class| manifest("13.31.0", class, &serde_json::json!({}));
            let answers = [
                ("uniqueId", Value::from("7")),
                ("displayName", "No. 7".into()),
            ];
            let all = Answers::from(answers);
            let facts = manifest(&full).facts_with(&command(&[]), &all, NOW);
            assert_eq!(&*facts.unwrap().unique.unwrap().id, "7");
            let one = Answers::from([(name, all[name].clone())]);
            let error = manifest(&bare).facts_with(&command(&[]), &one, NOW);
            let expected = format!("it is unique and has no `{name}`");
            assert!(error.unwrap_err().what.starts_with(&expected));
        }
    }

    #[test]
    fn what_only_php_knows_is_said_so() {
        let method = serde_json::json!({"$method": true});
        let unique = serde_json::json!({"queued": true, "unique": true});
        let array = Value::from(Array::default());
        #[rustfmt::skip]
        let rows: [(Json, Json, Properties, &str); 11] = [
            (serde_json::json!({"display_name": true}), Json::Null, vec![], "its method `displayName()` must be asked"),
            (serde_json::json!({"limits": {"retryUntil": method}}), Json::Null, vec![], "its method `retryUntil()` must be asked"),
            (serde_json::json!({"limits": {"queue": method}}), Json::Null, vec![], "whether `queue` has an attribute is not known"),
            (serde_json::json!({"limits": {"timeout": {"$php": "App\\X"}}}), Json::Null, vec![], "the default of `timeout` is known to PHP only"),
            (serde_json::json!({"limits": {"debounceFor": 5}}), Json::Null, vec![], "the job is debounced"),
            (serde_json::json!({"flags": {"queues_itself": true}}), Json::Null, vec![], "its method `queue()` pushes the job"),
            (serde_json::json!({"flags": {"prepares_for_dispatch": true}}), Json::Null, vec![], "its method `prepareForDispatch()` must be asked"),
            (serde_json::json!({"flags": unique, "unique_via": true}), Json::Null, vec![], "its method `uniqueVia()` chooses"),
            (serde_json::json!({"interfaces": []}), Json::Null, vec![], "the manifest was written by an older artisand"),
            (serde_json::json!({}), Json::Null, vec![("timeout", array)], "`timeout` is an array"),
            (serde_json::json!({}), Json::Null, vec![("queue", Value::from(5))], "`queue` is an int"),
        ];
        for (class, more, properties, expected) in rows {
            let more = if more.is_null() {
                serde_json::json!({})
            } else {
                more
            };
            let manifest = manifest("13.31.0", &class, &more);
            let error = manifest.facts(&command(&properties), NOW).unwrap_err();
            assert!(error.what.starts_with(expected), "{error}");
        }
        let manifest = manifest("13.31.0", &serde_json::json!({}), &serde_json::json!({}));
        let unknown = Object::new(ClassName::new("App\\Jobs\\B").unwrap()).into();
        let error = manifest.facts(&unknown, NOW).unwrap_err().to_string();
        let expected = "App\\Jobs\\B: the manifest does not have the class; write it again with `artisand manifest`";
        assert_eq!(error, expected);
        assert_eq!(manifest.unique(&unknown).unwrap_err().to_string(), expected);
        // For example a step of a chain whose class is encrypted now.
        let mut manifest = manifest;
        let base = tempfile::tempdir().unwrap();
        for class in manifest.classes.values_mut() {
            class.file = "A.php".into();
        }
        std::fs::write(base.path().join("A.php"), "<?php").unwrap();
        manifest.distrust_changed(base.path());
        let error = manifest.facts(&command(&[]), NOW).unwrap_err().to_string();
        let expected = "app\\jobs\\a: A.php has changed since the manifest was written; write it again with `artisand manifest`";
        assert_eq!(error, expected);
        assert!(manifest.facts(&Value::from(1), NOW).is_err());
    }
}
