//! What the page asks for, on its way to what can do it.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Most orders that wait for the one before them.
const MOST_WAITING: usize = 8;
/// How long a request waits for its order; the order is carried out nonetheless.
const PATIENCE: Duration = Duration::from_secs(15);

/// Something to be done to the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Push failed jobs again.
    Retry(Failures),
    /// Pause a queue, or resume it.
    Pause {
        /// The name of the connection in the app's pauses.
        connection: String,
        /// The queue.
        queue: String,
        /// False to resume it.
        pauses: bool,
    },
}

/// Which failed jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failures {
    /// These.
    Ids(Vec<String>),
    /// Those of a class that failed with a class of exceptions.
    Like {
        /// Displayed name of the jobs.
        class: String,
        /// Class of the exception.
        exception: String,
    },
}

/// What an order came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct OrderResult {
    /// Jobs that were pushed again.
    pub retried: usize,
    /// Why others were not.
    pub problems: Vec<String>,
}

/// An order, and where its result goes.
#[derive(Debug)]
pub struct PendingOrder {
    /// What is to be done.
    pub order: Order,
    answer: oneshot::Sender<Result<OrderResult, String>>,
}

impl PendingOrder {
    /// Tells what the order came to.
    pub fn answer(self, done: Result<OrderResult, String>) {
        // A client that has gone needs no answer.
        let _ = self.answer.send(done);
    }
}

/// Takes orders. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Orders(mpsc::Sender<PendingOrder>);

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoResult {
    /// Too many orders wait, or the worker ends: it was not taken.
    Busy,
    /// It takes longer than a request lasts.
    NotYet,
    /// It could not be done.
    Failed(String),
}

impl Orders {
    /// A way for orders, and its end.
    pub fn channel() -> (Self, mpsc::Receiver<PendingOrder>) {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        (Self(sender), receiver)
    }

    pub(super) async fn ask(&self, order: Order) -> Result<OrderResult, NoResult> {
        let (answer, result) = oneshot::channel();
        let asked = PendingOrder { order, answer };
        self.0.try_send(asked).map_err(|_| NoResult::Busy)?;
        match tokio::time::timeout(PATIENCE, result).await {
            // In time, or because the worker ends: the order may be done or not.
            Err(_) | Ok(Err(_)) => Err(NoResult::NotYet),
            Ok(Ok(done)) => done.map_err(NoResult::Failed),
        }
    }
}
