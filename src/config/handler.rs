//! What a mapping does with its jobs: `handler = ..`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use serde::Deserialize;

#[cfg(feature = "http")]
use crate::handler::{HttpOptions, SecretSource};
use crate::process::{Environment, ExecOptions, PersistentOptions};

/// `handler = ...`
#[derive(Debug, Clone)]
pub enum HandlerTable {
    /// `"name"`
    Named(String),
    /// `{ exec = ["program", "argument"] }`
    Exec(ExecOptions),
    /// `{ exec = ["program", "argument"], persistent = true }`
    Persistent(PersistentOptions),
    /// `{ http = "http://.." }`
    #[cfg(feature = "http")]
    Http(HttpOptions),
    /// `{ forward = "queue" }`
    Forward(String),
}

impl<'de> Deserialize<'de> for HandlerTable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HandlerVisitor;

        impl<'de> serde::de::Visitor<'de> for HandlerVisitor {
            type Value = HandlerTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a handler, `{ exec = [\"program\", ..] }`, `{ http = \"http://..\" }` or `{ forward = \"queue\" }`")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<HandlerTable, E> {
                Ok(HandlerTable::Named(name.to_owned()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<HandlerTable, A::Error> {
                let keys = serde::de::value::MapAccessDeserializer::new(map);
                let keys = HandlerKeys::deserialize(keys)?;
                HandlerTable::of(keys).map_err(serde::de::Error::custom)
            }
        }

        deserializer.deserialize_any(HandlerVisitor)
    }
}

/// All that a handler's table may hold; what goes with what is said by [`HandlerTable::of`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandlerKeys {
    exec: Option<Vec<String>>,
    http: Option<String>,
    forward: Option<String>,
    persistent: Option<bool>,
    processes: Option<NonZeroUsize>,
    max_jobs: Option<NonZeroU64>,
    timeout: Option<u64>,
    headers: Option<BTreeMap<String, String>>,
    headers_env: Option<BTreeMap<String, String>>,
    secret_env: Option<String>,
    secret_file: Option<PathBuf>,
    cwd: Option<PathBuf>,
    env: Option<BTreeMap<String, String>>,
    pass_env: Option<BTreeSet<String>>,
}

/// What a key of a handler's table is for.
#[derive(Clone, Copy)]
enum Purpose {
    Action,
    Exec,
    Http,
    Persistent,
}

impl HandlerKeys {
    /// Checks that there is exactly one action, and that all other keys go with it.
    fn check(&self) -> Result<(), String> {
        use Purpose::{Action, Exec, Http, Persistent};
        let all = [
            ("exec", Action, self.exec.is_some()),
            ("http", Action, self.http.is_some()),
            ("forward", Action, self.forward.is_some()),
            ("persistent", Exec, self.persistent.is_some()),
            ("cwd", Exec, self.cwd.is_some()),
            ("env", Exec, self.env.is_some()),
            ("pass_env", Exec, self.pass_env.is_some()),
            ("timeout", Http, self.timeout.is_some()),
            ("headers", Http, self.headers.is_some()),
            ("headers_env", Http, self.headers_env.is_some()),
            ("secret_env", Http, self.secret_env.is_some()),
            ("secret_file", Http, self.secret_file.is_some()),
            ("processes", Persistent, self.processes.is_some()),
            ("max_jobs", Persistent, self.max_jobs.is_some()),
        ];
        let mut given = all.into_iter().filter(|(.., is_given)| *is_given);
        let Some((action, Action, _)) = given.next() else {
            return Err("a handler table needs `exec`, `http` or `forward`".into());
        };
        let foreign = given.find(|(_, purpose, _)| match purpose {
            Action => true,
            Exec => action != "exec",
            Http => action != "http",
            Persistent => action != "exec" || self.persistent != Some(true),
        });
        let Some((key, purpose, _)) = foreign else {
            return Ok(());
        };
        let goes_with = match purpose {
            Action => "a mapping does one of them",
            Exec => "it is for `exec`",
            Http => "it is for `http`",
            Persistent => "it is for `exec` with `persistent = true`",
        };
        Err(format!("`{key}` does not go with `{action}`: {goes_with}"))
    }

    #[cfg(feature = "http")]
    fn http(self) -> Result<HandlerTable, String> {
        let secret = match (self.secret_env, self.secret_file) {
            (Some(_), Some(_)) => {
                return Err(
                    "`secret_env` does not go with `secret_file`: there is one secret".into(),
                );
            }
            (Some(variable), None) => Some(SecretSource::Env(variable)),
            (None, file) => file.map(SecretSource::File),
        };
        let timeout = self.timeout.filter(|seconds| *seconds > 0);
        Ok(HandlerTable::Http(HttpOptions {
            url: self.http.unwrap_or_default(),
            timeout: timeout.map(crate::time::seconds),
            headers: self.headers.unwrap_or_default(),
            headers_env: self.headers_env.unwrap_or_default(),
            secret,
        }))
    }
}

impl HandlerTable {
    fn of(keys: HandlerKeys) -> Result<Self, String> {
        keys.check()?;
        if let Some(command) = keys.exec {
            let mut environment = Environment::new(keys.env.unwrap_or_default(), keys.pass_env);
            environment.directory = keys.cwd;
            return Ok(if keys.persistent == Some(true) {
                Self::Persistent(PersistentOptions {
                    command,
                    processes: keys.processes,
                    max_jobs: keys.max_jobs,
                    environment,
                })
            } else {
                Self::Exec(ExecOptions {
                    command,
                    environment,
                })
            });
        }
        if let Some(queue) = keys.forward {
            return Ok(Self::Forward(queue));
        }
        #[cfg(feature = "http")]
        {
            keys.http()
        }
        #[cfg(not(feature = "http"))]
        Err("this program was built without `http` (feature `http`)".into())
    }
}
