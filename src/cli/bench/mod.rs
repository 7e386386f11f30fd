//! `bench`: what a worker does on this machine with this Redis, beside the least that any worker can do.

use std::num::NonZeroUsize;
use std::process::ExitCode;

mod args;
mod drain;
mod latency;
mod lines;
mod payload;
mod queue;
mod server;
mod setup;

pub(super) use args::{AFTER_HELP, BenchArgs};
use lines::Lines;
use queue::OwnQueue;
use server::Server;
use setup::Setup;

use super::work::Runtimes;
use super::{GlobalArgs, UsageError, block_on, connection, output};
use crate::shown::with_causes;
use crate::worker::Control;

/// Measures, and deletes what it has put into Redis, however it ends.
pub(super) fn run(args: &BenchArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let load = args.load()?;
    let config = global.load_config()?;
    let name = args.connection(&config);
    let settings = block_on(async { Ok(connection(&config, &name).await?) })?;
    let runtimes = Runtimes::new(true, NonZeroUsize::MIN, NonZeroUsize::MIN)?;
    let control = Control::new();
    let obeying = runtimes.obey_signals(&control)?;
    let ended = runtimes.block_on(async {
        setup::obey_hangups(&control)?;
        let Some(redis) = settings.redis() else {
            let problem = format!("queue:bench measures Redis, and `{name}` is in a database");
            return Err(UsageError(problem).into());
        };
        if redis.is_cluster() {
            let problem = format!("queue:bench measures one Redis server, and `{name}` is on a cluster: name a connection on a single server of the same kind");
            return Err(UsageError(problem).into());
        }
        let queue = OwnQueue::new(redis.clone())?;
        let server = Server::look(queue.redis(), &load).await?;
        queue.refuse_others().await?;
        let lines = Lines { json: args.json };
        lines.plan(&name, &queue, &load, &server)?;
        let setup = Setup {
            queue,
            load,
            control,
            overseer: runtimes.overseer(),
        };
        let measured = measure(&setup, &lines).await;
        if let Err(error) = setup.queue.delete().await {
            output::notice(&format!(
                "The keys {}* could not be deleted: {}. Redis deletes them within an hour",
                setup.queue.prefix(),
                with_causes(&error)
            ));
        }
        measured
    });
    obeying.abort();
    runtimes.shut_down();
    ended.map(|()| ExitCode::SUCCESS)
}

async fn measure(setup: &Setup, lines: &Lines) -> anyhow::Result<()> {
    lines.head()?;
    for concurrency in &setup.load.concurrency {
        lines.figures(&drain::measure(setup, *concurrency).await?)?;
    }
    lines.latency(&latency::measure(setup).await?)
}
