//! Where the ends of jobs are noted whose own server cannot do that.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::geteuid;

use super::laravel::Laravel;
use super::{Config, Error};
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
    Redis(RedisOptions),
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
            Self::Redis(redis) => write!(f, "Redis at {}", redis.address),
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
            Self::Redis(redis) => {
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

/// The server that the app keeps its cache on: what it cannot do without.
fn of_app(laravel: &Laravel) -> Result<LedgerPlace, String> {
    let store = laravel.default_cache().unwrap_or_default();
    let of_store = |key: &str| {
        laravel
            .text(&["cache", "stores", &store, key])
            .ok()
            .flatten()
    };
    match of_store("driver").as_deref() {
        Some("redis") => on_redis(laravel, &of_store("connection").unwrap_or_default()),
        _ => in_database(laravel, ""),
    }
}

fn on_redis(laravel: &Laravel, name: &str) -> Result<LedgerPlace, String> {
    let name = if name.is_empty() { "default" } else { name };
    let redis = laravel.redis(name).map_err(|error| with_causes(&error))?;
    Ok(LedgerPlace::Redis(redis.options))
}

fn in_database(laravel: &Laravel, name: &str) -> Result<LedgerPlace, String> {
    let database = laravel.database(Some(name));
    let database = database.map_err(|error| with_causes(&error))?;
    Ok(LedgerPlace::Database {
        failed: laravel.failed_table_in(&database),
        database,
    })
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

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
