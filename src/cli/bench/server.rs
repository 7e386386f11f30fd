//! What has to be known of the server.

use anyhow::Context as _;

use super::args::{Load, bytes};
use crate::cli::info::Info;
use crate::connection::{Error, Redis};

/// The server before the benchmark begins.
pub(super) struct Server {
    pub(super) version: String,
    /// Memory that is free, as far as it tells.
    pub(super) free: Option<u64>,
    /// Clients beside this process.
    pub(super) others: u64,
}

impl Server {
    /// Looks at the server; fails if it has too little memory for the load.
    pub(super) async fn look(redis: &Redis, load: &Load) -> anyhow::Result<Self> {
        let info = Info::of(redis, &["server", "memory", "clients"]).await;
        let info = info.context("the server does not say how much memory is free")?;
        let free = free(&info);
        let (needed, most) = (load.memory(), free.unwrap_or(u64::MAX) / 4);
        anyhow::ensure!(
            needed <= most,
            "these jobs take {} of Redis' memory, and bench takes at most a quarter of the {} that are free: give fewer --jobs or a smaller --size",
            bytes(needed),
            bytes(free.unwrap_or_default())
        );
        let clients = info.number::<u64>("connected_clients").unwrap_or(1);
        Ok(Self {
            version: info.field("redis_version").unwrap_or("unknown").to_owned(),
            free,
            others: clients.saturating_sub(1),
        })
    }
}

/// Memory below `maxmemory`; without that limit, below the memory of the machine.
fn free(info: &Info) -> Option<u64> {
    let limits = ["maxmemory", "total_system_memory"];
    let mut limits = limits.iter().filter_map(|name| info.number::<u64>(name));
    let limit = limits.find(|limit| *limit > 0)?;
    Some(limit.saturating_sub(info.number("used_memory")?))
}

/// Seconds of CPU that the server has used.
pub(super) async fn cpu(redis: &Redis) -> Result<f64, Error> {
    let info = Info::of(redis, &["cpu"]).await?;
    let parts = ["used_cpu_user", "used_cpu_sys"];
    Ok(parts
        .iter()
        .filter_map(|name| info.number::<f64>(name))
        .sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_counted_from_the_limit_that_is_set() {
        #[rustfmt::skip]
        let rows = [
            ("used_memory:10\r\nmaxmemory:100\r\ntotal_system_memory:1000", Some(90)),
            ("used_memory:10\r\nmaxmemory:0\r\ntotal_system_memory:1000", Some(990)),
            ("used_memory:110\r\nmaxmemory:100", Some(0)),
            ("used_memory:10\r\nmaxmemory:0", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(free(&Info(text.to_owned())), expected, "{text}");
        }
    }
}
