//! Asks a PHP process for what the app's payload hooks add.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::helper::Helper;
use super::shared::{Answer, PoolOptions};
use crate::handler::{BoxFuture, Fields, RunsHooks};
use crate::queue::QueueName;

/// How long the end of a job waits for an answer. Without one PHP pushes the job.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nothing is asked after an answer that did not come.
const PAUSE: Duration = Duration::from_secs(10);

/// A PHP process that runs the app's payload hooks.
#[derive(Debug)]
pub struct HookHelper {
    helper: Helper,
    pause: Mutex<Option<Instant>>,
}

#[derive(Serialize)]
struct HookRequest<'a> {
    r#do: &'static str,
    payload: &'a str,
    connection: &'a str,
    queue: &'a str,
}

/// What PHP answers: fields, or why there are none.
#[derive(Deserialize)]
struct HookReply {
    #[serde(default)]
    fields: Vec<(Box<str>, String)>,
    why: Option<String>,
}

impl HookReply {
    /// The fields, which are JSON.
    fn read(answer: serde_json::Value) -> Result<Fields, String> {
        let told: Self = serde_json::from_value(answer).map_err(|error| error.to_string())?;
        if let Some(why) = told.why {
            return Err(why);
        }
        let field = |(name, json)| Ok((name, RawValue::from_string(json)?));
        let fields = told.fields.into_iter().map(field);
        let fields: Result<Fields, serde_json::Error> = fields.collect();
        fields.map_err(|error| error.to_string())
    }
}

impl HookHelper {
    /// Starts the process; must be called in a runtime.
    pub fn start(options: PoolOptions) -> Self {
        Self {
            helper: Helper::start(options, "hooks"),
            pause: Mutex::default(),
        }
    }

    /// Waits until the process has booted the app or failed to; until then PHP pushes what follows a job.
    pub async fn booted(&self) {
        self.helper.booted().await;
    }

    /// Lets the process end, or kills it.
    pub async fn stop(&self) {
        self.helper.stop().await;
    }

    async fn ask(&self, asked: &HookRequest<'_>) -> Result<Fields, String> {
        let paused = *self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        if self.helper.is_broken() || paused.is_some_and(|until| Instant::now() < until) {
            return Err("the PHP process for payload hooks does not answer".to_owned());
        }
        let answer = tokio::time::timeout(PATIENCE, self.helper.ask(asked)).await;
        if let Ok(Answer::Given(answer)) = answer {
            return HookReply::read(answer);
        }
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        *pause = Some(Instant::now() + PAUSE);
        tracing::warn!(
            "PHP did not say what the app's payload hooks add: for {PAUSE:?}, PHP itself pushes the jobs that follow others"
        );
        Err("PHP did not answer in time".to_owned())
    }
}

impl RunsHooks for HookHelper {
    fn fields<'a>(
        &'a self,
        payload: &'a str,
        connection: &'a str,
        queue: &'a QueueName,
    ) -> BoxFuture<'a, Result<Fields, String>> {
        Box::pin(async move {
            let asked = HookRequest {
                r#do: "hooks",
                payload,
                connection,
                queue: queue.as_str(),
            };
            self.ask(&asked).await
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_taken_only_if_they_are_json() {
        let read = |answer| HookReply::read(answer).map(|fields| format!("{fields:?}"));
        let fields = json!({"fields": [["tenant", "7"], ["a b", "{\"x\":[1.50]}"]]});
        let read_back = read(fields).unwrap();
        assert!(
            read_back.contains("tenant") && read_back.contains("1.50"),
            "{read_back}"
        );
        assert_eq!(read(json!({"fields": []})).unwrap(), "[]");
        assert_eq!(
            read(json!({"why": "a hook threw"})).unwrap_err(),
            "a hook threw"
        );
        for answer in [
            json!({"fields": [["tenant", "7}"]]}),
            json!({"fields": 7}),
            json!(null),
        ] {
            assert!(read(answer).is_err());
        }
    }
}
