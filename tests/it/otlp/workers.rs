//! Workers of the program: settings, and collectors that are no help.

use rustix::process::Signal;
use serde_json::json;

use super::{SOON, W3C, carried, class, get, object, payload};
use crate::harness::collector::{Collector, attribute, hex};
use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;
use crate::telemetry::Served;

/// A worker of the binary that discards its jobs, with these variables.
fn worker(redis: &RedisServer, rest: &str, env: &[(&str, &str)]) -> (Workplace, ManagedChild) {
    let mapping = "[[map]]\njob = 'Done'\nhandler = 'discard'\n";
    let workplace = Workplace::new(redis, "", 90, &format!("{mapping}{rest}"));
    let mut command =
        workplace.artisand(&["queue:work", "redis", "--queue=orders", "--stop-when-empty"]);
    command.envs(env.iter().copied());
    let worker = ManagedChild::spawn(command);
    (workplace, worker)
}

fn push(redis: &RedisServer, count: usize) {
    let job = payload(object("Done"), &json!({}));
    for _ in 0..count {
        redis.query::<()>(&[b"RPUSH", b"queues:orders", &job]);
    }
}

#[test]
fn the_variables_of_opentelemetry_say_where_traces_go() {
    let redis = RedisServer::start();
    let collector = Collector::start();
    push(&redis, 3);
    let url = collector.url();
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key"),
        ("OTEL_SERVICE_NAME", "shop"),
    ];
    let (_workplace, mut worker) = worker(
        &redis,
        "[otlp]\nparent = 'auto'\nsystem = 'laravel'\n",
        &env,
    );
    worker.succeeds_within(SOON);
    let spans = collector.spans();
    assert_eq!(spans.len(), 3, "{}", worker.describe());
    assert_eq!(get(&spans[0], "messaging.system"), "laravel");
    assert_eq!(get(&spans[0], "server.port"), redis.port().to_string());
    let request = collector.requests(1).remove(0);
    assert!(
        request.head.starts_with("POST /v1/traces HTTP/1.1\r\n"),
        "{}",
        request.head
    );
    assert!(
        request.head.contains("\r\napi-key: a key\r\n"),
        "{}",
        request.head
    );
    let resource = request.sent.resource_spans[0].resource.clone().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name"), "shop");
}

#[test]
fn programs_and_servers_are_told_the_span_of_their_job() {
    let redis = RedisServer::start();
    let (collector, server) = (Collector::start(), Collector::start());
    let rest = format!(
        "[otlp]\nendpoint = '{}'\n\
         [[map]]\njob = 'Logged'\nhandler = 'log'\n\
         [[map]]\njob = 'Program'\nhandler = {{ exec = ['sh', '-c', 'echo \"$TRACEPARENT $TRACESTATE\" > told'] }}\n\
         [[map]]\njob = 'Server'\nhandler = {{ http = '{}/jobs' }}\n",
        collector.url(),
        server.url()
    );
    let fields = json!({"traceparent": W3C, "tracestate": "a=1"});
    for class in ["Logged", "Program", "Server"] {
        let job = payload(object(class), &fields);
        redis.query::<()>(&[b"RPUSH", b"queues:orders", &job]);
    }
    let workplace = Workplace::new(&redis, "", 90, &rest);
    let args = [
        "queue:work",
        "redis",
        "--queue=orders",
        "--stop-when-empty",
        "--json",
    ];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    worker.succeeds_within(SOON);
    let mut spans = collector.spans();
    spans.sort_by_key(class);
    let [logged, program, posted] = &spans[..] else {
        panic!("{spans:?}: {}", worker.describe())
    };
    let trace = format!("\"trace\":{:?}", hex(&logged.trace_id));
    for said in [worker.stderr(), worker.stdout()] {
        assert!(said.contains(&trace), "{trace}: {said}");
    }
    assert_eq!(get(program, "artisand.runner"), "exec");
    let told = std::fs::read_to_string(workplace.path().join("told")).unwrap();
    assert_eq!(told, format!("{} a=1\n", carried(program)));
    assert_eq!(get(posted, "artisand.runner"), "http");
    let head = server.requests(1).remove(0).head;
    let header = format!("\r\ntraceparent: {}\r\n", carried(posted));
    assert!(
        head.contains(&header) && head.contains("\r\ntracestate: a=1\r\n"),
        "{head}"
    );
}

#[test]
fn traces_are_compressed_if_a_variable_says_so() {
    let redis = RedisServer::start();
    let collector = Collector::start();
    push(&redis, 1);
    let rest = format!("[otlp]\nendpoint = '{}'\n", collector.url());
    let (_workplace, mut worker) =
        worker(&redis, &rest, &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")]);
    worker.succeeds_within(SOON);
    let head = collector.requests(1).remove(0).head.to_ascii_lowercase();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
}

#[test]
fn spans_that_a_collector_refuses_are_counted() {
    let redis = RedisServer::start();
    let refusing = Collector::start();
    refusing.answer(503);
    push(&redis, 3);
    let mapping = "[[map]]\njob = 'Done'\nhandler = 'discard'\n";
    let settings = format!("[otlp]\nendpoint = '{}'\n{mapping}", refusing.url());
    let workplace = Workplace::new(&redis, "", 90, &settings);
    let mut served = Served::start_in(workplace, &["--queue=orders"]);
    // They are sent every five seconds.
    served.shows(
        "/metrics",
        &[r#"artisand_telemetry_errors_total{sink="otlp"} 3"#],
    );
    served.worker.signal(Signal::TERM);
    served.worker.succeeds_within(SOON);
}

#[test]
fn a_collector_that_is_away_is_said_once_and_costs_no_job() {
    let redis = RedisServer::start();
    let refusing = Collector::start();
    refusing.answer(503);
    // No test's server gets this port. A port that was free a moment ago may belong to one by now.
    let away = "http://127.0.0.1:1".to_owned();
    for url in [away, refusing.url()] {
        push(&redis, 50);
        let rest = format!("[otlp]\nendpoint = '{url}'\n");
        // Many small requests, each of which fails.
        let env = [
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ];
        let (_workplace, mut worker) = worker(&redis, &rest, &env);
        worker.succeeds_within(SOON);
        assert_eq!(redis.jobs("queues:orders"), 0);
        let said = worker.stderr();
        assert_eq!(
            said.matches("the collector takes no traces").count(),
            1,
            "{said}"
        );
        assert!(
            said.contains("not all traces of jobs reached the collector"),
            "{said}"
        );
        assert!(said.contains("spans=50"), "{said}");
    }
}

#[test]
fn spans_that_arrive_when_they_are_sent_again_are_not_said_to_be_lost() {
    let redis = RedisServer::start();
    let collector = Collector::start();
    collector.be_moody();
    push(&redis, 10);
    let rest = format!("[otlp]\nendpoint = '{}'\n", collector.url());
    let env = [("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")];
    let (_workplace, mut worker) = worker(&redis, &rest, &env);
    worker.succeeds_within(SOON);
    let taken = collector.requests(4).into_iter().skip(1).step_by(2);
    let resources = taken.flat_map(|request| request.sent.resource_spans);
    let scopes = resources.flat_map(|resource| resource.scope_spans);
    let spans: usize = scopes.map(|scope| scope.spans.len()).sum();
    let said = worker.stderr();
    assert_eq!(spans, 10, "{said}");
    for lost in ["takes no traces", "not all traces"] {
        assert!(!said.contains(lost), "{said}");
    }
}

#[test]
fn a_slow_collector_holds_up_no_job() {
    let redis = RedisServer::start();
    let collector = Collector::start();
    collector.be_slow(true);
    push(&redis, 200);
    let rest = format!("[otlp]\nendpoint = '{}'\n", collector.url());
    let env = [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
    ];
    let (_workplace, mut worker) = worker(&redis, &rest, &env);
    collector.requests(1);
    eventually("the end of all jobs", SOON, || {
        (redis.jobs("queues:orders") == 0).then_some(())
    });
    assert_eq!(
        collector.requests(1).len(),
        1,
        "it has answered nothing yet"
    );
    collector.be_slow(false);
    worker.succeeds_within(SOON);
    let spans = collector.spans().len();
    // Those in the queue, and those on their way.
    assert!(
        (5..=40).contains(&spans),
        "{spans} spans: {}",
        worker.describe()
    );
}

#[test]
fn doctor_says_whether_the_collector_can_be_reached() {
    let redis = RedisServer::start();
    let collector = Collector::start();
    let rest = format!("[otlp]\nendpoint = '{}'\n", collector.url());
    let workplace = Workplace::new(&redis, "", 90, &rest);
    let said = || {
        let output = workplace.artisand(&["doctor", "--json"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let found = said();
    let place = format!("those of jobs go to {}/v1/traces", collector.url());
    assert!(found.contains(&place), "{found}");
    let settings = workplace.path().join("artisand.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    for (url, message) in [
        ("http://127.0.0.1:1", "check that the collector runs"),
        ("collector:4318", "is not the URL of a collector"),
    ] {
        std::fs::write(&settings, text.replace(&collector.url(), url)).unwrap();
        let found = said();
        assert!(found.contains(message), "{url}: {found}");
    }
}
