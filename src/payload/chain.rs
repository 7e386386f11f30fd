//! The chain in a job, and the step to the chain's next job.
//!
//! The commands of the jobs that follow are strings in the property `chained` of
//! the running job (docs/protocol/commands.md 11). After that job has succeeded,
//! the first command is removed from the list, gets the rest of the list and the
//! chain's own properties, and is dispatched. All other bytes of its text stay
//! unchanged.
//!
//! Since Laravel 9.4 an absent property has its class's default, not null: the
//! caller of [`Chain::next`] gives the defaults of the next class.

use std::collections::VecDeque;

use super::Version;
use crate::php::{self, Array, ClassName, EditError, Key, ObjectText, Value};

/// A closure in a chain.
const CALL_QUEUED_CLOSURE: &str = "Illuminate\\Queue\\CallQueuedClosure";

/// A batch in a chain.
const CHAINED_BATCH: &str = "Illuminate\\Bus\\ChainedBatch";

/// The jobs that follow a job.
#[derive(Debug, Clone)]
pub struct Chain {
    version: Version,
    commands: VecDeque<(Option<Vec<u8>>, Vec<u8>)>,
    connection: Carried,
    queue: Carried,
    catch_callbacks: Carried,
}

/// A property that is passed on from job to job: its text and its value.
#[derive(Debug, Clone)]
struct Carried {
    text: Vec<u8>,
    value: Value,
}

/// The kind of the next command of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// A job, or one of Laravel's wrappers around one.
    Object,
    /// A closure (`CallQueuedClosure`): only PHP can run it.
    Closure,
    /// A batch (`ChainedBatch`): only PHP can start it.
    Batch,
}

/// The next job of a chain.
#[derive(Debug, Clone)]
pub struct Step {
    /// Kind of the command.
    pub kind: StepKind,
    /// The command, which contains the rest of the chain.
    pub command: Vec<u8>,
}

/// An error from a chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// A command cannot be read or edited.
    #[error("{whose} cannot be edited")]
    Command {
        /// `the finished job`, or which command of the chain.
        whose: Box<str>,
        /// The cause.
        source: EditError,
    },
    /// A property has a value that only PHP can handle.
    #[error("`{property}` of {class} is {found}, not {expected}")]
    Property {
        /// Class of the object.
        class: ClassName,
        /// Name of the property.
        property: &'static str,
        /// The value that was found.
        found: Box<str>,
        /// The expected value.
        expected: &'static str,
    },
}

fn unreadable(whose: &str) -> impl Fn(php::Error) -> ChainError {
    let whose = Box::from(whose);
    move |error| ChainError::Command {
        whose: Box::clone(&whose),
        source: error.into(),
    }
}

fn uneditable(whose: &str) -> impl Fn(EditError) -> ChainError {
    let whose = Box::from(whose);
    move |source| ChainError::Command {
        whose: Box::clone(&whose),
        source,
    }
}

const FINISHED: &str = "the finished job";
const NEXT: &str = "the next job of the chain";
const ADDED: &str = "the job added to the chain";

impl Carried {
    fn of(object: &ObjectText<'_>, property: &str) -> Result<Self, ChainError> {
        let text = object.get(property).map_err(uneditable(FINISHED))?;
        let Some(text) = text else {
            return Ok(Self {
                text: php::NULL.to_vec(),
                value: Value::Null,
            });
        };
        let value = Value::from_bytes(&text).map_err(unreadable(FINISHED))?;
        Ok(Self { text, value })
    }
}

impl Chain {
    /// Reads the chain in the serialized object of a running job.
    ///
    /// # Errors
    ///
    /// [`ChainError::Command`] if the bytes are not an object, or if the catch
    /// callbacks cannot be extracted; [`ChainError::Property`] if PHP would fail
    /// on the value of `chained`.
    pub fn read(command: &[u8], version: Version) -> Result<Self, ChainError> {
        let object = ObjectText::parse(command).map_err(unreadable(FINISHED))?;
        let chained = Carried::of(&object, "chained")?.value;
        let property = |found: &Value, expected| ChainError::Property {
            class: object.class().clone(),
            property: "chained",
            found: found.kind_name().into(),
            expected,
        };
        let array = match chained {
            Value::Array(array) => array,
            // All versions ignore a falsy value; since 12.45 they ignore any value that is not an array.
            other if other.is_truthy() && !version.is_at_least(12, 45) => {
                return Err(property(&other, "an array"));
            }
            _ => Array::default(),
        };
        let mut commands = VecDeque::with_capacity(array.pairs.len());
        for (key, value) in array.pairs {
            // PHP writes no references here; a few bytes of them could expand to more than fits in memory.
            let Value::String(command) = value else {
                return Err(property(&value, "a list of serialized jobs"));
            };
            let key = match key {
                Key::String(key) => Some(key),
                Key::Int(_) => None,
            };
            commands.push_back((key, command));
        }
        Ok(Self {
            version,
            commands,
            connection: Carried::of(&object, "chainConnection")?,
            queue: Carried::of(&object, "chainQueue")?,
            catch_callbacks: Carried::of(&object, "chainCatchCallbacks")?,
        })
    }

    /// The properties that attach this chain to any job: their names and serialized values.
    pub fn properties(&self) -> Vec<(&'static str, Vec<u8>)> {
        let chained = self.list(0);
        let mut properties = vec![("chained", chained.to_bytes())];
        if self.has_connections() {
            properties.push(("chainConnection", self.connection.text.clone()));
            properties.push(("chainQueue", self.queue.text.clone()));
        }
        if self.version.is_at_least(8, 0) {
            properties.push(("chainCatchCallbacks", self.catch_callbacks.text.clone()));
        }
        properties
    }

    /// Whether no job follows.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The commands of the jobs that follow, in order.
    #[cfg(feature = "internals")]
    pub fn commands(&self) -> impl Iterator<Item = &[u8]> {
        self.commands.iter().map(|(_, command)| command.as_slice())
    }

    /// The catch callbacks, which PHP runs when the job fails for good: a serialized list of closures and
    /// callables; `None` if there are none.
    pub fn catch_callbacks(&self) -> Option<&[u8]> {
        self.catch_callbacks
            .value
            .is_truthy()
            .then_some(&self.catch_callbacks.text)
    }

    /// Adds a job before all others of the chain.
    ///
    /// # Errors
    ///
    /// The command is not a serialized object.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Queueable::prependToChain`, since Laravel 9.10.
    pub fn prepend(&mut self, command: impl Into<Vec<u8>>) -> Result<(), ChainError> {
        let command = checked(command.into())?;
        self.commands.push_front((None, command));
        Ok(())
    }

    /// Adds a job after all others of the chain.
    ///
    /// # Errors
    ///
    /// The command is not a serialized object.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Queueable::appendToChain`, since Laravel 9.10.
    pub fn append(&mut self, command: impl Into<Vec<u8>>) -> Result<(), ChainError> {
        let command = checked(command.into())?;
        self.commands.push_back((None, command));
        Ok(())
    }

    /// Class of the next job; `None` at the end of the chain.
    ///
    /// # Errors
    ///
    /// The command does not start like a serialized object.
    pub fn next_class(&self) -> Result<Option<ClassName>, ChainError> {
        let first = self.commands.front();
        let class = first.map(|(_, command)| php::leading_class(command).map(ClassName::accepted));
        class.transpose().map_err(unreadable(NEXT))
    }

    /// The next job, with the rest of the chain in its command; `None` at the end of the chain.
    ///
    /// `default` returns the default value of a property of the next job's class,
    /// which applies if the command lacks the property; `None` means the default
    /// of Laravel's `Queueable`.
    ///
    /// # Errors
    ///
    /// See [`ChainError`]. PHP can then take the same step from the finished
    /// job's payload, so no job is lost.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Queueable::dispatchNextJobInChain`.
    pub fn next(
        &self,
        default: impl Fn(&str) -> Option<Value>,
    ) -> Result<Option<Step>, ChainError> {
        let Some((_, command)) = self.commands.front() else {
            return Ok(None);
        };
        let object = ObjectText::parse(command).map_err(unreadable(NEXT))?;
        let current = |property: &str| -> Result<Value, ChainError> {
            let value = object.value(property).map_err(uneditable(NEXT))?;
            let value = value.or_else(|| default(property));
            Ok(value.unwrap_or_else(|| match property {
                "chained" => Array::default().into(),
                _ => Value::Null,
            }))
        };
        let (has_own, has_catch) = (self.has_connections(), self.version.is_at_least(8, 0));
        let inherited = |property: &'static str, chain: &Carried| -> Result<Carried, ChainError> {
            let value = current(property)?;
            if !has_own || value.is_truthy() {
                let text = value.to_bytes();
                return Ok(Carried { text, value });
            }
            Ok(chain.clone())
        };
        let connection = inherited("connection", &self.connection)?;
        let queue = inherited("queue", &self.queue)?;
        let rest = self.rest();
        let rest = Carried {
            text: rest.to_bytes(),
            value: rest,
        };
        // In the order in which this version declares the properties, as PHP would write them.
        let is_chain_last = has_own && !self.version.is_at_least(11, 2);
        let properties = [
            has_own.then_some(("connection", &connection)),
            has_own.then_some(("queue", &queue)),
            (!is_chain_last).then_some(("chained", &rest)),
            has_own.then_some(("chainConnection", &self.connection)),
            has_own.then_some(("chainQueue", &self.queue)),
            has_catch.then_some(("chainCatchCallbacks", &self.catch_callbacks)),
            is_chain_last.then_some(("chained", &rest)),
        ];
        let mut edits: Vec<(&str, &[u8])> = Vec::new();
        for (property, new) in properties.into_iter().flatten() {
            // An unchanged value is not written, even if it is an absent default.
            if current(property)? != new.value {
                edits.push((property, &new.text));
            }
        }
        let edited = object.with(&edits).map_err(uneditable(NEXT))?;

        Ok(Some(Step {
            kind: StepKind::of(object.class()),
            command: edited,
        }))
    }

    /// Whether this version supports a connection and a queue for the whole chain.
    fn has_connections(&self) -> bool {
        let Version {
            major,
            minor,
            patch,
        } = self.version;
        (major, minor, patch) >= (5, 5, 20)
    }

    /// The value of `chained` for the next job.
    fn rest(&self) -> Value {
        self.list(1)
    }

    /// The commands without the first `skipped`: string keys stay, int keys start at 0 again, as after
    /// `array_shift`.
    fn list(&self, skipped: usize) -> Value {
        let mut numbers = 0..;
        let pairs = self.commands.iter().skip(skipped).map(|(key, command)| {
            let key = match key {
                Some(key) => Key::String(key.clone()),
                None => Key::Int(numbers.next().unwrap_or(i64::MAX)),
            };
            (key, Value::String(command.clone()))
        });
        Value::Array(Array {
            pairs: pairs.collect(),
        })
    }
}

/// Accepts a command to run later if it can be edited.
fn checked(command: Vec<u8>) -> Result<Vec<u8>, ChainError> {
    ObjectText::parse(&command).map_err(unreadable(ADDED))?;
    Ok(command)
}

impl StepKind {
    fn of(class: &ClassName) -> Self {
        if *class == *CALL_QUEUED_CLOSURE {
            Self::Closure
        } else if *class == *CHAINED_BATCH {
            Self::Batch
        } else {
            Self::Object
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn string(text: &str) -> String {
        format!("s:{}:\"{text}\";", text.len())
    }

    fn chained(commands: &[&str]) -> String {
        let commands = commands.iter().map(|command| Value::from(*command));
        text(&Value::Array(commands.collect()).to_bytes())
    }

    fn step(finished: &str, on: &str) -> Step {
        let chain = Chain::read(finished.as_bytes(), version(on)).unwrap();
        let step = chain.next(|_| None);
        step.unwrap_or_else(|e| panic!("{e}: {finished}")).unwrap()
    }

    const B: &str = r#"O:10:"App\Jobs\B":1:{s:1:"n";i:1;}"#;
    const C: &str = r#"O:10:"App\Jobs\C":3:{s:1:"n";i:2;s:5:"queue";s:2:"cq";s:5:"delay";i:30;}"#;

    #[test]
    fn references_make_no_chain_out_of_few_bytes() {
        let job = r#"O:1:"A":1:{s:7:"chained";a:3:{i:0;s:12:"O:1:"B":0:{}";i:1;R:3;i:2;R:3;}}"#;
        let error = Chain::read(job.as_bytes(), version("13.31.0")).unwrap_err();
        assert!(
            error.to_string().contains("not a list of serialized jobs"),
            "{error}"
        );
    }

    /// The chain of docs/protocol/commands.md 11.1.
    #[test]
    fn steps_are_taken_as_laravel_took_them() {
        let d = r#"O:10:"App\Jobs\D":12:{s:1:"q";i:1;s:10:"connection";N;s:5:"queue";N;s:12:"messageGroup";N;s:12:"deduplicator";N;s:5:"delay";N;s:11:"afterCommit";N;s:10:"middleware";a:0:{}s:7:"chained";a:0:{}s:15:"chainConnection";N;s:10:"chainQueue";N;s:19:"chainCatchCallbacks";N;}"#;
        let chain = r#"s:15:"chainConnection";s:5:"redis";s:10:"chainQueue";s:6:"chainq";s:19:"chainCatchCallbacks";a:0:{}}"#;
        let a = format!(
            r#"O:10:"App\Jobs\A":7:{{s:1:"n";i:0;s:10:"connection";s:5:"redis";s:5:"queue";s:6:"chainq";s:7:"chained";{}{chain}"#,
            chained(&[B, C, d])
        );
        let second = step(&a, "12.67.0");
        assert_eq!(second.kind, StepKind::Object);
        let expected = format!(
            r#"O:10:"App\Jobs\B":7:{{s:1:"n";i:1;s:10:"connection";s:5:"redis";s:5:"queue";s:6:"chainq";s:7:"chained";{}{chain}"#,
            chained(&[C, d])
        );
        assert_eq!(text(&second.command), expected);

        let third = step(&expected, "12.67.0");
        // PHP puts `connection` before `queue`; artisand appends new properties at the end.
        let expected = format!(
            r#"O:10:"App\Jobs\C":8:{{s:1:"n";i:2;s:5:"queue";s:2:"cq";s:5:"delay";i:30;s:10:"connection";s:5:"redis";s:7:"chained";{}{chain}"#,
            chained(&[d])
        );
        assert_eq!(text(&third.command), expected);

        let last = step(&expected, "12.67.0");
        let expected = d
            .replace(
                r#"connection";N;s:5:"queue";N;"#,
                r#"connection";s:5:"redis";s:5:"queue";s:6:"chainq";"#,
            )
            .replace(
                r#"chainConnection";N;s:10:"chainQueue";N;s:19:"chainCatchCallbacks";N;"#,
                chain
                    .strip_prefix(r#"s:15:""#)
                    .unwrap()
                    .strip_suffix('}')
                    .unwrap(),
            );
        assert_eq!(text(&last.command), expected);
        let chain = Chain::read(&last.command, version("12.67.0")).unwrap();
        assert!(chain.is_empty() && chain.next(|_| None).unwrap().is_none());
        assert_eq!(
            (chain.next_class().unwrap(), chain.catch_callbacks()),
            (None, None)
        );
    }

    #[test]
    fn each_version_sets_the_properties_it_has() {
        let a = format!(
            r#"O:1:"A":4:{{s:7:"chained";{}s:15:"chainConnection";s:1:"c";s:10:"chainQueue";s:1:"q";s:19:"chainCatchCallbacks";a:0:{{}}}}"#,
            chained(&[B, C])
        );
        let own = r#"s:10:"connection";s:1:"c";s:5:"queue";s:1:"q";"#;
        let chain = r#"s:15:"chainConnection";s:1:"c";s:10:"chainQueue";s:1:"q";"#;
        let callbacks = r#"s:19:"chainCatchCallbacks";a:0:{}"#;
        let rest = format!(r#"s:7:"chained";{}"#, chained(&[C]));
        #[rustfmt::skip]
        let rows = [
            ("5.5.19", 2, rest.clone()),
            ("5.5.20", 6, format!("{own}{chain}{rest}")),
            ("7.30.4", 6, format!("{own}{chain}{rest}")),
            ("8.83.26", 7, format!("{own}{chain}{callbacks}{rest}")),
            ("11.1.0", 7, format!("{own}{chain}{callbacks}{rest}")),
            ("11.2.0", 7, format!("{own}{rest}{chain}{callbacks}")),
        ];
        for (on, count, added) in rows {
            let expected = format!(r#"O:10:"App\Jobs\B":{count}:{{s:1:"n";i:1;{added}}}"#);
            assert_eq!(text(&step(&a, on).command), expected, "{on}");
        }
    }

    #[test]
    fn a_default_of_the_class_stands_in_for_what_is_not_there() {
        let finished = format!(
            r#"O:1:"A":2:{{s:7:"chained";{}s:10:"chainQueue";s:1:"q";}}"#,
            chained(&[B])
        );
        let chain = Chain::read(finished.as_bytes(), version("13.31.0")).unwrap();
        let default = |property: &str| match property {
            "queue" => Some(Value::from("mail")),
            "delay" => Some(Value::from(0)),
            _ => None,
        };
        let step = chain.next(default).unwrap().unwrap();
        assert_eq!(
            text(&step.command),
            r#"O:10:"App\Jobs\B":2:{s:1:"n";i:1;s:10:"chainQueue";s:1:"q";}"#
        );
        let step = chain.next(|_| None).unwrap().unwrap();
        assert_eq!(
            text(&step.command),
            r#"O:10:"App\Jobs\B":3:{s:1:"n";i:1;s:5:"queue";s:1:"q";s:10:"chainQueue";s:1:"q";}"#
        );
    }

    #[test]
    fn jobs_are_put_before_and_behind_the_rest_and_names_stay() {
        let finished = format!(
            r#"O:1:"A":1:{{s:7:"chained";a:3:{{s:1:"x";{}i:7;{}s:1:"y";{}}}}}"#,
            string(B),
            string(C),
            string(C)
        );
        let mut chain = Chain::read(finished.as_bytes(), version("10.48.0")).unwrap();
        chain.prepend("O:1:\"P\":0:{}").unwrap();
        chain.append("O:1:\"Z\":0:{}").unwrap();
        for bad in ["", "i:1;", "O:1:\"Z\":0:{}x", "s:1:\"O\";"] {
            assert!(
                chain.append(bad).is_err() && chain.prepend(bad).is_err(),
                "{bad}"
            );
        }
        assert_eq!(chain.commands.len(), 5);
        let step = chain.next(|_| None).unwrap().unwrap();
        assert!(text(&step.command).starts_with("O:1:\"P\""));
        let rest = format!(
            r#"a:4:{{s:1:"x";{}i:0;{}s:1:"y";{}i:1;s:12:"O:1:"Z":0:{{}}";}}"#,
            string(B),
            string(C),
            string(C)
        );
        assert!(
            text(&step.command).contains(&rest),
            "{}",
            text(&step.command)
        );
    }

    #[test]
    fn callbacks_are_carried_on_without_what_they_refer_to_outside() {
        let finished = format!(
            r#"O:1:"A":3:{{s:1:"d";O:1:"D":0:{{}}s:19:"chainCatchCallbacks";a:2:{{i:0;r:2;i:1;O:1:"S":0:{{}}}}s:7:"chained";{}}}"#,
            chained(&[
                r#"O:1:"B":3:{s:19:"chainCatchCallbacks";N;s:1:"x";O:1:"X":0:{}s:1:"y";r:3;}"#
            ])
        );
        let step = step(&finished, "8.83.26");
        let expected = r#"O:1:"B":3:{s:19:"chainCatchCallbacks";a:2:{i:0;O:1:"D":0:{}i:1;O:1:"S":0:{}}s:1:"x";O:1:"X":0:{}s:1:"y";r:5;}"#;
        assert_eq!(text(&step.command), expected);
    }

    #[test]
    fn what_php_would_stumble_over_is_an_error() {
        let read = |chained: &str, on: &str| {
            let finished = format!(r#"O:1:"A":1:{{s:7:"chained";{chained}}}"#);
            Chain::read(finished.as_bytes(), version(on)).map(|chain| chain.commands.len())
        };
        for (chained, on, expected) in [
            ("N;", "8.0", Some(0)),
            ("b:0;", "8.0", Some(0)),
            ("s:1:\"x\";", "12.44", None),
            ("s:1:\"x\";", "12.45", Some(0)),
            ("a:1:{i:0;i:1;}", "13.0", None),
            ("a:2:{i:0;s:1:\"x\";i:1;R:3;}", "13.0", None),
        ] {
            assert_eq!(read(chained, on).ok(), expected, "{chained} {on}");
        }
        let next = |command: &str| {
            let finished = format!(r#"O:1:"A":1:{{s:7:"chained";{}}}"#, chained(&[command]));
            let chain = Chain::read(finished.as_bytes(), version("13.31.0")).unwrap();
            chain.next(|_| None).map(|step| step.is_some())
        };
        #[rustfmt::skip]
        let rows = [
            ("b:0;", "the next job of the chain cannot be edited"),
        ];
        for (command, expected) in rows {
            assert_eq!(next(command).unwrap_err().to_string(), expected);
        }
        assert!(Chain::read(b"i:1;", version("13.0")).is_err());
    }

    #[test]
    fn closures_and_batches_are_told_apart() {
        for (class, kind) in [
            (CALL_QUEUED_CLOSURE, StepKind::Closure),
            (CHAINED_BATCH, StepKind::Batch),
        ] {
            let command = format!("O:{}:\"{class}\":0:{{}}", class.len());
            let finished = format!(r#"O:1:"A":1:{{s:7:"chained";{}}}"#, chained(&[&command]));
            assert_eq!(step(&finished, "10.48.0").kind, kind);
        }
    }
}
