//! Handlers under test, in an app in memory.

use std::time::Duration;

use artisand::handler::{self, BoxError, Handler, JobContext};
use artisand::testing::{App, Ended};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::harness::fixtures;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Import", rename_all = "camelCase")]
struct Import {
    page: u32,
    plan: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Report")]
struct Report {
    page: u32,
}

fn import(plan: &str) -> Import {
    Import {
        page: 7,
        plan: plan.to_owned(),
    }
}

/// Does what the job's plan says.
fn planned() -> impl Handler {
    handler::function(|job: Import, context: JobContext| async move {
        match &*job.plan {
            "then" => context.then(&Report { page: job.page })?,
            "now" => drop(context.dispatch().job(&Report { page: job.page }).await?),
            "throw" => return Err(BoxError::from("disk on fire")),
            "then-throw" => {
                context.then(&Report { page: job.page })?;
                return Err(BoxError::from("too late"));
            }
            "release" => context.release(Duration::from_secs(30)),
            "fail" => context.fail("no longer wanted"),
            _ => {}
        }
        Ok::<(), BoxError>(())
    })
}

fn app() -> App {
    App::new().class::<Import>().class::<Report>()
}

#[tokio::test]
async fn a_handler_runs_as_in_a_worker_and_its_end_is_told() {
    let app = app();
    let end = app.run(planned(), &import("ok")).await.unwrap();
    assert!(end.is_processed());
    let end = app.run(planned(), &import("release")).await.unwrap();
    let delay = Duration::from_secs(30);
    assert_eq!(
        end,
        Ended::Released {
            delay,
            failure: None
        }
    );
    let waiting = app.dispatched::<Import>().delayed_by(delay).once();
    assert_eq!(waiting, import("release"));
    for (plan, why) in [("throw", "disk on fire"), ("fail", "no longer wanted")] {
        let end = app.run(planned(), &import(plan)).await.unwrap();
        assert!(matches!(end, Ended::Failed { .. }), "{plan}: {end:?}");
        assert!(end.failure().unwrap().contains(why), "{plan}: {end:?}");
    }
}

#[tokio::test]
async fn a_job_that_is_released_runs_again_once_it_is_due() {
    let app = app().tries(2);
    let end = app.run(planned(), &import("throw")).await.unwrap();
    assert!(
        matches!(
            &end,
            Ended::Released {
                failure: Some(_),
                ..
            }
        ),
        "{end:?}"
    );
    let end = app.run_next(planned()).await.unwrap();
    assert!(matches!(end, Ended::Failed { .. }), "{end:?}");
    assert_eq!(app.run_next(planned()).await, None);

    app.run(planned(), &import("release")).await.unwrap();
    assert_eq!(app.run_next(planned()).await, None);
    app.advance(Duration::from_secs(30));
    let attempt = handler::function(|_: IgnoredAny, context: JobContext| async move {
        assert_eq!(context.attempts(), 2);
        Ok::<(), BoxError>(())
    });
    assert_eq!(app.run_next(attempt).await, Some(Ended::Processed));
}

#[tokio::test]
async fn what_a_handler_dispatches_is_found_by_type_queue_and_delay() {
    let app = app();
    for plan in ["then", "now"] {
        app.run(planned(), &import(plan)).await.unwrap();
    }
    app.run(planned(), &import("then-throw")).await.unwrap();
    assert_eq!(
        app.dispatched::<Report>().times(2),
        [Report { page: 7 }, Report { page: 7 }]
    );
    let dispatch = app.dispatch();
    let report = Report { page: 9 };
    dispatch.job(&report).on_queue("slow").await.unwrap();
    dispatch
        .job(&report)
        .delay(Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(app.dispatched::<Report>().on_queue("slow").once(), report);
    let late = app
        .dispatched::<Report>()
        .delayed_by(Duration::from_secs(60));
    assert_eq!(late.jobs()[0].queue, "default");
    app.dispatched::<Import>().none();
    let chain = dispatch.chain().then(&import("ok")).then(&report);
    chain.on_queue("chain").await.unwrap();
    app.dispatched::<Report>().on_queue("chain").none();
    while app.dispatched::<Import>().on_queue("chain").jobs().len() == 1 {
        let any =
            handler::function(|_: IgnoredAny, _: JobContext| async { Ok::<(), BoxError>(()) });
        app.run_next(any).await.unwrap();
    }
    assert_eq!(app.dispatched::<Report>().on_queue("chain").once(), report);
}

#[tokio::test]
#[should_panic(
    expected = "App\\Jobs\\Report was dispatched 0 times instead of 1; in the queues:\n  App\\Jobs\\Import on queue slow"
)]
async fn a_missing_job_is_said_with_what_is_there() {
    let app = app();
    app.dispatch()
        .job(&import("ok"))
        .on_queue("slow")
        .await
        .unwrap();
    app.dispatched::<Report>().once();
}

#[tokio::test]
async fn payloads_are_those_of_the_version_and_captured_ones_are_read() {
    let job = import("ok");
    for (version, has_created_at) in [("8.83", false), ("13.31", true)] {
        let app = app().laravel(version).unwrap();
        let payload = app.payload(&job, "the-uuid", "the-id").await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(
            (&json["uuid"], &json["id"]),
            (&"the-uuid".into(), &"the-id".into())
        );
        assert_eq!(json.get("createdAt").is_some(), has_created_at, "{version}");
        assert!(app.run_payload(planned(), &payload).await.is_processed());
    }
    let app = app();
    let end = app.run_payload(planned(), b"{}").await;
    assert!(end.failure().is_some(), "{end:?}");

    let (_, line) = fixtures::lines("payloads/laravel-13.jsonl")
        .into_iter()
        .next()
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), line["element"].as_str().unwrap()).unwrap();
    let plain: Plain = app.read(file.path()).unwrap();
    assert_eq!((plain.number, &*plain.title), (42, "Hello"));
}

#[tokio::test]
async fn unknown_classes_and_misfits_are_said() {
    #[derive(Serialize)]
    #[serde(rename = "App\\Jobs\\Imports")]
    struct Misspelt {
        page: u32,
    }
    let app = app();
    let error = app.run(planned(), &Misspelt { page: 1 }).await.unwrap_err();
    assert!(
        error.to_string().contains(r"did you mean App\Jobs\Import?"),
        "{error}"
    );
    let wrong = handler::function(|_: Report, _: JobContext| async { Ok::<(), BoxError>(()) });
    let other = Import {
        page: 1,
        plan: "ok".into(),
    };
    let end = app.run(wrong, &other).await.unwrap();
    assert!(
        end.is_processed(),
        "more properties than the struct has do no harm: {end:?}"
    );
    let wrong = handler::function(|_: Wrong, _: JobContext| async { Ok::<(), BoxError>(()) });
    let end = app.run(wrong, &other).await.unwrap();
    assert!(end.failure().unwrap().contains("pages"), "{end:?}");
}

#[derive(Debug, PartialEq, Deserialize)]
struct Plain {
    number: i64,
    title: String,
}

#[derive(Deserialize)]
struct Wrong {
    #[expect(dead_code, reason = "only its name matters")]
    pages: u32,
}
