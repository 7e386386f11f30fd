//! Limits and waits: PHP alone, Rust alone, PHP in the pool, and all of them in turn, decide the same.
//!
//! A table gives the result of each attempt of a job. PHP workers alone
//! must agree with it, so the table is Laravel's behaviour;
//! then the same job runs in Rust, and with attempts alternating between
//! the two.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::laravel::{Laravel, Served};
use crate::harness::process::{INTEROP_MAPPINGS, Workplace, eventually};
use crate::harness::redis::RedisServer;

/// The result of an attempt.
#[derive(Debug, Clone, Copy)]
enum After {
    /// Done, or deleted.
    Gone,
    /// Waits for this many seconds.
    Delayed(i64),
    /// Stays reserved until its reservation ends.
    Reserved,
    /// Recorded as failed, with a message that contains this.
    Failed(&'static str),
    /// The same, found before the attempt began.
    FailedBefore(&'static str),
}
use After::{Delayed, Failed, FailedBefore, Gone, Reserved};

/// A job, the options of its workers, and the expected result.
struct Case {
    name: &'static str,
    /// Options of `interop:journal`.
    job: &'static [&'static str],
    /// Options of both kinds of workers.
    worker: &'static [&'static str],
    after: &'static [After],
}

/// Seconds of a reservation.
const RETRY_AFTER: u64 = 8;
/// No worker of this test has more than one job, or runs longer than a few seconds.
const SOON: Duration = Duration::from_secs(120);

/// Runs one job. Laravel arms no timeout with it, and neither does artisand.
const ONCE: &[&str] = &["--once"];
/// One job, with its timeout in force.
const TIMED: &[&str] = &["--max-jobs=1"];

const TOO_MANY: &str = "has been attempted too many times";
const THROWN: &str = "thrown by the script of";
/// Of "has timed out", and before 10.10 of "may have previously timed out".
const TIMED_OUT: &str = "timed out";

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "throws-then-ok", job: &["--tries=5", "--backoff=1,2", "--script=throw,throw,throw,ok"],
        worker: ONCE, after: &[Delayed(1), Delayed(2), Delayed(2), Gone] },
    Case { name: "tries-exhausted", job: &["--tries=2", "--backoff=0", "--script=throw,throw,ok"],
        worker: ONCE, after: &[Delayed(0), Failed(THROWN)] },
    Case { name: "released-by-itself", job: &["--tries=3", "--script=release:1,release:2,ok"],
        worker: ONCE, after: &[Delayed(1), Delayed(2), Gone] },
    // A release counts as an attempt, so the next attempt reaches the limit.
    Case { name: "released-too-often", job: &["--tries=1", "--script=release:0,ok"],
        worker: ONCE, after: &[Delayed(0), FailedBefore(TOO_MANY)] },
    Case { name: "released-and-thrown", job: &["--tries=3", "--backoff=9", "--script=release:2+throw,ok"],
        worker: ONCE, after: &[Delayed(2), Gone] },
    Case { name: "failed-by-itself", job: &["--tries=3", "--script=fail"],
        worker: ONCE, after: &[Failed("failed by the script of")] },
    Case { name: "deleted-by-itself", job: &["--tries=3", "--script=delete"],
        worker: ONCE, after: &[Gone] },
    Case { name: "deleted-and-thrown", job: &["--tries=1", "--script=delete+throw"],
        worker: ONCE, after: &[Gone] },
    // `retryUntil` switches `tries` off.
    Case { name: "retry-until-to-come", job: &["--tries=1", "--backoff=1", "--retry-until=60", "--script=throw,ok"],
        worker: ONCE, after: &[Delayed(1), Gone] },
    Case { name: "retry-until-past", job: &["--tries=3", "--retry-until=-5", "--script=ok"],
        worker: ONCE, after: &[FailedBefore(TOO_MANY)] },
    Case { name: "limits-of-the-worker", job: &["--script=throw,throw"],
        worker: &["--once", "--tries=2", "--backoff=1"], after: &[Delayed(1), Failed(THROWN)] },
    Case { name: "no-limit", job: &["--tries=0", "--script=throw,throw,ok"],
        worker: ONCE, after: &[Delayed(0), Delayed(0), Gone] },
    Case { name: "timeout-of-the-last-try", job: &["--tries=1", "--timeout=3", "--script=sleep:20"],
        worker: TIMED, after: &[Failed(TIMED_OUT)] },
    Case { name: "timeout-with-a-try-left", job: &["--tries=2", "--timeout=3", "--script=sleep:20,ok"],
        worker: TIMED, after: &[Reserved, Gone] },
    Case { name: "fail-on-timeout", job: &["--tries=3", "--timeout=3", "--fail-on-timeout", "--script=sleep:20"],
        worker: TIMED, after: &[Failed(TIMED_OUT)] },
    Case { name: "timeout-of-the-worker", job: &["--script=sleep:20"],
        worker: &["--max-jobs=1", "--tries=1", "--timeout=3"], after: &[Failed(TIMED_OUT)] },
];

/// Which side runs an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Php,
    Rust,
    Pool,
}

/// Which side runs the first attempt, the second, and so on.
const TURNS: [(&str, [By; 2]); 8] = [
    ("php", [By::Php, By::Php]),
    ("rust", [By::Rust, By::Rust]),
    ("rust-php", [By::Rust, By::Php]),
    ("php-rust", [By::Php, By::Rust]),
    ("pool", [By::Pool, By::Pool]),
    ("pool-php", [By::Pool, By::Php]),
    ("php-pool", [By::Php, By::Pool]),
    ("rust-pool", [By::Rust, By::Pool]),
];

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "scores and times are whole seconds of this century"
)]
fn whole(number: f64) -> i64 {
    number.floor() as i64
}

/// Members of a sorted set with their scores.
type Scored = Vec<(Vec<u8>, f64)>;

/// A job on its way through a case.
struct Run<'a> {
    redis: &'a RedisServer,
    laravel: &'a Laravel,
    served: &'a Served,
    workplace: &'a Workplace,
    /// Nothing is mapped here.
    pool: &'a Workplace,
    case: &'a Case,
    /// Name of the job and of its queue, unique within the test.
    id: String,
    uuid: String,
}

/// The outside view of one attempt.
struct Attempt {
    number: usize,
    by: By,
    /// Seconds before the worker was started and after it had ended.
    during: (i64, i64),
    /// Its journal lines.
    journal: Vec<Value>,
    output: String,
}

impl Run<'_> {
    fn key(&self, part: &str) -> String {
        self.laravel.key(&format!("queues:{}{part}", self.id))
    }

    fn dispatch(&mut self) {
        let queue = format!("--queue={}", self.id);
        let args = [&["interop:journal", &*self.id, &*queue][..], self.case.job].concat();
        let line = self.served.run(&args);
        line["uuid"].as_str().unwrap().clone_into(&mut self.uuid);
    }

    fn journal(&self) -> Vec<Value> {
        self.redis
            .list("interop:journal")
            .iter()
            .map(|line| serde_json::from_slice(line).unwrap())
            .filter(|line: &Value| line["id"] == *self.id)
            .collect()
    }

    /// Records of this job in the failed-job spool.
    fn spooled(&self) -> Vec<Value> {
        self.redis
            .list(&self.laravel.key("artisand:failed-spool"))
            .iter()
            .map(|record| serde_json::from_slice(record).unwrap())
            .filter(|record: &Value| record["uuid"] == *self.uuid)
            .collect()
    }

    /// The job's elements: in the list, delayed and reserved.
    fn elements(&self) -> (Vec<Vec<u8>>, Scored, Scored) {
        (
            self.redis.list(&self.key("")),
            self.redis.scores(&self.key(":delayed")),
            self.redis.scores(&self.key(":reserved")),
        )
    }

    /// Waits until the job may run.
    fn wait_until_due(&self) {
        let (_, delayed, reserved) = self.elements();
        if let Some((_, due)) = delayed.first().or(reserved.first()) {
            let due = Duration::from_secs(u64::try_from(whole(*due)).unwrap());
            let left = due.saturating_sub(now());
            assert!(left < SOON, "{} is due only in {left:?}", self.id);
            // Both kinds of workers use the clock. A moment more, so that the time has surely passed.
            std::thread::sleep(left + Duration::from_millis(5));
        }
    }

    fn attempt(&self, number: usize, by: By) -> Attempt {
        let seen = self.journal().len();
        let queue = format!("--queue={}", self.id);
        let args = [&[&*queue, "--sleep=0"][..], self.case.worker].concat();
        // PHP's worker kills itself after a timeout, so then it needs a process of its own.
        let is_timed = !self.case.worker.contains(&"--once");
        let before = seconds(now());
        let mut worker = match by {
            By::Php if is_timed => self.laravel.worker(&args),
            By::Php => {
                let output = self
                    .served
                    .text(&[&["queue:work", "redis"][..], &args].concat());
                return self.seen(number, by, before, seen, output);
            }
            By::Rust => self.workplace.worker(&args),
            By::Pool => self.pool.worker(&args),
        };
        let status = worker.wait_timeout(SOON);
        let is_fine = status.success() || (by == By::Php && is_timed);
        assert!(is_fine, "{status}: {}", worker.describe());
        self.seen(number, by, before, seen, worker.describe())
    }

    /// An attempt that began before the second `before`, when the journal had `lines` lines.
    fn seen(&self, number: usize, by: By, before: i64, lines: usize, output: String) -> Attempt {
        Attempt {
            number,
            by,
            during: (before, seconds(now())),
            journal: self.journal().split_off(lines),
            output,
        }
    }

    /// Compares Redis and the journal with the table.
    fn check(&self, attempt: &Attempt, expected: After) {
        let place = format!(
            "Laravel {} {} attempt {} by {:?} => {expected:?}",
            self.laravel.version, self.id, attempt.number, attempt.by
        );
        let (list, delayed, reserved) = self.elements();
        let context = format!(
            "{place}; journal {:?}; {}\n{}",
            attempt.journal,
            self.redis.state(),
            attempt.output
        );
        let events = match expected {
            Gone | Delayed(_) | Reserved => &["run"][..],
            Failed(_) => &["run", "failed"],
            FailedBefore(_) => &["failed"],
        };
        let found: Vec<&str> = attempt
            .journal
            .iter()
            .map(|line| line["event"].as_str().unwrap())
            .collect();
        assert_eq!(found, events, "{context}");
        let by = if attempt.by == By::Rust {
            "rust"
        } else {
            "php"
        };
        for line in &attempt.journal {
            assert_eq!(line["by"], by, "{context}");
            if line["event"] == "run" {
                assert_eq!(line["attempts"], attempt.number, "{context}");
            }
        }

        assert!(list.is_empty(), "{context}");
        let sizes = match expected {
            Gone | Failed(_) | FailedBefore(_) => (0, 0),
            Delayed(_) => (1, 0),
            Reserved => (0, 1),
        };
        assert_eq!((delayed.len(), reserved.len()), sizes, "{context}");
        for (element, _) in delayed.iter().chain(&reserved) {
            let payload: Value = serde_json::from_slice(element).unwrap();
            assert_eq!(payload["attempts"], attempt.number, "{context}");
        }
        let (before, after) = attempt.during;
        let ran_at = attempt.journal.first().and_then(|line| line["at"].as_f64());
        let ran_at = whole(ran_at.unwrap());
        match expected {
            // Released between its run and the worker's end.
            Delayed(delay) => {
                let score = whole(delayed[0].1);
                let possible = ran_at + delay..=after + delay;
                assert!(
                    possible.contains(&score),
                    "{score} not in {possible:?}: {context}"
                );
            }
            // Reserved between the worker's start and the run.
            Reserved => {
                let score = whole(reserved[0].1);
                let possible =
                    before + RETRY_AFTER.cast_signed()..=ran_at + RETRY_AFTER.cast_signed() + 1;
                assert!(
                    possible.contains(&score),
                    "{score} not in {possible:?}: {context}"
                );
            }
            Gone | Failed(_) | FailedBefore(_) => {}
        }
        self.check_failure(attempt, expected, &context);
    }

    /// Records of this job in the app's store.
    fn stored(&self) -> Vec<Value> {
        let found = self.served.run(&["interop:failed"]);
        let mut jobs = found["jobs"].as_array().unwrap().clone();
        jobs.retain(|job| job["id"] == *self.uuid);
        jobs
    }

    /// A failed job's class is notified, and the job is recorded once. The worker of mapped jobs has no app: its
    /// records wait for a worker that has one.
    fn check_failure(&self, attempt: &Attempt, expected: After, context: &str) {
        if attempt.by == By::Pool {
            // Any of the workers may store it.
            eventually("the record is stored", SOON, || {
                self.spooled().is_empty().then_some(())
            });
        }
        let spooled = self.spooled();
        let mut records = self.stored();
        assert!(spooled.len() <= 1, "{spooled:?}: {context}");
        assert!(
            spooled.is_empty() || attempt.by == By::Rust,
            "{spooled:?}: {context}"
        );
        if records.is_empty() {
            records = spooled;
        }
        let (Failed(message) | FailedBefore(message)) = expected else {
            assert!(records.is_empty(), "{records:?}: {context}");
            return;
        };
        let told = &attempt.journal.last().unwrap()["message"];
        assert!(told.as_str().unwrap().contains(message), "{context}");
        assert_eq!(records.len(), 1, "{records:?}: {context}");
        let record = &records[0];
        assert_eq!(record["queue"], *self.id, "{context}");
        let exception = record["exception"].as_str().unwrap();
        assert!(exception.contains(message), "{exception}: {context}");
        let payload: Value = serde_json::from_str(record["payload"].as_str().unwrap()).unwrap();
        assert_eq!(payload["uuid"], *self.uuid, "{context}");
        assert_eq!(payload["attempts"], attempt.number - 1, "{context}");
    }
}

fn every_case_ends_the_same_by_php_and_by_rust(version: u8) {
    let redis = RedisServer::start();
    let env = [
        ("REDIS_QUEUE_RETRY_AFTER", RETRY_AFTER.to_string()),
        ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
    ];
    let laravel = Laravel::with_env(version, &redis, &env);
    // The first look makes the tables.
    laravel.run(&["interop:failed"]);
    let workplace = Workplace::new(&redis, &laravel.prefix, RETRY_AFTER, INTEROP_MAPPINGS);
    let pool = Workplace::with_pool(&laravel, 1, "");
    let (laravel, redis, workplace, pool) = (&laravel, &redis, &workplace, &pool);
    let walk = &|(name, turns): (&str, [By; 2])| {
        let served = laravel.serve();
        for case in CASES {
            let is_taking_turns = turns[0] != turns[1];
            if is_taking_turns && case.after.len() == 1 {
                continue;
            }
            let mut run = Run {
                redis,
                laravel,
                served: &served,
                workplace,
                pool,
                case,
                id: format!("{}-{name}", case.name),
                uuid: String::new(),
            };
            run.dispatch();
            for (index, (after, by)) in case.after.iter().zip(turns.iter().cycle()).enumerate() {
                run.wait_until_due();
                let attempt = run.attempt(index + 1, *by);
                run.check(&attempt, *after);
            }
        }
    };
    // Each has separate queues; most of the time is waiting.
    std::thread::scope(|scope| {
        for turns in TURNS {
            scope.spawn(move || walk(turns));
        }
    });
}

on_every_laravel!(every_case_ends_the_same_by_php_and_by_rust);
