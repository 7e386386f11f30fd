//! Looks at rows and counts them, and empties queues and quarantines.

use super::DatabaseQueue;
use super::step::{Failure, commit};
use super::table::{OWN, QUARANTINE, Table, named, number, quarantine};
use crate::queue::{Fate, Place, QueueName, Sizes};
use crate::time::UnixSeconds;

/// Rows of a quarantine that are read at once.
const PAGE: usize = 500;

/// The rows of a place, as a condition, and the order in which they stand.
fn place_of(place: Place, now: UnixSeconds) -> (String, &'static str) {
    let now = now.0;
    match place {
        Place::Pending => (
            format!("\"reserved_at\" is null and \"available_at\" <= {now}"),
            "\"id\"",
        ),
        Place::Delayed => (
            format!("\"reserved_at\" is null and \"available_at\" > {now}"),
            "\"available_at\", \"id\"",
        ),
        Place::Reserved => (
            "\"reserved_at\" is not null".to_owned(),
            "\"reserved_at\", \"id\"",
        ),
        Place::Quarantine => ("1 = 1".to_owned(), "\"id\""),
    }
}

impl DatabaseQueue {
    /// The queue whose rows a place of a queue holds.
    fn holding(&self, queue: &QueueName, place: Place) -> String {
        match place {
            Place::Quarantine => quarantine(self.stored(queue)),
            _ => self.stored(queue).to_owned(),
        }
    }

    pub(super) async fn count_rows(&self, queue: &str, condition: &str) -> Result<u64, Failure> {
        let database = &self.table.database;
        let sql = format!(
            "select {} from {} where \"queue\" = ? and {condition}",
            database.text_of("count(*)"),
            self.table.name
        );
        let rows = database.rows(&sql, &[queue.into()]).await?;
        let count = rows.first().map_or(0, |row| number(row, 0));
        Ok(u64::try_from(count).unwrap_or(0))
    }

    pub(super) async fn count(&self, queue: &QueueName) -> Result<Sizes, Failure> {
        let now = self.now();
        let count = async |place: Place| {
            let (condition, _) = place_of(place, now);
            self.count_rows(&self.holding(queue, place), &condition)
                .await
        };
        Ok(Sizes {
            pending: count(Place::Pending).await?,
            delayed: count(Place::Delayed).await?,
            reserved: count(Place::Reserved).await?,
            quarantined: count(Place::Quarantine).await?,
        })
    }

    /// When the pending job was due that has been so for the longest time.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\DatabaseQueue::creationTimeOfOldestPendingJob`.
    pub(super) async fn earliest(&self, queue: &QueueName) -> Result<Option<UnixSeconds>, Failure> {
        let (condition, _) = place_of(Place::Pending, self.now());
        let database = &self.table.database;
        let sql = format!(
            "select {} from {} where \"queue\" = ? and {condition}",
            database.text_of("min(\"available_at\")"),
            self.table.name
        );
        let rows = database.rows(&sql, &[self.stored(queue).into()]).await?;
        Ok(rows.first().and_then(|row| row.int(0)).map(UnixSeconds))
    }

    /// Counts jobs whose reservation has ended.
    pub(super) async fn count_ended(
        &self,
        queue: &QueueName,
        now: UnixSeconds,
    ) -> Result<u64, Failure> {
        let condition = format!("\"reserved_at\" <= {}", self.expired(now));
        self.count_rows(self.stored(queue), &condition).await
    }

    pub(super) async fn payloads(
        &self,
        queue: &QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let (condition, order) = place_of(place, self.now());
        let sql = format!(
            "select \"payload\" from {} where \"queue\" = ? and {condition} order by {order} limit {limit} offset {from}",
            self.table.name
        );
        let queue = self.holding(queue, place);
        let rows = self.table.database.rows(&sql, &[(&queue).into()]).await?;
        Ok(rows.into_iter().map(|row| row.into_bytes(0)).collect())
    }

    /// Deletes the jobs whose reservation has ended, and those that have none.
    pub(super) async fn delete_all(
        &self,
        queue: &QueueName,
        now: UnixSeconds,
    ) -> Result<u64, Failure> {
        let sql = format!(
            "delete from {} where \"queue\" = ? and (\"reserved_at\" is null or \"reserved_at\" <= {})",
            self.table.name,
            self.expired(now)
        );
        let deleted = self
            .table
            .database
            .execute(&sql, &[self.stored(queue).into()])
            .await;
        deleted.map_err(Failure::of_commit)
    }

    /// Names of all queues that hold jobs.
    pub(super) async fn names(&self) -> Result<Vec<QueueName>, Failure> {
        let sql = format!(
            "select distinct \"queue\" from {} order by \"queue\"",
            self.table.name
        );
        let rows = self.table.database.rows(&sql, &[]).await?;
        let mut names: Vec<_> = (rows.iter().filter_map(|row| row.text(0)))
            .filter(|queue| !queue.starts_with(OWN))
            .map(|queue| named(queue.strip_suffix(QUARANTINE).unwrap_or(&queue)))
            .collect();
        names.dedup();
        Ok(names)
    }

    pub(super) async fn with_quarantine(&self) -> Result<Vec<QueueName>, Failure> {
        let sql = format!(
            "select distinct \"queue\" from {} where \"queue\" like ? order by \"queue\"",
            self.table.name
        );
        let ending = format!("%{QUARANTINE}");
        let rows = self.table.database.rows(&sql, &[(&ending).into()]).await?;
        let names = rows.iter().filter_map(|row| {
            let queue = row.text(0)?;
            queue.strip_suffix(QUARANTINE).map(named)
        });
        Ok(names.collect())
    }

    pub(super) async fn take_from_quarantine(
        &self,
        queue: &QueueName,
        payloads: &[Vec<u8>],
        fate: Fate,
    ) -> Result<u64, Failure> {
        let held = self.holding(queue, Place::Quarantine);
        let mut transaction = self.begin_alone("quarantine").await?;
        let mut wanted: Vec<&Vec<u8>> = payloads.iter().collect();
        let (mut ids, mut last) = (Vec::new(), 0);
        while !wanted.is_empty() {
            let sql = format!(
                "select {}, \"payload\" from {} where \"queue\" = ? and \"id\" > {last} order by {}.\"id\" limit {PAGE}",
                self.table.database.as_text("id"),
                self.table.name,
                self.table.name
            );
            let rows = transaction.rows(&sql, &[(&held).into()]).await?;
            for row in &rows {
                last = number(row, 0);
                let place = wanted
                    .iter()
                    .position(|wanted| row.bytes(1) == Some(wanted));
                if let Some(place) = place {
                    wanted.swap_remove(place);
                    ids.push(last);
                }
            }
            if rows.len() < PAGE {
                break;
            }
        }
        if ids.is_empty() {
            return Ok(0);
        }
        match fate {
            Fate::Delete => self.table.delete(&mut transaction, &ids).await?,
            Fate::Requeue => {
                let sql = format!(
                    "update {} set \"queue\" = ?, \"available_at\" = {} where \"id\" in ({})",
                    self.table.name,
                    self.now().0,
                    Table::list(&ids)
                );
                transaction
                    .execute(&sql, &[self.stored(queue).into()])
                    .await?;
            }
        }
        commit(transaction).await?;
        Ok(ids.len() as u64)
    }
}
