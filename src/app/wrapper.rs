//! Laravel's own wrappers around the app's listeners, notifications, mailables and commands, as PHP would fill them.
//!
//! The properties of a wrapper are those that the app's version of Laravel has: the manifest lists them.
//!
//! # Source
//!
//! `Illuminate\Events\Dispatcher::createListenerAndJob`, `Illuminate\Notifications\NotificationSender`,
//! `Illuminate\Mail\Mailable::newQueuedJob`; docs/protocol/commands.md 6 to 9 and 12.

use super::class::SHOULD_BE_ENCRYPTED;
use super::manifest::{Class, Manifest};
use super::object::Unfit;
use super::subject::{Answers, Missing, Subject, is_method, missing};
use crate::php::json::Graph;
use crate::php::{Array, ClassName, Object, Value};
use crate::time::UnixSeconds;

const LISTENER: &str = "Illuminate\\Events\\CallQueuedListener";
const NOTIFICATION: &str = "Illuminate\\Notifications\\SendQueuedNotifications";
const MAILABLE: &str = "Illuminate\\Mail\\SendQueuedMailable";
const COMMAND: &str = "Illuminate\\Foundation\\Console\\QueuedCommand";
const AFTER_COMMIT: &str = "Illuminate\\Contracts\\Queue\\ShouldQueueAfterCommit";

/// What is to be queued in a wrapper.
#[derive(Debug, Clone, PartialEq)]
pub enum Wrapping {
    /// A listener, for an event.
    Listener {
        /// Class of the listener.
        class: ClassName,
        /// Its method; `handle` also for `__invoke`.
        method: Box<str>,
        /// The event.
        event: Object,
    },
    /// A notification, on one channel.
    Notification {
        /// The notification; one without an `id` gets this one.
        notification: Object,
        /// `id` of the notification.
        id: Box<str>,
        /// Who is notified, as the wrapper holds it.
        to: Value,
        /// The channel.
        channel: Box<str>,
    },
    /// A mailable.
    Mailable(Object),
    /// A line that is typed after `php artisan`.
    Command(Box<str>),
}

/// A filled wrapper.
#[derive(Debug, Clone, PartialEq)]
pub struct Wrapped {
    /// The wrapper.
    pub object: Object,
    /// The answers that were given, with the connection, the queue and the delay that PHP would pass to the push.
    pub answers: Answers,
}

impl Manifest {
    /// Fills a wrapper. The answers stand for properties and methods of what is in it.
    ///
    /// # Errors
    ///
    /// [`Unfit`].
    pub fn wrap(&self, wrapping: Wrapping, answers: &Answers) -> Result<Wrapped, Unfit> {
        match wrapping {
            Wrapping::Listener {
                class,
                method,
                event,
            } => {
                // PHP makes it without its constructor to ask it.
                let listener = Object::new(class);
                let mut wrapped = self.filled(LISTENER, &listener, answers)?;
                let class = self.known_class(&listener.class)?;
                let no = |what| Err(missing(listener.class.as_str(), what).into());
                if !class.is_queued() {
                    let class = listener.class;
                    return Err(Unfit::NotQueued { class });
                }
                if class.is_unique() && self.is_at_least(12, 50)? {
                    return no("the listener is unique, and only PHP takes the lock of one");
                }
                if class
                    .limits
                    .get("debounceFor")
                    .is_some_and(|debounce| !debounce.is_null())
                {
                    return no("the listener is debounced, and only PHP can do that");
                }
                let method = match &*method {
                    "handle" if class.is("invokable") => "__invoke",
                    method => method,
                };
                let event = match self.class(&event.class) {
                    Some(_) => self.fitted(&event)?,
                    None => event,
                };
                wrapped.object.set("class", listener.class.as_str());
                wrapped.object.set("method", method);
                wrapped.object.set("data", list([Value::Object(event)]));
                Ok(wrapped)
            }
            Wrapping::Notification {
                mut notification,
                id,
                to,
                channel,
            } => {
                // Before Laravel 9.16 it was always replaced.
                let is_named = notification.get("id").is_some_and(Value::is_truthy);
                if !is_named || !self.is_at_least(9, 16)? {
                    notification.set("id", &*id);
                }
                let notification = self.fitted(&notification)?;
                if !self.known_class(&notification.class)?.is_queued() {
                    let class = notification.class;
                    return Err(Unfit::NotQueued { class });
                }
                let mut wrapped = self.filled(NOTIFICATION, &notification, answers)?;
                if let Some(Value::Array(delays)) = wrapped.answers.get("delay") {
                    let delay = of_channel(delays, &channel);
                    wrapped.answers.insert("delay", delay);
                }
                if let Some(Value::Array(groups)) = wrapped.object.get("messageGroup") {
                    let group = of_channel(groups, &channel);
                    wrapped.object.set("messageGroup", group);
                }
                wrapped.places(&["connection", "queue", "delay"]);
                wrapped.object.set("notifiables", to);
                wrapped.object.set("notification", notification);
                wrapped
                    .object
                    .set("channels", list([Value::from(&*channel)]));
                Ok(wrapped)
            }
            Wrapping::Mailable(mailable) => {
                let mailable = self.fitted(&mailable)?;
                let mut wrapped = self.filled(MAILABLE, &mailable, answers)?;
                if self.is_at_least(10, 15)? {
                    wrapped.places(&["connection", "queue"]);
                }
                if self.is_at_least(12, 52)? {
                    wrapped.places(&["delay"]);
                }
                wrapped.object.set("mailable", mailable);
                Ok(wrapped)
            }
            Wrapping::Command(line) => Ok(Wrapped {
                object: new(COMMAND).public("data", list([Value::from(&*line)])),
                answers: answers.clone(),
            }),
        }
    }

    /// A wrapper with what Laravel copies to it from the object that it is for.
    fn filled(&self, wrapper: &str, of: &Object, answers: &Answers) -> Result<Wrapped, Unfit> {
        let class = self.class_to_make(&of.class)?;
        let layout = self.layout(wrapper)?;
        let value = Value::Object(of.clone());
        let graph = Graph::new(&value);
        let subject = Subject {
            answers,
            ..self.subject(&value, &graph, UnixSeconds(0))?
        };
        let copied = Copied {
            subject,
            class,
            is_listener: wrapper == LISTENER,
        };
        let mut object = new(wrapper);
        for property in &layout.properties {
            if let Some(value) = copied.property(&property.name)? {
                object.set(&property.name, value);
            }
        }
        let group = "messageGroup";
        if answers.contains_key(group) && object.get(group).is_none() {
            // Before Laravel 12.28 it would vanish.
            return Err(Unfit::Unknown {
                class: object.class,
                property: group.to_owned(),
                nearest: None,
            });
        }
        let mut answers = answers.clone();
        let names = || {
            let rest = class.parents.iter().chain(&class.interfaces);
            let rest = rest.chain(&class.uses).map(String::as_str);
            std::iter::once(of.class.as_str()).chain(rest)
        };
        let (connection, queue) = self.route(names, None);
        let routes = [
            ("connection", connection),
            ("queue", queue),
            ("delay", None),
        ];
        for (name, routed) in routes {
            let value = copied.place(name)?;
            let value = match routed {
                Some(place) if value.is_null() => Value::from(place),
                _ => value,
            };
            answers.insert(name, value);
        }
        Ok(Wrapped { object, answers })
    }

    /// The object as PHP would write it, with its models.
    fn fitted(&self, object: &Object) -> Result<Object, Unfit> {
        let mut object = self.object(object)?;
        self.fit_models(&mut object);
        Ok(object)
    }

    fn is_at_least(&self, major: u32, minor: u32) -> Result<bool, Missing> {
        let version = self.version();
        let version = version.map_err(|error| missing(&self.laravel, &error.to_string()))?;
        Ok(version.is_at_least(major, minor))
    }

    /// The properties of a wrapper.
    fn layout(&self, wrapper: &str) -> Result<&Class, Missing> {
        self.wrappers.get(wrapper).ok_or_else(|| {
            missing(
                wrapper,
                "the manifest does not describe it; write it again with `artisand manifest`",
            )
        })
    }
}

impl Wrapped {
    /// Sets properties to what is passed to the push, too.
    fn places(&mut self, names: &[&'static str]) {
        for name in names {
            if let Some(value) = self.answers.get(name) {
                self.object.set(name, value.clone());
            }
        }
    }
}

/// What Laravel asks the object in a wrapper.
struct Copied<'a> {
    subject: Subject<'a>,
    class: &'a Class,
    is_listener: bool,
}

impl Copied<'_> {
    /// The value of a property of the wrapper, if it comes from the object in it.
    fn property(&self, name: &str) -> Result<Option<Value>, Missing> {
        let (subject, class) = (&self.subject, self.class);
        let value = match name {
            "tries" if self.is_listener && self.has_method(name) => {
                // Earlier versions read the property alone.
                if subject.since(12, 29) {
                    subject.method(class, name)?
                } else {
                    subject.property(Some(class), name)
                }
            }
            "failOnTimeout" | "deleteWhenMissingModels" => match subject.limit(class, name)? {
                Value::Null => Value::Bool(false),
                value => value,
            },
            "backoff" | "retryAfter" if self.has_method("backoff") => {
                subject.method(class, name)?
            }
            "tries" | "timeout" | "maxExceptions" | "backoff" | "retryAfter" => {
                subject.limit(class, name)?
            }
            "retryUntil" | "timeoutAt" => {
                if self.has_method("retryUntil") || subject.answers.contains_key(name) {
                    subject.method(class, name)?
                } else {
                    Value::Null
                }
            }
            "shouldBeEncrypted" => Value::Bool(class.implements(SHOULD_BE_ENCRYPTED)),
            "afterCommit" if class.implements(AFTER_COMMIT) => Value::Bool(true),
            "afterCommit" | "messageGroup" => subject.property(Some(class), name),
            "middleware" if class.middleware.method => {
                let what = "its method `middleware()` must be asked, and only PHP can do that";
                return Err(subject.missing(what));
            }
            "middleware" => match subject.property(Some(class), name) {
                value @ Value::Array(_) => value,
                _ => Array::default().into(),
            },
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    /// The connection, the queue or the delay that is passed to the push.
    fn place(&self, name: &str) -> Result<Value, Missing> {
        if self.has_method(name) && !self.subject.answers.contains_key(name) {
            let (with, by) = match name {
                "connection" => ("on_connection", "viaConnection"),
                "queue" => ("on_queue", "viaQueue"),
                _ => ("delay", "withDelay"),
            };
            return Err(self.subject.missing(&format!(
                "its method `{by}()` must be asked, and only PHP can do that; `{with}` answers it"
            )));
        }
        self.subject.limit(self.class, name)
    }

    fn has_method(&self, name: &str) -> bool {
        self.class.limits.get(name).is_some_and(is_method)
    }
}

fn new(class: &str) -> Object {
    Object::new(ClassName::new(class).expect("a class name"))
}

fn list<const N: usize>(values: [Value; N]) -> Array {
    values.into_iter().collect()
}

/// The delay of a channel, of a map by channel.
fn of_channel(delays: &Array, channel: &str) -> Value {
    let mut pairs = delays.pairs.iter();
    let found = pairs.find(|(key, _)| *key == channel.into());
    found.map_or(Value::Null, |(_, delay)| delay.clone())
}
