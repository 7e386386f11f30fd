//! What the end of a job leaves to PHP: closures that artisand signs and pushes to a queue that PHP workers serve.

use std::sync::Arc;

use crate::app::Class;
use crate::handler::{FailureText, JobInfo};
use crate::outbox::follow_up::NO_PHP_QUEUE;
use crate::outbox::hand_over::{BatchEvent, FailureForPhp, HandOver, HandOverError};
use crate::payload::{JobUuid, Kind, Payload};
use crate::php::ClassName;
use crate::queue::{Effect, Push, QueueName};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;
use crate::worker::completion::Completion;

impl Completion {
    /// Hands over what follows a job.
    pub(super) fn hand_over<'a>(&self, app: &'a AppContext, payload: &'a Payload) -> HandOver<'a> {
        HandOver {
            name: payload.resolve_name(),
            timeout: payload.limits.timeout,
            ..self.hand_over_nothing(app)
        }
    }

    fn hand_over_nothing<'a>(&self, app: &'a AppContext) -> HandOver<'a> {
        HandOver {
            services: &app.services,
            connection: app.connection.as_str(),
            now: app.clock.now(),
            name: "",
            timeout: None,
            is_secret: self.is_secret,
            may_be_doubled: !app.ends_in_one_step,
        }
    }

    pub(super) fn can_hand_over(&self, app: &AppContext) -> Result<(), String> {
        if self.php_queue.is_none() {
            return Err(NO_PHP_QUEUE.to_owned());
        }
        self.can_sign(app)
    }

    fn can_sign(&self, app: &AppContext) -> Result<(), String> {
        // The result is the same for every job.
        let checked = app.can_sign.get_or_init(|| {
            let checked = self.hand_over_nothing(app).check();
            checked.map_err(|error| with_causes(&error))
        });
        checked.clone()
    }

    /// Lets PHP call `failed()` of the job's class and raise Laravel's event, if there is a reason to.
    pub(super) fn tell_failure(
        &self,
        app: &AppContext,
        info: &JobInfo,
        failure: &FailureText,
    ) -> Option<Effect> {
        let queue = app.php_queue(&info.queue);
        // Of a class that is not known PHP finds it out, if it is told of the failure anyway.
        let has_failed =
            || has_failed_method(app, &info.payload).unwrap_or(self.telling.raises_event);
        let calls_failed = self.telling.calls_failed && has_failed();
        if !calls_failed && !self.telling.raises_event {
            return None;
        }
        // What is missing was said at the start.
        let queue = queue.filter(|_| self.can_sign(app).is_ok())?;
        let told = FailureForPhp {
            job: info,
            failure,
            calls_failed,
            raises_event: self.telling.raises_event,
        };
        let hand_over = HandOver {
            is_secret: self.is_secret
                || info.payload.was_encrypted()
                || info.payload.is_encrypted(),
            ..self.hand_over(app, &info.payload)
        };
        let payload = hand_over.tells_failure(&told);
        Self::push_to(Some(queue), payload, "the failure of a job", info)
    }

    /// Lets PHP raise the event of batches that a handler has cancelled.
    pub(crate) fn tell_cancelled(
        &self,
        app: &AppContext,
        info: &JobInfo,
        batches: &[Arc<str>],
    ) -> Vec<Effect> {
        let inherited = info.inherited().to_map();
        let effect = |batch: &Arc<str>| {
            let hand_over = self.hand_over(app, &info.payload);
            let payload =
                hand_over.raises_of_batch(BatchEvent::Canceled, batch, inherited.as_ref());
            self.push_to_php(payload, "that a batch was cancelled", info)
        };
        let wanted = self.telling.raises_all && self.php_queue.is_some();
        let batches = batches.iter().filter(|_| wanted);
        batches.filter_map(effect).collect()
    }

    pub(super) fn push_to_php(
        &self,
        payload: Result<Vec<u8>, HandOverError>,
        what: &'static str,
        info: &JobInfo,
    ) -> Option<Effect> {
        Self::push_to(self.php_queue.clone(), payload, what, info)
    }

    fn push_to(
        queue: Option<QueueName>,
        payload: Result<Vec<u8>, HandOverError>,
        what: &'static str,
        info: &JobInfo,
    ) -> Option<Effect> {
        let payload = payload.map_err(|error| with_causes(&error));
        match payload.and_then(|payload| {
            queue
                .map(|queue| (queue, payload))
                .ok_or_else(|| NO_PHP_QUEUE.to_owned())
        }) {
            Ok((queue, payload)) => Some(Effect::Push(Push {
                queue,
                payload,
                due: None,
                claim: None,
            })),
            Err(error) => {
                // Of a job that runs here, this was checked before it was taken.
                tracing::error!(
                    job.uuid = info.payload.uuid.as_ref().map(JobUuid::as_str),
                    error,
                    what,
                    "could not make a closure for work that only PHP can do"
                );
                None
            }
        }
    }
}

/// Whether the class of a job has a method `failed`; `None` if the class is not known.
fn has_failed_method(app: &AppContext, payload: &Payload) -> Option<bool> {
    let manifest = app.services.manifest.as_ref()?;
    let command = payload.command_name().and_then(ClassName::new);
    // Of a wrapper the class inside is asked, whose name the job shows.
    let command = command.filter(|class| Kind::of_class(class) == Kind::Job);
    let class = command.or_else(|| ClassName::in_code(payload.resolve_name()))?;
    manifest.class(&class).map(Class::has_failed)
}
