//! The Redis server: its version, role, memory, persistence and clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cli::info::Info;
use crate::cli::report::Report;
use crate::connection::Redis;
use crate::shown::with_causes;

/// Asks the server about itself.
pub(super) async fn check(redis: &Redis) -> Report {
    let mut report = Report::default();
    let sections = ["server", "memory", "persistence", "replication"];
    let info = match Info::of(redis, &sections).await {
        Ok(info) => info,
        Err(error) => {
            report.warn(
                "redis",
                with_causes(&error),
                "allow this user INFO, so that more can be checked",
            );
            return report;
        }
    };
    report.extend(server(&info, redis.address()));
    let mut command = ::redis::cmd("CONFIG");
    let active = command.arg("GET").arg("active-replica");
    let active = redis.command::<Vec<String>>(active).await;
    if active.is_ok_and(|pair| pair.get(1).is_some_and(|value| value == "yes")) {
        report.warn(
            "redis",
            "active-replica is on: two servers take writes, and a job that waits can be popped on both",
            "let the app and all workers use one of them, or turn active-replica off",
        );
    }
    let saves = redis
        .command::<Vec<String>>(::redis::cmd("CONFIG").arg("GET").arg("save"))
        .await
        .ok()
        .and_then(|pair| pair.into_iter().nth(1));
    report.extend(persistence(&info, saves.as_deref()));
    if let Ok((seconds, micros)) = redis.command::<(u64, u64)>(&::redis::cmd("TIME")).await {
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let here = SystemTime::now().duration_since(UNIX_EPOCH);
        report.extend(clock(here.unwrap_or_default().abs_diff(theirs)));
    }
    report
}

fn server(info: &Info, address: impl std::fmt::Display) -> Report {
    let mut report = Report::default();
    let version = info.field("redis_version").unwrap_or("unknown");
    match info.field("valkey_version") {
        // For clients it claims a version of Redis as well.
        Some(valkey) => report.ok("redis", format!("{address}, Valkey {valkey}")),
        None => report.ok("redis", format!("{address}, version {version}")),
    }
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .unwrap_or(99);
    if major < 3 {
        report.warn(
            "redis",
            format!("version {version} is not tested"),
            "use Redis 5 or later",
        );
    }
    if info.field("role") == Some("slave") {
        report.error(
            "redis",
            "the server is a replica, which takes no writes",
            "connect to its master",
        );
    }
    let (policy, limit) = (
        info.field("maxmemory_policy").unwrap_or(""),
        info.field("maxmemory").unwrap_or("0"),
    );
    if limit != "0" && policy != "noeviction" && !policy.is_empty() {
        report.warn("redis", format!("maxmemory-policy is {policy}: a full server deletes keys, and with them jobs or locks"), "set maxmemory-policy noeviction, and keep the cache on another server");
    }
    report
}

/// Whether jobs outlive the server; `saves` is its setting for snapshots, which managed servers do not reveal.
fn persistence(info: &Info, saves: Option<&str>) -> Report {
    let mut report = Report::default();
    match (info.field("aof_enabled"), saves) {
        (Some("1"), _) | (_, None) => {}
        (_, Some("")) => report.warn(
            "redis",
            "nothing is written to disk: jobs are gone when the server restarts",
            "set appendonly yes",
        ),
        (_, Some(_)) => report.warn(
            "redis",
            "only snapshots are written to disk: a crash loses the jobs of the last minutes",
            "set appendonly yes, or accept that",
        ),
    }
    report
}

fn clock(skew: Duration) -> Report {
    let mut report = Report::default();
    if skew > Duration::from_secs(2) {
        report.warn("clock", format!("this machine and Redis differ by {:.1} s; delays and reservations are counted by the clock of each worker", skew.as_secs_f64()), "run a time service on all machines");
    } else {
        report.ok(
            "clock",
            format!("{} ms from that of Redis", skew.as_millis()),
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_loses_jobs_is_a_warning() {
        #[rustfmt::skip]
        let rows = [
            // what INFO says, snapshots => levels of the findings
            ("redis_version:7.2.4\r\nrole:master\r\nmaxmemory:0\r\naof_enabled:1", Some(""), "ok"),
            ("redis_version:7.2.4\r\naof_enabled:0", None, "ok"),
            ("redis_version:7.2.4\r\naof_enabled:0", Some(""), "ok warning"),
            ("redis_version:7.2.4\r\naof_enabled:0", Some("3600 1"), "ok warning"),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.1\r\naof_enabled:1", None, "ok"),
            ("redis_version:2.8.0\r\naof_enabled:1", None, "ok warning"),
            ("redis_version:7.2.4\r\nrole:slave\r\naof_enabled:1", None, "ok error"),
            ("redis_version:7.2.4\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1", None, "ok warning"),
            ("redis_version:7.2.4\r\nmaxmemory:9\r\nmaxmemory_policy:noeviction\r\naof_enabled:1", None, "ok"),
        ];
        for (text, saves, expected) in rows {
            let info = Info(text.to_owned());
            let mut report = server(&info, "127.0.0.1:6379");
            report.extend(persistence(&info, saves));
            assert_eq!(report.levels(), expected, "{text} {saves:?}");
        }
    }

    #[test]
    fn clocks_may_differ_by_two_seconds() {
        assert_eq!(clock(Duration::from_secs(2)).levels(), "ok");
        assert_eq!(clock(Duration::from_millis(2001)).levels(), "warning");
    }
}
