//! Settles jobs, many in one transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::step::{Failure, commit, repeated};
use super::table::{NEVER, Table, Ticket, number, quarantine};
use super::{DatabaseQueue, MOST_AT_ONCE};
use crate::connection::{DatabaseKind, FailedJobsTable, Transaction};
use crate::queue::{Effect, Error, ReservedJob, Settled, Settlement, Unsettled};
use crate::time::UnixSeconds;

/// A job and what happens to it.
type Settling = (Arc<ReservedJob>, Settlement);

/// What happens to the rows of jobs; each list holds ids.
#[derive(Default)]
struct Changes<'a> {
    deleted: Vec<i64>,
    put_back: Vec<i64>,
    /// Second of `reserved_at`, and id.
    left: Vec<(i64, i64)>,
    /// By the queue that the rows came from.
    quarantined: BTreeMap<&'a str, Vec<i64>>,
    moved: Vec<Moved<'a>>,
    effects: Vec<&'a Effect>,
}

/// A row that becomes another one, at the end of a queue.
struct Moved<'a> {
    id: i64,
    attempts: i64,
    due: UnixSeconds,
    /// Another queue than the row's.
    queue: Option<&'a str>,
}

impl DatabaseQueue {
    pub(super) async fn settle_jobs(&self, jobs: &[Settling]) -> Result<Vec<Settled>, Unsettled> {
        let mut settled = vec![None; jobs.len()];
        let mut problem: Option<Error> = None;
        for (chunk, settled) in jobs
            .chunks(MOST_AT_ONCE.get())
            .zip(settled.chunks_mut(MOST_AT_ONCE.get()))
        {
            let Err(error) = self.settle_chunk(chunk, settled).await else {
                continue;
            };
            if problem.is_none() || error.is_of_unknown_outcome() {
                problem = Some(error);
            }
        }
        self.wake.now();
        match problem {
            None => Ok(settled.into_iter().flatten().collect()),
            Some(source) => Err(Unsettled { settled, source }),
        }
    }

    /// Settles jobs together; if the server refuses that, each alone, so that one cannot hold up others.
    async fn settle_chunk(
        &self,
        jobs: &[Settling],
        settled: &mut [Option<Settled>],
    ) -> Result<(), Error> {
        let first = jobs[0].0.queue.as_str();
        let failed = self.options.failed.as_ref();
        let mut ended = repeated(|| self.settle_together(jobs, failed)).await;
        if failed.is_some() && ended.as_ref().is_err_and(|failure| !failure.is_unknown) {
            // The table of failed jobs may be what refuses, or is not there, which must keep no job: the recorder sees
            // to that.
            ended = repeated(|| self.settle_together(jobs, None)).await;
        }
        let failure = match ended {
            Ok(all) => {
                for (settled, done) in settled.iter_mut().zip(all) {
                    *settled = Some(done);
                }
                return Ok(());
            }
            Err(failure) => failure,
        };
        let is_about_one = !failure.is_unknown && !failure.source.is_lost_connection();
        if jobs.len() == 1 || !is_about_one {
            return Err(self.failed("settle jobs", first)(failure));
        }
        let mut problem = Ok(());
        for (job, settled) in jobs.iter().zip(settled) {
            let job = std::slice::from_ref(job);
            match repeated(|| self.settle_together(job, None)).await {
                Ok(done) => *settled = done.first().copied(),
                Err(failure) => {
                    let is_unknown = failure.is_unknown;
                    let error = self.failed("settle a job", job[0].0.queue.as_str())(failure);
                    if problem.is_ok() || is_unknown {
                        problem = Err(error);
                    }
                }
            }
        }
        problem
    }

    async fn settle_together(
        &self,
        jobs: &[Settling],
        failed: Option<&FailedJobsTable>,
    ) -> Result<Vec<Settled>, Failure> {
        let tickets: Vec<_> = jobs.iter().map(|(job, _)| Ticket::of(job)).collect();
        let are_all_deleted =
            (jobs.iter()).all(|(_, settlement)| *settlement == Settlement::Delete);
        if are_all_deleted && self.table.kind() != DatabaseKind::MySql {
            return self.delete_reserved(&tickets).await;
        }
        let mut transaction = self.table.database.begin().await?;
        let known: Vec<Ticket> = tickets.iter().copied().flatten().collect();
        // Not earlier: on MySQL a marked row is not renewed, and from the next request on it is locked.
        let _marked = self.marks.mark(&known);
        let for_update = self.table.database.for_update();
        let mut held = self.lock_rows(&mut transaction, &known, for_update).await?;
        let now = self.now();
        let mut changes = Changes::default();
        let mut settled = Vec::with_capacity(jobs.len());
        for ((job, settlement), ticket) in jobs.iter().zip(&tickets) {
            let ticket = ticket.filter(|ticket| held.remove(&ticket.id) == Some(ticket.attempts));
            settled.push(if ticket.is_some() {
                Settled::Done
            } else {
                Settled::Gone
            });
            if let Some(ticket) = ticket {
                self.note_change(&mut changes, job, settlement, ticket, now);
            }
        }
        self.change(&mut transaction, &changes, now).await?;
        let effects = changes.effects.iter().copied();
        let pushed = self.apply(&mut transaction, effects, failed, now).await?;
        commit(transaction).await?;
        self.tell_pushed(pushed);
        Ok(settled)
    }

    /// Deletes reserved rows with one statement.
    async fn delete_reserved(&self, tickets: &[Option<Ticket>]) -> Result<Vec<Settled>, Failure> {
        let known: Vec<Ticket> = tickets.iter().copied().flatten().collect();
        let _marked = self.marks.mark(&known);
        let sql = format!(
            "delete from {} where (\"id\", \"attempts\") in ({}) and \"reserved_at\" is not null returning cast(\"id\" as text)",
            self.table.name,
            Table::pairs(&known)
        );
        let rows = self.table.database.rows(&sql, &[]).await;
        let rows = rows.map_err(Failure::of_commit)?;
        let mut deleted: std::collections::HashSet<i64> =
            rows.iter().map(|row| number(row, 0)).collect();
        let settled = tickets.iter().map(|ticket| {
            let is_done = ticket.is_some_and(|ticket| deleted.remove(&ticket.id));
            if is_done {
                Settled::Done
            } else {
                Settled::Gone
            }
        });
        Ok(settled.collect())
    }

    /// Locks the rows of reservations until the transaction ends; their attempts by id.
    pub(super) async fn lock_rows(
        &self,
        transaction: &mut Transaction,
        tickets: &[Ticket],
        lock: &str,
    ) -> Result<HashMap<i64, i64>, Failure> {
        if tickets.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = tickets.iter().map(|ticket| ticket.id).collect();
        let database = &self.table.database;
        let sql = format!(
            "select {}, {} from {} where \"id\" in ({}) and \"reserved_at\" is not null order by \"id\"{lock}",
            database.as_text("id"),
            database.as_text("attempts"),
            self.table.name,
            Table::list(&ids),
        );
        let rows = transaction.rows(&sql, &[]).await?;
        Ok(rows
            .iter()
            .map(|row| (number(row, 0), number(row, 1)))
            .collect())
    }

    fn note_change<'a>(
        &'a self,
        changes: &mut Changes<'a>,
        job: &'a ReservedJob,
        settlement: &'a Settlement,
        Ticket { id, attempts }: Ticket,
        now: UnixSeconds,
    ) {
        let mut moved = |attempts, due, queue| {
            changes.deleted.push(id);
            changes.moved.push(Moved {
                id,
                attempts,
                due,
                queue,
            });
        };
        let before = attempts.saturating_sub(1);
        match settlement {
            Settlement::Delete => changes.deleted.push(id),
            Settlement::Release(due) => moved(attempts, *due, None),
            Settlement::ReleaseUncounted(due) => moved(before, *due, None),
            Settlement::Forward(to) => moved(before, now, Some(self.stored(to))),
            Settlement::LeaveUntil(end) => changes.left.push((self.expired(*end), id)),
            Settlement::PutBack => changes.put_back.push(id),
            Settlement::Quarantine => {
                changes
                    .quarantined
                    .entry(self.stored(&job.queue))
                    .or_default()
                    .push(id);
            }
            Settlement::Finish(effects) => {
                if effects.contains(&Effect::Quarantine) {
                    changes
                        .quarantined
                        .entry(self.stored(&job.queue))
                        .or_default()
                        .push(id);
                } else {
                    changes.deleted.push(id);
                }
                changes.effects.extend(effects);
            }
        }
    }

    async fn change(
        &self,
        transaction: &mut Transaction,
        changes: &Changes<'_>,
        now: UnixSeconds,
    ) -> Result<(), Failure> {
        let table = &self.table.name;
        for moved in &changes.moved {
            self.insert_again(transaction, moved, now).await?;
        }
        self.table.delete(transaction, &changes.deleted).await?;
        if !changes.put_back.is_empty() {
            let sql = format!(
                "update {table} set \"attempts\" = \"attempts\" - 1, \"reserved_at\" = null where \"id\" in ({})",
                Table::list(&changes.put_back)
            );
            transaction.execute(&sql, &[]).await?;
        }
        for (reserved_at, id) in &changes.left {
            let sql = format!(
                "update {table} set \"reserved_at\" = {} where \"id\" = {id}",
                (*reserved_at).max(0)
            );
            transaction.execute(&sql, &[]).await?;
        }
        for (queue, ids) in &changes.quarantined {
            let sql = format!(
                "update {table} set \"queue\" = ?, \"attempts\" = \"attempts\" - 1, \"reserved_at\" = null, \
                 \"available_at\" = {NEVER} where \"id\" in ({})",
                Table::list(ids)
            );
            let queue = quarantine(queue);
            transaction.execute(&sql, &[(&queue).into()]).await?;
        }
        Ok(())
    }

    /// Inserts a row like another one, as Laravel does for a release.
    async fn insert_again(
        &self,
        transaction: &mut Transaction,
        moved: &Moved<'_>,
        now: UnixSeconds,
    ) -> Result<(), Failure> {
        let table = &self.table.name;
        let queue = if moved.queue.is_some() {
            self.table.database.text_param()
        } else {
            "\"queue\""
        };
        let sql = format!(
            "insert into {table} (\"queue\", \"attempts\", \"reserved_at\", \"available_at\", \"created_at\", \"payload\") \
             select {queue}, {}, null, {}, {}, \"payload\" from {table} where \"id\" = {}",
            moved.attempts, moved.due.0, now.0, moved.id
        );
        let params: Vec<_> = moved.queue.into_iter().map(Into::into).collect();
        transaction.execute(&sql, &params).await?;
        Ok(())
    }
}
