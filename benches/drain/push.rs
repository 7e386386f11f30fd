//! Jobs that are pushed: single ones, many in flight, in bulk; and `Queue::bulk` of real Laravel.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use artisand::app::Manifest;
use artisand::dispatch::Dispatch;
use artisand::handler::Services;
use artisand::queue::{Connections, Destination};
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;

use crate::php;
use crate::report::Round;
use crate::server::{PREFIX, Server};

/// Names, and how the jobs are pushed.
pub(crate) const CONTENDERS: [(&str, Way); 3] = [
    ("push, one after the other", Way::Single(1)),
    ("push, 256 at a time", Way::Single(256)),
    ("push, bulk", Way::Bulk),
];

pub(crate) fn name_in_php(version: &str) -> String {
    format!("push, Laravel {version}, Queue::bulk of 1000")
}

#[derive(Clone, Copy)]
pub(crate) enum Way {
    Single(usize),
    Bulk,
}

#[derive(serde::Serialize)]
#[serde(rename = "App\\Jobs\\Counted")]
struct Counted {
    n: usize,
}

/// A class with the properties that `Queueable` of Laravel 13 has.
fn manifest() -> Manifest {
    let null = |name| json!({"name": name, "visibility": "public", "class": "App\\Jobs\\Counted", "default": "Tjs="});
    let list = |name| json!({"name": name, "visibility": "public", "class": "App\\Jobs\\Counted", "default": "YTowOnt9"});
    let mut properties = vec![
        json!({"name": "n", "visibility": "public", "class": "App\\Jobs\\Counted", "type": "int"}),
    ];
    properties.extend(
        [
            "job",
            "connection",
            "queue",
            "messageGroup",
            "deduplicator",
            "delay",
            "afterCommit",
        ]
        .map(null),
    );
    properties.extend(["middleware", "chained"].map(list));
    properties.extend(["chainConnection", "chainQueue", "chainCatchCallbacks"].map(null));
    let json = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "config": {},
        "paths": {"base": "/app", "storage": "/app/storage"},
        "classes": {"App\\Jobs\\Counted": {
            "kind": "job", "file": "A.php", "flags": {"queued": true},
            "uses": ["Illuminate\\Bus\\Queueable", "Illuminate\\Queue\\SerializesModels"],
            "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
            "properties": properties,
        }},
    });
    Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
}

fn dispatch(server: &Server) -> Dispatch {
    let mut services = Services::default();
    services.version = "13.31.0".parse().unwrap();
    services.manifest = Some(Arc::new(manifest()));
    let here = Destination {
        default_queue: "default".into(),
        queues: Ok(Arc::new(server.queue())),
    };
    services.connections = Some(Connections::new("redis", [("redis".to_owned(), here)]));
    Dispatch::of_services(services)
}

/// Making the payloads is part of it.
pub(crate) async fn run(name: &str, way: Way, jobs: usize) -> Round {
    let server = Server::start();
    let dispatch = dispatch(&server);
    let began = Instant::now();
    match way {
        Way::Single(at_a_time) => {
            let pushes =
                stream::iter((0..jobs).map(|n| dispatch.job(&Counted { n }).into_future()));
            let pushes = pushes.buffer_unordered(at_a_time);
            pushes
                .for_each(|pushed| async { drop(pushed.unwrap()) })
                .await;
        }
        Way::Bulk => {
            let pushed = dispatch.bulk((0..jobs).map(|n| Counted { n })).await;
            assert_eq!(pushed.unwrap(), jobs);
        }
    }
    round(
        name.to_owned(),
        jobs,
        began.elapsed().as_secs_f64(),
        &server,
    )
}

/// `interop:flood` with the time that an empty one takes taken off, so without boot.
pub(crate) fn run_php(version: &str, jobs: usize) -> Option<Round> {
    let server = Server::start();
    let flood = |count: usize| {
        let began = Instant::now();
        let status = Command::new(php::LARAVEL)
            .args([
                version,
                "artisan",
                "interop:flood",
                &count.to_string(),
                "--chunk=1000",
            ])
            .env("REDIS_PORT", server.port.to_string())
            .env("REDIS_PREFIX", PREFIX)
            .env("INTEROP_KEY", "bench")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let ended_well = status.is_ok_and(|status| status.success());
        ended_well.then(|| began.elapsed().as_secs_f64())
    };
    let boot = flood(0)?;
    let seconds = flood(jobs)? - boot;
    Some(round(name_in_php(version), jobs, seconds, &server))
}

fn round(name: String, jobs: usize, seconds: f64, server: &Server) -> Round {
    let mut length = redis::cmd("LLEN");
    length.arg(format!("{PREFIX}queues:default"));
    let length: usize = length.query(&mut server.connection()).unwrap();
    assert_eq!(length, jobs, "{name}");
    Round {
        name,
        jobs,
        seconds,
        commands_per_job: crate::float(usize::try_from(server.client_commands()).unwrap())
            / crate::float(jobs),
        micros: Some((
            server.processor_seconds() * 1e6 / crate::float(jobs),
            f64::NAN,
        )),
        longest_script: None,
        memory: None,
    }
}
