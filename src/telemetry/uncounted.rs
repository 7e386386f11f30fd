//! Tells first attempts from those that have the same number.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use crate::handler::JobInfo;
use crate::payload::{JobId, JobUuid};

/// Most jobs that are remembered.
const MOST: usize = 4096;

/// Jobs that went back to their queue without their first attempt being counted: the next one has its number, but the
/// job does not wait for it since it was pushed.
#[derive(Debug, Default)]
pub(super) struct Uncounted {
    /// Hashes of their ids, which payloads may make long.
    jobs: HashSet<u64>,
    /// The same, the oldest first.
    order: VecDeque<u64>,
    hasher: RandomState,
}

impl Uncounted {
    /// Remembers a job that goes back uncounted.
    pub(super) fn note(&mut self, job: &JobInfo) {
        let hash = self.hash(job).filter(|_| job.attempts <= 1);
        let Some(hash) = hash.filter(|hash| self.jobs.insert(*hash)) else {
            return;
        };
        self.order.push_back(hash);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
    }

    /// Whether this is the first attempt of the job, as far as is known here.
    pub(super) fn is_first(&self, job: &JobInfo) -> bool {
        let is_known = |hash| self.jobs.contains(&hash);
        job.attempts <= 1 && (self.jobs.is_empty() || !self.hash(job).is_some_and(is_known))
    }

    fn hash(&self, job: &JobInfo) -> Option<u64> {
        let uuid = job.payload.uuid.as_ref().map(JobUuid::as_str);
        let id = job.payload.id.as_ref().map(JobId::as_str);
        Some(self.hasher.hash_one(uuid.or(id)?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::payload::Payload;

    fn job(ids: &str, attempts: u32) -> JobInfo {
        let payload = format!(r#"{{"job":"C@run",{ids}"attempts":0}}"#);
        JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts,
            payload: Arc::new(Payload::parse(payload.as_bytes()).unwrap()),
            body: Arc::default(),
            reserved: Arc::default(),
            trace: None,
        }
    }

    #[test]
    fn a_job_that_goes_back_uncounted_has_its_first_attempt_behind_it() {
        // Ids, attempts when it goes back and when it comes again, and whether that counts as the first one.
        let rows = [
            (r#""uuid":"u","id":"i","#, 1, 1, false),
            (r#""id":"i","#, 1, 1, false),
            (r#""uuid":"u","#, 1, 2, false),
            (r#""uuid":"u","#, 2, 1, true),
            ("", 1, 1, true),
        ];
        for (ids, went, comes, is_first) in rows {
            let mut uncounted = Uncounted::default();
            assert!(uncounted.is_first(&job(ids, 1)));
            uncounted.note(&job(ids, went));
            assert_eq!(
                uncounted.is_first(&job(ids, comes)),
                is_first,
                "{ids} {went} {comes}"
            );
            assert!(uncounted.is_first(&job(r#""uuid":"another","#, 1)));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut uncounted = Uncounted::default();
        let numbered = |number: usize| job(&format!(r#""uuid":"{number}","#), 1);
        for number in 0..=MOST {
            uncounted.note(&numbered(number));
            uncounted.note(&numbered(number));
        }
        assert_eq!((uncounted.jobs.len(), uncounted.order.len()), (MOST, MOST));
        assert!(uncounted.is_first(&numbered(0)) && !uncounted.is_first(&numbered(1)));
    }
}
