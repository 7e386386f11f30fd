//! The task of the writer, and the observer that it gets its notes from.

use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use super::note::Recorder;
use super::options::HorizonOptions;
use super::writer::Writer;
use crate::connection;
use crate::task::{BackgroundTask, Losses};

/// The task that writes records, and the observer that it gets them from.
#[derive(Debug)]
pub struct Horizon {
    recorder: Recorder,
    writing: BackgroundTask,
}

impl Horizon {
    /// Starts the task on this runtime; `losses` hears of records that were dropped.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn start(
        options: HorizonOptions,
        losses: Losses,
        runtime: &Handle,
    ) -> Result<Self, connection::Error> {
        let (recorder, writer) = Writer::new(options, losses)?;
        Ok(Self {
            recorder,
            writing: BackgroundTask::start(runtime, |last| writer.run(last)),
        })
    }

    /// The observer of a worker, and the listener of pushes.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Shows the worker among Horizon's masters and supervisors from now on. Before, it may not start at all: Horizon
    /// would count as running while a process manager starts it again and again.
    pub fn begin(&self) {
        let has_begun = &self.recorder.backlog.has_begun;
        has_begun.store(true, Ordering::Relaxed);
    }

    /// Writes what is left, for a few seconds at most, and removes the worker's own records.
    pub async fn finish(self) {
        let abnormal = "Horizon's records are no longer written";
        self.writing.finish(abnormal).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::connection::RedisOptions;
    use crate::queue::{ConnectionName, PushListener as _, QueueName};

    #[tokio::test]
    async fn records_that_cannot_be_written_do_not_keep_a_worker_from_its_end() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut redis = RedisOptions::default();
        let url = format!("redis://{}", free.local_addr().unwrap());
        redis.apply_url(&url).unwrap();
        drop(free);
        let options = HorizonOptions::of_pushes(redis);
        let horizon = Horizon::start(options, Arc::new(|_| ()), &Handle::current()).unwrap();
        let recorder = horizon.recorder();
        let (connection, queue) = (ConnectionName::from("redis"), QueueName::from("default"));
        recorder.pushed(&connection, &queue, br#"{"uuid":"a","job":"A"}"#);
        // It is taken in order to be written.
        while recorder.notes.capacity() < recorder.notes.max_capacity() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), horizon.finish()).await;
        assert!(ended.is_ok());
    }
}
