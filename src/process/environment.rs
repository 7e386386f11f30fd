//! The environment of programs that run jobs.
//!
//! A program inherits the environment of this process, except artisand's own
//! variables (`ARTISAND_*`) and variables that other mappings name: a program
//! must not see the secrets of other mappings. A mapping with `pass_env` lists
//! the variables that its programs inherit instead, in addition to the few
//! variables that any program expects.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;

/// Variables that any program expects, besides `LC_*`.
const BASE: [&str; 8] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR",
];

/// The environment settings of a mapping's programs (`env`, `pass_env`, `cwd`).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables and their values.
    pub set: BTreeMap<String, String>,
    /// The variables of this process to pass on; if `None`, all that no other mapping names.
    pub pass: Option<BTreeSet<String>>,
    /// The directory in which they start; if `None`, the current one.
    pub directory: Option<PathBuf>,
    /// Variables that other mappings name.
    pub(crate) others: BTreeSet<String>,
}

impl fmt::Debug for Environment {
    /// Omits the values, which are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("set", &self.set.keys())
            .field("pass", &self.pass)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Environment {
    /// Sets the variables of `set` and passes on the variables of this process named in `pass`; if `pass` is
    /// `None`, all that no other mapping names.
    pub fn new(set: BTreeMap<String, String>, pass: Option<BTreeSet<String>>) -> Self {
        Self {
            set,
            pass,
            directory: None,
            others: BTreeSet::new(),
        }
    }

    /// Applies it to a program that is about to be started.
    pub(super) fn apply(&self, command: &mut tokio::process::Command) {
        for (name, _) in std::env::vars_os() {
            if !self.passes(&name) {
                command.env_remove(name);
            }
        }
        command.envs(&self.set);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
    }

    /// Whether a variable of this process is passed on.
    fn passes(&self, name: &OsStr) -> bool {
        let text = name.to_string_lossy();
        match &self.pass {
            Some(pass) => {
                pass.contains(&*text) || BASE.contains(&&*text) || text.starts_with("LC_")
            }
            None => !text.starts_with("ARTISAND_") && !self.others.contains(&*text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_what_no_other_mapping_names_or_what_its_own_names() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let all = Environment {
            others: list(&["SHIPMENTS_SECRET"]),
            ..Environment::default()
        };
        let named = Environment {
            pass: Some(list(&["SHIPMENTS_SECRET", "ARTISAND_APP"])),
            ..all.clone()
        };
        #[rustfmt::skip]
        let rows = [
            // name, all, named
            ("PATH", true, true),
            ("LC_ALL", true, true),
            ("DB_PASSWORD", true, false),
            ("ARTISAND_CONFIG", false, false),
            ("ARTISAND_APP", false, true),
            ("SHIPMENTS_SECRET", false, true),
        ];
        for (name, by_all, by_named) in rows {
            let name = OsStr::new(name);
            assert_eq!(
                (all.passes(name), named.passes(name)),
                (by_all, by_named),
                "{name:?}"
            );
        }
        let secret = Environment {
            set: BTreeMap::from([("KEY".to_owned(), "hunter2".to_owned())]),
            ..Environment::default()
        };
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
