//! The broadcast handler against a Redis of the test's own, and what becomes of jobs that a handler refuses.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use artisand::connection::{Redis, RedisAddress, RedisOptions};
use artisand::handler::{
    BoxError, BoxFuture, BroadcastConnection, BroadcastConnections, Broadcaster, Handler,
    HandlerChoice, JobContext, JobInfo, Mapping, Pattern, Registry, Router, Services,
    UnmappedPolicy,
};
use artisand::payload::{CALL_QUEUED_HANDLER, Payload};
use artisand::php::{Array, ClassName, Object, Value};
use artisand::queue::{MemoryQueue, Queue as _, QueueName, Sizes};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{Control, Worker, WorkerOptions};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::redis::RedisServer;

fn class(name: &str) -> ClassName {
    ClassName::new(name).unwrap()
}

fn list(values: &[&str]) -> Value {
    let values: Array = values.iter().map(|value| Value::from(*value)).collect();
    values.into()
}

/// The job of an event that needs no manifest, on these channels of this connection.
fn job(channels: &[&str], connection: Option<&str>) -> Arc<JobInfo> {
    let connection: Array = [connection.map_or(Value::Null, Value::from)]
        .into_iter()
        .collect();
    let event = Object::new(class("Illuminate\\Broadcasting\\AnonymousEvent"))
        .protected("name", "told")
        .protected("payload", list(&["a/b"]))
        .protected("channels", list(channels))
        .protected("broadcastConnection", connection)
        .public("socket", "1.2");
    let wrapper = Object::new(class("Illuminate\\Broadcasting\\BroadcastEvent"));
    let command = Value::Object(wrapper.public("event", Value::Object(event)));
    let command = String::from_utf8(command.to_bytes()).unwrap();
    let payload = json!({
        "uuid": "u-1", "displayName": "Illuminate\\Broadcasting\\AnonymousEvent", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "Illuminate\\Broadcasting\\BroadcastEvent", "command": command},
        "id": "i-1", "attempts": 0,
    });
    let body = payload.to_string().into_bytes();
    Arc::new(JobInfo {
        connection: "redis".into(),
        queue: "default".into(),
        attempts: 1,
        payload: Arc::new(Payload::parse(&body).unwrap()),
        body: body.into(),
    })
}

fn services(port: u16) -> Arc<Services> {
    let redis = Redis::new(&RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), port),
        prefix: "keys_".into(),
        ..RedisOptions::default()
    });
    let connection = BroadcastConnection::new(redis.unwrap(), "app_");
    let mut services = Services::default();
    services.broadcasts = Some(BroadcastConnections::new(
        "main",
        [
            ("main".to_owned(), Ok(connection)),
            (
                "pusher".to_owned(),
                Err("its driver is `pusher`".to_owned()),
            ),
        ],
    ));
    Arc::new(services)
}

fn context(job: Arc<JobInfo>, services: &Arc<Services>) -> JobContext {
    JobContext::new(job, CancellationToken::new(), Arc::clone(services))
}

#[tokio::test]
async fn an_event_is_published_on_its_channels_with_the_prefix_of_the_app() {
    let server = RedisServer::start();
    let services = services(server.port());
    let mut connection = server.connection();
    let mut ear = connection.as_pubsub();
    ear.psubscribe("*").unwrap();
    let context = context(job(&["one", "two"], None), &services);
    Broadcaster.handle(context).await.unwrap();
    for channel in ["app_one", "app_two"] {
        let message = ear.get_message().unwrap();
        assert_eq!(message.get_channel_name(), channel);
        let text = String::from_utf8(message.get_payload_bytes().to_vec()).unwrap();
        assert_eq!(
            text,
            r#"{"event":"told","data":{"0":"a\/b","socket":"1.2"},"socket":"1.2"}"#
        );
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_an_exception_of_the_job_and_no_reason_to_refuse_it() {
    let mut server = RedisServer::start();
    let services = services(server.port());
    server.stop();
    let job = job(&["one"], None);
    assert_eq!(Broadcaster.refuses(&job.payload, &services), None);
    let error = Broadcaster.handle(context(job, &services)).await;
    let error = error.unwrap_err().to_string();
    assert_eq!(
        error,
        "could not broadcast on 1 channels of connection `main`"
    );
    server.restart();
    let job = self::job(&["one"], None);
    Broadcaster.handle(context(job, &services)).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_published_here_is_refused_before_it_is_taken() {
    let services = services(1);
    let refusal = |job: &Arc<JobInfo>, services: &Services| {
        let why = Broadcaster.refuses(&job.payload, services);
        why.unwrap()
    };
    #[rustfmt::skip]
    let rows = [
        (job(&["one"], Some("pusher")), "its broadcast connection `pusher`: its driver is `pusher`"),
        (job(&["one"], Some("gone")), "the app has no broadcast connection `gone` (there are: main, pusher)"),
    ];
    for (job, expected) in rows {
        assert_eq!(refusal(&job, &services), expected);
        let error = Broadcaster.handle(context(job, &services)).await;
        assert!(error.unwrap_err().to_string().ends_with(expected));
    }
    let why = refusal(&job(&["one"], None), &Services::default());
    assert!(
        why.contains("broadcast connections cannot be used"),
        "{why}"
    );
    // On no channel nothing is published, as in Laravel; nobody needs to be there for it.
    Broadcaster
        .handle(context(job(&[], Some("pusher")), &services))
        .await
        .unwrap();
}

/// Runs the jobs of even number only.
struct Even;

fn number(payload: &Payload) -> u32 {
    let uuid = payload.uuid.as_ref().unwrap().as_str();
    uuid.parse().unwrap()
}

impl Handler for Even {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        assert!(number(context.payload()).is_multiple_of(2));
        Box::pin(std::future::ready(Ok(())))
    }

    fn refuses(&self, payload: &Payload, _: &Services) -> Option<String> {
        (!number(payload).is_multiple_of(2)).then(|| "it is odd".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_its_handler_refuses_counts_as_unmapped() {
    for (policy, stays, moved) in [
        (UnmappedPolicy::Leave, 3, 0),
        (UnmappedPolicy::Forward("php".into()), 0, 3),
    ] {
        let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
        let default = QueueName::from("default");
        for number in 0..6 {
            let body = json!({
                "uuid": number.to_string(), "displayName": "J", "job": CALL_QUEUED_HANDLER,
                "data": {"commandName": "J", "command": "O:1:\"J\":0:{}"}, "id": number.to_string(), "attempts": 0,
            });
            queue
                .push(&default, &[body.to_string().into_bytes()])
                .await
                .unwrap();
        }
        // Pattern `*`: no class is taken without a look.
        let mapping = Mapping::new(
            Pattern::parse("*").unwrap(),
            HandlerChoice::Named("even".into()),
        );
        let registry = Registry::new().with("even", Even);
        let router = Router::new(vec![mapping], policy, &registry).unwrap();
        let options = WorkerOptions {
            concurrency: NonZeroUsize::new(2).unwrap(),
            stop_when_empty: true,
            memory: None,
            clock: Clock::Fixed(UnixSeconds(1_760_000_000)),
            ..WorkerOptions::default()
        };
        let worker = Worker::new(Arc::clone(&queue), router, options);
        worker.run(&Control::new()).await;
        let sizes = |name: &str| {
            let (queue, name) = (Arc::clone(&queue), QueueName::from(name));
            async move { queue.sizes(&name).await.unwrap() }
        };
        let pending = |pending| Sizes {
            pending,
            ..Sizes::default()
        };
        assert_eq!(sizes("default").await, pending(stays));
        assert_eq!(sizes("php").await, pending(moved));
    }
}
