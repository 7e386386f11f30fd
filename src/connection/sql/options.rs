//! How to reach a database.

use std::fmt;
use std::path::PathBuf;

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// A file.
    Sqlite,
    /// `MySQL` and `MariaDB`.
    MySql,
    /// `PostgreSQL`.
    Postgres,
}

impl DatabaseKind {
    /// The kind of server for the name of a Laravel driver; `None` for an unsupported driver.
    pub fn of_driver(driver: &str) -> Option<Self> {
        match driver {
            "sqlite" => Some(Self::Sqlite),
            "mysql" | "mariadb" => Some(Self::MySql),
            "pgsql" => Some(Self::Postgres),
            _ => None,
        }
    }

    /// The feature that has the driver for it.
    #[cfg(not(all(feature = "sqlite", feature = "mysql", feature = "postgres")))]
    pub(super) fn feature(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }
}

/// How to reach a database.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// Name of the connection in the app, for messages.
    pub name: String,
    /// Kind of server.
    pub kind: DatabaseKind,
    /// Host name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path of a unix socket, which wins over host and port.
    pub socket: Option<PathBuf>,
    /// Name of the database; for `SQLite` the path of its file.
    pub database: String,
    /// User.
    pub username: String,
    /// Password.
    pub password: Option<String>,
    /// Put before every table name.
    pub prefix: String,
    /// `PostgreSQL`'s `search_path`, comma separated.
    pub search_path: Option<String>,
    /// `PostgreSQL`'s `sslmode`; for `MySQL` one of the same names, and `None` for no TLS.
    pub ssl_mode: Option<String>,
    /// Path of the certificate authority that the server is checked against.
    pub ssl_ca: Option<PathBuf>,
    /// Path of the certificate that the client shows to the server.
    pub ssl_cert: Option<PathBuf>,
    /// Path of the key of that certificate.
    pub ssl_key: Option<PathBuf>,
    /// Time zone of the session, where the app sets one.
    pub timezone: Option<String>,
    /// Most connections that are open at once.
    pub connections: u32,
}

impl DatabaseOptions {
    /// The value of [`ssl_ca`](Self::ssl_ca) for the certificate authorities that this machine trusts
    /// (`PostgreSQL`).
    pub const SYSTEM_CA: &'static str = "system";

    /// Options for a database of this kind, with only the server's usual address filled in.
    pub fn new(name: impl Into<String>, kind: DatabaseKind) -> Self {
        Self {
            name: name.into(),
            kind,
            host: "127.0.0.1".into(),
            port: if kind == DatabaseKind::Postgres {
                5432
            } else {
                3306
            },
            socket: None,
            database: String::new(),
            username: String::new(),
            password: None,
            prefix: String::new(),
            search_path: None,
            ssl_mode: None,
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
            timezone: None,
            connections: 4,
        }
    }

    /// Address of the database, for messages: never the password.
    pub fn address(&self) -> String {
        match (self.kind, &self.socket) {
            (DatabaseKind::Sqlite, _) => self.database.clone(),
            (_, Some(socket)) => format!("{}/{}", socket.display(), self.database),
            (_, None) => format!("{}:{}/{}", self.host, self.port, self.database),
        }
    }
}

impl fmt::Debug for DatabaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseOptions")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("address", &self.address())
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
