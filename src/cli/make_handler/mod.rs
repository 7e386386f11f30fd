//! `make:handler`

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

mod expressions;
mod facts;
mod fields;
mod names;
mod render;
mod samples;
mod shape;
mod target;
mod types;

use self::render::render;
use self::samples::Samples;
use super::{GlobalArgs, UsageError, named, output};

/// Arguments of `make:handler`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct MakeHandlerArgs {
    /// Class of the job, listener, notification, mailable or broadcast event; name of an artisan command;
    /// `Class@method` of a string job
    #[arg(value_name = "CLASS")]
    class: String,

    /// Queue connection [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Queues to look into [default: all that there are]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    queue: Vec<String>,

    /// File with a payload per line; nothing else is looked at unless asked for
    #[arg(long, value_name = "FILE")]
    fixture: Vec<PathBuf>,

    /// Look at failed jobs; nothing else is looked at unless asked for
    #[arg(long)]
    failed: bool,

    /// Most jobs of the class to learn from
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,

    /// File to write, which must not be there yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(args: MakeHandlerArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let wanted = args.class.trim_start_matches('\\');
    if wanted.is_empty() {
        let said = "no class is named: try `artisand make:handler 'App\\Jobs\\X'`";
        return Err(UsageError(said.to_owned()).into());
    }
    let mut samples = Samples::new(wanted, usize::from(args.limit), &config);
    for path in &args.fixture {
        samples
            .read_fixture(path)
            .with_context(|| format!("could not read {}", path.display()))?;
    }
    let asks_for_queues = args.connection.is_some() || !args.queue.is_empty();
    let asks_for_nothing = args.fixture.is_empty() && !args.failed && !asks_for_queues;
    if asks_for_queues || asks_for_nothing {
        let connection = named(&config, args.connection.as_deref());
        let looked = samples.look_into_queues(&connection, &args.queue).await;
        samples.told(looked, asks_for_queues, "its queues")?;
    }
    if args.failed || asks_for_nothing {
        let looked = samples.look_at_failed_jobs().await;
        samples.told(looked, args.failed, "failed jobs")?;
    }
    let (about, inference) = samples.finish()?;
    let manifest = config.manifest().map(|(_, manifest)| manifest);
    let text = render(&about, inference, manifest).context("could not make the file")?;
    match &args.output {
        None => output::data(&text)?,
        Some(path) => File::create_new(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("could not write {}", path.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}
