//! Database connections of the app.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use super::tls::Tls;
use super::url::{Connection, Kind};
use crate::connection::{Database, DatabaseKind, DatabaseOptions, Databases};
use crate::shown::with_causes;

impl Laravel {
    /// A database connection; the default one if no name is given.
    ///
    /// # Errors
    ///
    /// It is missing, of a kind that is not supported, or cannot be told.
    pub fn database(&self, name: Option<&str>) -> SettingResult<DatabaseOptions> {
        let name = match name.filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => self
                .text(&["database", "default"])?
                .ok_or_else(|| self.missing(&["database", "default"]))?,
        };
        // Laravel knows `NAME::read` and `NAME::write`.
        let name = name.split("::").next().unwrap_or_default();
        let path = ["database", "connections", name];
        let Some(Value::Object(fields)) = self.at(&path)? else {
            return Err(self.missing(&path));
        };
        let mut connection = Connection::new(self, path, Kind::Database, fields.clone())?;
        let write = match connection.fields.get("write") {
            Some(Value::Array(hosts)) => hosts.first().cloned(),
            write => write.cloned(),
        };
        if let Some(Value::Object(write)) = write {
            connection.fields.extend(write);
        }
        let kind = kind_of(&connection)?;
        let defaults = DatabaseOptions::new(name, kind);
        let host = connection.filled("host")?;
        let database = connection.text("database")?.unwrap_or_default();
        let tls = self.database_tls(&connection, kind, name)?;
        // PHP looks from its current directory, which is the app's under a process manager.
        let file = |path: Option<String>| path.map(|path| self.base.join(path));
        Ok(DatabaseOptions {
            host: host.unwrap_or_else(|| defaults.host.clone()),
            port: connection.port(defaults.port)?,
            socket: connection.filled("unix_socket")?.map(PathBuf::from),
            database: if kind == DatabaseKind::Sqlite {
                self.sqlite_path(&database, &connection.path_of("database"))?
            } else {
                database
            },
            username: connection.text("username")?.unwrap_or_default(),
            password: connection.filled("password")?,
            prefix: connection.text("prefix")?.unwrap_or_default(),
            search_path: self.search_path(&connection)?,
            ssl_mode: tls.mode,
            ssl_ca: match tls.ca.as_deref() {
                Some(DatabaseOptions::SYSTEM_CA) => tls.ca.map(PathBuf::from),
                _ => file(tls.ca),
            },
            ssl_cert: file(tls.cert),
            ssl_key: file(tls.key),
            timezone: connection.filled("timezone")?,
            ..defaults
        })
    }

    /// How transactions of a connection to `SQLite` begin, if the app says it.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn transaction_mode(&self, name: &str) -> SettingResult<Option<String>> {
        self.text(&["database", "connections", name, "transaction_mode"])
    }

    fn database_tls(
        &self,
        connection: &Connection<'_>,
        kind: DatabaseKind,
        name: &str,
    ) -> SettingResult<Tls> {
        match kind {
            DatabaseKind::Sqlite => Ok(Tls::default()),
            DatabaseKind::MySql => self.mysql_tls(connection.fields.get("options"), name),
            DatabaseKind::Postgres => Ok(Tls {
                mode: connection.filled("sslmode")?,
                ca: connection.filled("sslrootcert")?,
                cert: connection.filled("sslcert")?,
                key: connection.filled("sslkey")?,
            }),
        }
    }

    fn search_path(&self, connection: &Connection<'_>) -> SettingResult<Option<String>> {
        let fields = &connection.fields;
        let paths = match fields.get("search_path").or_else(|| fields.get("schema")) {
            Some(Value::Array(paths)) => {
                let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
                Some(paths.join(", "))
            }
            Some(value) => self.scalar(value, &connection.path_of("search_path"))?,
            None => None,
        };
        Ok(paths.filter(|paths| !paths.is_empty()))
    }

    fn sqlite_path(&self, database: &str, path: &[&str]) -> SettingResult<String> {
        if database.is_empty() || database == ":memory:" || database.contains("mode=memory") {
            return Err(SettingError::Wrong {
                path: path.join("."),
                found: format!("`{database}`"),
                expected: "a file, which other processes can open as well".into(),
            });
        }
        let file = Path::new(database);
        let there = if file.is_absolute() {
            file.to_owned()
        } else {
            self.base.join(file)
        };
        Ok(there.to_string_lossy().into_owned())
    }

    /// Opens a database connection; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// See [`database`](Self::database).
    pub fn open_database(&self, name: Option<&str>) -> SettingResult<Database> {
        let options = self.database(name)?;
        Database::new(&options).map_err(|source| SettingError::Connection {
            path: format!("database.connections.{}", options.name),
            source,
        })
    }

    /// All database connections, opened at their first use.
    pub fn databases(&self) -> Databases {
        let default = self.text(&["database", "default"]).ok().flatten();
        let names = self.names(&["database", "connections"]).unwrap_or_default();
        let options = |name: String| {
            let options = self.database(Some(&name));
            let options = options.map_err(|error| with_causes(&error));
            (name, options)
        };
        Databases::new(default, names.into_iter().map(options))
    }
}

fn kind_of(connection: &Connection<'_>) -> SettingResult<DatabaseKind> {
    let driver = connection.text("driver")?.unwrap_or_default();
    let driver = match &*driver {
        "postgres" | "postgresql" => "pgsql",
        "mysql2" => "mysql",
        "sqlite3" => "sqlite",
        driver => driver,
    };
    DatabaseKind::of_driver(driver).ok_or_else(|| SettingError::Wrong {
        path: connection.path_of("driver").join("."),
        found: format!("`{driver}`"),
        expected: "sqlite, mysql, mariadb or pgsql".into(),
    })
}
