//! How long a job has to wait before its first run, from its `delay` property.
//!
//! docs/protocol/commands.md 13.1 lists the forms. What PHP computes with its
//! calendar is computed here in the app's time zone, because a day of an interval
//! is a day in that zone.

use jiff::civil;
use jiff::tz::TimeZone;

use crate::php::{self, Date, Object, Value};
use crate::time::UnixSeconds;

/// A `delay` property that is not null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delay {
    /// Seconds from the moment of dispatch, including values that PHP casts to an int.
    Seconds(i64),
    /// A moment; a moment in the past means no delay.
    At(UnixSeconds),
    /// A `DateInterval`, from the moment of dispatch.
    Interval(Interval),
}

/// A `DateInterval`: calendar units, then hours, minutes and seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interval {
    /// `y` times twelve and `m`.
    pub months: i64,
    /// `d`.
    pub days: i64,
    /// `h`, `i` and `s`.
    pub seconds: i64,
    /// `invert`: the interval points to the past.
    pub is_negative: bool,
}

/// An error from a `delay` property, or the time zone it needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DelayError {
    /// The value is not a delay.
    #[error("`delay` is {found}, and neither seconds, a date nor an interval")]
    Value {
        /// The kind of the value.
        found: Box<str>,
    },
    /// The date's zone is unknown, or the date is out of range.
    #[error("the date of `delay`, {date} {zone}, is no moment that is known here")]
    Date {
        /// Wall time.
        date: Box<str>,
        /// The zone of the date.
        zone: Box<str>,
    },
    /// The interval is given in words, or by weekdays.
    #[error("the interval of `delay` is relative to a calendar that only PHP has")]
    Relative,
    /// The app's time zone is unknown.
    #[error("the app's time zone `{0}` is not known here")]
    Zone(Box<str>),
    /// The resulting moment is out of range.
    #[error("the moment that `delay` means is beyond the calendar")]
    Beyond,
}

impl Delay {
    /// Reads a `delay` property; `None` for null, which is no delay.
    ///
    /// # Errors
    ///
    /// [`DelayError::Value`] for an array or an object that is neither a date
    /// nor an interval, [`DelayError::Date`], [`DelayError::Relative`].
    ///
    /// # Source
    ///
    /// `Illuminate\Support\InteractsWithTime::secondsUntil`.
    pub fn of(value: &Value) -> Result<Option<Self>, DelayError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "PHP cuts the fraction; the cast saturates"
        )]
        let seconds = match value {
            Value::Null => return Ok(None),
            Value::Bool(value) => i64::from(*value),
            Value::Int(value) => *value,
            Value::Float(value) => value.get() as i64,
            Value::String(text) => crate::php::int_of(&String::from_utf8_lossy(text)),
            Value::Object(object) => return Self::of_object(object, value).map(Some),
            other => {
                let found = other.kind_name().into();
                return Err(DelayError::Value { found });
            }
        };
        Ok(Some(Self::Seconds(seconds)))
    }

    fn of_object(object: &Object, value: &Value) -> Result<Self, DelayError> {
        if let Ok(date) = php::from_slice::<Date>(&value.to_bytes()) {
            let micros = date.timestamp_micros();
            return match micros {
                Some(micros) => Ok(Self::At(UnixSeconds(micros.div_euclid(1_000_000)))),
                None => Err(DelayError::Date {
                    date: date.date.into(),
                    zone: date.timezone.into(),
                }),
            };
        }
        let is_true = |name: &str| match object.get(name) {
            None | Some(Value::Null | Value::Bool(false) | Value::Int(0)) => false,
            Some(_) => true,
        };
        if is_true("from_string")
            || is_true("have_weekday_relative")
            || is_true("have_special_relative")
        {
            return Err(DelayError::Relative);
        }
        let part = |name: &str| object.get(name).and_then(Value::as_int);
        let parts = || {
            let months = part("y")?.saturating_mul(12).saturating_add(part("m")?);
            let minutes = part("h")?.saturating_mul(60).saturating_add(part("i")?);
            let seconds = minutes.saturating_mul(60).saturating_add(part("s")?);
            Some(Interval {
                months,
                days: part("d")?,
                seconds,
                is_negative: is_true("invert"),
            })
        };
        let interval = parts().map(Self::Interval);
        interval.ok_or_else(|| DelayError::Value {
            found: value.kind_name().into(),
        })
    }

    /// The moment from which the job may run; for a date in the past, that date.
    ///
    /// `zone` is the app's time zone (`app.timezone`).
    ///
    /// # Errors
    ///
    /// [`DelayError::Zone`] and [`DelayError::Beyond`], for intervals only.
    ///
    /// # Source
    ///
    /// `Illuminate\Support\InteractsWithTime::availableAt`.
    pub fn available_at(&self, now: UnixSeconds, zone: &str) -> Result<UnixSeconds, DelayError> {
        match self {
            Self::Seconds(seconds) => Ok(UnixSeconds(now.0.saturating_add(*seconds))),
            Self::At(moment) => Ok(*moment),
            Self::Interval(interval) => interval.after(now, zone),
        }
    }

    /// Seconds from `now`, at least zero for dates and intervals: the payload's `delay` since Laravel 12.11.
    ///
    /// # Errors
    ///
    /// As for [`available_at`](Self::available_at).
    ///
    /// # Source
    ///
    /// `Illuminate\Support\InteractsWithTime::secondsUntil`.
    pub fn seconds(&self, now: UnixSeconds, zone: &str) -> Result<i64, DelayError> {
        if let Self::Seconds(seconds) = self {
            return Ok(*seconds);
        }
        let at = self.available_at(now, zone)?;
        Ok(at.0.saturating_sub(now.0).max(0))
    }
}

impl Interval {
    /// The given moment plus the interval: calendar units in wall time, the rest in seconds.
    fn after(self, now: UnixSeconds, zone: &str) -> Result<UnixSeconds, DelayError> {
        let sign = if self.is_negative { -1 } else { 1 };
        let seconds = self.seconds.saturating_mul(sign);
        if self.months == 0 && self.days == 0 {
            return Ok(UnixSeconds(now.0.saturating_add(seconds)));
        }
        let zone = TimeZone::get(zone).map_err(|_| DelayError::Zone(zone.into()))?;
        let moment = jiff::Timestamp::from_second(now.0).map_err(|_| DelayError::Beyond)?;
        let local = zone.to_datetime(moment);
        let day = local.date();
        let months = i64::from(day.year())
            .saturating_mul(12)
            .saturating_add(i64::from(day.month()) - 1)
            .saturating_add(self.months.saturating_mul(sign));
        // The 31st of a month with 30 days becomes the first of the next month.
        let days = self
            .days
            .saturating_mul(sign)
            .saturating_add(i64::from(day.day()) - 1);
        let shifted = || {
            let year = i16::try_from(months.div_euclid(12)).ok()?;
            let month = i8::try_from(months.rem_euclid(12) + 1).ok()?;
            let first = civil::Date::new(year, month, 1).ok()?;
            let span = jiff::Span::new().try_days(days).ok()?;
            let local = first.checked_add(span).ok()?.to_datetime(local.time());
            Some(zone.to_timestamp(local).ok()?.as_second())
        };
        let moment = shifted().ok_or(DelayError::Beyond)?;
        Ok(UnixSeconds(moment.saturating_add(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn delays_are_read_in_every_form() {
        let date = |class: &str, date: &str, kind: u8, zone: &str| {
            format!(
                r#"O:{}:"{class}":3:{{s:4:"date";s:{}:"{date}";s:13:"timezone_type";i:{kind};s:8:"timezone";s:{}:"{zone}";}}"#,
                class.len(),
                date.len(),
                zone.len()
            )
        };
        let interval = |[y, m, d, h, i, s]: [i64; 6], more: &str, count: usize| {
            let parts = format!(
                r#"s:1:"y";i:{y};s:1:"m";i:{m};s:1:"d";i:{d};s:1:"h";i:{h};s:1:"i";i:{i};s:1:"s";i:{s};"#
            );
            format!("O:12:\"DateInterval\":{count}:{{{parts}{more}}}")
        };
        // 2026-03-28 12:00:00 UTC; summer time begins in Paris the day after.
        let now = UnixSeconds(1_774_699_200);
        let rows = [
            ("i:60;".to_owned(), Some(60)),
            ("i:0;".to_owned(), Some(0)),
            ("i:-5;".to_owned(), Some(-5)),
            ("s:2:\"12\";".to_owned(), Some(12)),
            ("s:1:\"x\";".to_owned(), Some(0)),
            ("d:1.9;".to_owned(), Some(1)),
            ("b:1;".to_owned(), Some(1)),
            (
                date(
                    "Carbon\\Carbon",
                    "2026-03-28 13:00:07.900000",
                    3,
                    "Europe/Paris",
                ),
                Some(7),
            ),
            (
                date(
                    "DateTimeImmutable",
                    "2026-03-28 11:00:00.000000",
                    1,
                    "+00:00",
                ),
                Some(0),
            ),
            (interval([0, 0, 0, 1, 1, 1], "", 6), Some(3661)),
            (interval([0, 0, 1, 0, 0, 0], "", 6), Some(23 * 3600)),
            (interval([0, 11, 3, 0, 0, 0], "", 6), Some(340 * 86400)),
            (
                interval([0, 0, 1, 0, 0, 0], "s:6:\"invert\";i:1;", 7),
                Some(0),
            ),
            (
                interval([0, 0, 1, 0, 0, 0], "s:11:\"from_string\";b:1;", 7),
                None,
            ),
            ("a:1:{s:4:\"mail\";i:5;}".to_owned(), None),
            ("O:1:\"A\":0:{}".to_owned(), None),
            (
                date("DateTime", "2026-03-28 11:00:00.000000", 3, "Mars/Base"),
                None,
            ),
        ];
        for (text, expected) in rows {
            let delay = Delay::of(&value(&text)).ok().flatten();
            let seconds = delay.map(|delay| delay.seconds(now, "Europe/Paris").unwrap());
            assert_eq!(seconds, expected, "{text}");
        }
        assert_eq!(Delay::of(&Value::Null).unwrap(), None);
        let far = Delay::Interval(Interval {
            months: i64::MAX,
            ..Interval::default()
        });
        assert!(far.seconds(now, "UTC").is_err());
        let day = Delay::of(&value(&interval([0, 0, 1, 0, 0, 0], "", 6)));
        assert!(day.unwrap().unwrap().seconds(now, "Mars/Base").is_err());
        let past = date("DateTime", "2026-03-28 11:00:00.000000", 3, "UTC");
        let past = Delay::of(&value(&past)).unwrap().unwrap();
        assert_eq!(
            past.available_at(now, "UTC").unwrap(),
            UnixSeconds(now.0 - 3600)
        );
    }
}
