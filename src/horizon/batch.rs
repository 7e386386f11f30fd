//! Notes of a short time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::note::{End, Note, NoteKind, Pushed};
use super::options::Share;
use crate::handler::JobInfo;
use crate::payload::{JobId, JobUuid, Payload};
use crate::time::Micros;

/// The name under which Horizon keeps the record of a job; `None` if it has none.
pub(super) fn id_of(payload: &Payload) -> Option<&str> {
    let uuid = payload.uuid.as_ref().map(JobUuid::as_str);
    let id = || payload.id.as_ref().map(JobId::as_str);
    uuid.or_else(id).filter(|id| !id.is_empty())
}

/// What happened to one attempt, as far as it is not written yet.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<JobInfo>,
    pub(super) id: Arc<str>,
    /// When it was reserved, if that is not written yet.
    pub(super) reserved: Option<Micros>,
    pub(super) end: Option<(Micros, End)>,
    /// From reservation to end in milliseconds; 0 if the reservation is not known.
    pub(super) runtime: f64,
    /// Whether no later attempt of the job is in the same batch.
    pub(super) is_last: bool,
    /// Whether the record stays. That of a job that has succeeded may not.
    pub(super) is_kept: bool,
}

/// Attempts whose reservation is written and whose end is not, with the moment of the reservation.
pub(super) type Reserved = HashMap<Arc<str>, Micros>;

/// Attempts in the order in which they began, or in which they ended if that began earlier.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    /// Jobs that this process has pushed, with the moment.
    pub(super) pushed: Vec<(Micros, Pushed)>,
    /// Jobs whose reservation ran out and that are back in their queue, as they were reserved, with the moment.
    pub(super) migrated: Vec<(Micros, Box<[u8]>)>,
    /// Whether it was sent before, and the reply was lost.
    pub(super) is_repeated: bool,
    /// Memory that its notes keep, roughly.
    pub(super) size: usize,
    /// Of the last attempt of each job.
    positions: HashMap<Arc<str>, usize>,
}

/// Most notes in one batch, and most bytes of them: the commands that write them are in memory, too.
const MOST: usize = 1000;
const MOST_BYTES: usize = 4 << 20;

impl Batch {
    /// How many notes there are, roughly.
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.pushed.len() + self.migrated.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is to be written before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= MOST || self.size >= MOST_BYTES
    }

    pub(super) fn add(&mut self, note: Note) {
        self.size += note.size();
        let Note { at, what } = note;
        let (job, what) = match what {
            NoteKind::Pushed(pushed) => return self.pushed.push((at, pushed)),
            NoteKind::Migrated(reserved) => return self.migrated.push((at, reserved)),
            NoteKind::Reserved(job) => (job, None),
            NoteKind::Ended(job, end) => (job, Some(end)),
        };
        let Some(id) = id_of(&job.payload) else {
            return;
        };
        let (reserved, end) = match what {
            None => (Some(at), None),
            Some(end) => (None, Some((at, end))),
        };
        let before = self.positions.get(id).copied();
        if let Some(before) = before.and_then(|position| self.entries.get_mut(position)) {
            if before.end.is_none() && end.is_some() {
                before.end = end;
                return;
            }
            before.is_last = false;
        }
        let id = Arc::<str>::from(id);
        self.positions.insert(Arc::clone(&id), self.entries.len());
        self.entries.push(Entry {
            job,
            id,
            reserved,
            end,
            runtime: 0.0,
            is_last: true,
            is_kept: true,
        });
    }

    /// Finds out how long the attempts that have ended ran, and remembers the others.
    pub(super) fn measure(&mut self, running: &mut Reserved) {
        /// More than run at once: ends of the others were never noted.
        const MOST_RUNNING: usize = 100_000;
        if running.len() > MOST_RUNNING {
            running.clear();
        }
        for entry in &mut self.entries {
            let earlier = running.remove(&entry.id);
            match (&entry.end, entry.reserved) {
                (None, Some(reserved)) => {
                    running.insert(Arc::clone(&entry.id), reserved);
                }
                (Some((at, _)), reserved) => {
                    // A batch that comes back has been measured before.
                    if let Some(reserved) = reserved.or(earlier) {
                        entry.runtime = at.milliseconds_since(reserved);
                    }
                }
                (None, None) => {}
            }
        }
    }

    /// Chooses the jobs that have succeeded whose records stay. Those of jobs with a monitored tag always do, and those
    /// of retries, which the failed job refers to.
    pub(super) fn sample(
        &mut self,
        share: Share,
        monitored: &HashSet<String>,
        mut chance: impl FnMut() -> f64,
    ) {
        if share == Share::ALL {
            return;
        }
        for entry in &mut self.entries {
            // A later attempt of the batch needs the record.
            entry.is_kept = !entry.is_last
                || !matches!(entry.end, Some((_, End::Completed)))
                || entry.job.payload.retry_of.is_some()
                || is_monitored(&entry.job.payload, monitored)
                || share.holds(chance());
        }
    }
}

/// Whether an operator monitors a tag of the job.
pub(super) fn is_monitored(payload: &Payload, monitored: &HashSet<String>) -> bool {
    !monitored.is_empty() && payload.tags.iter().any(|tag| monitored.contains(&**tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{ConnectionName, QueueName};

    fn job(id: &str, more: &str) -> Arc<JobInfo> {
        let text = format!(r#"{{"uuid":"{id}","job":"A@run","data":[],"attempts":0{more}}}"#);
        let bytes: Arc<[u8]> = text.into_bytes().into();
        Arc::new(JobInfo {
            connection: ConnectionName::from("redis"),
            queue: QueueName::from("default"),
            attempts: 1,
            payload: Arc::new(Payload::parse(&bytes).unwrap()),
            reserved: Arc::clone(&bytes),
            body: bytes,
            trace: None,
        })
    }

    fn batch(notes: impl IntoIterator<Item = NoteKind>) -> Batch {
        let mut batch = Batch::default();
        for (at, what) in (1..).zip(notes) {
            let at = Micros(at * 1_000_000);
            batch.add(Note { at, what });
        }
        batch
    }

    #[test]
    fn an_attempt_that_ends_in_the_batch_in_which_it_began_is_written_once() {
        let again = || End::Released(0);
        let one = job("one", "");
        let two = job("two", "");
        let mut batch = batch([
            NoteKind::Reserved(Arc::clone(&one)),
            NoteKind::Ended(Arc::clone(&one), again()),
            NoteKind::Reserved(Arc::clone(&one)),
            NoteKind::Reserved(Arc::clone(&two)),
            NoteKind::Ended(one, End::Completed),
        ]);
        let mut running = Reserved::new();
        batch.measure(&mut running);
        let found = batch.entries.iter();
        let found = found.map(|entry| (&*entry.id, entry.runtime, entry.is_last));
        let expected = [
            ("one", 1000.0, false),
            ("one", 2000.0, true),
            ("two", 0.0, true),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(running.keys().map(|id| &**id).collect::<Vec<_>>(), ["two"]);
    }

    #[test]
    fn a_share_of_the_jobs_that_succeed_keeps_its_records_and_so_do_all_that_someone_looks_for() {
        let failed = End::Failed {
            exception: String::new(),
            is_raised_by_php: false,
        };
        let ended = |id: &str, more: &str, end: End| NoteKind::Ended(job(id, more), end);
        let monitored = HashSet::from(["team:9".to_owned()]);
        for (share, chance, ok) in [
            (0.0, 0.0, false),
            (0.25, 0.2, true),
            (0.25, 0.3, false),
            (1.0, 0.999, true),
        ] {
            let mut batch = batch([
                ended("ok", "", End::Completed),
                ended("tagged", r#","tags":["team:9"]"#, End::Completed),
                ended("retry", r#","retry_of":"parent""#, End::Completed),
                ended("fails", "", failed.clone()),
                ended("released", "", End::Released(1)),
                ended("twice", "", End::Completed),
                ended("twice", "", failed.clone()),
            ]);
            batch.sample(Share::try_from(share).unwrap(), &monitored, || chance);
            let kept: Vec<bool> = batch.entries.iter().map(|entry| entry.is_kept).collect();
            assert_eq!(kept, [ok, true, true, true, true, true, true], "{share}");
        }
        assert!(
            [-0.1, 1.1, f64::NAN]
                .into_iter()
                .all(|share| Share::try_from(share).is_err())
        );
    }
}
