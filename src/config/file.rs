//! The tables of `artisand.toml`. An unknown key is an error: a misspelt setting must not be silently absent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
#[cfg(feature = "http")]
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::middleware::{LimiterTable, MiddlewareTable};
use super::target::TargetProblem;
use super::{Error, source};
use crate::handler::{
    Canary, Debounce, Environment, ExecOptions, HandlerChoice, Mapping, Mode, OnMismatch,
    PersistentOptions, Template, UnmappedPolicy,
};
#[cfg(feature = "http")]
use crate::handler::{HttpOptions, SecretSource};

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The app's directory, where `.env` is.
    pub app: Option<PathBuf>,
    /// The manifest (`artisand manifest`), if not `artisand.json` in the app's directory or the current one.
    pub manifest: Option<PathBuf>,
    /// Where the app's settings come from: `php`, `manifest` or `env`; the first of them that there is if nothing is said.
    pub settings: Option<Source>,
    /// Version of the app's Laravel (`"5.7"`, `"13"`), where it cannot be found out.
    pub laravel: Option<String>,
    /// Queue connections by name.
    #[serde(default)]
    pub connections: BTreeMap<String, ConnectionTable>,
    /// Defaults of `queue:work`.
    #[serde(default)]
    pub worker: WorkerTable,
    /// What only PHP can do.
    #[serde(default)]
    pub php: PhpTable,
    /// What becomes of jobs that no mapping matches.
    #[serde(default)]
    pub unmapped: UnmappedTable,
    /// Mappings; the first that matches wins.
    #[serde(default)]
    pub map: Vec<MapTable>,
    /// Rate limiters by name.
    #[serde(default)]
    pub limiters: BTreeMap<String, LimiterTable>,
}

/// Where the app's settings come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The app's PHP, which loads its configuration.
    Php,
    /// The manifest.
    Manifest,
    /// The process environment and `.env` alone.
    Env,
}

/// `[connections.NAME]`: what is not said comes from the app's environment.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionTable {
    /// `redis://user:password@host:port/database`.
    pub url: Option<String>,
    /// Host name, or `tls://name`.
    pub host: Option<String>,
    /// Port.
    pub port: Option<u16>,
    /// Whether to use TLS.
    pub tls: Option<bool>,
    /// Path of a unix socket.
    pub socket: Option<PathBuf>,
    /// User of Redis access lists.
    pub username: Option<String>,
    /// Password; better in the environment.
    pub password: Option<String>,
    /// Number of the database.
    pub database: Option<i64>,
    /// Put before every key.
    pub prefix: Option<String>,
    /// Queue that is meant where none is named.
    pub queue: Option<String>,
    /// Seconds that a reservation lives.
    pub retry_after: Option<u64>,
    /// Whether the app keeps notify lists (Laravel 5.8 and later).
    pub notify: Option<bool>,
    /// Most due jobs moved by one pop.
    pub migration_batch_size: Option<NonZeroUsize>,
    /// How far into a queue to look for jobs that can be taken.
    pub look_ahead: Option<NonZeroUsize>,
}

impl fmt::Debug for ConnectionTable {
    /// Without user and password, which a URL may hold as well.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionTable")
            .field("url", &self.url.as_ref().map(|_| "(set)"))
            .field("host", &self.host)
            .field("port", &self.port)
            .field("socket", &self.socket)
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl ConnectionTable {
    /// Whether the table alone says which keys on which server are meant.
    pub(super) fn says_all(&self) -> bool {
        let says_where = self.url.is_some() || self.host.is_some() || self.socket.is_some();
        says_where && self.prefix.is_some()
    }
}

/// `[worker]`: defaults for flags of `queue:work`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerTable {
    /// Jobs running at once.
    pub concurrency: Option<NonZeroUsize>,
    /// Seconds that running jobs may go on after the order to quit.
    pub grace: Option<u64>,
    /// Whether the app's restart and pause signals and its maintenance mode are obeyed.
    pub control_plane: Option<bool>,
    /// Time zone of printed times, as PHP names it.
    pub timezone: Option<String>,
}

/// `[php]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhpTable {
    /// A queue of the same connection that PHP workers serve.
    #[serde(default, deserialize_with = "queue_name")]
    pub queue: Option<String>,
    /// The program that is PHP, with arguments of its own if it is a list.
    pub binary: Option<OneOrMore>,
    /// The app's directory as that PHP sees it, if that is another.
    pub app: Option<PathBuf>,
    /// How many PHP processes run jobs.
    pub processes: Option<NonZeroUsize>,
    /// Jobs after which a process is replaced.
    pub max_jobs: Option<u64>,
    /// Seconds after which a process is replaced.
    pub max_time: Option<u64>,
    /// Megabytes beyond which a process is replaced.
    pub memory: Option<u64>,
    /// Seconds that the app may take to boot.
    pub boot_timeout: Option<NonZeroU64>,
}

/// One text, or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a program, or a list of a program and its arguments"
)]
pub enum OneOrMore {
    /// One.
    One(String),
    /// A list.
    More(Vec<String>),
}

impl OneOrMore {
    /// All of them.
    pub fn to_vec(&self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text.clone()],
            Self::More(list) => list.clone(),
        }
    }
}

fn queue_name<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() {
        let problem = "`queue` is empty, expected the name of a queue that PHP workers serve";
        return Err(serde::de::Error::custom(problem));
    }
    Ok(Some(name))
}

/// `[unmapped]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnmappedTable {
    policy: Option<Spanned<String>>,
    queue: Option<String>,
}

/// `[[map]]`: one key says what is mapped, the others what happens to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapTable {
    /// Job class, glob or `/regex/`.
    pub job: Option<Spanned<String>>,
    /// Listener class, or `Class@method`.
    pub listener: Option<Spanned<String>>,
    /// With `listener`: class of the event.
    pub event: Option<Spanned<String>>,
    /// Notification class.
    pub notification: Option<Spanned<String>>,
    /// With `notification`: the channel.
    pub channel: Option<Spanned<String>>,
    /// Mailable class.
    pub mailable: Option<Spanned<String>>,
    /// Class of the broadcast event.
    pub broadcast: Option<Spanned<String>>,
    /// Name of the artisan command.
    pub command: Option<Spanned<String>>,
    /// String job, `Class` or `Class@method`.
    pub string: Option<Spanned<String>>,
    /// Not for use: says why there is no such thing.
    pub closure: Option<Spanned<toml::Value>>,
    /// Not for use: says why there is no such thing.
    pub batch: Option<Spanned<toml::Value>>,
    /// Name of a handler, or a table that says what to do.
    pub handler: Spanned<HandlerTable>,
    /// Most of these running at once.
    pub concurrency: Option<NonZeroUsize>,
    /// What is around its jobs, inside what the handler has itself.
    #[serde(default)]
    pub middleware: Vec<MiddlewareTable>,
    /// The debounce id of its jobs.
    pub debounce: Option<Template>,
    /// Per cent of its jobs that the handler runs.
    #[serde(default, deserialize_with = "canary")]
    pub canary: Option<Canary>,
    /// `run` or `shadow`.
    #[serde(default, deserialize_with = "mode")]
    pub mode: Mode,
    /// What becomes of a job that does not fit the handler's input: `exception` or `php`.
    #[serde(default, deserialize_with = "on_mismatch")]
    pub on_mismatch: OnMismatch,
}

fn canary<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Canary>, D::Error> {
    struct CanaryVisitor;

    impl<'de> serde::de::Visitor<'de> for CanaryVisitor {
        type Value = Canary;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "per cent of the jobs, such as `canary = 5` or `canary = { percent = 5, stop_at = 2 }`",
            )
        }

        fn visit_f64<E: serde::de::Error>(self, percent: f64) -> Result<Canary, E> {
            Canary::new(percent).ok_or_else(|| {
                E::custom(format_args!(
                    "`canary` is {percent}, expected per cent of the jobs, from 0 to 100"
                ))
            })
        }

        fn visit_i64<E: serde::de::Error>(self, percent: i64) -> Result<Canary, E> {
            // What is out of range as an integer is so as a float.
            #[expect(clippy::cast_precision_loss, reason = "from 0 to 100 is exact")]
            self.visit_f64(percent as f64)
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Canary, A::Error> {
            let keys = serde::de::value::MapAccessDeserializer::new(map);
            let CanaryKeys { percent, stop_at } = CanaryKeys::deserialize(keys)?;
            let canary: Canary = self.visit_f64(percent)?;
            let Some(stop_at) = stop_at else {
                return Ok(canary);
            };
            canary.stop_at(stop_at).ok_or_else(|| {
                serde::de::Error::custom(format_args!(
                    "`stop_at` is {stop_at}, expected per cent of the canary's runs that may fail, from 0 to below 100"
                ))
            })
        }
    }

    deserializer.deserialize_any(CanaryVisitor).map(Some)
}

/// `canary = { .. }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CanaryKeys {
    percent: f64,
    stop_at: Option<f64>,
}

fn mode<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    let mode = String::deserialize(deserializer)?;
    match mode.as_str() {
        "run" => Ok(Mode::Run),
        "shadow" => Ok(Mode::Shadow),
        _ => Err(serde::de::Error::custom(format!(
            "`mode` is `{mode}`, expected `run` or `shadow`"
        ))),
    }
}

fn on_mismatch<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<OnMismatch, D::Error> {
    let on_mismatch = String::deserialize(deserializer)?;
    match on_mismatch.as_str() {
        "exception" => Ok(OnMismatch::Exception),
        "php" => Ok(OnMismatch::Php),
        _ => Err(serde::de::Error::custom(format!(
            "`on_mismatch` is `{on_mismatch}`, expected `exception` (the attempt fails) or `php` (the job goes the way of unmapped jobs)"
        ))),
    }
}

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

impl MapTable {
    pub(super) fn to_mapping(&self) -> Result<Mapping, TargetProblem> {
        Ok(Mapping {
            target: self.target()?,
            handler: match self.handler.get_ref() {
                HandlerTable::Named(name) => HandlerChoice::Named(name.clone()),
                HandlerTable::Exec(options) => HandlerChoice::Exec(options.clone()),
                HandlerTable::Persistent(options) => HandlerChoice::Persistent(options.clone()),
                #[cfg(feature = "http")]
                HandlerTable::Http(options) => HandlerChoice::Http(options.clone()),
                HandlerTable::Forward(queue) => HandlerChoice::Forward(queue.as_str().into()),
            },
            concurrency: self.concurrency,
            middleware: self
                .middleware
                .iter()
                .map(MiddlewareTable::to_middleware)
                .collect(),
            debounce: self.debounce.clone().map(Debounce::new),
            canary: self.canary,
            mode: self.mode,
            on_mismatch: self.on_mismatch,
        })
    }
}

impl UnmappedTable {
    pub(super) fn offset(&self) -> usize {
        self.policy.as_ref().map_or(0, |policy| policy.span().start)
    }

    /// The policy as it is written; `None` if it is not.
    pub(super) fn to_policy(&self) -> Result<Option<UnmappedPolicy>, String> {
        let policy = self.policy.as_ref().map(Spanned::get_ref);
        let policy = match (policy.map(String::as_str), &self.queue) {
            (None, None) => return Ok(None),
            (Some("php"), None) => UnmappedPolicy::Php,
            (Some("leave"), None) => UnmappedPolicy::Leave,
            (Some("fail"), None) => UnmappedPolicy::Fail,
            (Some("forward"), Some(queue)) if !queue.is_empty() => {
                UnmappedPolicy::Forward(queue.as_str().into())
            }
            (Some("forward"), _) => {
                return Err("policy `forward` needs a `queue` to forward to".into());
            }
            (None | Some("php" | "leave" | "fail"), Some(_)) => {
                return Err("`queue` goes with policy `forward` only".into());
            }
            (Some(other), _) => {
                return Err(format!(
                    "unknown policy `{other}` (there are: php, leave, forward, fail)"
                ));
            }
        };
        Ok(Some(policy))
    }
}

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
        for path in sockets.chain([&mut self.app, &mut self.manifest]).flatten() {
            *path = rebased(path);
        }
        // A name without a slash is one for the search path.
        let rebase_program = |program: &mut String| {
            if program.contains('/') {
                *program = rebased(Path::new(program)).to_string_lossy().into_owned();
            }
        };
        match &mut self.php.binary {
            Some(OneOrMore::One(program)) => rebase_program(program),
            Some(OneOrMore::More(command)) => {
                command.first_mut().into_iter().for_each(rebase_program);
            }
            None => {}
        }
        for mapping in &mut self.map {
            match mapping.handler.get_mut() {
                HandlerTable::Exec(ExecOptions { command, .. })
                | HandlerTable::Persistent(PersistentOptions { command, .. }) => {
                    command.first_mut().into_iter().for_each(rebase_program);
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

/// A place in the file, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPlace {
    path: PathBuf,
    line: Option<usize>,
}

impl fmt::Display for ErrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}

/// The line of a byte offset; the file is read again, which only happens on the way to an error.
pub(super) fn place(path: &Path, offset: usize) -> ErrorPlace {
    let text = std::fs::read(path).ok();
    let line =
        text.and_then(|text| Some(memchr::memchr_iter(b'\n', text.get(..offset)?).count() + 1));
    ErrorPlace {
        path: path.to_owned(),
        line,
    }
}
