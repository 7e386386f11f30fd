//! Which clauses of the contract hold as they are.

use artisand::queue::Queue as _;

use super::{queue_at, queue_of};
use crate::contract;
use crate::harness::beanstalkd::Beanstalkd;

macro_rules! clauses {
    ($($clause:ident)*) => {
        $(#[tokio::test]
        async fn $clause() {
            let server = Beanstalkd::start();
            contract::$clause(queue_of(&server, 90)).await;
        })*

        /// Clauses of the contract that hold as they are.
        const KEPT: &[&str] = &[$(stringify!($clause)),*];
    };
}

clauses! {
    jobs_come_in_the_order_they_were_pushed
    earlier_queues_are_drained_before_later_ones
    deleted_jobs_are_gone_and_deleting_twice_says_so
    a_push_wakes_a_waiting_worker
    payloads_leave_the_quarantine_for_their_queue_or_for_good
}

/// Other clauses that need nothing that this driver lacks, and why they cannot hold word for word. Tests here with
/// names of their own say what holds instead.
const OTHERWISE: &[(&str, &str)] = &[
    (
        "popping_counts_an_attempt_and_reserves_until_retry_after",
        "the server has the clock and counts attempts",
    ),
    (
        "released_jobs_come_back_when_due",
        "the server has the clock",
    ),
    (
        "a_release_does_not_double_a_job_that_another_worker_has",
        "the server has the clock",
    ),
    (
        "a_job_left_reserved_comes_back_when_its_reservation_ends",
        "the server has the clock",
    ),
    (
        "renewed_reservations_end_later_and_lost_ones_stay_lost",
        "the server has the clock",
    ),
    (
        "a_look_shows_payloads_in_each_place_and_moves_none",
        "the server shows the first job only",
    ),
    (
        "heartbeats_are_kept_until_they_end_or_not_at_all",
        "they are kept in the ledger of the ends of jobs, on another server",
    ),
];

#[test]
fn every_clause_of_the_contract_is_kept_or_its_reason_is_said() {
    let queue = queue_at(1, 90);
    for (clause, needs) in contract::NEEDS {
        let can = needs.iter().all(|ability| queue.abilities().has(*ability));
        let is_otherwise = OTHERWISE.iter().any(|(other, _)| other == clause);
        let is_kept = KEPT.contains(clause);
        assert_eq!(can, is_kept || is_otherwise, "{clause}");
        assert!(!(is_kept && is_otherwise), "{clause}");
    }
}
