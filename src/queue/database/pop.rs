//! Reserves rows: the first of a queue, or chosen ones.

use std::num::NonZeroUsize;

use tokio::runtime::Handle;

use super::DatabaseQueue;
use super::step::{Failure, commit, repeated};
use super::table::{Table, Ticket, number};
use crate::connection::{DatabaseKind, Param, Row};
use crate::queue::{
    Choice, Error, PopRequest, Popped, QueueName, ReservedJob, Selection, number_of_attempts,
};
use crate::time::UnixSeconds;

/// Rows to look at first where only some jobs are taken: mostly the wanted ones are near the head.
const FIRST_WINDOW: usize = 8;

/// A row that was reserved.
struct ReservedRow {
    ticket: Ticket,
    /// The column can hold no higher number of attempts.
    is_last: bool,
    payload: Vec<u8>,
}

/// One attempt more, as far as the column reaches.
fn one_more(most: i64) -> String {
    format!("case when \"attempts\" < {most} then \"attempts\" + 1 else \"attempts\" end")
}

impl DatabaseQueue {
    pub(super) async fn pop_jobs(&self, mut request: PopRequest<'_>) -> Result<Popped, Error> {
        let mut popped = Popped::default();
        self.pops_on.get_or_init(|| Handle::current().id());
        self.wake.begin().await;
        let mut selection = request.selection.take();
        if let Some(selection) = &mut selection {
            selection.heads.begin(request.now);
        }
        for queue in request.queues {
            let Some(room) = NonZeroUsize::new(request.max.get() - popped.jobs.len()) else {
                break;
            };
            let popping = async {
                match &mut selection {
                    None => {
                        self.pop_first(queue, room, request.now, &mut popped)
                            .await?;
                    }
                    Some(selection) => {
                        let popping =
                            self.pop_chosen(queue, room, request.now, selection, &mut popped);
                        popping.await?;
                    }
                }
                self.note_next_due(queue, request.now, room, &mut popped)
                    .await
            };
            match popping
                .await
                .map_err(self.failed("pop from", queue.as_str()))
            {
                // Jobs that are already reserved must reach the caller; the error will come again.
                Err(error) if popped.jobs.is_empty() => return Err(error),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        if !popped.jobs.is_empty() {
            self.wake.found();
        }
        Ok(popped)
    }

    async fn pop_first(
        &self,
        queue: &QueueName,
        room: NonZeroUsize,
        now: UnixSeconds,
        popped: &mut Popped,
    ) -> Result<(), Failure> {
        let max = room.min(super::MOST_AT_ONCE);
        let taken = self.reserve(queue, None, max, now).await?;
        popped.jobs.extend(
            taken
                .into_iter()
                .map(|taken| self.job(queue, taken, now, None)),
        );
        Ok(())
    }

    /// Looks at rows in order, lets the caller choose, and reserves those that are chosen.
    async fn pop_chosen(
        &self,
        queue: &QueueName,
        room: NonZeroUsize,
        now: UnixSeconds,
        selection: &mut Selection<'_>,
        popped: &mut Popped,
    ) -> Result<(), Failure> {
        let mut room = room.get();
        // Those that are known to be of no use; the pop looks as far behind them as it would without.
        let mut passed: Vec<i64> = selection.heads.rows(queue).iter().copied().collect();
        passed.sort_unstable();
        let (mut left, mut window) = (self.options.look_ahead, FIRST_WINDOW.max(room));
        let mut after = 0;
        while room > 0 && left > 0 {
            let limit = window.min(left);
            let rows = self.ready_rows(queue, &passed, after, limit, now).await?;
            let (mut chosen, mut is_cut) = (Vec::new(), false);
            for row in &rows {
                is_cut = chosen.len() == room;
                if is_cut {
                    break;
                }
                let id = number(row, 0);
                after = id;
                match (selection.choose)(queue, row.bytes(1).unwrap_or_default()) {
                    Choice::Take(choice) => chosen.push((id, choice)),
                    Choice::NotNow => {}
                    Choice::Never => drop(selection.heads.rows(queue).insert(id)),
                }
            }
            if let Some(max) = NonZeroUsize::new(chosen.len()) {
                let wanted: Vec<i64> = chosen.iter().map(|(id, _)| *id).collect();
                let taken = self.reserve(queue, Some(&wanted), max, now).await?;
                room = room.saturating_sub(taken.len());
                popped.jobs.extend(taken.into_iter().map(|taken| {
                    let choice = chosen.iter().find(|(id, _)| *id == taken.ticket.id);
                    self.job(queue, taken, now, choice.map(|(_, choice)| *choice))
                }));
            }
            if rows.len() < limit && !is_cut {
                break;
            }
            left -= limit;
            window = window.saturating_mul(4);
        }
        Ok(())
    }

    /// Ids and payloads of the first rows that may be reserved, behind the id `after` and without those of `passed`.
    async fn ready_rows(
        &self,
        queue: &QueueName,
        passed: &[i64],
        after: i64,
        limit: usize,
        now: UnixSeconds,
    ) -> Result<Vec<Row>, Failure> {
        let (database, table) = (&self.table.database, &self.table.name);
        let without = match Table::list(passed) {
            none if none.is_empty() => none,
            list => format!(" and \"id\" not in ({list})"),
        };
        let sql = format!(
            "select {}, \"payload\" from {table} where {} and \"id\" > {after}{without} order by {table}.\"id\" limit {limit}",
            database.as_text("id"),
            Table::ready(now, self.expired(now)),
        );
        Ok(database.rows(&sql, &[self.stored(queue).into()]).await?)
    }

    /// Reserves up to `max` rows of a queue, of these `ids` if any are given; in the order of their ids.
    async fn reserve(
        &self,
        queue: &QueueName,
        ids: Option<&[i64]>,
        max: NonZeroUsize,
        now: UnixSeconds,
    ) -> Result<Vec<ReservedRow>, Failure> {
        let among = ids.map_or_else(String::new, |ids| {
            format!(" and \"id\" in ({})", Table::list(ids))
        });
        let ready = Table::ready(now, self.expired(now)) + &among;
        let most = self.table.most_attempts().await?;
        let queue = self.stored(queue);
        let rows = match self.table.kind() {
            DatabaseKind::MySql => {
                repeated(|| self.reserve_in_two_steps(queue, &ready, max, (now, most))).await?
            }
            kind => {
                let sql = self.reserve_in_one(kind, &ready, max, (now, most));
                let params = [Param::Text(queue)];
                let reserve = || async {
                    let rows = self.table.database.rows(&sql, &params).await;
                    rows.map_err(Failure::of_commit)
                };
                repeated(reserve).await?
            }
        };
        let mut taken: Vec<ReservedRow> = rows
            .into_iter()
            .map(|row| ReservedRow {
                ticket: Ticket {
                    id: number(&row, 0),
                    attempts: number(&row, 1),
                },
                is_last: number(&row, 1) >= most,
                payload: row.into_bytes(2),
            })
            .collect();
        taken.sort_by_key(|taken| taken.ticket.id);
        Ok(taken)
    }

    /// One statement, which is a transaction of its own.
    fn reserve_in_one(
        &self,
        kind: DatabaseKind,
        ready: &str,
        max: NonZeroUsize,
        (now, most): (UnixSeconds, i64),
    ) -> String {
        let (table, now) = (&self.table.name, now.0);
        let first = format!("select \"id\" from {table} where {ready} order by \"id\" limit {max}");
        let id = "cast(\"id\" as text)";
        let rest = "cast(\"attempts\" as text), \"payload\"";
        let set = format!("\"reserved_at\" = {now}, \"attempts\" = {}", one_more(most));
        if kind == DatabaseKind::Sqlite {
            return format!(
                "update {table} set {set} where \"id\" in ({first}) returning {id}, {rest}"
            );
        }
        // Rows that another worker has locked are passed by, as Laravel does.
        format!(
            "update {table} set {set} where \"id\" = any (array({first} for update skip locked)) returning {id}, {rest}"
        )
    }

    /// Reserves rows where a server cannot return what it has updated.
    ///
    /// The ids are read without locks, then the rows are locked by their ids: that locks rows and no gaps in an
    /// index, so PHP workers meet no deadlock, which since Laravel 12.54 fails a job.
    async fn reserve_in_two_steps(
        &self,
        queue: &str,
        ready: &str,
        max: NonZeroUsize,
        (now, most): (UnixSeconds, i64),
    ) -> Result<Vec<Row>, Failure> {
        let (table, database) = (&self.table.name, &self.table.database);
        // Others look at the same head of the queue: some of these rows will be theirs.
        let window = max.get() * 2;
        let sql = format!(
            "select {} from {table} where {ready} order by {table}.\"id\" limit {window}",
            database.as_text("id")
        );
        let seen = database.rows(&sql, &[queue.into()]).await?;
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let seen: Vec<i64> = seen.iter().map(|row| number(row, 0)).collect();
        let mut transaction = database.begin().await?;
        let sql = format!(
            "select {}, {}, \"payload\" from {table} \
             where \"id\" in ({}) and {ready} order by {table}.\"id\" limit {max}{}",
            database.as_text("id"),
            database.text_of(&one_more(most)),
            Table::list(&seen),
            self.table.lock_free_rows().await?
        );
        let rows = transaction.rows(&sql, &[queue.into()]).await?;
        if rows.is_empty() {
            return Ok(rows);
        }
        let ids: Vec<i64> = rows.iter().map(|row| number(row, 0)).collect();
        let sql = format!(
            "update {table} set \"reserved_at\" = {}, \"attempts\" = {} where \"id\" in ({})",
            now.0,
            one_more(most),
            Table::list(&ids)
        );
        transaction.execute(&sql, &[]).await?;
        commit(transaction).await?;
        Ok(rows)
    }

    fn job(
        &self,
        queue: &QueueName,
        taken: ReservedRow,
        now: UnixSeconds,
        choice: Option<usize>,
    ) -> ReservedJob {
        ReservedJob {
            delivery: None,
            queue: queue.clone(),
            payload: taken.payload.into(),
            attempts: if taken.is_last {
                ReservedJob::UNCOUNTABLE
            } else {
                number_of_attempts(taken.ticket.attempts)
            },
            lease: Some(now.plus(self.options.retry_after)),
            choice,
            ticket: taken.ticket.encode(),
        }
    }

    /// Notes when the next job of a queue becomes due, if a pop has come short.
    async fn note_next_due(
        &self,
        queue: &QueueName,
        now: UnixSeconds,
        room: NonZeroUsize,
        popped: &mut Popped,
    ) -> Result<(), Failure> {
        let found = popped.jobs.iter().filter(|job| job.queue == *queue).count();
        if found >= room.get() {
            return Ok(());
        }
        let database = &self.table.database;
        let sql = format!(
            "select {}, {} from {} where \"queue\" = ?",
            database.text_of(&format!(
                "min(case when \"reserved_at\" is null and \"available_at\" > {} then \"available_at\" end)",
                now.0
            )),
            database.text_of("min(\"reserved_at\")"),
            self.table.name
        );
        let rows = database.rows(&sql, &[self.stored(queue).into()]).await?;
        let first = |column| rows.first().and_then(|row| row.int(column));
        // Added here: a long `retry_after` would leave the range of PostgreSQL's column.
        let expires = first(1).map(|reserved| UnixSeconds(reserved).plus(self.options.retry_after));
        let due = first(0).map(UnixSeconds).into_iter().chain(expires).min();
        popped.next_due = popped.next_due.into_iter().chain(due).min();
        Ok(())
    }
}
