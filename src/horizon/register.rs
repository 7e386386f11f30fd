//! The worker among Horizon's masters and supervisors.
//!
//! A record with a missing field breaks pages of the dashboard and `horizon:terminate` for the whole app, so each is
//! written with one command, whole.

use std::collections::BTreeMap;

use redis::Pipeline;
use serde::Serialize;

use super::options::{HorizonOptions, Registration, Supervisor};
use crate::connection::{self, Redis};
use crate::queue::QueueName;
use crate::time::Micros;

/// Seconds that the record of a master lives without a heartbeat.
const MASTER_LIVES: u64 = 15;
/// Seconds that the record of a supervisor lives without a heartbeat.
const SUPERVISOR_LIVES: u64 = 30;
/// Seconds after which a master without a heartbeat no longer counts.
const MASTER_COUNTS: u64 = 14;
/// The same of a supervisor.
const SUPERVISOR_COUNTS: u64 = 29;
/// The last part of the name of a supervisor of this program. The first one is the name of its master.
const OWN: &str = ":artisand";

/// This worker's names and records.
#[derive(Debug)]
pub(super) struct Register<'a> {
    prefix: &'a str,
    worker: &'a Supervisor,
    master: String,
    supervisor: String,
}

/// The options of a supervisor as Horizon writes them; the dashboard and the commands read some of them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SupervisorOptions<'a> {
    /// `false`: no balancing between queues.
    balance: bool,
    connection: &'a str,
    queue: &'a str,
    max_processes: usize,
    min_processes: usize,
    max_tries: i64,
    name: &'a str,
    workers_name: &'static str,
    /// `horizon:terminate` waits this long, in seconds, and cannot end Horizon if it is missing.
    timeout: u64,
    parent_id: u32,
}

impl<'a> Register<'a> {
    pub(super) fn new(prefix: &'a str, worker: &'a Supervisor) -> Self {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(4)
            .collect();
        let master = match &worker.host {
            // By this beginning `horizon:pause`, `continue` and `terminate` find what runs on their host.
            Some(host) => format!("{host}-{random}"),
            None => format!("artisand-{random}"),
        };
        Self {
            prefix,
            worker,
            supervisor: format!("{master}{OWN}"),
            master,
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn queues(&self) -> String {
        let queues: Vec<&str> = self.worker.queues.iter().map(QueueName::as_str).collect();
        queues.join(",")
    }

    /// Writes the records anew.
    pub(super) fn beat(&self, pipeline: &mut Pipeline, is_paused: bool) {
        if self.worker.registration == Registration::Off {
            return;
        }
        let now = Micros::now().seconds();
        let (worker, pid) = (self.worker, pid());
        let status = if is_paused { "paused" } else { "running" };
        if worker.registration == Registration::Full {
            let supervisors = serde_json::json!([self.supervisor]).to_string();
            let key = self.key(&format!("master:{}", self.master));
            (pipeline.cmd("HSET").arg(&key))
                .arg(&["name", &self.master, "environment", &worker.environment])
                .arg("pid")
                .arg(pid)
                .arg(&["status", status, "supervisors", &supervisors])
                .ignore();
            let masters = self.key("masters");
            pipeline
                .cmd("ZADD")
                .arg(masters)
                .arg(now)
                .arg(&self.master)
                .ignore();
            pipeline.cmd("EXPIRE").arg(key).arg(MASTER_LIVES).ignore();
        }
        let queues = self.queues();
        let pool = format!("{}:{queues}", worker.connection);
        let processes = serde_json::json!(BTreeMap::from([(pool, worker.slots)])).to_string();
        let own = SupervisorOptions {
            balance: false,
            connection: &worker.connection,
            queue: &queues,
            max_processes: worker.slots,
            min_processes: worker.slots,
            max_tries: worker.tries,
            name: &self.supervisor,
            workers_name: "artisand",
            timeout: worker.timeout.as_secs(),
            parent_id: pid,
        };
        // Numbers and texts only, so that this cannot fail.
        let own = serde_json::to_string(&own).unwrap_or_default();
        let key = self.key(&format!("supervisor:{}", self.supervisor));
        (pipeline.cmd("HSET").arg(&key))
            .arg(&["name", &self.supervisor, "master", &self.master])
            .arg("pid")
            .arg(pid)
            .arg(&["status", status, "processes", &processes, "options", &own])
            .ignore();
        let supervisors = self.key("supervisors");
        pipeline
            .cmd("ZADD")
            .arg(supervisors)
            .arg(now)
            .arg(&self.supervisor)
            .ignore();
        pipeline
            .cmd("EXPIRE")
            .arg(key)
            .arg(SUPERVISOR_LIVES)
            .ignore();
    }

    /// Removes the records.
    pub(super) fn leave(&self, pipeline: &mut Pipeline) {
        if self.worker.registration == Registration::Off {
            return;
        }
        let [master, supervisor] = [
            format!("master:{}", self.master),
            format!("supervisor:{}", self.supervisor),
        ];
        let keys = [&master, &supervisor].map(|name| self.key(name));
        pipeline.cmd("DEL").arg(&keys).ignore();
        for (list, name) in [("masters", &self.master), ("supervisors", &self.supervisor)] {
            pipeline.cmd("ZREM").arg(self.key(list)).arg(name).ignore();
        }
    }
}

/// The process that Horizon's commands signal. The first process of a container has the number of another one outside:
/// then this is a number that no process has.
fn pid() -> u32 {
    const NONE: u32 = i32::MAX.unsigned_abs();
    match std::process::id() {
        1 => NONE,
        pid => pid,
    }
}

/// Masters and supervisors that live, by their names.
#[derive(Debug)]
pub(super) struct Alive {
    masters: Vec<String>,
    supervisors: Vec<String>,
}

impl Alive {
    /// Asks Horizon's Redis.
    pub(super) async fn ask(redis: &Redis, prefix: &str) -> Result<Self, connection::Error> {
        let now = Micros::now().seconds();
        let mut pipeline = Pipeline::new();
        for (list, counts) in [
            ("masters", MASTER_COUNTS),
            ("supervisors", SUPERVISOR_COUNTS),
        ] {
            (pipeline.cmd("ZRANGEBYSCORE").arg(format!("{prefix}{list}")))
                .arg(now.saturating_sub(counts))
                .arg("+inf");
        }
        let (masters, supervisors) = redis.pipeline(&pipeline).await?;
        Ok(Self {
            masters,
            supervisors,
        })
    }

    /// Whether a master runs in PHP.
    pub(super) fn has_master_in_php(&self) -> bool {
        let is_own = |master: &String| self.supervisors.contains(&format!("{master}{OWN}"));
        !self.masters.iter().all(is_own)
    }

    /// Whether a supervisor runs in PHP.
    pub(super) fn has_supervisor_in_php(&self) -> bool {
        !self.supervisors.iter().all(|name| name.ends_with(OWN))
    }
}

/// Removes old entries of silenced jobs, beside masters of Horizon too: those before 5.12 do not know their list.
pub(super) fn trim_silenced(options: &HorizonOptions, pipeline: &mut Pipeline) {
    trim_list(options, pipeline, "silenced_jobs", options.trim.completed);
}

fn trim_list(options: &HorizonOptions, pipeline: &mut Pipeline, list: &str, minutes: u64) {
    let now = Micros::now().seconds();
    let since = now.saturating_sub(minutes.saturating_mul(60));
    let key = format!("{}{list}", options.redis.prefix);
    (pipeline.cmd("ZREMRANGEBYSCORE").arg(key))
        .arg(format!("-{since}"))
        .arg("+inf")
        .ignore();
}

/// Removes other old entries, as a master of Horizon does; with `slow` also from the lists that are kept for long.
pub(super) fn trim(options: &HorizonOptions, pipeline: &mut Pipeline, slow: bool) {
    let now = Micros::now().seconds();
    let trim = &options.trim;
    let short = [
        ("recent_jobs", trim.recent),
        ("recent_failed_jobs", trim.recent_failed),
        ("pending_jobs", trim.pending),
        ("completed_jobs", trim.completed),
    ];
    let long = [
        ("failed_jobs", trim.failed),
        ("monitored_jobs", trim.monitored),
    ];
    for (list, minutes) in short.into_iter().chain(long.into_iter().filter(|_| slow)) {
        trim_list(options, pipeline, list, minutes);
    }
    for list in ["masters", "supervisors"] {
        let key = format!("{}{list}", options.redis.prefix);
        (pipeline.cmd("ZREMRANGEBYSCORE").arg(key))
            .arg("-inf")
            .arg(now.saturating_sub(MASTER_COUNTS))
            .ignore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_other_workers_of_artisand_do_not_count_as_horizons() {
        let own = ["web-1-abcd", "artisand-efgh"];
        #[rustfmt::skip]
        let rows: [(&[&str], &[&str], bool, bool); 5] = [
            // masters, supervisors => a master in PHP, a supervisor in PHP
            (&[], &[], false, false),
            (&own, &["web-1-abcd:artisand", "artisand-efgh:artisand"], false, false),
            (&own, &["web-1-abcd:supervisor-1", "artisand-efgh:artisand"], true, true),
            (&["web-1-abcd"], &[], true, false),
            // One that is not registered as a master.
            (&[], &["web-1-abcd:artisand"], false, false),
        ];
        for (masters, supervisors, master, supervisor) in rows {
            let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            let alive = Alive {
                masters: names(masters),
                supervisors: names(supervisors),
            };
            assert_eq!(alive.has_master_in_php(), master, "{alive:?}");
            assert_eq!(alive.has_supervisor_in_php(), supervisor, "{alive:?}");
        }
    }
}
