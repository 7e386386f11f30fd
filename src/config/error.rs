//! What is wrong with settings.

use std::path::PathBuf;

use super::laravel::SettingError;
use super::place::ErrorPlace;
use crate::app::{EnvError, ManifestError};
use crate::connection;
use crate::payload::TargetPatternError;
use crate::queue::{QueueName, QueueRefusal};
use crate::routing::MappingError;

/// An error in the settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or holds a key or value that means nothing.
    #[error("{place}: {problem}")]
    Toml {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong; not the line itself, which may hold a password.
        problem: String,
    },
    /// `.env` is one that Laravel refuses, too.
    #[error("{path} is not a valid environment file")]
    Env {
        /// The file.
        path: PathBuf,
        /// The line and what is wrong with it.
        source: EnvError,
    },
    /// A variable holds something that cannot be used.
    #[error("`{name}` is `{value}`, expected {expected}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// What it holds.
        value: String,
        /// What would work.
        expected: &'static str,
    },
    /// There is no connection of this name.
    #[error("no queue connection `{name}` (configured: {configured})")]
    UnknownConnection {
        /// The name asked for.
        name: String,
        /// The names there are.
        configured: String,
    },
    /// A connection that is not on Redis.
    #[error(
        "queue connection `{name}` has the driver `{driver}`, and artisand works queues on Redis, in databases, on beanstalkd and on SQS (connections it works: {usable})"
    )]
    Driver {
        /// Name of the connection.
        name: String,
        /// Its driver.
        driver: String,
        /// The connections that could be worked.
        usable: String,
    },
    /// Jobs of a connection wait nowhere.
    #[error(
        "queue connection `{name}` has the driver `{driver}`, whose jobs wait nowhere: PHP runs them where they are pushed, or drops them"
    )]
    Nowhere {
        /// Name of the connection.
        name: String,
        /// Its driver.
        driver: &'static str,
    },
    /// A cluster cannot be used as it is configured.
    #[error("queue connection `{connection}` is on a Redis cluster, and {problem}: {remedy}")]
    Cluster {
        /// Name of the connection.
        connection: String,
        /// What was found.
        problem: String,
        /// What would work.
        remedy: String,
    },
    /// The keys of a queue are in different slots of a cluster.
    #[error("queue `{queue}` of connection `{connection}` cannot be worked: {why}")]
    Slots {
        /// Name of the connection.
        connection: String,
        /// The queue.
        queue: QueueName,
        /// Why, and what would work.
        why: QueueRefusal,
    },
    /// The table of a queue connection does not exist.
    #[error(
        "queue connection `{connection}` keeps its jobs in the table `{table}`, which does not exist: `php artisan make:queue-table` (before Laravel 11 `queue:table`) and `php artisan migrate` make it"
    )]
    NoTable {
        /// Name of the connection.
        connection: String,
        /// Name of the table.
        table: String,
    },
    /// A setting of Redis for a connection that is on no Redis.
    #[error(
        "`{key}` under [connections.{connection}] in artisand.toml is a setting for Redis, and the app keeps `{connection}` {place}: take it out, or name another connection"
    )]
    OnlyRedis {
        /// Name of the connection.
        connection: String,
        /// The setting.
        key: &'static str,
        /// Where the queues are instead.
        place: &'static str,
    },
    /// A server that only deletes jobs needs another one for what their ends bring about, and none is known.
    #[error(
        "queue connection `{connection}` is on {driver}, which cannot keep what the end of a job brings about, and nothing says what can ({why}): set `ledger` under [worker] in artisand.toml to `redis`, `redis:NAME`, `database`, `database:NAME`, or to a file on this machine such as `storage/artisand.sqlite`"
    )]
    NoLedger {
        /// Name of the connection.
        connection: String,
        /// Its driver.
        driver: &'static str,
        /// Why nothing is known.
        why: String,
    },
    /// A setting that needs a queue which leaves jobs where they are, and takes others.
    #[error(
        "{setting} cannot be kept on queue connection `{connection}`: {driver} gives the next job and no other; {instead}"
    )]
    CannotChoose {
        /// Name of the connection.
        connection: String,
        /// Its driver.
        driver: &'static str,
        /// The setting.
        setting: String,
        /// What would work.
        instead: &'static str,
    },
    /// Nothing says which keys of a Redis are the app's.
    #[error(
        "no app and no key prefix is known for queue connection `{connection}`: run this in the app's directory or give that with --app, or set `prefix` under [connections.{connection}] in artisand.toml (`prefix = \"\"` if the keys have none), or REDIS_PREFIX{seen}"
    )]
    NoPrefix {
        /// Name of the connection.
        connection: String,
        /// What keys of queues the server shows, as the end of the sentence; empty if it was not asked.
        seen: String,
    },
    /// PHP cannot describe the app.
    #[error("{0}")]
    Php(String),
    /// PHP cannot load the app's configuration, and nothing else says it.
    #[error(
        "{0}; without PHP, write a manifest where it runs (`artisand manifest`), or set `settings = \"env\"` in artisand.toml to take the settings from the environment and .env alone"
    )]
    Settings(String),
    /// Settings are to come from a manifest, and there is none.
    #[error(
        "`settings` is `manifest`, and there is no manifest: write one with `artisand manifest`"
    )]
    NoManifest,
    /// Horizon's records are wanted, and the app has no Horizon.
    #[error(
        "`enabled = true` under [horizon], and the app's settings name no Horizon: install laravel/horizon, write the manifest again if one is used, or remove the line"
    )]
    NoHorizon,
    /// Pulse's entries are wanted, and the app has no Pulse.
    #[error(
        "`enabled = true` under [pulse], and the app's settings name no Pulse: install laravel/pulse, write the manifest again if one is used, or remove the line"
    )]
    NoPulse,
    /// Traces are wanted, and this program cannot make them.
    #[error(
        "[otlp] asks for traces of jobs, and this program was built without OpenTelemetry (feature `otlp`)"
    )]
    NoOtlp,
    /// The collector of traces is none.
    #[error("{name} is not the URL of a collector, expected one such as http://127.0.0.1:4318")]
    Collector {
        /// The setting; what it holds may have a password.
        name: &'static str,
    },
    /// A command needs an app, and none is set.
    #[error(
        "no Laravel app is known: run this in its directory, or give that with --app, ARTISAND_APP or `app` in artisand.toml, or give a manifest"
    )]
    NoApp,
    /// The manifest cannot be used.
    #[error("cannot use the manifest")]
    Manifest(#[from] ManifestError),
    /// A setting of the app cannot be used.
    #[error("cannot use the app's settings ({origin})")]
    Setting {
        /// Where they came from.
        origin: String,
        /// Which, and why.
        source: Box<SettingError>,
    },
    /// The address of a connection cannot be used.
    #[error("queue connection `{name}`")]
    Address {
        /// Name of the connection.
        name: String,
        /// What is wrong.
        source: connection::Error,
    },
    /// The file for the ends of jobs cannot be made.
    #[error("cannot make the file {} (`ledger` under [worker] in artisand.toml)", .path.display())]
    LedgerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: crate::handler::BoxError,
    },
    /// A mapping cannot be carried out.
    #[error("{place}: mapping of `{target}`")]
    Mapping {
        /// File and line.
        place: ErrorPlace,
        /// What the mapping is for.
        target: String,
        /// What is wrong.
        source: MappingError,
    },
    /// The program of a mapping cannot be started.
    #[error("{place}: {problem}")]
    Program {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong.
        problem: String,
    },
    /// What a mapping is for cannot be read.
    #[error("{place}")]
    Pattern {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong.
        source: TargetPatternError,
    },
    /// A mapping does not say what it is for, or says two things.
    #[error("{place}: {problem}")]
    Target {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong and what would work.
        problem: String,
    },
    /// A policy without what it needs, or an unknown one.
    #[error("{place}: {problem}")]
    Policy {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong and what would work.
        problem: String,
    },
}

impl Error {
    /// Whether a setting is only not known here.
    pub fn is_unknown_setting(&self) -> bool {
        matches!(self, Self::Setting { source, .. } if matches!(**source, SettingError::Unknown { .. }))
    }
}
