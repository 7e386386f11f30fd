//! What a mapping does with its jobs: `handler = ..`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
#[cfg(feature = "http")]
use std::time::Duration;

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
    env: Option<BTreeMap<String, String>>,
    pass_env: Option<BTreeSet<String>>,
}

impl HandlerTable {
    fn of(keys: HandlerKeys) -> Result<Self, String> {
        let of_programs = [
            ("processes", keys.processes.is_some()),
            ("max_jobs", keys.max_jobs.is_some()),
        ];
        let of_http = [
            ("timeout", keys.timeout.is_some()),
            ("headers", keys.headers.is_some()),
            ("headers_env", keys.headers_env.is_some()),
            ("secret_env", keys.secret_env.is_some()),
            ("secret_file", keys.secret_file.is_some()),
        ];
        let of_exec = [
            ("persistent", keys.persistent.is_some()),
            ("env", keys.env.is_some()),
            ("pass_env", keys.pass_env.is_some()),
        ];
        let actions = [
            ("exec", keys.exec.is_some()),
            ("http", keys.http.is_some()),
            ("forward", keys.forward.is_some()),
        ];
        let mut given = actions.iter().filter(|(_, is_given)| *is_given);
        let Some((action, _)) = given.next() else {
            return Err("a handler table needs `exec`, `http` or `forward`".into());
        };
        let foreign = given.next().or_else(|| {
            let foreign: &[&[(&str, bool)]] = match *action {
                "exec" if keys.persistent == Some(true) => &[&of_http],
                "exec" => &[&of_http, &of_programs],
                "http" => &[&of_exec, &of_programs],
                _ => &[&of_exec, &of_http, &of_programs],
            };
            foreign
                .iter()
                .copied()
                .flatten()
                .find(|(_, is_given)| *is_given)
        });
        if let Some((key, _)) = foreign {
            let goes_with = match *key {
                "persistent" | "env" | "pass_env" => ": it is for `exec`",
                "processes" | "max_jobs" => ": it is for `exec` with `persistent = true`",
                "exec" | "http" | "forward" => ": a mapping does one of them",
                _ => ": it is for `http`",
            };
            return Err(format!("`{key}` does not go with `{action}`{goes_with}"));
        }
        if let Some(command) = keys.exec {
            let environment = Environment::new(keys.env.unwrap_or_default(), keys.pass_env);
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
            let secret = match (keys.secret_env, keys.secret_file) {
                (Some(_), Some(_)) => {
                    return Err(
                        "`secret_env` does not go with `secret_file`: there is one secret".into(),
                    );
                }
                (Some(variable), None) => Some(SecretSource::Env(variable)),
                (None, file) => file.map(SecretSource::File),
            };
            Ok(Self::Http(HttpOptions {
                url: keys.http.unwrap_or_default(),
                timeout: keys
                    .timeout
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs),
                headers: keys.headers.unwrap_or_default(),
                headers_env: keys.headers_env.unwrap_or_default(),
                secret,
            }))
        }
        #[cfg(not(feature = "http"))]
        Err("this program was built without `http` (feature `http`)".into())
    }
}
