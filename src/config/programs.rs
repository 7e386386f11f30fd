//! The programs of mappings: where they start, and whether they and their scripts are there.

use std::path::{Path, PathBuf};

use super::doubts::Doubt;
use super::handler::HandlerTable;
use super::policy::unmapped;
use super::{Config, Error, MapTable};
use crate::process::Environment;
use crate::routing::UnmappedPolicy;

/// Ends of the names of scripts.
const SCRIPTS: [&str; 11] = [
    "py", "sh", "js", "mjs", "cjs", "ts", "rb", "php", "pl", "lua", "jar",
];

/// Programs whose arguments name files elsewhere.
const ELSEWHERE: [&str; 6] = ["chroot", "docker", "kubectl", "nsenter", "podman", "ssh"];

const REMEDY: &str = "install it, or correct `exec`: each of its jobs would be an exception";

impl Config {
    /// Refuses mappings whose programs cannot be started, and a PHP that is named and cannot be.
    ///
    /// # Errors
    ///
    /// File, line and the first such program.
    pub fn check_programs(&self) -> Result<(), Error> {
        let is_for_php = matches!(unmapped(self), Ok(UnmappedPolicy::Php));
        let of_php = self.doubt_of_php().filter(|_| is_for_php);
        let mut mappings = self.file.map.iter();
        let of_mapping = || mappings.find_map(|table| self.doubt_of_program(table));
        let doubt = of_php.or_else(of_mapping);
        let Some(Doubt {
            place: Some(place),
            problem,
            ..
        }) = doubt
        else {
            return Ok(());
        };
        Err(Error::Program { place, problem })
    }

    /// The PHP that `binary` names, if it is the one in use and cannot be started.
    pub(super) fn doubt_of_php(&self) -> Option<Doubt> {
        let binary = self.file.php.binary.as_ref();
        let binary = binary.filter(|_| self.php_of_variable().is_none())?;
        let command = binary.get_ref().to_vec();
        let program = command.first().filter(|program| !program.is_empty())?;
        Some(Doubt {
            place: Some(self.place_of(binary)),
            problem: problem_of(program, self.process.get("PATH"))?,
            remedy: "name the app's PHP with `binary` under [php]",
            is_certain: true,
        })
    }

    /// Where programs start: the app's directory, else that of the file; `None` for the current one.
    pub(super) fn directory_of_programs(&self) -> Option<PathBuf> {
        let of_app = self.laravel.as_ref().map(|laravel| &laravel.base);
        let of_app = of_app.or(self.app.as_ref()).filter(|base| base.is_dir());
        of_app.cloned().or_else(|| {
            let path = std::path::absolute(self.path()?).ok()?;
            path.parent().map(Path::to_owned)
        })
    }

    /// What a mapping starts, and in which directory.
    fn program<'a>(&self, table: &'a MapTable) -> Option<(&'a [String], &'a Environment, PathBuf)> {
        let (command, environment) = table.handler.get_ref().program()?;
        let directory = environment.directory.clone();
        let directory = directory.or_else(|| self.directory_of_programs());
        Some((
            command,
            environment,
            directory.unwrap_or_else(|| ".".into()),
        ))
    }

    /// A program that cannot be started.
    pub(super) fn doubt_of_program(&self, table: &MapTable) -> Option<Doubt> {
        let (command, environment, directory) = self.program(table)?;
        let program = command.first().filter(|program| !program.is_empty())?;
        let of_mapping = environment.set.get("PATH");
        let search = of_mapping.or_else(|| self.process.get("PATH"));
        let problem = if directory.is_dir() {
            problem_of(program, search)?
        } else {
            let directory = directory.display();
            format!("no directory {directory}, in which `{program}` would start")
        };
        Some(Doubt {
            place: Some(self.place_of(&table.handler)),
            problem,
            remedy: if directory.is_dir() {
                REMEDY
            } else {
                "correct `cwd`: each of its jobs would be an exception"
            },
            is_certain: true,
        })
    }

    /// An argument that is most probably a script, and is not there.
    pub(super) fn doubt_of_script(&self, table: &MapTable) -> Option<Doubt> {
        let (command, _, directory) = self.program(table)?;
        let (program, arguments) = command.split_first()?;
        let name = Path::new(program).file_name()?.to_str()?;
        // That the directory is not there is said by itself.
        if ELSEWHERE.contains(&name) || !directory.is_dir() {
            return None;
        }
        let is_path = |text: &str| {
            let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
            !text.starts_with(['-', '/']) && text.bytes().all(is_of_path)
        };
        let is_script = |text: &str| {
            let end = Path::new(text).extension().and_then(|end| end.to_str());
            end.is_some_and(|end| SCRIPTS.contains(&end))
        };
        let first = arguments.iter().find(|text| !text.starts_with('-'));
        let first = first.filter(|text| text.contains('/'));
        let mut scripts = arguments.iter().filter(|text| is_script(text)).chain(first);
        let missing = scripts.find(|text| is_path(text) && !directory.join(text).exists())?;
        Some(Doubt {
            place: Some(self.place_of(&table.handler)),
            problem: format!(
                "no script `{missing}` in {}, where `{program}` starts",
                directory.display()
            ),
            remedy: "correct the name, give the whole path, or say with `cwd` where the program starts",
            is_certain: false,
        })
    }
}

/// Why a program cannot be started; `None` if it can, or if that is not known.
fn problem_of(program: &str, search: Option<&String>) -> Option<String> {
    if !program.contains('/') {
        let is_there = |directory: PathBuf| {
            let path = directory.join(program);
            path.is_file() && is_executable(&path)
        };
        let is_found = std::env::split_paths(search?).any(is_there);
        return (!is_found).then(|| format!("no program `{program}` in the search path (PATH)"));
    }
    let path = Path::new(program);
    match std::fs::metadata(path) {
        Err(error) => Some(format!("no program `{program}`: {error}")),
        Ok(found) if !found.is_file() => Some(format!("`{program}` is no program")),
        Ok(_) if !is_executable(path) => {
            Some(format!("`{program}` cannot be executed by this user"))
        }
        Ok(_) => None,
    }
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

impl HandlerTable {
    /// The command line of a program and its environment; `None` for other handlers.
    fn program(&self) -> Option<(&[String], &Environment)> {
        match self {
            Self::Exec(options) => Some((&options.command, &options.environment)),
            Self::Persistent(options) => Some((&options.command, &options.environment)),
            _ => None,
        }
    }
}
