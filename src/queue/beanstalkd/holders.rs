//! The connections to one server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::ask::{Act, Ask, Caught, CommandResult, HeldJob, Turn};
use super::client::{Batch, Reply};
use super::holder::{Holder, Runner};
use super::options::BeanstalkdOptions;
use super::ticket::Ticket;
use super::tube::Tube;
use crate::connection::Error;

/// Most connections that hold jobs. Each job that was waited for may keep one of them from waiting again.
const MOST_HOLDERS: usize = 64;

/// The connections to one server, opened as they are needed.
#[derive(Debug)]
pub(super) struct Holders {
    options: Arc<BeanstalkdOptions>,
    opened: Mutex<Opened>,
    caught: Caught,
}

#[derive(Debug, Default)]
struct Opened {
    runner: Option<Runner>,
    /// For what concerns no reserved job: pushes are in the way of no other call.
    producer: Option<Arc<Holder>>,
    /// The first one pops.
    holders: Vec<Arc<Holder>>,
}

impl Holders {
    pub(super) fn new(options: Arc<BeanstalkdOptions>) -> Self {
        Self {
            options,
            opened: Mutex::default(),
            caught: Caught::default(),
        }
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        // Every change is a single assignment or push.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, opened: &mut Opened) -> Result<Arc<Holder>, Error> {
        let runner = match opened.runner.take() {
            Some(runner) => runner,
            None => Runner::start().map_err(|source| Error::Beanstalkd {
                address: format!("{}:{}", self.options.host, self.options.port),
                was_connected: false,
                source,
            })?,
        };
        let runner = opened.runner.insert(runner);
        let caught = Arc::clone(&self.caught);
        Ok(Arc::new(Holder::start(
            &self.options,
            &runner.runtime,
            caught,
        )))
    }

    fn producer(&self) -> Result<Arc<Holder>, Error> {
        let mut opened = self.opened();
        if let Some(producer) = &opened.producer {
            return Ok(Arc::clone(producer));
        }
        let producer = self.start(&mut opened)?;
        Ok(Arc::clone(opened.producer.insert(producer)))
    }

    fn first(&self) -> Result<Arc<Holder>, Error> {
        let mut opened = self.opened();
        if opened.holders.is_empty() {
            let holder = self.start(&mut opened)?;
            opened.holders.push(holder);
        }
        Ok(Arc::clone(&opened.holders[0]))
    }

    fn numbered(&self, number: u64) -> Option<Arc<Holder>> {
        let opened = self.opened();
        let holder = (opened.holders.iter()).find(|holder| holder.number == number);
        holder.map(Arc::clone)
    }

    /// A connection to wait on; `None` if all have jobs.
    fn waiter(&self) -> Result<Option<(Arc<Holder>, Turn)>, Error> {
        // So that the first one is never taken for it.
        self.first()?;
        let mut opened = self.opened();
        for holder in opened.holders.iter().skip(1) {
            if let Some(turn) = holder.turn() {
                return Ok(Some((Arc::clone(holder), turn)));
            }
        }
        if opened.holders.len() == MOST_HOLDERS {
            return Ok(None);
        }
        let holder = self.start(&mut opened)?;
        opened.holders.push(Arc::clone(&holder));
        Ok(holder.turn().map(|turn| (holder, turn)))
    }

    /// Sends commands that concern no reserved job; the replies are as many, in order.
    pub(super) async fn plain(&self, batch: Batch) -> Result<Vec<Reply>, Error> {
        let outcomes = self.producer()?.ask(Ask::Plain(batch)).await?;
        let replies = outcomes.into_iter().filter_map(|outcome| match outcome {
            CommandResult::Reply(reply) => Some(reply),
            CommandResult::Taken(_) | CommandResult::Gone => None,
        });
        Ok(replies.collect())
    }

    /// Reserves up to `most` jobs of a tube that are ready.
    ///
    /// # Errors
    ///
    /// The server is not there. Jobs that it gave are ready again.
    pub(super) async fn reserve(&self, tube: &Tube, most: usize) -> Result<Reserved, Error> {
        let tube = tube.clone();
        let outcomes = self.first()?.ask(Ask::Reserve { tube, most }).await?;
        let mut reserved = Reserved::default();
        for outcome in outcomes {
            match outcome {
                CommandResult::Taken(taken) => reserved.taken.push(taken),
                CommandResult::Reply(reply) => {
                    reserved.problem = reserved.problem.or(reply.error());
                }
                CommandResult::Gone => {}
            }
        }
        Ok(reserved)
    }

    /// Waits for a job of these tubes, which goes to those that were [caught](Self::caught). False if all
    /// connections have jobs, and none can wait. Cancelled, it ends at once, with the connection.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing reserved, unless the server gave a job in the same moment: that one is caught.
    pub(super) async fn wait(
        &self,
        tubes: Vec<Tube>,
        seconds: u32,
        cancel: CancellationToken,
    ) -> Result<bool, Error> {
        let Some((holder, turn)) = self.waiter()? else {
            return Ok(false);
        };
        let _cancelled_when_dropped = cancel.clone().drop_guard();
        let ask = Ask::Wait {
            tubes,
            seconds,
            turn,
            cancel,
        };
        holder.ask(ask).await?;
        Ok(true)
    }

    /// The jobs that waits have caught, for the next pop.
    pub(super) fn caught(&self) -> MutexGuard<'_, Vec<HeldJob>> {
        // Every change is a single one.
        self.caught.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something for each of these jobs, all of them at the same time; the outcomes are in their order.
    pub(super) async fn act(&self, acts: &[(Option<Ticket>, Act)]) -> Vec<CommandResult> {
        let mut groups: Vec<(u64, Vec<usize>)> = Vec::new();
        for (index, (ticket, _)) in acts.iter().enumerate() {
            let Some(ticket) = ticket else { continue };
            match groups
                .iter_mut()
                .find(|(holder, _)| *holder == ticket.holder)
            {
                Some((_, members)) => members.push(index),
                None => groups.push((ticket.holder, vec![index])),
            }
        }
        let calls = groups.iter().map(|(holder, members)| async {
            let Some(holder) = self.numbered(*holder) else {
                return Vec::new();
            };
            let of = |index: &usize| Some((acts[*index].0?, acts[*index].1));
            let held = Ask::Held(members.iter().filter_map(of).collect());
            // No connection any more: the jobs are gone.
            holder.ask(held).await.unwrap_or_default()
        });
        let replies = futures_util::future::join_all(calls).await;
        let mut outcomes: Vec<CommandResult> = acts.iter().map(|_| CommandResult::Gone).collect();
        for ((_, members), replies) in groups.iter().zip(replies) {
            for (index, outcome) in members.iter().zip(replies) {
                outcomes[*index] = outcome;
            }
        }
        outcomes
    }
}

/// What a server gave.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    pub(super) taken: Vec<HeldJob>,
    /// Why there are not more, if the server refused.
    pub(super) problem: Option<crate::queue::QueueRefusal>,
}
