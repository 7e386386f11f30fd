//! What a call to Redis was for, in its error.

use crate::queue::{Error, QueueName};

/// Says which script or command could not be run, and for which queue.
pub(super) fn failed(
    script: &'static str,
    queue: &QueueName,
) -> impl FnOnce(crate::connection::Error) -> Error {
    let queue = queue.clone();
    move |source| Error::Script {
        script,
        queue,
        source,
    }
}
