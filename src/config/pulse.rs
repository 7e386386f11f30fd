//! The app's Pulse.

use serde_json::Value;

use super::laravel::{Laravel, SettingError};
use super::{Config, Error};
use crate::pulse::{Limit, PhpPatternError, PulseOptions, RecorderOptions, SlowJobs};

/// What to write for the app's Pulse; `None` if the app has none, it is off, or `enabled = false`.
///
/// # Errors
///
/// Its database cannot be told or is not supported, or `enabled = true` in an app without Pulse.
pub fn pulse(config: &Config) -> Result<Option<PulseOptions>, Error> {
    let enabled = config.file.pulse.enabled;
    if enabled == Some(false) {
        return Ok(None);
    }
    let laravel = config.laravel.as_ref();
    let Some(laravel) = laravel.filter(|laravel| laravel.has_pulse()) else {
        return match enabled {
            Some(true) => Err(Error::NoPulse),
            _ => Ok(None),
        };
    };
    config.setting(laravel.pulse())
}

impl Laravel {
    /// Whether the app has Pulse.
    pub fn has_pulse(&self) -> bool {
        self.config.get("pulse").is_some_and(Value::is_object)
    }

    /// # Source
    ///
    /// `config/pulse.php`, `Laravel\Pulse\Pulse::register`.
    fn pulse(&self) -> Result<Option<PulseOptions>, SettingError> {
        let is_on = |path: &[&str]| {
            let value = self.at(path)?.and_then(Value::as_bool);
            Ok::<_, SettingError>(value.unwrap_or(true))
        };
        // Without an ingest driver PHP throws entries away, and another storage is one that only PHP knows.
        let has_driver = |path: &[&str], known: &[&str]| {
            let driver = self.text(path)?;
            Ok::<_, SettingError>(driver.is_some_and(|driver| known.contains(&&*driver)))
        };
        if !is_on(&["pulse", "enabled"])?
            || !has_driver(&["pulse", "storage", "driver"], &["database"])?
            || !has_driver(&["pulse", "ingest", "driver"], &["storage", "redis"])?
        {
            return Ok(None);
        }
        let connection = self.text(&["pulse", "storage", "database", "connection"])?;
        let mut doubts = Vec::new();
        let mut readable = |name: &str, error: PhpPatternError| {
            let doubt = format!(
                "{error}, so that the recorder {name} writes nothing for jobs that run here"
            );
            doubts.push((doubt, "write the pattern without that"));
        };
        let slow_jobs = match self.recorder("SlowJobs")? {
            Some(settings) => (recorder(settings)
                .and_then(|recorder| slow_jobs(settings, recorder)))
            .map_err(|error| readable("SlowJobs", error))
            .ok(),
            None => None,
        };
        let queues = match self.recorder("Queues")? {
            Some(settings) => recorder(settings)
                .map_err(|error| readable("Queues", error))
                .ok(),
            None => None,
        };
        let settings = self.recorder("Exceptions")?;
        let exceptions = match settings {
            Some(settings) => recorder(settings)
                .map_err(|error| readable("Exceptions", error))
                .ok(),
            None => None,
        };
        let location = settings.and_then(|settings| settings.get("location"));
        if slow_jobs.as_ref().is_some_and(|slow| slow.is_order_lost) {
            let doubt = "the manifest does not tell the order of Pulse's thresholds: where several match a job's name, the longest counts";
            doubts.push((doubt.to_owned(), "write it anew: `artisand manifest`"));
        }
        let options = PulseOptions {
            database: crate::connection::DatabaseOptions {
                connections: 1,
                ..self.database(connection.as_deref())?
            },
            queues,
            slow_jobs,
            exceptions,
            has_location: location.is_some_and(is_true),
            doubts,
        };
        let has_any = options.queues.is_some()
            || options.slow_jobs.is_some()
            || options.exceptions.is_some()
            || !options.doubts.is_empty();
        Ok(has_any.then_some(options))
    }

    /// The settings of a recorder; `None` if it is off.
    fn recorder(&self, name: &str) -> Result<Option<&Value>, SettingError> {
        let class = format!("Laravel\\Pulse\\Recorders\\{name}");
        let settings = self.at(&["pulse", "recorders", &class])?;
        let is_on =
            |settings: &&Value| settings.is_object() && settings.get("enabled").is_none_or(is_true);
        Ok(settings.filter(is_on))
    }
}

/// What all recorders have.
fn recorder(settings: &Value) -> Result<RecorderOptions, PhpPatternError> {
    let patterns = match settings.get("ignore") {
        Some(Value::Array(patterns)) => patterns.iter().collect(),
        Some(Value::Object(patterns)) => patterns.values().collect(),
        _ => Vec::new(),
    };
    let patterns = patterns.into_iter().filter_map(Value::as_str);
    let rate = settings.get("sample_rate").and_then(number);
    Ok(RecorderOptions {
        sample_rate: rate.unwrap_or(1.0),
        ignore: patterns.map(str::parse).collect::<Result<_, _>>()?,
    })
}

/// From how many milliseconds jobs count as slow: a number, or numbers by pattern.
fn slow_jobs(settings: &Value, recorder: RecorderOptions) -> Result<SlowJobs, PhpPatternError> {
    /// Pulse's own.
    const DEFAULT: u64 = 1000;
    let milliseconds = |value: &Value| {
        let seconds = number(value)?.max(0.0) / 1000.0;
        let limit = std::time::Duration::try_from_secs_f64(seconds).ok()?;
        u64::try_from(limit.as_millis()).ok()
    };
    let threshold = settings.get("threshold");
    let pairs: Vec<(&str, &Value)> = match threshold {
        Some(Value::Array(pairs)) => (pairs.iter())
            .filter_map(|pair| Some((pair.get(0)?.as_str().unwrap_or_default(), pair.get(1)?)))
            .collect(),
        Some(Value::Object(pairs)) => (pairs.iter())
            .map(|(name, value)| (name.as_str(), value))
            .collect(),
        _ => (threshold.iter())
            .map(|value| ("default", *value))
            .collect(),
    };
    let (mut limits, mut otherwise) = (Vec::new(), DEFAULT);
    for (name, value) in pairs {
        let milliseconds = milliseconds(value).unwrap_or(DEFAULT);
        if name == "default" {
            otherwise = milliseconds;
        } else {
            let name = name.parse()?;
            limits.push(Limit { name, milliseconds });
        }
    }
    // A manifest of an older version has no order. With the longest first, no job is slow that is not in PHP.
    let mut is_order_lost = threshold.is_some_and(Value::is_object);
    if is_order_lost {
        limits.sort_by_key(|limit| std::cmp::Reverse(limit.milliseconds));
        let ends = limits.first().zip(limits.last());
        is_order_lost = ends.is_some_and(|(most, least)| most.milliseconds != least.milliseconds);
    }
    Ok(SlowJobs {
        recorder,
        limits,
        otherwise,
        is_order_lost,
    })
}

/// PHP's idea of it, for what a setting holds.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty() && text != "0",
        _ => false,
    }
}

/// A number, or a text that is one.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_pattern_that_matches_says_when_a_job_is_slow() {
        let (reports, jobs) = ("#^App.Jobs.Report#", "#Jobs#");
        #[rustfmt::skip]
        let rows = [
            // In the order of the app, which is not that of the alphabet.
            (json!([[reports, 60_000], [jobs, 5000], ["default", 2000]]), 60_000, 2000, false),
            (json!([[jobs, "5000"], [reports, 60_000]]), 5000, 1000, false),
            // A manifest of an older version.
            (json!({jobs: 5000, reports: 60_000, "default": 2000}), 60_000, 2000, true),
            (json!({jobs: 60_000, reports: 5000}), 60_000, 1000, true),
            (json!({jobs: 5000, reports: 5000}), 5000, 1000, false),
            (json!(3000), 3000, 3000, false), (json!("3000"), 3000, 3000, false),
            (json!([]), 1000, 1000, false), (json!(null), 1000, 1000, false),
        ];
        for (threshold, of_report, of_other, is_order_lost) in rows {
            let settings = json!({"threshold": threshold});
            let slow = slow_jobs(&settings, RecorderOptions::default()).unwrap();
            let limits = ["App\\Jobs\\ReportA", "Mail"].map(|name| slow.limit(name));
            assert_eq!(limits, [of_report, of_other], "{settings}");
            assert_eq!(slow.is_order_lost, is_order_lost, "{settings}");
        }
        for name in [json!("/(?<!a)b/"), json!(7)] {
            let settings = json!({"threshold": [[name, 1]]});
            assert!(slow_jobs(&settings, RecorderOptions::default()).is_err());
        }
    }
}
