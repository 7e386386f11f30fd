//! What two workers of a shop would show.

use super::{Chart, ClassLine, Overview, QueueLine, QueueSizes, RunningLine, WorkerLine};
use crate::telemetry::failures::{FailedGroup, FailedPart};
use crate::telemetry::minutes::MINUTES;

const NOW: f64 = 1_800_000_000.0;

fn chart(of: impl Fn(u64) -> u64) -> Chart {
    let none = || vec![None; MINUTES];
    let zero = || vec![0; MINUTES];
    Chart {
        done: (0..MINUTES as u64).map(of).collect(),
        failed: zero(),
        released: zero(),
        ran: none(),
        ran_longest: none(),
        waited: none(),
        waited_longest: none(),
    }
}

impl QueueLine {
    fn example(queue: &str, is_paused: bool, sizes: [u64; 5], rate: u64) -> Self {
        let [pending, delayed, due, reserved, expired] = sizes;
        Self {
            connection: "redis".into(),
            paused_as: "redis".into(),
            queue: queue.into(),
            is_paused,
            sizes: Some(QueueSizes {
                pending,
                delayed,
                due,
                reserved,
                expired,
                quarantined: 0,
                oldest: (pending > 0).then_some(132.4),
            }),
            attempts: rate * 60,
            failed: rate / 400,
            chart: Some(chart(|_| rate)),
        }
    }
}

fn class(name: &str, attempts: u64, failed: u64, average: f64) -> ClassLine {
    ClassLine {
        class: name.into(),
        attempts,
        done: attempts - failed,
        failed,
        released: failed * 2,
        average: Some(average),
        longest: Some(average * 7.0),
        per_minute: vec![attempts / 60; MINUTES],
    }
}

fn group(class: &str, exception: &str, count: usize) -> FailedGroup {
    FailedGroup {
        class: class.into(),
        exception: exception.into(),
        count,
    }
}

fn worker(pid: u32, state: &'static str, busy: usize) -> WorkerLine {
    WorkerLine {
        id: format!("web-1:{pid}:abc"),
        host: "web-1".into(),
        pid,
        name: "default".into(),
        version: "0.1.0".into(),
        connection: "redis".into(),
        queues: vec!["high".into(), "default".into()],
        started: NOW - 93_784.0,
        at: NOW - 2.0,
        state,
        busy,
        slots: 16,
        done: 1_234_567,
        failed: 42,
        released: 7,
    }
}

fn running(class: &str, since: f64) -> RunningLine {
    RunningLine {
        worker: "web-1:4711".into(),
        uuid: Some("6f1c".into()),
        class: class.into(),
        queue: "default".into(),
        since: NOW - since,
        attempts: 1,
    }
}

impl Overview {
    /// Two workers, three queues.
    pub(crate) fn example() -> Self {
        Self {
            now: NOW,
            version: "0.1.0",
            connection: "redis".into(),
            is_writable: true,
            are_workers_listed: true,
            problems: Vec::new(),
            workers: vec![worker(4711, "running", 11), worker(4712, "paused", 0)],
            more_workers: 0,
            queues: vec![
                QueueLine::example("default", false, [1312, 40, 3, 11, 1], 1204),
                QueueLine::example("high", false, [0, 2, 0, 0, 0], 96),
                QueueLine::example("reports", true, [25, 0, 0, 0, 0], 0),
            ],
            total: chart(|minute| minute * minute / 3 + 100),
            classes: vec![
                class("App\\Jobs\\SendReceipt", 61_200, 12, 0.012),
                class("App\\Jobs\\MakeInvoice", 10_800, 311, 0.841),
                class("App\\Mail\\Welcome", 52, 0, 1.6),
            ],
            running: vec![
                running("App\\Jobs\\MakeInvoice", 61.3),
                running("App\\Jobs\\SendReceipt", 0.02),
            ],
            busy: 11,
            slots: 32,
            failed: Some(FailedPart {
                total: 1_843,
                looked_at: 200,
                groups: vec![
                    group("App\\Jobs\\MakeInvoice", "RuntimeException", 187),
                    group(
                        "App\\Jobs\\SendReceipt",
                        "Illuminate\\Http\\Client\\ConnectionException",
                        13,
                    ),
                ],
                jobs: Vec::new(),
            }),
            failed_spool: Some(0),
            follow_ups: Some(3),
        }
    }
}
