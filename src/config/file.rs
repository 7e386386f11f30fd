//! The tables of `artisand.toml`. An unknown key is an error: a misspelt setting must not be silently absent.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::mapping::{MapTable, some_events};
use super::middleware::LimiterTable;
use super::redis::RedisTable;
use super::unmapped::UnmappedTable;
use crate::horizon::{Registration, Share};
use crate::routing::PhpEvents;
use crate::telemetry::{Continues, Endpoint, Token};

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The app's directory, where `.env` is.
    pub app: Option<Spanned<PathBuf>>,
    /// The manifest (`artisand manifest`), if not `artisand.json` in the app's directory or the current one.
    pub manifest: Option<PathBuf>,
    /// Where the app's settings come from: `php`, `manifest` or `env`; if unset, the first of them that is available.
    pub settings: Option<Source>,
    /// Version of the app's Laravel (`"5.7"`, `"13"`), where it cannot be found out.
    pub laravel: Option<String>,
    /// Queue connections by name.
    #[serde(default)]
    pub connections: BTreeMap<String, ConnectionTable>,
    /// Sentinels of the app's Redis servers.
    pub redis: Option<Spanned<RedisTable>>,
    /// Defaults of `queue:work`.
    #[serde(default)]
    pub worker: WorkerTable,
    /// What only PHP can do.
    #[serde(default)]
    pub php: PhpTable,
    /// The app's Horizon.
    #[serde(default)]
    pub horizon: HorizonTable,
    /// The app's Pulse.
    #[serde(default)]
    pub pulse: PulseTable,
    /// What is served over HTTP.
    #[serde(default)]
    pub http: HttpTable,
    /// Traces of jobs.
    #[serde(default)]
    pub otlp: OtlpTable,
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
    /// Nodes of a cluster, each as `host:port`; the others are found through them.
    pub cluster: Option<Vec<String>>,
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
    /// Without user and password, which a URL or a wrong text for a node may hold as well.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionTable")
            .field("url", &self.url.as_ref().map(|_| "(set)"))
            .field("host", &self.host)
            .field("port", &self.port)
            .field("socket", &self.socket)
            .field("cluster", &self.cluster.as_ref().map(Vec::len))
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl ConnectionTable {
    /// Whether the table alone says which keys on which server are meant.
    pub(super) fn says_all(&self) -> bool {
        let says_where = self.url.is_some()
            || self.host.is_some()
            || self.socket.is_some()
            || self.cluster.is_some();
        says_where && self.prefix.is_some()
    }

    /// The first setting here that a connection in a database does not have.
    pub(super) fn first_of_server(&self) -> Option<&'static str> {
        let settings = [("host", self.host.is_some()), ("port", self.port.is_some())];
        let mut set = settings.into_iter().filter(|(_, is_set)| *is_set);
        set.next()
            .map(|(key, _)| key)
            .or_else(|| self.first_of_redis())
    }

    /// The first setting here that only a connection on Redis has.
    pub(super) fn first_of_redis(&self) -> Option<&'static str> {
        let settings = [
            ("url", self.url.is_some()),
            ("tls", self.tls.is_some()),
            ("socket", self.socket.is_some()),
            ("cluster", self.cluster.is_some()),
            ("username", self.username.is_some()),
            ("password", self.password.is_some()),
            ("database", self.database.is_some()),
            ("prefix", self.prefix.is_some()),
            ("notify", self.notify.is_some()),
            ("migration_batch_size", self.migration_batch_size.is_some()),
        ];
        let mut set = settings.into_iter().filter(|(_, is_set)| *is_set);
        set.next().map(|(key, _)| key)
    }
}

/// `[worker]`: defaults for flags of `queue:work`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerTable {
    /// Jobs running at once.
    pub concurrency: Option<NonZeroUsize>,
    /// Threads for handlers that keep a thread busy.
    pub threads: Option<NonZeroUsize>,
    /// Seconds that running jobs may go on after the order to quit.
    pub grace: Option<u64>,
    /// Whether the app's restart and pause signals and its maintenance mode are obeyed.
    pub control_plane: Option<bool>,
    /// Whether the last error of a job is kept for a day.
    pub last_errors: Option<bool>,
    /// Whether the worker writes a heartbeat, so that it is listed.
    pub heartbeat: Option<bool>,
    /// Where the ends of jobs are noted whose own server cannot do that.
    pub ledger: Option<String>,
    /// Time zone of printed times, as PHP names it.
    pub timezone: Option<String>,
}

/// `[http]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTable {
    /// Where the page, metrics, probes and status are served.
    pub listen: Option<Endpoint>,
    /// Whether the page is served.
    pub page: Option<bool>,
    /// What a request has to know to retry jobs or to pause queues; better in the environment.
    pub token: Option<Token>,
    /// Names by which browsers reach the page, besides addresses and `localhost`.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// `[otlp]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpTable {
    /// Whether jobs are traced; by default if a collector is named.
    pub enabled: Option<bool>,
    /// The collector, without the path for traces: `http://127.0.0.1:4318`.
    pub endpoint: Option<String>,
    /// Whether a job's span is a child of the one that pushed the job: `parent`, `link` or `auto`.
    #[serde(default)]
    pub parent: Continues,
    /// `messaging.system` of all spans.
    pub system: Option<String>,
}

/// `[php]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhpTable {
    /// A queue of the same connection that PHP workers serve.
    #[serde(default, deserialize_with = "queue_name")]
    pub queue: Option<String>,
    /// The program that is PHP, with arguments of its own if it is a list.
    pub binary: Option<Spanned<OneOrMore>>,
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
    /// Laravel's events that PHP raises for jobs that run in handlers: `none`, `failures` or `all`.
    #[serde(default, deserialize_with = "some_events")]
    pub events: Option<PhpEvents>,
    /// What becomes of the app's payload hooks: `ask` or `skip`.
    #[serde(default)]
    pub payload_hooks: PayloadHooks,
}

/// What becomes of the app's payload hooks (`Queue::createPayloadUsing`) for jobs that artisand pushes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadHooks {
    /// PHP is asked what they add.
    #[default]
    Ask,
    /// Such jobs go without what they would add.
    Skip,
}

/// `[horizon]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HorizonTable {
    /// Whether to write Horizon's records; by default if the app has Horizon.
    pub enabled: Option<bool>,
    /// What the dashboard shows of this worker.
    #[serde(default)]
    pub register: Registration,
    /// How many of the jobs that succeed keep their record.
    #[serde(default)]
    pub completed: Share,
}

/// `[pulse]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PulseTable {
    /// Whether to write Pulse's entries; by default if the app has Pulse.
    pub enabled: Option<bool>,
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
