//! Which jobs next: one call for as many as there are free slots.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::attempt::with_causes;
use super::backoff::Reconnect;
use super::job::Shared;
use crate::handler::{Route, UnmappedPolicy};
use crate::payload::{Payload, Target};
use crate::queue::{Error, PopRequest, Popped, Queue, QueueName, Selection};
use crate::time::UnixSeconds;

/// Chooses jobs that can run: mapped ones, within the limits of their mapping.
pub(super) struct Chooser<'a> {
    shared: &'a Shared,
    /// Free slots per mapping.
    room: Vec<usize>,
    needles: Vec<Vec<u8>>,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(shared: &'a Shared, per_mapping: &[usize]) -> Self {
        let room = |(mapping, running): (&crate::handler::Mapping, &usize)| {
            mapping
                .concurrency
                .map_or(usize::MAX, |limit| limit.get().saturating_sub(*running))
        };
        let room = shared
            .router
            .mappings()
            .zip(per_mapping)
            .map(room)
            .collect();
        let distrusted = shared.distrusted();
        let classes = shared.router.unlimited_classes();
        let needles = classes
            .iter()
            .filter(|class| !distrusted.contains(class.as_str()))
            .map(|class| needle(class));
        Self {
            shared,
            room,
            needles: needles.collect(),
        }
    }

    /// Says whether there is a slot for this payload, and takes it.
    fn choose(&mut self, element: &[u8], limited: &mut bool) -> bool {
        // What cannot be read is taken: it belongs into quarantine and not into anybody's way.
        let Ok(payload) = Payload::parse(element) else {
            return true;
        };
        if payload.attempts.is_none() {
            return true;
        }
        match route(self.shared, &payload) {
            Route::Forward(_) => true,
            Route::Unmapped => *self.shared.router.unmapped() != UnmappedPolicy::Leave,
            Route::Handler { mapping, .. } => {
                if let Some(left) = self.room[mapping].checked_sub(1) {
                    self.room[mapping] = left;
                    true
                } else {
                    *limited = true;
                    false
                }
            }
        }
    }
}

/// The text that Laravel writes into a payload of this class, and of a plain command.
fn needle(class: &str) -> Vec<u8> {
    let class = serde_json::to_string(class).expect("text is always JSON");
    format!("\"commandName\":{class},\"command\":\"O:").into_bytes()
}

/// Classes whose needle this payload holds.
pub(super) fn classes_in(shared: &Shared, element: &[u8]) -> Vec<String> {
    let mut classes = shared.router.unlimited_classes();
    classes.retain(|class| memchr::memmem::find(element, &needle(class)).is_some());
    classes
}

/// Where a job goes. One whose command is encrypted is nobody's here: its input cannot be read.
pub(super) fn route(shared: &Shared, payload: &Payload) -> Route {
    match (Target::of(payload), crate::payload::Command::of(payload)) {
        (Ok(target), Ok(_)) => shared.router.route(&target),
        _ => Route::Unmapped,
    }
}

/// The mapping that runs a payload, if that mapping has a limit.
pub(super) fn mapping_of(shared: &Shared, element: &[u8]) -> Option<usize> {
    let payload = Payload::parse(element).ok()?;
    match route(shared, &payload) {
        Route::Handler { mapping, .. } => shared
            .router
            .mappings()
            .nth(mapping)?
            .concurrency
            .is_some()
            .then_some(mapping),
        Route::Forward(_) | Route::Unmapped => None,
    }
}

/// Pops up to `slots` jobs; `limited` is set if some were passed by because their mapping had no slot.
pub(super) async fn pop<Q: Queue>(
    queue: &Q,
    queues: &[QueueName],
    now: UnixSeconds,
    slots: NonZeroUsize,
    woken: &[QueueName],
    chooser: Option<Chooser<'_>>,
    limited: &mut bool,
) -> Result<Popped, Error> {
    let request = PopRequest {
        queues,
        max: slots,
        now,
        woken,
        selection: None,
    };
    let Some(mut chooser) = chooser else {
        return queue.pop(request).await;
    };
    let needles = std::mem::take(&mut chooser.needles);
    let mut choose = |_: &QueueName, element: &[u8]| chooser.choose(element, limited);
    let selection = Some(Selection {
        needles: &needles,
        choose: &mut choose,
    });
    queue
        .pop(PopRequest {
            selection,
            ..request
        })
        .await
}

/// Waits for pushes whenever armed, and says to which queue one came, until the future is dropped.
pub(super) async fn keep_waiting<Q: Queue>(
    queue: Arc<Q>,
    queues: Vec<QueueName>,
    armed: Arc<Notify>,
    announce: mpsc::Sender<QueueName>,
) {
    const AT_A_TIME: Duration = Duration::from_secs(10);
    let mut reconnect = Reconnect::default();
    loop {
        armed.notified().await;
        let pushed = loop {
            match queue.wait_for_push(&queues, AT_A_TIME).await {
                Ok(Some(queue)) => break queue,
                Ok(None) => reconnect.reset(),
                Err(error) => {
                    // The loop that pops reports the loss; here it would be said twice.
                    tracing::debug!(error = with_causes(&error), "could not wait for pushes");
                    reconnect.wait().await;
                }
            }
        };
        reconnect.reset();
        if announce.send(pushed).await.is_err() {
            return;
        }
    }
}
