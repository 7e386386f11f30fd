//! Renews reservations, also while a handler blocks the thread of the jobs.
//!
//! A connection waits for the thread of the runtime that has opened it. Renewals from another runtime, on which no
//! handler runs, therefore have connections of their own.
//!
//! A settlement that is in the middle of its transaction then keeps the rows of its jobs locked, and a renewal that
//! waited for one of them would cost all other jobs their reservations. So rows of settlements of this process are
//! marked, and passed by while they are locked: their settlement says what becomes of them. All other locks are waited
//! for, which are those of other programs and last for moments. A transaction on `SQLite` locks the whole file: no other
//! worker takes a job while it lasts, but then one may be faster than the renewal.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::step::{Failure, commit, repeated};
use super::table::{Table, Ticket};
use super::{DatabaseQueue, MOST_AT_ONCE};
use crate::connection::{self, Database, DatabaseKind, Transaction};
use crate::queue::{Error, Held, ReservedJob};
use crate::time::UnixSeconds;

/// Most connections for renewals from another runtime: a queue whose rows are locked leaves one to the others.
const CONNECTIONS: u32 = 2;
/// Most rows that are renewed in one transaction where each takes a statement of its own.
const ONE_BY_ONE: usize = 32;

impl DatabaseQueue {
    /// The connections for a renewal from this runtime; own ones are opened by the first that needs them.
    async fn database_to_renew(&self) -> Result<&Database, connection::Error> {
        if self.pops_on.get() == Some(&Handle::current().id()) {
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
        // Their rows are locked until the last of them is renewed.
        let together = match self.table.kind() {
            DatabaseKind::MySql => ONE_BY_ONE,
            _ => MOST_AT_ONCE.get(),
        };
        for chunk in jobs.chunks(together) {
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

    /// Whether each of the reservations is still held, and lasts now. One that is being settled counts as held.
    async fn renew_together(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Result<Vec<bool>, Failure> {
        let tickets: Vec<_> = jobs.iter().map(|job| Ticket::of(job)).collect();
        let mut sorted: Vec<Ticket> = tickets.iter().copied().flatten().collect();
        // Settlements lock rows in this order, too: neither waits for the other then.
        sorted.sort_unstable_by_key(|ticket| ticket.id);
        let mut transaction = self.database_to_renew().await?.begin().await?;
        let held = if self.table.kind() == DatabaseKind::MySql {
            self.renew_each(&mut transaction, &sorted, now).await?
        } else {
            self.renew_all(&mut transaction, &sorted, now).await?
        };
        commit(transaction).await?;
        let is_held = |ticket: Ticket| held.contains(&ticket.id);
        let held = tickets.iter().map(|ticket| ticket.is_some_and(is_held));
        Ok(held.collect())
    }

    /// Renews reservations one by one, but for those whose rows are marked; ids of those that are held.
    ///
    /// Each row is found by its key alone. For a list of keys the servers may read, and lock, a short table as a whole.
    async fn renew_each(
        &self,
        transaction: &mut Transaction,
        tickets: &[Ticket],
        now: UnixSeconds,
    ) -> Result<HashSet<i64>, Failure> {
        let mut held = HashSet::with_capacity(tickets.len());
        for ticket in tickets {
            let Ticket { id, attempts } = ticket;
            let sql = format!(
                "update {} set \"reserved_at\" = {} \
                 where \"id\" = {id} and \"attempts\" = {attempts} and \"reserved_at\" is not null",
                self.table.name, now.0
            );
            if self.marks.has(ticket) || transaction.execute(&sql, &[]).await? > 0 {
                held.insert(*id);
            }
        }
        Ok(held)
    }

    /// Renews reservations together, but for those whose rows are marked and locked; ids of those that are held.
    async fn renew_all(
        &self,
        transaction: &mut Transaction,
        tickets: &[Ticket],
        now: UnixSeconds,
    ) -> Result<HashSet<i64>, Failure> {
        let is_marked = |ticket: &Ticket| self.marks.has(ticket);
        let (marked, free): (Vec<_>, Vec<_>) = tickets.iter().copied().partition(is_marked);
        let waits = self.table.database.for_update();
        let passes = match self.table.kind() {
            DatabaseKind::Postgres => " for update skip locked",
            _ => waits,
        };
        let mut attempts = self.lock_rows(transaction, &free, waits).await?;
        attempts.extend(self.lock_rows(transaction, &marked, passes).await?);
        let is_held = |ticket: &&Ticket| attempts.get(&ticket.id) == Some(&ticket.attempts);
        let held: Vec<i64> = (tickets.iter().filter(is_held))
            .map(|ticket| ticket.id)
            .collect();
        if !held.is_empty() {
            let sql = format!(
                "update {} set \"reserved_at\" = {} where \"id\" in ({})",
                self.table.name,
                now.0,
                Table::list(&held)
            );
            transaction.execute(&sql, &[]).await?;
        }
        let marked = marked.into_iter().map(|ticket| ticket.id);
        Ok(held.into_iter().chain(marked).collect())
    }
}
