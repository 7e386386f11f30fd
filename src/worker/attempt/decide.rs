//! Decides what becomes of a job before and after an attempt: delete, release or fail.
//!
//! Everything here is a pure function over small values. No I/O, no clock, no
//! configuration lookup: the caller passes `now`, the limits that hold for
//! this job and how the attempt ended, and gets a [`Decision`] back.
//!
//! The rules are those of `Illuminate\Queue\Worker` since Laravel 8.15 (docs/protocol/worker.md 4 to 7), including
//! the surprising ones:
//!
//! * `retryUntil` switches `maxTries` off, it does not add to it.
//! * At the very second of `retryUntil` a job still starts, but fails on an exception.
//! * `maxTries` 0 means "forever", not "never".
//! * The last entry of a backoff list repeats. Every attempt moves along the list, also one that ended in a
//!   release.
//! * A job that timed out and may run again is neither released nor deleted: it comes back when its reservation
//!   ends.

use std::time::Duration;

use crate::handler::{FailureText, Request};
use crate::payload::{Backoff, Limits, Version};
use crate::queue::ReservedJob;
use crate::time::UnixSeconds;
use crate::worker::attempt::outcome::Outcome;

/// The limits of one job: its own, or the worker's defaults where it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Most attempts; `None` for no limit.
    pub max_tries: Option<i64>,
    /// No new attempt after this moment, and `max_tries` does not count.
    pub retry_until: Option<UnixSeconds>,
    /// Most exceptions.
    pub max_exceptions: Option<i64>,
    /// Whether a timeout fails the job.
    pub fail_on_timeout: bool,
    /// Waits after exceptions.
    pub backoff: Backoff,
    /// Longest attempt; `None` for no limit.
    pub timeout: Option<Duration>,
}

/// The worker's options for jobs without limits of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `--tries`; 0 for no limit.
    pub tries: i64,
    /// `--backoff`.
    pub backoff: Backoff,
    /// `--timeout`; zero for no limit.
    pub timeout: Duration,
}

impl Rules {
    /// Puts a job's limits over the worker's defaults; here Laravel's 0 becomes "no limit".
    pub(crate) fn of(limits: &Limits, defaults: &Defaults) -> Self {
        Self {
            max_tries: Some(limits.max_tries.unwrap_or(defaults.tries)).filter(|tries| *tries != 0),
            retry_until: limits.retry_until,
            max_exceptions: limits.max_exceptions,
            fail_on_timeout: limits.fail_on_timeout,
            backoff: limits
                .backoff
                .clone()
                .unwrap_or_else(|| defaults.backoff.clone()),
            timeout: Some(limits.timeout.unwrap_or(defaults.timeout))
                .filter(|timeout| !timeout.is_zero()),
        }
    }

    /// Waits between attempts of a job whose data cannot be read, in seconds.
    const WAITS: [u64; 7] = [1, 5, 15, 60, 300, 900, 3600];

    /// The wait before the next attempt of a job whose data cannot be read; `None` if its limits or backoff
    /// suffice.
    ///
    /// Only another program or another payload can make such a job succeed. Laravel would try it in an endless
    /// loop without a pause.
    pub(crate) fn wait_of_unreadable(&self, attempts: u32) -> Option<Duration> {
        let has_end = (self.max_tries.is_some() && self.retry_until.is_none())
            || self.max_exceptions.is_some();
        if has_end || !self.backoff.after(attempts).is_zero() {
            return None;
        }
        let place = (attempts.max(1) - 1) as usize;
        let wait = Self::WAITS.get(place).or(Self::WAITS.last());
        wait.copied().map(Duration::from_secs)
    }

    /// Whether a job that threw in this attempt is not tried again.
    fn are_spent(&self, attempts: u32, exceptions: Option<i64>, now: UnixSeconds) -> bool {
        let is_last = match (self.retry_until, self.max_tries) {
            (Some(retry_until), _) => retry_until <= now,
            (None, Some(max_tries)) => max_tries > 0 && i64::from(attempts) >= max_tries,
            (None, None) => false,
        };
        let exceptions = self.max_exceptions.zip(exceptions);
        is_last || exceptions.is_some_and(|(most, exceptions)| most <= exceptions)
    }
}

/// What becomes of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The job is done, or the handler deleted it.
    Delete,
    /// Deleted because one of its models is gone; the job does not count as failed.
    DeleteMissing,
    /// Deleted because another job has taken its place: no chain, batch or lock is touched.
    Discard,
    /// Back to the queue after a wait; the attempt does not count.
    ReleaseUncounted {
        /// The wait.
        delay: Duration,
    },
    /// Back to the queue after a wait.
    Release {
        /// The wait.
        delay: Duration,
        /// True after an exception; false if the handler asked for it or the worker stops.
        after_exception: bool,
    },
    /// Failed for good.
    Fail(FailureText),
    /// Stays reserved until its reservation ends.
    Leave,
}

/// Laravel's exception for a job that was attempted too often.
const TOO_MANY_ATTEMPTS: &str = "Illuminate\\Queue\\MaxAttemptsExceededException";

/// Text of the exception for a job that was attempted too often.
fn too_many_attempts(name: &str) -> FailureText {
    let message = format!("{name} has been attempted too many times.");
    FailureText::new(TOO_MANY_ATTEMPTS, message)
}

/// Text of the exception for a job that ran too long.
pub(crate) fn timed_out(name: &str) -> FailureText {
    FailureText::new(
        "Illuminate\\Queue\\TimeoutExceededException",
        format!("{name} has timed out."),
    )
}

/// A failure as Laravel of this version says it: before 10.10 it has one exception for both of the above.
///
/// # Source
///
/// `Illuminate\Queue\Worker::maxAttemptsExceededException`.
pub(crate) fn in_words_of(version: Version, mut failure: FailureText, name: &str) -> FailureText {
    let is_said_by =
        |own: FailureText| own.class == failure.class && own.message == failure.message;
    if version.is_at_least(10, 10)
        || !(is_said_by(too_many_attempts(name)) || is_said_by(timed_out(name)))
    {
        return failure;
    }
    TOO_MANY_ATTEMPTS.clone_into(&mut failure.class);
    failure.message = format!(
        "{name} has been attempted too many times or run too long. The job may have previously timed out."
    );
    // Its causes follow its own message.
    if let Some(own) = failure.chain.first_mut() {
        own.clone_from(&failure.message);
    }
    failure
}

/// Says why an attempt must not start: the job's last allowed attempt is over, whichever worker made it.
///
/// `attempts` is the number of the attempt about to start, from 1. If the queue's column cannot hold a higher number,
/// the attempts are over, too, as in Laravel since 12.54.
///
/// # Source
///
/// `Illuminate\Queue\Worker::markJobAsFailedIfAlreadyExceedsMaxAttempts`.
pub(crate) fn before_attempt(
    rules: &Rules,
    attempts: u32,
    now: UnixSeconds,
    name: &str,
) -> Option<FailureText> {
    let is_over = match (rules.retry_until, rules.max_tries) {
        // The queue cannot count any further.
        _ if attempts == ReservedJob::UNCOUNTABLE => true,
        (Some(retry_until), _) => now > retry_until,
        (None, Some(max_tries)) => i64::from(attempts) > max_tries,
        (None, None) => false,
    };
    is_over.then(|| too_many_attempts(name))
}

/// Says what becomes of a job after attempt number `attempts`.
///
/// `exceptions` is how often the job has thrown, including this time; `None` if that is not counted.
///
/// # Source
///
/// `Illuminate\Queue\Worker::process`, `handleJobException`,
/// `registerTimeoutHandler`; `CallQueuedHandler::handleModelNotFound`.
pub(crate) fn after_attempt(
    rules: &Rules,
    attempts: u32,
    outcome: &Outcome,
    request: &Request,
    exceptions: Option<i64>,
    now: UnixSeconds,
    name: &str,
) -> Decision {
    if let Some(failure) = &request.fail {
        return Decision::Fail(failure.clone());
    }
    if request.discard {
        return Decision::Discard;
    }
    if request.delete {
        return Decision::Delete;
    }
    let release = |delay, after_exception| Decision::Release {
        delay,
        after_exception,
    };
    let asked = request.release.map(|delay| {
        if request.is_uncounted {
            Decision::ReleaseUncounted { delay }
        } else {
            release(delay, false)
        }
    });
    let is_over = rules.are_spent(attempts, exceptions, now);
    match outcome {
        Outcome::Finished => asked.unwrap_or(Decision::Delete),
        // A missing model overrides all limits, and does not count as an exception.
        Outcome::ModelMissing { deletes: true, .. } => Decision::DeleteMissing,
        Outcome::ModelMissing { failure, .. } => Decision::Fail(failure.clone()),
        Outcome::Threw { failure, .. } if is_over => Decision::Fail(failure.clone()),
        Outcome::Threw { is_unreadable, .. } => {
            let wait = rules.wait_of_unreadable(attempts);
            let wait = wait.filter(|_| *is_unreadable).unwrap_or_default();
            match asked {
                Some(Decision::Release { delay, .. }) => release(delay.max(wait), false),
                Some(asked) => asked,
                None => release(rules.backoff.after(attempts).max(wait), true),
            }
        }
        Outcome::TimedOut if is_over || rules.fail_on_timeout => Decision::Fail(timed_out(name)),
        Outcome::TimedOut => asked.unwrap_or(Decision::Leave),
        // The attempt counts, as if the process had been killed: a job with one try does not run a second time.
        Outcome::Stopped => asked.unwrap_or(release(Duration::ZERO, false)),
        Outcome::Lost(_) => Decision::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn rules(max_tries: i64, retry_until: Option<i64>) -> Rules {
        let limits = Limits {
            max_tries: Some(max_tries),
            retry_until: retry_until.map(UnixSeconds),
            backoff: Some(Backoff::parse("1,5")),
            ..Limits::default()
        };
        Rules::of(
            &limits,
            &Defaults {
                tries: 1,
                backoff: Backoff::parse("9"),
                timeout: S(60),
            },
        )
    }

    fn thrown() -> FailureText {
        FailureText::new("E", "m")
    }

    #[test]
    fn an_attempt_that_threw_is_released_until_its_limits_are_spent() {
        let released = |seconds| Decision::Release {
            delay: S(seconds),
            after_exception: true,
        };
        let failed = || Decision::Fail(thrown());
        #[rustfmt::skip]
        let rows = [
            // max_tries, retry_until, attempts, now => decision
            (0, None,     99, 10, released(5)),
            (3, None,      1, 10, released(1)),
            (3, None,      2, 10, released(5)),
            (3, None,      3, 10, failed()),
            (3, None,      4, 10, failed()),
            (-1, None,     1, 10, released(1)),
            (3, Some(11),  9, 10, released(5)),
            (3, Some(10),  1, 10, failed()),
            (0, Some(10),  1, 10, failed()),
            (0, Some(9),   1, 10, failed()),
        ];
        for (max_tries, retry_until, attempts, now, expected) in rows {
            let rules = rules(max_tries, retry_until);
            let ended = Outcome::threw(thrown());
            let decision = after_attempt(
                &rules,
                attempts,
                &ended,
                &Request::default(),
                None,
                UnixSeconds(now),
                "X",
            );
            assert_eq!(decision, expected, "{rules:?} attempt {attempts} at {now}");
        }
    }

    #[test]
    fn an_attempt_does_not_start_once_its_limits_are_passed() {
        #[rustfmt::skip]
        let rows = [
            // max_tries, retry_until, attempts, now => fails
            (0, None,     99, 10, false),
            (3, None,      3, 10, false),
            (3, None,      4, 10, true),
            (-1, None,     1, 10, true),
            (1, Some(10), 99, 10, false),
            (1, Some(9),   1, 10, true),
        ];
        for (max_tries, retry_until, attempts, now, expected) in rows {
            let rules = rules(max_tries, retry_until);
            let failure = before_attempt(&rules, attempts, UnixSeconds(now), "App\\Jobs\\X");
            assert_eq!(
                failure.is_some(),
                expected,
                "{rules:?} attempt {attempts} at {now}"
            );
            if let Some(failure) = failure {
                assert_eq!(
                    failure.message,
                    "App\\Jobs\\X has been attempted too many times."
                );
            }
        }
    }

    #[test]
    fn a_timeout_fails_the_job_or_leaves_it_reserved() {
        let failed = || Decision::Fail(timed_out("X"));
        #[rustfmt::skip]
        let rows = [
            // max_tries, fail_on_timeout, attempts => decision
            (1, false, 1, failed()),
            (3, false, 1, Decision::Leave),
            (3, false, 3, failed()),
            (3, true,  1, failed()),
            (0, false, 9, Decision::Leave),
        ];
        for (max_tries, fail_on_timeout, attempts, expected) in rows {
            let rules = Rules {
                fail_on_timeout,
                ..rules(max_tries, None)
            };
            let decision = after_attempt(
                &rules,
                attempts,
                &Outcome::TimedOut,
                &Request::default(),
                None,
                UnixSeconds(10),
                "X",
            );
            assert_eq!(decision, expected, "{rules:?} attempt {attempts}");
        }
    }

    #[test]
    fn laravel_before_10_10_does_not_tell_timeouts_from_too_many_attempts() {
        let old = "X has been attempted too many times or run too long. The job may have previously timed out.";
        for own in [too_many_attempts("X"), timed_out("X")] {
            let [before, since] = ["10.9.0", "10.10.0"].map(|version| {
                let failure = own.clone().caused_by("E: disk full".to_owned());
                in_words_of(version.parse().unwrap(), failure, "X")
            });
            assert_eq!(before.class, TOO_MANY_ATTEMPTS);
            assert_eq!(before.message, old);
            assert_eq!(before.chain, [old, "E: disk full"]);
            assert_eq!(since, own.caused_by("E: disk full".to_owned()));
        }
        let other = FailureText::new(TOO_MANY_ATTEMPTS, "said by the handler");
        let version = "8.83.27".parse().unwrap();
        assert_eq!(in_words_of(version, other.clone(), "X"), other);
    }

    #[test]
    fn what_the_handler_asked_for_counts() {
        let asked_release = || Request {
            release: Some(S(7)),
            ..Request::default()
        };
        let asked_delete = || Request {
            delete: true,
            ..Request::default()
        };
        let asked_fail = || Request {
            fail: Some(thrown()),
            ..Request::default()
        };
        let released = |delay| Decision::Release {
            delay,
            after_exception: false,
        };
        let asked_uncounted = || Request {
            is_uncounted: true,
            ..asked_release()
        };
        let uncounted = |delay| Decision::ReleaseUncounted { delay };
        let asked_discard = || Request {
            discard: true,
            ..asked_delete()
        };
        let other = || FailureText::new("Other", "");
        let missing = |deletes| Outcome::ModelMissing {
            failure: other(),
            deletes,
        };
        #[rustfmt::skip]
        let rows = [
            (Request::default(), Outcome::Finished, 1, Decision::Delete),
            (asked_release(),  Outcome::Finished, 1, released(S(7))),
            // A handler that releases its job is not limited until the next attempt begins.
            (asked_release(),  Outcome::Finished, 9, released(S(7))),
            (asked_release(),  Outcome::threw(thrown()), 1, released(S(7))),
            (asked_release(),  Outcome::threw(thrown()), 3, Decision::Fail(thrown())),
            (asked_uncounted(), Outcome::Finished, 9, uncounted(S(7))),
            (asked_uncounted(), Outcome::threw(thrown()), 3, Decision::Fail(thrown())),
            (asked_discard(),  Outcome::Finished, 1, Decision::Discard),
            (asked_delete(),   Outcome::threw(thrown()), 3, Decision::Delete),
            (asked_fail(),     Outcome::Finished, 1, Decision::Fail(thrown())),
            (asked_fail(),     Outcome::threw(other()), 1, Decision::Fail(thrown())),
            (Request::default(), Outcome::Stopped, 3, released(S(0))),
            // A model that is gone ends the job on any attempt, released or not.
            (Request::default(), missing(true),  1, Decision::DeleteMissing),
            (Request::default(), missing(false), 1, Decision::Fail(other())),
            (Request::default(), missing(true),  3, Decision::DeleteMissing),
            (asked_release(),  missing(true),  1, Decision::DeleteMissing),
            (asked_release(),  missing(false), 1, Decision::Fail(other())),
            (asked_delete(),   missing(false), 1, Decision::Delete),
            (asked_fail(),     missing(true),  1, Decision::Fail(thrown())),
        ];
        for (asked, ended, attempts, expected) in rows {
            let text = format!("{asked:?} {ended:?} attempt {attempts}");
            let decision = after_attempt(
                &rules(3, None),
                attempts,
                &ended,
                &asked,
                None,
                UnixSeconds(10),
                "X",
            );
            assert_eq!(decision, expected, "{text}");
        }
    }

    #[test]
    fn a_job_that_cannot_be_read_and_has_no_limit_waits_longer_and_longer() {
        let without_wait = |max_tries, retry_until| Rules {
            backoff: Backoff::parse("0"),
            ..rules(max_tries, retry_until)
        };
        #[rustfmt::skip]
        let rows = [
            // rules, attempts => wait
            (without_wait(0, None),     1,      Some(S(1))),
            (without_wait(0, None),     5,      Some(S(300))),
            (without_wait(0, None),     71_231, Some(S(3600))),
            (without_wait(0, Some(99)), 2,      Some(S(5))),
            (without_wait(3, Some(99)), 2,      Some(S(5))),
            (without_wait(3, None),     2,      None),
            // The job has waits of its own, or the worker's.
            (rules(0, None),            2,      None),
        ];
        for (rules, attempts, expected) in rows {
            let wait = rules.wait_of_unreadable(attempts);
            assert_eq!(wait, expected, "{rules:?} {attempts}");
        }
        let counted = Rules {
            max_exceptions: Some(3),
            ..without_wait(0, None)
        };
        assert_eq!(counted.wait_of_unreadable(1), None);
    }

    #[test]
    fn exceptions_have_a_limit_of_their_own() {
        let rules = Rules {
            max_exceptions: Some(2),
            ..rules(0, None)
        };
        let decide = |exceptions| {
            let ended = Outcome::threw(thrown());
            after_attempt(
                &rules,
                1,
                &ended,
                &Request::default(),
                exceptions,
                UnixSeconds(10),
                "X",
            )
        };
        assert!(matches!(decide(Some(1)), Decision::Release { .. }));
        assert!(matches!(decide(Some(2)), Decision::Fail(_)));
        assert!(matches!(decide(None), Decision::Release { .. }));
    }

    #[test]
    fn a_job_without_limits_has_the_workers() {
        let defaults = Defaults {
            tries: 4,
            backoff: Backoff::parse("9"),
            timeout: S(0),
        };
        let rules = Rules::of(&Limits::default(), &defaults);
        assert_eq!((rules.max_tries, rules.timeout), (Some(4), None));
        assert_eq!(rules.backoff.after(3), S(9));
        let own = Limits {
            timeout: Some(S(0)),
            max_tries: Some(0),
            ..Limits::default()
        };
        let rules = Rules::of(
            &own,
            &Defaults {
                timeout: S(60),
                ..defaults
            },
        );
        assert_eq!((rules.max_tries, rules.timeout), (None, None));
    }
}
