//! Whether encrypted jobs can be read.

use std::collections::BTreeMap;

use crate::cli::report::Report;
use crate::config::{Config, SettingError};
use crate::payload::{Encrypter, KeyError, Payload};
use crate::queue::QueueName;
use crate::shown::with_causes;

/// Why there is no encrypter.
pub(super) struct Locked {
    why: String,
    /// The key is missing; many apps do not need one.
    is_missing: bool,
}

impl Locked {
    pub(super) fn of(error: &SettingError) -> Self {
        Self {
            why: with_causes(error),
            is_missing: matches!(error, SettingError::Key(KeyError::Missing)),
        }
    }
}

const NEEDS_KEY: &str = "set APP_KEY in the environment or in the app's .env; until then encrypted jobs, and those whose batch or chain needs PHP, count as unmapped";

/// Reports whether encrypted jobs can be read.
pub(super) fn check(key: &Result<Encrypter, Locked>, config: &Config) -> Report {
    let mut report = Report::default();
    let is_used = config.manifest().is_some_and(|(_, manifest)| {
        let mut classes = manifest.classes.values();
        classes.any(|class| class.is_queued() && class.flags.get("encrypted") == Some(&true.into()))
    });
    match key {
        Ok(encrypter) => {
            let previous = match encrypter.previous_keys() {
                0 => String::new(),
                1 => ", and 1 previous key".to_owned(),
                count => format!(", and {count} previous keys"),
            };
            report.ok(
                "encryption",
                format!("a key for {} is known{previous}", encrypter.cipher()),
            );
        }
        Err(locked) if locked.is_missing && !is_used => {
            report.ok(
                "encryption",
                "no key is known; encrypted jobs would need it",
            );
        }
        Err(locked) => report.warn("encryption", locked.why.clone(), NEEDS_KEY),
    }
    report
}

/// Encrypted jobs that are waiting.
#[derive(Default)]
pub(super) struct Encrypted {
    readable: usize,
    /// Classes of unreadable jobs, each with a reason.
    unreadable: BTreeMap<String, String>,
}

impl Encrypted {
    pub(super) fn note(&mut self, payload: &mut Payload, key: &Result<Encrypter, Locked>) {
        if !payload.is_encrypted() {
            return;
        }
        let why = match key {
            Ok(encrypter) => payload
                .decrypt(encrypter)
                .err()
                .map(|error| with_causes(&error)),
            Err(locked) => Some(locked.why.clone()),
        };
        match why {
            None => self.readable += 1,
            Some(why) => {
                let class = payload.shown_name().into_owned();
                self.unreadable.insert(class, why);
            }
        }
    }

    pub(super) fn report(self, name: &QueueName) -> Report {
        let mut report = Report::default();
        if self.readable > 0 {
            report.ok(
                "encryption",
                format!(
                    "`{name}`: encrypted jobs that can be read: {}",
                    self.readable
                ),
            );
        }
        for (class, why) in self.unreadable {
            report.warn(
                "encryption",
                format!("`{name}`: encrypted jobs of {class} cannot be read: {why}"),
                "set APP_KEY, or the key they were encrypted with in APP_PREVIOUS_KEYS (Laravel 11 or later); until then they count as unmapped",
            );
        }
        report
    }
}
