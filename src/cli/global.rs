//! The options of every command.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use super::output;
use crate::config::Config;

#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct GlobalArgs {
    /// Configuration file [default: artisand.toml, if there is one]
    #[arg(
        long,
        value_name = "FILE",
        env = "ARTISAND_CONFIG",
        global = true,
        help_heading = "Beyond Laravel"
    )]
    pub(super) config: Option<PathBuf>,

    /// Directory of the Laravel app
    #[arg(
        long,
        value_name = "DIR",
        env = "ARTISAND_APP",
        global = true,
        help_heading = "Beyond Laravel"
    )]
    pub(super) app: Option<PathBuf>,

    /// Print nothing but errors; the exit code tells the rest
    #[arg(short, long, visible_alias = "silent", global = true)]
    pub(super) quiet: bool,

    /// Print more: -v id, connection and queue of jobs, and the PHP processes; -vv debug logs, -vvv trace
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(super) verbose: u8,

    /// Print without colours, as with `NO_COLOR`
    #[arg(long, global = true)]
    pub(super) no_ansi: bool,

    /// Print with colours, also to a file
    #[arg(long, global = true, conflicts_with = "no_ansi")]
    pub(super) ansi: bool,

    /// Environment of the app: its .env.NAME is read, if there is one
    #[arg(long, value_name = "NAME", global = true)]
    pub(super) env: Option<String>,

    /// Do not ask any interactive question
    #[arg(short, long, global = true)]
    pub(super) no_interaction: bool,
}

impl GlobalArgs {
    /// Reads the settings, and warns if they are not from where they should be.
    pub(super) fn load_config(&self) -> anyhow::Result<Config> {
        let config = self.read_config()?;
        if let Some(why) = config.php_failure() {
            output::notice(&format!(
                "PHP did not say the app's settings, which are those of the manifest: {why}"
            ));
        }
        if let Some(why) = config.ignored_env() {
            output::notice(&format!(
                "Nothing is taken from the app's environment file: {why}"
            ));
        }
        Ok(config)
    }

    /// Reads the settings.
    pub(super) fn read_config(&self) -> anyhow::Result<Config> {
        Ok(Config::load(
            self.config.as_deref(),
            self.app.as_deref(),
            self.variables(),
        )?)
    }

    /// The environment of this process, overridden by the flags.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        // Laravel's variables are text, so a variable that is not text is not Laravel's.
        let text = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        text.chain(self.env.clone().map(|env| ("APP_ENV".to_owned(), env)))
    }

    /// Whether to colour standard output.
    pub(super) fn is_coloured(&self) -> bool {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        self.ansi || (!self.no_ansi && !no_color && std::io::stdout().is_terminal())
    }
}
