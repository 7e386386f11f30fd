//! `manifest`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use super::{GlobalArgs, output};
use crate::app::Manifest;
use crate::config::{self, Config, MANIFEST_FILE, php};
use crate::new_file;

/// Arguments of `manifest`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ManifestArgs {
    /// The app's PHP [default: `ARTISAND_PHP`, else `binary` under [php], else php]
    #[arg(long, value_name = "PROGRAM")]
    php: Option<String>,

    /// File to write; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = MANIFEST_FILE)]
    output: PathBuf,

    /// Write passwords and keys, too; the file is then for its owner only
    #[arg(long)]
    with_secrets: bool,
}

/// Writes the manifest to this file.
pub(super) fn write(path: &Path, with_secrets: bool, global: &GlobalArgs) -> anyhow::Result<()> {
    let args = ManifestArgs {
        php: None,
        output: path.to_owned(),
        with_secrets,
    };
    let (_, text) = made(&args, global)?;
    save(&args, &text)
}

pub(super) fn run(args: &ManifestArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let (manifest, text) = made(args, global)?;
    if args.output == Path::new("-") {
        output::data(&(text + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    save(args, &text)?;
    output::data(&said(args, &manifest))?;
    Ok(ExitCode::SUCCESS)
}

/// Has PHP make a manifest; returns its text, too.
fn made(args: &ManifestArgs, global: &GlobalArgs) -> anyhow::Result<(Manifest, String)> {
    let of_file = Config::app_of_file(global.config.as_deref())?;
    let app = global.app.clone().or(of_file.app);
    let app = app.ok_or(config::Error::NoApp)?;
    // PHP may see the app in another directory.
    let base = match of_file.app_for_php.filter(|_| global.app.is_none()) {
        Some(base) => base,
        None => app.canonicalize().map_err(|source| config::Error::Read {
            path: app.clone(),
            source,
        })?,
    };
    let of_variable = || {
        let named = std::env::var("ARTISAND_PHP").ok();
        named.filter(|name| !name.is_empty())
    };
    let named = args.php.clone().or_else(of_variable);
    let php = named.map(|name| vec![name]).or(of_file.php);
    let php = php.unwrap_or_default();
    let text = php::manifest(&php, &base, global.env.as_deref(), args.with_secrets)
        .map_err(config::Error::Php)?;
    let manifest = Manifest::parse(Path::new("PHP's answer"), text.as_bytes())?;
    Ok((manifest, text))
}

fn save(args: &ManifestArgs, text: &str) -> anyhow::Result<()> {
    let mode = if args.with_secrets { 0o600 } else { 0o644 };
    new_file::replace(&args.output, format!("{text}\n").as_bytes(), Some(mode))
        .with_context(|| format!("could not write {}", args.output.display()))
}

/// What was written, for people.
fn said(args: &ManifestArgs, manifest: &Manifest) -> String {
    let (of_packages, own): (Vec<_>, Vec<_>) = manifest
        .classes
        .values()
        .partition(|class| class.is_of_package());
    let queued = own.iter().filter(|class| class.is_queued()).count();
    let mut said = format!(
        "\n   INFO  Wrote {}: Laravel {}, PHP {}, {} classes of which {queued} are queued, {} queued classes of packages, {} models.  \n\n",
        args.output.display(),
        manifest.laravel,
        manifest.php,
        own.len(),
        of_packages.len(),
        manifest.models.len()
    );
    if !manifest.complete {
        said += "   WARN  PHP ended before it had seen all classes.  \n\n";
    }
    for note in &manifest.notes {
        let _ = write!(said, "   WARN  {}  \n\n", output::printable(note));
    }
    said
}
