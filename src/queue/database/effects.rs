//! Effects of a job's end, and pushes, within a transaction.

use std::time::Duration;

use super::DatabaseQueue;
use super::step::{Failure, commit};
use super::table::{NEVER, NewRow};
use crate::connection::{DatabaseKind, DatabaseLock, FailedJobsTable, LockPlace, Transaction};
use crate::queue::ledger::END_KEPT;
use crate::queue::{Claim, Effect, Once, Push, PushedOnce, QueueName, Unlock};
use crate::shown::hex;
use crate::time::UnixSeconds;

/// Queue of the rows that remember pushes that happen once, before the identity.
const PUSHED: &str = "artisand:pushed:";

/// Queue of the rows that note the ends of jobs of other servers, before the identity.
pub(super) const ENDED: &str = "artisand:ended:";

/// Chance in per cent that a push sweeps what is no longer to be remembered.
const SWEEP: u8 = 2;

impl DatabaseQueue {
    /// Applies effects, and returns the pushes of them whose locks were free; records of failed jobs become rows of
    /// `failed`, or else notes for the recorder.
    pub(super) async fn apply<'e>(
        &self,
        transaction: &mut Transaction,
        effects: impl Iterator<Item = &'e Effect>,
        failed: Option<&FailedJobsTable>,
        now: UnixSeconds,
    ) -> Result<Vec<&'e Push>, Failure> {
        // Kept while rows refer to them.
        let mut records: Vec<(&'static str, Vec<u8>)> = Vec::new();
        let mut pushes: Vec<&Push> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Push(push) => {
                    if self.claims(transaction, push, now).await? {
                        pushes.push(push);
                    }
                }
                Effect::Unlock(unlock) => Self::unlock(transaction, unlock).await?,
                Effect::Record(job) => {
                    if let Some(table) = failed
                        && (table.insert(&self.table.database, transaction, job)).await?
                    {
                        continue;
                    }
                    records.push((crate::queue::Spool::FailedJobs.key(), job.to_json()));
                }
                Effect::Append(spool, record) => records.push((spool.key(), record.clone())),
                // The job's row goes there itself.
                Effect::Quarantine => {}
            }
        }
        let jobs = pushes.iter().map(|push| self.row(push, now));
        let noted = records.iter().map(|(queue, record)| NewRow {
            queue,
            payload: record,
            due: UnixSeconds(NEVER),
        });
        let rows: Vec<_> = jobs.chain(noted).collect();
        self.table.insert(transaction, &rows, now).await?;
        Ok(pushes)
    }

    fn row<'a>(&'a self, push: &'a Push, now: UnixSeconds) -> NewRow<'a> {
        NewRow {
            queue: self.stored(&push.queue),
            payload: &push.payload,
            due: push.due.unwrap_or(now),
        }
    }

    /// Takes the lock of a push; false if it is taken already. True for a push without a lock.
    async fn claims(
        &self,
        transaction: &mut Transaction,
        push: &Push,
        now: UnixSeconds,
    ) -> Result<bool, Failure> {
        let Some(Claim { place, owner, ttl }) = &push.claim else {
            return Ok(true);
        };
        let LockPlace::Database(place) = place else {
            return Ok(true);
        };
        let [insert, update] = self.claim_statements(place, *ttl, now);
        let key = &place.key;
        if let Err(error) = place.database.check_key(key) {
            // As in Laravel, whose insert fails: an error would for ever keep the job before from ending.
            tracing::error!(
                %error,
                "the lock of a unique job cannot be taken: the job is not pushed"
            );
            return Ok(false);
        }
        let params = [key.into(), owner.into()];
        if transaction.execute(&insert, &params).await? == 1 {
            return Ok(true);
        }
        let params = [owner.into(), key.into()];
        Ok(transaction.execute(&update, &params).await? > 0)
    }

    /// The statements that take a lock: with key and owner, and if that changes nothing, with owner and key.
    ///
    /// As Laravel takes locks (docs/protocol/cache.md 5), but for a lock that its owner has already: on Redis, too, it
    /// is taken.
    pub(super) fn claim_statements(
        &self,
        place: &DatabaseLock,
        ttl: Duration,
        now: UnixSeconds,
    ) -> [String; 2] {
        let end = now.plus(place.lifetime(ttl)).0.min(NEVER);
        let (insert, ignored) = match self.table.kind() {
            DatabaseKind::MySql => ("insert ignore", ""),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => ("insert", " on conflict do nothing"),
        };
        let table = &place.table;
        [
            format!(
                "{insert} into {table} (\"key\", \"owner\", \"expiration\") values (?, ?, {end}){ignored}"
            ),
            format!(
                "update {table} set \"owner\" = ?, \"expiration\" = {end} where \"key\" = ? and \"expiration\" <= {}",
                now.0
            ),
        ]
    }

    async fn unlock(transaction: &mut Transaction, unlock: &Unlock) -> Result<(), Failure> {
        let LockPlace::Database(place) = &unlock.place else {
            return Ok(());
        };
        let sql = format!("delete from {} where \"key\" = ?", place.table);
        match &unlock.owner {
            None => transaction.execute(&sql, &[(&place.key).into()]).await?,
            Some(owner) => {
                let sql = format!("{sql} and \"owner\" = ?");
                let params = [(&place.key).into(), owner.into()];
                transaction.execute(&sql, &params).await?
            }
        };
        Ok(())
    }

    /// Pushes jobs within a transaction, but for those whose lock is taken.
    pub(super) async fn push_in(
        &self,
        transaction: &mut Transaction,
        pushes: &[Push],
    ) -> Result<(), Failure> {
        let now = self.now();
        let mut rows = Vec::with_capacity(pushes.len());
        for push in pushes {
            if self.claims(transaction, push, now).await? {
                rows.push(self.row(push, now));
            }
        }
        self.table.insert(transaction, &rows, now).await
    }

    /// Pushes payloads, which become due at once or at `due`.
    pub(super) async fn push_payloads(
        &self,
        queue: &QueueName,
        payloads: &[Vec<u8>],
        due: Option<UnixSeconds>,
    ) -> Result<(), Failure> {
        let now = self.now();
        let rows: Vec<_> = payloads
            .iter()
            .map(|payload| NewRow {
                queue: self.stored(queue),
                payload,
                due: due.unwrap_or(now),
            })
            .collect();
        if !rows.is_empty() {
            self.table.insert_alone(&rows, now).await?;
            self.wake.now();
            for payload in payloads {
                self.tell_push(queue, payload);
            }
        }
        Ok(())
    }

    /// What was noted of a push, if it is remembered.
    pub(super) async fn pushed_note(&self, id: &str) -> Result<Option<String>, Failure> {
        let sql = self.note_query();
        let rows = self
            .table
            .database
            .rows(&sql, &[(&noted(PUSHED, id)).into()])
            .await?;
        Ok(rows
            .first()
            .map(|row| row.text(0).unwrap_or_default().into_owned()))
    }

    fn note_query(&self) -> String {
        format!(
            "select \"payload\" from {} where \"queue\" = ? and \"available_at\" > {}",
            self.table.name,
            self.now().0
        )
    }

    pub(super) async fn push_unless_pushed(
        &self,
        pushes: &[Push],
        once: Once<'_>,
    ) -> Result<PushedOnce, Failure> {
        let mut transaction = self.begin_alone("push").await?;
        let (now, identity) = (self.now(), noted(PUSHED, once.id));
        let rows = transaction
            .rows(&self.note_query(), &[(&identity).into()])
            .await?;
        if let Some(row) = rows.first() {
            let note = row.text(0).unwrap_or_default().into_owned();
            return Ok(PushedOnce::Before { note });
        }
        let mut free = Vec::with_capacity(pushes.len());
        for push in pushes {
            if self.claims(&mut transaction, push, now).await? {
                free.push(push);
            }
        }
        let locked = pushes.len() - free.len();
        let mut rows: Vec<_> = free.iter().map(|push| self.row(push, now)).collect();
        // Nothing is remembered if every lock was taken.
        if locked == 0 || !free.is_empty() {
            rows.push(NewRow {
                queue: &identity,
                payload: if locked == 0 {
                    once.note.as_bytes()
                } else {
                    b""
                },
                due: now.plus(once.remembered),
            });
        }
        self.forget_old(&mut transaction, PUSHED, &identity, now)
            .await?;
        self.table.insert(&mut transaction, &rows, now).await?;
        commit(transaction).await?;
        self.tell_pushed(free);
        Ok(PushedOnce::Now { locked })
    }

    /// Notes the end of a job of another server, with its effects, unless it is noted.
    pub(super) async fn note_end_now(
        &self,
        id: &str,
        at: UnixSeconds,
        effects: &[Effect],
        failed: Option<&FailedJobsTable>,
    ) -> Result<(), Failure> {
        let mut transaction = self.begin_alone("push").await?;
        let (now, identity, at) = (self.now(), noted(ENDED, id), at.to_string());
        let rows = transaction
            .rows(&self.note_query(), &[(&identity).into()])
            .await?;
        if !rows.is_empty() {
            return Ok(());
        }
        let pushed = self
            .apply(&mut transaction, effects.iter(), failed, now)
            .await?;
        self.forget_old(&mut transaction, ENDED, &identity, now)
            .await?;
        let row = NewRow {
            queue: &identity,
            payload: at.as_bytes(),
            due: now.plus(END_KEPT),
        };
        self.table.insert(&mut transaction, &[row], now).await?;
        commit(transaction).await?;
        self.tell_pushed(pushed);
        self.wake.now();
        Ok(())
    }

    /// Deletes what was to be remembered until now.
    async fn forget_old(
        &self,
        transaction: &mut Transaction,
        kind: &str,
        identity: &str,
        now: UnixSeconds,
    ) -> Result<(), Failure> {
        let (condition, value) = if fastrand::u8(0..100) < SWEEP {
            ("like", format!("{kind}%"))
        } else {
            ("=", identity.to_owned())
        };
        let sql = format!(
            "delete from {} where \"queue\" {condition} ? and \"available_at\" <= {}",
            self.table.name, now.0
        );
        transaction.execute(&sql, &[(&value).into()]).await?;
        Ok(())
    }
}

/// The queue of the row that remembers something by its identity, within the width of the column.
///
/// A digest, because servers compare texts by their collation: to `MySQL`, `José` and `jose ` may be the same.
pub(super) fn noted(kind: &str, id: &str) -> String {
    use sha2::Digest as _;
    format!("{kind}{}", hex(&sha2::Sha256::digest(id.as_bytes())))
}
