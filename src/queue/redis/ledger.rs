//! artisand's own lists on the queue's Redis, and pushes that are made once.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::effects::EffectCall;
use super::{HOME, RedisQueue, byte_args, failed};
use crate::connection::{Arg, LockPlace, slot};
use crate::queue::ledger::END_KEPT;
use crate::queue::{Answer, Effect, Error, Ledger, Once, Push, PushedOnce, QueueName, Spool};
use crate::time::{Clock, UnixSeconds};

/// The name in messages of one of artisand's own lists, which belong to no queue.
fn name_of(spool: Spool) -> QueueName {
    QueueName::from(spool.key())
}

/// The name in messages of the notes of ended jobs.
fn ends_name() -> QueueName {
    QueueName::from("artisand:ended")
}

/// How long the name of a worker without a heartbeat stays in the list.
const NAME_KEPT: Duration = Duration::from_secs(600);
/// How many jobs are pushed in one step: each has eight arguments, and Redis before 7.0 takes no command of more than
/// 1,048,576.
const PUSHED_AT_ONCE: usize = 100_000;
/// How many records of workers are read in one command.
const READ_AT_ONCE: usize = 100;

/// The name in messages of the records of workers.
fn workers_name() -> QueueName {
    QueueName::from("artisand:workers")
}

fn seconds(lives: Duration) -> Arg<'static> {
    Arg::Int(i64::try_from(lives.as_secs().max(1)).unwrap_or(i64::MAX))
}

impl RedisQueue {
    /// The queue whose slot holds the records; without one, that of records of jobs on other servers.
    fn home(&self) -> QueueName {
        self.home.clone().unwrap_or_else(|| HOME.into())
    }

    /// Whether each queue has lists of its own: with a tag in the prefix all keys are in one slot, and there is one of
    /// each.
    fn has_parts(&self) -> bool {
        self.keys.are_tagged() && !self.keys.is_in_one_slot()
    }

    /// The homes of all records that this ledger shows.
    async fn homes(&self) -> Result<Vec<QueueName>, Error> {
        if self.home.is_some() || !self.has_parts() {
            return Ok(vec![self.home()]);
        }
        let mut homes = self.noted_homes(&[]).await?;
        homes.push(self.home());
        Ok(homes)
    }

    /// Adds queues to the set of those that have lists of their own, and reads it.
    async fn noted_homes(&self, queues: &[QueueName]) -> Result<Vec<QueueName>, Error> {
        let set = self.keys.homes();
        let any = QueueName::from("*");
        if !queues.is_empty() {
            let mut add = redis::cmd("SADD");
            add.arg(&set);
            for queue in queues {
                add.arg(queue.as_str());
            }
            let added: Result<i64, _> = self.redis.command(&add).await;
            added.map_err(failed("SADD", &any))?;
        }
        let all = redis::cmd("SMEMBERS").arg(&set).take();
        let all: Result<Vec<String>, _> = self.redis.command(&all).await;
        let all = all.map_err(failed("SMEMBERS", &any))?;
        Ok(all.into_iter().map(QueueName::from).collect())
    }

    pub(super) async fn push_unless_pushed(
        &self,
        pushes: &[Push],
        once: Once<'_>,
    ) -> Result<PushedOnce, Error> {
        // On a cluster each slot remembers its own pushes: a call that is repeated makes those that are missing.
        let mut slots: Vec<Vec<&Push>> = Vec::new();
        for push in pushes {
            let is_its =
                |slot: &&mut Vec<&Push>| self.keys.are_together(&slot[0].queue, &push.queue);
            match slots.iter_mut().find(is_its) {
                Some(slot) => slot.push(push),
                None => slots.push(vec![push]),
            }
        }
        let steps = slots
            .iter()
            .flat_map(|slot| slot.chunks(PUSHED_AT_ONCE).enumerate());
        let (mut before, mut now) = (None, None);
        for (number, step) in steps {
            // Each step remembers its own pushes, too.
            let id = match number {
                0 => Cow::Borrowed(once.id),
                _ => Cow::Owned(format!("{}:{number}", once.id)),
            };
            let is_begun = now.is_some() || before.is_some();
            let answer = self.push_together(step, Once { id: &id, ..once }).await;
            // Those of the steps before are pushed.
            match answer.map_err(|error| error.doubtful_if(is_begun))? {
                PushedOnce::Now { locked } => now = Some(now.unwrap_or(0) + locked),
                PushedOnce::Before { note } => before = Some(note),
            }
        }
        Ok(match (now, before) {
            (Some(locked), _) => PushedOnce::Now { locked },
            (None, Some(note)) => PushedOnce::Before { note },
            (None, None) => PushedOnce::Now { locked: 0 },
        })
    }

    /// Pushes jobs whose queues are in one place.
    async fn push_together(&self, pushes: &[&Push], once: Once<'_>) -> Result<PushedOnce, Error> {
        let queue = &pushes[0].queue;
        let mut call = EffectCall::new(self.keys.pushed(queue, once.id));
        call.args.push(seconds(once.remembered));
        call.args.push(Arg::Bytes(once.note.as_bytes()));
        for push in pushes {
            call.push(self, push);
        }
        let script = &self.scripts.push_once;
        let reply: redis::Value = self
            .call(queue, "push_once.lua", script, &call.keys, &call.args)
            .await?;
        Ok(match reply {
            redis::Value::Int(locked) => {
                // Which of several jobs was locked is not known: only single jobs have locks.
                for push in pushes.iter().filter(|_| locked == 0) {
                    self.tell_push(&push.queue, &push.payload);
                }
                PushedOnce::Now {
                    locked: usize::try_from(locked).unwrap_or(0),
                }
            }
            redis::Value::BulkString(note) => PushedOnce::Before {
                note: String::from_utf8_lossy(&note).into_owned(),
            },
            _ => PushedOnce::Before {
                note: String::new(),
            },
        })
    }

    /// Runs one of the scripts about the lease of a list; true if it returned 1.
    async fn lease_script(
        &self,
        spool: Spool,
        (name, script): (&'static str, &redis::Script),
        args: &[Arg<'_>],
    ) -> Result<bool, Error> {
        let keys = [self.keys.spool_lease(spool, &self.home())];
        let reply: i64 = self
            .call(&name_of(spool), name, script, &keys, args)
            .await?;
        Ok(reply == 1)
    }
}

impl Ledger for RedisQueue {
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        Box::pin(async move {
            let (mut records, mut from) = (Vec::new(), from);
            let homes = self.homes().await?;
            for (number, home) in (1..).zip(&homes) {
                let room = max - records.len();
                if room == 0 {
                    break;
                }
                let key = self.keys.spool(spool, home);
                let last = from.saturating_add(room).saturating_sub(1);
                let command = redis::cmd("LRANGE").arg(&key).arg(from).arg(last).take();
                let found: Result<Vec<Vec<u8>>, _> = self.redis.command(&command).await;
                let found = found.map_err(failed("LRANGE", &name_of(spool)))?;
                if found.is_empty() && from > 0 && number < homes.len() {
                    let passed: Result<usize, _> =
                        self.redis.command(redis::cmd("LLEN").arg(&key)).await;
                    from -= passed.map_err(failed("LLEN", &name_of(spool)))?.min(from);
                } else {
                    from = 0;
                }
                records.extend(found);
            }
            Ok(records)
        })
    }

    fn length(&self, spool: Spool) -> Answer<'_, u64> {
        Box::pin(async move {
            let mut all = 0;
            for home in self.homes().await? {
                let command = redis::cmd("LLEN").arg(self.keys.spool(spool, &home)).take();
                let length: Result<u64, _> = self.redis.command(&command).await;
                all += length.map_err(failed("LLEN", &name_of(spool)))?;
            }
            Ok(all)
        })
    }

    fn ack<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let (name, home) = (name_of(spool), self.home());
            let mut call = EffectCall::new(self.keys.spool(spool, &home));
            // This is the script's second key.
            call.key(self.keys.spool_lease(spool, &home));
            call.args.push(Arg::Bytes(owner.as_bytes()));
            call.number(records.len());
            call.args.extend(byte_args(records));
            for effect in effects {
                call.effect(self, &home, b"", effect);
            }
            let script = &self.scripts.ack;
            let there = self
                .call(&name, "ack.lua", script, &call.keys, &call.args)
                .await?;
            if there > 0 && self.tells_pushes() {
                let effects = effects.iter().map(|effect| (&home, effect));
                self.tell_effects(&effects.collect::<Vec<_>>()).await;
            }
            Ok(there)
        })
    }

    fn keep_error<'a>(&'a self, job: &'a str, error: &'a str, lives: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("SETEX");
            command.arg(self.keys.last_error(job));
            command.arg(lives.as_secs().max(1)).arg(error);
            let kept = self.redis.command(&command).await;
            kept.map_err(failed("SETEX", &QueueName::from("*")))
        })
    }

    fn last_error<'a>(&'a self, job: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            let command = redis::cmd("GET").arg(self.keys.last_error(job)).take();
            let error: Result<Option<Vec<u8>>, _> = self.redis.command(&command).await;
            let error = error.map_err(failed("GET", &QueueName::from("*")))?;
            Ok(error.map(|error| String::from_utf8_lossy(&error).into_owned()))
        })
    }

    fn keeps_heartbeats(&self) -> bool {
        true
    }

    fn beat<'a>(&'a self, worker: &'a str, record: &'a [u8], lives: Duration) -> Answer<'a, ()> {
        Box::pin(async move {
            let (names, now) = (self.keys.workers(), Clock::System.now().0);
            let kept = NAME_KEPT.as_secs();
            let forgotten = now.saturating_sub_unsigned(kept);
            let mut beat = redis::cmd("SETEX");
            (beat.arg(self.keys.worker(worker)))
                .arg(lives.as_secs().max(1))
                .arg(record);
            let mut commands = redis::pipe();
            commands.atomic();
            if self.redis.is_cluster() {
                // The record lies in another slot than the list of names.
                let beat = self.redis.command::<()>(&beat).await;
                beat.map_err(failed("SETEX", &workers_name()))?;
            } else {
                commands.add_command(beat).ignore();
            }
            (commands.cmd("ZADD").arg(&names))
                .arg(now)
                .arg(worker)
                .ignore();
            (commands.cmd("ZREMRANGEBYSCORE").arg(&names))
                .arg("-inf")
                .arg(forgotten)
                .ignore();
            commands.cmd("EXPIRE").arg(&names).arg(kept).ignore();
            let beat = self.redis.pipeline(&commands).await;
            beat.map_err(failed("SETEX", &workers_name()))
        })
    }

    fn end_beats<'a>(&'a self, worker: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let delete = redis::cmd("DEL").arg(self.keys.worker(worker)).take();
            let mut forget = redis::cmd("ZREM");
            forget.arg(self.keys.workers()).arg(worker);
            let both = futures_util::future::try_join(
                self.redis.command::<i64>(&delete),
                self.redis.command::<i64>(&forget),
            );
            (both.await.map(drop)).map_err(failed("DEL", &workers_name()))
        })
    }

    fn beats(&self, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        Box::pin(async move {
            let Some(last) = max.checked_sub(1) else {
                return Ok(Vec::new());
            };
            let mut names = redis::cmd("ZREVRANGE");
            names.arg(self.keys.workers()).arg(0).arg(last);
            let names: Result<Vec<Vec<u8>>, _> = self.redis.command(&names).await;
            let names = names.map_err(failed("ZREVRANGE", &workers_name()))?;
            let mut kept = Vec::new();
            // A command of a cluster takes keys of one slot.
            let at_once = if self.redis.is_cluster() {
                1
            } else {
                READ_AT_ONCE
            };
            for names in names.chunks(at_once) {
                let mut records = redis::cmd("MGET");
                for name in names {
                    // A name that is not UTF-8 is none of a worker, and no record has it.
                    records.arg(self.keys.worker(&String::from_utf8_lossy(name)));
                }
                let records: Result<Vec<Option<Vec<u8>>>, _> = self.redis.command(&records).await;
                let records = records.map_err(failed("MGET", &workers_name()))?;
                kept.extend(records.into_iter().flatten());
            }
            Ok(kept)
        })
    }

    fn lease<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        Box::pin(async move {
            let script = ("lease.lua", &self.scripts.lease);
            let args = [Arg::Bytes(owner.as_bytes()), seconds(lives)];
            self.lease_script(spool, script, &args).await
        })
    }

    fn keep<'a>(&'a self, spool: Spool, owner: &'a str, lives: Duration) -> Answer<'a, bool> {
        Box::pin(async move {
            let script = ("keep.lua", &self.scripts.keep);
            let args = [Arg::Bytes(owner.as_bytes()), seconds(lives)];
            self.lease_script(spool, script, &args).await
        })
    }

    fn unlease<'a>(&'a self, spool: Spool, owner: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let script = ("unlease.lua", &self.scripts.unlease);
            let args = [Arg::Bytes(owner.as_bytes())];
            self.lease_script(spool, script, &args).await.map(drop)
        })
    }

    fn note_end<'a>(
        &'a self,
        id: &'a str,
        at: UnixSeconds,
        effects: &'a [Effect],
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let name = ends_name();
            let at = at.0.to_string();
            let home = self.home();
            let mut call = EffectCall::new(self.keys.ended(&home, id));
            call.args.push(seconds(END_KEPT));
            call.args.push(Arg::Bytes(at.as_bytes()));
            for effect in effects {
                call.effect(self, &home, b"", effect);
            }
            let script = &self.scripts.push_once;
            let noted: redis::Value = self
                .call(&name, "push_once.lua", script, &call.keys, &call.args)
                .await?;
            drop(noted);
            Ok(())
        })
    }

    fn ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<UnixSeconds>>> {
        Box::pin(async move {
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let mut command = redis::cmd("MGET");
            for id in ids {
                command.arg(self.keys.ended(&self.home(), id));
            }
            let noted: Result<Vec<Option<i64>>, _> = self.redis.command(&command).await;
            let noted = noted.map_err(failed("MGET", &ends_name()))?;
            Ok(noted.into_iter().map(|at| at.map(UnixSeconds)).collect())
        })
    }

    fn forget_ends<'a>(&'a self, ids: &'a [String]) -> Answer<'a, ()> {
        Box::pin(async move {
            if ids.is_empty() {
                return Ok(());
            }
            let mut command = redis::cmd("DEL");
            for id in ids {
                command.arg(self.keys.ended(&self.home(), id));
            }
            let removed: Result<i64, _> = self.redis.command(&command).await;
            removed.map(drop).map_err(failed("DEL", &ends_name()))
        })
    }

    fn holds(&self, queue: &QueueName, place: &LockPlace) -> bool {
        let LockPlace::Redis { server, key } = place else {
            return false;
        };
        let home = self.home.as_ref().unwrap_or(queue);
        self.redis.is_same_database(server)
            && (!self.keys.are_tagged() || slot(key.as_bytes()) == self.keys.slot(home))
    }

    fn pushes_here(&self, queue: &QueueName) -> bool {
        self.keys.are_together(&self.home(), queue)
    }

    fn part(&self, queue: &QueueName) -> Option<Arc<dyn Ledger>> {
        (self.has_parts() && self.home.is_none())
            .then(|| Arc::new(self.at_home(queue.clone())) as Arc<dyn Ledger>)
    }

    fn find_parts(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(async move {
            if !self.has_parts() {
                return Ok(Vec::new());
            }
            self.scan_homes().await
        })
    }

    fn note_parts<'a>(&'a self, queues: &'a [QueueName]) -> Answer<'a, Vec<QueueName>> {
        Box::pin(async move {
            if !self.has_parts() {
                return Ok(Vec::new());
            }
            self.noted_homes(queues).await
        })
    }
}
