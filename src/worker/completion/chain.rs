//! The step to the next job of a chain: its payload, where it goes, and the lock it may need.
//!
//! The manifest has what PHP would ask the next job's class. Without that, PHP has to take the step ([`NotHere`]).
//!
//! # Source
//!
//! `Illuminate\Bus\Queueable::dispatchNextJobInChain` and
//! `Illuminate\Foundation\Bus\PendingDispatch`; docs/protocol/commands.md 11.2.

use crate::app::Answers;
use crate::connection::LockPlace;
use crate::handler::DraftError;
use crate::handler::dispatch::{self, Draft, PushPlan};
use crate::outbox::follow_up::{FollowUp, LockRequest, RemotePush};
use crate::payload::{Chain, ChainError, Inherited, StepKind};
use crate::queue::{Effect, QueueName};
use crate::worker::app_context::AppContext;

/// The job that has ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedJob<'a> {
    pub(crate) uuid: Option<&'a str>,
    /// The queue it was popped from.
    pub(crate) queue: &'a QueueName,
    /// What jobs inherit that it dispatches.
    pub(crate) inherited: Inherited,
}

/// Why only PHP can take a step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHere {
    /// The job cannot be pushed by artisand.
    #[error(transparent)]
    Dispatch(#[from] DraftError),
    /// The next step is a kind that artisand cannot push.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The chain cannot be read or changed.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Says whether artisand can take the next step.
pub(crate) fn check(app: &AppContext, chain: &Chain) -> Result<(), NotHere> {
    // Try everything now that could fail at the end of the job: then it would be too late to refuse the job.
    let mut planned = plan(app, chain)?;
    planned.lock(&app.services, |_| false)?;
    Ok((planned.draft).check(&app.services, &planned.connection)?)
}

/// Takes the next step. The push, and the lock it may need, happen together with the job's end or after it.
pub(crate) async fn take(
    app: &AppContext,
    chain: &Chain,
    ended: &EndedJob<'_>,
) -> Result<Effect, NotHere> {
    let inherited = ended.inherited.clone();
    Ok(effect(app, ended.queue, plan(app, chain)?, inherited).await?)
}

/// Pushes a job together with the end of another, of the queue `ended`.
pub(crate) async fn effect(
    app: &AppContext,
    ended: &QueueName,
    mut planned: PushPlan,
    inherited: Inherited,
) -> Result<Effect, DraftError> {
    let is_here = app.ends_in_one_step && planned.connection == app.connection.as_str();
    let to = planned.queue.clone();
    let holds = |place: &LockPlace| app.ledger.holds(ended, place) && app.ledger.holds(&to, place);
    let lock = planned.lock(&app.services, |place| is_here && holds(place))?;
    let ready = planned.finish(&app.services, inherited, lock).await?;
    if is_here && ready.lock.is_none() {
        return Ok(Effect::Push(ready.push));
    }
    let push = FollowUp::Push(RemotePush {
        connection: ready.connection,
        queue: ready.push.queue.to_string(),
        payload: String::from_utf8(ready.push.payload).expect("payloads are JSON"),
        bytes: None,
        due: ready.push.due.map(|due| due.0),
        id: ready.id.to_string(),
        lock: ready.lock.map(|lock| LockRequest {
            store: lock.store,
            name: lock.name,
            owner: lock.owner,
            seconds: lock.ttl.as_secs(),
        }),
    });
    Ok(push.effect())
}

fn plan(app: &AppContext, chain: &Chain) -> Result<PushPlan, NotHere> {
    let services = &app.services;
    let manifest = dispatch::manifest(services)?;
    let class = chain.next_class()?;
    let default = |property: &str| manifest.default(class.as_ref()?, property);
    let step = chain
        .next(default)?
        .ok_or(NotHere::Kind("the end of the chain"))?;
    match step.kind {
        StepKind::Object => {}
        StepKind::Closure => return Err(NotHere::Kind("a closure")),
        StepKind::Batch => return Err(NotHere::Kind("a batch")),
    }
    let draft = Draft::of(services, step.command, &Answers::new(), app.clock.now())?;
    if !draft.facts.is_queued {
        return Err(NotHere::Kind("a job that is not queued"));
    }
    let planned = PushPlan::of(services, draft, None, None)?;
    if planned.connection != app.connection.as_str() {
        let (name, destination) = dispatch::destination(services, Some(&planned.connection))?;
        dispatch::queues(name, destination)?;
    }
    Ok(planned)
}
