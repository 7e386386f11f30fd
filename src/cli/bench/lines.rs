//! What `bench` prints, for people and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::args::{Load, bytes};
use super::drain::{Figures, Sample};
use super::latency::{JOBS, Latency, percentile};
use super::queue::OwnQueue;
use super::server::Server;
use crate::cli::output::{data, printable};

/// The output.
pub(super) struct Lines {
    pub(super) json: bool,
}

impl Lines {
    /// What is going to happen.
    pub(super) fn plan(
        &self,
        connection: &str,
        queue: &OwnQueue,
        load: &Load,
        server: &Server,
    ) -> anyhow::Result<()> {
        let (address, needed) = (queue.redis().address(), load.memory());
        if self.json {
            return line(&json!({
                "kind": "plan", "connection": connection, "server": address, "version": server.version,
                "keys": format!("{}*", queue.prefix()), "jobs": load.jobs, "size": load.size, "memory": needed,
                "free": server.free, "written": load.written(), "other_clients": server.others,
            }));
        }
        let free = server
            .free
            .map_or_else(String::new, |free| format!(" of {} free", bytes(free)));
        let others = match server.others {
            0 => "none".to_owned(),
            others => format!("{others}: the CPU of Redis includes their commands"),
        };
        let (connection, keys) = (printable(connection), printable(queue.prefix()));
        let Load { jobs, size, .. } = load;
        let (version, needed, written) = (&server.version, bytes(needed), bytes(load.written()));
        data(&format!(
            "
  server         [{connection}] {address}, version {version}
  keys           {keys}*, deleted at the end
  jobs           at most {jobs} at once of {size} bytes: {needed}{free}
  writes         {written} in all, also to the append-only file and to replicas
  other clients  {others}\n\n"
        ))
    }

    /// The head of the table of figures.
    pub(super) fn head(&self) -> anyhow::Result<()> {
        /// The head, in the columns of `figures`.
        const HEAD: &str = "                                           jobs/s   CPU of Redis, us     of this process
  concurrency    jobs   ratio  artisand     bare  artisand     bare  artisand     bare\n";
        if self.json { Ok(()) } else { data(HEAD) }
    }

    /// The figures of one concurrency.
    pub(super) fn figures(&self, figures: &Figures) -> anyhow::Result<()> {
        let (worker, bare, ratio) = (&figures.worker, &figures.bare, figures.ratio());
        let (concurrency, jobs) = (figures.concurrency, figures.jobs);
        if self.json {
            return line(&json!({
                "kind": "throughput", "concurrency": concurrency, "jobs": jobs, "artisand": sample(worker),
                "bare_loop": sample(bare), "ratio": hundredths(ratio),
            }));
        }
        let rates = format!(
            "{:>10.0}{:>9.0}",
            worker.jobs_per_second, bare.jobs_per_second
        );
        let redis = format!("{:>10.1}{:>9.1}", worker.redis, bare.redis);
        let own = format!("{:>10.1}{:>9.1}", worker.own, bare.own);
        data(&format!(
            "  {concurrency:>11}{jobs:>8}{ratio:>8.2}{rates}{redis}{own}\n"
        ))
    }

    /// The latency of an idle worker, and the end.
    pub(super) fn latency(&self, latency: &Latency) -> anyhow::Result<()> {
        let micros = |time: Duration| hundredths(time.as_secs_f64() * 1e6);
        let of = |times: &[Duration]| [50, 99].map(|part| micros(percentile(times, part)));
        let (started, settled) = (of(&latency.started), of(&latency.settled));
        if self.json {
            return line(&json!({
                "kind": "latency", "jobs": JOBS, "started_us": {"p50": started[0], "p99": started[1]},
                "settled_us": {"p50": settled[0], "p99": settled[1]},
            }));
        }
        let mut text = format!(
            "\n  {:34}{:>8}{:>10}\n",
            format!("idle worker, {JOBS} single jobs"),
            "p50",
            "p99"
        );
        for (what, [median, most]) in [
            ("push to start of the handler, us", started),
            ("push to job settled, us", settled),
        ] {
            writeln!(text, "  {what:34}{median:>8.0}{most:>10.0}")?;
        }
        data(&(text + "\n  Every job ran exactly once.\n\n"))
    }
}

fn sample(sample: &Sample) -> serde_json::Value {
    json!({
        "jobs_per_second": sample.jobs_per_second.round(),
        "redis_cpu_us": hundredths(sample.redis), "process_cpu_us": hundredths(sample.own),
    })
}

fn line(value: &serde_json::Value) -> anyhow::Result<()> {
    data(&format!("{value}\n"))
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
