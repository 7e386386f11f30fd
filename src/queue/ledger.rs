//! artisand's own durable records: failed jobs on their way to the app's store, and follow-ups of ended jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Effect, QueueName, Spool};
use crate::connection::LockPlace;
use crate::time::UnixSeconds;

/// Queues and artisand's own records beside them, on one server.
pub trait Driver: super::Queue + Ledger {}

impl<T: super::Queue + Ledger> Driver for T {}

/// How long the end of a job is noted that its queue may deliver again.
pub(super) const END_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Lists of artisand's own records that survive a crash, each emptied by one process at a time.
///
/// The process that empties a list holds its lease. Every driver passes the clauses of `tests/it/contract.rs`.
pub trait Ledger: Send + Sync + fmt::Debug + 'static {
    /// Records of a list, oldest first, starting at position `from`.
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>>;

    /// Counts the records of a list.
    fn length(&self, spool: Spool) -> Answer<'_, u64>;

    /// Removes records from a list, each once, and applies the effects: all in one step.
    ///
    /// Returns how many of the records were there. If none was, or if `owner` no longer has the lease, it returns
    /// 0 and applies no effect: another process empties the list.
    ///
    /// # Errors
    ///
    /// All of it happened, or nothing.
    fn ack<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64>;

    /// Takes the lease on a list for `lives`; false if another process has it.
    ///
    /// A lease taken again after it was lost needs another owner name.
    fn lease<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool>;

    /// Extends the lease to `lives` from now; false if `owner` no longer has it.
    fn keep<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool>;

    /// Confirms that `owner` still has the lease, and may extend it to `lives` from now; false if `owner` no longer has
    /// it.
    ///
    /// Callers may hold a transaction in the ledger's own database: the answer must not wait for it to end.
    fn confirm_lease<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        lives: Duration,
    ) -> Answer<'a, bool> {
        self.keep(spool, owner, lives)
    }

    /// Gives up the lease, if `owner` still has it.
    fn unlease<'a>(&'a self, spool: Spool, owner: &'a str) -> Answer<'a, ()>;

    /// Keeps the last error of a job, in place of an earlier one, for this long.
    fn keep_error<'a>(&'a self, job: &'a str, error: &'a str, lives: Duration) -> Answer<'a, ()>;

    /// The last error of a job, if it is still kept.
    fn last_error<'a>(&'a self, job: &'a str) -> Answer<'a, Option<String>>;

    /// Whether this place keeps heartbeats of workers, which cost it a write every few seconds.
    fn keeps_heartbeats(&self) -> bool {
        false
    }

    /// Keeps the record of a worker, in place of its earlier one, for this long.
    fn beat<'a>(&'a self, worker: &'a str, record: &'a [u8], lives: Duration) -> Answer<'a, ()> {
        let _ = (worker, record, lives);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Removes the record of a worker.
    fn end_beats<'a>(&'a self, worker: &'a str) -> Answer<'a, ()> {
        let _ = worker;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The records of workers that are still kept, at most `max`: those that were written last.
    fn beats(&self, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        let _ = max;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Notes the end of a job whose queue is on another server, and applies the effects: all in one step, and nothing
    /// if an end of this identity is noted already. The note is kept for [`END_KEPT`].
    fn note_end<'a>(
        &'a self,
        id: &'a str,
        at: UnixSeconds,
        effects: &'a [Effect],
    ) -> Answer<'a, ()>;

    /// For each identity the second for which an end is noted.
    fn ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<UnixSeconds>>>;

    /// Removes notes of ends.
    fn forget_ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, ()>;

    /// Whether a lock kept in this place can be taken and freed in one step with the end of a job of this queue, and
    /// with pushes to it.
    fn holds(&self, queue: &QueueName, place: &LockPlace) -> bool;

    /// Whether a push to this queue of its own connection happens in one step with taking out records.
    fn pushes_here(&self, queue: &QueueName) -> bool {
        let _ = queue;
        true
    }

    /// The lists that get the records of this queue's jobs, where each queue has lists of its own; `None` if there are
    /// only these.
    fn part(&self, queue: &QueueName) -> Option<Arc<dyn Ledger>> {
        let _ = queue;
        None
    }

    /// The queues that have lists of their own with records in them, found by looking at all keys; none where there is
    /// one list for all.
    fn find_parts(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Notes that these queues have lists of their own, and names all queues that may have some.
    fn note_parts<'a>(&'a self, queues: &'a [QueueName]) -> Answer<'a, Vec<QueueName>> {
        Box::pin(std::future::ready(Ok(queues.to_vec())))
    }
}
