//! Which jobs next: one call for as many as there are free slots.

use std::num::NonZeroUsize;

use crate::handler::Mapping;
use crate::queue::{Error, PopRequest, Popped, Queue, QueueName, ReservedJob, Selection};
use crate::time::UnixSeconds;
use crate::worker::triage::{Candidate, Triage, Triaged};

/// Which executor the jobs are for.
enum Wanted {
    /// Handlers here, with this many free slots per mapping.
    Mapped { room: Vec<usize> },
    /// PHP processes.
    Unmapped,
}

/// Selects jobs that can run now: mapped ones, within the limits of their mapping; or those for PHP.
pub(super) struct Selector<'a> {
    triage: &'a Triage,
    wanted: Wanted,
    needles: Vec<Vec<u8>>,
    /// What was found out about the jobs that were selected, by their choice.
    candidates: Vec<Option<Candidate>>,
    /// Whether jobs were passed by because their mapping had no slot.
    pub(super) limited: bool,
}

impl<'a> Selector<'a> {
    /// Selects jobs for handlers here; `per_mapping` says how many jobs of each mapping run.
    pub(super) fn for_handlers(triage: &'a Triage, per_mapping: &[usize]) -> Self {
        let room = |(mapping, running): (&Mapping, &usize)| {
            let limit = mapping.concurrency;
            limit.map_or(usize::MAX, |limit| limit.get().saturating_sub(*running))
        };
        let mappings = triage.app.router.mappings().zip(per_mapping);
        let wanted = Wanted::Mapped {
            room: mappings.map(room).collect(),
        };
        Self::new(triage, wanted, triage.needles())
    }

    /// Selects jobs that no mapping runs.
    pub(super) fn for_php(triage: &'a Triage) -> Self {
        Self::new(triage, Wanted::Unmapped, Vec::new())
    }

    fn new(triage: &'a Triage, wanted: Wanted, needles: Vec<Vec<u8>>) -> Self {
        Self {
            triage,
            wanted,
            needles,
            candidates: Vec::new(),
            limited: false,
        }
    }

    /// Says whether there is a slot for the job of this payload, and takes it.
    fn choose(&mut self, queue: &QueueName, payload: &[u8]) -> Option<usize> {
        // A payload that cannot be read is taken: it belongs into quarantine and not in the way of others.
        let candidate = self.triage.triage(payload, queue).ok();
        let candidate = candidate.filter(|candidate| candidate.payload.attempts.is_some());
        if let Some(candidate) = &candidate {
            let is_taken = match &mut self.wanted {
                Wanted::Unmapped => {
                    matches!(candidate.triaged, Triaged::Unmapped(_) | Triaged::Bypass(_))
                }
                Wanted::Mapped { room } => match &candidate.triaged {
                    Triaged::Forward(_) => true,
                    Triaged::Unmapped(_) | Triaged::Bypass(_) => !self.triage.leaves_unmapped(),
                    Triaged::Run(routed) => {
                        let left = room[routed.mapping].checked_sub(1);
                        room[routed.mapping] = left.unwrap_or(0);
                        self.limited |= left.is_none();
                        left.is_some()
                    }
                },
            };
            if !is_taken {
                return None;
            }
        }
        self.candidates.push(candidate);
        Some(self.candidates.len() - 1)
    }

    /// What was found out about a job that was selected; `None` if it was taken unseen.
    pub(super) fn candidate(&mut self, job: &ReservedJob) -> Option<Candidate> {
        self.candidates.get_mut(job.choice?)?.take()
    }
}

/// Pops up to `slots` jobs.
pub(super) async fn pop<Q: Queue>(
    queue: &Q,
    queues: &[QueueName],
    now: UnixSeconds,
    slots: NonZeroUsize,
    woken: &[QueueName],
    selector: Option<&mut Selector<'_>>,
) -> Result<Popped, Error> {
    let request = PopRequest {
        queues,
        max: slots,
        now,
        woken,
        selection: None,
    };
    let Some(selector) = selector else {
        return queue.pop(request).await;
    };
    let needles = std::mem::take(&mut selector.needles);
    let mut choose = |queue: &QueueName, payload: &[u8]| selector.choose(queue, payload);
    let selection = Some(Selection {
        needles: &needles,
        choose: &mut choose,
    });
    queue
        .pop(PopRequest {
            selection,
            ..request
        })
        .await
}
