//! The benchmark's own queue.

use std::sync::Arc;

use super::payload::payload;
use crate::connection::{Error, Redis, RedisOptions};
use crate::queue::{Keys, Queue as _, QueueName, RedisQueue, RedisQueueOptions, Spool};
use crate::time::{Clock, UnixSeconds};

/// A queue under a prefix of its own. A worker also looks at lists such as the app's follow-ups: with the app's
/// prefix it would take them, and has nothing to carry them out.
pub(super) struct OwnQueue {
    pub(super) queue: Arc<RedisQueue>,
    /// Pushes on another connection, as an app does.
    pub(super) app: RedisQueue,
    pub(super) name: QueueName,
}

/// How long the keys live if this process is killed.
const LIFE: u32 = 3600;
/// Most jobs, and bytes of jobs, that one call pushes.
const CHUNK: (u32, u32) = (200, 1_000_000);

impl OwnQueue {
    pub(super) fn new(mut options: RedisOptions) -> Result<Self, Error> {
        let id = fastrand::u64(..);
        options.prefix = format!("{}artisand:bench:{id:016x}:", options.prefix);
        let redis = Redis::new(&options)?;
        let app = redis.another(Redis::RESPONSE_TIMEOUT);
        // The app's own settings would change little, and a queue forwarded to another would be dangerous.
        let settings = RedisQueueOptions::default();
        Ok(Self {
            queue: Arc::new(RedisQueue::new(redis, settings.clone())),
            app: RedisQueue::new(app, settings),
            name: "jobs".into(),
        })
    }

    pub(super) fn redis(&self) -> &Redis {
        self.queue.redis()
    }

    /// What all keys begin with.
    pub(super) fn prefix(&self) -> &str {
        self.redis().prefix()
    }

    pub(super) fn list(&self) -> String {
        self.queue.keys().list(&self.name)
    }

    pub(super) fn reserved(&self) -> String {
        self.queue.keys().reserved(&self.name)
    }

    /// All keys that a worker of this queue may write.
    fn keys(&self) -> Vec<String> {
        let (keys, name) = (self.queue.keys(), &self.name);
        let mut all = vec![self.list(), self.reserved()];
        all.extend([Keys::notify, Keys::delayed, Keys::quarantine].map(|key| key(keys, name)));
        all.extend(Spool::ALL.map(|spool| keys.spool(spool, name)));
        all.extend(Spool::ALL.map(|spool| keys.spool_lease(spool, name)));
        all
    }

    /// Fails if any of the keys is there: random names do not meet, but what is deleted must be the benchmark's.
    pub(super) async fn refuse_others(&self) -> anyhow::Result<()> {
        let mut exists = redis::cmd("EXISTS");
        let found: u32 = self.redis().command(exists.arg(self.keys())).await?;
        anyhow::ensure!(
            found == 0,
            "there are keys {}* already: start again",
            self.prefix()
        );
        Ok(())
    }

    pub(super) async fn delete(&self) -> Result<(), Error> {
        let keys = self.keys();
        let unlink: Result<(), _> = self.redis().command(redis::cmd("UNLINK").arg(&keys)).await;
        match unlink {
            // Servers before Redis 4 free the memory at once.
            Err(_) => self.redis().command(redis::cmd("DEL").arg(&keys)).await,
            Ok(()) => Ok(()),
        }
    }

    /// Empties the queue. One reservation stays that is never due here: a set that is never empty keeps its expiry.
    pub(super) async fn clear(&self) -> Result<(), Error> {
        self.delete().await?;
        let never = UnixSeconds(Clock::System.now().0 + 24 * i64::from(LIFE));
        let mut commands = redis::pipe();
        commands.zadd(self.reserved(), "{}", never.0).ignore();
        commands.expire(self.reserved(), LIFE.into()).ignore();
        self.redis().pipeline(&commands).await
    }

    /// Pushes jobs with the numbers from `first`, at most as many as go into one call; returns the next number.
    pub(super) async fn push(&self, first: u32, jobs: u32, size: u32) -> anyhow::Result<u32> {
        let most = (CHUNK.1 / size).clamp(1, CHUNK.0);
        let next = jobs.min(first + most);
        let payloads: Vec<Vec<u8>> = (first..next).map(|n| payload(n, size)).collect();
        self.queue.push(&self.name, &payloads).await?;
        if first == 0 {
            let mut commands = redis::pipe();
            for key in [self.list(), self.queue.keys().notify(&self.name)] {
                commands.expire(key, LIFE.into()).ignore();
            }
            let () = self.redis().pipeline(&commands).await?;
        }
        Ok(next)
    }
}
