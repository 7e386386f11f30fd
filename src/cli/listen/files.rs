//! Which files of an app and of its worker have changed.
//!
//! Files are looked at again and again: that works where nothing announces changes, too, such as on NFS and in Docker
//! Desktop.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use walkdir::{DirEntry, WalkDir};

use crate::cli::UsageError;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_millis(300);
/// Most files that are looked at.
const MOST: usize = 10_000;
/// What of an app says what its jobs do.
const OF_APP: [&str; 10] = [
    "app",
    "bootstrap",
    "composer.lock",
    "config",
    "database",
    "lang",
    "resources/lang",
    "resources/views",
    "routes",
    "vendor/composer/installed.json",
];
/// Directories that no look goes into.
const NEVER: [&str; 3] = ["node_modules", "target", "vendor"];

/// Time and size of each file.
pub(super) type Seen = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// Files and directories to watch.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    roots: Arc<Vec<PathBuf>>,
}

impl Watched {
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots: Arc::new(roots),
        }
    }

    /// What of an app to watch, whether or not it is there yet.
    pub(super) fn of_app(base: &Path) -> Vec<PathBuf> {
        let mut names: BTreeSet<String> = OF_APP.iter().map(|&name| name.to_owned()).collect();
        names.insert(".env".to_owned());
        names.extend(autoloaded(base));
        names.iter().map(|name| base.join(name)).collect()
    }

    /// How the files are now, and whether there are more than are looked at.
    pub(super) async fn look(&self) -> (Seen, bool) {
        let watched = self.clone();
        let looked = tokio::task::spawn_blocking(move || watched.look_now());
        looked.await.unwrap_or_default()
    }

    fn look_now(&self) -> (Seen, bool) {
        let mut seen = Seen::new();
        for root in &*self.roots {
            let entries = WalkDir::new(root)
                .into_iter()
                .filter_entry(|entry| entry.depth() == 0 || is_worth_a_look(entry));
            // What cannot be read has gone just now, or is not there yet.
            for entry in entries.filter_map(Result::ok) {
                if entry.file_type().is_dir() {
                    continue;
                }
                if seen.len() >= MOST {
                    return (seen, true);
                }
                if let Ok(metadata) = entry.path().metadata() {
                    let stamp = (metadata.modified().ok(), metadata.len());
                    seen.insert(entry.into_path(), stamp);
                }
            }
        }
        (seen, false)
    }

    /// Waits until files are other than `seen`, and are the same for a while; returns their names.
    ///
    /// Dropped before it returns, it has changed nothing.
    pub(super) async fn changed(&self, seen: &mut Seen) -> Vec<PathBuf> {
        loop {
            tokio::time::sleep(EVERY).await;
            let (mut now, _) = self.look().await;
            if now == *seen {
                continue;
            }
            // What is being written is not whole yet.
            loop {
                tokio::time::sleep(EVERY).await;
                let (again, _) = self.look().await;
                let is_whole = again == now;
                now = again;
                if is_whole {
                    break;
                }
            }
            let changed = differences(seen, &now);
            *seen = now;
            if !changed.is_empty() {
                return changed;
            }
        }
    }

    /// Takes the file as it is now for seen.
    pub(super) fn forgive(path: &Path, seen: &mut Seen) {
        if let (Some(stamp), Ok(metadata)) = (seen.get_mut(path), path.metadata()) {
            *stamp = (metadata.modified().ok(), metadata.len());
        }
    }
}

/// Where composer finds the app's own classes: most apps have them in `app`.
fn autoloaded(base: &Path) -> Vec<String> {
    fn add_all(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(path) => found.push(path.trim_end_matches('/').to_owned()),
            Value::Array(paths) => paths.iter().for_each(|path| add_all(path, found)),
            Value::Object(by_prefix) => by_prefix.values().for_each(|path| add_all(path, found)),
            _ => {}
        }
    }
    let text = std::fs::read(base.join("composer.json")).unwrap_or_default();
    let composer: Value = serde_json::from_slice(&text).unwrap_or_default();
    let mut found = Vec::new();
    add_all(&composer["autoload"], &mut found);
    // All of the app's directory would be too much.
    found.retain(|path| !path.is_empty() && path != ".");
    found
}

/// Files that are new, gone or other than before.
fn differences(before: &Seen, now: &Seen) -> Vec<PathBuf> {
    let other = now
        .iter()
        .filter(|(path, stamp)| before.get(*path) != Some(stamp));
    let gone = before.iter().filter(|(path, _)| !now.contains_key(*path));
    other.chain(gone).map(|(path, _)| path.clone()).collect()
}

/// Whether a directory or file below what is watched may say what jobs do: not what editors, databases and Laravel
/// itself write there while jobs run.
fn is_worth_a_look(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    let is_hidden = name.starts_with('.') && !name.starts_with(".env");
    if is_hidden || name.ends_with('~') {
        return false;
    }
    if entry.file_type().is_dir() {
        return !NEVER.contains(&&*name);
    }
    let extension = entry.path().extension().and_then(OsStr::to_str);
    let is_data =
        name.contains(".sqlite") || matches!(extension, Some("db" | "log" | "swp" | "tmp"));
    // Of what Laravel keeps there, only this is written on purpose.
    let parent = entry.path().parent();
    let is_cached = parent.is_some_and(|parent| parent.ends_with("bootstrap/cache"));
    !is_data && (!is_cached || name == "config.php")
}

/// Where the source of this program is.
pub(super) fn sources(
    program: &Path,
    here: &Path,
    watch: &[PathBuf],
    command: &str,
) -> Result<Vec<PathBuf>, UsageError> {
    let is_crate = |path: &&Path| path.join("Cargo.toml").is_file();
    let nearest = program.ancestors().skip(1).find(is_crate);
    match nearest.or_else(|| Some(here).filter(is_crate)) {
        Some(found) => Ok(["src", "build.rs", "Cargo.toml", "Cargo.lock"]
            .iter()
            .map(|name| found.join(name))
            .collect()),
        None if !watch.is_empty() => Ok(Vec::new()),
        None => Err(UsageError(format!(
            "when to run `{command}` is not known: there is no Cargo.toml above {} and in {}; name what to watch with --watch",
            program.display(),
            here.display()
        ))),
    }
}

/// Whether a program in Rust is made of this file.
pub(super) fn is_source(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    path.extension() == Some(OsStr::new("rs")) || matches!(name, Some("Cargo.toml" | "Cargo.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(base: &Path, name: &str, text: &str) {
        let path = base.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn names(base: &Path, seen: &Seen) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(base).unwrap().display().to_string();
        seen.keys().map(name).collect()
    }

    #[test]
    fn what_jobs_are_made_of_is_looked_at_and_nothing_that_they_write() {
        let base = tempfile::tempdir().unwrap();
        let watched = [
            ".env",
            "app/Jobs/Send.php",
            "bootstrap/app.php",
            "bootstrap/cache/config.php",
            "composer.lock",
            "config/queue.php",
            "modules/Shop/Sell.php",
            "resources/views/mail/welcome.blade.php",
            "src/helpers.php",
        ];
        let others = [
            "README.md",
            "src/other.php",
            "app/.Send.php.swp",
            "app/Jobs/Send.php~",
            "bootstrap/cache/services.php",
            "database/database.sqlite",
            "database/database.sqlite-wal",
            "database/queue.db",
            "storage/logs/laravel.log",
            "storage/framework/views/1.php",
            "app/node_modules/a.js",
            "vendor/a/b.php",
        ];
        for name in watched.iter().chain(&others) {
            write(base.path(), name, "");
        }
        let autoload = r#"{"autoload": {"psr-4": {"App\\": "app/", "Shop\\": ["modules/Shop/"]}, "files": ["src/helpers.php"]}}"#;
        write(base.path(), "composer.json", autoload);
        let files = Watched::new(Watched::of_app(base.path()));
        let (seen, is_too_much) = files.look_now();
        assert_eq!(names(base.path(), &seen), watched);
        assert!(!is_too_much);
    }

    #[test]
    fn new_other_and_missing_files_are_changes() {
        let base = tempfile::tempdir().unwrap();
        for name in ["a.php", "b.php", "c.php"] {
            write(base.path(), name, "1");
        }
        let files = Watched::new(vec![base.path().to_owned()]);
        let (mut before, _) = files.look_now();
        write(base.path(), "b.php", "22");
        write(base.path(), "d.php", "1");
        std::fs::remove_file(base.path().join("c.php")).unwrap();
        let (now, _) = files.look_now();
        let mut changed = differences(&before, &now);
        changed.sort();
        let expected = ["b.php", "c.php", "d.php"].map(|name| base.path().join(name));
        assert_eq!(changed, expected);
        assert_eq!(differences(&now, &now), [] as [PathBuf; 0]);
        before.clone_from(&now);
        write(base.path(), "a.php", "333");
        Watched::forgive(&base.path().join("a.php"), &mut before);
        assert_eq!(before, files.look_now().0);
    }

    #[test]
    fn no_more_files_are_looked_at_than_a_look_may_take() {
        let base = tempfile::tempdir().unwrap();
        for number in 0..=MOST {
            std::fs::write(base.path().join(number.to_string()), "").unwrap();
        }
        let (seen, is_too_much) = Watched::new(vec![base.path().to_owned()]).look_now();
        assert_eq!((seen.len(), is_too_much), (MOST, true));
    }
}
