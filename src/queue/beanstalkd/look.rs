//! Shows what tubes hold, and empties quarantines.

use super::client::{Batch, Reply, fields, items};
use super::tube::Tube;
use super::{BeanstalkdQueue, failed, refused};
use crate::queue::{Error, Fate, Place, QueueName, Sizes};

/// Most payloads taken out of one quarantine by one call.
const MOST_TAKEN: usize = 100_000;

impl BeanstalkdQueue {
    pub(super) async fn ask_for_life(&self) -> Result<(), crate::connection::Error> {
        let mut batch = Batch::default();
        batch.tube_used();
        self.holders.plain(batch).await.map(drop)
    }

    /// Sends commands; the reply to the last one.
    async fn last_reply(
        &self,
        command: &'static str,
        queue: &QueueName,
        batch: Batch,
    ) -> Result<Reply, Error> {
        let replies = self.holders.plain(batch).await;
        let replies = replies.map_err(failed(command, queue))?;
        if let Some(refusal) = replies.iter().find_map(Reply::error) {
            return Err(refused(queue)(refusal));
        }
        replies.into_iter().next_back().ok_or_else(|| Error::Reply {
            script: command,
            queue: queue.clone(),
        })
    }

    pub(super) async fn count(&self, queue: &QueueName) -> Result<Sizes, Error> {
        let mut batch = Batch::default();
        let tube = self.tube(queue).map_err(refused(queue))?;
        batch.stats_tube(&tube);
        match self.last_reply("stats-tube", queue, batch).await? {
            Reply::Ok(body) => Ok(sizes(&body)),
            // No job was ever pushed to it, or none is left and no connection watches it.
            _ => Ok(Sizes::default()),
        }
    }

    pub(super) async fn head(
        &self,
        queue: &QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let tube = self.tube(queue).map_err(refused(queue))?;
        let place = match place {
            Place::Pending => "ready",
            Place::Delayed => "delayed",
            Place::Quarantine => "buried",
            Place::Reserved => return Ok(Vec::new()),
        };
        if from > 0 || limit == 0 {
            return Ok(Vec::new());
        }
        let head = self.peek(queue, &tube, place).await?;
        Ok(head.into_iter().map(|(_, payload)| payload).collect())
    }

    /// The first job of a place of a tube.
    async fn peek(
        &self,
        queue: &QueueName,
        tube: &Tube,
        place: &'static str,
    ) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let mut batch = Batch::default();
        batch.use_tube(tube);
        batch.peek(place);
        match self.last_reply("peek", queue, batch).await? {
            Reply::Found { id, body } => Ok(Some((id, body))),
            _ => Ok(None),
        }
    }

    /// Names of the tubes whose jobs are so, in order.
    pub(super) async fn tubes_where(
        &self,
        is_so: fn(&Sizes) -> bool,
    ) -> Result<Vec<QueueName>, Error> {
        let any = QueueName::from("*");
        let mut batch = Batch::default();
        batch.list_tubes();
        let Reply::Ok(body) = self.last_reply("list-tubes", &any, batch).await? else {
            return Ok(Vec::new());
        };
        let tubes: Vec<Tube> = items(&body)
            .filter_map(|name| Tube::new(name).ok())
            .collect();
        let mut batch = Batch::default();
        for tube in &tubes {
            batch.stats_tube(tube);
        }
        let replies = self.holders.plain(batch).await;
        let replies = replies.map_err(failed("stats-tube", &any))?;
        let mut names: Vec<QueueName> = tubes
            .iter()
            .zip(replies)
            .filter(|(_, reply)| matches!(reply, Reply::Ok(body) if is_so(&sizes(body))))
            .map(|(tube, _)| tube.as_str().into())
            .collect();
        names.sort();
        Ok(names)
    }

    pub(super) async fn take_buried(
        &self,
        queue: &QueueName,
        payloads: &[Vec<u8>],
        fate: Fate,
    ) -> Result<u64, Error> {
        let tube = self.tube(queue).map_err(refused(queue))?;
        let mut left: Vec<&Vec<u8>> = payloads.iter().take(MOST_TAKEN).collect();
        let mut taken = 0;
        while let Some((id, payload)) = self.peek(queue, &tube, "buried").await? {
            let Some(at) = left.iter().position(|wanted| **wanted == payload) else {
                break;
            };
            left.swap_remove(at);
            let mut batch = Batch::default();
            let command = match fate {
                Fate::Requeue => {
                    batch.kick_job(id);
                    "kick-job"
                }
                Fate::Delete => {
                    batch.delete(id);
                    "delete"
                }
            };
            let reply = self.last_reply(command, queue, batch).await?;
            // Another process may have been quicker.
            taken += u64::from(reply != Reply::NotFound);
        }
        Ok(taken)
    }
}

fn sizes(body: &[u8]) -> Sizes {
    let fields = fields(body);
    let count = |name| fields.get(name).and_then(|count| count.parse().ok());
    Sizes {
        pending: count("current-jobs-ready").unwrap_or(0),
        delayed: count("current-jobs-delayed").unwrap_or(0),
        reserved: count("current-jobs-reserved").unwrap_or(0),
        quarantined: count("current-jobs-buried").unwrap_or(0),
    }
}
