//! Throughput: a worker and the bare loop drain the same queue, in turn.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use redis::Script;
use rustix::time::{ClockId, clock_gettime};

use super::args::ROUNDS;
use super::payload::END;
use super::server;
use super::setup::{Setup, go_on};
use crate::connection::Arg;
use crate::time::Clock;
use crate::worker::StopReason;

/// Medians of the rounds with one concurrency.
pub(super) struct Figures {
    pub(super) concurrency: NonZeroUsize,
    pub(super) jobs: u32,
    pub(super) worker: Sample,
    pub(super) bare: Sample,
}

/// What draining the queue took.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) jobs_per_second: f64,
    /// Microseconds of CPU per job, of the whole server.
    pub(super) redis: f64,
    /// Microseconds of CPU per job, of this process.
    pub(super) own: f64,
}

impl Figures {
    pub(super) fn ratio(&self) -> f64 {
        self.worker.jobs_per_second / self.bare.jobs_per_second
    }
}

/// Measures one concurrency.
pub(super) async fn measure(setup: &Setup, concurrency: NonZeroUsize) -> anyhow::Result<Figures> {
    let jobs = setup.load.jobs_at(concurrency);
    let (mut worker, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        setup.fill(jobs).await?;
        let drained = by_worker(setup, jobs, concurrency);
        worker.push(sampled(setup, jobs, drained).await?);
        setup.fill(jobs).await?;
        let drained = by_bare_loop(setup, jobs, concurrency);
        bare.push(sampled(setup, jobs, drained).await?);
    }
    Ok(Figures {
        concurrency,
        jobs,
        worker: medians(&worker),
        bare: medians(&bare),
    })
}

async fn sampled(
    setup: &Setup,
    jobs: u32,
    drained: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Sample> {
    let redis = setup.queue.redis();
    let (redis_before, own_before) = (server::cpu(redis).await?, own_cpu());
    let began = Instant::now();
    drained.await?;
    let seconds = began.elapsed().as_secs_f64();
    let own = own_cpu().saturating_sub(own_before).as_secs_f64();
    let per_job = |seconds: f64| seconds * 1e6 / f64::from(jobs);
    Ok(Sample {
        jobs_per_second: f64::from(jobs) / seconds,
        redis: per_job(server::cpu(redis).await? - redis_before),
        own: per_job(own),
    })
}

/// CPU time of this process.
fn own_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

fn medians(samples: &[Sample]) -> Sample {
    let median = |of: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Sample {
        jobs_per_second: median(|sample| sample.jobs_per_second),
        redis: median(|sample| sample.redis),
        own: median(|sample| sample.own),
    }
}

/// Drains the queue as `queue:work` does, and checks that each job ran once.
async fn by_worker(setup: &Setup, jobs: u32, concurrency: NonZeroUsize) -> anyhow::Result<()> {
    let runs: Arc<[AtomicU32]> = (0..jobs).map(|_| AtomicU32::new(0)).collect();
    let counted = Arc::clone(&runs);
    let worker = setup.worker(concurrency, true, move |n| {
        if let Some(runs) = counted.get(n) {
            runs.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    let control = setup.control.clone();
    let working = tokio::spawn(async move { worker.run(&control).await });
    let report = working.await.context("the worker ended abnormally")?;
    go_on(&setup.control)?;
    let reason = report.reason;
    anyhow::ensure!(
        reason == StopReason::QueueEmpty,
        "the worker stopped early: {reason}"
    );
    let is_wrong = |runs: &&AtomicU32| runs.load(Ordering::Relaxed) != 1;
    let wrong = runs.iter().filter(is_wrong).count();
    anyhow::ensure!(
        wrong == 0,
        "{wrong} of {jobs} jobs did not run exactly once, unless something else changed the keys {}*",
        setup.queue.prefix()
    );
    Ok(())
}

/// The least that a worker can do: takes as many jobs as there are slots with one script, and deletes them with one
/// command.
async fn by_bare_loop(setup: &Setup, jobs: u32, batch: NonZeroUsize) -> anyhow::Result<()> {
    let script = Script::new(&format!(
        "local jobs = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
         if #jobs == 0 then return jobs end
         local members = {{}}
         for i, job in ipairs(jobs) do
           jobs[i] = string.sub(job, 1, -{}) .. '1}}'
           members[i * 2 - 1], members[i * 2] = ARGV[2], jobs[i]
         end
         redis.call('ZADD', KEYS[2], unpack(members))
         redis.call('LTRIM', KEYS[1], #jobs, -1)
         return jobs",
        END.len() + 1
    ));
    let (redis, control) = (setup.queue.redis().clone(), setup.control.clone());
    let keys = [setup.queue.list(), setup.queue.reserved()];
    let batch = Arg::Int(i64::try_from(batch.get())?);
    // On the runtime's own thread, as the worker.
    let looping = tokio::spawn(async move {
        let mut done = 0;
        loop {
            go_on(&control)?;
            let ends = Arg::Int(Clock::System.now().0 + 60);
            let jobs: Vec<Vec<u8>> = redis.script(&script, &keys, &[batch.clone(), ends]).await?;
            if jobs.is_empty() {
                return anyhow::Ok(done);
            }
            let remove = redis::cmd("ZREM").arg(&keys[1]).arg(&jobs).take();
            done += redis.command::<u32>(&remove).await?;
        }
    });
    let done = looping.await.context("the bare loop ended abnormally")??;
    anyhow::ensure!(
        done == jobs,
        "the bare loop deleted {done} of {jobs} jobs, so something else changed the keys {}*",
        setup.queue.prefix()
    );
    Ok(())
}
