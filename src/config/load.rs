//! Reads the settings: the file, and what is known of the app.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::File;
use super::place::place;
use super::{Config, DEFAULT_FILE, Error, read, routing};
use crate::app;
use crate::routing::Registry;

/// What a file says of the app, for commands that need nothing else.
#[derive(Debug)]
pub struct AppOfFile {
    /// Its directory; by default the current one, if that is an app.
    pub app: Option<PathBuf>,
    /// `[php] binary`.
    pub php: Option<Vec<String>>,
    /// `[php] app`: the app's directory as PHP sees it.
    pub app_for_php: Option<PathBuf>,
}

impl Config {
    /// Reads the file (or `artisand.toml` in the current directory if there is one) and the app's `.env`, and asks PHP
    /// for the app's settings, where it runs.
    ///
    /// # Errors
    ///
    /// A file that was named and is not there, or anything in one that cannot be understood.
    pub fn load(
        path: Option<&Path>,
        app: Option<&Path>,
        process: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let path = Self::path_or_default(path);
        let file = path.map(read::read).transpose()?.unwrap_or_default();
        Self::with_file(file, path, app, process.into_iter().collect(), true)
    }

    /// Reads the same without starting PHP, and all that is wrong in the file.
    ///
    /// The mappings are looked up among these handlers. What cannot be understood of the file is left out of the
    /// settings.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or an app or manifest that cannot be understood, after the mistakes in the file.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn check(
        path: Option<&Path>,
        app: Option<&Path>,
        process: impl IntoIterator<Item = (String, String)>,
        registry: &Registry,
    ) -> (Result<Self, Error>, Vec<Error>) {
        let path = Self::path_or_default(path);
        let (file, mut mistakes) = match path.map(read::read_all).transpose() {
            Ok(read) => read.unwrap_or_default(),
            Err(error) => return (Err(error), Vec::new()),
        };
        let config = Self::with_file(file, path, app, process.into_iter().collect(), false);
        if let Ok(config) = &config {
            mistakes.extend(routing::mistakes(config, registry));
        }
        (config, mistakes)
    }

    fn path_or_default(path: Option<&Path>) -> Option<&Path> {
        let default = Path::new(DEFAULT_FILE);
        path.or_else(|| default.exists().then_some(default))
    }

    fn with_file(
        file: File,
        path: Option<&Path>,
        app: Option<&Path>,
        process: BTreeMap<String, String>,
        may_ask_php: bool,
    ) -> Result<Self, Error> {
        let mut config = Self {
            file,
            path: path.map(Path::to_owned).unwrap_or_default(),
            process: Arc::new(process),
            ..Self::default()
        };
        let of_file = || config.file.app.as_ref().map(|app| app.get_ref().clone());
        let named = app.map(Path::to_owned).or_else(of_file);
        let found = named.or_else(|| config.app_here());
        // Paths in the app's configuration are made from it.
        config.app = found.map(|app| std::path::absolute(&app).unwrap_or(app));
        if let Some(base) = config.app.clone() {
            if !base.is_dir() {
                return Err(match &config.file.app {
                    Some(of_file) if app.is_none() => Error::Toml {
                        place: place(&config.path, of_file.span().start),
                        problem: format!(
                            "`app` is {}, and there is no such directory",
                            base.display()
                        ),
                    },
                    _ => Error::Variable {
                        name: "--app".to_owned(),
                        value: base.display().to_string(),
                        expected: "the directory of a Laravel app",
                    },
                });
            }
            config.read_env(&base);
        }
        let learned = config.learn(may_ask_php);
        // A mistake in `.env` is why PHP does not say the settings, if it is one.
        config.judge_env()?;
        learned.map(|()| config)
    }

    /// The app's directory as a configuration file says it, else the current one if it is an app's.
    ///
    /// # Errors
    ///
    /// The file was named and is not there, or cannot be understood.
    pub fn app_of_file(path: Option<&Path>) -> Result<AppOfFile, Error> {
        let file = Self::path_or_default(path).map(read::read).transpose()?;
        let file = file.unwrap_or_default();
        let here = Path::new(".");
        let of_file = file.app.map(toml::Spanned::into_inner);
        let binary = file.php.binary.map(|binary| binary.into_inner().to_vec());
        Ok(AppOfFile {
            app: of_file.or_else(|| app::is_app(here).then(|| here.to_owned())),
            php: binary.filter(|command| !command.is_empty()),
            app_for_php: file.php.app,
        })
    }
}
