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

fn push_plain(redis: &RedisServer) {
    let lines = fixtures::lines("payloads/laravel-13.jsonl");
    let (_, line) = lines
        .iter()
        .find(|(_, line)| line["kind"] == "plain")
        .unwrap();
    let key = format!("{PREFIX}queues:default");
    redis.query::<i64>(&[
        b"RPUSH",
        key.as_bytes(),
        line["element"].as_str().unwrap().as_bytes(),
    ]);
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
        // What could not be written down is said by the exit code.
        let expected = i32::from(!is_idle);
        assert_eq!(status.code(), Some(expected), "{}", worker.describe());
    }
}

/// Who has tried for a while tries seldom; but there is no next time for a worker that stops.
#[test]
fn a_stop_writes_down_at_once_what_waited_for_the_server() {
    let mut redis = RedisServer::start_durable();
    let workplace = workplace(&redis, "{ exec = ['sleep', '1'] }");
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work"]));
    redis.eventually("the job is taken", Duration::from_secs(60), || {
        (reserved(&redis) == 1).then_some(())
    });
    redis.stop();
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
    // Nobody reads this pipe: it is full after some hundred lines.
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(240);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(
            Instant::now() < deadline,
            "the worker stands still: {} jobs wait",
            redis.length(&key)
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(0));
    assert_eq!((redis.length(&key), reserved(&redis)), (0, 0));
}
