//! Payloads of jobs that are dispatched, on queues in memory.

use std::path::Path;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::{Dispatch, DispatchError, Pending};
use crate::app::Manifest;
use crate::handler::{BoxFuture, Fields, Hooks, RunsHooks, Services};
use crate::queue::{Connections, Destination, MemoryQueue, QueueName};

/// An app of this version, with these fields in its manifest.
fn services(version: &str, fields: &Json) -> Services {
    let mut manifest = json!({
        "artisand": 1, "laravel": version, "generated_at": 0, "config": {},
        "paths": {"base": "/app", "storage": "/app/storage"}, "classes": {},
    });
    let fields = fields.as_object().unwrap().clone();
    manifest.as_object_mut().unwrap().extend(fields);
    let manifest = Manifest::parse(Path::new("a.json"), manifest.to_string().as_bytes());
    let here = Destination {
        default_queue: "usual".into(),
        queues: Ok(Arc::new(MemoryQueue::new(None))),
    };
    Services {
        version: version.parse().unwrap(),
        manifest: Some(Arc::new(manifest.unwrap())),
        connections: Some(Connections::new("redis", [("redis".to_owned(), here)])),
        ..Services::default()
    }
}

/// The payload that is pushed.
async fn payload(pending: Pending) -> Result<Json, DispatchError> {
    let prepared = pending.prepare().await?;
    Ok(serde_json::from_slice(prepared.payload()).unwrap())
}

/// PHP, where a hook adds the queue.
#[derive(Debug)]
struct Php;

impl RunsHooks for Php {
    fn fields<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        queue: &'a QueueName,
    ) -> BoxFuture<'a, Result<Fields, String>> {
        let json = RawValue::from_string(json!(queue.as_str()).to_string());
        Box::pin(async move { Ok(vec![("tenant".into(), json.unwrap())]) })
    }
}

#[tokio::test]
async fn payload_hooks_are_asked_for_string_jobs_too() {
    let services = services("13.31.0", &json!({"payload_hooks": ["App\\Tenancy"]}));
    let string = |hooks: Hooks| {
        let mut services = services.clone();
        services.hooks = hooks;
        Dispatch::of_services(services).string("App\\Legacy@run", &1)
    };
    let error = payload(string(Hooks::OnlyPhp)).await.unwrap_err();
    assert!(matches!(error, DispatchError::OnlyPhp(_)), "{error:?}");
    let skipped = payload(string(Hooks::Skip)).await.unwrap();
    assert_eq!(skipped.get("tenant"), None);
    let asked = payload(string(Hooks::Ask(Arc::new(Php)))).await.unwrap();
    assert_eq!(asked["tenant"], "usual");
    let by_php = payload(string(Hooks::Skip).by_php()).await.unwrap_err();
    assert!(matches!(by_php, DispatchError::Unfit(_)), "{by_php:?}");
}
