//! `make:handler`

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

mod names;
mod render;
mod samples;
mod types;

use self::render::render;
use self::samples::Samples;
use super::{GlobalArgs, UsageError, output};

/// Arguments of `make:handler`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct MakeHandlerArgs {
    /// Class of the job, listener, notification, mailable or broadcast event; name of an artisan command; `Class@method` of a string job
    #[arg(value_name = "CLASS")]
    class: String,

    /// Queue connection [default: `QUEUE_CONNECTION`, else redis]
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
        let connection = args.connection.clone();
        let connection = connection.unwrap_or_else(|| config.default_connection());
        let looked = samples.look_into_queues(&connection, &args.queue).await;
        told(looked, asks_for_queues, &mut samples, "its queues")?;
    }
    if args.failed || asks_for_nothing {
        let looked = samples.look_at_failed_jobs().await;
        told(looked, args.failed, &mut samples, "failed jobs")?;
    }
    let (about, inference) = samples.finish()?;
    let manifest = config.manifest().map(|(_, manifest)| manifest);
    let text = render(&about, inference, manifest);
    match &args.output {
        None => output::data(&text)?,
        Some(path) => {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path);
            let written = file
                .as_mut()
                .map_err(|error| std::io::Error::new(error.kind(), error.to_string()))
                .and_then(|file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("could not write {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A source that was asked for must be there; of the others it is said that they are not.
fn told(
    looked: anyhow::Result<()>,
    was_asked_for: bool,
    samples: &mut Samples<'_>,
    source: &str,
) -> anyhow::Result<()> {
    match looked {
        Err(error) if was_asked_for => Err(error),
        Err(error) => {
            samples.could_not_look(source, &error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether a job document leaves a property out, or it says how a job is run and not what it does.
fn is_laravels(name: &str) -> bool {
    const LIMITS: [&str; 10] = [
        "backoff",
        "debounceFor",
        "deleteWhenMissingModels",
        "failOnTimeout",
        "maxExceptions",
        "retryUntil",
        "shouldBeEncrypted",
        "timeout",
        "tries",
        "uniqueFor",
    ];
    crate::payload::is_bookkeeping(name) || LIMITS.contains(&name)
}

/// Of an event: the socket of who caused it, too.
fn is_laravels_of_event(name: &str) -> bool {
    name == "socket" || is_laravels(name)
}

/// Of a notification: what the view has.
fn is_laravels_of_notification(name: &str) -> bool {
    matches!(name, "id" | "locale") || is_laravels(name)
}

/// Of a mailable: the properties of Laravel's own class, which the view has.
fn is_laravels_of_mailable(name: &str) -> bool {
    const MAILABLE: [&str; 21] = [
        "assertionableRenderStrings",
        "attachments",
        "bcc",
        "callbacks",
        "cc",
        "diskAttachments",
        "from",
        "html",
        "locale",
        "mailer",
        "markdown",
        "metadata",
        "rawAttachments",
        "replyTo",
        "subject",
        "tags",
        "textView",
        "theme",
        "to",
        "view",
        "viewData",
    ];
    MAILABLE.contains(&name) || is_laravels(name)
}
