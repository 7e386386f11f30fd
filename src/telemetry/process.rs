//! Figures of this process, under the names that Prometheus' own clients use.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::worker::resident_memory;

/// Processor time, memory and open files of this process.
#[derive(Debug, Default)]
pub(super) struct ProcessFigures {
    cpu: Counter<f64, AtomicU64>,
    memory: Gauge,
    files: Gauge,
    start: Gauge<f64, AtomicU64>,
}

impl ProcessFigures {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "process_cpu",
            "Processor time of this process, PHP processes and programs not included",
            Unit::Seconds,
            self.cpu.clone(),
        );
        registry.register_with_unit(
            "process_resident_memory",
            "Resident memory of this process",
            Unit::Bytes,
            self.memory.clone(),
        );
        registry.register(
            "process_open_fds",
            "Open file descriptors of this process",
            self.files.clone(),
        );
        registry.register_with_unit(
            "process_start_time",
            "When this process started, in unix seconds",
            Unit::Seconds,
            self.start.clone(),
        );
    }

    /// Reads the figures; those that the system does not tell stay as they were.
    pub(super) fn read(&self) {
        if let Some(bytes) = resident_memory() {
            self.memory.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.files
                .set(i64::try_from(files.count()).unwrap_or(i64::MAX));
        }
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some((cpu, start)) = times(&stat) {
            self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
            if let Some(boot) = boot_time() {
                self.start.set(boot + start);
            }
        }
    }
}

/// Processor time, and the time between the system's boot and the start, in seconds.
fn times(stat: &str) -> Option<(f64, f64)> {
    // The name of the program may contain blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let seconds = |field: usize| {
        let ticks: f64 = fields.get(field)?.parse().ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        Some(ticks / per_second)
    };
    // Fields 14, 15 and 22 of proc(5); the third is the first here.
    Some((seconds(11)? + seconds(12)?, seconds(19)?))
}

/// When the system was booted, in unix seconds.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_any_name() {
        let stat =
            "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 7000 1000 200 0";
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(times(stat), Some((300.0 / per_second, 7000.0 / per_second)));
        assert_eq!(times("42 (a"), None);
        assert_eq!(times("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let figures = ProcessFigures::default();
        figures.read();
        assert!(figures.memory.get() > 1 << 20);
        assert!(figures.files.get() > 2);
        assert!(figures.start.get() > 1e9);
    }
}
