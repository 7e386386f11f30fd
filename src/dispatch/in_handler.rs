//! Dispatching from within a handler.

use std::sync::Arc;

use serde::Serialize;

use super::{Dispatch, DispatchError, JobContext};

impl JobContext {
    /// Dispatches jobs now, whatever becomes of this one; they inherit its log context and its trace.
    ///
    /// A handler that runs again dispatches them again: see [`then`](Self::then), and
    /// [`Pending::once`](super::Pending::once).
    pub fn dispatch(&self) -> Dispatch {
        let services = Arc::clone(self.shared_services());
        Dispatch::with(services, self.info().inherited(), Vec::new())
    }

    /// Pushes a job in the step that ends this one: exactly if this job succeeds, and as often as it does.
    ///
    /// Nothing is pushed if the job fails, is released or deletes itself.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`], [`DispatchError::OnlyPhp`].
    pub fn then<T: Serialize>(&self, job: &T) -> Result<(), DispatchError> {
        let planned = self.dispatch().job(job).plan()?;
        self.push_at_end(planned)?;
        Ok(())
    }
}
