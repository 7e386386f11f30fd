//! Counts the ends of jobs in their batches.

use std::time::Duration;

use super::follow_ups::{FollowUpRelay, Logged, RelayResult, Stored};
use super::lease::FencingToken;
use crate::batch::{Batches, Ended, Error, JobOutcome, Recorded};
use crate::outbox::follow_up::{Count, FollowUp, NO_PHP_QUEUE, put_off};
use crate::outbox::hand_over::{BatchEvent, HandOver};
use crate::queue::{Ability, Effect, Push, QueueName};
use crate::shown::with_causes;

const COUNTING: &str = "count jobs in a batch";
const NO_BATCHES: &str = "nothing is known of the app's batches";

/// The ends that are to be counted.
fn ends(counts: &[Stored<Count>]) -> Vec<Ended> {
    let ends = counts.iter().map(|noted| noted.what.ended.clone());
    ends.collect()
}

/// Splits counted ends into their records and the ends.
fn apart(counted: Vec<Stored<Vec<Ended>>>) -> (Vec<Vec<u8>>, Vec<Ended>) {
    let (records, ended): (Vec<_>, Vec<_>) = counted
        .into_iter()
        .map(|noted| (noted.record, noted.what))
        .unzip();
    (records, ended.concat())
}

/// Splits recorded ends into those that left a mark in the batch and those that PHP has to count; the records
/// of all others are done, and are added to `taken`.
fn sorted(
    counts: Vec<Stored<Count>>,
    recorded: Vec<Recorded>,
    taken: &mut Vec<Vec<u8>>,
) -> (Vec<Ended>, Vec<Stored<Count>>) {
    let (mut marked, mut for_php) = (Vec::new(), Vec::new());
    for (noted, recorded) in counts.into_iter().zip(recorded) {
        match recorded {
            Recorded::Counted | Recorded::CountedFirst | Recorded::AlreadyCounted => {
                marked.push(noted.what.ended);
                taken.push(noted.record);
            }
            Recorded::NoBatch => taken.push(noted.record),
            Recorded::NeedsPhp => for_php.push(noted),
        }
    }
    (marked, for_php)
}

impl FollowUpRelay {
    /// Removes the marks of counted ends from their batch.
    pub(super) async fn forget(
        &self,
        hold: &FencingToken,
        batch: &str,
        counted: Vec<Stored<Vec<Ended>>>,
        said: &mut Logged,
    ) -> RelayResult {
        let what = "clean up a batch";
        let Some(batches) = &self.services.batches else {
            self.problem(said, what, NO_BATCHES.to_owned());
            return RelayResult::Left(counted.len());
        };
        let (records, ended) = apart(counted);
        match batches.forget_marks(batch, &ended).await {
            Ok(()) => self.ack(hold, &records, &[], said).await,
            Err(error) => {
                said.is_away = error.is_lost_connection();
                self.problem(said, what, with_causes(&error));
                RelayResult::Left(records.len())
            }
        }
    }

    /// Counts ends of jobs of one batch, and removes the marks of those that were counted before.
    pub(super) async fn count(
        &self,
        hold: &FencingToken,
        batch: &str,
        counts: Vec<Stored<Count>>,
        counted: Vec<Stored<Vec<Ended>>>,
        said: &mut Logged,
    ) -> RelayResult {
        let Some(batches) = &self.services.batches else {
            self.problem(said, COUNTING, NO_BATCHES.to_owned());
            return RelayResult::Left(counts.len() + counted.len());
        };
        let may = || hold.confirm_held();
        let forget = counted.iter().flat_map(|noted| noted.what.clone());
        let (ended, forget): (_, Vec<Ended>) = (ends(&counts), forget.collect());
        let recorded = batches.record_while(batch, &ended, &forget, may).await;
        let recorded = match recorded {
            Ok(Some(recorded)) => recorded,
            Ok(None) => return RelayResult::Lost,
            Err(error) => {
                let (place, left) = ((batches, batch), (counts, counted));
                return self.not_counted(hold, place, &error, left, said).await;
            }
        };
        let (mut taken, _) = apart(counted);
        said.has_counted = batches.are_in_a_file();
        let first = recorded
            .iter()
            .position(|one| *one == Recorded::CountedFirst);
        let first = first.and_then(|at| self.raise_start(&counts[at].what));
        let mut left_behind = Vec::from_iter(first);
        let (marked, for_php) = sorted(counts, recorded, &mut taken);
        let mut counted = Vec::new();
        if !marked.is_empty() {
            let what = FollowUp::Forget {
                batch: batch.to_owned(),
                ended: marked.clone(),
            };
            left_behind.push(what.effect());
            counted.push(Stored {
                record: what.to_record(),
                what: marked,
            });
        }
        if !taken.is_empty() {
            match self.ack(hold, &taken, &left_behind, said).await {
                RelayResult::All => {}
                done => return done.and_left(for_php.len()),
            }
        }
        if for_php.is_empty() {
            if counted.is_empty() || batches.are_in_a_file() {
                // In a file, marks are removed with the next count, or alone if none comes.
                return RelayResult::All;
            }
            return self.forget(hold, batch, counted, said).await;
        }
        self.count_in_php(hold, (batches, batch), for_php, counted, said)
            .await
    }

    /// Counts in parts the ends that could not be written to the batch's row at once: its column may have no room for
    /// the marks of all. An end whose mark does not fit even alone is counted by PHP.
    async fn not_counted(
        &self,
        hold: &FencingToken,
        (batches, batch): (&Batches, &str),
        error: &Error,
        (mut counts, counted): (Vec<Stored<Count>>, Vec<Stored<Vec<Ended>>>),
        said: &mut Logged,
    ) -> RelayResult {
        if error.is_lost_connection() {
            said.is_away = true;
            self.problem(said, COUNTING, with_causes(error));
            return RelayResult::Left(counts.len() + counted.len());
        }
        let why = with_causes(error);
        tracing::debug!(batch, ends = counts.len(), error = why, "counting in parts");
        if !counted.is_empty() {
            match self.forget(hold, batch, counted, said).await {
                RelayResult::All => {}
                done => return done.and_left(counts.len()),
            }
        }
        if counts.len() == 1 {
            let (place, none) = ((batches, batch), Vec::new());
            return self.count_in_php(hold, place, counts, none, said).await;
        }
        let rest = counts.split_off(counts.len() / 2);
        match Box::pin(self.count(hold, batch, counts, Vec::new(), said)).await {
            RelayResult::All => Box::pin(self.count(hold, batch, rest, Vec::new(), said)).await,
            done => done.and_left(rest.len()),
        }
    }

    /// Marks ends that make callbacks due, and makes PHP count them.
    async fn count_in_php(
        &self,
        hold: &FencingToken,
        (batches, batch): (&Batches, &str),
        for_php: Vec<Stored<Count>>,
        counted: Vec<Stored<Vec<Ended>>>,
        said: &mut Logged,
    ) -> RelayResult {
        let may = || hold.confirm_held();
        let (records, forget) = apart(counted);
        let ended = ends(&for_php);
        let marks = batches.hand_over(batch, &ended, &forget, may).await;
        let marks = match marks {
            Ok(Some(marks)) => marks,
            Ok(None) => return RelayResult::Lost,
            Err(error) => {
                said.is_away = error.is_lost_connection();
                self.problem(said, COUNTING, with_causes(&error));
                return RelayResult::Left(for_php.len());
            }
        };
        if !records.is_empty() {
            match self.ack(hold, &records, &[], said).await {
                RelayResult::All => {}
                done => return done.and_left(for_php.len()),
            }
        }
        let mut left = 0;
        for (noted, mark) in for_php.into_iter().zip(marks) {
            match self.hand_over(hold, noted, mark.as_deref(), said).await {
                RelayResult::All => {}
                RelayResult::Left(more) => left += more,
                over @ (RelayResult::Lost | RelayResult::Unreachable(_)) => return over,
            }
        }
        if left == 0 {
            RelayResult::All
        } else {
            RelayResult::Left(left)
        }
    }

    /// Makes PHP raise the event of a batch that has begun.
    fn raise_start(&self, count: &Count) -> Option<Effect> {
        let queue = self.php_queue(count)?;
        let payload = self.for_php(count).raises_of_batch(
            BatchEvent::Started,
            &count.batch,
            count.inherited.as_ref(),
        );
        let log = |error| {
            tracing::error!(
                error = with_causes(&error),
                "the app does not hear that a batch has begun"
            );
        };
        Some(self.push_to_php(count, queue, payload.map_err(log).ok()?))
    }

    /// A queue that PHP workers serve: one that became known after the job has ended will do, too.
    fn php_queue(&self, count: &Count) -> Option<QueueName> {
        let noted = count.queue.as_deref().map(QueueName::from);
        noted.or_else(|| self.services.php_queue.clone())
    }

    /// The push of a closure to the connection of the job that it follows.
    fn push_to_php(&self, count: &Count, queue: QueueName, payload: Vec<u8>) -> Effect {
        let push = Push {
            queue,
            payload,
            due: None,
            claim: None,
        };
        match self.other_connection(count) {
            None => Effect::Push(push),
            Some(other) => put_off(&other.into(), &push),
        }
    }

    /// The connection of the job, if that is not the one of this worker.
    fn other_connection<'a>(&self, count: &'a Count) -> Option<&'a str> {
        let connection = count.connection.as_deref();
        connection.filter(|connection| *connection != self.connection.as_str())
    }

    fn for_php<'a>(&'a self, count: &'a Count) -> HandOver<'a> {
        let other = self.other_connection(count);
        let ends_in_one_step = (self.queue.abilities()).has(Ability::FinishesInOneStep);
        HandOver {
            services: &self.services,
            connection: other.unwrap_or(self.connection.as_str()),
            now: self.clock.now(),
            name: count.name.as_deref().unwrap_or_default(),
            is_secret: false,
            timeout: count.timeout.map(Duration::from_secs),
            may_be_doubled: other.is_some() || !ends_in_one_step,
        }
    }

    /// Makes PHP count the end of a job.
    async fn hand_over(
        &self,
        hold: &FencingToken,
        noted: Stored<Count>,
        mark: Option<&str>,
        said: &mut Logged,
    ) -> RelayResult {
        let count = &noted.what;
        let Some(queue) = self.php_queue(count) else {
            self.problem(
                said,
                "let PHP run a batch's callbacks",
                NO_PHP_QUEUE.to_owned(),
            );
            return RelayResult::Left(1);
        };
        let (hand_over, inherited) = (self.for_php(count), count.inherited.as_ref());
        let payload = match count.ended.outcome {
            JobOutcome::Succeeded => {
                hand_over.counts_success(&count.batch, &count.ended.uuid, mark, inherited)
            }
            JobOutcome::Failed => {
                let message = count.message.as_deref().unwrap_or_default();
                hand_over.counts_failure(&count.batch, &count.ended.uuid, message, inherited)
            }
        };
        match payload {
            Ok(payload) => {
                let push = self.push_to_php(count, queue, payload);
                self.ack(hold, &[noted.record], &[push], said).await
            }
            Err(error) => {
                self.problem(said, "let PHP run a batch's callbacks", with_causes(&error));
                RelayResult::Left(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::handler::Services;
    use crate::outbox::follow_up::random_token;
    use crate::outbox::follow_ups::tests::{count_of, ended, follower};
    use crate::queue::MemoryQueue;
    use crate::queue::faulty::push_of;

    /// Workers of two connections can share a list of follow-ups, and the queues of one are not those of the other.
    #[test]
    fn a_closure_goes_to_the_connection_of_the_job_that_it_counts() {
        let queue = Arc::new(MemoryQueue::new(None));
        let (left, last) = (Arc::default(), CancellationToken::new());
        let worker = follower(&queue, Services::default(), &left, &last);
        let count = |connection: Option<&str>| Count {
            batch: "b".to_owned(),
            ended: Ended {
                uuid: "u".to_owned(),
                outcome: JobOutcome::Succeeded,
                token: random_token(),
            },
            connection: connection.map(str::to_owned),
            queue: Some("orders".to_owned()),
            message: None,
            name: None,
            inherited: None,
            timeout: None,
        };
        // `None` is in records of earlier versions.
        for own in [None, Some("redis")] {
            let effect = worker.push_to_php(&count(own), "orders".into(), b"{}".to_vec());
            assert_eq!(effect, Effect::Push(push_of("orders")));
            let count = count(own);
            let for_php = worker.for_php(&count);
            assert_eq!(
                (for_php.connection, for_php.may_be_doubled),
                ("redis", false)
            );
        }
        let other = count(Some("sqs"));
        let Effect::Append(_, record) = worker.push_to_php(&other, "orders".into(), b"{}".to_vec())
        else {
            panic!("it is pushed to the worker's own connection");
        };
        let FollowUp::Push(outgoing) = serde_json::from_slice(&record).unwrap() else {
            panic!("no push");
        };
        assert_eq!(outgoing.connection, "sqs");
        assert_eq!(outgoing.queue, "orders");
        let for_php = worker.for_php(&other);
        assert_eq!((for_php.connection, for_php.may_be_doubled), ("sqs", true));
    }

    /// The policy `fail` names no queue, and `queue` under `[php]` may be set when a record already waits for it.
    #[test]
    fn a_count_without_a_queue_for_php_goes_to_the_configured_one() {
        let queue = Arc::new(MemoryQueue::new(None));
        let (left, last) = (Arc::default(), CancellationToken::new());
        let rows = [
            (None, None, None),
            (None, Some("closures"), Some("closures")),
            (Some("orders"), Some("closures"), Some("orders")),
        ];
        for (noted, configured, expected) in rows {
            let services = Services {
                php_queue: configured.map(QueueName::from),
                ..Services::default()
            };
            let worker = follower(&queue, services, &left, &last);
            let count = Count {
                queue: noted.map(str::to_owned),
                ..count_of("b", "u")
            };
            assert_eq!(worker.php_queue(&count), expected.map(QueueName::from));
        }
    }

    #[test]
    fn ends_that_are_counted_leave_marks_and_php_counts_the_others() {
        use Recorded::{AlreadyCounted, Counted, CountedFirst, NeedsPhp, NoBatch};
        let noted = |uuid: &str| Stored {
            record: uuid.as_bytes().to_vec(),
            what: count_of("b", uuid),
        };
        let counts = ["1", "2", "3", "4", "5"].map(noted).into();
        let recorded = vec![Counted, NeedsPhp, AlreadyCounted, NoBatch, CountedFirst];
        let mut taken = Vec::new();
        let (marked, for_php) = sorted(counts, recorded, &mut taken);
        assert_eq!(marked, ["1", "3", "5"].map(ended));
        assert_eq!(ends(&for_php), [ended("2")]);
        assert_eq!(taken, [b"1", b"3", b"4", b"5"]);

        let counted = |record: &[u8], uuids: &[&str]| Stored {
            record: record.to_vec(),
            what: uuids.iter().map(|uuid| ended(uuid)).collect(),
        };
        let (records, ends) = apart(vec![counted(b"r", &["1", "2"]), counted(b"s", &["3"])]);
        assert_eq!(records, [b"r", b"s"]);
        assert_eq!(ends, ["1", "2", "3"].map(ended));
    }
}
