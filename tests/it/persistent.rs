//! Programs that run one job after the other.

use std::fs::Permissions;
use std::num::{NonZeroU64, NonZeroUsize};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use artisand::handler::{self, Handler, JobContext};
use artisand::payload::CALL_QUEUED_HANDLER;
use artisand::payload::Pattern;
use artisand::process::{Exec, ExecOptions, Persistent, PersistentOptions};
use artisand::queue::Queue as _;
use artisand::routing::{HandlerChoice, Mapping, Registry, UnmappedPolicy};
use artisand::time::Clock;
use artisand::worker::WorkerOptions;
use serde::de::IgnoredAny;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;
use crate::worker::{job, name, options, payload, queue, router, run};

const SOON: Duration = Duration::from_secs(20);

/// A shell script and its directory.
struct Script {
    options: PersistentOptions,
    directory: TempDir,
}

impl Script {
    /// `$D` is a private directory; the script's process id is a line of `$D/pids`.
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let begin = format!("D={}; echo $$ >> $D/pids\n", directory.path().display());
        let command = ["sh", "-c", &(begin + script)].map(str::to_owned).to_vec();
        let options = PersistentOptions {
            command,
            ..PersistentOptions::default()
        };
        Self { options, directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn pids(&self) -> Vec<String> {
        self.lines("pids")
    }

    fn choice(&self) -> HandlerChoice {
        HandlerChoice::Persistent(self.options.clone())
    }

    /// Runs jobs in a worker and returns its events.
    async fn work(&self, concurrency: usize, jobs: &[Vec<u8>]) -> Vec<String> {
        let mapping = Mapping::new(Pattern::parse("*").unwrap(), self.choice());
        work(vec![mapping], &Registry::new(), concurrency, jobs).await
    }

    /// Waits until none of its processes runs.
    fn all_end(&self) {
        for pid in self.pids() {
            ends(&pid);
        }
    }
}

async fn work(
    mappings: Vec<Mapping>,
    registry: &Registry,
    concurrency: usize,
    jobs: &[Vec<u8>],
) -> Vec<String> {
    let queue = queue();
    queue.push(&name("default"), jobs).await.unwrap();
    let router = router(mappings, UnmappedPolicy::Leave, registry);
    let options = WorkerOptions {
        clock: Clock::System,
        ..options(concurrency)
    };
    run(&queue, router, options).await.1
}

fn is_running(pid: &str) -> bool {
    // The state comes after the name, which is in parentheses.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn ends(pid: &str) {
    eventually(&format!("process {pid} ends"), SOON, || {
        (!is_running(pid)).then_some(())
    });
}

fn jobs(numbers: std::ops::RangeInclusive<u32>) -> Vec<Vec<u8>> {
    numbers
        .map(|n| payload("A", n, &json!({"maxTries": 1, "timeout": 20})))
        .collect()
}

const ANSWER: &str =
    r#"while read -r line; do printf '%s\n' "$line" >> $D/lines; echo '{"ok":true}'; done"#;

#[tokio::test]
async fn one_program_runs_many_jobs_and_ends_with_the_worker() {
    let script = Script::new(&format!("{ANSWER}; echo end of input >> $D/lines"));
    let events = script.work(1, &jobs(1..=5)).await;
    assert_eq!(events, ["processing 1", "processed Deleted"].repeat(5));
    assert_eq!(script.pids().len(), 1);
    let lines = script.lines("lines");
    assert_eq!(lines.len(), 6, "{lines:?}");
    for (line, n) in lines.iter().zip(1..=5) {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(document["data"], json!({"n": n}));
        assert_eq!(document["uuid"], format!("uuid-{n}"));
    }
    // It ended on request, and was not killed: the worker has waited for it.
    assert_eq!(lines[5], "end of input");
    assert!(!is_running(&script.pids()[0]));
}

#[tokio::test]
async fn what_a_program_answers_is_what_happens() {
    let error = "failed: Artisand\\HandlerError: ";
    let failed = "failed: Illuminate\\Queue\\ManuallyFailedException: ";
    let rows = [
        (r#"{"release":9}"#, "processed Released".to_owned()),
        (
            r#"{"fail":"no such order"}"#,
            format!("{failed}no such order"),
        ),
        (
            r#"{"error":"disk on fire"}"#,
            format!("{error}disk on fire"),
        ),
        (
            r#"{"uuid":"uuid-1","ok":true}"#,
            "processed Deleted".to_owned(),
        ),
    ];
    for (answer, expected) in rows {
        let script = Script::new(&format!("while read -r line; do echo '{answer}'; done"));
        let events = script.work(1, &jobs(1..=1)).await;
        assert_eq!(events[..2], ["processing 1", &expected], "{answer}");
        assert_eq!(script.pids().len(), 1, "{answer}");
    }
    // None of these is an answer, and none of these programs gets another job.
    let rows = [
        "hello",
        r#"{"ok":false}"#,
        r#"{"uuid":"uuid-7","ok":true}"#,
        r#"{"ok":true,"fail":"both"}"#,
        "",
    ];
    for answer in rows {
        let script = Script::new(&format!(
            "while read -r line; do echo oops >&2; echo '{answer}'; done"
        ));
        let events = script.work(1, &jobs(1..=2)).await;
        for event in [&events[1], &events[3]] {
            let is_said = event
                .starts_with(&format!("{error}`sh` wrote something that is no answer ("))
                && event.ends_with(": oops");
            assert!(is_said, "{answer}: {events:?}");
        }
        assert_eq!(script.pids().len(), 2, "{answer}");
        script.all_end();
    }
}

#[tokio::test]
async fn an_answer_without_end_fills_no_memory() {
    let script = Script::new("read -r line; exec cat /dev/zero");
    let events = script.work(1, &jobs(1..=1)).await;
    assert!(
        events[1].contains("is no answer (longer than 1048576 bytes): \"\\0\\0"),
        "{events:?}"
    );
    assert!(events[1].len() < 2000);
    script.all_end();
}

#[tokio::test]
async fn a_program_that_says_too_much_keeps_its_answer_and_not_its_place() {
    let script = Script::new(
        "while read -r line; do printf '{\"ok\":true}\\n{\"fail\":\"twice\"}\\n'; done",
    );
    let events = script.work(1, &jobs(1..=3)).await;
    assert_eq!(events, ["processing 1", "processed Deleted"].repeat(3));
    assert_eq!(script.pids().len(), 3);
    script.all_end();
}

#[tokio::test]
async fn a_program_that_dies_takes_only_the_job_with_it_that_it_has() {
    let script = Script::new(
        r#"while read -r line; do
            case "$line" in *'"n":2'*) echo broken >&2; exit 3;; *'"n":4'*) exec >&-; sleep 60;; esac
            echo '{"ok":true}'
        done"#,
    );
    let events = script.work(1, &jobs(1..=5)).await;
    let results: Vec<&String> = events
        .iter()
        .filter(|event| *event != "processing 1")
        .collect();
    let expected = [
        "processed Deleted",
        "failed: Artisand\\HandlerError: `sh` ended with exit status: 3 before it answered: broken",
        "processed Deleted",
        "failed: Artisand\\HandlerError: `sh` closed its standard output or input before it answered",
        "processed Deleted",
    ];
    assert_eq!(results, expected);
    assert_eq!(script.pids().len(), 3);
    script.all_end();
    let missing = PersistentOptions {
        command: vec!["/nowhere/program".to_owned()],
        ..PersistentOptions::default()
    };
    let choice = HandlerChoice::Persistent(missing);
    let mapping = Mapping::new(Pattern::parse("*").unwrap(), choice);
    let events = work(vec![mapping], &Registry::new(), 1, &jobs(1..=1)).await;
    let expected =
        "failed: Artisand\\HandlerError: could not start `/nowhere/program`: No such file";
    assert!(events[1].starts_with(expected), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_that_meets_a_dead_program_goes_to_a_fresh_one() {
    // The program ends by itself after each job, unobserved.
    let script = Script::new(r#"read -r line; echo '{"ok":true}'; exit 1"#);
    let pids = script.path("pids");
    let wait = handler::blocking(move |_: IgnoredAny, _| {
        for pid in std::fs::read_to_string(&pids).unwrap().lines() {
            ends(pid);
        }
        Ok::<(), std::io::Error>(())
    });
    let registry = Registry::new().with("wait", wait);
    let mappings = vec![
        Mapping::new(
            Pattern::parse(r"App\Jobs\Wait").unwrap(),
            HandlerChoice::Named("wait".into()),
        ),
        Mapping::new(Pattern::parse("*").unwrap(), script.choice()),
    ];
    let rows = [("A", 1), ("Wait", 2), ("A", 3), ("Wait", 4), ("A", 5)];
    let jobs: Vec<Vec<u8>> = rows.iter().map(|(class, n)| job(class, *n)).collect();
    let events = work(mappings, &registry, 1, &jobs).await;
    assert_eq!(events, ["processing 1", "processed Deleted"].repeat(5));
    assert_eq!(script.pids().len(), 3);
    // The next job may come before the end: then it is in a pipe without a reader.
    let events = script.work(1, &self::jobs(1..=20)).await;
    assert_eq!(events, ["processing 1", "processed Deleted"].repeat(20));
    assert_eq!(script.pids().len(), 23);
}

#[tokio::test]
async fn a_program_that_ends_before_its_first_job_is_not_started_for_ever() {
    for script in [
        "echo no config >&2; exit 78",
        "exec <&-; echo no config >&2; exit 78",
    ] {
        let script = Script::new(script);
        let events = script.work(1, &jobs(1..=1)).await;
        let expected = "failed: Artisand\\HandlerError: `sh` ended with exit status: 78 before it answered: no config";
        assert_eq!(events, ["processing 1", expected]);
        assert_eq!(script.pids().len(), 1);
    }
}

/// As while a new version of it is installed.
#[tokio::test]
async fn a_program_that_is_being_written_costs_no_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let written = std::fs::File::create(&program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let command = vec![program.display().to_string()];
    let exec = ExecOptions {
        command: command.clone(),
        ..ExecOptions::default()
    };
    let persistent = PersistentOptions {
        command,
        ..PersistentOptions::default()
    };
    let handlers: [Box<dyn Handler>; 2] = [
        Box::new(Exec::new(&exec).unwrap()),
        Box::new(Persistent::new(&persistent).unwrap()),
    ];
    for handler in handlers {
        let context = JobContext::of_payload(&job("A", 1)).unwrap();
        handler.handle(context.clone()).await.unwrap();
        let request = context.take_request();
        assert_eq!(request.release, Some(Duration::from_secs(1)));
        assert!(request.is_uncounted);
    }
    drop(written);
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_killed_with_all_it_started() {
    let script = Script::new(
        r#"while read -r line; do
            case "$line" in *'"n":1'*) sleep 60 & echo $! >> $D/pids; wait;; esac
            echo '{"ok":true}'
        done"#,
    );
    let jobs = [
        // The program has to start within its time.
        payload("A", 1, &json!({"maxTries": 1, "timeout": 4})),
        payload("A", 2, &json!({"maxTries": 1, "timeout": 20})),
    ];
    let events = script.work(1, &jobs).await;
    let failed = "failed: Illuminate\\Queue\\TimeoutExceededException: App\\Jobs\\A has timed out.";
    let done = ["processing 1", "processed Deleted"];
    assert_eq!(events[..3], ["processing 1", failed, "timed out"]);
    assert_eq!(events[3..], done);
    // Two programs, and the process that the first one had started.
    assert_eq!(script.pids().len(), 3);
    script.all_end();
}

#[tokio::test]
async fn a_flood_on_standard_error_holds_nothing_up() {
    let script = Script::new(
        r"while read -r line; do
            head -c 3000000 /dev/zero | tr '\0' x >&2; yes broken | head -c 3000000 >&2; echo; echo last >&2
        done",
    );
    let events = script.work(1, &jobs(1..=1)).await;
    // An empty line is no answer: the exception shows the end, which was written after it or before.
    assert!(
        events[1].contains("is no answer") && events[1].contains("broken\nbroken"),
        "{events:?}"
    );
    assert!(events[1].len() < 10_000);
    let script = Script::new(
        r#"while read -r line; do yes broken | head -c 3000000 >&2; echo '{"ok":true}'; done"#,
    );
    let events = script.work(1, &jobs(1..=3)).await;
    assert_eq!(events, ["processing 1", "processed Deleted"].repeat(3));
    assert_eq!(script.pids().len(), 1);
}

#[tokio::test]
async fn programs_are_replaced_after_max_jobs_and_never_more_than_processes() {
    let mut script = Script::new(ANSWER);
    script.options.max_jobs = NonZeroU64::new(2);
    let events = script.work(1, &jobs(1..=5)).await;
    assert_eq!(events.len(), 10, "{events:?}");
    assert_eq!(script.pids().len(), 3);
    script.all_end();

    let mut script = Script::new(
        r#"while read -r line; do
            mkdir $D/running.$$ && ls -d $D/running.* | wc -l >> $D/counts; sleep 0.05; rmdir $D/running.$$
            echo '{"ok":true}'
        done"#,
    );
    script.options.processes = NonZeroUsize::new(2);
    let events = script.work(8, &jobs(1..=12)).await;
    let done = events.iter().filter(|event| *event == "processed Deleted");
    assert_eq!(done.count(), 12, "{events:?}");
    assert!(script.pids().len() <= 2);
    let counts = script.lines("counts");
    assert!(
        counts.len() == 12 && counts.iter().all(|count| count.trim() <= "2"),
        "{counts:?}"
    );
}

/// One that has done its jobs takes its time to end; one that is killed dies once its job's time is over.
#[tokio::test]
async fn a_program_has_its_place_until_it_is_gone() {
    let mut script = Script::new(
        r#"for pid in $(cat $D/pids); do kill -0 $pid && echo; done 2>/dev/null | wc -l >> $D/counts
        while read -r line; do
            case "$line" in *'"n":2'*) sleep 60;; esac
            echo '{"ok":true}'
        done; sleep 0.3"#,
    );
    script.options.processes = NonZeroUsize::new(1);
    script.options.max_jobs = NonZeroU64::new(1);
    // The second program has to start within its time.
    let timeouts = [20, 4, 20, 20];
    let jobs: Vec<Vec<u8>> = (1..)
        .zip(timeouts)
        .map(|(n, timeout)| payload("A", n, &json!({"maxTries": 1, "timeout": timeout})))
        .collect();
    let events = script.work(1, &jobs).await;
    let done = events.iter().filter(|event| *event == "processed Deleted");
    assert_eq!(done.count(), 3, "{events:?}");
    let counts = script.lines("counts");
    assert!(
        counts.len() == 4 && counts.iter().all(|count| count.trim() == "1"),
        "{counts:?}"
    );
}

#[tokio::test]
async fn a_program_that_does_not_end_with_its_input_is_killed() {
    let script = Script::new(&format!(
        "trap '' TERM; sleep 60 & echo $! >> $D/pids; {ANSWER}; wait"
    ));
    let events = script.work(1, &jobs(1..=1)).await;
    assert_eq!(events, ["processing 1", "processed Deleted"]);
    assert_eq!(script.pids().len(), 2);
    script.all_end();
}

/// The program's end is not the end of the pipe, which its child still has open.
#[tokio::test]
async fn a_program_whose_child_lives_on_is_gone_all_the_same() {
    let script = Script::new(
        "read -r line; sleep 60 & echo $! >> $D/children; echo '{\"ok\":true}'; sleep 0.3; exit 3",
    );
    let began = std::time::Instant::now();
    let events = script.work(1, &jobs(1..=3)).await;
    let done = events.iter().filter(|event| *event == "processed Deleted");
    assert_eq!(done.count(), 3, "{events:?}");
    assert!(began.elapsed() < SOON, "nothing waits for the children");
    assert_eq!(script.pids().len(), 3, "one program for each");
    script.all_end();
    for pid in script.lines("children") {
        ends(&pid);
    }
}

#[tokio::test]
async fn programs_do_not_outlive_their_handler_even_if_nobody_stops_it() {
    let script = Script::new(&format!("{ANSWER}; exec sleep 60"));
    let handler = Persistent::new(&script.options).unwrap();
    let context = JobContext::of_payload(job("A", 1).as_ref()).unwrap();
    handler.handle(context).await.unwrap();
    let pids = script.pids();
    assert!(is_running(&pids[0]));
    drop(handler);
    script.all_end();
}

#[test]
fn standard_error_is_logged_with_the_job_and_a_stopped_worker_leaves_nothing() {
    let script = Script::new(
        r#"while read -r line; do
            echo "about to work" >&2; i=0; while [ $i -lt 300 ]; do echo "line $i" >&2; i=$((i+1)); done
            case "$line" in *uuid-2*) sleep 60;; esac
            echo '{"ok":true}'
        done; exec sleep 60"#,
    );
    let redis = RedisServer::start();
    let command = serde_json::to_string(&script.options.command).unwrap();
    let mapping =
        format!("[[map]]\njob = '*'\nhandler = {{ exec = {command}, persistent = true }}\n");
    let workplace = Workplace::new(&redis, "", 90, &mapping);
    let push = |n: u32| {
        let payload = json!({
            "uuid": format!("uuid-{n}"), "displayName": "App\\Jobs\\X", "job": CALL_QUEUED_HANDLER,
            "data": {"commandName": "App\\Jobs\\X", "command": "O:10:\"App\\Jobs\\X\":0:{}"},
            "id": format!("id-{n}"), "attempts": 0,
        });
        redis.query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
    };
    push(1);
    push(2);
    let args = ["queue:work", "redis", "--sleep=0.1", "--grace=1"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    eventually("the second job is running", SOON, || {
        worker.stderr().contains("uuid-2").then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    // Idle or busy, all processes end with the worker.
    let pids = script.pids();
    assert!(!pids.is_empty());
    assert!(!pids.iter().any(|pid| is_running(pid)), "{pids:?}");
    let state = redis.state();
    assert!(
        state.contains("queues:default:delayed (zset of 1)"),
        "released: {state}"
    );

    let log = worker.stderr();
    let of_first: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(r#"job.uuid="uuid-1""#))
        .collect();
    let is_logged = |text: &str| of_first.iter().any(|line| line.contains(text));
    assert!(
        is_logged("line=\"about to work\"") && is_logged("line=\"line 98\""),
        "{log}"
    );
    assert!(
        !is_logged("line=\"line 99\"") && is_logged("lines=201"),
        "{log}"
    );
}
