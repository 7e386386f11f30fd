//! What jobs carry on.

use artisand::dispatch::Dispatch;
use artisand::php::{Array, Value as Php};
use artisand::telemetry::{Sampling, TraceOptions};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use super::{Next, PARENT, Scene, TRACE, W3C, carried, object, payload};
use crate::harness::collector::hex;

#[tokio::test]
async fn jobs_that_a_job_pushes_carry_its_span() {
    let scene = Scene::new().await;
    let steps = |class: &str| -> Array {
        [Php::String(Php::Object(object(class)).to_bytes())]
            .into_iter()
            .collect()
    };
    let fields = json!({
        "traceparent": W3C, "tracestate": "a=1", "sentry_trace_parent_data": format!("{TRACE}-{PARENT}-1"),
        "sentry_baggage_data": "sentry-release=1", "dd_headers": {"x-datadog-trace-id": "1"},
        "telescope_uuid": "never copied",
        "illuminate:log:context": {"data": {"request": "s:1:\"7\";"}, "hidden": []},
    });
    let batch = json!({"traceparent": W3C});
    let jobs = [
        payload(
            object("Chained").public("chained", steps("App\\Next")),
            &fields,
        ),
        payload(object("Dispatches").public("batchId", "b-1"), &batch),
    ];
    let spans = scene.spans(&scene.options(), &jobs).await;
    let [chained, dispatches] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(hex(&chained.trace_id), TRACE);
    let pushed = scene.jobs("default");
    let is_of = |span: &Span| {
        let carried = carried(span);
        pushed
            .iter()
            .filter(move |job| job["traceparent"] == *carried)
            .cloned()
            .collect::<Vec<_>>()
    };
    let [step] = &is_of(chained)[..] else {
        panic!("{pushed:?}")
    };
    assert_eq!(step["tracestate"], "a=1");
    let span = hex(&chained.span_id);
    assert_eq!(
        step["sentry_trace_parent_data"],
        format!("{TRACE}-{span}-1")
    );
    assert_eq!(step["sentry_baggage_data"], "sentry-release=1");
    let decimal = u64::from_str_radix(&span, 16).unwrap().to_string();
    assert_eq!(step["dd_headers"]["x-datadog-parent-id"], decimal);
    assert_eq!(
        step["illuminate:log:context"]["data"]["request"],
        "s:1:\"7\";"
    );
    assert!(step.get("telescope_uuid").is_none(), "{step}");

    // From `then` and into the batch.
    assert_eq!(is_of(dispatches).len(), 2, "{pushed:?}");
    assert_eq!(pushed.len(), 3);
    let now = scene.jobs("now");
    assert_eq!(now[0]["traceparent"], carried(dispatches));
    assert!(now[0].get("sentry_trace_parent_data").is_none());

    // A step that only PHP can take: the closure carries it.
    let unknown = [payload(
        object("Chained").public("chained", steps("Unknown")),
        &fields,
    )];
    let spans = scene.spans(&scene.options(), &unknown).await;
    assert_eq!(scene.jobs("php")[0]["traceparent"], carried(&spans[0]));
}

#[tokio::test]
async fn callbacks_of_a_batch_carry_the_span_of_the_job_that_made_them_due() {
    let scene = Scene::new().await;
    let options = r#"a:1:{s:4:"then";a:1:{i:0;s:4:"trim";}}"#;
    let sql = "update job_batches set pending_jobs = 1, options = ?";
    scene
        .database
        .execute(sql, &[options.into()])
        .await
        .unwrap();
    let fields =
        json!({"traceparent": W3C, "sentry_trace_parent_data": format!("{TRACE}-{PARENT}-1")});
    let jobs = [payload(object("Done").public("batchId", "b-1"), &fields)];
    let spans = scene.spans(&scene.options(), &jobs).await;
    let closures = scene.jobs("php");
    assert_eq!(closures.len(), 1, "{closures:?}");
    assert_eq!(closures[0]["traceparent"], carried(&spans[0]));
    let sentry = closures[0]["sentry_trace_parent_data"].as_str().unwrap();
    assert_eq!(sentry, format!("{TRACE}-{}-1", hex(&spans[0].span_id)));
}

#[tokio::test]
async fn jobs_that_are_dispatched_outside_of_handlers_carry_the_current_span() {
    use opentelemetry::Context;
    use opentelemetry::trace::{
        FutureExt as _, SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    };

    let scene = Scene::new().await;
    let dispatch = Dispatch::of_services(scene.services.clone());
    dispatch.job(&Next {}).await.unwrap();
    let (trace, span) = (
        TraceId::from_hex(TRACE).unwrap(),
        SpanId::from_hex(PARENT).unwrap(),
    );
    let state = TraceState::from_key_value([("a", "1")]).unwrap();
    let current = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, state);
    let within = Context::new().with_remote_span_context(current);
    let dispatching = async {
        dispatch.job(&Next {}).await.unwrap();
        dispatch.chain().then(&Next {}).await.unwrap();
        dispatch.batch().job(&Next {}).await.unwrap();
        dispatch.bulk([Next {}]).await.unwrap();
    };
    dispatching.with_context(within).await;
    let found: Vec<_> = scene
        .jobs("default")
        .into_iter()
        .map(|job| job["traceparent"].clone())
        .collect();
    assert_eq!(
        found,
        [json!(null), json!(W3C), json!(W3C), json!(W3C), json!(W3C)]
    );
    assert_eq!(scene.jobs("default")[1]["tracestate"], "a=1");
}

#[tokio::test]
async fn a_trace_that_is_not_recorded_goes_on_as_such() {
    let scene = Scene::new().await;
    let jobs = [payload(
        object("Dispatches").public("batchId", "b-1"),
        &json!({"traceparent": W3C}),
    )];
    let options = TraceOptions {
        sampling: Sampling {
            is_parent_based: false,
            share: 0.0,
        },
        ..scene.options()
    };
    assert!(scene.spans(&options, &jobs).await.is_empty());
    let traceparent = scene.jobs("now")[0]["traceparent"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        traceparent.starts_with(&format!("00-{TRACE}-")) && traceparent.ends_with("-00"),
        "{traceparent}"
    );
}
