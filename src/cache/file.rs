//! The `file` cache store: a file per key, named by the hash of the key, without any prefix.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, mkdirat, open, openat};
use rustix::io::Errno;
use sha1::{Digest as _, Sha1};

use super::Error;
use crate::php::Value;
use crate::time::{Clock, UnixSeconds};

/// A cache store in a directory.
#[derive(Debug, Clone)]
pub struct FileStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: FileStoreOptions,
    clock: Clock,
}

/// The settings of a [`FileStore`].
#[derive(Debug, Clone)]
pub struct FileStoreOptions {
    /// Directory of values.
    pub directory: PathBuf,
    /// Directory of locks.
    pub lock_directory: PathBuf,
    /// Mode to set on files and their directories; `None` leaves it to the umask.
    pub permission: Option<u32>,
    /// Whether locks get other file names than values (Laravel 12.36 and later).
    pub separate_locks: bool,
}

/// Number of digits of the expiry second at the start of a file.
const DIGITS: usize = 10;
/// Expiry second of a value that never expires.
const FOREVER: i64 = 9_999_999_999;
/// Most bytes of a file that are read: far more than the queue stores, and safe for memory.
const LARGEST: u64 = 64 << 20;

/// The content of a file: its expiry second and the value.
type Entry = (i64, Value);

impl FileStore {
    /// A store in this directory, which is created on the first write.
    pub fn new(options: FileStoreOptions, clock: Clock) -> Self {
        Self(Arc::new(Inner { options, clock }))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0.options.directory
    }

    /// Runs file operations on a thread where they may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(error) => Err(Error::File {
                what: "work on",
                path: self.directory().to_owned(),
                source: std::io::Error::other(error),
            }),
        }
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        let path = path(self.directory(), key);
        self.blocking(move |inner| Ok(inner.read(&path)?.map(|(_, value)| value)))
            .await
    }

    pub(super) async fn put(
        &self,
        key: &str,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<(), Error> {
        let (path, value) = (path(self.directory(), key), value.to_bytes());
        self.blocking(move |inner| inner.write(&path, inner.end(ttl), &value))
            .await
    }

    pub(super) async fn add(
        &self,
        key: &str,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<bool, Error> {
        let (path, value) = (path(self.directory(), key), value.to_bytes());
        self.blocking(move |inner| inner.add(&path, inner.end(ttl), &value))
            .await
    }

    pub(super) async fn increment(&self, key: &str, by: i64) -> Result<i64, Error> {
        let path = path(self.directory(), key);
        self.blocking(move |inner| inner.increment(&path, by)).await
    }

    pub(super) async fn forget(&self, key: &str) -> Result<bool, Error> {
        let path = path(self.directory(), key);
        self.blocking(move |_| remove(&path)).await
    }

    fn lock_path(&self, name: &str) -> PathBuf {
        let options = &self.0.options;
        let mark = if options.separate_locks {
            "file-store-lock:"
        } else {
            ""
        };
        path(&options.lock_directory, &format!("{mark}{name}"))
    }

    pub(super) async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let path = self.lock_path(name);
        let value = Value::String(owner.as_bytes().to_vec()).to_bytes();
        let ttl = (ttl.as_secs() > 0).then_some(ttl);
        self.blocking(move |inner| inner.add(&path, inner.end(ttl), &value))
            .await
    }

    pub(super) async fn release(&self, name: &str, owner: &str) -> Result<bool, Error> {
        let (path, owner) = (self.lock_path(name), owner.as_bytes().to_vec());
        self.blocking(
            move |inner| match inner.held(&path, &Value::String(owner))? {
                // No other process takes it before it is gone.
                Some(_locked) => remove(&path),
                None => Ok(false),
            },
        )
        .await
    }

    pub(super) async fn force_release(&self, name: &str) -> Result<bool, Error> {
        let path = self.lock_path(name);
        self.blocking(move |_| remove(&path)).await
    }

    pub(super) async fn owner(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.lock_path(name);
        let entry = self.blocking(move |inner| inner.read(&path)).await?;
        Ok(entry.and_then(|(_, value)| value.as_str().map(str::to_owned)))
    }

    pub(super) async fn refresh(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let path = self.lock_path(name);
        let owner = Value::String(owner.as_bytes().to_vec());
        self.blocking(move |inner| {
            let Some(mut file) = inner.held(&path, &owner)? else {
                return Ok(false);
            };
            let end = inner.end((ttl.as_secs() > 0).then_some(ttl));
            inner.replace(&path, &mut file, end, &owner.to_bytes())?;
            Ok(true)
        })
        .await
    }
}

/// The path of a key's file.
fn path(directory: &Path, key: &str) -> PathBuf {
    use std::fmt::Write as _;
    let mut hash = String::with_capacity(40);
    for byte in Sha1::digest(key.as_bytes()) {
        let _ = write!(hash, "{byte:02x}");
    }
    directory.join(&hash[..2]).join(&hash[2..4]).join(&hash)
}

/// Opens a directory inside another one and creates it if missing; returns whether it was created.
fn child(parent: impl AsFd, name: &OsStr) -> Result<(File, bool), Errno> {
    let is_new = match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno),
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(&parent, name, flags, Mode::empty())?;
    Ok((directory.into(), is_new))
}

fn remove(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(error("delete", path)(source)),
    }
}

fn error(what: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        what,
        path: path.clone(),
        source,
    }
}

/// The expiry second and the value in a file's bytes; `None` if Laravel treats the file as missing, too.
fn decode(bytes: &[u8]) -> Option<Entry> {
    let (end, value) = bytes.split_at_checked(DIGITS)?;
    let end = std::str::from_utf8(end).ok()?.parse().ok()?;
    Some((end, Value::from_bytes(value).ok()?))
}

impl Inner {
    fn end(&self, ttl: Option<Duration>) -> i64 {
        let end = ttl.map(|ttl| self.clock.now().plus(ttl).0);
        end.filter(|end| *end <= FOREVER).unwrap_or(FOREVER)
    }

    /// Reads a file; one that has expired counts as missing.
    ///
    /// Laravel deletes it. Here it stays until the key has a new value: another process may have put that in its place
    /// by now.
    fn read(&self, path: &Path) -> Result<Option<Entry>, Error> {
        let failed = error("read", path);
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(source) => return Err(failed(source)),
        };
        flock(&file, FlockOperation::LockShared).map_err(|errno| failed(errno.into()))?;
        self.live(path, &mut file)
    }

    /// What a file contains, unless it has expired.
    fn live(&self, path: &Path, file: &mut File) -> Result<Option<Entry>, Error> {
        let mut bytes = Vec::new();
        file.take(LARGEST)
            .read_to_end(&mut bytes)
            .map_err(error("read", path))?;
        Ok(decode(&bytes).filter(|(end, _)| UnixSeconds(*end) > self.clock.now()))
    }

    /// The file of a lock that this owner holds, locked against all other processes; `None` if the owner does not.
    fn held(&self, path: &Path, owner: &Value) -> Result<Option<File>, Error> {
        let is_held = |entry: Option<Entry>| entry.is_some_and(|(_, holder)| holder == *owner);
        // To open a file for writing makes it.
        if !is_held(self.read(path)?) {
            return Ok(None);
        }
        let Some(mut file) = self.open(path, FlockOperation::LockExclusive)? else {
            return Ok(None);
        };
        Ok(is_held(self.live(path, &mut file)?).then_some(file))
    }

    /// Opens a file for writing, creates its directories if missing, and locks it by `operation`; `None` if the
    /// lock is taken and `operation` does not wait.
    ///
    /// The two directories and the file are opened one inside the other, and a
    /// link in place of any of them is an error: a user who may write in the
    /// cache's directory must not redirect writes to other files.
    fn open(&self, path: &Path, operation: FlockOperation) -> Result<Option<File>, Error> {
        let failed = |errno: Errno| error("write", path)(errno.into());
        let mut names = path.components().rev().map(Component::as_os_str);
        let (Some(name), Some(second), Some(first)) = (names.next(), names.next(), names.next())
        else {
            return Err(failed(Errno::INVAL));
        };
        let root = path.ancestors().nth(3).unwrap_or(path);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match open(root, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                // Mode as in PHP's `mkdir(.., 0777, true)`: the process's umask applies.
                let mut builder = DirBuilder::new();
                builder.recursive(true).mode(0o777);
                builder.create(root).map_err(error("write", path))?;
                open(root, flags, Mode::empty())
            }
            opened => opened,
        };
        let (first, _) = child(root.map_err(failed)?, first).map_err(failed)?;
        let (second, is_new) = child(&first, second).map_err(failed)?;
        if is_new {
            for directory in [&second, &first] {
                self.set_permission(directory)
                    .map_err(error("change the mode of the directory of", path))?;
            }
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let file = openat(&second, name, flags, Mode::from_raw_mode(0o666)).map_err(failed)?;
            let file = File::from(file);
            match flock(&file, operation) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed(errno)),
            }
            // The file was deleted before it was locked: no process would see what is written there. Open it
            // again.
            if file.metadata().map_err(error("write", path))?.nlink() > 0 {
                return Ok(Some(file));
            }
        }
    }

    fn set_permission(&self, file: &File) -> std::io::Result<()> {
        match self.options.permission {
            Some(mode) => file.set_permissions(std::fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }

    fn replace(&self, path: &Path, file: &mut File, end: i64, value: &[u8]) -> Result<(), Error> {
        // A single write: a reader that does not lock sees either the old or the new content.
        let mut bytes = format!("{end:0DIGITS$}").into_bytes();
        bytes.extend_from_slice(value);
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.set_len(0))
            .and_then(|()| file.write_all(&bytes))
            .map_err(error("write", path))?;
        self.set_permission(file)
            .map_err(error("change the mode of", path))
    }

    fn write(&self, path: &Path, end: i64, value: &[u8]) -> Result<(), Error> {
        if let Some(mut file) = self.open(path, FlockOperation::LockExclusive)? {
            self.replace(path, &mut file, end, value)?;
        }
        Ok(())
    }

    /// Writes unless there is a value; a file that another process has locked counts as a value.
    fn add(&self, path: &Path, end: i64, value: &[u8]) -> Result<bool, Error> {
        let Some(mut file) = self.open(path, FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(false);
        };
        let mut old = Vec::with_capacity(DIGITS);
        (&mut file)
            .take(DIGITS as u64)
            .read_to_end(&mut old)
            .map_err(error("read", path))?;
        let old_end: Option<i64> = std::str::from_utf8(&old)
            .ok()
            .and_then(|end| end.parse().ok());
        let is_over =
            old.is_empty() || old_end.is_none_or(|end| UnixSeconds(end) <= self.clock.now());
        if is_over {
            self.replace(path, &mut file, end, value)?;
        }
        Ok(is_over)
    }

    /// Adds to a counter under an exclusive lock, which Laravel does not take.
    fn increment(&self, path: &Path, by: i64) -> Result<i64, Error> {
        let Some(mut file) = self.open(path, FlockOperation::LockExclusive)? else {
            return Ok(by);
        };
        let (end, count) = match self.live(path, &mut file)? {
            Some((end, Value::Int(count))) => (end, count),
            Some((end, value)) => {
                let text = value.as_str().and_then(|text| text.trim().parse().ok());
                (end, text.unwrap_or(0))
            }
            None => (FOREVER, 0),
        };
        let count = count.saturating_add(by);
        self.replace(path, &mut file, end, &Value::Int(count).to_bytes())?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_the_hash_of_the_key() {
        let path = path(Path::new("/d"), "illuminate:queue:restart");
        assert_eq!(
            path,
            Path::new("/d/ee/2f/ee2f842aa7bb1f53edf3a2ed2c09a1807ffa6c90")
        );
    }

    #[test]
    fn contents_are_the_end_and_the_value() {
        let live = decode(b"9999999999i:1700000000;").unwrap();
        assert_eq!(live, (FOREVER, Value::Int(1_700_000_000)));
        for broken in [
            "",
            "999999999",
            "9999999999",
            "9999999999i:1",
            "abcdefghiji:1;",
        ] {
            assert_eq!(decode(broken.as_bytes()), None, "{broken}");
        }
    }

    /// A store in this directory at this second.
    fn at(directory: &Path, now: i64) -> FileStore {
        let options = FileStoreOptions {
            directory: directory.to_owned(),
            lock_directory: directory.to_owned(),
            permission: None,
            separate_locks: true,
        };
        FileStore::new(options, Clock::Fixed(UnixSeconds(now)))
    }

    /// Two processes whose clocks differ: for one of them the lock of the other has expired.
    #[tokio::test]
    async fn a_lock_that_was_taken_over_stays_whatever_others_do_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let (early, late) = (at(directory.path(), 1000), at(directory.path(), 2000));
        let ttl = Duration::from_secs(500);
        let mut times_taken = 0;
        for round in 0..600 {
            early.force_release("lock").await.unwrap();
            assert!(early.acquire("lock", "a", ttl).await.unwrap());
            let take = late.acquire("lock", "b", ttl);
            let taken = match round % 3 {
                0 => tokio::join!(early.refresh("lock", "a", ttl), take).1,
                1 => tokio::join!(early.release("lock", "a"), take).1,
                _ => tokio::join!(late.owner("lock"), late.owner("lock"), take).2,
            };
            // It is not taken if the others had locked the file.
            if taken.unwrap() {
                let owner = late.owner("lock").await.unwrap();
                assert_eq!(owner.as_deref(), Some("b"), "round {round}");
                // A lock that is freed meanwhile can be taken without looking at its time.
                times_taken += usize::from(round % 3 != 1);
            }
        }
        assert!(times_taken > 0);
    }

    #[tokio::test]
    async fn only_its_owner_renews_and_frees_a_lock_that_has_not_expired() {
        let directory = tempfile::tempdir().unwrap();
        let ttl = Duration::from_secs(500);
        #[rustfmt::skip]
        let rows = [
            // the second, the owner => renewed, freed
            (1000, "a", true),
            (1499, "a", true),
            (1500, "a", false),
            (1000, "b", false),
        ];
        for (now, owner, expected) in rows {
            let (first, then) = (at(directory.path(), 1000), at(directory.path(), now));
            first.force_release("lock").await.unwrap();
            assert!(first.acquire("lock", "a", ttl).await.unwrap());
            let renewed = then.refresh("lock", owner, ttl).await.unwrap();
            let freed = then.release("lock", owner).await.unwrap();
            assert_eq!((renewed, freed), (expected, expected), "{now} {owner}");
            let left = first.owner("lock").await.unwrap();
            assert_eq!(left.is_none(), expected, "{now} {owner}");
        }
    }

    #[tokio::test]
    async fn links_in_the_cache_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        let cache = directory.path().join("cache");
        std::fs::create_dir(&other).unwrap();
        let options = FileStoreOptions {
            directory: cache.clone(),
            lock_directory: cache.clone(),
            permission: Some(0o777),
            separate_locks: false,
        };
        let store = FileStore::new(options, Clock::System);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        // The mode of the first key's file, in a cache without links.
        store.put("a", &Value::Int(1), None).await.unwrap();
        let file = path(&cache, "a");
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o777, 0o777));
        let link = |target: &Path, at: &Path| {
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, at).unwrap();
        };
        let secret = other.join("secret");
        std::fs::write(&secret, "9999999999i:1;").unwrap();
        for path in [&other, &secret] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        link(&secret, &path(&cache, "b"));
        link(&other, path(&cache, "c").parent().unwrap());
        link(&other, path(&cache, "d").ancestors().nth(2).unwrap());
        for key in ["b", "c", "d"] {
            assert!(store.put(key, &Value::Int(2), None).await.is_err(), "{key}");
            assert!(store.increment(key, 1).await.is_err(), "{key}");
            let taken = store.acquire(key, "me", Duration::from_secs(9)).await;
            assert!(taken.is_err(), "{key}");
        }
        assert_eq!(std::fs::read(&secret).unwrap(), b"9999999999i:1;");
        assert_eq!((mode(&secret), mode(&other)), (0o700, 0o700));
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
    }
}
