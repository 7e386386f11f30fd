//! The batch of a running job, as its handler sees it.

use std::ops::Deref;

use super::{Batch, Batches, Error};

/// A batch and where it is kept. What it says of the batch is as old as itself; [`fresh`](Self::fresh) looks again.
#[derive(Debug, Clone)]
pub struct BatchHandle {
    batch: Batch,
    batches: Batches,
}

impl Deref for BatchHandle {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl BatchHandle {
    pub(super) fn new(batch: Batch, batches: Batches) -> Self {
        Self { batch, batches }
    }

    /// Whether the batch was cancelled when it was read.
    pub fn cancelled(&self) -> bool {
        self.batch.is_cancelled()
    }

    /// Cancels the batch, for everybody. Jobs that wait are run all the same, unless they ask.
    ///
    /// # Errors
    ///
    /// The row could not be written.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.batches.cancel(&self.batch.id).await.map(drop)
    }

    /// The batch as it is now; `None` if its row is gone.
    ///
    /// # Errors
    ///
    /// The row could not be read.
    pub async fn fresh(&self) -> Result<Option<Self>, Error> {
        self.batches.handle(&self.batch.id).await
    }

    /// Where it is kept, for adding jobs.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }
}
