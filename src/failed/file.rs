//! Failed jobs in a JSON file, in the format of driver `file`.

use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::{Error, FailedJob, Recorded, StoredJob};
use crate::connection::local_text;
use crate::new_file;
use crate::payload::write_json_text;

/// Frees a lock.
pub type Unlock = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The lock under which PHP and artisand change the file: `laravel-failed-jobs` of the cache store `file`.
pub trait FileLock: fmt::Debug + Send + Sync {
    /// Takes the lock; `None` if another process held it for the whole `wait`.
    fn lock(
        &self,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>>;
}

/// A file of failed jobs.
#[derive(Debug)]
pub struct FileFailedJobs {
    path: PathBuf,
    /// Most jobs that the file keeps.
    limit: usize,
    timezone: TimeZone,
    lock: Arc<dyn FileLock>,
}

/// One job in the file, in the order in which Laravel writes the fields.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Entry {
    /// Mostly text; null if the payload had no uuid.
    #[serde(default)]
    id: Value,
    #[serde(default)]
    connection: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    payload: String,
    #[serde(default)]
    exception: String,
    #[serde(default)]
    failed_at: String,
    #[serde(default)]
    pub(super) failed_at_timestamp: i64,
}

impl Entry {
    /// The id by which users name the job.
    pub(super) fn id(&self) -> Cow<'_, str> {
        match &self.id {
            Value::String(id) => id.into(),
            Value::Null => "".into(),
            id => id.to_string().into(),
        }
    }
}

/// How long to try for the lock; the same as in Laravel.
const WAIT: Duration = Duration::from_secs(10);

impl FileFailedJobs {
    /// A store in this file.
    pub fn new(path: PathBuf, limit: usize, timezone: TimeZone, lock: Arc<dyn FileLock>) -> Self {
        Self {
            path,
            limit,
            timezone,
            lock,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let path = self.path.clone();
        match tokio::task::spawn_blocking(move || work(&path)).await {
            Ok(result) => result,
            Err(error) => Err(Error::File {
                what: "work on",
                path: self.path.clone(),
                source: std::io::Error::other(error),
            }),
        }
    }

    /// Reads, changes and writes the file under the lock. The file is not written if `change` reports no change.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Vec<Entry>) -> (bool, T) + Send + 'static,
    ) -> Result<T, Error> {
        let locked = self.lock.lock(WAIT).await.map_err(|source| Error::Lock {
            path: self.path.clone(),
            source,
        })?;
        let Some(unlock) = locked else {
            return Err(Error::Locked {
                path: self.path.clone(),
                seconds: WAIT.as_secs(),
            });
        };
        let result = self
            .blocking(move |path| {
                let mut entries = read(path)?;
                let (has_changed, value) = change(&mut entries);
                if has_changed {
                    write(path, &entries)?;
                }
                Ok(value)
            })
            .await;
        unlock().await;
        result
    }

    fn entry(&self, job: &FailedJob) -> Entry {
        Entry {
            id: job.id().into(),
            connection: job.connection.clone(),
            queue: job.queue.clone(),
            payload: job.payload.clone(),
            exception: job.exception.clone(),
            failed_at: local_text(job.failed_at(), &self.timezone),
            failed_at_timestamp: job.failed_at,
        }
    }

    pub(super) async fn record(&self, job: &FailedJob) -> Result<Recorded, Error> {
        let (entry, limit) = (self.entry(job), self.limit);
        self.change(move |entries| {
            match entries.iter().find(|other| other.id == entry.id) {
                Some(other) if *other == entry => return (false, Recorded::Already),
                Some(_) => return (false, Recorded::Occupied),
                None => {}
            }
            entries.insert(0, entry);
            entries.truncate(limit);
            (true, Recorded::New)
        })
        .await
    }

    pub(super) async fn replace(&self, job: &FailedJob) -> Result<Recorded, Error> {
        let (entry, limit) = (self.entry(job), self.limit);
        self.change(move |entries| {
            entries.retain(|other| other.id != entry.id);
            entries.insert(0, entry);
            entries.truncate(limit);
            (true, Recorded::New)
        })
        .await
    }

    pub(super) async fn all(&self) -> Result<Vec<StoredJob>, Error> {
        let entries = self.blocking(read).await?;
        let stored = |entry: Entry| StoredJob {
            id: entry.id().into_owned(),
            connection: entry.connection,
            queue: entry.queue,
            payload: entry.payload.into_bytes(),
            exception: entry.exception,
            failed_at: entry.failed_at,
        };
        Ok(entries.into_iter().map(stored).collect())
    }

    /// Tests whether the file can be written, without changing it.
    pub(super) async fn try_write(&self) -> Result<(), Error> {
        self.change(|_| (false, ())).await?;
        self.blocking(|path| {
            let tried = target(path).and_then(|path| {
                if path.is_file() {
                    // A file that can be opened can at least be written in place.
                    open_in_place(&path).map(drop)
                } else {
                    new_file::try_beside(&path)
                }
            });
            tried.map_err(|source| failed("write", path, source))
        })
        .await
    }

    /// Keeps the jobs for which `keep` returns true; returns how many were removed.
    pub(super) async fn retain(
        &self,
        keep: impl Fn(&Entry) -> bool + Send + 'static,
    ) -> Result<u64, Error> {
        self.change(move |entries| {
            let before = entries.len();
            entries.retain(keep);
            let gone = before - entries.len();
            (gone > 0, u64::try_from(gone).unwrap_or(u64::MAX))
        })
        .await
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed("read", path, source)),
    };
    if bytes.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(&bytes).map_err(|source| Error::Content {
        path: path.to_owned(),
        source,
    })
}

fn failed(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Replaces the file as a whole, so that a full disk leaves the old file intact.
fn write(path: &Path, entries: &[Entry]) -> Result<(), Error> {
    let text = encode(entries);
    let written = target(path).and_then(|path| {
        match new_file::replace(&path, text.as_bytes(), None) {
            // If only the file itself may be written, but not its directory, it is written in place, as PHP does.
            Err(error) if is_refused(&error) && path.is_file() => {
                open_in_place(&path).and_then(|mut file| {
                    file.set_len(0)?;
                    file.write_all(text.as_bytes())
                })
            }
            written => written,
        }
    });
    written.map_err(|source| failed("write", path, source))
}

/// The file to write. A link stays a link, as deployments share one file between releases.
fn target(path: &Path) -> std::io::Result<PathBuf> {
    let (link, target) = (std::fs::symlink_metadata(path), std::fs::metadata(path));
    let (Ok(link), Ok(target)) = (link, target) else {
        return Ok(path.to_owned());
    };
    let own = rustix::process::geteuid().as_raw();
    if link.is_symlink() && !may_follow(link.uid(), target.uid(), own) {
        let text = format!(
            "it is a link of user {} to a file of user {}, which artisand as root does not follow; make the link as root, or run as the app's user",
            link.uid(),
            target.uid()
        );
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
    }
    std::fs::canonicalize(path)
}

/// Whether to follow a link: as root, only to a file of the link's owner, or if root owns the link.
fn may_follow(link: u32, target: u32, own: u32) -> bool {
    own != 0 || link == 0 || link == target
}

/// Opens the file for writing in place; a link at its path is an error.
fn open_in_place(path: &Path) -> std::io::Result<std::fs::File> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
    std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(no_follow.cast_signed())
        .open(path)
}

fn is_refused(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ResourceBusy | ErrorKind::CrossesDevices
    )
}

/// The list as PHP's `json_encode` prints it with `JSON_PRETTY_PRINT`.
fn encode(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "[]".to_owned();
    }
    let mut out = String::from("[");
    for (index, entry) in entries.iter().enumerate() {
        out.push_str(if index > 0 { ",\n    {" } else { "\n    {" });
        out.push_str("\n        \"id\": ");
        match &entry.id {
            Value::String(id) => write_json_text(&mut out, id),
            id => out.push_str(&id.to_string()),
        }
        out.push(',');
        let fields = [
            ("connection", &entry.connection),
            ("queue", &entry.queue),
            ("payload", &entry.payload),
            ("exception", &entry.exception),
            ("failed_at", &entry.failed_at),
        ];
        for (name, text) in fields {
            out.push_str("\n        \"");
            out.push_str(name);
            out.push_str("\": ");
            write_json_text(&mut out, text);
            out.push(',');
        }
        out.push_str("\n        \"failed_at_timestamp\": ");
        out.push_str(&entry.failed_at_timestamp.to_string());
        out.push_str("\n    }");
    }
    out.push_str("\n]");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_looks_as_laravel_writes_it() {
        let text = r#"[
    {
        "id": "11111111-2222-4333-8444-555555555555",
        "connection": "redis",
        "queue": "default",
        "payload": "{\"uuid\":1,\"a\":\"\/\u00e9\"}",
        "exception": "RuntimeException: boom",
        "failed_at": "2026-01-02 03:04:05",
        "failed_at_timestamp": 1767323045
    }
]"#;
        let entries: Vec<Entry> = serde_json::from_str(text).unwrap();
        assert_eq!(encode(&entries), text);
        assert_eq!(encode(&[]), "[]");
    }

    #[test]
    fn root_follows_links_of_root_and_of_the_owner_of_what_they_lead_to() {
        #[rustfmt::skip]
        let rows = [
            // link, target, own => follows
            (33, 0, 0, false), (33, 1000, 0, false),
            (33, 33, 0, true), (0, 33, 0, true), (0, 0, 0, true),
            (1000, 33, 33, true), (33, 0, 33, true),
        ];
        for (link, target, own, follows) in rows {
            assert_eq!(
                may_follow(link, target, own),
                follows,
                "{link} {target} {own}"
            );
        }
    }
}
