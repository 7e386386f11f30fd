//! When to look at the queues next, for one kind of job: those that run here, or those for PHP.

use tokio::time::Instant;

/// When the queues are to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// There may be jobs now.
    Now,
    /// Not before this moment, unless something happens.
    At(Instant),
}

/// What is known of the jobs of one kind.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) due: Due,
    /// The last pop filled every slot: there is more.
    pub(super) backlog: bool,
    /// When the first slot became free that the next pop will fill.
    pub(super) gathering_since: Option<Instant>,
    /// The last pop found nothing, and nothing was under way that could come back.
    pub(super) is_empty: bool,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            due: Due::Now,
            backlog: false,
            gathering_since: None,
            is_empty: false,
        }
    }
}

impl Lane {
    /// Whether the moment has come.
    pub(super) fn is_due(&self) -> bool {
        match self.due {
            Due::Now => true,
            Due::At(moment) => moment <= Instant::now(),
        }
    }

    /// The moment at which it is due; `now` if that is now.
    pub(super) fn when(&self, now: Instant) -> Instant {
        match self.due {
            Due::Now => now,
            Due::At(moment) => moment,
        }
    }

    /// Makes it due at a moment, if it is not due before.
    pub(super) fn is_due_by(&mut self, moment: Instant) {
        if let Due::At(due) = self.due {
            self.due = Due::At(due.min(moment));
        }
    }
}
