//! What every measurement needs: the queue, the load, a worker, and the stop order.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::args::Load;
use super::payload::{CLASS, Numbered};
use super::queue::OwnQueue;
use crate::handler::{self, JobContext};
use crate::payload::Pattern;
use crate::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use crate::worker::{Control, StopRules, Worker, WorkerOptions};

/// What every measurement needs.
pub(super) struct Setup {
    pub(super) queue: OwnQueue,
    pub(super) load: Load,
    pub(super) control: Control,
    pub(super) overseer: Option<Handle>,
}

/// Longest run of one worker, in case that the server is gone for good.
const LONGEST: Duration = Duration::from_secs(600);

impl Setup {
    /// The worker of `queue:work` with this handler, which gets the number of each job.
    pub(super) fn worker(
        &self,
        concurrency: NonZeroUsize,
        when_empty: bool,
        handle: impl Fn(usize) + Send + Sync + 'static,
    ) -> anyhow::Result<Worker> {
        let handle = move |job: Numbered, _: JobContext| -> Ready<Result<(), Infallible>> {
            handle(job.n);
            ready(Ok(()))
        };
        let registry = Registry::new().with("bench", handler::function(handle));
        let mapping = Mapping::new(
            Pattern::parse(CLASS)?,
            HandlerChoice::Named("bench".to_owned()),
        );
        let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &registry);
        let options = WorkerOptions {
            queues: vec![self.queue.name.clone()],
            concurrency,
            stop: StopRules {
                when_empty,
                memory: None,
                max_time: Some(LONGEST),
                ..StopRules::default()
            },
            ..WorkerOptions::default()
        };
        let queue = Arc::clone(&self.queue.queue);
        let worker = Worker::new(queue, router.map_err(|(_, error)| error)?, options);
        Ok(match self.overseer.clone() {
            Some(overseer) => worker.with_overseer(overseer),
            None => worker,
        })
    }

    /// Puts the jobs of one run into the empty queue.
    pub(super) async fn fill(&self, jobs: u32) -> anyhow::Result<()> {
        self.queue.clear().await?;
        let mut next = 0;
        while next < jobs {
            go_on(&self.control)?;
            next = self.queue.push(next, jobs, self.load.size).await?;
        }
        Ok(())
    }
}

/// Fails once a signal has told the process to stop.
///
/// Steps are not cancelled half way: what they have sent would arrive after the keys are deleted.
pub(super) fn go_on(control: &Control) -> anyhow::Result<()> {
    let is_told = control.told_to_quit().now_or_never().is_some();
    anyhow::ensure!(!is_told, "stopped by a signal before the end");
    Ok(())
}

/// Stops also when the terminal is closed, which a worker does not.
pub(super) fn obey_hangups(control: &Control) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let hangup = signal(SignalKind::hangup());
    let mut hangup = hangup.context("could not listen for signals")?;
    let control = control.clone();
    tokio::spawn(async move {
        hangup.recv().await;
        control.quit();
    });
    Ok(())
}
