//! What an operator meets at night: servers that hang, disks that are full.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::fixtures;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;

const PREFIX: &str = "laravel-database-";

/// A worker of this configuration with a captured job `plain` waiting.
fn workplace(redis: &RedisServer, handler: &str) -> Workplace {
    push_plain(redis);
    Workplace::new(
        redis,
        PREFIX,
        90,
        &format!("[[map]]\njob = 'App\\Jobs\\Plain'\nhandler = {handler}\n"),
    )
}

/// The captured payload of a job of `App\\Jobs\\Plain`.
fn plain() -> String {
    let lines = fixtures::lines("payloads/laravel-13.jsonl");
    let (_, line) = lines
        .iter()
        .find(|(_, line)| line["kind"] == "plain")
        .unwrap();
    line["element"].as_str().unwrap().to_owned()
}

fn push_plain(redis: &RedisServer) {
    let key = format!("{PREFIX}queues:default");
    redis.query::<i64>(&[b"RPUSH", key.as_bytes(), plain().as_bytes()]);
}

/// With one write, so that the server does nothing else in between.
fn push_plain_and_pause(redis: &RedisServer) {
    use std::io::{Read as _, Write as _};
    let command = |words: &[&[u8]]| {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    };
    let (key, element) = (format!("{PREFIX}queues:default"), plain());
    let push = command(&[b"RPUSH", key.as_bytes(), element.as_bytes()]);
    let pause = command(&[b"CLIENT", b"PAUSE", b"5000", b"WRITE"]);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream.write_all(&[push, pause].concat()).unwrap();
    // Both are done with the first answer.
    assert_eq!(stream.read(&mut [0]).unwrap(), 1);
}

fn reserved(redis: &RedisServer) -> usize {
    redis
        .scores(&format!("{PREFIX}queues:default:reserved"))
        .len()
}

#[test]
fn a_log_that_cannot_be_written_ends_no_worker() {
    let redis = RedisServer::start();
    let workplace = workplace(&redis, "{ exec = ['sh', '-c', 'echo broken >&2; exit 1'] }");
    let mut command = workplace.artisand(&["queue:work", "--stop-when-empty"]);
    let status = command
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(reserved(&redis), 0);
    push_plain(&redis);
    let mut command = workplace.artisand(&["queue:work", "--stop-when-empty"]);
    let status = command
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    let spool = format!("{PREFIX}artisand:failed-spool");
    assert_eq!(redis.length(&spool), 2, "{}", redis.state());
}

#[test]
fn an_order_to_quit_is_obeyed_while_the_server_hangs() {
    let redis = RedisServer::start();
    let pid: i32 = {
        let info: String = redis.query(&[b"INFO", b"server"]);
        info.lines()
            .find_map(|line| line.strip_prefix("process_id:"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let pid = Pid::from_raw(pid).unwrap();
    for handler in ["'discard'", "{ exec = ['sleep', '60'] }"] {
        let workplace = workplace(&redis, handler);
        let mut worker =
            ManagedChild::spawn(workplace.artisand(&["queue:work", "--grace=1", "--sleep=0.2"]));
        let list = format!("{PREFIX}queues:default");
        let is_idle = handler == "'discard'";
        redis.eventually("the job is taken", Duration::from_secs(10), || {
            let is_taken = redis.length(&list) == 0 && reserved(&redis) == usize::from(!is_idle);
            is_taken.then_some(())
        });
        kill_process(pid, Signal::STOP).unwrap();
        // Time itself is the subject: within it the worker goes on to calls that get no answer, which a stopped server
        // cannot report.
        std::thread::sleep(Duration::from_millis(500));
        let told = Instant::now();
        worker.signal(Signal::TERM);
        let status = worker.wait_timeout(Duration::from_secs(60));
        let took = told.elapsed();
        kill_process(pid, Signal::CONT).unwrap();
        assert!(
            took < Duration::from_secs(15),
            "{handler}: it took {took:?}\n{}",
            worker.describe()
        );
        // The exit code tells that ends could not be written.
        let expected = i32::from(!is_idle);
        assert_eq!(status.code(), Some(expected), "{}", worker.describe());
    }
}

/// The server pauses with the pop on its way, and answers when the reservation that it asked for has ended.
#[test]
fn a_job_whose_reservation_ended_before_it_came_does_not_begin() {
    const RETRY_AFTER: u64 = 2;
    for is_taken in [true, false] {
        let redis = RedisServer::start();
        let mapping = "[[map]]\njob = 'App\\Jobs\\Plain'\nhandler = 'log'\n";
        let workplace = Workplace::new(&redis, PREFIX, RETRY_AFTER, mapping);
        let worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "--sleep=0.1"]));
        let reserved_key = format!("{PREFIX}queues:default:reserved");
        // Until it pops.
        redis.eventually("the worker pops", Duration::from_secs(60), || {
            let stats: String = redis.query(&[b"INFO", b"commandstats"]);
            stats.contains("cmdstat_evalsha").then_some(())
        });
        let mut other = redis.connection();
        // Nothing announces it: the next pop finds it, and waits for the server.
        push_plain_and_pause(&redis);
        if is_taken {
            // Another worker takes what has ended: its call waits behind the pop.
            redis.eventually("the pop waits", Duration::from_secs(60), || {
                // A busy machine may keep the worker from its pop for longer than one pause.
                redis.query::<()>(&[b"CLIENT", b"PAUSE", b"5000", b"WRITE"]);
                let clients: String = redis.query(&[b"CLIENT", b"LIST"]);
                let mut clients = clients.lines();
                let waits = |client: &str| client.contains("flags=b") && client.contains("evalsha");
                clients.any(waits).then_some(())
            });
            let script = "local ended = redis.call('ZRANGE', KEYS[1], 0, -1) \
                          redis.call('DEL', KEYS[1]) return ended";
            let mut eval = redis::cmd("EVAL");
            eval.arg(script).arg(1).arg(&reserved_key);
            let ended: Vec<Vec<u8>> = eval.query(&mut other).unwrap();
            assert_eq!(ended.len(), 1, "{}", worker.describe());
            redis.eventually("it is said", Duration::from_secs(60), || {
                let said = "a job came too late to begin";
                worker.stderr().contains(said).then_some(())
            });
            assert!(
                !worker.stdout().contains("RUNNING"),
                "{}",
                worker.describe()
            );
        } else {
            // Still reserved for this worker, which renews it and begins.
            redis.eventually("it is run", Duration::from_secs(60), || {
                worker.stdout().contains("DONE").then_some(())
            });
            assert_eq!(reserved(&redis), 0, "{}", redis.state());
        }
    }
}

/// Sends these signals to a worker that runs a job with this handler; `None` if not all SIGINTs were sent at once.
fn told_to_quit(
    handler: &str,
    signals: &[Signal],
) -> Option<(RedisServer, Workplace, ManagedChild)> {
    let redis = RedisServer::start();
    let workplace = workplace(&redis, handler);
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work"]));
    redis.eventually("the job runs", Duration::from_secs(60), || {
        worker.stdout().contains("RUNNING").then_some(())
    });
    let mut first_interrupt = None;
    for signal in signals {
        let sent = Instant::now();
        worker.signal(*signal);
        if *signal == Signal::INT {
            let first = *first_interrupt.get_or_insert(sent);
            if first.elapsed() > Duration::from_millis(500) {
                return None;
            }
        }
        // Different signals that come at once have no order.
        redis.eventually("the first is heard", Duration::from_secs(60), || {
            let log = worker.stderr();
            log.contains("stopping when the running jobs").then_some(())
        });
    }
    Some((redis, workplace, worker))
}

/// As with `queue:work`: a deploy lets running jobs finish, however often it asks.
#[test]
fn an_order_to_quit_cuts_no_job_but_for_a_person_who_asks_twice() {
    let cases = [
        // Longer than any grace that was ever the default.
        (
            "10",
            &[Signal::TERM, Signal::TERM, Signal::INT, Signal::INT][..],
            true,
        ),
        ("60", &[Signal::INT][..], false),
    ];
    for (seconds, signals, finishes) in cases {
        let handler = format!("{{ exec = ['sleep', '{seconds}'] }}");
        // A second SIGINT that comes a second later is a person's. If this process stands still between the two, there
        // is nothing to test.
        let (redis, _workplace, mut worker) = (0..5)
            .find_map(|_| told_to_quit(&handler, signals))
            .expect("two signals are sent at once");
        if !finishes {
            // What comes at once is one signal that was delivered twice: time makes the difference.
            std::thread::sleep(Duration::from_millis(1200));
            assert!(worker.is_running(), "{}", worker.describe());
            worker.signal(Signal::INT);
        }
        worker.succeeds_within(Duration::from_secs(40));
        let is_done = worker.stdout().contains("DONE");
        assert_eq!(is_done, finishes, "{}", worker.describe());
        let said = "it will fail when it is popped again";
        let is_said = worker.stderr().contains(said);
        assert_eq!(is_said, !finishes, "{}", worker.describe());
        let log = worker.stderr();
        let is_said = log.contains("press Ctrl-C again to cancel them");
        assert_eq!(is_said, !finishes, "{log}");
        assert!(!log.contains("deadline"), "{log}");
        assert_eq!(reserved(&redis), 0, "{}", redis.state());
    }
}

/// After some failures, a worker waits seconds between tries; one that stops must not wait for the next try.
#[test]
fn a_stop_writes_down_at_once_what_waited_for_the_server() {
    let mut redis = RedisServer::start_durable();
    let workplace = workplace(&redis, "{ exec = ['sleep', '1'] }");
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work"]));
    redis.eventually("the job is taken", Duration::from_secs(60), || {
        (reserved(&redis) == 1).then_some(())
    });
    redis.stop();
    // Time is the subject: by then, it is seconds until it tries again.
    std::thread::sleep(Duration::from_secs(10));
    redis.restart();
    worker.signal(Signal::TERM);
    worker.succeeds_within(Duration::from_secs(60));
    assert_eq!(reserved(&redis), 0, "{}", redis.state());
    let list = format!("{PREFIX}queues:default");
    assert_eq!(redis.length(&list), 0, "{}", redis.state());
}

#[test]
fn a_reader_that_stands_still_stops_no_job() {
    use std::process::Stdio;
    let redis = RedisServer::start();
    let workplace = workplace(&redis, "'discard'");
    let lines = fixtures::lines("payloads/laravel-13.jsonl");
    let (_, line) = lines
        .iter()
        .find(|(_, line)| line["kind"] == "plain")
        .unwrap();
    let (key, element) = (
        format!("{PREFIX}queues:default"),
        line["element"].as_str().unwrap(),
    );
    for _ in 0..60 {
        let mut command: Vec<&[u8]> = vec![b"RPUSH", key.as_bytes()];
        command.extend(std::iter::repeat_n(element.as_bytes(), 1000));
        redis.query::<i64>(&command);
    }
    let mut command = workplace.artisand(&["queue:work", "--stop-when-empty", "--concurrency=16"]);
    // This pipe has no reader: it is full after some hundred lines.
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut last = (redis.length(&key), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let jobs = redis.length(&key);
        if jobs != last.0 {
            last = (jobs, Instant::now());
        }
        assert!(
            last.1.elapsed() < Duration::from_secs(60),
            "the worker stands still: {jobs} jobs wait"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(0));
    assert_eq!((redis.length(&key), reserved(&redis)), (0, 0));
}

#[test]
fn pops_that_fail_are_not_repeated_for_every_push() {
    let redis = RedisServer::start();
    let workplace = workplace(&redis, "'discard'");
    // A pop meets a key of the wrong kind, and announcements continue.
    let reserved = format!("{PREFIX}queues:default:reserved");
    let notify = format!("{PREFIX}queues:default:notify");
    redis.query::<()>(&[b"SET", reserved.as_bytes(), b"x"]);
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "--sleep=0.1"]));
    let count = |worker: &ManagedChild| worker.stderr().matches("could not pop jobs").count();
    redis.eventually("a pop fails", Duration::from_secs(10), || {
        (count(&worker) > 0).then_some(())
    });
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        redis.query::<i64>(&[b"RPUSH", notify.as_bytes(), b"1"]);
        // The rate of announcements: they must not cut the wait after a failed pop short.
        std::thread::sleep(Duration::from_millis(2));
    }
    // Waits double from 50 ms on: 7 make 3 seconds, 8 with the shortest of jitters.
    let pops = count(&worker);
    assert!((3..=10).contains(&pops), "{pops}: {}", worker.describe());
    redis.query::<()>(&[b"DEL", reserved.as_bytes()]);
    let list = format!("{PREFIX}queues:default");
    redis.eventually("the job is taken", Duration::from_secs(20), || {
        (redis.length(&list) == 0).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.succeeds_within(Duration::from_secs(10));
}
