//! The column `options`: settings chosen by the code that made the batch.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::php::{Key, Value};

/// Options of a batch that a worker needs. Callbacks are PHP code; only their presence is recorded here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Queue connection of its jobs.
    pub connection: Option<String>,
    /// Queue of its jobs.
    pub queue: Option<String>,
    /// Whether the batch continues after a failure.
    pub allow_failures: bool,
    /// Which kinds of callbacks are set.
    pub callbacks: Callbacks,
}

/// Which lists of callbacks are not empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one per list")]
pub struct Callbacks {
    /// Run when the batch is made.
    pub before: bool,
    /// Run after each job (Laravel 10.37).
    pub progress: bool,
    /// Run when all jobs have succeeded.
    pub then: bool,
    /// Run at the first failure.
    pub catch: bool,
    /// Run at each failure that is allowed (Laravel 12.32).
    pub failure: bool,
    /// Run when all jobs have been run.
    pub finally: bool,
}

impl Callbacks {
    /// All callbacks set: assumed for options that cannot be read, so that PHP evaluates them.
    const ALL: Self = Self {
        before: true,
        progress: true,
        then: true,
        catch: true,
        failure: true,
        finally: true,
    };
}

impl Options {
    /// Reads the column. Base64 is detected for all databases, because rows may be moved between them.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::unserialize`.
    pub(super) fn parse(column: &[u8]) -> Self {
        if column.is_empty() {
            return Self::default();
        }
        let is_plain = column.iter().any(|byte| matches!(byte, b':' | b';'));
        let decoded = (!is_plain).then(|| BASE64.decode(column.trim_ascii()).ok());
        let serialized = decoded.flatten();
        let value = Value::from_bytes(serialized.as_deref().unwrap_or(column));
        let Ok(Value::Array(options)) = value else {
            // PHP may be able to read options that artisand cannot.
            return Self {
                callbacks: Callbacks::ALL,
                ..Self::default()
            };
        };
        // Of several pairs with the same key, PHP keeps the last.
        let option = |name: &str| {
            let pairs = options.pairs.iter().rev();
            let mut named =
                pairs.filter(|(key, _)| matches!(key, Key::String(key) if key == name.as_bytes()));
            named.next().map(|(_, value)| value)
        };
        let text = |name| match option(name) {
            Some(Value::String(text)) => String::from_utf8(text.clone()).ok(),
            _ => None,
        };
        let has = |name| option(name).is_some_and(is_filled);
        Self {
            connection: text("connection"),
            queue: text("queue"),
            allow_failures: option("allowFailures") == Some(&Value::Bool(true)),
            callbacks: Callbacks {
                before: has("before"),
                progress: has("progress"),
                then: has("then"),
                catch: has("catch"),
                failure: has("failure"),
                finally: has("finally"),
            },
        }
    }
}

/// The opposite of PHP's `empty`.
fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Int(value) => *value != 0,
        Value::Float(value) => value.get() != 0.0,
        Value::String(text) => !matches!(&**text, b"" | b"0"),
        Value::Array(array) => !array.pairs.is_empty(),
        Value::Object(_)
        | Value::Custom(_)
        | Value::Enum(_)
        | Value::ObjectRef(_)
        | Value::VarRef(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_every_version_wrote_them() {
        let full = r#"a:5:{s:13:"allowFailures";b:1;s:5:"queue";s:4:"high";s:10:"connection";s:5:"redis";s:4:"then";a:1:{i:0;O:2:"Cb":1:{s:1:"n";i:1;}}s:5:"catch";a:0:{}}"#;
        let expected = Options {
            connection: Some("redis".into()),
            queue: Some("high".into()),
            allow_failures: true,
            callbacks: Callbacks {
                then: true,
                ..Callbacks::default()
            },
        };
        assert_eq!(Options::parse(full.as_bytes()), expected);
        assert_eq!(Options::parse(BASE64.encode(full).as_bytes()), expected);
        for empty in ["", "a:0:{}", "YTowOnt9", r#"a:1:{s:4:"then";N;}"#] {
            assert_eq!(Options::parse(empty.as_bytes()), Options::default());
        }
        // Laravel compares with `true` strictly.
        for not in ["i:1;", "s:1:\"1\";", "b:0;", "N;"] {
            let text = format!(r#"a:1:{{s:13:"allowFailures";{not}}}"#);
            assert!(!Options::parse(text.as_bytes()).allow_failures, "{not}");
        }
    }

    #[test]
    fn options_that_cannot_be_read_are_left_to_php() {
        for broken in ["a:1:{s:4:\"th", "b:0;", "not base64", "i:1;", "\0\0"] {
            let callbacks = Options::parse(broken.as_bytes()).callbacks;
            assert_eq!(callbacks, Callbacks::ALL, "{broken}");
        }
    }
}
