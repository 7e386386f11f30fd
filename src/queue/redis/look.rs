//! Shows what a queue holds; no job moves.

use std::collections::{BTreeMap, BTreeSet};

use super::{RedisQueue, failed};
use crate::connection::Redis;
use crate::queue::{Due, Error, Place, QueueName, Sizes, Spool};
use crate::time::UnixSeconds;

/// Queues found in the database, by key prefix.
pub(crate) type QueuesByPrefix = BTreeMap<String, BTreeSet<String>>;

/// The queues that have keys in a database, by the prefix of the keys.
pub(crate) async fn queues_by_prefix(
    server: &Redis,
) -> Result<QueuesByPrefix, crate::connection::Error> {
    /// Enough for any app; a database of a hundred million cache keys must not delay the command for minutes.
    const MOST_SCANS: usize = 2_000;
    let mut found = QueuesByPrefix::new();
    for master in server.masters().await? {
        find_queues(&master, MOST_SCANS, &mut found).await?;
    }
    Ok(found)
}

/// Adds the queues that have keys on one server.
async fn find_queues(
    server: &Redis,
    most_scans: usize,
    found: &mut QueuesByPrefix,
) -> Result<(), crate::connection::Error> {
    let mut cursor = 0_u64;
    for _ in 0..most_scans {
        let mut command = redis::cmd("SCAN");
        command
            .arg(cursor)
            .arg("MATCH")
            .arg("*queues:*")
            .arg("COUNT")
            .arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = server.command(&command).await?;
        for key in keys {
            let key = String::from_utf8_lossy(&key).into_owned();
            // `illuminate:queues:paused` and Horizon's keys are not queues.
            let Some((prefix, name)) = key.split_once("queues:") else {
                continue;
            };
            if prefix.ends_with("illuminate:") || prefix.contains("horizon:") {
                continue;
            }
            let suffixes = [":delayed", ":reserved", ":notify", ":quarantine"];
            let name = suffixes
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            found
                .entry(prefix.to_owned())
                .or_default()
                .insert(name.to_owned());
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    Ok(())
}

impl RedisQueue {
    pub(super) async fn names(&self) -> Result<Vec<QueueName>, Error> {
        let found = queues_by_prefix(&self.redis).await;
        let found = found.map_err(failed("SCAN", &QueueName::from("*")))?;
        let own = found.get(self.redis.prefix()).into_iter().flatten();
        Ok(own.map(|name| self.keys.queue_named(name)).collect())
    }

    pub(super) async fn range(
        &self,
        queue: &QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let (verb, key) = match place {
            Place::Pending => ("LRANGE", self.keys.list(queue)),
            Place::Delayed => ("ZRANGE", self.keys.delayed(queue)),
            Place::Reserved => ("ZRANGE", self.keys.reserved(queue)),
            Place::Quarantine => ("LRANGE", self.keys.quarantine(queue)),
        };
        let last = from.saturating_add(limit - 1);
        let command = redis::cmd(verb).arg(key).arg(from).arg(last).take();
        (self.redis.command(&command).await).map_err(failed(verb, queue))
    }

    pub(super) async fn count(&self, queue: &QueueName) -> Result<Sizes, Error> {
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

    pub(super) async fn count_due(
        &self,
        queue: &QueueName,
        now: UnixSeconds,
    ) -> Result<Due, Error> {
        let count = |key: String| async move {
            let count = redis::cmd("ZCOUNT").arg(key).arg("-inf").arg(now.0).take();
            (self.redis.command::<u64>(&count).await).map_err(failed("ZCOUNT", queue))
        };
        let delayed = count(self.keys.delayed(queue)).await?;
        let reserved = match self.options.retry_after {
            Some(_) => count(self.keys.reserved(queue)).await?,
            // Reservations do not end.
            None => 0,
        };
        Ok(Due { delayed, reserved })
    }

    pub(super) async fn scan_quarantines(&self) -> Result<Vec<QueueName>, Error> {
        let prefix = format!("{}queues:", self.redis.prefix());
        let mut names = Vec::new();
        for key in self.scan(&prefix, ":quarantine").await? {
            let name = key.strip_prefix(&prefix);
            let name = name.and_then(|name| name.strip_suffix(":quarantine"));
            names.extend(name.map(|name| self.keys.queue_named(name)));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The queues of a cluster that have records of their own, in whatever state the set of their names is.
    pub(super) async fn scan_homes(&self) -> Result<Vec<QueueName>, Error> {
        let mut homes = Vec::new();
        for spool in Spool::ALL {
            let prefix = format!("{}{}:", self.redis.prefix(), spool.key());
            let keys = self.scan(&prefix, "").await?;
            homes.extend(keys.iter().filter_map(|key| self.keys.home_of(spool, key)));
        }
        homes.sort();
        homes.dedup();
        Ok(homes)
    }

    /// All keys that begin and end so.
    async fn scan(&self, prefix: &str, suffix: &str) -> Result<Vec<String>, Error> {
        let pattern = format!("{}*{suffix}", escape_glob(prefix));
        let any = QueueName::from("*");
        let masters = self.redis.masters().await;
        let mut found = Vec::new();
        for master in masters.map_err(failed("SCAN", &any))? {
            let mut cursor = 0_u64;
            loop {
                let mut command = redis::cmd("SCAN");
                (command.arg(cursor).arg("MATCH").arg(&pattern)).arg(&["COUNT", "1000"]);
                let scanned: Result<(u64, Vec<String>), _> = master.command(&command).await;
                let (next, keys) = scanned.map_err(failed("SCAN", &any))?;
                found.extend(keys);
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }
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
