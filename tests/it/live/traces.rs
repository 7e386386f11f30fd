//! Traces of jobs that PHP runs are the app's own: artisand leaves their payload as it is, and makes no span.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::collector::{Collector, attribute};
use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);
const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn jobs_in_php_have_no_span_of_artisand(version: u8) {
    let redis = RedisServer::start();
    let collector = Collector::start();
    let laravel = Laravel::with_retry_after(version, &redis, 50);
    let rest = format!(
        "[otlp]\nendpoint = '{}'\n[[map]]\nstring = 'App\\Jobs\\Here@handle'\nhandler = 'discard'\n",
        collector.url()
    );
    let workplace = Workplace::with_pool(&laravel, 1, &rest);
    laravel.run(&["interop:journal", "in-php"]);
    let queue = laravel.key("queues:default");
    let job: Vec<u8> = redis.query(&[b"LPOP", queue.as_bytes()]);
    let mut in_php: Value = serde_json::from_slice(&job).unwrap();
    in_php["traceparent"] = W3C.into();
    let here = json!({
        "uuid": "here", "displayName": "App\\Jobs\\Here", "job": "App\\Jobs\\Here@handle", "data": [],
        "maxTries": null, "timeout": null, "id": "here", "attempts": 0, "traceparent": W3C,
    });
    for job in [in_php, here] {
        let job = job.to_string();
        redis.query::<()>(&[b"RPUSH", queue.as_bytes(), job.as_bytes()]);
    }
    let mut worker = workplace.worker(&["--stop-when-empty"]);
    worker.succeeds_within(SOON);
    assert_eq!(redis.length("interop:journal"), 1, "{}", worker.describe());
    let spans = collector.spans();
    let names = spans
        .iter()
        .map(|span| attribute(&span.attributes, "messaging.message.job_name"));
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["App\\Jobs\\Here"], "{}", worker.describe());
}

on_every_laravel!(jobs_in_php_have_no_span_of_artisand);
