//! artisand's own lists: rows of the table whose queues no worker looks at.

use std::collections::HashMap;
use std::time::Duration;

use super::DatabaseQueue;
use super::effects::{ENDED, noted};
use super::step::{Failure, commit, repeated};
use super::table::{NEVER, NewRow, number};
use crate::connection::{DatabaseKind, LockPlace, Param, Row, Transaction};
use crate::queue::{Answer, Effect, Ledger, QueueName, Spool};
use crate::time::UnixSeconds;

/// Queue of the row that one transaction at a time locks, before what it guards.
const GUARD: &str = "artisand:guard:";

/// The holder of a lease: the row, the owner, and the second at which it ends.
struct Holder {
    id: i64,
    owner: String,
    end: i64,
}

impl Holder {
    fn of(row: &Row) -> Self {
        Self {
            id: number(row, 0),
            owner: row.text(1).unwrap_or_default().into_owned(),
            end: number(row, 2),
        }
    }
}

fn lease_row(spool: Spool) -> &'static str {
    match spool {
        Spool::FailedJobs => "artisand:failed-spool:lease",
        Spool::FollowUps => "artisand:follow-ups:lease",
    }
}

impl DatabaseQueue {
    /// Begins a transaction that no other one of the same purpose overlaps.
    ///
    /// `SQLite` has one writer anyway. Elsewhere a row is locked, which is made at first and stays: of two processes
    /// that make it at the same time, the later one sees and locks the row of the earlier one, too.
    pub(super) async fn begin_alone(&self, purpose: &str) -> Result<Transaction, Failure> {
        let database = &self.table.database;
        if self.table.kind() == DatabaseKind::Sqlite {
            return Ok(database.begin().await?);
        }
        let queue = format!("{GUARD}{purpose}");
        let sql = format!(
            "select {} from {} where \"queue\" = ? order by \"id\" for update",
            database.as_text("id"),
            self.table.name
        );
        loop {
            let mut transaction = database.begin().await?;
            if !transaction.rows(&sql, &[(&queue).into()]).await?.is_empty() {
                return Ok(transaction);
            }
            transaction.rollback().await?;
            let row = NewRow {
                queue: &queue,
                payload: b"{}",
                due: UnixSeconds(NEVER),
            };
            self.table.insert_alone(&[row], self.now()).await?;
        }
    }

    async fn holder(
        &self,
        transaction: &mut Transaction,
        spool: Spool,
    ) -> Result<Option<Holder>, Failure> {
        let sql = self.holder_query();
        let rows = transaction.rows(&sql, &[lease_row(spool).into()]).await?;
        Ok(rows.first().map(Holder::of))
    }

    fn holder_query(&self) -> String {
        let database = &self.table.database;
        format!(
            "select {}, \"payload\", {} from {} where \"queue\" = ?",
            database.as_text("id"),
            database.as_text("available_at"),
            self.table.name
        )
    }

    /// Whether `owner` has the lease: only read, as the caller may be within a transaction that keeps all others from
    /// writing.
    async fn is_holder(&self, spool: Spool, owner: &str) -> Result<bool, Failure> {
        let sql = self.holder_query();
        let database = &self.table.database;
        let rows = database.rows(&sql, &[lease_row(spool).into()]).await?;
        let holder = rows.first().map(Holder::of);
        Ok(holder.is_some_and(|holder| holder.owner == owner && holder.end > self.now().0))
    }

    /// Gives the lease of a list to `owner` until `end` if `may` says so of the owner whose lease has not ended.
    async fn lease_if(
        &self,
        spool: Spool,
        owner: &str,
        lives: Duration,
        may: fn(Option<&str>, &str) -> bool,
    ) -> Result<bool, Failure> {
        let mut transaction = self.begin_alone("lease").await?;
        let now = self.now();
        let holder = self.holder(&mut transaction, spool).await?;
        let alive = holder.as_ref().filter(|holder| holder.end > now.0);
        if !may(alive.map(|holder| holder.owner.as_str()), owner) {
            return Ok(false);
        }
        // A whole second more: the row counts in seconds.
        let end = now.plus(lives + Duration::from_secs(1));
        match holder {
            None => {
                let row = NewRow {
                    queue: lease_row(spool),
                    payload: owner.as_bytes(),
                    due: end,
                };
                self.table.insert(&mut transaction, &[row], now).await?;
            }
            Some(holder) => {
                let sql = format!(
                    "update {} set \"payload\" = ?, \"available_at\" = {} where \"id\" = {}",
                    self.table.name, end.0, holder.id
                );
                transaction.execute(&sql, &[owner.into()]).await?;
            }
        }
        commit(transaction).await?;
        Ok(true)
    }

    async fn give_up_lease(&self, spool: Spool, owner: &str) -> Result<(), Failure> {
        let mut transaction = self.begin_alone("lease").await?;
        let holder = self.holder(&mut transaction, spool).await?;
        if let Some(holder) = holder.filter(|holder| holder.owner == owner) {
            self.table.delete(&mut transaction, &[holder.id]).await?;
        }
        commit(transaction).await
    }

    async fn ack_now(
        &self,
        spool: Spool,
        owner: &str,
        records: &[Vec<u8>],
        effects: &[Effect],
    ) -> Result<u64, Failure> {
        let mut transaction = self.begin_alone("lease").await?;
        let now = self.now();
        let holder = self.holder(&mut transaction, spool).await?;
        if holder.is_none_or(|holder| holder.owner != owner || holder.end <= now.0) {
            return Ok(0);
        }
        let ids = self.record_ids(&mut transaction, spool, records).await?;
        if ids.is_empty() {
            return Ok(0);
        }
        self.table.delete(&mut transaction, &ids).await?;
        let pushed = self
            .apply(&mut transaction, effects.iter(), None, now)
            .await?;
        commit(transaction).await?;
        self.tell_pushed(pushed);
        self.wake.now();
        Ok(ids.len() as u64)
    }

    async fn noted_ends(&self, ids: &[String]) -> Result<Vec<Option<UnixSeconds>>, Failure> {
        let mut at = HashMap::new();
        let queues: Vec<String> = ids.iter().map(|id| noted(ENDED, id)).collect();
        for chunk in queues.chunks(500) {
            let sql = format!(
                "select \"queue\", \"payload\" from {} where \"queue\" in ({}) and \"available_at\" > {}",
                self.table.name,
                vec!["?"; chunk.len()].join(", "),
                self.now().0
            );
            let params: Vec<_> = chunk.iter().map(Param::from).collect();
            for row in self.table.database.rows(&sql, &params).await? {
                let second = row.text(1).and_then(|second| second.parse().ok());
                let queue = row.text(0).unwrap_or_default().into_owned();
                at.insert(queue, second.map(UnixSeconds));
            }
        }
        let ends = queues.iter().map(|queue| at.get(queue).copied().flatten());
        Ok(ends.collect())
    }

    async fn delete_ends(&self, ids: &[String]) -> Result<(), Failure> {
        let queues: Vec<String> = ids.iter().map(|id| noted(ENDED, id)).collect();
        for chunk in queues.chunks(500) {
            let sql = format!(
                "delete from {} where \"queue\" in ({})",
                self.table.name,
                vec!["?"; chunk.len()].join(", ")
            );
            let params: Vec<_> = chunk.iter().map(Param::from).collect();
            self.table.database.execute(&sql, &params).await?;
        }
        Ok(())
    }

    /// The rows of records, each once.
    async fn record_ids(
        &self,
        transaction: &mut Transaction,
        spool: Spool,
        records: &[Vec<u8>],
    ) -> Result<Vec<i64>, Failure> {
        let mut ids = Vec::with_capacity(records.len());
        for chunk in parts(records) {
            let texts: Vec<_> = chunk
                .iter()
                .map(|record| String::from_utf8_lossy(record))
                .collect();
            let sql = format!(
                "select {}, \"payload\" from {} where \"queue\" = ? and \"payload\" in ({}) order by \"id\"",
                self.table.database.as_text("id"),
                self.table.name,
                vec!["?"; chunk.len()].join(", ")
            );
            let mut params = vec![Param::Text(spool.key())];
            params.extend(texts.iter().map(|text| Param::Text(text)));
            let rows = transaction.rows(&sql, &params).await?;
            for record in chunk {
                // The server may find texts equal that differ, as in upper and lower case.
                let is_its =
                    |row: &&Row| row.bytes(1) == Some(record) && !ids.contains(&number(row, 0));
                let id = rows.iter().find(is_its).map(|row| number(row, 0));
                ids.extend(id);
            }
        }
        Ok(ids)
    }
}

/// Most bytes of the records that one statement names: a server takes none longer than its `max_allowed_packet`.
const PART: usize = 256 * 1024;

/// Records in parts of that many bytes at most; a longer record is a part of its own.
fn parts(records: &[Vec<u8>]) -> impl Iterator<Item = &[Vec<u8>]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fit = |record: &&Vec<u8>| {
            bytes += record.len();
            bytes <= PART
        };
        let count = rest.iter().take(500).take_while(fit).count();
        let (part, behind) = rest.split_at(count.max(1));
        rest = behind;
        Some(part)
    })
}

impl Ledger for DatabaseQueue {
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        Box::pin(async move {
            let sql = format!(
                "select \"payload\" from {} where \"queue\" = ? order by \"id\" limit {max} offset {from}",
                self.table.name
            );
            let rows = self.table.database.rows(&sql, &[spool.key().into()]).await;
            let rows = rows
                .map_err(Failure::from)
                .map_err(self.failed("read", spool.key()))?;
            Ok(rows.into_iter().map(|row| row.into_bytes(0)).collect())
        })
    }

    fn length(&self, spool: Spool) -> Answer<'_, u64> {
        Box::pin(async move {
            let count = self.count_rows(spool.key(), "1 = 1").await;
            count.map_err(self.failed("count", spool.key()))
        })
    }

    fn ack<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let removed = repeated(|| self.ack_now(spool, owner, records, effects)).await;
            removed.map_err(self.failed("remove records of", spool.key()))
        })
    }

    fn lease<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        Box::pin(async move {
            let may = |holder: Option<&str>, owner: &str| holder.is_none_or(|other| other == owner);
            let leased = repeated(|| self.lease_if(spool, owner, lives, may)).await;
            leased.map_err(self.failed("lease", spool.key()))
        })
    }

    fn keep<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        Box::pin(async move {
            let may = |holder: Option<&str>, owner: &str| holder == Some(owner);
            let kept = repeated(|| self.lease_if(spool, owner, lives, may)).await;
            kept.map_err(self.failed("keep the lease of", spool.key()))
        })
    }

    fn confirm_lease<'a>(&'a self, spool: Spool, owner: &'a str, _: Duration) -> Answer<'a, bool> {
        Box::pin(async move {
            let has = self.is_holder(spool, owner).await;
            has.map_err(self.failed("look at the lease of", spool.key()))
        })
    }

    fn unlease<'a>(&'a self, spool: Spool, owner: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let given_up = repeated(|| self.give_up_lease(spool, owner)).await;
            given_up.map_err(self.failed("give up the lease of", spool.key()))
        })
    }

    fn keep_error<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> Answer<'a, ()> {
        // A row per error would make the table longer for a day, and its length is how apps see their backlog.
        Box::pin(std::future::ready(Ok(())))
    }

    fn last_error<'a>(&'a self, _: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn note_end<'a>(
        &'a self,
        id: &'a str,
        at: UnixSeconds,
        effects: &'a [Effect],
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let failed = self.options.failed.as_ref();
            let mut ended = repeated(|| self.note_end_now(id, at, effects, failed)).await;
            if failed.is_some() && ended.as_ref().is_err_and(|failure| !failure.is_unknown) {
                // The table of failed jobs may be what refuses; the recorder sees to it.
                ended = repeated(|| self.note_end_now(id, at, effects, None)).await;
            }
            ended.map_err(self.failed("note the end of a job in", ENDED))
        })
    }

    fn ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<UnixSeconds>>> {
        Box::pin(async move {
            let ends = self.noted_ends(ids).await;
            ends.map_err(self.failed("look up ends of jobs in", ENDED))
        })
    }

    fn forget_ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, ()> {
        Box::pin(async move {
            let forgotten = repeated(|| self.delete_ends(ids)).await;
            forgotten.map_err(self.failed("forget ends of jobs in", ENDED))
        })
    }

    fn holds(&self, _queue: &QueueName, place: &LockPlace) -> bool {
        let LockPlace::Database(place) = place else {
            return false;
        };
        place.database.is_same(&self.table.database)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::connection::{Database, DatabaseOptions};
    use crate::queue::DatabaseQueueOptions;
    use crate::time::Clock;

    const NOW: i64 = 1_800_000_000;
    const LIVES: Duration = Duration::from_secs(10);

    #[test]
    fn records_are_looked_for_in_parts() {
        let counts =
            |records: &[Vec<u8>]| -> Vec<usize> { parts(records).map(<[_]>::len).collect() };
        let of = |bytes: usize| vec![b'a'; bytes];
        assert_eq!(counts(&[]), [0; 0]);
        assert_eq!(counts(&vec![of(1); 501]), [500, 1]);
        let records = [PART / 2, PART / 2, 1, 2 * PART, 1].map(of);
        assert_eq!(counts(&records), [2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn whether_a_lease_is_held_can_be_asked_while_the_file_is_locked_for_writing() {
        let directory = tempfile::tempdir().unwrap();
        let options = DatabaseOptions {
            database: directory
                .path()
                .join("database.sqlite")
                .display()
                .to_string(),
            ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
        };
        std::fs::File::create(&options.database).unwrap();
        let database = Database::new(&options).unwrap();
        let table = "create table \"jobs\" (\"id\" integer primary key autoincrement not null, \
                     \"queue\" varchar not null, \"payload\" text not null, \"attempts\" integer not null, \
                     \"reserved_at\" integer, \"available_at\" integer not null, \"created_at\" integer not null)";
        database.execute(table, &[]).await.unwrap();
        let after = |seconds: i64| {
            let of_queue = DatabaseQueueOptions {
                clock: Clock::Fixed(UnixSeconds(NOW + seconds)),
                ..DatabaseQueueOptions::default()
            };
            DatabaseQueue::new(&options, of_queue).unwrap()
        };
        let spool = Spool::FollowUps;
        assert!(after(0).lease(spool, "me", LIVES).await.unwrap());
        // As while a batch in the same file is counted.
        let transaction = database.begin().await.unwrap();
        for (seconds, owner, expected) in [
            (0, "me", true),
            (6, "me", true),
            (10, "me", true),
            (6, "other", false),
            (11, "me", false),
        ] {
            let queue = after(seconds);
            let asked = tokio::time::timeout(
                Duration::from_secs(5),
                queue.confirm_lease(spool, owner, LIVES),
            );
            let has = asked.await.expect("it waits for no lock").unwrap();
            assert_eq!(has, expected, "{owner} after {seconds} s");
        }
        transaction.rollback().await.unwrap();
        // A renewal always counts from its own moment.
        assert!(after(3).keep(spool, "me", LIVES).await.unwrap());
        assert!(after(13).confirm_lease(spool, "me", LIVES).await.unwrap());
        assert!(!after(13).lease(spool, "other", LIVES).await.unwrap());
    }
}
