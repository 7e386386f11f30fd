//! The worker of `benches/drain`: handlers of different weight that count their jobs.
//!
//! When it ends it writes to the file `$BENCH_COUNTS` how many different jobs ran, and how many ran more than once.

use std::process::ExitCode;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use artisand::{JobContext, Registry, handler};

/// The job of the benchmark.
#[derive(serde::Deserialize)]
struct Counted {
    n: usize,
}

static RUNS: LazyLock<Mutex<Vec<u8>>> = LazyLock::new(Mutex::default);

fn count(job: &Counted) {
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if runs.len() <= job.n {
        runs.resize((job.n + 1).next_power_of_two(), 0);
    }
    runs[job.n] = runs[job.n].saturating_add(1);
}

type Done = Result<(), std::convert::Infallible>;

async fn typed(job: Counted, _: JobContext) -> Done {
    count(&job);
    Ok(())
}

async fn sleeps(job: Counted, _: JobContext) -> Done {
    tokio::time::sleep(Duration::from_millis(1)).await;
    count(&job);
    Ok(())
}

async fn sleeps_long(job: Counted, _: JobContext) -> Done {
    tokio::time::sleep(Duration::from_secs(2)).await;
    count(&job);
    Ok(())
}

async fn computes(job: Counted, _: JobContext) -> Done {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(200) {
        std::hint::spin_loop();
    }
    count(&job);
    Ok(())
}

fn main() -> ExitCode {
    let registry = Registry::new()
        .with("typed", handler::function(typed))
        .with("sleeps", handler::function(sleeps))
        .with("sleeps_long", handler::function(sleeps_long))
        .with("computes", handler::function(computes));
    let code = artisand::cli::run(registry);
    if let Some(file) = std::env::var_os("BENCH_COUNTS") {
        let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut once, mut more) = (0, 0);
        for runs in &*runs {
            once += usize::from(*runs == 1);
            more += usize::from(*runs > 1);
        }
        if std::fs::write(file, format!("{once} {more}")).is_err() {
            return ExitCode::FAILURE;
        }
    }
    code
}
