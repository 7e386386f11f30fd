//! What spans say, and what they continue.

use artisand::telemetry::{Continues, Sampling, TraceOptions};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::{PARENT, Scene, TRACE, W3C, class, get, object, payload};
use crate::harness::collector::{attribute, hex};

#[tokio::test]
async fn spans_tell_what_became_of_jobs() {
    let scene = Scene::new().await;
    let again = json!({"maxTries": 2, "retryUntil": null, "maxExceptions": 3});
    let jobs = [
        payload(object("Done"), &json!({"createdAt": 1_000_000_000})),
        payload(object("Fails"), &json!({})),
        payload(
            object("Hangs"),
            &json!({"timeout": 1, "failOnTimeout": true}),
        ),
        payload(object("Panics"), &json!({})),
        payload(object("Releases"), &again),
        payload(object("Throws"), &again),
    ];
    let spans = scene.spans(&scene.options(), &jobs).await;
    #[rustfmt::skip]
    let rows = [
        // class, outcome, error.type, status
        ("Done", "done", "", ""),
        ("Fails", "failed", "Illuminate\\Queue\\ManuallyFailedException", "gave up"),
        ("Hangs", "failed", "Illuminate\\Queue\\TimeoutExceededException", "Hangs has timed out."),
        ("Panics", "failed", "Artisand\\HandlerPanic", "a bug"),
        ("Releases", "released", "", ""),
        ("Throws", "retried", "Artisand\\HandlerError", "no stock"),
        // Once more, at once.
        ("Throws", "failed", "Artisand\\HandlerError", "no stock"),
    ];
    let mut seen: Vec<_> = spans
        .iter()
        .map(|span| (class(span), get(span, "artisand.outcome")))
        .collect();
    seen.sort();
    let mut all: Vec<_> = rows
        .iter()
        .map(|row| (row.0.to_owned(), row.1.to_owned()))
        .collect();
    all.sort();
    assert_eq!(seen, all);
    for (name, outcome, error, message) in rows {
        let is_it = |span: &&Span| class(span) == name && get(span, "artisand.outcome") == outcome;
        let span = spans.iter().find(is_it).unwrap();
        assert_eq!((&*span.name, span.kind), ("process orders", 5), "{name}");
        assert_eq!(get(span, "error.type"), error, "{name}");
        let status = span.status.clone().unwrap_or_default();
        let is_error = !error.is_empty();
        assert_eq!(status.code, if is_error { 2 } else { 0 }, "{name}");
        assert!(
            status.message.contains(message),
            "{name}: {}",
            status.message
        );
        assert_eq!(span.events.len(), usize::from(is_error), "{name}");
        for event in &span.events {
            assert_eq!(event.name, "exception");
            assert_eq!(attribute(&event.attributes, "exception.type"), error);
            let said = attribute(&event.attributes, "exception.message");
            assert!(said.contains(message), "{said}");
        }
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{name}"
        );
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        assert!(
            span.parent_span_id.is_empty() && span.links.is_empty(),
            "{name}"
        );
    }
    let done = spans.iter().find(|span| class(span) == "Done").unwrap();
    #[rustfmt::skip]
    let expected = [
        ("messaging.operation.name", "process"), ("messaging.operation.type", "process"),
        ("messaging.system", "redis"), ("messaging.destination.name", "orders"),
        ("messaging.message.id", "uuid of Done"), ("messaging.message.job_name", "Done"),
        ("messaging.message.attempts", "1"), ("messaging.message.retry.count", "0"),
        ("messaging.message.max_tries", "1"), ("messaging.message.deleted", "true"),
        ("messaging.message.released", "false"), ("artisand.connection", "redis"),
        ("artisand.job.id", "an id"), ("artisand.runner", "rust"),
        ("server.address", "redis.example"), ("server.port", "6379"),
    ];
    for (name, value) in expected {
        assert_eq!(get(done, name), value, "{name}");
    }
    let latency: f64 = get(done, "messaging.message.receive.latency")
        .parse()
        .unwrap();
    assert!(latency > 1e9, "{latency}");
    assert!(get(done, "messaging.client.id").ends_with(&format!(":{}", std::process::id())));
    let last = spans
        .iter()
        .find(|span| get(span, "messaging.message.attempts") == "2")
        .unwrap();
    assert_eq!(get(last, "messaging.message.max_exceptions"), "3");
    let sent = scene
        .collector
        .requests(1)
        .remove(0)
        .sent
        .resource_spans
        .remove(0);
    let resource = sent.resource.unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name"), "shop");
    assert_eq!(sent.scope_spans[0].scope.as_ref().unwrap().name, "artisand");
}

#[tokio::test]
async fn only_the_first_attempt_has_waited_since_the_push() {
    let scene = Scene::new().await;
    let jobs = [payload(
        object("Yields"),
        &json!({"createdAt": 1_000_000_000}),
    )];
    let mut spans = scene.spans(&scene.options(), &jobs).await;
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let told = |span: &Span| {
        let waited = get(span, "messaging.message.receive.latency");
        let attempt = get(span, "messaging.message.attempts");
        (get(span, "artisand.outcome"), attempt, !waited.is_empty())
    };
    let told: Vec<_> = spans.iter().map(told).collect();
    let expected = [("released", "1", true), ("done", "1", false)];
    let expected = expected
        .map(|(outcome, attempt, has_waited)| (outcome.to_owned(), attempt.to_owned(), has_waited));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_span_belongs_to_the_one_that_pushed_its_job_as_the_settings_say() {
    let scene = Scene::new().await;
    let with = |parent: Value| payload(object("Done"), &parent);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let sentry = format!("{TRACE}-{PARENT}-0");
    let unsampled = W3C.replace("-01", "-00");
    #[rustfmt::skip]
    let rows = [
        // fields of the payload, setting => whether there is a span, a parent, a link
        (json!({"traceparent": W3C, "tracestate": "a=1"}), Continues::Parent, (true, true, false)),
        (json!({"traceparent": W3C}), Continues::Link, (true, false, true)),
        (json!({"traceparent": W3C}), Continues::Auto, (true, true, false)),
        (json!({"traceparent": W3C, "createdAt": now - 3600}), Continues::Auto, (true, false, true)),
        (json!({"traceparent": W3C, "pushedAt": now - 60}), Continues::Auto, (true, true, false)),
        (json!({"traceparent": unsampled}), Continues::Parent, (false, false, false)),
        // What is recorded of other traces is this worker's own decision.
        (json!({"traceparent": unsampled}), Continues::Link, (true, false, true)),
        (json!({"sentry_trace_parent_data": sentry}), Continues::Parent, (false, false, false)),
        (json!({"b3": format!("{TRACE}-{PARENT}-1")}), Continues::Parent, (true, true, false)),
        (json!({"X-B3-TraceId": TRACE, "X-B3-SpanId": PARENT}), Continues::Parent, (true, true, false)),
        (json!({"b3": format!("{TRACE}-{PARENT}-0")}), Continues::Parent, (false, false, false)),
        (json!({"traceparent": "00-nonsense"}), Continues::Parent, (true, false, false)),
        (json!({}), Continues::Parent, (true, false, false)),
    ];
    for (fields, continues, (is_there, has_parent, is_linked)) in rows {
        let options = TraceOptions {
            continues,
            ..scene.options()
        };
        let spans = scene.spans(&options, &[with(fields.clone())]).await;
        assert_eq!(spans.len(), usize::from(is_there), "{fields} {continues:?}");
        let Some(span) = spans.first() else { continue };
        let parent = if has_parent { PARENT } else { "" };
        assert_eq!(hex(&span.parent_span_id), parent, "{fields} {continues:?}");
        assert_eq!(
            hex(&span.trace_id) == TRACE,
            has_parent,
            "{fields} {continues:?}"
        );
        let links: Vec<_> = span
            .links
            .iter()
            .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
            .collect();
        let linked = is_linked.then(|| (TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!(links, Vec::from_iter(linked), "{fields} {continues:?}");
        let state = fields["tracestate"].as_str().unwrap_or_default();
        assert_eq!(span.trace_state, state, "{fields}");
    }
    let sampling = Sampling {
        is_parent_based: true,
        share: 0.0,
    };
    let options = TraceOptions {
        sampling,
        ..scene.options()
    };
    let jobs = [with(json!({})), with(json!({"traceparent": W3C}))];
    let spans = scene.spans(&options, &jobs).await;
    assert_eq!(spans.len(), 1);
    assert_eq!(hex(&spans[0].trace_id), TRACE);
}
