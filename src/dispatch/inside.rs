//! Pushes a job within a transaction of the caller: it is on its queue if that commits, and not if it does not.

use super::error::DispatchError;
use super::pending::Pending;
use super::push::{Dispatched, Prepared};
use crate::connection::SqlConnection;
use crate::handler::dispatch as draft;
use crate::queue::{InsideError, JobRow};

impl Pending {
    /// Pushes the job within a transaction of the database that holds its queue.
    ///
    /// The queue's connection has the driver `database`. No worker sees the job before the commit, and a rollback takes
    /// it back: stronger than Laravel's `afterCommit`, which pushes a moment after the commit. The lock of a unique job
    /// is taken in the transaction as well, if the app's cache is in the same database.
    ///
    /// ```no_run
    /// # async fn example(dispatch: artisand::dispatch::Dispatch, pool: sqlx::SqlitePool)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// #[derive(serde::Serialize)]
    /// #[serde(rename = "App\\Jobs\\SendReceipt")]
    /// struct SendReceipt {
    ///     order: u64,
    /// }
    ///
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("insert into orders (id) values (7)").execute(&mut *transaction).await?;
    /// dispatch.job(&SendReceipt { order: 7 }).inside(&mut *transaction).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`] if the queue is in no database of this kind; those of [`prepare`](Self::prepare). After
    /// [`DispatchError::Refused`] the transaction can only be rolled back.
    ///
    /// # Cancel safety
    ///
    /// A dropped future, like a rollback, may leave the lock of a unique job that is in another place than the queue.
    pub async fn inside<C: SqlConnection>(
        self,
        connection: &mut C,
    ) -> Result<Dispatched, DispatchError> {
        self.prepare().await?.inside(connection).await
    }

    /// The row of the table of jobs that stands for the job, for callers that insert it themselves.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`] if the queue is in no database, or if the job is unique: its lock has to be taken with
    /// the push. Those of [`prepare`](Self::prepare).
    pub async fn row(self) -> Result<JobRow, DispatchError> {
        self.prepare().await?.row()
    }
}

impl Prepared {
    /// As [`Pending::inside`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn inside<C: SqlConnection>(
        self,
        connection: &mut C,
    ) -> Result<Dispatched, DispatchError> {
        let queues = self.queues()?;
        if self.once.is_some() {
            return Err(DispatchError::unfit(
                "`once` is for pushes whose reply may be lost, and this one is part of a transaction",
            ));
        }
        if let Some(lock) = &self.ready.lock
            && !self.acquire(lock).await?
        {
            return Ok(Dispatched::Unique);
        }
        let pushed = queues.push_inside(connection, &self.ready.push).await;
        match pushed {
            Ok(true) => Ok(self.queued(self.ready.uuid.clone())),
            Ok(false) => Ok(Dispatched::Unique),
            Err(error) => {
                if let Some(lock) = &self.ready.lock {
                    self.free(lock).await;
                }
                Err(match error {
                    InsideError::Elsewhere(_) => DispatchError::unfit(error),
                    error => DispatchError::Refused(error.into()),
                })
            }
        }
    }

    /// As [`Pending::row`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn row(self) -> Result<JobRow, DispatchError> {
        let services = &self.app.services;
        let (name, destination) = draft::destination(services, Some(&self.ready.connection))?;
        let queues = draft::queues(name, destination)?;
        if self.ready.lock.is_some() || self.ready.push.claim.is_some() {
            return Err(DispatchError::unfit(
                "a unique job takes its lock with its push: use `inside`",
            ));
        }
        queues.row(&self.ready.push).ok_or_else(|| {
            DispatchError::unfit(format!(
                "the queue connection `{name}` is in no database, so its jobs have no row"
            ))
        })
    }
}
