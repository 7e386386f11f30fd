//! The arguments of `bench` and their bounds.

use std::num::NonZeroUsize;

use clap::value_parser;

use super::payload::SMALLEST;
use crate::cli::{UsageError, named};
use crate::config::Config;

/// What stands below the help.
pub(in crate::cli) const AFTER_HELP: &str = "\
Safe beside a running app: no key of the app is read or written. All keys begin with the app's prefix, artisand:bench: \
and a random name; they are deleted at the end, also after Ctrl-C, and expire within an hour if the process is killed. \
While it runs, Redis is as busy as it can be, and answers other clients later.\n\n\
Exit codes: 0 done, 1 error or stopped by a signal, 2 wrong usage or configuration";

/// Arguments of `bench`, as given.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct BenchArgs {
    /// Queue connection whose server is measured [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Most jobs to put into Redis at once; with low concurrency it is 5,000 for each slot
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    jobs: u32,

    /// Jobs running at the same time, one measurement for each of these numbers
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16,64,256", value_parser = value_parser!(u16).range(1..=1024))]
    concurrency: Vec<u16>,

    /// Size of one job
    #[arg(long, value_name = "BYTES", default_value_t = 650, value_parser = value_parser!(u32).range(i64::from(SMALLEST)..=1_000_000))]
    size: u32,

    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

/// What is put into Redis.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) jobs: u32,
    pub(super) size: u32,
    pub(super) concurrency: Vec<NonZeroUsize>,
}

/// Most bytes of jobs in Redis.
const MOST_BYTES: u64 = 512_000_000;
/// Most bytes of jobs that one call pops: Redis serves no other client meanwhile.
const MOST_AT_ONCE: u64 = 16_000_000;
/// How often each measurement is made; the figures are medians.
pub(super) const ROUNDS: u32 = 3;
/// Most jobs for each slot, so that one slot does not take minutes.
const JOBS_PER_SLOT: usize = 5_000;

impl BenchArgs {
    pub(super) fn connection(&self, config: &Config) -> String {
        named(config, self.connection.as_deref())
    }

    /// The load, if it is bearable.
    pub(super) fn load(&self) -> Result<Load, UsageError> {
        let widest = self.concurrency.iter().copied().max().unwrap_or(1);
        let size = u64::from(self.size);
        for (option, count, most, place) in [
            ("jobs", u64::from(self.jobs), MOST_BYTES, "in Redis"),
            ("concurrency", widest.into(), MOST_AT_ONCE, "at a time"),
        ] {
            let (taken, fitting) = (count * size, most / size);
            if taken > most {
                let (taken, most) = (bytes(taken), bytes(most));
                return Err(UsageError(format!(
                    "{count} jobs of {size} bytes are {taken}, and bench has at most {most} {place}: give --{option} {fitting} or less, or a smaller --size"
                )));
            }
        }
        let slots = self.concurrency.iter().map(|n| usize::from(*n));
        Ok(Load {
            jobs: self.jobs,
            size: self.size,
            concurrency: slots.filter_map(NonZeroUsize::new).collect(),
        })
    }
}

impl Load {
    /// How many jobs are run with this concurrency.
    pub(super) fn jobs_at(&self, concurrency: NonZeroUsize) -> u32 {
        let most = concurrency.get().saturating_mul(JOBS_PER_SLOT);
        self.jobs.min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// Bytes that Redis writes to its log and to its replicas, roughly: the worker's and the bare loop's jobs are each
    /// pushed, reserved and deleted.
    pub(super) fn written(&self) -> u64 {
        let jobs = self.concurrency.iter().map(|n| u64::from(self.jobs_at(*n)));
        jobs.sum::<u64>() * u64::from(ROUNDS * 2 * 3) * u64::from(self.size)
    }

    /// Memory that Redis needs, roughly: the waiting jobs with their notifications, and those that run.
    pub(super) fn memory(&self) -> u64 {
        let widest = self.concurrency.iter().max().map_or(1, |n| n.get() as u64);
        u64::from(self.jobs) * (u64::from(self.size) + 32) + widest * (u64::from(self.size) + 200)
    }
}

/// A number of bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    let (unit, name) = if bytes < 1_000_000_000 {
        (1_000_000, "MB")
    } else {
        (1_000_000_000, "GB")
    };
    format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_for_people() {
        let shown = [50_000, 12_640_000, 2_150_000_000].map(bytes);
        assert_eq!(shown, ["0.0 MB", "12.6 MB", "2.1 GB"]);
    }
}
