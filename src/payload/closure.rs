//! Queued closures: PHP source text that a PHP worker runs.
//!
//! Work that only PHP can do (a batch's callbacks, a chain's next step, a job
//! class without a mapping) is pushed to PHP as a small closure, signed with the
//! app's key as Laravel signs its own. PHP refuses a closure with a wrong
//! signature, so this needs `APP_KEY`.
//!
//! docs/protocol/commands.md 10 describes the bytes. This module makes only the
//! object; the payload around it is like that of any other job.

use super::{Encrypter, Version};
use crate::php::{Array, ClassName, Key, Object, Value};

const CALL_QUEUED_CLOSURE: &str = "Illuminate\\Queue\\CallQueuedClosure";
const SERIALIZABLE_CLOSURE: &str = "Laravel\\SerializableClosure\\SerializableClosure";
const SIGNED: &str = "Laravel\\SerializableClosure\\Serializers\\Signed";
const NATIVE: &str = "Laravel\\SerializableClosure\\Serializers\\Native";

/// The value of the closure's `self` property; closures inside it use it to refer to this one.
const SELF: &str = "00000000000000000000000000000000";

/// A closure for a PHP worker.
///
/// ```
/// use artisand::payload::{Encrypter, QueuedClosure, Version};
///
/// let key = "0123456789abcdef0123456789abcdef";
/// let encrypter = Encrypter::new(Version::NEWEST, key, "AES-256-CBC")?;
/// let closure = QueuedClosure {
///     code: "function () use ($text) { logger($text); }",
///     uses: vec![("text", "done".into())],
/// };
/// let command = closure.command(&encrypter)?;
/// assert_eq!(command.class.as_str(), "Illuminate\\Queue\\CallQueuedClosure");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedClosure<'a> {
    /// One PHP expression that evaluates to a closure: `function ($job) use ($id) { .. }`.
    ///
    /// Write classes with their full names: the code is in no namespace and no
    /// file. The container calls the closure, so it resolves parameters by their
    /// types, and `$job` is the `CallQueuedClosure`. UTF-8 without NUL.
    pub code: &'a str,
    /// Values of the variables that the code uses, by name without `$`.
    ///
    /// Closures from other commands are inserted unchanged; they keep their own signature.
    pub uses: Vec<(&'a str, Value)>,
}

/// Why a closure cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClosureError {
    /// This version's closures have another format.
    #[error(
        "Laravel {0} takes only closures of opis/closure, which are not written here; 8.62 or later takes these"
    )]
    Unsupported(Version),
    /// A value contains a reference to a value outside of it.
    #[error("the value of `${0}` holds a reference, which would mean another value in the closure")]
    Reference(Box<str>),
}

impl QueuedClosure<'_> {
    /// Whether workers of this version accept these closures: from 8.62 on, with PHP 7.4 or later.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\SerializableClosureFactory::make`.
    pub fn is_supported(version: Version) -> bool {
        version.is_at_least(8, 62)
    }

    /// The object for a payload's `command`; more properties may be set on it.
    ///
    /// Only `closure` is set, all other properties keep the class's defaults: `deleteWhenMissingModels` is true.
    /// `batchId`, `chained` and similar properties are public ([`Object::set`]).
    ///
    /// # Errors
    ///
    /// The encrypter's version does not accept such closures, or a value has `r:`
    /// or `R:`, whose numbers belong to the command it came from.
    pub fn command(&self, encrypter: &Encrypter) -> Result<Object, ClosureError> {
        let version = encrypter.version();
        if !Self::is_supported(version) {
            return Err(ClosureError::Unsupported(version));
        }
        if let Some((name, _)) = self.uses.iter().find(|(_, value)| value.has_reference()) {
            return Err(ClosureError::Reference((*name).into()));
        }
        let uses = self.uses.iter().map(|(name, value)| {
            let name = Key::String(name.as_bytes().to_vec());
            (name, value.clone())
        });
        let native = object(NATIVE)
            .public(
                "use",
                Value::Array(Array {
                    pairs: uses.collect(),
                }),
            )
            .public("function", self.code)
            .public("scope", Value::Null)
            .public("this", Value::Null)
            .public("self", SELF);
        // PHP reads the signed text separately, so references in it would count from its own start.
        let native = Value::Object(native).to_bytes();
        let hash = encrypter.sign(&native);
        let signed = object(SIGNED)
            .public("serializable", Value::String(native))
            .public("hash", &*hash);
        let closure = object(SERIALIZABLE_CLOSURE).public("serializable", signed);
        Ok(object(CALL_QUEUED_CLOSURE).public("closure", closure))
    }
}

fn object(class: &str) -> Object {
    Object::new(ClassName::new(class).expect("it is a class name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encrypter(version: &str) -> Encrypter {
        let version = version.parse().unwrap();
        Encrypter::new(version, &"k".repeat(32), "AES-256-CBC").unwrap()
    }

    #[test]
    fn a_closure_is_a_signed_text_inside_a_command() {
        let closure = QueuedClosure {
            code: "fn () => $a",
            uses: vec![("a", Value::Int(1))],
        };
        let command = closure.command(&encrypter("13.0")).unwrap();
        let native = r#"O:46:"Laravel\SerializableClosure\Serializers\Native":5:{s:3:"use";a:1:{s:1:"a";i:1;}s:8:"function";s:11:"fn () => $a";s:5:"scope";N;s:4:"this";N;s:4:"self";s:32:"00000000000000000000000000000000";}"#;
        let hash = encrypter("13.0").sign(native.as_bytes());
        let expected = format!(
            r#"O:34:"Illuminate\Queue\CallQueuedClosure":1:{{s:7:"closure";O:47:"Laravel\SerializableClosure\SerializableClosure":1:{{s:12:"serializable";O:46:"Laravel\SerializableClosure\Serializers\Signed":2:{{s:12:"serializable";s:{}:"{native}";s:4:"hash";s:44:"{hash}";}}}}}}"#,
            native.len()
        );
        let bytes = Value::Object(command).to_bytes();
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn what_php_would_misread_is_refused() {
        let plain = QueuedClosure {
            code: "fn () => 1",
            uses: Vec::new(),
        };
        for (version, is_supported) in [("8.61.0", false), ("8.62.0", true), ("7.30", false)] {
            let command = plain.command(&encrypter(version));
            assert_eq!(command.is_ok(), is_supported, "{version}");
        }
        let error = plain.command(&encrypter("8.61.0")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Laravel 8.61.0 takes only closures of opis/closure, which are not written here; 8.62 or later takes these"
        );
        let values = r#"a:2:{i:0;O:1:"A":0:{}i:1;a:1:{i:0;r:2;}}"#;
        let closure = QueuedClosure {
            code: "fn () => $b",
            uses: vec![
                ("a", Value::Int(1)),
                ("b", Value::from_bytes(values.as_bytes()).unwrap()),
            ],
        };
        let error = closure.command(&encrypter("13.0")).unwrap_err();
        assert_eq!(error, ClosureError::Reference("b".into()));
    }
}
