//! Laravel's Redis driver: Laravel's keys and effects, with artisand's own scripts.
//!
//! The contract is `docs/protocol/redis-driver.md`. Where Laravel loses or doubles jobs, this driver does not: a
//! payload that cannot be decoded goes to quarantine instead of being lost, and a release puts back only a job
//! that was still reserved.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, Script};
use tokio::runtime::Handle;

use super::{
    Abilities, Ability, Answer, CallListener, ConnectionName, Due, Effect, Error, Fate, Held, Keys,
    Ledger, Once, Place, PopRequest, Popped, Push, PushListener, PushedOnce, Queue, QueueName,
    QueueRefusal, ReservedJob, Settled, Settlement, Sizes, Tagging, Unsettled,
};
use crate::connection::{Arg, LockPlace, Redis};
use crate::time::UnixSeconds;

mod effects;
mod failed;
mod ledger;
mod look;
pub(crate) use look::{QueuesByPrefix, queues_by_prefix};
mod pop;
mod settle;
mod wait;
use failed::failed;
use wait::Waits;

/// Settings of a Redis queue connection (`queue.connections.NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisQueueOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// How long a reservation lives; `None` for no end, which no Laravel setting means.
    pub retry_after: Option<Duration>,
    /// Whether the app keeps notify lists (Laravel 5.8 and later).
    pub notify: bool,
    /// Most jobs that one pop migrates from each sorted set (`migration_batch_size`); never more than the pop can
    /// take, or 32.
    pub migration_batch: usize,
    /// How far a pop looks into a queue if it takes only some of the jobs.
    pub look_ahead: usize,
    /// Forwarded queues (`Queue::forward`, Laravel 13): jobs of the first are stored under the keys of the second.
    pub forwards: BTreeMap<QueueName, QueueName>,
    /// How names of queues are written in keys. `None`: in braces on a cluster, as Laravel 13.5 does, and unchanged on
    /// a single server.
    ///
    /// With a value, a single server is used as if it were a cluster.
    pub tagging: Option<Tagging>,
}

impl Default for RedisQueueOptions {
    fn default() -> Self {
        Self {
            connection: "redis".into(),
            // The default of Laravel's connector if the setting is missing or null.
            retry_after: Some(Duration::from_secs(60)),
            notify: true,
            migration_batch: 1000,
            look_ahead: 500,
            forwards: BTreeMap::new(),
            tagging: None,
        }
    }
}

/// The queues of one Redis connection.
pub struct RedisQueue {
    redis: Redis,
    waits: Waits,
    /// For renewals, which may be sent from another runtime.
    renewing: Redis,
    keys: Keys,
    options: RedisQueueOptions,
    abilities: Abilities,
    scripts: Arc<Scripts>,
    pushes: Arc<OnceLock<Arc<dyn PushListener>>>,
    calls: Arc<OnceLock<Arc<dyn CallListener>>>,
    /// The queue whose lists the ledger is, on a cluster; `None` for those of all.
    home: Option<QueueName>,
    /// Makes of a push to a queue in another slot the record that a follow-up is left to do.
    put_off: Option<PutOff>,
}

/// Makes of a push to a connection the record that a follow-up is left to do.
pub(crate) type PutOff = fn(&ConnectionName, &Push) -> Effect;

struct Scripts {
    pop: Script,
    claim: Script,
    migrate: Script,
    r#move: Script,
    push: Script,
    renew: Script,
    clear: Script,
    requeue: Script,
    finish: Script,
    ack: Script,
    push_once: Script,
    lease: Script,
    keep: Script,
    unlease: Script,
}

macro_rules! with_common {
    ($file:literal) => {
        Script::new(concat!(
            include_str!("../scripts/common.lua"),
            "\n",
            include_str!(concat!("../scripts/", $file))
        ))
    };
}

macro_rules! with_effects {
    ($file:literal) => {
        Script::new(concat!(
            include_str!("../scripts/effects.lua"),
            "\n",
            include_str!(concat!("../scripts/", $file))
        ))
    };
}

impl fmt::Debug for RedisQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisQueue")
            .field("redis", &self.redis)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Most jobs that one script call reserves or settles, so that no call occupies the server for long.
const MOST_AT_ONCE: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not 0");
/// Least jobs that one pop migrates from each sorted set: a pop of a single job costs little more with them.
const MIGRATES: usize = 32;
/// The queue with whose keys the records lie of jobs that are on no Redis.
const HOME: &str = "artisand";

impl RedisQueue {
    /// The queues behind a connection; nothing is sent yet.
    pub fn new(redis: Redis, options: RedisQueueOptions) -> Self {
        let on_cluster = redis.is_cluster().then_some(Tagging::Braces);
        let keys = Keys::new(redis.prefix())
            .with_forwards(options.forwards.clone())
            .with_tagging(options.tagging.or(on_cluster));
        let renewing = redis.another(Redis::RESPONSE_TIMEOUT);
        let scripts = Scripts {
            pop: with_common!("pop.lua"),
            claim: with_common!("claim.lua"),
            migrate: with_common!("migrate.lua"),
            r#move: Script::new(include_str!("../scripts/move.lua")),
            push: Script::new(include_str!("../scripts/push.lua")),
            renew: Script::new(include_str!("../scripts/renew.lua")),
            clear: Script::new(include_str!("../scripts/clear.lua")),
            requeue: Script::new(include_str!("../scripts/requeue.lua")),
            finish: with_effects!("finish.lua"),
            ack: with_effects!("ack.lua"),
            push_once: with_effects!("push_once.lua"),
            lease: Script::new(include_str!("../scripts/lease.lua")),
            keep: Script::new(include_str!("../scripts/keep.lua")),
            unlease: Script::new(include_str!("../scripts/unlease.lua")),
        };
        Self {
            waits: Waits::new(&redis),
            redis,
            renewing,
            keys,
            abilities: abilities(&options),
            options,
            scripts: Arc::new(scripts),
            pushes: Arc::default(),
            calls: Arc::default(),
            home: None,
            put_off: None,
        }
    }

    /// The same queues, which leave pushes to other slots of a cluster to follow-ups.
    #[must_use]
    pub(crate) fn with_put_off(self, put_off: PutOff) -> Self {
        Self {
            put_off: Some(put_off),
            ..self
        }
    }

    /// The ledger alone, for jobs that are on another server.
    #[must_use]
    pub(crate) fn as_ledger(&self) -> Self {
        self.at_home(QueueName::from(HOME))
    }

    /// The same queues, with the lists of this queue as their ledger.
    #[must_use]
    pub fn at_home(&self, home: QueueName) -> Self {
        Self {
            redis: self.redis.clone(),
            waits: Waits::new(&self.redis),
            renewing: self.renewing.clone(),
            keys: self.keys.clone(),
            options: self.options.clone(),
            abilities: self.abilities.clone(),
            scripts: Arc::clone(&self.scripts),
            pushes: Arc::clone(&self.pushes),
            calls: Arc::clone(&self.calls),
            home: Some(home),
            put_off: self.put_off,
        }
    }

    /// The key names in use.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The connection that commands are sent on.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    fn pop_keys(&self, queue: &QueueName) -> [String; 5] {
        [
            self.keys.list(queue),
            self.keys.delayed(queue),
            self.keys.reserved(queue),
            self.keys.notify(queue),
            self.keys.quarantine(queue),
        ]
    }

    async fn call<T: FromRedisValue>(
        &self,
        queue: &QueueName,
        name: &'static str,
        script: &Script,
        keys: &[String],
        args: &[Arg<'_>],
    ) -> Result<T, Error> {
        if !self.keys.is_usable(queue) && !self.keys.is_one_slot(keys) {
            return Err(Error::Refused {
                queue: queue.clone(),
                source: QueueRefusal::Slots(queue.clone()),
            });
        }
        self.redis
            .script(script, keys, args)
            .await
            .map_err(failed(name, queue))
    }

    /// Whether a push is left to a follow-up, because its queue lies in another slot than `home`.
    fn is_put_off(&self, home: &QueueName, push: &Push) -> bool {
        self.put_off.is_some() && !self.keys.are_together(home, &push.queue)
    }

    /// Tells how long a call takes, if anything listens.
    async fn timed<T, E>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(listener) = self.calls.get() else {
            return answer.await;
        };
        let sent = Instant::now();
        let answer = answer.await;
        listener.answered(call, sent.elapsed(), answer.is_err());
        answer
    }

    fn tell_push(&self, queue: &QueueName, payload: &[u8]) {
        if let Some(listener) = self.pushes.get() {
            listener.pushed(&self.options.connection, queue, payload);
        }
    }

    fn tells_pushes(&self) -> bool {
        self.pushes.get().is_some()
    }

    /// Tells of the jobs that effects have pushed with the ends of jobs whose records lie with `home`.
    async fn tell_effects(&self, effects: &[(&QueueName, &Effect)]) {
        for (home, effect) in effects {
            let Effect::Push(push) = effect else {
                continue;
            };
            // What is put off is told of when it is pushed.
            if self.is_put_off(home, push) {
                continue;
            }
            // A job whose lock was taken already was not pushed.
            if let Some(claim) = &push.claim {
                let mut owner = redis::cmd("GET");
                owner.arg(claim.place.key());
                let owner = self.redis.command::<Option<Vec<u8>>>(&owner).await;
                let is_taken = |owner: Vec<u8>| owner.ends_with(claim.owner.as_bytes());
                if !owner.is_ok_and(|owner| owner.is_some_and(is_taken)) {
                    continue;
                }
            }
            self.tell_push(&push.queue, &push.payload);
        }
    }

    /// How many due jobs a pop of `max` jobs migrates: those that it can take.
    fn migration_limit(&self, max: NonZeroUsize) -> usize {
        self.options.migration_batch.min(max.get().max(MIGRATES))
    }

    fn expires(&self, now: UnixSeconds) -> Arg<'static> {
        // Without an end the score is the current second, as in Laravel where `retry_after` is null.
        Arg::Int(now.plus(self.options.retry_after.unwrap_or_default()).0)
    }

    /// When the reservation of a job reserved now ends.
    fn lease(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        self.options
            .retry_after
            .map(|retry_after| now.plus(retry_after))
    }

    fn flag(set: bool) -> Arg<'static> {
        Arg::Int(set.into())
    }
}

fn byte_args(payloads: &[Vec<u8>]) -> Vec<Arg<'_>> {
    payloads.iter().map(|payload| Arg::Bytes(payload)).collect()
}

/// What the driver can do with these settings.
fn abilities(options: &RedisQueueOptions) -> Abilities {
    let can = |ability: &Ability| match ability {
        Ability::Renews => options.retry_after.is_some(),
        Ability::AnnouncesPushes => options.notify,
        _ => true,
    };
    Abilities {
        driver: "redis",
        retry_after: options.retry_after,
        most_at_once: MOST_AT_ONCE,
        can: Ability::ALL.into_iter().filter(can).collect(),
    }
}

impl Queue for RedisQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        Box::pin(self.redis.ping())
    }

    fn open_on(&self, runtime: &Handle) {
        self.redis.open_on(runtime);
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        Box::pin(self.timed("pop", self.pop_jobs(request)))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        Box::pin(self.timed("settle", self.settle_jobs(jobs)))
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        Box::pin(self.timed("renew", self.renew_jobs(jobs, now)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(self.waits.wait(&self.keys, queues, timeout))
    }

    fn are_apart(&self, one: &QueueName, other: &QueueName) -> bool {
        !self.keys.are_together(one, other)
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut keys = vec![self.keys.list(queue)];
            keys.extend(self.options.notify.then(|| self.keys.notify(queue)));
            let (script, args) = (&self.scripts.push, byte_args(payloads));
            let _: i64 = self.call(queue, "push.lua", script, &keys, &args).await?;
            for payload in payloads {
                self.tell_push(queue, payload);
            }
            Ok(())
        })
    }

    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        // The first one stays.
        let _ = self.pushes.set(listener);
    }

    fn tell_late(&self, pushes: &[Push]) {
        for push in pushes {
            self.tell_push(&push.queue, &push.payload);
        }
    }

    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        // The first one stays.
        let _ = self.calls.set(listener);
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("ZADD");
            command.arg(self.keys.delayed(queue));
            command.arg(due.0).arg(payload);
            let _: i64 = (self.redis.command(&command).await).map_err(failed("ZADD", queue))?;
            self.tell_push(queue, payload);
            Ok(())
        })
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(self.push_unless_pushed(pushes, once))
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.holds(queue, place)
    }

    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let key = self.keys.pushed(queue, id);
            let found: Result<i64, _> = self.redis.command(redis::cmd("EXISTS").arg(key)).await;
            found
                .map(|count| count > 0)
                .map_err(failed("EXISTS", queue))
        })
    }

    fn puts_off(&self, job: &ReservedJob, settlement: &Settlement) -> bool {
        let is_elsewhere = |to: &QueueName| !self.keys.are_together(&job.queue, to);
        self.keys.are_tagged()
            && match settlement {
                Settlement::Forward(to) => is_elsewhere(to),
                Settlement::Finish(effects) => effects.iter().any(
                    |effect| matches!(effect, Effect::Push(push) if is_elsewhere(&push.queue)),
                ),
                _ => false,
            }
    }

    fn migrate<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(self.migrate_due(queue, now))
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(self.count_due(queue, now))
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        Box::pin(self.count(queue))
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        Box::pin(self.range(queue, place, from, limit))
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        Box::pin(async move {
            let keys = &self.pop_keys(queue)[..4];
            let args = [Arg::Int(now.0), self.ends_reservations()];
            self.call(queue, "clear.lua", &self.scripts.clear, keys, &args)
                .await
        })
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(self.names())
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(self.scan_quarantines())
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut keys = vec![self.keys.quarantine(queue)];
            if fate == Fate::Requeue {
                keys.push(self.keys.list(queue));
                keys.extend(self.options.notify.then(|| self.keys.notify(queue)));
            }
            let (script, args) = (&self.scripts.requeue, byte_args(payloads));
            self.call(queue, "requeue.lua", script, &keys, &args).await
        })
    }
}
