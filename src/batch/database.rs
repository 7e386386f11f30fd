//! The table of batches.

use super::ids::JobIds;
use super::rules::{Counters, FINISHED, Rules};
use super::{ADD, Batch, Ended, Error, JobOutcome, Options, Recorded};
use crate::connection::{self, Database, DatabaseKind, Param, Row, Transaction, Tries};
use crate::payload::Version;
use crate::time::{Clock, UnixSeconds};

/// The app's batches (`queue.batching`). Cheap to clone.
#[derive(Debug, Clone)]
pub struct Batches {
    pub(super) database: Database,
    /// Name of the table as configured, for messages.
    name: String,
    /// Name of the table as quoted in statements.
    pub(super) table: String,
    /// Version of Laravel whose rules apply.
    version: Version,
    clock: Clock,
    raises_events: bool,
}

/// Which batches `queue:prune-batches` deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prune {
    /// Batches that were finished or cancelled before the limit.
    Finished,
    /// Batches that were made before the limit and are not finished.
    Unfinished,
    /// Batches that were made before the limit and were cancelled.
    Cancelled,
}

/// Rows deleted by one statement.
const CHUNK: u64 = 1000;
/// Longest id that fits the column.
const MAX_ID: usize = 255;
impl Batches {
    /// Most endings recorded at once: their marks and the uuids of failed jobs must fit into a text column of 64
    /// KiB.
    pub const MAX_EVENTS: usize = super::MAX_EVENTS;

    /// Batches in this table, by the rules of this version of Laravel.
    pub fn new(database: Database, table: &str, version: Version, clock: Clock) -> Self {
        Self {
            table: database.table(table),
            name: table.to_owned(),
            database,
            version,
            clock,
            raises_events: false,
        }
    }

    /// Leaves to PHP what brings about an event of a batch, if `raises` says so.
    #[must_use]
    pub fn with_events(mut self, raises: bool) -> Self {
        self.raises_events = raises;
        self
    }

    /// Whether PHP raises an event when a batch is cancelled.
    pub(crate) fn raises_cancel(&self) -> bool {
        self.raises_events && self.version.is_at_least(FINISHED.0, FINISHED.1)
    }

    /// The location of the table, for messages.
    pub fn describe(&self) -> String {
        format!("table `{}` at {}", self.name, self.database.address())
    }

    fn failed(&self, what: &'static str) -> impl Fn(connection::Error) -> Error {
        let table = self.name.clone();
        move |source| Error::Database {
            what,
            table: table.clone(),
            source: Box::new(source),
        }
    }

    fn select(&self) -> String {
        let columns = [
            "id",
            "name",
            "total_jobs",
            "pending_jobs",
            "failed_jobs",
            "failed_job_ids",
            "options",
            "created_at",
            "cancelled_at",
            "finished_at",
        ];
        let columns = columns.map(|column| self.database.as_text(column));
        let (columns, table) = (columns.join(", "), &self.table);
        format!("select {columns} from {table} where \"id\" = ?")
    }

    /// Looks a batch up.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::find`.
    pub async fn find(&self, id: &str) -> Result<Option<Batch>, Error> {
        if !is_storable(id) {
            return Ok(None);
        }
        let rows = self.database.rows(&self.select(), &[id.into()]).await;
        let rows = rows.map_err(self.failed("read"))?;
        Ok(rows.first().map(|row| read(row).0))
    }

    /// Whether the batches are in `SQLite`: writers of the file exclude each other, and a reader must not upgrade
    /// to a writer.
    pub(crate) fn are_in_a_file(&self) -> bool {
        self.database.kind() == DatabaseKind::Sqlite
    }

    /// The current second, from the clock that gives the times in the table.
    pub(crate) fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    /// Counts the endings of jobs of one batch, in this order, each at most once; returns the result for each.
    ///
    /// All endings are counted in one transaction, and marked in the row: a
    /// marked ending counts again only after
    /// [`forget_marks`](Self::forget_marks). Deadlocks and lock timeouts are
    /// retried.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] for more than [`MAX_EVENTS`](Self::MAX_EVENTS).
    /// [`Error::Database`] if the row cannot be written; if the connection broke,
    /// the endings may all be counted. The same call can then be repeated.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has counted all endings or none, and the call can be repeated.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batch::recordSuccessfulJob`, `recordFailedJob`;
    /// `Illuminate\Bus\DatabaseBatchRepository::updateAtomicValues`.
    pub async fn record(&self, id: &str, events: &[Ended]) -> Result<Vec<Recorded>, Error> {
        let recorded = self
            .record_while(id, events, &[], || std::future::ready(true))
            .await?;
        // Always `Some`: the condition above is always true.
        Ok(recorded.unwrap_or_default())
    }

    /// Like [`record`](Self::record), if `may` returns true while the row is locked; otherwise it counts nothing
    /// and returns `None`.
    ///
    /// Removes the marks of `forget` in the same transaction, as [`forget_marks`](Self::forget_marks) does.
    ///
    /// For a worker that may lose the right to count without noticing: the worker
    /// that has the right by then waits for the row lock, and finds the marks.
    ///
    /// # Errors
    ///
    /// As for `record`.
    pub async fn record_while<F: Future<Output = bool>>(
        &self,
        id: &str,
        events: &[Ended],
        forget: &[Ended],
        may: impl Fn() -> F,
    ) -> Result<Option<Vec<Recorded>>, Error> {
        if events.len() > Self::MAX_EVENTS {
            return Err(Error::TooMany {
                found: events.len(),
            });
        }
        if !is_storable(id) {
            return Ok(Some(vec![Recorded::NoBatch; events.len()]));
        }
        let mut tries = Tries::new();
        loop {
            match self.try_record(id, events, forget, &may).await {
                Err(error) if tries.again(&error).await => {}
                ended => return ended.map_err(self.failed("count jobs of")),
            }
        }
    }

    async fn try_record<F: Future<Output = bool>>(
        &self,
        id: &str,
        events: &[Ended],
        forget: &[Ended],
        may: &impl Fn() -> F,
    ) -> Result<Option<Vec<Recorded>>, connection::Error> {
        let mut transaction = self.database.begin().await?;
        let locked = self.lock(&mut transaction, id).await?;
        if !may().await {
            transaction.rollback().await?;
            return Ok(None);
        }
        let Some((batch, ids)) = locked else {
            transaction.rollback().await?;
            return Ok(Some(vec![Recorded::NoBatch; events.len()]));
        };
        let rules = Rules {
            version: self.version,
            options: &batch.options,
            raised_of: self.raises_events.then_some(batch.total_jobs),
        };
        let before = ids.clone();
        let mut counters = Counters {
            pending: batch.pending_jobs,
            failed: batch.failed_jobs,
            ids,
            finishes: false,
            cancels: false,
        };
        let recorded = events.iter();
        let recorded = recorded.map(|ended| rules.record(&mut counters, ended));
        let recorded: Vec<Recorded> = recorded.collect();
        counters.ids.unmark_all(forget);
        let is_counted = |one: &Recorded| matches!(one, Recorded::Counted | Recorded::CountedFirst);
        if recorded.iter().any(is_counted) || counters.ids != before {
            self.update(&mut transaction, &batch.id, &counters).await?;
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        Ok(Some(recorded))
    }

    /// Prepares a batch for endings that PHP will count: returns for each the mark that stays until PHP has
    /// counted it.
    ///
    /// PHP gets the mark as the id of the job that has succeeded, and removes it
    /// in the statement that counts; so an ending that is processed twice counts
    /// once. A failure has no mark: counting it adds the job to the list of
    /// failed jobs. A success has no mark either while the column is full of
    /// marks.
    ///
    /// The first failure that is not allowed cancels the batch here: jobs that check for that must not have to
    /// wait for PHP. If `may` returns false while the row is locked, nothing is done and the result is `None`. The
    /// marks of `forget` are removed in the same transaction, so that callbacks do not see them.
    ///
    /// # Errors
    ///
    /// [`Error::Database`]. The same call can be repeated.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::decrementPendingJobs`,
    /// `incrementFailedJobs`.
    pub async fn hand_over<F: Future<Output = bool>>(
        &self,
        id: &str,
        events: &[Ended],
        forget: &[Ended],
        may: impl Fn() -> F,
    ) -> Result<Option<Vec<Option<String>>>, Error> {
        let mut tries = Tries::new();
        loop {
            match self.try_hand_over(id, events, forget, &may).await {
                Err(error) if tries.again(&error).await => {}
                ended => return ended.map_err(self.failed("prepare for PHP")),
            }
        }
    }

    async fn try_hand_over<F: Future<Output = bool>>(
        &self,
        id: &str,
        events: &[Ended],
        forget: &[Ended],
        may: &impl Fn() -> F,
    ) -> Result<Option<Vec<Option<String>>>, connection::Error> {
        let mut transaction = self.database.begin().await?;
        let locked = self.lock(&mut transaction, id).await?;
        if !may().await {
            transaction.rollback().await?;
            return Ok(None);
        }
        let Some((batch, ids)) = locked else {
            transaction.rollback().await?;
            return Ok(Some(vec![None; events.len()]));
        };
        let has_failed = |ended: &Ended| ended.outcome == JobOutcome::Failed;
        let mut counters = Counters {
            pending: batch.pending_jobs,
            failed: batch.failed_jobs,
            ids: ids.clone(),
            finishes: false,
            cancels: false,
        };
        counters.cancels =
            events.iter().any(has_failed) && !batch.allows_failures() && !batch.is_cancelled();
        counters.finishes = counters.cancels;
        counters.ids.unmark_all(forget);
        let marks = events.iter();
        let marks = marks
            .map(|ended| counters.ids.mark_for_php(ended))
            .collect();
        if counters.cancels || counters.ids != ids {
            self.update(&mut transaction, &batch.id, &counters).await?;
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        Ok(Some(marks))
    }

    /// Reads a batch and locks its row until the end of the transaction.
    async fn lock(
        &self,
        transaction: &mut Transaction,
        id: &str,
    ) -> Result<Option<(Batch, JobIds)>, connection::Error> {
        let sql = format!("{} limit 1{}", self.select(), self.database.for_update());
        let rows = transaction.rows(&sql, &[id.into()]).await?;
        Ok(rows.first().map(read))
    }

    async fn update(
        &self,
        transaction: &mut Transaction,
        id: &str,
        counters: &Counters,
    ) -> Result<(), connection::Error> {
        let ids = counters.ids.to_json();
        let now = self.clock.now().0;
        let mut sql = format!(
            "update {} set \"pending_jobs\" = ?, \"failed_jobs\" = ?, \"failed_job_ids\" = ?",
            self.table
        );
        let mut params: Vec<Param<'_>> = vec![
            counters.pending.into(),
            counters.failed.into(),
            (&ids).into(),
        ];
        // Laravel writes these columns in separate statements; the resulting row is the same.
        for (column, is_now) in [
            ("cancelled_at", counters.cancels),
            ("finished_at", counters.finishes),
        ] {
            if is_now {
                sql = sql + ", \"" + column + "\" = ?";
                params.push(now.into());
            }
        }
        params.push(id.into());
        let sql = sql + " where \"id\" = ?";
        transaction.execute(&sql, &params).await.map(drop)
    }

    /// Removes the marks of these endings, which no worker will record again.
    ///
    /// Call it when the records passed to [`record`](Self::record) cannot come
    /// back. May be repeated.
    ///
    /// # Errors
    ///
    /// The row cannot be written.
    pub async fn forget_marks(&self, id: &str, events: &[Ended]) -> Result<(), Error> {
        if !is_storable(id) {
            return Ok(());
        }
        let mut tries = Tries::new();
        loop {
            match self.try_forget(id, events).await {
                Err(error) if tries.again(&error).await => {}
                ended => return ended.map_err(self.failed("clean up")),
            }
        }
    }

    async fn try_forget(&self, id: &str, events: &[Ended]) -> Result<(), connection::Error> {
        let mut transaction = self.database.begin().await?;
        let Some((batch, ids)) = self.lock(&mut transaction, id).await? else {
            return transaction.rollback().await;
        };
        let mut without = ids.clone();
        without.unmark_all(events);
        if without == ids {
            return transaction.rollback().await;
        }
        let sql = format!(
            "update {} set \"failed_job_ids\" = ? where \"id\" = ?",
            self.table
        );
        let ids = without.to_json();
        let params = [(&ids).into(), (&batch.id).into()];
        transaction.execute(&sql, &params).await?;
        transaction.commit().await
    }

    /// Runs a statement that is safe to repeat, and retries it on conflicts.
    pub(super) async fn execute(
        &self,
        what: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, Error> {
        let mut tries = Tries::new();
        loop {
            match self.database.execute(sql, params).await {
                Err(error) if tries.again(&error).await => {}
                ended => return ended.map_err(self.failed(what)),
            }
        }
    }

    /// Cancels a batch, even if it is cancelled already; returns whether the batch exists.
    ///
    /// # Errors
    ///
    /// The row cannot be written.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::cancel`.
    pub async fn cancel(&self, id: &str) -> Result<bool, Error> {
        if !is_storable(id) {
            return Ok(false);
        }
        let now = self.clock.now().0;
        let sql = format!(
            "update {} set \"cancelled_at\" = ?, \"finished_at\" = ? where \"id\" = ?",
            self.table
        );
        let params = [now.into(), now.into(), id.into()];
        Ok(self.execute("cancel", &sql, &params).await? > 0)
    }

    /// Adds `count` jobs, which `push` pushes. Returns the result of `push`, or `None` if there is no such batch
    /// and nothing was pushed.
    ///
    /// `push` gets the transaction that counts, in which it may write, and returns it.
    ///
    /// The jobs are counted before they are pushed and while the row is locked,
    /// so that none of them ends before it counts. A finished batch becomes
    /// unfinished.
    ///
    /// # Errors
    ///
    /// [`Error::Push`] if the jobs could not be pushed: they are not counted
    /// then. [`Error::Database`] if they could not be counted; if only the final
    /// commit failed, they are pushed all the same, as in Laravel.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a dropped future may have pushed jobs that are not counted.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batch::add`.
    pub async fn add_jobs<T, E, F>(
        &self,
        id: &str,
        count: u32,
        push: impl FnOnce(Transaction) -> F,
    ) -> Result<Option<T>, Error>
    where
        F: Future<Output = (Transaction, Result<T, E>)>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if !is_storable(id) {
            return Ok(None);
        }
        let mut tries = Tries::new();
        let counted = loop {
            match self.try_count_more(id, count).await {
                Err(error) if tries.again(&error).await => {}
                ended => break ended.map_err(self.failed("count jobs of"))?,
            }
        };
        let Some(transaction) = counted else {
            return Ok(None);
        };
        let (transaction, pushed) = push(transaction).await;
        match pushed {
            Ok(pushed) => {
                transaction.commit().await.map_err(self.failed(ADD))?;
                Ok(Some(pushed))
            }
            Err(error) => {
                if let Err(error) = transaction.rollback().await {
                    tracing::debug!(%error, "the connection is closed instead");
                }
                Err(Error::Push {
                    batch: id.to_owned(),
                    source: error.into(),
                })
            }
        }
    }

    /// Counts more jobs, in a transaction that is still open; `None` if there is no such batch.
    async fn try_count_more(
        &self,
        id: &str,
        count: u32,
    ) -> Result<Option<Transaction>, connection::Error> {
        let mut transaction = self.database.begin().await?;
        let sql = format!(
            "update {} set \"total_jobs\" = \"total_jobs\" + ?, \"pending_jobs\" = \"pending_jobs\" + ?, \"finished_at\" = null where \"id\" = ?",
            self.table
        );
        let count = i64::from(count);
        let params = [count.into(), count.into(), id.into()];
        if transaction.execute(&sql, &params).await? == 0 {
            transaction.rollback().await?;
            return Ok(None);
        }
        Ok(Some(transaction))
    }

    /// Deletes old batches; returns their number.
    ///
    /// # Errors
    ///
    /// The table cannot be written.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::prune`, `pruneUnfinished`, `pruneCancelled`.
    pub async fn prune(&self, which: Prune, before: UnixSeconds) -> Result<u64, Error> {
        let condition = match which {
            Prune::Finished => "\"finished_at\" is not null and \"finished_at\" < ?",
            Prune::Unfinished => "\"finished_at\" is null and \"created_at\" < ?",
            Prune::Cancelled => "\"cancelled_at\" is not null and \"created_at\" < ?",
        };
        let table = &self.table;
        let sql = match self.database.kind() {
            DatabaseKind::MySql => format!("delete from {table} where {condition} limit {CHUNK}"),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => format!(
                "delete from {table} where \"id\" in (select \"id\" from {table} where {condition} limit {CHUNK})"
            ),
        };
        let mut total = 0;
        loop {
            let deleted = self.execute("delete", &sql, &[before.0.into()]).await?;
            total += deleted;
            if deleted == 0 {
                return Ok(total);
            }
        }
    }

    /// Whether the error means that the app has no such table, so that none of its jobs is in a batch.
    pub fn is_missing(&self, error: &Error) -> bool {
        let source = match error {
            Error::Database { source, .. } => source,
            Error::TooMany { .. } | Error::Push { .. } | Error::NoStore { .. } => return false,
        };
        source.is_missing_table() || self.database.is_missing_file()
    }

    /// Checks that batches can be read and written, without changing any.
    ///
    /// # Errors
    ///
    /// The reason why they cannot.
    pub async fn check(&self) -> Result<(), Error> {
        let sql = format!("{} and 1 = 0", self.select());
        let read = self.database.rows(&sql, &["".into()]).await;
        read.map_err(self.failed("read"))?;
        let sql = format!(
            "update {} set \"failed_jobs\" = \"failed_jobs\" where 1 = 0",
            self.table
        );
        self.execute("update", &sql, &[]).await.map(drop)
    }
}

/// Whether a row can have this id, which comes from a payload: some texts must not be used in a query.
fn is_storable(id: &str) -> bool {
    !id.is_empty() && !id.contains('\0') && id.chars().count() <= MAX_ID
}

/// A batch, and the raw list in its row.
fn read(row: &Row) -> (Batch, JobIds) {
    let text = |column| row.text(column).map(String::from).unwrap_or_default();
    let number = |column| row.int(column).unwrap_or(0);
    let moment = |column| row.int(column).map(UnixSeconds);
    let ids = JobIds::parse(&text(5));
    let batch = Batch {
        id: text(0),
        name: text(1),
        total_jobs: number(2),
        pending_jobs: number(3),
        failed_jobs: number(4),
        failed_job_ids: ids.uuids(),
        options: Options::parse(row.bytes(6).unwrap_or_default()),
        created_at: UnixSeconds(number(7)),
        cancelled_at: moment(8),
        finished_at: moment(9),
    };
    (batch, ids)
}
