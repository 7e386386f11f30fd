//! Marks on reservations that are being settled: a renewal must not wait for the locks of their rows.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::table::Ticket;

/// Reservations whose rows settlements of this process may have locked.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<HashSet<Ticket>>);

/// The marks of one settlement; they end with it.
pub(super) struct Marked<'a> {
    marks: &'a Marks,
    tickets: Vec<Ticket>,
}

impl Marks {
    fn marked(&self) -> MutexGuard<'_, HashSet<Ticket>> {
        // A panic leaves some marked at worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mark(&self, tickets: &[Ticket]) -> Marked<'_> {
        self.marked().extend(tickets);
        Marked {
            marks: self,
            tickets: tickets.to_vec(),
        }
    }

    pub(super) fn has(&self, ticket: &Ticket) -> bool {
        self.marked().contains(ticket)
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        let mut marked = self.marks.marked();
        for ticket in &self.tickets {
            marked.remove(ticket);
        }
    }
}
