//! Every kind of database that an app may keep its failed jobs and its cache in.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::sql::{Engine, MariaDb, MySql, Postgres, SqlServer};

/// Environment of an app.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// One server of each kind, started when it is needed first; `SQLite` needs none.
///
/// All scenes that do their server no harm share these, each with a database of its own.
#[derive(Default)]
pub(crate) struct Databases {
    mariadb: OnceLock<SqlServer<MariaDb>>,
    mysql: OnceLock<SqlServer<MySql>>,
    postgres: OnceLock<SqlServer<Postgres>>,
}

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    MariaDb,
    MySql,
    Postgres,
}

impl Kind {
    /// One kind for each dialect.
    pub(crate) const ALL: [Self; 3] = [Self::Sqlite, Self::MariaDb, Self::Postgres];
}

impl Databases {
    /// The servers that another test uses at the moment, or else new ones; the last of their users stops them.
    pub(crate) fn shared() -> Arc<Self> {
        static USED: Mutex<Weak<Databases>> = Mutex::new(Weak::new());
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        used.upgrade().unwrap_or_else(|| {
            let databases = Arc::new(Self::default());
            *used = Arc::downgrade(&databases);
            databases
        })
    }

    /// Creates a database of this name and returns the environment of an app that uses it.
    pub(crate) fn create(&self, kind: Kind, name: &str) -> Settings {
        match kind {
            Kind::Sqlite => vec![("DB_CONNECTION", "sqlite".to_owned())],
            Kind::MariaDb => create(self.mariadb.get_or_init(SqlServer::start), name),
            Kind::MySql => create(self.mysql.get_or_init(SqlServer::start), name),
            Kind::Postgres => create(self.postgres.get_or_init(SqlServer::start), name),
        }
    }
}

fn create<E: Engine>(server: &SqlServer<E>, name: &str) -> Settings {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{name}_{number}");
    server.query(&format!("create database {name}"));
    let mut settings = server.env().to_vec();
    settings.retain(|(variable, _)| *variable != "DB_DATABASE");
    settings.push(("DB_DATABASE", name));
    settings
}
