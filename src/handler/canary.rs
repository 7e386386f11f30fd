//! Part of the jobs of a mapping, chosen by their uuid.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::payload::Payload;

/// How many jobs of a mapping its handler runs (`canary = 5`), in per cent.
///
/// A job is chosen by its uuid: the same on every attempt, in every process,
/// and after `queue:retry`. Of a larger share the jobs of a smaller one are part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canary(u32);

/// Parts of a whole.
const PARTS: u32 = 100_000;

impl Canary {
    /// A share from 0 to 100 per cent, in steps of a thousandth of one; `None` for anything else.
    pub fn new(percent: f64) -> Option<Self> {
        let parts = percent * f64::from(PARTS / 100);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 100,000"
        )]
        (0.0..=f64::from(PARTS))
            .contains(&parts)
            .then(|| Self(parts.round() as u32))
    }

    /// Whether the handler runs this job. One without a uuid (before Laravel 7) goes by its id; without either it is not.
    pub fn takes(self, payload: &Payload) -> bool {
        let uuid = payload.uuid.as_ref().map(crate::payload::JobUuid::as_str);
        let id = || payload.id.as_ref().map(crate::payload::JobId::as_str);
        let Some(identity) = uuid.or_else(id) else {
            return false;
        };
        xxh3_64(identity.as_bytes()) % u64::from(PARTS) < u64::from(self.0)
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(PARTS / 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(uuid: &str) -> Payload {
        let json = serde_json::json!({"uuid": uuid, "job": "A@b", "attempts": 0, "data": []});
        Payload::parse(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_share_of_the_uuids_is_taken_and_a_larger_one_holds_the_smaller() {
        let jobs: Vec<Payload> = (0..10_000)
            .map(|n| payload(&format!("{n:08x}-0000-4000-8000-000000000000")))
            .collect();
        let taken = |percent: f64| -> Vec<usize> {
            let canary = Canary::new(percent).unwrap();
            let is_taken = |(_, job): &(usize, &Payload)| canary.takes(job);
            let taken = jobs.iter().enumerate().filter(is_taken);
            taken.map(|(number, _)| number).collect()
        };
        assert_eq!(taken(0.0), [] as [usize; 0]);
        assert_eq!(taken(100.0).len(), jobs.len());
        let (few, more) = (taken(5.0), taken(30.0));
        assert!((400..600).contains(&few.len()), "{}", few.len());
        assert!((2800..3200).contains(&more.len()), "{}", more.len());
        assert!(few.iter().all(|number| more.contains(number)));
        assert_eq!(few, taken(5.0));
    }

    #[test]
    fn shares_are_from_nothing_to_all() {
        let rows = [
            (0.0, Some("0")),
            (5.0, Some("5")),
            (0.5, Some("0.5")),
            (100.0, Some("100")),
            (-1.0, None),
            (100.1, None),
            (f64::NAN, None),
        ];
        for (percent, expected) in rows {
            let found = Canary::new(percent).map(|canary| canary.to_string());
            assert_eq!(found.as_deref(), expected, "{percent}");
        }
    }

    #[test]
    fn a_job_that_nothing_tells_apart_is_not_taken() {
        let nameless = Payload::parse(br#"{"job":"A@b","attempts":0,"data":[]}"#).unwrap();
        assert!(!Canary::new(100.0).unwrap().takes(&nameless));
        let old = Payload::parse(br#"{"job":"A@b","id":"x","attempts":0,"data":[]}"#).unwrap();
        assert!(Canary::new(100.0).unwrap().takes(&old));
    }
}
