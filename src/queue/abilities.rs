//! What a driver can do, as data: known before a worker starts, and the same as long as it runs.

use std::num::NonZeroUsize;
use std::time::Duration;

/// What a driver can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Name of the driver, as in `queue.connections.NAME.driver`.
    pub driver: &'static str,
    /// How long a reservation lives; `None` for no end.
    pub retry_after: Option<Duration>,
    /// Most jobs of one pop.
    pub most_at_once: NonZeroUsize,
    /// What not every driver can do.
    pub can: Vec<Ability>,
}

/// Something that not every driver can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Takes some jobs and leaves the others where they are ([`PopRequest::selection`](super::PopRequest)).
    Chooses,
    /// Gives a job back as it was before the pop; otherwise a job that is put back has one attempt more.
    PutsBack,
    /// Applies all effects of a job's end together with its deletion, or none of them.
    FinishesInOneStep,
    /// Says for sure whether a job that was settled was still reserved.
    TellsGone,
    /// Renews reservations.
    Renews,
    /// Keeps payloads that cannot be decoded apart.
    Quarantines,
    /// Announces pushes to workers that wait.
    AnnouncesPushes,
    /// Deletes all jobs of a queue (`queue:clear`).
    Clears,
    /// Keeps the number of attempts in the payload, which is unreadable without it.
    CountsInPayload,
    /// Keeps jobs that are due apart until a pop moves them.
    Migrates,
    /// Recognizes a push that is repeated ([`Queue::push_once`](super::Queue::push_once)).
    RemembersPushes,
    /// Shows jobs without taking them ([`Queue::look`](super::Queue::look)).
    Shows,
}

impl Ability {
    /// All that a driver on a server with transactions can do.
    pub(super) const ALL: [Self; 12] = [
        Self::Chooses,
        Self::PutsBack,
        Self::FinishesInOneStep,
        Self::TellsGone,
        Self::Renews,
        Self::Quarantines,
        Self::AnnouncesPushes,
        Self::Clears,
        Self::CountsInPayload,
        Self::Migrates,
        Self::RemembersPushes,
        Self::Shows,
    ];
}

impl Abilities {
    /// Whether the driver can do this.
    pub fn has(&self, ability: Ability) -> bool {
        self.can.contains(&ability)
    }
}
