//! A pool without processes: tests play its members.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::shared::{Assignment, Offer, Shared};
use super::{Pool, PoolMessage, PoolOptions};
use crate::handler::JobInfo;

/// A member that waits for a job.
#[derive(Debug)]
pub(crate) struct Waiting(Offer);

/// A member with a job.
#[derive(Debug)]
pub(crate) struct Member(Assignment);

impl PoolOptions {
    /// For one process that runs this program.
    pub(super) fn of(php: &[&str]) -> Self {
        Self {
            php: php.iter().map(ToString::to_string).collect(),
            app: "/".into(),
            env: None,
            connection: "redis".into(),
            queue: "default".into(),
            processes: NonZeroUsize::MIN,
            rest: Duration::ZERO,
            max_time: None,
            failer: None,
            worker: serde_json::Map::new(),
            boot: Duration::from_secs(60),
            retry_after: None,
            once: false,
        }
    }
}

impl Pool {
    /// A pool of this many members that a test plays.
    pub(crate) fn played(members: usize) -> Self {
        let options = PoolOptions {
            processes: NonZeroUsize::new(members).unwrap(),
            ..PoolOptions::of(&[])
        };
        Self(Arc::new(Shared::new(options, None)))
    }

    /// Lets a member wait for a job.
    pub(crate) fn offer(&self) -> Waiting {
        Waiting(self.0.offer())
    }
}

impl Waiting {
    /// Waits for the job, and begins it.
    pub(crate) async fn job(mut self) -> Member {
        let assignment = (&mut self.0.0).await.expect("the pool gives it a job");
        assignment
            .begun
            .set(Instant::now())
            .expect("the job is new");
        Member(assignment)
    }

    /// Waits for the job, and says after this time that it does not begin it.
    pub(crate) async fn decline(mut self, after: Duration) {
        let assignment = (&mut self.0.0).await.expect("the pool gives it a job");
        tokio::time::sleep(after).await;
        let _ = assignment.said.send(PoolMessage::Declined).await;
    }
}

impl Member {
    /// Its job.
    pub(crate) fn info(&self) -> &JobInfo {
        &self.0.info
    }

    pub(crate) async fn says(&self, said: PoolMessage) {
        self.0.said.send(said).await.expect("the worker listens");
    }

    /// Waits for the answer to a report; `None` if there will be none.
    pub(crate) async fn answer(&mut self) -> Option<bool> {
        self.0.answers.recv().await
    }

    /// Waits until it is killed.
    pub(crate) async fn killed(&self) {
        self.0.kill.cancelled().await;
    }
}
