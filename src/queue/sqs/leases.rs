//! What this process knows of the messages it has received.
//!
//! The server does not say for sure whether a reservation is still held: it may take a delete with an old receipt
//! handle and do nothing. So the time of the reservation decides, on two clocks: one may stand still while the machine
//! sleeps, the other may be set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::timeout;

use super::address::Url;
use crate::queue::ReservedJob;
use crate::time::{Clock, UnixSeconds};

/// How long the server lets a message be reserved, from its receipt on.
pub(super) const LONGEST: Duration = Duration::from_secs(12 * 3600);
/// How long a settlement waits for a renewal of the same message: one that hangs must not hold it up.
const PATIENCE: Duration = Duration::from_secs(3);
/// When what is known of a lost message is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    steady: Instant,
    pub(super) wall: UnixSeconds,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self {
            steady: Instant::now(),
            wall: Clock::System.now(),
        }
    }

    /// Time since then, by the clock that says more.
    fn elapsed(self) -> Duration {
        let now = Self::now();
        let wall = now.wall.0.saturating_sub(self.wall.0);
        let wall = Duration::from_secs(u64::try_from(wall).unwrap_or(0));
        // Whole seconds may be one more than passed.
        let wall = wall.saturating_sub(Duration::from_secs(1));
        self.steady.elapsed().max(wall)
    }
}

/// The right to renew a message, beside other renewals.
pub(super) type Renewing = OwnedRwLockReadGuard<()>;

/// The right to hide a message that is settled, beside no renewal: of two requests at a time, nothing tells which the
/// server carries out last, and that one counts.
pub(super) type Hiding = OwnedRwLockWriteGuard<()>;

/// A reserved message.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) url: Url,
    /// When it was received.
    pub(super) received: Moment,
    /// When it was reserved, or renewed, last.
    pub(super) since: Moment,
    /// For how long then.
    pub(super) visibility: Duration,
    /// Its group.
    pub(super) group: Option<String>,
    /// Where its payload is kept, if that is not the message's text.
    pub(super) overflow: Option<String>,
    /// Whether it was sent to another queue, and has only to be deleted.
    pub(super) is_forwarded: bool,
    /// Whether a settlement has hidden it, or may have: it is renewed no more.
    pub(super) is_hidden: bool,
    /// Whether its job ended earlier: a deletion was tried, here or before the message was delivered again.
    pub(super) has_ended: bool,
    /// Taken while a request is under way that hides it.
    pub(super) turn: Arc<RwLock<()>>,
}

impl Lease {
    /// What is left of the reservation.
    pub(super) fn left(&self) -> Duration {
        self.visibility.saturating_sub(self.since.elapsed())
    }

    /// The longest time for which the server can still be told to hide the message, in whole seconds and with one to
    /// spare: it refuses a request that comes a little later than it was meant.
    pub(super) fn longest(&self) -> Duration {
        let left = LONGEST.saturating_sub(self.received.elapsed());
        Duration::from_secs(left.as_secs().saturating_sub(1))
    }
}

/// Reserved messages by receipt handle.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<Arc<[u8]>, Lease>>);

impl Leases {
    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<[u8]>, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, receipt: Arc<[u8]>, lease: Lease) {
        let mut held = self.held();
        if held.len() >= 4096 {
            held.retain(|_, lease| lease.since.elapsed() < lease.visibility + FORGOTTEN);
        }
        held.insert(receipt, lease);
    }

    /// What is known of a job's message, whether or not its reservation has ended.
    pub(super) fn of(&self, job: &ReservedJob) -> Option<Lease> {
        self.held().get(&job.ticket).cloned()
    }

    pub(super) fn renewed(&self, job: &ReservedJob, since: Moment, visibility: Duration) {
        if let Some(lease) = self.held().get_mut(&job.ticket) {
            lease.since = since;
            lease.visibility = visibility;
        }
    }

    /// The turn to renew a message; `None` if a settlement has it, or waits for it.
    pub(super) fn turn_to_renew(&self, job: &ReservedJob) -> Option<Renewing> {
        let held = self.held();
        let lease = held.get(&job.ticket).filter(|lease| !lease.is_hidden)?;
        Arc::clone(&lease.turn).try_read_owned().ok()
    }

    /// Waits for the turn to hide a message that is settled; `None` if a renewal hangs.
    pub(super) async fn turn_to_hide(&self, job: &ReservedJob) -> Option<Hiding> {
        let turn = (self.held().get(&job.ticket)).map(|lease| Arc::clone(&lease.turn))?;
        timeout(PATIENCE, turn.write_owned()).await.ok()
    }

    pub(super) fn hidden(&self, job: &ReservedJob) {
        if let Some(lease) = self.held().get_mut(&job.ticket) {
            lease.is_hidden = true;
        }
    }

    pub(super) fn forwarded(&self, job: &ReservedJob) {
        if let Some(lease) = self.held().get_mut(&job.ticket) {
            lease.is_forwarded = true;
        }
    }

    /// Notes that the message's job has ended, and says whether that was known.
    pub(super) fn note_end(&self, job: &ReservedJob) -> bool {
        let mut held = self.held();
        let lease = held.get_mut(&job.ticket);
        lease.is_some_and(|lease| std::mem::replace(&mut lease.has_ended, true))
    }

    pub(super) fn remove(&self, job: &ReservedJob) {
        self.held().remove(&job.ticket);
    }
}
