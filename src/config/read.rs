//! Reads `artisand.toml`.

use std::path::{Path, PathBuf};

use toml::Spanned;

use super::file::{File, OneOrMore};
use super::handler::HandlerTable;
use super::place::place;
#[cfg(feature = "internals")]
use super::{Config, routing};
use super::{Error, source};
#[cfg(feature = "http")]
use crate::handler::{HttpOptions, SecretSource};
use crate::process::{ExecOptions, PersistentOptions};
#[cfg(feature = "internals")]
use crate::routing::Registry;

/// Reads the file; of several mistakes the first is the error, which says how many more there are.
pub(super) fn read(path: &Path) -> Result<File, Error> {
    let (file, mistakes) = read_all(path)?;
    let more = mistakes.len().saturating_sub(1);
    match mistakes.into_iter().next() {
        None => Ok(file),
        Some(Error::Toml { place, problem }) if more > 0 => Err(Error::Toml {
            place,
            problem: format!("{problem}; and {more} more: see `artisand config:check`"),
        }),
        Some(error) => Err(error),
    }
}

/// Reads the file as far as it can be understood, and all mistakes in it.
pub(super) fn read_all(path: &Path) -> Result<(File, Vec<Error>), Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let (mut file, mistakes) = source::read(&text);
    file.rebase(&directory_of(path));
    let mistakes = mistakes.into_iter().map(|mistake| Error::Toml {
        place: place(path, mistake.offset),
        problem: mistake.problem,
    });
    Ok((file, mistakes.collect()))
}

#[cfg(feature = "internals")]
impl Config {
    /// The settings that a file of this text says, without an app, an environment or another file; and what is wrong in
    /// the text, each with its place in bytes.
    pub fn of_text(text: &str) -> (Self, Vec<(usize, String)>) {
        let (mut file, mistakes) = source::read(text);
        file.rebase(Path::new("/nowhere"));
        let config = Self {
            file,
            ..Self::default()
        };
        let mistakes = mistakes.into_iter();
        let mistakes = mistakes.map(|mistake| (mistake.offset, mistake.problem));
        (config, mistakes.collect())
    }

    /// What is wrong with mappings, the policy for unmapped jobs and `[redis]`.
    pub fn mistakes(&self, registry: &Registry) -> Vec<Error> {
        let mut mistakes = routing::mistakes(self, registry);
        mistakes.extend(self.check_redis_table().err());
        mistakes
    }
}

/// Where relative paths in a file lead from.
fn directory_of(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.parent().map(Path::to_owned).unwrap_or_default()
}

impl File {
    /// Makes paths in the file, which are relative to it, absolute; `app` under `[php]` is one that only PHP sees.
    fn rebase(&mut self, directory: &Path) {
        let rebased = |path: &Path| {
            let joined = directory.join(path);
            std::path::absolute(&joined).unwrap_or(joined)
        };
        let sockets = self.connections.values_mut();
        let sockets = sockets.map(|connection| &mut connection.socket);
        let app = self.app.as_mut().map(Spanned::get_mut);
        let paths = sockets.chain([&mut self.manifest]).flatten();
        for path in paths.chain(app) {
            *path = rebased(path);
        }
        // A name without a slash is one for the search path.
        let rebase_program = |program: &mut String| {
            if program.contains('/') {
                *program = rebased(Path::new(program)).to_string_lossy().into_owned();
            }
        };
        match self.php.binary.as_mut().map(Spanned::get_mut) {
            Some(OneOrMore::One(program)) => rebase_program(program),
            Some(OneOrMore::More(command)) => {
                command.first_mut().into_iter().for_each(rebase_program);
            }
            None => {}
        }
        for mapping in &mut self.map {
            match mapping.handler.get_mut() {
                HandlerTable::Exec(ExecOptions {
                    command,
                    environment,
                })
                | HandlerTable::Persistent(PersistentOptions {
                    command,
                    environment,
                    ..
                }) => {
                    command.first_mut().into_iter().for_each(rebase_program);
                    let directory = environment.directory.iter_mut();
                    directory.for_each(|path| *path = rebased(path));
                }
                #[cfg(feature = "http")]
                HandlerTable::Http(HttpOptions {
                    secret: Some(SecretSource::File(path)),
                    ..
                }) => *path = rebased(path),
                _ => {}
            }
        }
    }
}
