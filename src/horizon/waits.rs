//! Lets Horizon look for queues whose jobs wait too long, while none of its supervisors does.
//!
//! The look itself, its limits (`horizon.waits`), the event `LongWaitDetected` and its notifications are PHP, and in
//! Horizon they run in the loop of a supervisor. Here a PHP process makes one look and ends: it boots only while jobs
//! wait, and a mail server that does not answer keeps no job waiting.
//!
//! # Source
//!
//! `Laravel\Horizon\Listeners\MonitorWaitTimes`; docs/protocol/horizon.md 11.3.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::options::{HorizonOptions, Registration};
use super::register::Alive;
use crate::connection::{self, Redis};
use crate::process::pool::{Answer, Helper, PoolOptions};
use crate::queue::{Queue, QueueName};
use crate::task::BackgroundTask;

/// Seconds between two checks whether a look is due. Not always the same number, so that two workers seldom start
/// PHP at once.
const CHECK: std::ops::Range<f64> = 4.0..8.0;
/// Shortest time between two looks. Horizon's own lock has the same.
const BETWEEN: Duration = Duration::from_secs(60);
/// How long a look may take, with the boot of the app and the notifications.
const MOST: Duration = Duration::from_secs(60);
/// The lock that Horizon takes for each look; it expires after a minute.
const LOCK: &str = "monitor:time-to-clear";

/// The task that lets PHP look.
#[derive(Debug)]
pub struct WaitMonitor {
    watching: BackgroundTask,
}

impl WaitMonitor {
    /// Starts the task on this runtime; `None` if Horizon has no record of this worker's queues, which it looks at.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn start(
        options: &HorizonOptions,
        php: PoolOptions,
        queue: Arc<dyn Queue>,
        runtime: &Handle,
    ) -> Result<Option<Self>, connection::Error> {
        let shown = options.worker.as_ref();
        let Some(worker) = shown.filter(|worker| worker.registration != Registration::Off) else {
            return Ok(None);
        };
        let watch = Watch {
            redis: Redis::new(&options.redis)?,
            prefix: options.redis.prefix.clone(),
            php,
            queue,
            queues: worker.queues.clone(),
            has_failed: false,
        };
        Ok(Some(Self {
            watching: BackgroundTask::start(runtime, |last| watch.run(last)),
        }))
    }

    /// Ends the task, and a look that is under way.
    pub async fn stop(self) {
        let abnormal = "the task that lets Horizon look for long waits ended abnormally";
        self.watching.finish(abnormal).await;
    }
}

struct Watch {
    redis: Redis,
    prefix: String,
    php: PoolOptions,
    queue: Arc<dyn Queue>,
    queues: Vec<QueueName>,
    /// Whether the log has heard of a look that failed, and none has succeeded since.
    has_failed: bool,
}

impl Watch {
    async fn run(mut self, last: CancellationToken) {
        let mut wait = Duration::ZERO;
        loop {
            let check = CHECK.start + (CHECK.end - CHECK.start) * fastrand::f64();
            tokio::select! {
                () = tokio::time::sleep(wait.max(Duration::from_secs_f64(check))) => {}
                () = last.cancelled() => return,
            }
            wait = Duration::ZERO;
            if self.is_due().await {
                self.look(&last).await;
                wait = BETWEEN;
            }
        }
    }

    /// Whether jobs wait, and Horizon has not looked for a minute and will not by itself.
    async fn is_due(&self) -> bool {
        let mut lock = redis::cmd("EXISTS");
        lock.arg(format!("{}{LOCK}", self.prefix));
        // Without an answer the next check decides.
        match self.redis.command::<bool>(&lock).await {
            Ok(false) => {}
            Ok(true) | Err(_) => return false,
        }
        let alive = Alive::ask(&self.redis, &self.prefix).await;
        if alive.is_ok_and(|alive| !alive.has_supervisor_in_php()) {
            for queue in &self.queues {
                let sizes = self.queue.sizes(queue).await;
                if sizes.is_ok_and(|sizes| sizes.pending > 0) {
                    return true;
                }
            }
        }
        false
    }

    /// Lets a PHP process look.
    async fn look(&mut self, last: &CancellationToken) {
        let helper = Helper::start(self.php.clone(), "waits");
        let asking = async {
            helper.booted().await;
            if helper.is_broken() {
                return Err("the PHP process could not start".to_owned());
            }
            match helper.ask(&json!({"do": "waits"})).await {
                Answer::Given(answer) => answer["why"]
                    .as_str()
                    .map_or(Ok(()), |why| Err(why.to_owned())),
                Answer::Missing { .. } => {
                    Err("the PHP process ended, or did not answer".to_owned())
                }
            }
        };
        let result = tokio::select! {
            result = tokio::time::timeout(MOST, asking) => {
                result.unwrap_or_else(|_| Err(format!("it took longer than {MOST:?}")))
            }
            () = last.cancelled() => Ok(()),
        };
        helper.stop().await;
        let had_failed = std::mem::replace(&mut self.has_failed, result.is_err());
        if let Err(error) = result
            && !had_failed
        {
            tracing::warn!(
                error,
                "Horizon could not look for long waits: its notifications about them are missing. This is logged once"
            );
        }
    }
}
