//! `init`: writes a first `artisand.toml` and, with `--worker`, a crate for a custom worker.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::style::Screen;
use super::{GlobalArgs, UsageError};
use crate::app::is_app;

/// Arguments of `init`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct InitArgs {
    /// Also write a crate with this name, for a worker with handlers in Rust
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,

    /// Where that crate gets artisand: the directory of its source, or the URL of its git repository
    #[arg(long, value_name = "DIR|URL", requires = "worker")]
    source: Option<String>,
}

pub(super) fn run(args: &InitArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let worker = match &args.worker {
        Some(name) => {
            check_name(name)?;
            Some((name, dependency(args.source.as_deref())?))
        }
        None => None,
    };
    let mut screen = Screen::new(global);
    let settings = Path::new("artisand.toml");
    if worker.is_some() && settings.exists() {
        screen.info("[artisand.toml] is there already, and stays as it is.")?;
    } else {
        write_new(settings, &settings_text(global)?)?;
        screen.info("[artisand.toml] created: `artisand doctor` says what else is needed.")?;
    }
    if let Some((name, dependency)) = worker {
        write_worker(name, args.source.as_deref(), &dependency)?;
        screen.info(&format!(
            "Crate [{name}] created: `cargo run --manifest-path {name}/Cargo.toml -- queue:work` works with it. For production, `cargo build --release --manifest-path {name}/Cargo.toml` makes {name}/target/release/{name}."
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let mut file = match File::create_new(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            anyhow::bail!("{shown} is there already, and is not overwritten: move it away first");
        }
        Err(error) => {
            return Err(anyhow::Error::from(error).context(format!("could not create {shown}")));
        }
    };
    file.write_all(text.as_bytes())
        .with_context(|| format!("could not write {shown}"))
}

/// A text as a TOML value.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn settings_text(global: &GlobalArgs) -> anyhow::Result<String> {
    let here = std::env::current_dir().context("the current directory cannot be read")?;
    let app = match &global.app {
        Some(app) if !is_app(app) => {
            return Err(UsageError(format!(
                "{} is no Laravel app: it has no `artisan` or no `bootstrap/app.php`",
                app.display()
            ))
            .into());
        }
        Some(app) => {
            let app = std::path::absolute(app).context("the directory of the app")?;
            let app = app
                .to_str()
                .context("the directory of the app is not UTF-8")?;
            format!("# The app: its configuration says where Redis is.\napp = {}\n", quoted(app))
        }
        None if is_app(&here) => {
            "# The app is the directory in which artisand runs. Elsewhere:\n# app = \"/var/www/app\"\n"
                .to_owned()
        }
        None => "# The app: its configuration says where Redis is.\n# app = \"/var/www/app\"\n".to_owned(),
    };
    Ok(app + SETTINGS)
}

/// The settings after `app`. All of them are defaults or comments.
const SETTINGS: &str = r#"
# Everything that can be set is in docs/configuration.md; `artisand doctor` reads this file
# and says what is wrong.

[worker]
# Jobs that run here at the same time, in Rust or in programs.
# concurrency = 16

# Jobs that no mapping names: "php" runs them in PHP processes, as `php artisan queue:work`
# does, "leave" leaves them in their queue, "forward" moves them to another `queue`, "fail"
# fails them.
# [unmapped]
# policy = "php"

# [php]
# processes = 1

# A mapping says what runs the jobs of a class; the first one that matches counts. Class names
# stand in single quotes.
# [[map]]
# job = 'App\Jobs\SendReceipt'           # also a glob, 'App\Jobs\Reports\*', or '/a regex/'
# handler = "send_receipt"               # a handler in Rust, of your own worker
# mode = "shadow"                        # first look: PHP still runs them
# canary = 5                             # then a part of them, in per cent

# [[map]]
# job = 'App\Jobs\MakeInvoice'
# handler = { exec = ["python3", "invoice.py"] }   # the job as JSON on standard input

# [[map]]
# listener = 'App\Listeners\SendShipmentNotification'
# handler = { http = "http://127.0.0.1:9000/shipments" }   # the job as the body of a POST
"#;

/// Refuses names that cargo would not accept for a package.
fn check_name(name: &str) -> Result<(), UsageError> {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let is_name = name.starts_with(is_first) && name.chars().all(is_inner);
    if is_name && !matches!(name, "artisand" | "test" | "core" | "std") {
        return Ok(());
    }
    let problem =
        "expected the name of a new crate: letters, digits, `-` and `_`, such as my-worker";
    Err(UsageError(format!("`--worker` is `{name}`, {problem}")))
}

/// Where the crate gets artisand, in the words of its manifest. No registry has it: a crate of its name would be
/// another's.
fn dependency(source: Option<&str>) -> anyhow::Result<String> {
    let usage = |problem: &str| {
        UsageError(format!(
            "{problem} `--source` is the directory of artisand's source (`--source=/path/to/artisand`) or the URL of its git repository (`--source=https://..`)"
        ))
    };
    let source = source.ok_or_else(|| usage("`--worker` needs `--source`:"))?;
    let is_url = source.contains("://") || source.starts_with("git@");
    if is_url {
        return Ok(format!("{{ git = {} }}", quoted(source)));
    }
    let directory = std::path::absolute(source).context("the directory of the source")?;
    if !directory.join("Cargo.toml").is_file() {
        let shown = directory.display();
        return Err(usage(&format!("there is no Cargo.toml in {shown}:")).into());
    }
    let directory = directory.to_str();
    let directory = directory.context("the directory of the source is not UTF-8")?;
    Ok(format!("{{ path = {} }}", quoted(directory)))
}

fn write_worker(name: &str, source: Option<&str>, dependency: &str) -> anyhow::Result<()> {
    let directory = Path::new(name);
    let made = std::fs::create_dir(directory);
    made.with_context(|| format!("could not create the directory {name}"))?;
    std::fs::create_dir(directory.join("src")).context("could not create its directory src")?;
    let manifest = format!(
        r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[dependencies]
artisand = {dependency}
serde = {{ version = "1", features = ["derive"] }}
# For handlers that wait: timers, sockets, files.
tokio = {{ version = "1", features = ["time"] }}

# A workspace of its own, wherever it stands.
[workspace]
"#
    );
    write_new(&directory.join("Cargo.toml"), &manifest)?;
    write_new(&directory.join(".gitignore"), "/target\n")?;
    if let Some(lock) = source.map(|source| Path::new(source).join("Cargo.lock"))
        && lock.is_file()
    {
        // The versions that artisand was tested with.
        std::fs::copy(&lock, directory.join("Cargo.lock"))
            .with_context(|| format!("could not copy {}", lock.display()))?;
    }
    write_new(&directory.join("src/main.rs"), MAIN)
}

const MAIN: &str = r#"//! A worker of your own: all of artisand, with handlers in Rust.

use std::process::ExitCode;

use artisand::cli::Application;
use artisand::handler::BoxError;
use artisand::{JobContext, Registry, handler};
use serde::Deserialize;

fn main() -> ExitCode {
    // The names are those of `handler` in artisand.toml.
    let registry = Registry::new().with("send_receipt", handler::function(send_receipt));
    Application::new(registry)
        .named(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .run()
}

/// The properties of `App\Jobs\SendReceipt`. `artisand make:handler 'App\Jobs\Yours'` prints
/// the struct and the handler of a class, from jobs that wait.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SendReceipt {
    order_id: u64,
    note: Option<String>,
}

async fn send_receipt(job: SendReceipt, context: JobContext) -> Result<(), BoxError> {
    // As long as it is not written it fails, so that no job counts as done.
    let attempt = context.attempts();
    Err(format!(
        "order {}, attempt {attempt}: the handler is still to be written ({:?})",
        job.order_id, job.note
    )
    .into())
}
"#;
