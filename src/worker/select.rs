//! Chooses the next jobs: one call for as many as there are free slots.

use std::num::NonZeroUsize;

use crate::queue::{
    Ability, Choice, Error, Heads, PopRequest, Popped, Queue, QueueName, ReservedJob, Selection,
};
use crate::routing::Mapping;
use crate::time::UnixSeconds;
use crate::worker::triage::Triage;
use crate::worker::triaged::{TriageResult, Triaged};

/// Which executor the jobs are for.
enum SelectFor {
    /// Handlers in this process, with this many free slots per mapping.
    Mapped { room: Vec<usize> },
    /// PHP processes.
    Unmapped,
}

/// Selects jobs that can run now: mapped jobs within the limits of their mapping, or jobs for PHP.
pub(super) struct Selector<'a> {
    triage: &'a Triage,
    wanted: SelectFor,
    needles: Vec<Vec<u8>>,
    /// The results of the looks at selected jobs, by the number of their choice.
    candidates: Vec<Option<TriageResult>>,
    /// Whether jobs were skipped because their mapping had no slot.
    pub(super) limited: bool,
    /// Whether a payload without a number of attempts is unreadable.
    needs_attempts: bool,
    /// What the pops of this executor have learnt.
    pub(super) heads: Heads,
}

impl<'a> Selector<'a> {
    /// Selects jobs for handlers in this process; `per_mapping` is how many jobs of each mapping run.
    pub(super) fn for_handlers(triage: &'a Triage, per_mapping: &[usize]) -> Self {
        let room = |(mapping, running): (&Mapping, &usize)| {
            let limit = mapping.concurrency;
            limit.map_or(usize::MAX, |limit| limit.get().saturating_sub(*running))
        };
        let mappings = triage.app.router.mappings().zip(per_mapping);
        let wanted = SelectFor::Mapped {
            room: mappings.map(room).collect(),
        };
        Self::new(triage, wanted, triage.needles())
    }

    /// Selects jobs that no mapping runs.
    pub(super) fn for_php(triage: &'a Triage) -> Self {
        Self::new(triage, SelectFor::Unmapped, Vec::new())
    }

    fn new(triage: &'a Triage, wanted: SelectFor, needles: Vec<Vec<u8>>) -> Self {
        Self {
            triage,
            wanted,
            needles,
            candidates: Vec::new(),
            limited: false,
            needs_attempts: false,
            heads: Heads::default(),
        }
    }

    /// Whether there is a slot for the job of this payload; takes the slot.
    fn choose(&mut self, queue: &QueueName, payload: &[u8]) -> Choice {
        // An unreadable payload is taken: it belongs in quarantine, where it does not block other jobs.
        let candidate = self.triage.triage(payload, queue);
        if let Ok(candidate) = &candidate
            && (!self.needs_attempts || candidate.payload.attempts.is_some())
        {
            let is_for_this = match (&self.wanted, &candidate.triaged) {
                (SelectFor::Unmapped, triaged) => {
                    matches!(triaged, Triaged::Unmapped(_) | Triaged::Bypass(_))
                }
                (SelectFor::Mapped { .. }, Triaged::Unmapped(_) | Triaged::Bypass(_)) => {
                    !self.triage.leaves_unmapped()
                }
                (SelectFor::Mapped { .. }, Triaged::Forward(_) | Triaged::Run(_)) => true,
            };
            if !is_for_this {
                return Choice::Never;
            }
            if let (SelectFor::Mapped { room }, Triaged::Run(routed)) =
                (&mut self.wanted, &candidate.triaged)
            {
                let Some(left) = room[routed.mapping].checked_sub(1) else {
                    self.limited = true;
                    return Choice::NotNow;
                };
                room[routed.mapping] = left;
            }
        }
        self.candidates.push(Some(candidate));
        Choice::Take(self.candidates.len() - 1)
    }

    /// The result of the look at a selected job; `None` if the job was taken without a look.
    pub(super) fn candidate(&mut self, job: &ReservedJob) -> Option<TriageResult> {
        self.candidates.get_mut(job.choice?)?.take()
    }
}

/// Pops up to `slots` jobs.
pub(super) async fn pop(
    queue: &dyn Queue,
    queues: &[QueueName],
    now: UnixSeconds,
    slots: NonZeroUsize,
    woken: &[QueueName],
    selector: Option<&mut Selector<'_>>,
    thorough: bool,
) -> Result<Popped, Error> {
    let request = PopRequest {
        queues,
        max: slots,
        now,
        woken,
        selection: None,
        thorough,
    };
    let Some(selector) = selector else {
        return queue.pop(request).await;
    };
    selector.needs_attempts = queue.abilities().has(Ability::CountsInPayload);
    let needles = std::mem::take(&mut selector.needles);
    let mut heads = std::mem::take(&mut selector.heads);
    let mut choose = |queue: &QueueName, payload: &[u8]| selector.choose(queue, payload);
    let selection = Some(Selection {
        needles: &needles,
        choose: &mut choose,
        heads: &mut heads,
    });
    let popped = queue.pop(PopRequest {
        selection,
        ..request
    });
    let popped = popped.await;
    selector.heads = heads;
    popped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::routing::UnmappedPolicy;
    use crate::worker::test_support::{
        Fault, NOW, Server, app, job, mapping, nothing, payload, router, services,
    };

    /// Two mappings, the first with two slots.
    fn triage(policy: UnmappedPolicy) -> Triage {
        let limited = Mapping {
            concurrency: NonZeroUsize::new(2),
            ..mapping("App\\Jobs\\A")
        };
        let mappings = vec![limited, mapping("App\\Jobs\\B")];
        Triage::new(app(
            router(mappings, policy, nothing()),
            services("13.31.0"),
        ))
    }

    #[test]
    fn a_job_is_taken_while_its_mapping_has_a_slot_and_left_for_others_otherwise() {
        let class = |class| payload(class, 1, &json!({}));
        let broken = b"not a payload".to_vec();
        #[rustfmt::skip]
        let rows = [
            // One job of the first mapping runs already.
            (class("A"), Choice::Take(0)),
            (class("A"), Choice::NotNow),
            (class("B"), Choice::Take(1)),
            (class("C"), Choice::Never),
            // It would block those behind it, and goes to quarantine.
            (broken.clone(), Choice::Take(2)),
        ];
        let here = triage(UnmappedPolicy::Leave);
        let mut selector = Selector::for_handlers(&here, &[1, 0]);
        for (payload, expected) in rows {
            assert_eq!(selector.choose(&"default".into(), &payload), expected);
        }
        assert!(selector.limited);
        let rows = [
            (class("A"), Choice::Never),
            (class("C"), Choice::Take(0)),
            (broken, Choice::Take(1)),
        ];
        let here = triage(UnmappedPolicy::Php);
        let mut selector = Selector::for_php(&here);
        for (payload, expected) in rows {
            assert_eq!(selector.choose(&"default".into(), &payload), expected);
        }
        // Where unmapped jobs are forwarded or fail, one executor takes all.
        let here = triage(UnmappedPolicy::Fail);
        let mut selector = Selector::for_handlers(&here, &[0, 0]);
        assert_eq!(
            selector.choose(&"default".into(), &class("C")),
            Choice::Take(0)
        );
    }

    #[test]
    fn a_payload_that_the_server_cannot_count_up_is_taken_without_a_look() {
        let here = triage(UnmappedPolicy::Leave);
        let mut selector = Selector::for_handlers(&here, &[0, 0]);
        let uncounted = payload("C", 1, &json!({"attempts": null}));
        let queue = "default".into();
        assert_eq!(selector.choose(&queue, &uncounted), Choice::Never);
        selector.needs_attempts = true;
        assert_eq!(selector.choose(&queue, &uncounted), Choice::Take(0));
    }

    #[tokio::test]
    async fn the_look_at_a_job_travels_with_it_and_is_given_away_once() {
        let server = Server::new();
        server
            .push(&[payload("C", 1, &json!({})), job(2), job(3), job(4)])
            .await;
        let here = triage(UnmappedPolicy::Leave);
        let mut selector = Selector::for_handlers(&here, &[0, 0]);
        let queues = ["default".into()];
        let slots = NonZeroUsize::new(9).unwrap();
        let popped = pop(
            &*server,
            &queues,
            NOW,
            slots,
            &[],
            Some(&mut selector),
            false,
        );
        let jobs = popped.await.unwrap().jobs;
        let uuids: Vec<_> = (jobs.iter())
            .map(|job| {
                let candidate = selector.candidate(job).unwrap().unwrap();
                candidate.payload.uuid.clone().unwrap()
            })
            .collect();
        assert_eq!(uuids, ["uuid-2".into(), "uuid-3".into()]);
        assert!(selector.candidate(&jobs[0]).is_none());
        // Those without a slot stand where they stood.
        let left = server.jobs.all();
        let left = left.iter().map(|(.., payload)| payload.clone());
        assert_eq!(
            left.collect::<Vec<_>>(),
            [payload("C", 1, &json!({})), job(4)]
        );
    }

    #[tokio::test]
    async fn a_pop_that_fails_takes_nothing() {
        let server = Server::new();
        server.push(&[job(1)]).await;
        server.next("pop", [Some(Fault::Refused)]);
        let here = triage(UnmappedPolicy::Leave);
        let mut selector = Selector::for_handlers(&here, &[0, 0]);
        let (queues, slots) = (["default".into()], NonZeroUsize::MIN);
        for expected in [None, Some(1)] {
            let selector = Some(&mut selector);
            let popped = pop(&*server, &queues, NOW, slots, &[], selector, false).await;
            assert_eq!(popped.ok().map(|popped| popped.jobs.len()), expected);
        }
    }
}
