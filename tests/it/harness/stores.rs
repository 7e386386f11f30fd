//! Every kind of database that an app may keep its failed jobs and its cache in.

use super::sql::{MariaDbServer, PostgresServer};

/// Environment of an app.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// One server of each kind; `SQLite` needs none.
pub(crate) struct Databases {
    pub(crate) mariadb: MariaDbServer,
    pub(crate) postgres: PostgresServer,
}

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    MariaDb,
    Postgres,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlite, Self::MariaDb, Self::Postgres];
}

impl Databases {
    /// Starts the servers.
    pub(crate) fn start() -> Self {
        std::thread::scope(|scope| {
            let mariadb = scope.spawn(MariaDbServer::start);
            let postgres = scope.spawn(PostgresServer::start);
            Self {
                mariadb: mariadb.join().unwrap(),
                postgres: postgres.join().unwrap(),
            }
        })
    }

    /// Creates a database of this name and returns the environment of an app that uses it.
    pub(crate) fn create(&self, kind: Kind, name: &str) -> Settings {
        let sql = format!("create database {name}");
        let mut settings = match kind {
            Kind::Sqlite => return vec![("DB_CONNECTION", "sqlite".to_owned())],
            Kind::MariaDb => {
                self.mariadb.query(&sql);
                self.mariadb.env().to_vec()
            }
            Kind::Postgres => {
                self.postgres.query(&sql);
                self.postgres.env().to_vec()
            }
        };
        settings.retain(|(variable, _)| *variable != "DB_DATABASE");
        settings.push(("DB_DATABASE", name.to_owned()));
        settings
    }
}
