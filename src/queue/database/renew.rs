//! Renews reservations, also while a handler blocks the thread of the jobs.
//!
//! A connection waits for the thread of the runtime that has opened it. Renewals from another runtime, on which no
//! handler runs, therefore have connections of their own.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::step::{Failure, commit, repeated};
use super::table::{Table, Ticket};
use super::{DatabaseQueue, MOST_AT_ONCE};
use crate::connection::{self, Database};
use crate::queue::{Error, Held, ReservedJob};
use crate::time::UnixSeconds;

/// Most connections for renewals from another runtime: a queue whose rows are locked leaves one to the others.
const CONNECTIONS: u32 = 2;

impl DatabaseQueue {
    /// The connections for a renewal from this runtime, of which none is open before the first one.
    async fn database_to_renew(&self) -> Result<&Database, connection::Error> {
        if Handle::current().id() == self.runtime {
            return Ok(&self.table.database);
        }
        let open = || std::future::ready(self.table.database.another(CONNECTIONS));
        self.renewing.get_or_try_init(open).await
    }

    pub(super) async fn renew_jobs(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Result<Vec<Held>, Error> {
        let end = now.plus(self.options.retry_after);
        let mut held = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(MOST_AT_ONCE.get()) {
            let renewed = repeated(|| self.renew_together(chunk, now)).await;
            let renewed = renewed.map_err(self.failed("renew", chunk[0].queue.as_str()))?;
            held.extend(renewed.into_iter().map(|is_held| {
                if is_held {
                    Held::Until(end)
                } else {
                    Held::Lost
                }
            }));
        }
        Ok(held)
    }

    /// Whether each of the reservations is still held, and lasts now.
    async fn renew_together(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Result<Vec<bool>, Failure> {
        let tickets: Vec<_> = jobs.iter().map(|job| Ticket::of(job)).collect();
        let mut transaction = self.database_to_renew().await?.begin().await?;
        let held = self.lock_rows(&mut transaction, &tickets).await?;
        let is_held = |ticket: &Ticket| held.get(&ticket.id).copied() == Some(ticket.attempts);
        let mut ids: Vec<i64> = tickets
            .iter()
            .flatten()
            .filter(|ticket| is_held(ticket))
            .map(|ticket| ticket.id)
            .collect();
        ids.sort_unstable();
        if !ids.is_empty() {
            let sql = format!(
                "update {} set \"reserved_at\" = {} where \"id\" in ({})",
                self.table.name,
                now.0,
                Table::list(&ids)
            );
            transaction.execute(&sql, &[]).await?;
        }
        commit(transaction).await?;
        Ok(tickets
            .iter()
            .map(|ticket| ticket.as_ref().is_some_and(is_held))
            .collect())
    }
}
