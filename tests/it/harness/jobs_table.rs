//! A table of jobs as Laravel's migrations make it, on each kind of database.

use std::sync::Arc;
use std::time::Duration;

use artisand::connection::{Database, DatabaseKind, DatabaseOptions, FailedJobsTable};
use artisand::queue::{DatabaseQueue, DatabaseQueueOptions};
use artisand::time::Clock;
use tempfile::TempDir;

use super::stores::{Databases, Kind, Settings};

/// An empty database with the tables `jobs`, `failed_jobs` and `cache_locks`.
pub(crate) struct JobsTable {
    options: DatabaseOptions,
    /// Environment of an app that uses it; `SQLite` has its file elsewhere.
    pub(crate) settings: Settings,
    /// Holds the file of `SQLite`.
    _home: TempDir,
    _servers: Arc<Databases>,
}

impl JobsTable {
    pub(crate) async fn create(kind: Kind) -> Self {
        let home = TempDir::new().unwrap();
        let servers = Databases::shared();
        let creating = Arc::clone(&servers);
        let settings = tokio::task::spawn_blocking(move || creating.create(kind, "jobs"));
        let settings = settings.await.unwrap();
        let options = options(kind, &settings, &home);
        let database = Database::new(&options).unwrap();
        for statement in migration(kind) {
            database.execute(&statement, &[]).await.unwrap();
        }
        Self {
            options,
            settings,
            _home: home,
            _servers: servers,
        }
    }

    /// Where the database is.
    pub(crate) fn options(&self) -> &DatabaseOptions {
        &self.options
    }

    /// A connection of another program.
    pub(crate) fn database(&self) -> Database {
        Database::new(&self.options).unwrap()
    }

    /// The database as other programs name it.
    pub(crate) fn url(&self) -> String {
        let of = &self.options;
        let scheme = match of.kind {
            DatabaseKind::Sqlite => return format!("sqlite://{}", of.database),
            DatabaseKind::MySql => "mysql",
            DatabaseKind::Postgres => "postgres",
        };
        let password = of.password.as_deref().unwrap_or_default();
        format!(
            "{scheme}://{}:{password}@{}:{}/{}",
            of.username, of.host, of.port, of.database
        )
    }

    /// Sets a column of all rows.
    pub(crate) async fn set(&self, column: &str, value: i64) {
        let sql = format!("update \"jobs\" set \"{column}\" = {value}");
        self.database().execute(&sql, &[]).await.unwrap();
    }

    /// The queues in the table, with reservations of 90 seconds.
    pub(crate) fn queue(&self, clock: Clock) -> DatabaseQueue {
        self.queue_beside(clock, None)
    }

    /// The same, beside a table of failed jobs.
    pub(crate) fn queue_beside(
        &self,
        clock: Clock,
        failed: Option<FailedJobsTable>,
    ) -> DatabaseQueue {
        let options = DatabaseQueueOptions {
            retry_after: Duration::from_secs(90),
            clock,
            failed,
            ..DatabaseQueueOptions::default()
        };
        DatabaseQueue::new(&self.options, options).unwrap()
    }
}

fn options(kind: Kind, settings: &Settings, home: &TempDir) -> DatabaseOptions {
    let of = |name: &str| {
        let found = settings.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    if kind == Kind::Sqlite {
        let file = home.path().join("database.sqlite");
        std::fs::File::create(&file).unwrap();
        return DatabaseOptions {
            database: file.to_str().unwrap().into(),
            ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
        };
    }
    let kind = match kind {
        Kind::Postgres => DatabaseKind::Postgres,
        _ => DatabaseKind::MySql,
    };
    DatabaseOptions {
        host: of("DB_HOST"),
        port: of("DB_PORT").parse().unwrap(),
        database: of("DB_DATABASE"),
        username: of("DB_USERNAME"),
        password: Some(of("DB_PASSWORD")),
        ..DatabaseOptions::new("app", kind)
    }
}

/// What makes a table of batches, as Laravel's migration does; `long` is the type of long texts.
pub(crate) fn batches_table(name: &str, long: &str) -> String {
    format!(
        "create table {name} (id varchar(255) primary key, name varchar(255) not null, \
         total_jobs integer not null, pending_jobs integer not null, failed_jobs integer not null, \
         failed_job_ids text not null, options {long} null, cancelled_at integer null, \
         created_at integer not null, finished_at integer null)"
    )
}

/// The statements of Laravel's migrations.
pub(crate) fn migration(kind: Kind) -> Vec<String> {
    let (id, tiny, int, text) = match kind {
        Kind::Sqlite => (
            "integer primary key autoincrement",
            "integer",
            "integer",
            "text",
        ),
        Kind::MariaDb | Kind::MySql => (
            "bigint unsigned auto_increment primary key",
            "tinyint unsigned",
            "int unsigned",
            "longtext",
        ),
        Kind::Postgres => ("bigserial primary key", "smallint", "integer", "text"),
    };
    vec![
        format!(
            "create table \"jobs\" (\"id\" {id}, \"queue\" varchar(255) not null, \"payload\" {text} not null, \
             \"attempts\" {tiny} not null, \"reserved_at\" {int} null, \"available_at\" {int} not null, \
             \"created_at\" {int} not null)"
        ),
        "create index \"jobs_queue_index\" on \"jobs\" (\"queue\")".to_owned(),
        format!(
            "create table \"cache_locks\" (\"key\" varchar(255) primary key, \"owner\" varchar(255) not null, \
             \"expiration\" {int} not null)"
        ),
        format!(
            "create table \"failed_jobs\" (\"id\" {id}, \"uuid\" varchar(255) not null unique, \"connection\" {text} not null, \
             \"queue\" {text} not null, \"payload\" {text} not null, \"exception\" {text} not null, \
             \"failed_at\" timestamp default current_timestamp not null)"
        ),
    ]
}
