//! Database connections of the app.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Laravel;
use super::error::{Found, SettingError};
use super::tls::Tls;
use super::url::Url;
use crate::connection::{Database, DatabaseKind, DatabaseOptions, Databases};
use crate::shown::with_causes;

impl Laravel {
    /// A database connection; the default one if no name is given.
    ///
    /// # Errors
    ///
    /// It is missing, of a kind that is not supported, or cannot be told.
    pub fn database(&self, name: Option<&str>) -> Found<DatabaseOptions> {
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
        let mut fields = fields.clone();
        self.apply_url(&mut fields, &path, Url::Database)?;
        let write = match fields.get("write") {
            Some(Value::Array(hosts)) => hosts.first().cloned(),
            write => write.cloned(),
        };
        if let Some(Value::Object(write)) = write {
            fields.extend(write);
        }
        let of = |key: &'static str| ["database", "connections", name, key];
        let field = |key: &'static str| match fields.get(key) {
            // Of several hosts Laravel picks any.
            Some(Value::Array(several)) => match several.first() {
                Some(first) => self.scalar(first, &of(key)),
                None => Ok(None),
            },
            Some(value) => self.scalar(value, &of(key)),
            None => Ok(None),
        };
        let driver = field("driver")?.unwrap_or_default();
        let driver = match &*driver {
            "postgres" | "postgresql" => "pgsql",
            "mysql2" => "mysql",
            "sqlite3" => "sqlite",
            driver => driver,
        };
        let kind = DatabaseKind::of_driver(driver).ok_or_else(|| SettingError::Wrong {
            path: of("driver").join("."),
            found: format!("`{driver}`"),
            expected: "sqlite, mysql, mariadb or pgsql".into(),
        })?;
        let defaults = DatabaseOptions::new(name, kind);
        let database = field("database")?.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let tls = match kind {
            DatabaseKind::Sqlite => Tls::default(),
            DatabaseKind::MySql => self.mysql_tls(fields.get("options"), name)?,
            DatabaseKind::Postgres => Tls {
                mode: filled(field("sslmode")?),
                ca: filled(field("sslrootcert")?),
                cert: filled(field("sslcert")?),
                key: filled(field("sslkey")?),
            },
        };
        // PHP looks from its current directory, which is the app's under a process manager.
        let file = |path: Option<String>| path.map(|path| self.base.join(path));
        let search_path = match fields.get("search_path").or_else(|| fields.get("schema")) {
            Some(Value::Array(paths)) => {
                let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
                Some(paths.join(", "))
            }
            Some(value) => self.scalar(value, &of("search_path"))?,
            None => None,
        };
        Ok(DatabaseOptions {
            host: filled(field("host")?).unwrap_or_else(|| defaults.host.clone()),
            port: self.port(&fields, &of("port"), defaults.port)?,
            socket: filled(field("unix_socket")?).map(PathBuf::from),
            database: if kind == DatabaseKind::Sqlite {
                self.sqlite_path(&database, &of("database"))?
            } else {
                database
            },
            username: field("username")?.unwrap_or_default(),
            password: filled(field("password")?),
            prefix: field("prefix")?.unwrap_or_default(),
            search_path: filled(search_path),
            ssl_mode: tls.mode,
            ssl_ca: match tls.ca.as_deref() {
                Some(DatabaseOptions::SYSTEM_CA) => tls.ca.map(PathBuf::from),
                _ => file(tls.ca),
            },
            ssl_cert: file(tls.cert),
            ssl_key: file(tls.key),
            timezone: filled(field("timezone")?),
            ..defaults
        })
    }

    fn sqlite_path(&self, database: &str, path: &[&str]) -> Found<String> {
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
    pub fn open_database(&self, name: Option<&str>) -> Found<Database> {
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
