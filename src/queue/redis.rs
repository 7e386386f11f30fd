//! Laravel's Redis driver: Laravel's keys and effects, with artisand's own scripts.
//!
//! The contract is `docs/protocol/redis-driver.md`. Where Laravel loses or doubles jobs, this driver does not: a
//! payload that cannot be decoded goes to quarantine instead of being lost, and a release puts back only a job
//! that was still reserved.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Script, Value};

use super::{
    Choose, ConnectionName, Effect, Error, Keys, PopRequest, Popped, Queue, QueueName, ReservedJob,
    Settled, Settlement, Sizes, Spool, Unsettled, Waiting, number_of_attempts,
};
use crate::connection::{Arg, Redis};
use crate::payload::Payload;
use crate::time::UnixSeconds;

/// Settings of a Redis queue connection (`queue.connections.NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisQueueOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// How long a reservation lives; `None` for no end, which no Laravel setting means.
    pub retry_after: Option<Duration>,
    /// Whether the app keeps notify lists (Laravel 5.8 and later).
    pub notify: bool,
    /// Most jobs that one pop migrates from each sorted set (`migration_batch_size`); always limited.
    pub migration_batch: usize,
    /// How far a pop looks into a queue if it takes only some of the jobs.
    pub look_ahead: usize,
    /// Forwarded queues (`Queue::forward`, Laravel 13): jobs of the first are stored under the keys of the second.
    pub forwards: BTreeMap<QueueName, QueueName>,
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
        }
    }
}

/// The queues of one Redis connection.
pub struct RedisQueue {
    redis: Redis,
    /// For commands that block; a reply may take as long as the command blocks.
    blocking: Redis,
    /// For renewals, which may be sent from another runtime.
    renewing: Redis,
    keys: Keys,
    options: RedisQueueOptions,
    scripts: Scripts,
}

struct Scripts {
    pop: Script,
    peek: Script,
    claim: Script,
    delete: Script,
    r#move: Script,
    push: Script,
    clear: Script,
    requeue: Script,
    finish: Script,
    advance: Script,
    push_once: Script,
    lease: Script,
    keep: Script,
    unlease: Script,
}

macro_rules! with_common {
    ($file:literal) => {
        Script::new(concat!(
            include_str!("scripts/common.lua"),
            "\n",
            include_str!(concat!("scripts/", $file))
        ))
    };
}

macro_rules! with_effects {
    ($file:literal) => {
        Script::new(concat!(
            include_str!("scripts/effects.lua"),
            "\n",
            include_str!(concat!("scripts/", $file))
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

/// The name in messages of one of artisand's own lists, which belong to no queue.
fn name_of(spool: Spool) -> QueueName {
    QueueName::from(spool.key())
}

/// Longest wait for a push in one blocking command.
const LONGEST_BLOCK: Duration = Duration::from_secs(10);

impl RedisQueue {
    /// The queues behind a connection; nothing is sent yet.
    pub fn new(redis: Redis, options: RedisQueueOptions) -> Self {
        let keys = Keys::new(redis.prefix()).with_forwards(options.forwards.clone());
        let blocking = redis.another(LONGEST_BLOCK + Duration::from_secs(5));
        let renewing = redis.another(Redis::RESPONSE_TIMEOUT);
        let scripts = Scripts {
            pop: with_common!("pop.lua"),
            peek: with_common!("peek.lua"),
            claim: with_common!("claim.lua"),
            delete: Script::new(include_str!("scripts/delete.lua")),
            r#move: Script::new(include_str!("scripts/move.lua")),
            push: Script::new(include_str!("scripts/push.lua")),
            clear: Script::new(include_str!("scripts/clear.lua")),
            requeue: Script::new(include_str!("scripts/requeue.lua")),
            finish: with_effects!("finish.lua"),
            advance: with_effects!("advance.lua"),
            push_once: with_effects!("push_once.lua"),
            lease: Script::new(include_str!("scripts/lease.lua")),
            keep: Script::new(include_str!("scripts/keep.lua")),
            unlease: Script::new(include_str!("scripts/unlease.lua")),
        };
        Self {
            redis,
            blocking,
            renewing,
            keys,
            options,
            scripts,
        }
    }

    /// The connection's settings.
    pub fn options(&self) -> &RedisQueueOptions {
        &self.options
    }

    /// The key names in use.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The connection that commands are sent on.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    ///
    /// The connection cannot be opened, or the server refuses to serve.
    pub async fn ping(&self) -> Result<(), crate::connection::Error> {
        self.redis.ping().await
    }

    /// Counts the records of one of artisand's own lists.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the list cannot be read.
    pub async fn spool_length(&self, spool: Spool) -> Result<u64, Error> {
        let command = redis::cmd("LLEN").arg(self.keys.spool(spool)).take();
        let length = self.redis.command(&command).await;
        length.map_err(failed("LLEN", &name_of(spool)))
    }

    /// Pushes jobs in one step, unless jobs of this identity were pushed before; true if they were pushed now.
    ///
    /// The push is remembered for the duration `remembered`.
    ///
    /// # Errors
    ///
    /// [`Error::Script`]; either all jobs are then pushed or none, and the call may be repeated.
    pub async fn push_once(
        &self,
        pushes: &[Effect],
        id: &str,
        remembered: Duration,
    ) -> Result<bool, Error> {
        let queue = pushes.iter().find_map(|effect| match effect {
            Effect::Push(push) => Some(push.queue.clone()),
            _ => None,
        });
        let queue = queue.unwrap_or_else(|| QueueName::from(""));
        let mut call = EffectCall::new(self.keys.pushed(id));
        call.args.push(Arg::Int(
            i64::try_from(remembered.as_secs().max(1)).unwrap_or(i64::MAX),
        ));
        for effect in pushes {
            call.effect(self, &queue, b"", effect);
        }
        let script = &self.scripts.push_once;
        let is_new: i64 = self
            .call(&queue, "push_once.lua", script, &call.keys, &call.args)
            .await?;
        Ok(is_new == 1)
    }

    /// Whether [`push_once`](Self::push_once) has pushed for this identity and Redis still remembers it.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if Redis cannot be asked.
    pub async fn was_pushed(&self, id: &str) -> Result<bool, Error> {
        let command = redis::cmd("EXISTS").arg(self.keys.pushed(id)).take();
        let found: Result<i64, _> = self.redis.command(&command).await;
        let any = QueueName::from("*");
        found.map(|count| count > 0).map_err(failed("EXISTS", &any))
    }

    /// The first pending jobs of a queue, unchanged; no job moves.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the list cannot be read.
    pub async fn peek(&self, queue: &QueueName, limit: usize) -> Result<Vec<Vec<u8>>, Error> {
        self.range(queue, self.keys.list(queue), limit).await
    }

    /// Some jobs of a queue, unchanged, from position `from` on; no job moves.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the list or set cannot be read.
    pub async fn look(
        &self,
        queue: &QueueName,
        waiting: Waiting,
        from: usize,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let (verb, key) = match waiting {
            Waiting::Pending => ("LRANGE", self.keys.list(queue)),
            Waiting::Delayed => ("ZRANGE", self.keys.delayed(queue)),
            Waiting::Reserved => ("ZRANGE", self.keys.reserved(queue)),
        };
        let last = from.saturating_add(limit - 1);
        let command = redis::cmd(verb).arg(key).arg(from).arg(last).take();
        self.redis
            .command(&command)
            .await
            .map_err(failed(verb, queue))
    }

    /// The first payloads in a queue's quarantine, unchanged.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the list cannot be read.
    pub async fn quarantined(
        &self,
        queue: &QueueName,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.range(queue, self.keys.quarantine(queue), limit).await
    }

    async fn range(
        &self,
        queue: &QueueName,
        key: String,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let command = redis::cmd("LRANGE").arg(key).arg(0).arg(limit - 1).take();
        self.redis
            .command(&command)
            .await
            .map_err(failed("LRANGE", queue))
    }

    /// Names of the queues that have a quarantine.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the keys cannot be scanned.
    pub async fn queues_with_quarantine(&self) -> Result<Vec<QueueName>, Error> {
        let prefix = format!("{}queues:", self.redis.prefix());
        let pattern = format!("{}*:quarantine", escape_glob(&prefix));
        let any = QueueName::from("*");
        let mut names = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let command = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(1000)
                .take();
            let (next, keys): (u64, Vec<String>) = self
                .redis
                .command(&command)
                .await
                .map_err(failed("SCAN", &any))?;
            let name = |key: &String| {
                let name = key.strip_prefix(&prefix)?.strip_suffix(":quarantine")?;
                Some(QueueName::from(name))
            };
            names.extend(keys.iter().filter_map(name));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Moves payloads from the quarantine to the end of their queue; returns how many were found.
    ///
    /// # Errors
    ///
    /// [`Error::Script`]; each payload is then in one of the two places.
    pub async fn requeue(&self, queue: &QueueName, payloads: &[Vec<u8>]) -> Result<u64, Error> {
        let mut keys = vec![self.keys.quarantine(queue), self.keys.list(queue)];
        if self.options.notify {
            keys.push(self.keys.notify(queue));
        }
        self.call(
            queue,
            "requeue.lua",
            &self.scripts.requeue,
            &keys,
            &byte_args(payloads),
        )
        .await
    }

    /// Deletes payloads from the quarantine; returns how many were found.
    ///
    /// # Errors
    ///
    /// [`Error::Script`] if the script cannot be run.
    pub async fn delete_quarantined(
        &self,
        queue: &QueueName,
        payloads: &[Vec<u8>],
    ) -> Result<u64, Error> {
        let keys = [self.keys.quarantine(queue)];
        self.call(
            queue,
            "requeue.lua",
            &self.scripts.requeue,
            &keys,
            &byte_args(payloads),
        )
        .await
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
        self.redis
            .script(script, keys, args)
            .await
            .map_err(failed(name, queue))
    }

    fn migration_limit(&self) -> Arg<'static> {
        Arg::Int(i64::try_from(self.options.migration_batch).unwrap_or(i64::MAX))
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

    /// Pops the first jobs, or the run of first jobs that each hold one of `needles`.
    ///
    /// Returns the position of the queue at which a job without a needle ended the pop.
    async fn pop_heads(
        &self,
        request: &PopRequest<'_>,
        needles: &[Vec<u8>],
    ) -> Result<(Popped, Option<usize>), Error> {
        let mut popped = Popped::default();
        let Some(first) = request.queues.first() else {
            return Ok((popped, None));
        };
        let keys: Vec<String> = request
            .queues
            .iter()
            .flat_map(|queue| self.pop_keys(queue))
            .collect();
        let mut args = vec![
            Arg::Int(request.now.0),
            self.expires(request.now),
            Arg::Int(i64::try_from(request.max.get()).unwrap_or(i64::MAX)),
            self.migration_limit(),
            Self::flag(self.options.notify),
            Self::flag(self.options.retry_after.is_some()),
            Arg::Int(i64::try_from(needles.len()).unwrap_or(i64::MAX)),
        ];
        args.extend(needles.iter().map(|needle| Arg::Bytes(needle)));
        args.extend(
            request
                .queues
                .iter()
                .map(|queue| Self::flag(request.woken.contains(queue))),
        );
        let reply: Vec<Value> = self
            .call(first, "pop.lua", &self.scripts.pop, &keys, &args)
            .await?;
        let mut ended = None;
        let lease = self.lease(request.now);
        for (position, (queue, entry)) in request.queues.iter().zip(reply).enumerate() {
            let is_end =
                read_entry(queue, entry, lease, &mut popped).ok_or_else(|| Error::Reply {
                    script: "pop.lua",
                    queue: queue.clone(),
                })?;
            ended = ended.or(is_end.then_some(position));
        }
        Ok((popped, ended))
    }

    /// Pops only chosen jobs: shows a window of each queue, then claims.
    async fn pop_chosen(
        &self,
        request: &PopRequest<'_>,
        queues: &[QueueName],
        choose: Choose<'_>,
        popped: &mut Popped,
    ) -> Result<(), Error> {
        for queue in queues {
            // A small window comes first: mostly the wanted jobs are near the head.
            let (mut start, mut size) = (0, request.max.get().max(32));
            while start < self.options.look_ahead && popped.jobs.len() < request.max.get() {
                size = size.min(self.options.look_ahead - start);
                let before = popped.jobs.len();
                let seen = self
                    .pop_window(request, queue, (start, size), choose, popped)
                    .await?;
                // Taken jobs no longer stand before the next window.
                start += seen.saturating_sub(popped.jobs.len() - before);
                if seen < size {
                    break;
                }
                size *= 4;
            }
        }
        Ok(())
    }

    /// Shows one window of a queue and claims what is chosen; returns how many jobs it showed.
    async fn pop_window(
        &self,
        request: &PopRequest<'_>,
        queue: &QueueName,
        (start, size): (usize, usize),
        choose: Choose<'_>,
        popped: &mut Popped,
    ) -> Result<usize, Error> {
        let wrong = |script| {
            move || Error::Reply {
                script,
                queue: queue.clone(),
            }
        };
        let number = |n: usize| Arg::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let keys = self.pop_keys(queue);
        let args = [
            Arg::Int(request.now.0),
            self.migration_limit(),
            Self::flag(self.options.notify),
            Self::flag(self.options.retry_after.is_some()),
            number(start),
            number(size),
        ];
        let window: Vec<Value> = self
            .call(queue, "peek.lua", &self.scripts.peek, &keys, &args)
            .await?;
        let mut window = window.into_iter();
        let due = window
            .next()
            .and_then(|value| read_due(&value))
            .ok_or_else(wrong("peek.lua"))?;
        popped.next_due = earliest(popped.next_due, due);
        popped.migrated += window
            .next()
            .and_then(|value| read_count(&value))
            .ok_or_else(wrong("peek.lua"))?;
        let seen = window.len();
        let room = request.max.get().saturating_sub(popped.jobs.len());
        let mut chosen = Vec::new();
        for element in window {
            let Value::BulkString(element) = element else {
                return Err(wrong("peek.lua")());
            };
            if chosen.len() < room
                && let Some(choice) = choose(queue, &element)
            {
                chosen.push((element, choice));
            }
        }
        let is_woken = request.woken.contains(queue);
        if chosen.is_empty() {
            if is_woken && start == 0 && seen > 0 {
                // The notification was for a job that another worker has to take: pass it on.
                let command = redis::cmd("RPUSH")
                    .arg(self.keys.notify(queue))
                    .arg("1")
                    .take();
                let _: i64 = self
                    .redis
                    .command(&command)
                    .await
                    .map_err(failed("RPUSH", queue))?;
            }
            return Ok(seen);
        }
        let mut args = vec![
            self.expires(request.now),
            Self::flag(self.options.notify),
            Self::flag(is_woken && start == 0),
        ];
        args.extend(chosen.iter().map(|(element, _)| Arg::Bytes(element)));
        let reply: Vec<Value> = self
            .call(queue, "claim.lua", &self.scripts.claim, &keys, &args)
            .await?;
        let mut reply = reply.into_iter();
        let mut quarantined = 0;
        for (element, choice) in chosen {
            let (offset, text) = reply
                .next()
                .zip(reply.next())
                .ok_or_else(wrong("claim.lua"))?;
            match offset {
                Value::Int(-2) => {}
                Value::Int(-3) => quarantined += 1,
                offset => {
                    let lease = self.lease(request.now);
                    let job = read_job(queue, Value::BulkString(element), &offset, text, lease);
                    let mut job = job.ok_or_else(wrong("claim.lua"))?;
                    job.choice = Some(choice);
                    popped.jobs.push(job);
                }
            }
        }
        if quarantined > 0 {
            popped.quarantined.push((queue.clone(), quarantined));
        }
        Ok(seen)
    }
}

fn failed(
    script: &'static str,
    queue: &QueueName,
) -> impl FnOnce(crate::connection::Error) -> Error {
    let queue = queue.clone();
    move |source| Error::Script {
        script,
        queue,
        source,
    }
}

fn byte_args(payloads: &[Vec<u8>]) -> Vec<Arg<'_>> {
    payloads.iter().map(|payload| Arg::Bytes(payload)).collect()
}

fn escape_glob(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

/// A due second, if the reply has one; the outer `None` if the reply is something else.
#[expect(
    clippy::option_option,
    reason = "nothing due and nothing understood are two things"
)]
fn read_due(value: &Value) -> Option<Option<UnixSeconds>> {
    match value {
        Value::Nil | Value::Boolean(false) => Some(None),
        Value::BulkString(text) => {
            // A score can be any float, even one that no clock reaches. A malformed score is no reason to drop
            // jobs.
            let due = std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
            let due = due.map(|due| UnixSeconds(due as i64));
            Some(due)
        }
        _ => None,
    }
}

fn read_count(value: &Value) -> Option<usize> {
    match value {
        Value::Int(count) => usize::try_from(*count).ok(),
        _ => None,
    }
}

fn earliest(a: Option<UnixSeconds>, b: Option<UnixSeconds>) -> Option<UnixSeconds> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Reads the part of pop.lua's reply for one queue; true if a job without a needle ended the pop.
fn read_entry(
    queue: &QueueName,
    entry: Value,
    lease: Option<UnixSeconds>,
    popped: &mut Popped,
) -> Option<bool> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let mut entry = entry.into_iter();
    popped.next_due = earliest(popped.next_due, read_due(&entry.next()?)?);
    let quarantined = read_count(&entry.next()?)?;
    if quarantined > 0 {
        popped.quarantined.push((queue.clone(), quarantined));
    }
    popped.migrated += read_count(&entry.next()?)?;
    let is_end = read_count(&entry.next()?)? == 1;
    while let Some(element) = entry.next() {
        let (offset, text) = (entry.next()?, entry.next()?);
        popped
            .jobs
            .push(read_job(queue, element, &offset, text, lease)?);
    }
    Some(is_end)
}

/// Builds a job from its element and the script's description of its member: an edit, or the whole member.
fn read_job(
    queue: &QueueName,
    element: Value,
    offset: &Value,
    text: Value,
    lease: Option<UnixSeconds>,
) -> Option<ReservedJob> {
    let (Value::BulkString(element), Value::Int(offset), Value::BulkString(text)) =
        (element, offset, text)
    else {
        return None;
    };
    let (member, attempts) = if *offset == -1 {
        // An unreadable payload goes to quarantine, where attempts do not count.
        let read = Payload::parse(&text)
            .ok()
            .and_then(|payload| payload.attempts);
        (text, read.unwrap_or(1).max(1))
    } else {
        let start = usize::try_from(*offset).ok()?;
        let digits = element
            .get(start..)?
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let attempts = std::str::from_utf8(&text).ok()?.parse().ok()?;
        let attempts = number_of_attempts(attempts);
        let member = [&element[..start], &text, &element[start + digits..]].concat();
        (member, attempts)
    };
    Some(ReservedJob {
        queue: queue.clone(),
        payload: element.into(),
        attempts,
        lease,
        choice: None,
        ticket: member.into(),
    })
}

/// How a settlement is carried out; jobs of the same kind and queue go together.
#[derive(PartialEq, Eq, Clone)]
struct Group {
    queue: QueueName,
    script: SettleScript,
}

#[derive(PartialEq, Eq, Clone)]
enum SettleScript {
    Delete,
    Delay,
    Expire,
    Prepend,
    Append(QueueName),
    Quarantine,
    Finish,
}

impl Group {
    fn of(job: &ReservedJob, settlement: &Settlement) -> Self {
        let script = match settlement {
            Settlement::Delete => SettleScript::Delete,
            Settlement::Release(_) | Settlement::ReleaseUncounted(_) => SettleScript::Delay,
            Settlement::LeaveUntil(_) => SettleScript::Expire,
            Settlement::PutBack => SettleScript::Prepend,
            Settlement::Forward(to) => SettleScript::Append(to.clone()),
            Settlement::Quarantine => SettleScript::Quarantine,
            Settlement::Finish(_) => SettleScript::Finish,
        };
        Self {
            queue: job.queue.clone(),
            script,
        }
    }
}

/// Keys and arguments of a script that carries out effects.
struct EffectCall<'a> {
    keys: Vec<String>,
    positions: HashMap<String, i64>,
    args: Vec<Arg<'a>>,
}

impl<'a> EffectCall<'a> {
    fn new(first: String) -> Self {
        Self {
            positions: HashMap::from([(first.clone(), 1)]),
            keys: vec![first],
            args: Vec::new(),
        }
    }

    fn number(&mut self, number: usize) {
        self.args
            .push(Arg::Int(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    /// Position of a key, which is added if it is new.
    fn key(&mut self, key: String) -> i64 {
        if let Some(position) = self.positions.get(&key) {
            return *position;
        }
        self.keys.push(key.clone());
        let position = i64::try_from(self.keys.len()).unwrap_or(i64::MAX);
        self.positions.insert(key, position);
        position
    }

    /// Adds an effect of the end of the job with the payload `element`.
    fn effect(
        &mut self,
        queues: &RedisQueue,
        queue: &QueueName,
        element: &'a [u8],
        effect: &'a Effect,
    ) {
        let keys = &queues.keys;
        let mut rest = [
            Arg::Int(0),
            Arg::Int(0),
            Arg::Int(0),
            Arg::Bytes(b""),
            Arg::Int(0),
        ];
        let (what, key, value): (&'static [u8], String, &'a [u8]) = match effect {
            Effect::Push(push) => {
                if let Some(claim) = &push.claim {
                    rest[2] = Arg::Int(self.key(claim.key.clone()));
                    rest[3] = Arg::Bytes(claim.owner.as_bytes());
                    // Redis refuses a longer lifetime, and does so in the middle of the effects.
                    let ttl = claim.ttl.min(LONGEST_LOCK).as_secs();
                    rest[4] = Arg::Int(i64::try_from(ttl).unwrap_or(i64::MAX));
                }
                if let Some(due) = push.due {
                    rest[0] = Arg::Int(due.0);
                    (b"later", keys.delayed(&push.queue), &push.payload)
                } else {
                    if queues.options.notify {
                        rest[1] = Arg::Int(self.key(keys.notify(&push.queue)));
                    }
                    (b"push", keys.list(&push.queue), &push.payload)
                }
            }
            Effect::Unlock(unlock) => {
                let owner = unlock.owner.as_deref().unwrap_or_default();
                (b"unlock", unlock.key.clone(), owner.as_bytes())
            }
            Effect::Append(spool, record) => (b"append", keys.spool(*spool), record),
            Effect::Quarantine => (b"append", keys.quarantine(queue), element),
        };
        let key = self.key(key);
        self.args
            .extend([Arg::Bytes(what), Arg::Int(key), Arg::Bytes(value)]);
        self.args.extend(rest);
    }
}

/// Longest lifetime of a lock that Redis can count in milliseconds, whatever the date.
const LONGEST_LOCK: Duration = Duration::from_secs(9_000_000_000_000_000);

/// Most jobs settled by one script call, so that no call occupies the server for long.
const SETTLE_AT_ONCE: usize = 256;

impl RedisQueue {
    async fn settle_group(
        &self,
        group: &Group,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let queue = &group.queue;
        let reserved = self.keys.reserved(queue);
        let notify = |queue: &QueueName| self.options.notify.then(|| self.keys.notify(queue));
        let (mode, target, tell): (&[u8], String, Option<String>) = match &group.script {
            SettleScript::Delete => {
                // A script costs more than the plain command, and for a single job the command's reply says
                // enough.
                if let [(job, _)] = jobs {
                    let command = redis::cmd("ZREM").arg(&reserved).arg(&job.ticket).take();
                    let removed: i64 =
                        (self.redis.command(&command).await).map_err(failed("ZREM", queue))?;
                    return Ok(if removed == 0 { vec![1] } else { Vec::new() });
                }
                let args: Vec<_> = jobs
                    .iter()
                    .map(|(job, _)| Arg::Bytes(&job.ticket))
                    .collect();
                return self
                    .call(
                        queue,
                        "delete.lua",
                        &self.scripts.delete,
                        &[reserved],
                        &args,
                    )
                    .await;
            }
            SettleScript::Delay => (b"delay", self.keys.delayed(queue), None),
            SettleScript::Expire => (b"expire", reserved.clone(), None),
            SettleScript::Prepend => (b"prepend", self.keys.list(queue), notify(queue)),
            SettleScript::Append(to) => (b"append", self.keys.list(to), notify(to)),
            SettleScript::Quarantine => (b"append", self.keys.quarantine(queue), None),
            SettleScript::Finish => return self.finish_group(queue, jobs).await,
        };
        let mut args = vec![Arg::Bytes(mode)];
        for (job, settlement) in jobs {
            let (value, score): (&[u8], i64) = match settlement {
                Settlement::Release(due) | Settlement::LeaveUntil(due) => (b"", due.0),
                Settlement::ReleaseUncounted(due) => (&job.payload, due.0),
                _ => (&job.payload, 0),
            };
            args.extend([Arg::Bytes(&job.ticket), Arg::Bytes(value), Arg::Int(score)]);
        }
        let keys: Vec<String> = [reserved, target].into_iter().chain(tell).collect();
        self.call(queue, "move.lua", &self.scripts.r#move, &keys, &args)
            .await
    }
}

impl RedisQueue {
    async fn finish_group(
        &self,
        queue: &QueueName,
        jobs: &[&(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<usize>, Error> {
        let mut call = EffectCall::new(self.keys.reserved(queue));
        for (job, settlement) in jobs {
            let Settlement::Finish(effects) = settlement else {
                continue;
            };
            call.args.push(Arg::Bytes(&job.ticket));
            call.number(effects.len());
            for effect in effects {
                call.effect(self, queue, &job.payload, effect);
            }
        }
        let script = &self.scripts.finish;
        self.call(queue, "finish.lua", script, &call.keys, &call.args)
            .await
    }
}

impl Queue for RedisQueue {
    async fn pop(&self, mut request: PopRequest<'_>) -> Result<Popped, Error> {
        let Some(selection) = request.selection.take() else {
            return self
                .pop_heads(&request, &[])
                .await
                .map(|(popped, _)| popped);
        };
        let (mut popped, ended) = match selection.needles {
            [] => (Popped::default(), Some(0)),
            needles => self.pop_heads(&request, needles).await?,
        };
        if let Some(ended) = ended {
            let chosen = self
                .pop_chosen(
                    &request,
                    &request.queues[ended..],
                    selection.choose,
                    &mut popped,
                )
                .await;
            // Jobs that are already reserved must reach the caller; the error will come again.
            if let Err(error) = chosen
                && popped.jobs.is_empty()
            {
                return Err(error);
            }
        }
        Ok(popped)
    }

    async fn settle(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> Result<Vec<Settled>, Unsettled> {
        // One call per kind and queue; all calls run at the same time.
        let mut groups: Vec<(Group, Vec<usize>)> = Vec::new();
        for (index, (job, settlement)) in jobs.iter().enumerate() {
            let group = Group::of(job, settlement);
            let open = groups
                .iter_mut()
                .rev()
                .find(|(g, members)| *g == group && members.len() < SETTLE_AT_ONCE);
            match open {
                Some((_, members)) => members.push(index),
                None => groups.push((group, vec![index])),
            }
        }
        let calls = groups.iter().map(|(group, members)| async move {
            let rows: Vec<_> = members.iter().map(|index| &jobs[*index]).collect();
            self.settle_group(group, &rows).await
        });
        let replies = futures_util::future::join_all(calls).await;
        let mut settled = vec![Some(Settled::Done); jobs.len()];
        let mut problem = None;
        for ((_, members), gone) in groups.iter().zip(replies) {
            match gone {
                Ok(gone) => {
                    let of = |position: usize| members.get(position.checked_sub(1)?);
                    for index in gone.into_iter().filter_map(of) {
                        settled[*index] = Some(Settled::Gone);
                    }
                }
                Err(error) => {
                    for index in members {
                        settled[*index] = None;
                    }
                    if problem.is_none() || error.is_of_unknown_outcome() {
                        problem = Some(error);
                    }
                }
            }
        }
        match problem {
            None => Ok(settled.into_iter().flatten().collect()),
            Some(source) => Err(Unsettled { settled, source }),
        }
    }

    async fn renew(&self, jobs: &[Arc<ReservedJob>], now: UnixSeconds) -> Result<(), Error> {
        let Some(retry_after) = self.options.retry_after else {
            return Ok(());
        };
        let expires = now.plus(retry_after).0;
        let mut rest: Vec<&Arc<ReservedJob>> = jobs.iter().collect();
        rest.sort_by(|a, b| a.queue.cmp(&b.queue));
        // A queue that cannot be written must not cost other queues their reservations.
        let mut result = Ok(());
        for same_queue in rest.chunk_by(|a, b| a.queue == b.queue) {
            for chunk in same_queue.chunks(SETTLE_AT_ONCE) {
                let queue = &chunk[0].queue;
                let mut command = redis::cmd("ZADD");
                command.arg(self.keys.reserved(queue)).arg("XX");
                for job in chunk {
                    command.arg(expires).arg(&job.ticket);
                }
                let renewed = self.renewing.command::<i64>(&command).await;
                result = renewed
                    .map(|_| ())
                    .map_err(failed("ZADD", queue))
                    .and(result);
            }
        }
        result
    }

    fn retry_after(&self) -> Option<Duration> {
        self.options.retry_after
    }

    async fn wait_for_push(
        &self,
        queues: &[QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let Some(first) = queues.first() else {
            return Ok(None);
        };
        // Whole seconds: servers before Redis 6 accept no fractions. 0 would block without end.
        let seconds = timeout.min(LONGEST_BLOCK).as_secs().max(1);
        let mut command = redis::cmd("BLPOP");
        for queue in queues {
            command.arg(self.keys.notify(queue));
        }
        command.arg(seconds);
        let reply: Option<(String, Vec<u8>)> = self
            .blocking
            .command(&command)
            .await
            .map_err(failed("BLPOP", first))?;
        let pushed = reply.and_then(|(key, _)| {
            let is_told = |queue: &&QueueName| self.keys.notify(queue) == key;
            queues.iter().find(is_told)
        });
        Ok(pushed.cloned())
    }

    fn announces_pushes(&self) -> bool {
        self.options.notify
    }

    async fn push(&self, queue: &QueueName, payloads: &[Vec<u8>]) -> Result<(), Error> {
        let mut keys = vec![self.keys.list(queue)];
        if self.options.notify {
            keys.push(self.keys.notify(queue));
        }
        let _: i64 = self
            .call(
                queue,
                "push.lua",
                &self.scripts.push,
                &keys,
                &byte_args(payloads),
            )
            .await?;
        Ok(())
    }

    async fn later(
        &self,
        queue: &QueueName,
        due: UnixSeconds,
        payload: &[u8],
    ) -> Result<(), Error> {
        let command = redis::cmd("ZADD")
            .arg(self.keys.delayed(queue))
            .arg(due.0)
            .arg(payload)
            .take();
        let _: i64 = self
            .redis
            .command(&command)
            .await
            .map_err(failed("ZADD", queue))?;
        Ok(())
    }

    async fn sizes(&self, queue: &QueueName) -> Result<Sizes, Error> {
        let count = |command: &'static str, key: String| async move {
            self.redis
                .command::<u64>(redis::cmd(command).arg(key))
                .await
                .map_err(failed(command, queue))
        };
        let (pending, delayed, reserved, quarantined) = futures_util::future::try_join4(
            count("LLEN", self.keys.list(queue)),
            count("ZCARD", self.keys.delayed(queue)),
            count("ZCARD", self.keys.reserved(queue)),
            count("LLEN", self.keys.quarantine(queue)),
        )
        .await?;
        Ok(Sizes {
            pending,
            delayed,
            reserved,
            quarantined,
        })
    }

    fn is_on(&self, redis: &Redis) -> bool {
        self.redis.is_same_database(redis)
    }

    async fn spooled(&self, spool: Spool, from: usize, max: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut command = redis::cmd("LRANGE");
        command
            .arg(self.keys.spool(spool))
            .arg(from)
            .arg(from.saturating_add(max).saturating_sub(1));
        let records = self.redis.command(&command).await;
        records.map_err(failed("LRANGE", &name_of(spool)))
    }

    async fn advance(
        &self,
        spool: Spool,
        owner: &str,
        records: &[Vec<u8>],
        effects: &[Effect],
    ) -> Result<u64, Error> {
        let name = name_of(spool);
        let mut call = EffectCall::new(self.keys.spool(spool));
        // This is the script's second key.
        call.key(self.keys.spool_lease(spool));
        call.args.push(Arg::Bytes(owner.as_bytes()));
        call.number(records.len());
        call.args
            .extend(records.iter().map(|record| Arg::Bytes(record)));
        for effect in effects {
            call.effect(self, &name, b"", effect);
        }
        self.call(
            &name,
            "advance.lua",
            &self.scripts.advance,
            &call.keys,
            &call.args,
        )
        .await
    }

    async fn lease_spool(&self, spool: Spool, owner: &str, lives: Duration) -> Result<bool, Error> {
        let seconds = i64::try_from(lives.as_secs().max(1)).unwrap_or(i64::MAX);
        let leased: i64 = self
            .call(
                &name_of(spool),
                "lease.lua",
                &self.scripts.lease,
                &[self.keys.spool_lease(spool)],
                &[Arg::Bytes(owner.as_bytes()), Arg::Int(seconds)],
            )
            .await?;
        Ok(leased == 1)
    }

    async fn keep_spool(&self, spool: Spool, owner: &str, lives: Duration) -> Result<bool, Error> {
        let seconds = i64::try_from(lives.as_secs().max(1)).unwrap_or(i64::MAX);
        let kept: i64 = self
            .call(
                &name_of(spool),
                "keep.lua",
                &self.scripts.keep,
                &[self.keys.spool_lease(spool)],
                &[Arg::Bytes(owner.as_bytes()), Arg::Int(seconds)],
            )
            .await?;
        Ok(kept == 1)
    }

    async fn unlease_spool(&self, spool: Spool, owner: &str) -> Result<(), Error> {
        let given_up: Result<i64, Error> = self
            .call(
                &name_of(spool),
                "unlease.lua",
                &self.scripts.unlease,
                &[self.keys.spool_lease(spool)],
                &[Arg::Bytes(owner.as_bytes())],
            )
            .await;
        given_up.map(drop)
    }

    async fn clear(&self, queue: &QueueName) -> Result<u64, Error> {
        let keys = &self.pop_keys(queue)[..4];
        self.call(queue, "clear.lua", &self.scripts.clear, keys, &[])
            .await
    }
}
