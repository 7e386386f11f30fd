//! artisand's own lists on the queue's Redis, and pushes that are made once.

use std::time::Duration;

use super::effects::EffectCall;
use super::{RedisQueue, byte_args, failed};
use crate::connection::{Arg, LockPlace};
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
    pub(super) async fn push_unless_pushed(
        &self,
        pushes: &[Push],
        once: Once<'_>,
    ) -> Result<PushedOnce, Error> {
        let queue = pushes
            .first()
            .map_or(QueueName::from(""), |push| push.queue.clone());
        let mut call = EffectCall::new(self.keys.pushed(once.id));
        call.args.push(seconds(once.remembered));
        call.args.push(Arg::Bytes(once.note.as_bytes()));
        for push in pushes {
            call.push(self, push);
        }
        let script = &self.scripts.push_once;
        let reply: redis::Value = self
            .call(&queue, "push_once.lua", script, &call.keys, &call.args)
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
        let keys = [self.keys.spool_lease(spool)];
        let reply: i64 = self
            .call(&name_of(spool), name, script, &keys, args)
            .await?;
        Ok(reply == 1)
    }
}

impl Ledger for RedisQueue {
    fn read(&self, spool: Spool, from: usize, max: usize) -> Answer<'_, Vec<Vec<u8>>> {
        Box::pin(async move {
            let last = from.saturating_add(max).saturating_sub(1);
            let mut command = redis::cmd("LRANGE");
            command.arg(self.keys.spool(spool)).arg(from).arg(last);
            let records = self.redis.command(&command).await;
            records.map_err(failed("LRANGE", &name_of(spool)))
        })
    }

    fn length(&self, spool: Spool) -> Answer<'_, u64> {
        Box::pin(async move {
            let command = redis::cmd("LLEN").arg(self.keys.spool(spool)).take();
            let length = self.redis.command(&command).await;
            length.map_err(failed("LLEN", &name_of(spool)))
        })
    }

    fn advance<'a>(
        &'a self,
        spool: Spool,
        owner: &'a str,
        records: &'a [Vec<u8>],
        effects: &'a [Effect],
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let name = name_of(spool);
            let mut call = EffectCall::new(self.keys.spool(spool));
            // This is the script's second key.
            call.key(self.keys.spool_lease(spool));
            call.args.push(Arg::Bytes(owner.as_bytes()));
            call.number(records.len());
            call.args.extend(byte_args(records));
            for effect in effects {
                call.effect(self, &name, b"", effect);
            }
            let script = &self.scripts.advance;
            let there = self
                .call(&name, "advance.lua", script, &call.keys, &call.args)
                .await?;
            if there > 0 && self.tells_pushes() {
                let effects: Vec<&Effect> = effects.iter().collect();
                self.tell_effects(&effects).await;
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
            let mut commands = redis::pipe();
            commands.atomic();
            (commands.cmd("SETEX").arg(self.keys.worker(worker)))
                .arg(lives.as_secs().max(1))
                .arg(record)
                .ignore();
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
            let mut commands = redis::pipe();
            (commands.cmd("DEL").arg(self.keys.worker(worker))).ignore();
            (commands.cmd("ZREM").arg(self.keys.workers()).arg(worker)).ignore();
            let ended = self.redis.pipeline(&commands).await;
            ended.map_err(failed("DEL", &workers_name()))
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
            for names in names.chunks(READ_AT_ONCE) {
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
            let mut call = EffectCall::new(self.keys.ended(id));
            call.args.push(seconds(END_KEPT));
            call.args.push(Arg::Bytes(at.as_bytes()));
            for effect in effects {
                call.effect(self, &name, b"", effect);
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
                command.arg(self.keys.ended(id));
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
                command.arg(self.keys.ended(id));
            }
            let removed: Result<i64, _> = self.redis.command(&command).await;
            removed.map(drop).map_err(failed("DEL", &ends_name()))
        })
    }

    fn holds(&self, place: &LockPlace) -> bool {
        matches!(place, LockPlace::Redis { server, .. } if self.redis.is_same_database(server))
    }
}
