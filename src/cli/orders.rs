//! Does what the page and `top` ask for: one order after the other.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::pause;
use super::retrying::{Retried, Retrying};
use crate::cache::keys;
use crate::config::{self, Config};
use crate::failed::class;
use crate::telemetry::{Failures, Order, OrderResult, PendingOrder};

/// Most failed jobs that are looked at for one order.
const MOST: usize = 1000;
/// Most problems that are told.
const MOST_PROBLEMS: usize = 5;
/// How long an order may last once the worker has ended.
const LAST: Duration = Duration::from_secs(8);

/// Carries out orders until the worker has ended; an order that is under way then still ends.
///
/// What it has not begun by then is left: of many failed jobs, the rest stays failed.
pub(super) async fn obey(
    config: &Config,
    env: Option<&str>,
    orders: &mut mpsc::Receiver<PendingOrder>,
    ended: &CancellationToken,
) {
    while let Some(Some(asked)) = ended.run_until_cancelled(orders.recv()).await {
        let done = carry_out(config, env, &asked.order, ended);
        // A server that does not answer must not keep the process forever.
        let too_late = async {
            ended.cancelled().await;
            tokio::time::sleep(LAST).await;
        };
        tokio::select! {
            done = done => asked.answer(done.map_err(|error| super::output::with_causes(&error))),
            () = too_late => tracing::warn!(
                order = ?asked.order,
                "what the page asked for was cut off by the end of the worker: a job may be on its queue again and still among the failed jobs"
            ),
        }
    }
}

/// Carries out one order; once it is told to end, it retries no more jobs.
///
/// # Cancel safety
///
/// Not cancel safe: a job that is retried may be on its queue, and still among the failed jobs.
pub(super) async fn carry_out(
    config: &Config,
    env: Option<&str>,
    order: &Order,
    ended: &CancellationToken,
) -> anyhow::Result<OrderResult> {
    match order {
        Order::Retry(failures) => retry(config, env, failures, ended).await,
        Order::Pause {
            connection,
            queue,
            pauses,
        } => pause_queue(config, connection, queue, *pauses).await,
    }
}

async fn retry(
    config: &Config,
    env: Option<&str>,
    failures: &Failures,
    told_to_end: &CancellationToken,
) -> anyhow::Result<OrderResult> {
    let mut retrying = Retrying::new(config, env.map(str::to_owned))?;
    let ids = match failures {
        Failures::Ids(ids) => ids.clone(),
        Failures::Like {
            class: of,
            exception,
        } => {
            let jobs = retrying.store.latest(MOST).await?.into_iter();
            let like = jobs
                .filter(|job| class(&job.payload) == *of && job.exception_parts().0 == exception);
            like.map(|job| job.id).collect()
        }
    };
    let mut done = OrderResult::default();
    let mut ended = Ok(());
    for id in &ids {
        if told_to_end.is_cancelled() {
            let text = "the worker ends: the other jobs are still failed jobs";
            done.problems.push(text.to_owned());
            break;
        }
        let problem = match retry_one(&mut retrying, id).await {
            Ok(Retried::Pushed(_)) => {
                done.retried += 1;
                continue;
            }
            Ok(Retried::RecordStays(_, error)) => {
                done.retried += 1;
                ended = Err(error);
                break;
            }
            Ok(Retried::Unknown) => format!("no failed job has the id {id}"),
            Ok(Retried::Stays { why, .. }) => why,
            Ok(Retried::Refused(_, error)) | Err(error) => {
                ended = Err(error);
                break;
            }
        };
        if done.problems.len() < MOST_PROBLEMS {
            done.problems.push(problem);
        }
    }
    done.problems.extend(retrying.unasked());
    retrying.finish().await;
    tracing::info!(
        jobs = done.retried,
        "failed jobs were retried from the page or from `top`"
    );
    match ended {
        // Some are done: that is told, too.
        Err(error) if done.retried > 0 => {
            done.problems.push(super::output::with_causes(&error));
            Ok(done)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(done),
    }
}

/// Retries a job, with a PHP process of its own if PHP has to push it.
async fn retry_one(retrying: &mut Retrying<'_>, id: &str) -> anyhow::Result<Retried> {
    if let Some(retried) = retrying.retry(id).await? {
        return Ok(retried);
    }
    let ended = retrying.retry_with_php(&mut vec![id.to_owned()]).await?;
    let ended = ended.into_iter().next();
    Ok(ended.map_or(Retried::Unknown, |(_, retried)| retried))
}

async fn pause_queue(
    config: &Config,
    connection: &str,
    queue: &str,
    pauses: bool,
) -> anyhow::Result<OrderResult> {
    let (name, cache) = config::app_cache(config)?;
    anyhow::ensure!(
        cache.is_shared(),
        "no worker would see it: `cache.default` is `{name}`, which is not shared between processes"
    );
    pause::signal(&cache, &keys::paused(connection, queue), pauses).await?;
    let done = if pauses { "paused" } else { "resumed" };
    tracing::info!(
        connection,
        queue,
        "a queue was {done} from the page or from `top`"
    );
    Ok(OrderResult::default())
}
