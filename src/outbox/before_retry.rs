//! Takes the record of a failed job out of the spool before the job is retried.
//!
//! A worker may have been killed after it wrote the row of the job and before it removed the record. Its successor finds
//! the row and removes the record. A retry deletes the row: then the successor would write it anew, and the job, which is
//! on its queue again, would be a failed job that the next retry pushes once more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::failed_jobs::{PAGE, bring};
use super::lease::{FencingToken, Lease, Progress};
use crate::failed::{self, FailedJob, FailedJobs, StoredJob};
use crate::queue::{self, Ledger, Spool};
use crate::time::Clock;

/// How long to wait for the lease of a worker that was killed, and for a record that has to wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// The wait between two looks at the spool.
const BETWEEN: Duration = Duration::from_millis(100);
/// How many records are read at most. Fewer than this wait, or are refused, in front of one whose row is written.
const MOST: usize = 10 * PAGE;

/// Why a record could not be taken out of the spool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The spool cannot be read or changed.
    #[error(transparent)]
    Spool(#[from] queue::Error),
    /// The row of the record cannot be written.
    #[error(transparent)]
    Store(#[from] failed::Error),
}

/// Brings the records of a job to the store and removes them from the spool, as a worker does; false if another process
/// has the spool for long.
///
/// # Errors
///
/// Spool or store cannot be used; the record stays in the spool.
pub(crate) async fn take_out(
    ledger: &Arc<dyn Ledger>,
    store: &FailedJobs,
    job: &StoredJob,
    clock: Clock,
) -> Result<bool, Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        if records_of(&**ledger, job).await?.is_empty() {
            return Ok(true);
        }
        let progress = Progress::default();
        if let Ok(lease) = Lease::take(ledger, Spool::FailedJobs, &progress).await {
            let brought = bring_all(&lease.hold(), store, job, clock).await;
            lease.give_up().await;
            brought?;
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

async fn bring_all(
    hold: &FencingToken,
    store: &FailedJobs,
    job: &StoredJob,
    clock: Clock,
) -> Result<(), Error> {
    for (record, failed) in records_of(hold.ledger(), job).await? {
        // This process may have slept, and another one has the lease.
        if hold.confirm_held().await && bring(store, &failed, clock.now()).await? {
            hold.ack(&[record], &[]).await?;
        }
    }
    Ok(())
}

/// The records of this job, with their bytes.
async fn records_of(
    ledger: &dyn Ledger,
    job: &StoredJob,
) -> Result<Vec<(Vec<u8>, FailedJob)>, queue::Error> {
    let is_its = |failed: &FailedJob| {
        // A row may have a number instead of the uuid.
        failed.id() == job.id || failed.payload.as_bytes() == job.payload
    };
    let read = |record: Vec<u8>| {
        let failed = serde_json::from_slice(&record).ok().filter(is_its)?;
        Some((record, failed))
    };
    let mut found = Vec::new();
    for from in (0..MOST).step_by(PAGE) {
        let records = ledger.read(Spool::FailedJobs, from, PAGE).await?;
        let is_last = records.len() < PAGE;
        found.extend(records.into_iter().filter_map(read));
        if is_last {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::failed::{FileFailedJobs, FileLock, Unlock};
    use crate::queue::MemoryQueue;
    use crate::time::UnixSeconds;

    const NOW: i64 = 1_800_000_000;

    /// The lock of the file, which no other process takes.
    #[derive(Debug)]
    struct Free;

    impl FileLock for Free {
        fn lock(
            &self,
            _: Duration,
        ) -> BoxFuture<'_, Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>>
        {
            let unlock: Unlock = Box::new(|| Box::pin(async {}));
            Box::pin(async move { Ok(Some(unlock)) })
        }
    }

    /// A failure of a job this many seconds ago.
    fn failed(uuid: &str, seconds_ago: i64) -> FailedJob {
        FailedJob {
            uuid: Some(uuid.to_owned()),
            connection: "redis".to_owned(),
            queue: "default".to_owned(),
            payload: format!("{{\"uuid\":\"{uuid}\"}}"),
            exception: "E".to_owned(),
            failed_at: NOW - seconds_ago,
            token: None,
        }
    }

    /// What is left of these records in the spool once the job `a`, whose row is that of a minute ago, is taken out of it;
    /// another process has the lease for as long as this.
    async fn left_of(records: &[FailedJob], leased: Duration) -> (bool, Vec<FailedJob>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("failed.json");
        let file = FileFailedJobs::new(path, 1000, TimeZone::UTC, Arc::new(Free));
        let store = FailedJobs::File(file);
        store.record(&failed("a", 60)).await.unwrap();
        let row = store.find("a").await.unwrap().unwrap();
        let queue = Arc::new(MemoryQueue::new(None));
        for record in records {
            queue.spool_record(Spool::FailedJobs, record.to_json());
        }
        let lease = queue.lease(Spool::FailedJobs, "another", leased).await;
        assert!(lease.unwrap());
        let ledger = Arc::clone(&queue) as Arc<dyn Ledger>;
        let clock = Clock::Fixed(UnixSeconds(NOW));
        let is_out = take_out(&ledger, &store, &row, clock).await.unwrap();
        assert!(store.find("a").await.unwrap().is_some());
        let left = queue.spool(Spool::FailedJobs);
        let read = |record: &Vec<u8>| serde_json::from_slice(record).unwrap();
        (is_out, left.iter().map(read).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn only_records_of_the_job_are_taken_out_once_no_worker_has_the_lease() {
        let (killed, alive) = (Duration::from_secs(10), Duration::from_secs(3600));
        let [its, other, later] = [failed("a", 60), failed("b", 60), failed("a", 30)];
        let just_now = failed("a", 0);
        #[rustfmt::skip]
        let rows = [
            // records, how long another process has the lease => taken out, records that are left
            (vec![], alive, true, vec![]),
            (vec![other.clone()], alive, true, vec![other.clone()]),
            (vec![other.clone(), its.clone()], killed, true, vec![other.clone()]),
            // It failed again: the row is that of the later failure now.
            (vec![its.clone(), later], killed, true, vec![]),
            (vec![its.clone()], alive, false, vec![its.clone()]),
            // It may be a failure of the same job that is being retried at this moment.
            (vec![just_now.clone()], killed, false, vec![just_now]),
        ];
        for (records, leased, is_out, left) in rows {
            let found = left_of(&records, leased).await;
            assert_eq!(found, (is_out, left), "{records:?} {leased:?}");
        }
    }

    #[tokio::test]
    async fn a_record_is_looked_for_behind_others() {
        let queue = MemoryQueue::new(None);
        for number in 0..PAGE {
            let other = failed(&format!("other-{number}"), 60);
            queue.spool_record(Spool::FailedJobs, other.to_json());
        }
        queue.spool_record(Spool::FailedJobs, b"from another program".to_vec());
        let its = failed("a", 60);
        queue.spool_record(Spool::FailedJobs, its.to_json());
        // As in a table without uuids.
        let row = StoredJob {
            id: "7".to_owned(),
            connection: its.connection.clone(),
            queue: its.queue.clone(),
            payload: its.payload.clone().into_bytes(),
            exception: its.exception.clone(),
            failed_at: "2027-01-15 07:59:00".to_owned(),
        };
        let found = records_of(&queue, &row).await.unwrap();
        assert_eq!(found, [(its.to_json(), its)]);
    }
}
