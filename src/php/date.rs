//! Conversion of PHP's date classes, which store wall time and zone, to an instant.

use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};

/// A serialized `DateTime`, `DateTimeImmutable` or Carbon instance, for fields of typed jobs.
///
/// Written, it is a `Illuminate\Support\Carbon`, the class of `now()`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Illuminate\\Support\\Carbon")]
pub struct Date {
    /// Local wall time in the zone, `2024-01-02 03:04:05.000000`.
    pub date: String,
    /// 1: `timezone` is an offset (`+02:00`), 2: an abbreviation (`EDT`), 3: an identifier (`Europe/Paris`).
    pub timezone_type: i64,
    /// The zone, in the form given by `timezone_type`.
    pub timezone: String,
}

impl Date {
    /// ISO 8601 text with the UTC offset (`2024-01-02T03:04:05.000000+01:00`); without the offset if the zone is
    /// unknown.
    ///
    /// `None` if the three fields do not make a date.
    pub fn to_iso_8601(&self) -> Option<String> {
        iso_8601(&self.date, self.timezone_type, &self.timezone)
    }

    /// The instant in microseconds since 1970 UTC; `None` if the zone is unknown or the date is not valid.
    pub fn timestamp_micros(&self) -> Option<i64> {
        let timestamp: jiff::Timestamp = self.to_iso_8601()?.parse().ok()?;
        Some(timestamp.as_microsecond())
    }
}

/// ISO 8601 form with UTC offset of a serialized date (commands.md 13.2).
///
/// `date` is local wall time in the zone (`2024-01-02 03:04:05.000000`),
/// `timezone_type` 1 means a UTC offset, 2 an abbreviation, 3 an identifier. If
/// the zone's offset is unknown, the text has none. `None` if the three fields do
/// not make a date.
pub(super) fn iso_8601(date: &str, timezone_type: i64, timezone: &str) -> Option<String> {
    let (day, time) = date.split_once(' ')?;
    let is_time = time.len() >= 8
        && time
            .bytes()
            .all(|b| b.is_ascii_digit() || b == b':' || b == b'.');
    let is_day = day.len() >= 10
        && day
            .bytes()
            .all(|b| b.is_ascii_digit() || b == b'-' || b == b'+');
    if !is_time || !is_day {
        return None;
    }
    let offset = match timezone_type {
        1 => Some(timezone.to_owned()),
        2 => abbreviation_offset(timezone).map(offset_text),
        3 => zone_offset(day, time, timezone).map(offset_text),
        _ => return None,
    };
    Some(format!("{day}T{time}{}", offset.unwrap_or_default()))
}

fn offset_text(seconds: i32) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let minutes = seconds.unsigned_abs() / 60;
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

fn zone_offset(day: &str, time: &str, zone: &str) -> Option<i32> {
    if zone == "UTC" {
        return Some(0);
    }
    let zone = TimeZone::get(zone).ok()?;
    let (year, month_and_day) =
        day.trim_start_matches('+')
            .rsplit_once('-')
            .and_then(|(rest, day)| {
                let (year, month) = rest.rsplit_once('-')?;
                Some((year, (month, day)))
            })?;
    let year: i64 = year.parse().ok()?;
    // The calendar repeats every 400 years: map a year beyond jiff's range to one with the same rules.
    let year = if year > 9000 {
        2000 + (year - 2000) % 400
    } else {
        year.max(-9000)
    };
    let mut clock = time.split([':', '.']);
    let mut part = || clock.next()?.parse().ok();
    let (hour, minute, second) = (part()?, part()?, part()?);
    let local = civil::DateTime::new(
        i16::try_from(year).ok()?,
        month_and_day.0.parse().ok()?,
        month_and_day.1.parse().ok()?,
        hour,
        minute,
        second,
        0,
    );
    let offset = match zone.to_ambiguous_zoned(local.ok()?).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset,
        // A time that the clock skips: PHP moves it forward, into the new offset.
        AmbiguousOffset::Gap { after, .. } => after,
        // A time that occurs twice: PHP 8 takes the second in London and east of it, the first in the west.
        AmbiguousOffset::Fold { before, after } => {
            if after.seconds() >= 0 {
                after
            } else {
                before
            }
        }
    };
    Some(offset.seconds())
}

/// Offset in seconds of an abbreviation in PHP 8.2; ambiguous abbreviations as PHP resolves them.
fn abbreviation_offset(name: &str) -> Option<i32> {
    let name = name.to_ascii_uppercase();
    let index = ABBREVIATIONS
        .binary_search_by_key(&name.as_str(), |(name, _)| name)
        .ok()?;
    Some(ABBREVIATIONS[index].1)
}

#[rustfmt::skip]
const ABBREVIATIONS: &[(&str, i32)] = &[
    ("A", 3600), ("ACDT", 37800), ("ACST", 34200), ("ADDT", -7200), ("ADT", -10800), ("AEDT", 39600),
    ("AEST", 36000), ("AHDT", -32400), ("AHST", -36000), ("AKDT", -28800), ("AKST", -32400), ("AMT", -13840),
    ("APT", -10800), ("AST", -14400), ("AWDT", 32400), ("AWST", 28800), ("AWT", -10800), ("B", 7200),
    ("BDST", 7200), ("BDT", -36000), ("BMT", -14309), ("BST", 3600), ("C", 10800), ("CAST", 34200),
    ("CAT", 7200), ("CDDT", -14400), ("CDT", -18000), ("CEMT", 10800), ("CEST", 7200), ("CET", 3600),
    ("CHST", 36000), ("CMT", -15408), ("CPT", -18000), ("CST", -21600), ("CWT", -18000), ("D", 14400),
    ("DMT", -1521), ("E", 18000), ("EAT", 10800), ("EDDT", -10800), ("EDT", -14400), ("EEST", 10800),
    ("EET", 7200), ("EMT", -26248), ("EPT", -14400), ("EST", -18000), ("EWT", -14400), ("F", 21600),
    ("FFMT", -14660), ("FMT", -4056), ("G", 25200), ("GDT", 39600), ("GMT", 0), ("GST", 36000), ("H", 28800),
    ("HDT", -34200), ("HKST", 32400), ("HKT", 28800), ("HMT", -19776), ("HPT", -34200), ("HST", -36000),
    ("HWT", -34200), ("I", 32400), ("IDDT", 14400), ("IDT", 10800), ("IMT", 25025), ("IST", 7200),
    ("JDT", 36000), ("JMT", 8440), ("JST", 32400), ("K", 36000), ("KDT", 36000), ("KMT", 5736),
    ("KST", 30600), ("L", 39600), ("LST", 9394), ("M", 43200), ("MDDT", -18000), ("MDST", 16279),
    ("MDT", -21600), ("MEST", 7200), ("MET", 3600), ("MMT", 9017), ("MPT", -21600), ("MSD", 14400),
    ("MSK", 10800), ("MST", -25200), ("MWT", -21600), ("N", -3600), ("NDDT", -5400), ("NDT", -9052),
    ("NPT", -9000), ("NST", -12600), ("NWT", -9000), ("NZDT", 46800), ("NZMT", 41400), ("NZST", 43200),
    ("O", -7200), ("P", -10800), ("PDDT", -21600), ("PDT", -25200), ("PKST", 21600), ("PKT", 18000),
    ("PLMT", 25590), ("PMT", -13236), ("PPMT", -17340), ("PPT", -25200), ("PST", -28800), ("PWT", -25200),
    ("Q", -14400), ("QMT", -18840), ("R", -18000), ("RMT", 5794), ("S", -21600), ("SAST", 7200),
    ("SDMT", -16800), ("SJMT", -20173), ("SMT", -13884), ("SST", -39600), ("T", -25200), ("TBMT", 10751),
    ("TMT", 12344), ("U", -28800), ("UCT", 0), ("UTC", 0), ("V", -32400), ("W", -36000), ("WAST", 7200),
    ("WAT", 3600), ("WEMT", 7200), ("WEST", 3600), ("WET", 0), ("WIB", 25200), ("WIT", 32400),
    ("WITA", 28800), ("WMT", 5040), ("X", -39600), ("Y", -43200), ("YDDT", -25200), ("YDT", -28800),
    ("YPT", -28800), ("YST", -32400), ("YWT", -28800), ("Z", 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_get_the_offset_of_their_zone() {
        #[rustfmt::skip]
        let rows = [
            ("2024-01-02 03:04:05.123456", 3, "Europe/Paris", Some("2024-01-02T03:04:05.123456+01:00")),
            ("2024-07-02 03:04:05.000000", 2, "EDT", Some("2024-07-02T03:04:05.000000-04:00")),
            ("2024-01-02 03:04:05.000000", 1, "+02:00", Some("2024-01-02T03:04:05.000000+02:00")),
            ("2024-10-27 02:30:00.000000", 3, "Europe/Warsaw", Some("2024-10-27T02:30:00.000000+01:00")),
            ("2024-11-03 01:30:00.000000", 3, "America/New_York", Some("2024-11-03T01:30:00.000000-04:00")),
            ("12024-07-02 03:04:05.000000", 3, "America/New_York", Some("12024-07-02T03:04:05.000000-04:00")),
            // Summer time began on 31 March and ended on 27 October, as in 2024.
            ("12024-03-30 12:00:00.000000", 3, "Europe/Warsaw", Some("12024-03-30T12:00:00.000000+01:00")),
            ("+12024-10-26 12:00:00.000000", 3, "Europe/Warsaw", Some("+12024-10-26T12:00:00.000000+02:00")),
            ("2024-01-02 03:04:05.000000", 3, "Mars/Base", Some("2024-01-02T03:04:05.000000")),
            ("yesterday", 3, "UTC", None),
            ("2024/01/02 03:04:05.000000", 1, "+02:00", None),
            ("2024-01-02 03h04m05", 1, "+02:00", None),
            ("24-01-02 03:04:05.000000", 1, "+02:00", None),
            ("2024-01-02 03:04", 1, "+02:00", None),
            ("2024-01-02 03:04:05.000000", 4, "UTC", None),
        ];
        for (date, timezone_type, timezone, expected) in rows {
            assert_eq!(
                iso_8601(date, timezone_type, timezone).as_deref(),
                expected,
                "{date} {timezone}"
            );
        }
    }

    #[test]
    fn the_table_of_abbreviations_is_sorted() {
        assert!(ABBREVIATIONS.is_sorted_by_key(|(name, _)| name));
    }

    #[test]
    fn a_date_is_an_instant_if_its_zone_is_known() {
        let rows = [
            ("1970-01-01 01:00:01.000002", "+01:00", Some(1_000_002)),
            ("1969-12-31 23:59:59.000000", "+00:00", Some(-1_000_000)),
            ("1970-01-01", "+01:00", None),
            ("1970-01-01 01:00:01.000002", "", None),
        ];
        for (date, timezone, expected) in rows {
            let date = Date {
                date: date.to_owned(),
                timezone_type: 1,
                timezone: timezone.to_owned(),
            };
            assert_eq!(date.timestamp_micros(), expected, "{date:?}");
        }
    }
}
