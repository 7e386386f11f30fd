//! Jobs that a PHP worker dispatches.

use super::app::App;
use super::error::DispatchError;
use super::pending::{Options, command};
use crate::app::Class;
use crate::handler::dispatch::{self as draft, Ready};
use crate::outbox::hand_over::HandOver;
use crate::payload::Payload;
use crate::php::Object;
use crate::queue::{Push, QueueName};

/// A closure that dispatches this job, on the queue of the job if it can be told without PHP and artisand works its
/// connection.
pub(super) fn by_php(app: &App, object: Object, options: &Options) -> Result<Ready, DispatchError> {
    let (services, now) = (&app.services, app.services.clock.now());
    let class = object.class.clone();
    let manifest = draft::manifest(services)?;
    let known = manifest.class(&class);
    let (command, rest) = command(app, object, options)?;
    let (own_connection, own_queue) = manifest.places(&command.value).unwrap_or_default();
    let own_connection = own_connection.filter(|name| {
        let found = draft::destination(services, Some(&**name));
        found.is_ok_and(|(_, destination)| destination.queues.is_ok())
    });
    let connection = options.connection.as_deref().or(own_connection.as_deref());
    let (connection, destination) = draft::destination(services, connection)?;
    let hand_over = HandOver {
        services,
        connection,
        now,
        name: class.as_str(),
        timeout: None,
        is_secret: known.is_some_and(Class::is_encrypted),
        may_be_doubled: false,
    };
    let payload = hand_over.dispatches(command.bytes, &app.inherited);
    let payload = payload.map_err(|error| DispatchError::OnlyPhp(error.into()))?;
    let queue = options.queue.as_deref().or(own_queue.as_deref());
    let queue = queue.unwrap_or(destination.default_queue.as_str());
    let read = Payload::parse(&payload).map_err(DispatchError::unfit)?;
    Ok(Ready {
        connection: connection.to_owned(),
        uuid: read.uuid.unwrap_or_else(crate::payload::random_uuid),
        id: read.id.unwrap_or_else(crate::payload::random_id),
        push: Push {
            queue: QueueName::from(queue),
            payload,
            // Otherwise the job has it as its property.
            due: rest.delay.map(|delay| delay.due(now)),
            claim: None,
        },
        lock: None,
    })
}
