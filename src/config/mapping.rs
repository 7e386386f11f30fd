//! The `[[map]]` tables of `artisand.toml`.

use std::fmt;
use std::num::NonZeroUsize;

use serde::Deserialize;
use toml::Spanned;

use super::handler::HandlerTable;
use super::middleware::MiddlewareTable;
use crate::handler::Template;
use crate::routing::{Canary, FailedHook, Mode, OnMismatch, PhpEvents};

/// `[[map]]`: one key says what is mapped, the others what happens to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapTable {
    /// Job class, glob or `/regex/`.
    pub job: Option<Spanned<String>>,
    /// Listener class, or `Class@method`.
    pub listener: Option<Spanned<String>>,
    /// With `listener`: class of the event.
    pub event: Option<Spanned<String>>,
    /// Notification class.
    pub notification: Option<Spanned<String>>,
    /// With `notification`: the channel.
    pub channel: Option<Spanned<String>>,
    /// Mailable class.
    pub mailable: Option<Spanned<String>>,
    /// Class of the broadcast event.
    pub broadcast: Option<Spanned<String>>,
    /// Name of the artisan command.
    pub command: Option<Spanned<String>>,
    /// String job, `Class` or `Class@method`.
    pub string: Option<Spanned<String>>,
    /// Not for use: says why there is no such thing.
    pub closure: Option<Spanned<toml::Value>>,
    /// Not for use: says why there is no such thing.
    pub batch: Option<Spanned<toml::Value>>,
    /// Name of a handler, or a table that says what to do.
    pub handler: Spanned<HandlerTable>,
    /// Most of these running at once.
    pub concurrency: Option<NonZeroUsize>,
    /// What is around its jobs, inside what the handler has itself.
    #[serde(default)]
    pub middleware: Vec<MiddlewareTable>,
    /// The debounce id of its jobs.
    pub debounce: Option<Template>,
    /// Per cent of its jobs that the handler runs.
    #[serde(default, deserialize_with = "canary")]
    pub canary: Option<Canary>,
    /// `run` or `shadow`.
    #[serde(default, deserialize_with = "mode")]
    pub mode: Mode,
    /// What becomes of a job that does not fit the handler's input: `exception` or `php`.
    #[serde(default, deserialize_with = "on_mismatch")]
    pub on_mismatch: OnMismatch,
    /// Where `failed()` of its jobs' classes runs: `php` or `rust`.
    #[serde(default, deserialize_with = "failed")]
    pub failed: FailedHook,
    /// Laravel's events that PHP raises for its jobs: `none`, `failures` or `all`.
    #[serde(default, deserialize_with = "some_events")]
    pub events: Option<PhpEvents>,
    /// `false`: the classes are not unique, so no lock has to be freed.
    #[serde(default, deserialize_with = "unique")]
    unique: Option<bool>,
}

fn failed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<FailedHook, D::Error> {
    let failed = String::deserialize(deserializer)?;
    match failed.as_str() {
        "php" => Ok(FailedHook::Php),
        "rust" => Ok(FailedHook::Rust),
        _ => Err(serde::de::Error::custom(format!(
            "`failed` is `{failed}`, expected `php` or `rust`"
        ))),
    }
}

pub(super) fn some_events<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PhpEvents>, D::Error> {
    let events = String::deserialize(deserializer)?;
    match events.as_str() {
        "none" => Ok(Some(PhpEvents::None)),
        "failures" => Ok(Some(PhpEvents::Failures)),
        "all" => Ok(Some(PhpEvents::All)),
        _ => Err(serde::de::Error::custom(format!(
            "`events` is `{events}`, expected `none`, `failures` or `all`"
        ))),
    }
}

impl MapTable {
    /// Whether it says that its classes are not unique.
    pub(super) fn is_never_unique(&self) -> bool {
        self.unique == Some(false)
    }
}

fn unique<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    if bool::deserialize(deserializer)? {
        let problem = "`unique` is true, expected `unique = false` of a class that is not unique: what a unique job's lock is, the job, a manifest or PHP says";
        return Err(serde::de::Error::custom(problem));
    }
    Ok(Some(false))
}

fn canary<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Canary>, D::Error> {
    struct CanaryVisitor;

    impl<'de> serde::de::Visitor<'de> for CanaryVisitor {
        type Value = Canary;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "per cent of the jobs, such as `canary = 5` or `canary = { percent = 5, stop_at = 2 }`",
            )
        }

        fn visit_f64<E: serde::de::Error>(self, percent: f64) -> Result<Canary, E> {
            Canary::new(percent).ok_or_else(|| {
                E::custom(format_args!(
                    "`canary` is {percent}, expected per cent of the jobs, from 0 to 100"
                ))
            })
        }

        fn visit_i64<E: serde::de::Error>(self, percent: i64) -> Result<Canary, E> {
            // What is out of range as an integer is so as a float.
            #[expect(clippy::cast_precision_loss, reason = "from 0 to 100 is exact")]
            self.visit_f64(percent as f64)
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Canary, A::Error> {
            let keys = serde::de::value::MapAccessDeserializer::new(map);
            let CanaryKeys { percent, stop_at } = CanaryKeys::deserialize(keys)?;
            let canary: Canary = self.visit_f64(percent)?;
            let Some(stop_at) = stop_at else {
                return Ok(canary);
            };
            canary.stop_at(stop_at).ok_or_else(|| {
                serde::de::Error::custom(format_args!(
                    "`stop_at` is {stop_at}, expected per cent of the canary's runs that may fail, from 0 to below 100"
                ))
            })
        }
    }

    deserializer.deserialize_any(CanaryVisitor).map(Some)
}

/// `canary = { .. }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CanaryKeys {
    percent: f64,
    stop_at: Option<f64>,
}

fn mode<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    let mode = String::deserialize(deserializer)?;
    match mode.as_str() {
        "run" => Ok(Mode::Run),
        "shadow" => Ok(Mode::Shadow),
        _ => Err(serde::de::Error::custom(format!(
            "`mode` is `{mode}`, expected `run` or `shadow`"
        ))),
    }
}

fn on_mismatch<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<OnMismatch, D::Error> {
    let on_mismatch = String::deserialize(deserializer)?;
    match on_mismatch.as_str() {
        "exception" => Ok(OnMismatch::Exception),
        "php" => Ok(OnMismatch::Php),
        _ => Err(serde::de::Error::custom(format!(
            "`on_mismatch` is `{on_mismatch}`, expected `exception` (the attempt fails) or `php` (the job goes the way of unmapped jobs)"
        ))),
    }
}
