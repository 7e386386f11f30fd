//! A job that is about to be dispatched, with its options.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::RawValue;

use super::app::App;
use super::by_php::by_php;
use super::error::DispatchError;
use super::push::{self, Dispatched, Prepared};
use super::recipient::{self, Recipient};
use crate::app::{Answers, Made, Manifest, Unfit, Wrapping};
use crate::handler::dispatch::{self as draft, Draft, PushPlan, Ready};
use crate::handler::{BoxFuture, Services};
use crate::payload::{Delay, Envelope, HorizonFields, NewData, NewPayload, random_uuid};
use crate::php::{self, Array, ClassName, Object, Value};
use crate::queue::{Push, QueueName};
use crate::time::UnixSeconds;

/// A job with its options, in any order. It is pushed when it is awaited.
#[derive(Debug)]
#[must_use = "nothing is dispatched before it is awaited"]
pub struct Pending {
    app: Arc<App>,
    what: Result<Pushable, DispatchError>,
    recipients: Vec<Recipient>,
    channel: Option<String>,
    options: Options,
}

/// What is pushed.
#[derive(Debug)]
pub(super) enum Pushable {
    /// An object of a job class.
    Object(Object),
    /// A method of a class that the app's container makes.
    Method { job: Box<str>, data: Box<RawValue> },
    /// A listener of an event.
    Listener {
        class: ClassName,
        method: Box<str>,
        event: Object,
    },
    /// A notification.
    Notification(Object),
    /// A mailable.
    Mailable(Object),
    /// A line that is typed after `php artisan`.
    Command(Box<str>),
}

impl Pushable {
    /// The object that the program gave.
    fn object(&mut self) -> Option<&mut Object> {
        match self {
            Self::Object(object)
            | Self::Listener { event: object, .. }
            | Self::Notification(object)
            | Self::Mailable(object) => Some(object),
            Self::Method { .. } | Self::Command(_) => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) connection: Option<String>,
    pub(super) queue: Option<String>,
    pub(super) delay: Option<Wait>,
    once: Option<String>,
    pub(super) answers: Answers,
    by_php: bool,
}

/// When a job becomes due.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    For(Duration),
    Until(SystemTime),
}

const NO_RECIPIENTS: &str = "only notifications and mails have recipients and channels";

impl Pending {
    pub(super) fn of(app: Arc<App>, what: Result<Pushable, DispatchError>) -> Self {
        Self {
            app,
            what,
            recipients: Vec::new(),
            channel: None,
            options: Options::default(),
        }
    }

    /// Sets a property, by its name in PHP's source.
    pub fn with<T: Serialize>(mut self, property: &str, value: T) -> Self {
        let bytes = php::to_vec(&value).map_err(DispatchError::unfit);
        let value = bytes.and_then(|bytes| Value::from_bytes(&bytes).map_err(DispatchError::unfit));
        let Ok(what) = &mut self.what else {
            return self;
        };
        match (what.object(), value) {
            (Some(object), Ok(value)) => object.set(property, value),
            (None, Ok(_)) => {
                let what = "a string job or a command has no properties";
                self.what = Err(DispatchError::unfit(what));
            }
            (_, Err(error)) => self.what = Err(error),
        }
        self
    }

    /// Who gets the notification or the mail: a model, or an address.
    ///
    /// A mail may have several recipients, a notification has one.
    pub fn to(mut self, recipient: impl Into<Recipient>) -> Self {
        self.recipients.push(recipient.into());
        self
    }

    /// The channel of the notification: `mail`, `database` or the name of a channel's class. As in Laravel, each
    /// channel is a job of its own.
    pub fn via(mut self, channel: impl Into<String>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// `onQueue`: the queue, instead of the class's own.
    pub fn on_queue(mut self, queue: impl Into<String>) -> Self {
        self.options.queue = Some(queue.into());
        self
    }

    /// `onConnection`: the queue connection, instead of the class's own.
    pub fn on_connection(mut self, connection: impl Into<String>) -> Self {
        self.options.connection = Some(connection.into());
        self
    }

    /// `onGroup`: SQS runs the jobs of a group one after another, on queues that keep order. Without it the group has
    /// the queue's name.
    ///
    /// Classes have the property since Laravel 12.28.
    pub fn group(self, group: impl Into<String>) -> Self {
        let group = group.into();
        match self.what {
            // The object is the event's.
            Ok(Pushable::Listener { .. }) => self.answer("messageGroup", group),
            _ => self.with("messageGroup", group),
        }
    }

    /// `delay`: the wait until the job becomes due, in whole seconds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = Some(Wait::For(delay));
        self
    }

    /// `delay` with a date: when the job becomes due.
    pub fn at(mut self, due: SystemTime) -> Self {
        self.options.delay = Some(Wait::Until(due));
        self
    }

    /// Pushes the job at most once under this key within a day, so that it may be repeated after
    /// [`DispatchError::Unknown`]; lost connections are tried again.
    ///
    /// A repetition says [`Dispatched::Queued`] with the uuid of the first. The key belongs to the server: on another
    /// connection the job is another one.
    pub fn once(mut self, key: impl Into<String>) -> Self {
        self.options.once = Some(key.into());
        self
    }

    /// What the method `tries()` of the class would return, or its property: attempts.
    pub fn tries(self, tries: u32) -> Self {
        self.answer("tries", i64::from(tries))
    }

    /// What the method `backoff()` of the class would return, or its property: waits before the next attempts, in
    /// whole seconds.
    pub fn backoff(self, waits: impl IntoIterator<Item = Duration>) -> Self {
        let waits: Array = waits.into_iter().map(whole_seconds).collect();
        // Its name before Laravel 8, as of the next one.
        self.answer("retryAfter", waits.clone())
            .answer("backoff", waits)
    }

    /// What the property `timeout` would be, in whole seconds.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.answer("timeout", whole_seconds(timeout))
    }

    /// What the method `retryUntil()` of the class would return: no attempt begins after this.
    pub fn retry_until(self, until: SystemTime) -> Self {
        let until = push::seconds(until);
        self.answer("timeoutAt", until).answer("retryUntil", until)
    }

    /// What the method `uniqueId()` of the class would return, or its property.
    pub fn unique_id(self, id: impl Into<String>) -> Self {
        self.answer("uniqueId", id.into())
    }

    /// What the method `displayName()` of the class would return.
    pub fn display_name(self, name: impl Into<String>) -> Self {
        self.answer("displayName", name.into())
    }

    /// What the method `tags()` of the class would return, for Horizon.
    pub fn tags<T: Into<String>>(self, tags: impl IntoIterator<Item = T>) -> Self {
        let tags = tags.into_iter().map(|tag| Value::from(tag.into()));
        self.answer("tags", tags.collect::<Array>())
    }

    fn answer(mut self, method: &'static str, value: impl Into<Value>) -> Self {
        self.options.answers.insert(method, value.into());
        self
    }

    /// Lets a PHP worker dispatch the job, for what only PHP can do: methods and hooks of the class run there.
    ///
    /// What is pushed is a closure with the job, signed with the app's key, on the job's queue. This needs Laravel
    /// 8.62. A unique job takes its lock when PHP dispatches it.
    pub fn by_php(mut self) -> Self {
        self.options.by_php = true;
        self
    }

    /// Makes the payload now and pushes it later: all errors but those of the server come here.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`], [`DispatchError::OnlyPhp`].
    pub async fn prepare(self) -> Result<Prepared, DispatchError> {
        let (app, once) = (Arc::clone(&self.app), self.options.once.clone());
        let ready = self.ready().await?;
        Ok(Prepared { app, ready, once })
    }

    async fn ready(self) -> Result<Ready, DispatchError> {
        match self.what {
            Ok(Pushable::Object(object)) if self.options.by_php => {
                by_php(&self.app, object, &self.options)
            }
            Ok(_) if self.options.by_php => Err(DispatchError::unfit(
                "`by_php` is for objects of job classes",
            )),
            Ok(Pushable::Method { job, data }) => {
                if !(self.recipients.is_empty() && self.channel.is_none()) {
                    return Err(DispatchError::unfit(NO_RECIPIENTS));
                }
                method(&self.app, &self.options, job, data).await
            }
            Ok(_) => {
                let app = Arc::clone(&self.app);
                let mut planned = self.plan()?;
                let services = &app.services;
                let connection = planned.connection.clone();
                let (name, destination) = draft::destination(services, Some(&connection))?;
                let queues = draft::queues(name, destination)?;
                let to = planned.queue.clone();
                let lock = planned.lock(services, |place| queues.can_claim(&to, place))?;
                let inherited = app.inherited.clone();
                Ok(planned.finish(services, inherited, lock).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// The job before its payload is made, for a push that belongs to the end of another job.
    pub(super) fn plan(self) -> Result<PushPlan, DispatchError> {
        let what = self.what?;
        let (recipients, channel) = (self.recipients, self.channel);
        let is_sent = matches!(what, Pushable::Notification(_) | Pushable::Mailable(_));
        if !(is_sent || recipients.is_empty() && channel.is_none()) {
            return Err(DispatchError::unfit(NO_RECIPIENTS));
        }
        let wrapping = match what {
            Pushable::Object(object) => return plan(&self.app, object, &self.options),
            Pushable::Method { .. } => {
                return Err(DispatchError::unfit("a string job cannot follow another"));
            }
            Pushable::Listener {
                class,
                method,
                event,
            } => Wrapping::Listener {
                class,
                method,
                event,
            },
            Pushable::Notification(object) => {
                recipient::notification(object, recipients, channel, self.app.services.version)?
            }
            Pushable::Mailable(object) => recipient::mailable(object, recipients)?,
            Pushable::Command(line) => Wrapping::Command(line),
        };
        plan_wrapped(&self.app, wrapping, &self.options)
    }
}

impl IntoFuture for Pending {
    type Output = Result<Dispatched, DispatchError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.prepare().await?.push().await })
    }
}

/// Makes the object as PHP would write it, and asks the manifest what PHP would ask the class.
pub(super) fn plan(
    app: &App,
    object: Object,
    options: &Options,
) -> Result<PushPlan, DispatchError> {
    let services = &app.services;
    let (command, rest) = command(app, object, options)?;
    let mut draft = Draft::of_made(
        services,
        command,
        &options.answers,
        app.services.clock.now(),
    )?;
    if !draft.facts.is_queued {
        let class = draft.facts.class;
        return Err(Unfit::NotQueued { class }.into());
    }
    if let Some(delay) = rest.delay {
        let delay = delay.to_value(&services.timezone);
        draft.facts.delay = Delay::of(&delay).map_err(DispatchError::unfit)?;
    }
    let (connection, queue) = (rest.connection.as_deref(), rest.queue.as_deref());
    Ok(PushPlan::of(services, draft, connection, queue)?)
}

/// Fills one of Laravel's wrappers.
fn plan_wrapped(
    app: &App,
    mut wrapping: Wrapping,
    options: &Options,
) -> Result<PushPlan, DispatchError> {
    let services = &app.services;
    let manifest = draft::manifest(services)?;
    if let Wrapping::Notification {
        notification: object,
        ..
    }
    | Wrapping::Mailable(object) = &mut wrapping
    {
        set(manifest, object, options, &services.timezone);
    }
    let mut answers = options.answers.clone();
    let delay = options
        .delay
        .map(|delay| delay.to_value(&services.timezone));
    for (name, value) in [
        ("connection", options.connection.as_deref().map(Value::from)),
        ("queue", options.queue.as_deref().map(Value::from)),
        ("delay", delay),
    ] {
        answers.extend(value.map(|value| (name, value)));
    }
    let wrapped = manifest.wrap(wrapping, &answers)?;
    let command = manifest.command(wrapped.object, Vec::new())?;
    let draft = Draft::of_made(
        services,
        command,
        &wrapped.answers,
        app.services.clock.now(),
    )?;
    Ok(PushPlan::of(services, draft, None, None)?)
}

/// The object with the options that PHP would set as properties, and the options for which the class has none.
pub(super) fn command(
    app: &App,
    mut object: Object,
    options: &Options,
) -> Result<(Made, Options), DispatchError> {
    let manifest = draft::manifest(&app.services)?;
    let rest = set(manifest, &mut object, options, &app.services.timezone);
    Ok((manifest.command(object, Vec::new())?, rest))
}

/// Sets the properties that PHP's methods would set; returns the options for which the class has none.
fn set(manifest: &Manifest, object: &mut Object, options: &Options, zone: &str) -> Options {
    let mut rest = options.clone();
    let class = object.class.clone();
    let mut set = |name: &str, value: Option<Value>| match value {
        Some(value) if declares(manifest, &class, name) => {
            object.set(name, value);
            true
        }
        _ => false,
    };
    if set("connection", options.connection.as_deref().map(Value::from)) {
        rest.connection = None;
    }
    if set("queue", options.queue.as_deref().map(Value::from)) {
        rest.queue = None;
    }
    if set("delay", options.delay.map(|delay| delay.to_value(zone))) {
        rest.delay = None;
    }
    for (name, value) in &options.answers {
        set(name, Some(value.clone()));
    }
    rest
}

/// Whether a class has this property.
fn declares(manifest: &Manifest, class: &ClassName, name: &str) -> bool {
    let class = manifest.class(class);
    let mut properties = class.into_iter().flat_map(|class| &class.properties);
    properties.any(|property| property.name == name)
}

/// The payload of a string job.
async fn method(
    app: &App,
    options: &Options,
    job: Box<str>,
    data: Box<RawValue>,
) -> Result<Ready, DispatchError> {
    let (services, now) = (&app.services, app.services.clock.now());
    if let Some(name) = options.answers.keys().next() {
        let what = format!("a string job has no class, and so no `{name}`");
        return Err(DispatchError::unfit(what));
    }
    draft::refuse_hooks(services)?;
    let (connection, destination) = draft::destination(services, options.connection.as_deref())?;
    let queue = options.queue.as_deref();
    let queue = QueueName::from(queue.unwrap_or(destination.default_queue.as_str()));
    let due = options.delay.map(|delay| delay.due(now));
    let uuid = random_uuid();
    let mut payload = NewPayload {
        uuid: uuid.clone(),
        display_name: job.split('@').next().unwrap_or_default().into(),
        envelope: Envelope::default(),
        horizon: horizon_fields(services, &job),
        data: NewData::Method { job, data },
        created_at: now,
        extra: app.inherited.fields(),
        id: None,
        delay: due.map(|due| due.0.saturating_sub(now.0).max(0)),
    };
    let id = services.add_driver_fields(connection, &mut payload);
    let bytes = payload
        .to_bytes(services.version)
        .map_err(DispatchError::unfit)?;
    let made = (payload, bytes);
    let payload = draft::hooked(services, made, &app.inherited, (connection, &queue)).await?;
    Ok(Ready {
        connection: connection.to_owned(),
        uuid,
        id,
        push: Push {
            queue,
            payload,
            due,
            claim: None,
        },
        lock: None,
    })
}

/// What Horizon adds to the payload of a string job.
fn horizon_fields(services: &Services, job: &str) -> Option<HorizonFields> {
    let manifest = services.manifest.as_deref();
    (services.has_horizon).then(|| HorizonFields {
        silenced: manifest.is_some_and(|manifest| manifest.silences(job)),
        ..HorizonFields::plain("job")
    })
}

fn whole_seconds(duration: Duration) -> Value {
    Value::Int(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

impl Wait {
    /// As the property `delay` holds it: seconds, or a date of Laravel's class.
    fn to_value(self, zone: &str) -> Value {
        match self {
            Self::For(delay) => whole_seconds(delay),
            Self::Until(due) => push::carbon(due, zone),
        }
    }

    pub(super) fn due(self, now: UnixSeconds) -> UnixSeconds {
        match self {
            Self::For(delay) => UnixSeconds(now.0.saturating_add_unsigned(delay.as_secs())),
            Self::Until(due) => UnixSeconds(push::seconds(due)),
        }
    }
}
