//! A model of one job with everything that may go wrong, explored exhaustively.
//!
//! Two workers take a job from a server. It holds a unique lock; its end brings about a chain step, a count in a
//! batch or a row of a failed job, in the same step or through the outbox. At any moment a worker may crash, a
//! request or a reply may be lost, a reservation or the outbox's lease may end early (its holder slept). The model
//! visits every state that up to three such faults can bring about.
//!
//! In each state nothing may be lost or doubled, and from each state an end must be reachable at which all is done and
//! the lock is free. [`Rules`] are the rules of the design that see to that. The tests switch off each of them and want
//! the model to find a violation: a rule that is not needed, or a model that cannot see why it is, fails.
//!
//! `replay.rs` keeps the model in step with the scripts. `docs/reliability.md` says what the model leaves out.

mod explore;
mod replay;
mod server;
mod world;

use explore::{Violation, explore};
use server::{Deed, Record};

/// What the end of the job brings about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// The lock and the chain's next queue are on the job's own server.
    Here,
    /// Both are on another server.
    Elsewhere,
    /// The job fails for good.
    Fails,
    /// The job is counted in a batch.
    Batch,
    /// The batch's callbacks are due: PHP counts the job, in a closure.
    Callbacks,
}

impl Scenario {
    const ALL: [Self; 5] = [
        Self::Here,
        Self::Elsewhere,
        Self::Fails,
        Self::Batch,
        Self::Callbacks,
    ];

    /// The effects of the job's end.
    pub(crate) fn deeds(self) -> Vec<Deed> {
        let append = Deed::Append;
        match self {
            Self::Here => vec![Deed::Unlock, Deed::Push],
            Self::Elsewhere => vec![append(Record::Unlock), append(Record::Push)],
            Self::Fails => vec![append(Record::Row), Deed::Unlock],
            Self::Batch => vec![Deed::Unlock, append(Record::Count)],
            Self::Callbacks => vec![Deed::Unlock, append(Record::PushHere)],
        }
    }
}

/// The rules of the design, each of which can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct Rules {
    /// finish.lua does nothing for a job that is not reserved.
    pub(crate) ends_only_what_is_reserved: bool,
    /// move.lua neither.
    pub(crate) moves_only_what_is_reserved: bool,
    /// renew.lua neither.
    pub(crate) renews_only_what_is_reserved: bool,
    /// The deletion of a job and the effects of its end are one step.
    pub(crate) ends_in_one_step: bool,
    /// The bytes by which a reservation is found count its attempt.
    pub(crate) counts_in_the_ticket: bool,
    /// The settler does not put a job back a second time if the answer to the first time was lost.
    pub(crate) puts_back_once: bool,
    /// The outbox frees a lock by its owner.
    pub(crate) frees_only_its_own_lock: bool,
    /// `push_once.lua` remembers what was pushed.
    pub(crate) remembers_pushes: bool,
    /// A failed job has one row, known by its uuid.
    pub(crate) knows_its_rows: bool,
    /// The outbox removes a record once its deed is done, not before.
    pub(crate) removes_records_last: bool,
    /// A transaction that counts asks, with the batch's row locked, whether the lease still lasts.
    pub(crate) counts_under_the_lease: bool,
    /// .. and marks the end in the same transaction.
    pub(crate) marks_with_the_count: bool,
    /// The mark stays until the record that asks for the count is gone.
    pub(crate) keeps_marks_until_then: bool,
    /// ack.lua does nothing without the lease.
    pub(crate) acks_under_the_lease: bool,
    /// ack.lua applies effects only if it removed a record.
    pub(crate) acks_what_is_there: bool,
}

impl Rules {
    pub(crate) const ALL: Self = Self {
        ends_only_what_is_reserved: true,
        moves_only_what_is_reserved: true,
        renews_only_what_is_reserved: true,
        ends_in_one_step: true,
        counts_in_the_ticket: true,
        puts_back_once: true,
        frees_only_its_own_lock: true,
        remembers_pushes: true,
        knows_its_rows: true,
        removes_records_last: true,
        counts_under_the_lease: true,
        marks_with_the_count: true,
        keeps_marks_until_then: true,
        acks_under_the_lease: true,
        acks_what_is_there: true,
    };
}

/// What is explored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) scenario: Scenario,
    pub(crate) rules: Rules,
    /// How many things may go wrong on one way.
    pub(crate) faults: u8,
}

#[test]
fn no_three_faults_lose_double_or_block_anything() {
    for scenario in Scenario::ALL {
        let model = Model {
            scenario,
            rules: Rules::ALL,
            faults: 3,
        };
        let explored = explore(&model);
        let explored = explored.unwrap_or_else(|Violation { what, trace }| {
            panic!("{scenario:?}: {what}:\n{}", trace.join("\n"))
        });
        // Fewer would mean that the model no longer goes where it should.
        assert!(explored.states > 5_000, "{scenario:?}: {}", explored.states);
    }
}

/// The violations of the scenarios, without one rule or several; each is looked for when it is asked for.
fn violations(rules: Rules) -> impl Iterator<Item = (Scenario, Violation)> {
    Scenario::ALL.into_iter().filter_map(move |scenario| {
        let faults = 2;
        let violation = explore(&Model {
            scenario,
            rules,
            faults,
        });
        Some((scenario, violation.err()?))
    })
}

#[test]
fn each_rule_is_needed() {
    type Switch = fn(&mut Rules);
    #[rustfmt::skip]
    let rows: [(&str, Switch, &str); 14] = [
        ("ends only what is reserved", |rules| rules.ends_only_what_is_reserved = false, "the job ended twice"),
        ("moves only what is reserved", |rules| rules.moves_only_what_is_reserved = false, "the job is there twice"),
        ("renews only what is reserved", |rules| rules.renews_only_what_is_reserved = false, "the job is there twice"),
        ("ends in one step", |rules| rules.ends_in_one_step = false, "no end can be reached any more"),
        ("counts in the ticket", |rules| rules.counts_in_the_ticket = false, "two workers run the job, and neither has lost its reservation"),
        ("puts back once", |rules| rules.puts_back_once = false, "two workers run the job, and neither has lost its reservation"),
        ("frees only its own lock", |rules| rules.frees_only_its_own_lock = false, "the lock of another job was freed"),
        ("remembers pushes", |rules| rules.remembers_pushes = false, "the next job was pushed twice"),
        ("knows its rows", |rules| rules.knows_its_rows = false, "the end was recorded twice"),
        ("removes records last", |rules| rules.removes_records_last = false, "no end can be reached any more"),
        ("counts under the lease", |rules| rules.counts_under_the_lease = false, "the end was recorded twice"),
        ("marks with the count", |rules| rules.marks_with_the_count = false, "the end was recorded twice"),
        ("keeps marks until then", |rules| rules.keeps_marks_until_then = false, "the end was recorded twice"),
        ("acks under the lease", |rules| rules.acks_under_the_lease = false, "the end was recorded twice"),
    ];
    for (rule, switch, expected) in rows {
        let mut rules = Rules::ALL;
        switch(&mut rules);
        let mut seen = Vec::new();
        let is_found = violations(rules).any(|(scenario, violation)| {
            seen.push((scenario, violation.what));
            violation.what == expected
        });
        assert!(is_found, "without `{rule}`: {seen:?}");
    }
}

/// ack.lua has a second guard, which the model needs only where the first one is missing.
#[test]
fn effects_of_records_that_are_gone_are_guarded_twice() {
    let mut rules = Rules::ALL;
    rules.acks_what_is_there = false;
    let found: Vec<_> = violations(rules).collect();
    assert!(found.is_empty(), "{found:?}");
    rules.acks_under_the_lease = false;
    let is_doubled = |(scenario, violation): &(Scenario, Violation)| {
        *scenario == Scenario::Callbacks && violation.what == "the next job was pushed twice"
    };
    let found: Vec<_> = violations(rules).collect();
    assert!(found.iter().any(is_doubled), "{found:?}");
}
