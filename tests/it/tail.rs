//! `artisand tail`: what listeners hear of workers, and what workers do while there is none.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use artisand::connection::{RedisAddress, RedisOptions};
use artisand::event::Event;
use artisand::payload::CALL_QUEUED_HANDLER;
use artisand::telemetry::{Feed, Heard, Tail, TailEvent, TailLevel};
use artisand::worker::Observer;
use regex::Regex;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::harness::process::{ManagedChild, Workplace, eventually, poll};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Fine*'
handler = "discard"
[[map]]
job = 'App\Jobs\Bad'
handler = { exec = ["sh", "-c", "echo 'no such invoice' >&2; exit 1"] }
"#;

fn payload(class: &str, id: &str) -> Vec<u8> {
    let payload = json!({
        "uuid": id, "displayName": class, "job": CALL_QUEUED_HANDLER, "maxTries": null,
        "data": {"commandName": class, "command": format!("O:{}:\"{class}\":0:{{}}", class.len())},
        "id": id, "attempts": 0, "createdAt": 1_000_000_000, "delay": null,
    });
    payload.to_string().into_bytes()
}

fn push(redis: &RedisServer, queue: &str, class: &str, id: &str) {
    let list = format!("queues:{queue}");
    redis.query::<()>(&[b"RPUSH", list.as_bytes(), &payload(class, id)]);
}

fn tail(workplace: &Workplace, args: &[&str]) -> ManagedChild {
    ManagedChild::spawn(workplace.artisand(&[&["tail"], args].concat()))
}

fn worker(workplace: &Workplace, queue: &str) -> ManagedChild {
    let queue = format!("--queue={queue}");
    ManagedChild::spawn(workplace.artisand(&["queue:work", "redis", &queue]))
}

/// Runs jobs until the tail shows one: the worker has noticed it.
fn is_heard(redis: &RedisServer, tail: &ManagedChild, queue: &str, class: &str) {
    let mut count = 0;
    let probe = format!("probe-{queue}");
    eventually(&format!("a tail of {queue}"), SOON, || {
        count += 1;
        if count % 10 == 1 {
            push(redis, queue, class, &probe);
        }
        tail.stdout().contains(&probe).then_some(())
    });
}

/// Waits until a tail's output contains this.
fn shows(tail: &ManagedChild, text: &str) {
    let shown = poll(SOON, || tail.stdout().contains(text).then_some(()));
    assert!(shown.is_some(), "no {text:?} in {}", tail.describe());
}

fn objects(tail: &ManagedChild) -> Vec<Value> {
    let text = tail.stdout();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "five listeners of the same events")]
fn tails_show_the_events_of_all_workers_that_they_ask_for() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "app:", 90, MAPPINGS);
    let push = |queue: &str, class: &str, id: &str| {
        let list = format!("app:queues:{queue}");
        redis.query::<()>(&[b"RPUSH", list.as_bytes(), &payload(class, id)]);
    };
    let (_one, mut other) = (worker(&workplace, "a"), worker(&workplace, "b"));
    let all = tail(&workplace, &["--json"]);
    let for_people = tail(&workplace, &["-v"]);
    let of_queue = tail(&workplace, &["--json", "--queue=b,c"]);
    let of_class = tail(&workplace, &["redis", "--json", r"--class=App\Jobs\*Two"]);
    let failures = tail(&workplace, &["--json", "--failed"]);
    let probed = |tail: &ManagedChild, queue: &str, class: &str| {
        let mut count = 0;
        let probe = format!("probe-{queue}");
        eventually("a probe", SOON, || {
            count += 1;
            if count % 10 == 1 {
                push(queue, class, &probe);
            }
            tail.stdout().contains(&probe).then_some(())
        });
    };
    for queue in ["a", "b"] {
        probed(&all, queue, "App\\Jobs\\Fine");
        probed(&for_people, queue, "App\\Jobs\\Fine");
    }
    probed(&of_queue, "b", "App\\Jobs\\Fine");
    probed(&of_class, "b", "App\\Jobs\\FineTwo");
    probed(&failures, "a", "App\\Jobs\\Bad");
    push("a", "App\\Jobs\\Fine", "fine-1");
    push("b", "App\\Jobs\\FineTwo", "fine-2");
    push("a", "App\\Jobs\\Bad", "bad-1");
    shows(&all, "fine-2");
    other.signal(Signal::TERM);
    for (tail, last) in [
        (&all, "bad-1"),
        (&for_people, "bad-1"),
        (&of_queue, "fine-2"),
        (&of_class, "fine-2"),
        (&failures, "bad-1"),
    ] {
        shows(tail, last);
    }
    shows(&all, "\"status\":\"stopped\"");

    let of_job = |tail: &ManagedChild, id: &str| -> Vec<Value> {
        let all = objects(tail).into_iter();
        all.filter(|object| object["uuid"] == id).collect()
    };
    // That it has begun may be heard long before its end.
    eventually("the end of a job", SOON, || {
        let told = all.stdout().matches("\"uuid\":\"fine-1\"").count();
        (told >= 2).then_some(())
    });
    let fine = of_job(&all, "fine-1");
    let statuses: Vec<_> = fine.iter().map(|object| &object["status"]).collect();
    assert_eq!(statuses, ["starting", "success"]);
    let mut done = fine[1].clone();
    for varying in ["timestamp", "duration", "worker"] {
        let field = done.as_object_mut().unwrap().remove(varying);
        assert!(field.is_some(), "{varying} in {}", fine[1]);
    }
    assert_eq!(
        done,
        json!({
            "level": "info", "id": "fine-1", "uuid": "fine-1", "connection": "redis", "queue": "a",
            "job": "App\\Jobs\\Fine", "status": "success", "result": "deleted", "attempts": 1,
        })
    );
    let bad = of_job(&failures, "bad-1");
    let last = bad.last().unwrap();
    assert_eq!(last["status"], "failed");
    assert!(
        last["message"]
            .as_str()
            .unwrap()
            .contains("no such invoice"),
        "{last}"
    );
    assert!(last["exception"].is_string(), "{last}");

    // Each filter leaves out what it does not ask for.
    assert!(of_job(&of_queue, "fine-1").is_empty());
    let classes = objects(&of_class)
        .into_iter()
        .map(|object| object["job"].clone());
    assert!(classes.into_iter().all(|job| job == "App\\Jobs\\FineTwo"));
    assert!(
        objects(&failures)
            .iter()
            .all(|object| object["status"] == "failed")
    );
    let stopped = objects(&all)
        .into_iter()
        .find(|object| object["status"] == "stopped")
        .unwrap();
    assert_eq!(
        (&stopped["reason"], &stopped["exit_code"]),
        (&json!("interrupted"), &json!(0))
    );

    let line = poll(SOON, || {
        let shown = for_people.stdout();
        let mut lines = shown.lines();
        let line = lines.find(|line| line.contains("bad-1") && line.contains("FAIL"));
        line.map(str::to_owned)
    });
    let expected = Regex::new(
        r"^  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d App\\Jobs\\Bad bad-1 redis a .*[\d.]+m?s [^ ]+:\d+ FAIL$",
    );
    let line = line.unwrap_or_else(|| panic!("{}", for_people.describe()));
    assert!(expected.unwrap().is_match(&line), "{line}");
    drop(other);
}

#[test]
fn workers_stop_writing_once_a_killed_tail_has_expired_and_the_stream_goes() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let mut worker = worker(&workplace, "default");
    push(&redis, "default", "App\\Jobs\\Fine", "before");
    redis.eventually("a job without a listener", SOON, || {
        (redis.jobs("queues:default") == 0).then_some(())
    });
    let keys: Vec<String> = redis.query(&[b"KEYS", b"*artisand:tail*"]);
    assert!(keys.is_empty(), "{keys:?}");

    let mut tail = tail(&workplace, &["--json"]);
    is_heard(&redis, &tail, "default", "App\\Jobs\\Fine");
    tail.signal(Signal::KILL);
    tail.wait_timeout(SOON);
    let listener: &[u8] = b"artisand:tail:everything";
    for (key, most) in [(listener, 12_000), (b"artisand:tail", 60_000)] {
        let left: i64 = redis.query(&[b"PTTL", key]);
        assert!((0..=most).contains(&left), "{left}");
    }
    redis.eventually("the listener's key expires", SOON, || {
        let left: i64 = redis.query(&[b"PTTL", listener]);
        (left < 0).then_some(())
    });
    // The worker looks for both kinds of listeners.
    let looks = || -> u64 {
        let stats: String = redis.query(&[b"INFO", b"commandstats"]);
        let calls = Regex::new(r"cmdstat_exists:calls=(\d+)").unwrap();
        calls.captures(&stats).unwrap()[1].parse().unwrap()
    };
    let before = looks();
    redis.eventually("another look", SOON, || {
        (looks() >= before + 4).then_some(())
    });
    redis.query::<()>(&[b"DEL", b"artisand:tail"]);
    push(&redis, "default", "App\\Jobs\\Fine", "after");
    redis.eventually("a job that is not told", SOON, || {
        (redis.jobs("queues:default") == 0).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    // The end of a worker writes what is left to write.
    assert!(!redis.query::<bool>(&[b"EXISTS", b"artisand:tail"]));
}

#[test]
fn a_tail_says_once_that_redis_is_away_and_goes_on_when_it_is_back() {
    let mut redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let _worker = worker(&workplace, "default");
    let mut tail = tail(&workplace, &["--json"]);
    is_heard(&redis, &tail, "default", "App\\Jobs\\Fine");
    redis.kill();
    eventually("a message", SOON, || {
        tail.stderr().contains("Redis is away").then_some(())
    });
    redis.restart();
    eventually("another", SOON, || {
        tail.stderr().contains("Redis is back").then_some(())
    });
    let mut count = 0;
    eventually("events after the outage", SOON, || {
        count += 1;
        if count % 10 == 1 {
            push(&redis, "default", "App\\Jobs\\Fine", "after-the-outage");
        }
        tail.stdout().contains("after-the-outage").then_some(())
    });
    assert!(tail.is_running());
    let said = tail.stderr();
    assert_eq!(said.matches("is away").count(), 1, "{said}");
    assert_eq!(said.matches("is back").count(), 1, "{said}");
}

#[test]
fn a_tail_ends_when_its_reader_does() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let _worker = worker(&workplace, "default");
    let mut command = workplace.artisand(&["tail"]);
    let mut tail = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(tail.stdout.take().unwrap());
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            // The worker may have started after the tail, which is a line, too.
            let is_job = |line: &String| line.contains("App\\Jobs\\Fine");
            output.lines().map_while(Result::ok).find(is_job)
        });
        eventually("a first line", SOON, || {
            push(&redis, "default", "App\\Jobs\\Fine", "1");
            first.is_finished().then_some(())
        });
        assert!(first.join().unwrap().is_some());
    });
    let status = eventually("the end", SOON, || {
        push(&redis, "default", "App\\Jobs\\Fine", "2");
        tail.try_wait().unwrap()
    });
    assert!(status.success(), "{status}");
}

#[test]
fn a_connection_that_is_not_redis_is_refused_by_its_driver() {
    let redis = RedisServer::start();
    let manifest = json!({"artisand": 1, "laravel": "13.31.0", "generated_at": 1, "paths": {"base": "/nowhere", "storage": "/nowhere"}, "config": {
        "queue": {"default": "tube", "connections": {"tube": {
            "driver": "beanstalkd", "host": "127.0.0.1", "queue": "default", "retry_after": 90,
        }}},
    }});
    let workplace = Workplace::new(&redis, "", 90, "");
    let path = workplace.path().join("artisand.json");
    std::fs::write(&path, manifest.to_string()).unwrap();
    let settings = workplace.path().join("artisand.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(
        &settings,
        format!("manifest = 'artisand.json'\nsettings = 'manifest'\n{text}"),
    )
    .unwrap();
    let output = workplace.artisand(&["tail", "tube"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("the connection [tube] has the driver `beanstalkd`"),
        "{said}"
    );
}

fn options(redis: &RedisServer) -> RedisOptions {
    RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), redis.port()),
        ..RedisOptions::default()
    }
}

/// What was heard: the statuses of events, and how many are missing.
#[derive(Debug, Default)]
struct All {
    statuses: Vec<String>,
    dropped: u64,
}

impl All {
    async fn hear(&mut self, tail: &mut Tail) {
        for heard in tail.next().await.unwrap() {
            match heard {
                Heard::Event { line, .. } => {
                    let event = TailEvent::read(&line).unwrap();
                    self.statuses.push(event.status.into_owned());
                }
                Heard::Dropped { events, .. } => self.dropped += events,
            }
        }
    }
}

/// A worker's observer that a listener hears.
async fn heard_feed(redis: &RedisServer, tail: &mut Tail) -> (Feed, impl Observer + use<>) {
    let feed = Feed::start(&options(redis), &Handle::current()).unwrap();
    let observer = feed.observer();
    let mut all = All::default();
    let deadline = Instant::now() + SOON;
    while all.statuses.is_empty() {
        assert!(Instant::now() < deadline, "nothing is heard");
        observer.on_event(&Event::MaintenanceMode(true));
        all.hear(tail).await;
    }
    (feed, observer)
}

#[tokio::test]
async fn events_without_room_are_counted_and_no_event_is_lost_silently() {
    const MANY: usize = 10_000;
    let redis = RedisServer::start();
    let mut tail = Tail::new(&options(&redis), TailLevel::Everything).unwrap();
    let (feed, observer) = heard_feed(&redis, &mut tail).await;
    // The writer cannot run before this task waits.
    for _ in 0..MANY {
        observer.on_event(&Event::WorkerPausing);
    }
    let mut all = All::default();
    let deadline = Instant::now() + SOON;
    let paused = |all: &All| {
        all.statuses
            .iter()
            .filter(|status| *status == "paused")
            .count()
    };
    while paused(&all) + usize::try_from(all.dropped).unwrap() < MANY {
        assert!(
            Instant::now() < deadline,
            "{} and {} dropped",
            paused(&all),
            all.dropped
        );
        all.hear(&mut tail).await;
    }
    assert!(
        all.dropped > 0 && paused(&all) >= 4096,
        "{} and {} dropped",
        paused(&all),
        all.dropped
    );
    assert_eq!(paused(&all) + usize::try_from(all.dropped).unwrap(), MANY);
    // What comes at the end of a worker is written, too.
    observer.on_event(&Event::WorkerResuming);
    feed.finish().await;
    while all.statuses.last().is_none_or(|status| status != "resumed") {
        assert!(Instant::now() < deadline, "{all:?}");
        all.hear(&mut tail).await;
    }
}

#[tokio::test]
async fn a_listener_that_is_too_slow_hears_how_much_it_missed() {
    let redis = RedisServer::start();
    let mut tail = Tail::new(&options(&redis), TailLevel::Everything).unwrap();
    let (_feed, observer) = heard_feed(&redis, &mut tail).await;
    for _ in 0..3 {
        observer.on_event(&Event::WorkerPausing);
    }
    let mut connection = redis.connection();
    let entry = loop {
        tokio::task::yield_now().await;
        let script = "local all = redis.call('xrevrange', KEYS[1], '+', '-', 'COUNT', 1) return all[1][2][8]";
        let newest: String = redis::cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg("artisand:tail")
            .query(&mut connection)
            .unwrap();
        if newest.contains("paused") {
            break newest;
        }
    };
    assert_eq!(
        entry.lines().count(),
        3,
        "one entry for what happens within a moment"
    );
    // As if the stream had been cut.
    redis.query::<()>(&[b"XTRIM", b"artisand:tail", b"MAXLEN", b"0"]);
    observer.on_event(&Event::WorkerResuming);
    let mut all = All::default();
    let deadline = Instant::now() + SOON;
    while all.statuses.is_empty() {
        assert!(Instant::now() < deadline, "{all:?}");
        all.hear(&mut tail).await;
    }
    assert_eq!(
        (&*all.statuses, all.dropped),
        (&["resumed".to_owned()][..], 3)
    );
}

#[tokio::test]
async fn a_stream_that_began_anew_with_an_earlier_clock_is_followed() {
    let redis = RedisServer::start();
    let mut tail = Tail::new(&options(&redis), TailLevel::Everything).unwrap();
    // An entry of a far future, as of a server whose clock was wrong.
    redis.query::<()>(&[b"XADD", b"artisand:tail", b"99999999999999-0", b"a", b"b"]);
    let mut all = All::default();
    all.hear(&mut tail).await;
    redis.query::<()>(&[b"DEL", b"artisand:tail"]);
    // Every error makes the listener look again.
    redis.query::<()>(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"]);
    while tail.next().await.is_err() {}
    let (_feed, _) = heard_feed(&redis, &mut tail).await;
}
