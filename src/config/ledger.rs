//! Where the ends of jobs are noted whose own server cannot do that.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::geteuid;

use super::laravel::Laravel;
use super::{Config, Doubt, Error};
use crate::connection::{
    self, Database, DatabaseKind, DatabaseOptions, FailedJobsTable, Redis, RedisOptions,
};
use crate::queue::{DatabaseQueue, DatabaseQueueOptions, Driver, RedisQueue, RedisQueueOptions};
use crate::shown::with_causes;

/// The table of an app's database whose rows are the notes, as Laravel's own migration names it.
const TABLE: &str = "jobs";

/// Where the ends of jobs are noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerPlace {
    /// The server of the queues itself.
    Own,
    /// Keys of a Redis of the app.
    Redis {
        /// How to reach it.
        redis: RedisOptions,
        /// A cache store of the app in the same database: Laravel clears it by emptying the database.
        emptied_by: Option<String>,
    },
    /// The table of jobs in a database of the app.
    Database {
        /// The database.
        database: DatabaseOptions,
        /// Its table of failed jobs, if it has one.
        failed: Option<FailedJobsTable>,
    },
    /// A `SQLite` file on this machine.
    File(PathBuf),
}

impl fmt::Display for LedgerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the server of the queues"),
            Self::Redis { redis, .. } => write!(f, "Redis at {}", redis.address),
            Self::Database { database, .. } => {
                write!(f, "table `{TABLE}` at {}", database.address())
            }
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

impl LedgerPlace {
    /// Opens it; nothing is sent yet.
    pub(super) fn open(&self) -> Result<Option<Arc<dyn Driver>>, connection::Error> {
        let (database, failed) = match self {
            Self::Own => return Ok(None),
            Self::Redis { redis, .. } => {
                let queue =
                    RedisQueue::new(Redis::new(redis)?, RedisQueueOptions::default()).as_ledger();
                return Ok(Some(Arc::new(queue)));
            }
            Self::Database { database, failed } => (database.clone(), failed.clone()),
            Self::File(path) => (of_file(path), None),
        };
        let options = DatabaseQueueOptions {
            table: TABLE.into(),
            failed,
            ..DatabaseQueueOptions::default()
        };
        Ok(Some(Arc::new(DatabaseQueue::new(&database, options)?)))
    }

    /// Says that the notes are lost when the app's cache is cleared, if they are.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        let Self::Redis {
            redis,
            emptied_by: Some(store),
        } = self
        else {
            return None;
        };
        Some(Doubt {
            place: None,
            problem: format!(
                "ends of jobs are noted: {self}, database {}, where the cache store `{store}` is: clearing it (`php artisan cache:clear`, `optimize:clear`) empties the database, and steps of chains, locks, counts of batches and failed jobs are lost",
                redis.database
            ),
            remedy: "name another place as `ledger` under [worker], such as `redis:NAME` or `storage/artisand.sqlite`, or give the cache store another database",
            is_certain: false,
        })
    }

    /// Whether both are in databases of one Redis.
    fn is_on_server_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Redis { redis, .. }, Self::Redis { redis: other, .. }) => {
                redis.address == other.address
            }
            _ => false,
        }
    }

    /// Makes the file with its table, if it is one and not there. If root makes it, it belongs to the owner of its
    /// directory.
    ///
    /// # Errors
    ///
    /// It cannot be made, or is no such file.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        let Self::File(path) = self else {
            return Ok(());
        };
        let made = || {
            let directory = path.parent().filter(|path| *path != Path::new(""));
            make_directories(directory.unwrap_or(Path::new(".")))?;
            let mut options = std::fs::File::options();
            // It holds payloads: not for all users of the machine, whatever the umask says.
            options.append(true).mode(0o660);
            match options.clone().create_new(true).open(path) {
                Ok(file) => give_to_owner(&file, path),
                // Or a link to where it is to be.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    options.create(true).open(path).map(drop)
                }
                Err(error) => Err(error),
            }
        };
        made().map_err(|source| Error::LedgerFile {
            path: path.clone(),
            source: source.into(),
        })?;
        let failed = |source: connection::Error| Error::LedgerFile {
            path: path.clone(),
            source: source.into(),
        };
        let database = Database::new(&of_file(path)).map_err(failed)?;
        for statement in DatabaseQueue::TABLE_OF_JOBS {
            database.execute(statement, &[]).await.map_err(failed)?;
        }
        database.close().await;
        Ok(())
    }
}

/// Makes a directory with those above it. If root makes them, they belong to the owner of the one that was there.
fn make_directories(path: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    std::fs::create_dir_all(path)?;
    for made in missing.into_iter().rev().filter(|_| geteuid().is_root()) {
        let above = made.parent().unwrap_or(made);
        let owner = std::fs::metadata(Path::new(".").join(above))?;
        chown(made, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

/// Gives a file that root has made to the owner of its directory: the next worker may run as that user.
fn give_to_owner(file: &std::fs::File, path: &Path) -> std::io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    // A relative path of one name has an empty parent.
    let owner = std::fs::metadata(Path::new(".").join(directory))?;
    fchown(file, Some(owner.uid()), Some(owner.gid()))
}

fn of_file(path: &Path) -> DatabaseOptions {
    DatabaseOptions {
        database: path.display().to_string(),
        ..DatabaseOptions::new("ledger", DatabaseKind::Sqlite)
    }
}

/// Where the ends of jobs are noted, of a connection whose own server cannot; or why nothing is known.
///
/// Which place it is follows from settings alone, and not from what answers now: a note that is written to one place
/// and looked for in another is lost.
pub(super) fn ledger(config: &Config) -> Result<LedgerPlace, String> {
    let app = || {
        let laravel = config.laravel.as_ref();
        laravel.ok_or_else(|| "no Laravel app is known".to_owned())
    };
    let Some(said) = config.file.worker.ledger.as_deref() else {
        return of_app(app()?);
    };
    match said.split_once(':').unwrap_or((said, "")) {
        ("redis", name) => on_redis(app()?, name),
        ("database", name) => in_database(app()?, name),
        _ => {
            let base = config.laravel.as_ref().map(|laravel| laravel.base.clone());
            Ok(LedgerPlace::File(base.unwrap_or_default().join(said)))
        }
    }
}

/// A Redis, if the app keeps its cache on one, as it cannot do without that; else its default database.
fn of_app(laravel: &Laravel) -> Result<LedgerPlace, String> {
    let store = laravel.default_cache().unwrap_or_default();
    match setting_of_store(laravel, &store, "driver").as_deref() {
        Some("redis") => on_redis_of_app(laravel, &store),
        _ => in_database(laravel, ""),
    }
}

/// The Redis connection `default`, if that is on the server of the cache: clearing the cache empties its own database.
/// On another server, which the app may not use at all, that of the cache.
fn on_redis_of_app(laravel: &Laravel, store: &str) -> Result<LedgerPlace, String> {
    let connection = setting_of_store(laravel, store, "connection").unwrap_or_default();
    let of_cache = on_redis(laravel, &connection)?;
    match on_redis(laravel, "") {
        Ok(place) if place.is_on_server_of(&of_cache) => Ok(place),
        _ => Ok(of_cache),
    }
}

fn on_redis(laravel: &Laravel, name: &str) -> Result<LedgerPlace, String> {
    let name = if name.is_empty() { "default" } else { name };
    let redis = laravel.redis(name).map_err(|error| with_causes(&error))?;
    Ok(LedgerPlace::Redis {
        emptied_by: store_in(laravel, &redis.options),
        redis: redis.options,
    })
}

/// A cache store of the app whose values are in this database.
fn store_in(laravel: &Laravel, redis: &RedisOptions) -> Option<String> {
    let stores = laravel.names(&["cache", "stores"]).unwrap_or_default();
    stores.into_iter().find(|store| {
        let driver = setting_of_store(laravel, store, "driver");
        let connection = setting_of_store(laravel, store, "connection");
        let connection = connection.filter(|name| !name.is_empty());
        let values = laravel.redis(connection.as_deref().unwrap_or("default"));
        let is_same = |values: &RedisOptions| {
            (&values.address, values.database) == (&redis.address, redis.database)
        };
        driver.as_deref() == Some("redis") && values.is_ok_and(|values| is_same(&values.options))
    })
}

fn setting_of_store(laravel: &Laravel, store: &str, key: &str) -> Option<String> {
    let setting = laravel.text(&["cache", "stores", store, key]);
    setting.ok().flatten()
}

fn in_database(laravel: &Laravel, name: &str) -> Result<LedgerPlace, String> {
    let database = laravel.database(Some(name));
    let database = database.map_err(|error| with_causes(&error))?;
    Ok(LedgerPlace::Database {
        failed: laravel.failed_table_in(&database),
        database,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::config::RedisTable;
    use crate::config::laravel::Origin;

    #[test]
    fn by_default_ends_are_noted_where_no_cache_is_cleared() {
        let server = |database: u8| json!({"host": "h", "port": 1, "database": database});
        #[rustfmt::skip]
        let rows = [
            // connection of the cache store, all connections => database of the ledger, store that empties it
            (json!("cache"),   json!({"default": server(0), "cache": server(1)}), 0, None),
            (json!("default"), json!({"default": server(0), "queue": server(1)}), 0, Some("redis")),
            (json!("cache"),   json!({"default": server(1), "cache": server(1)}), 1, Some("redis")),
            (json!(null),      json!({"default": server(0), "cache": server(1)}), 0, Some("redis")),
            // Without another database on the server of the cache.
            (json!("cache"),   json!({"default": {"host": "other", "port": 1}, "cache": server(1)}), 1, Some("redis")),
            (json!("cache"),   json!({"cache": server(1)}), 1, Some("redis")),
        ];
        for (connection, redis, database, store) in rows {
            let row = format!("{connection} {redis}");
            let stores = json!({
                "file": {"driver": "file"},
                "redis": {"driver": "redis", "connection": connection},
            });
            let laravel = Laravel {
                version: Some("13.31".to_owned()),
                config: json!({
                    "cache": {"default": "redis", "stores": stores},
                    "database": {"redis": redis},
                }),
                base: "/app".into(),
                storage: "/app/storage".into(),
                cache_prefixes: BTreeMap::new(),
                origin: Origin::Php { cached: None },
                env: Arc::new(|_| None),
                redis: RedisTable::default(),
            };
            let place = of_app(&laravel).unwrap();
            let LedgerPlace::Redis { redis, emptied_by } = &place else {
                panic!("{row}: {place}");
            };
            let found = (redis.database, emptied_by.as_deref());
            assert_eq!(found, (database, store), "{row}");
            assert_eq!(place.doubt().is_some(), store.is_some(), "{row}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_file_is_made_with_its_table_and_not_for_all_users() {
        let home = tempfile::tempdir().unwrap();
        if geteuid().is_root() {
            chown(home.path(), Some(65534), None).unwrap();
        }
        let owner = home.path().metadata().unwrap().uid();
        for name in ["ledger.sqlite", "new/below/ledger.sqlite"] {
            let path = home.path().join(name);
            let place = LedgerPlace::File(path.clone());
            for _ in 0..2 {
                place.prepare().await.unwrap();
            }
            let made = path.metadata().unwrap();
            assert_eq!(made.mode() & 0o7, 0, "{:o}", made.mode());
            for made in path.ancestors().take_while(|made| *made != home.path()) {
                let found = made.metadata().unwrap().uid();
                assert_eq!(found, owner, "{}", made.display());
            }
            let database = Database::new(&of_file(&path)).unwrap();
            assert!(database.execute("select id from jobs", &[]).await.is_ok());
        }
    }
}
