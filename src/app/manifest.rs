//! The manifest: facts about the app that its own PHP wrote down (`artisand.json`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::php;

/// Format that this version reads.
const FORMAT: u64 = 1;

/// The facts.
#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    artisand: u64,
    /// Version of the framework.
    pub laravel: String,
    /// Version of PHP.
    #[serde(default)]
    pub php: String,
    /// When it was written, in unix seconds.
    pub generated_at: i64,
    /// Whether PHP saw all classes.
    #[serde(default = "yes")]
    pub complete: bool,
    /// Directories of the app.
    pub paths: Paths,
    /// `config('app')`, `config('queue')`, `config('cache')` and `config('database')`, and of `config('broadcasting')`
    /// which driver and Redis connection each connection has.
    pub config: Value,
    /// Prefix of each cache store as the store itself says it.
    #[serde(default)]
    pub cache_prefixes: BTreeMap<String, Option<String>>,
    /// How the app broadcasts; none in a manifest of an older version.
    #[serde(default)]
    pub broadcasting: Option<Broadcasting>,
    /// Routes of classes to queues (`Queue::route`, Laravel 13): a queue, or connection and queue, by class.
    #[serde(default, deserialize_with = "map")]
    pub queue_routes: BTreeMap<String, Value>,
    /// Connection and queue that stand for a queue (`Queue::forward`, Laravel 13).
    #[serde(default, deserialize_with = "map")]
    pub queue_forwards: BTreeMap<String, Value>,
    /// What adds to payloads besides the framework (`Queue::createPayloadUsing`), as classes.
    #[serde(default)]
    pub payload_hooks: Vec<String>,
    /// Classes that can be queued, or travel in jobs, by name.
    #[serde(default)]
    pub classes: BTreeMap<String, Class>,
    /// Models by name.
    #[serde(default)]
    pub models: BTreeMap<String, Model>,
    /// What PHP could not find out, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Names of classes as declared, by their names in lower case.
    #[serde(skip)]
    pub(super) declared: OnceLock<HashMap<String, String>>,
}

fn yes() -> bool {
    true
}

/// A map; PHP writes an empty one as a list, and one with the keys 0, 1 and so on, too.
fn map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Value>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Object(map) => map.into_iter().collect(),
        Value::Array(list) => (0..).map(|key: u64| key.to_string()).zip(list).collect(),
        _ => BTreeMap::new(),
    })
}

/// A serialized value in base64.
fn serialized<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<php::Value>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let bytes = BASE64.decode(text).map_err(D::Error::custom)?;
    php::Value::from_bytes(&bytes)
        .map(Some)
        .map_err(D::Error::custom)
}

/// Directories of the app.
#[derive(Debug, Clone, Deserialize)]
pub struct Paths {
    /// Where `artisan` is.
    pub base: PathBuf,
    /// Where `framework/down` is.
    pub storage: PathBuf,
    /// The cached configuration, if it was in use.
    #[serde(default)]
    pub config_cache: Option<PathBuf>,
    /// The environment file, if it was read.
    #[serde(default)]
    pub env_file: Option<PathBuf>,
}

/// A class that can be queued.
#[derive(Debug, Clone, Deserialize)]
pub struct Class {
    /// `job`, `listener`, `notification`, `mailable`, `broadcast` or `event`.
    pub kind: String,
    /// Its file, relative to the app's directory.
    pub file: PathBuf,
    /// When the file was last changed, in unix seconds.
    #[serde(default)]
    pub mtime: i64,
    /// Its properties in the order in which `serialize()` writes them.
    #[serde(default)]
    pub properties: Vec<Property>,
    /// Limits as the class declares them, attributes in force; `{"$method": true}` where a method answers.
    #[serde(default)]
    pub limits: BTreeMap<String, Value>,
    /// What is true of the class: `queued`, `unique`, `encrypted` and so on.
    #[serde(default)]
    pub flags: BTreeMap<String, Value>,
    /// Where the id of its unique lock comes from; none if it has none.
    #[serde(default)]
    pub unique_id: Option<UniqueId>,
    /// Seconds of its unique lock, as [`limits`](Self::limits) has them.
    #[serde(default)]
    pub unique_for: Option<Value>,
    /// Whether a method chooses the cache store of its unique lock.
    #[serde(default)]
    pub unique_via: bool,
    /// Whether it has a method `displayName`.
    #[serde(default)]
    pub display_name: bool,
    /// What those of its methods return that do no more than that.
    #[serde(default)]
    pub methods: BTreeMap<String, Returned>,
    /// What is published of it, if it is a broadcast event or a notification.
    #[serde(default)]
    pub broadcast: Option<super::broadcast::Facts>,
    /// Its middleware.
    #[serde(default)]
    pub middleware: Middleware,
    /// Its parent class, that one's, and so on.
    #[serde(default)]
    pub parents: Vec<String>,
    /// All interfaces.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// All traits, those of parents and traits, too.
    #[serde(default)]
    pub uses: Vec<String>,
}

/// A property of a class.
#[derive(Debug, Clone, Deserialize)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// `public`, `protected` or `private`.
    pub visibility: String,
    /// The class that declares it.
    pub class: String,
    /// Whether it is readonly.
    #[serde(default)]
    pub readonly: bool,
    /// Its type as PHP writes it.
    #[serde(rename = "type", default)]
    pub type_name: Option<String>,
    /// Its default value; none if it has a type and no default, and so is not set at first.
    #[serde(default, deserialize_with = "serialized")]
    pub default: Option<php::Value>,
}

/// Where the id of a unique lock comes from.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct UniqueId {
    /// A method `uniqueId`.
    pub method: bool,
    /// A public property `uniqueId`.
    pub property: bool,
}

/// Middleware of a class.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Middleware {
    /// Whether a method makes it.
    pub method: bool,
    /// Class names in the default of the property `middleware`.
    pub property: Vec<String>,
}

/// How the app broadcasts, apart from its events.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Broadcasting {
    /// Class of its broadcast manager.
    pub manager: Option<String>,
    /// Names of drivers that the app made itself (`Broadcast::extend`).
    pub drivers: Vec<String>,
    /// Whether its PHP writes floats into JSON as PHP does by default.
    pub floats: bool,
    /// Classes of dates that become JSON as Carbon does by default.
    pub dates: Vec<String>,
}

/// What a method returns that consists of one `return`.
#[derive(Debug, Clone, Deserialize)]
pub struct Returned {
    /// Whether it is the text of all parts; of else there is only one.
    pub text: bool,
    /// The parts in order.
    pub parts: Vec<Part>,
}

/// A part of what a method returns.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A scalar, or a list of them.
    Literal(Value),
    /// A property of the object.
    Property(String),
    /// A value inside a property.
    Path(PropertyPath),
}

/// A value inside a property.
#[derive(Debug, Clone, Deserialize)]
pub struct PropertyPath {
    /// The property of the object.
    pub of: String,
    /// The way from there.
    pub steps: Vec<PathStep>,
}

/// A step into a value.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathStep {
    /// To a property.
    Property(String),
    /// To the value of a key.
    Key(Value),
}

impl Class {
    /// Whether its jobs have middleware that is not in their bytes.
    pub fn has_middleware(&self) -> bool {
        self.middleware.method || !self.middleware.property.is_empty()
    }

    /// Whether jobs of this class, or about it, go through queues.
    pub fn is_queued(&self) -> bool {
        self.flags.get("queued").and_then(Value::as_bool) == Some(true)
    }
}

/// An Eloquent model.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    /// Its table.
    pub table: String,
    /// Its primary key.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether the key is one that the database counts up.
    #[serde(default)]
    pub incrementing: bool,
    /// Whether a method says on which channels its notifications are broadcast; none in a manifest of an older version.
    #[serde(default)]
    pub receives_broadcasts_on: Option<bool>,
    /// Type of the key in PHP: `int` or `string`.
    #[serde(default)]
    pub key_type: Option<String>,
    /// Its database connection; the default one if none.
    #[serde(default)]
    pub connection: Option<String>,
    /// What stands for its class in polymorphic relations, and in jobs of apps that ask for it: the class, or an alias.
    #[serde(default)]
    pub morph_class: Option<String>,
    /// Whether it is the row between two others, which may have no key of its own.
    #[serde(default)]
    pub pivot: Option<Pivot>,
}

/// Kind of a pivot model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pivot {
    /// Of a relation between two models.
    Plain,
    /// Of a polymorphic one.
    Morph,
}

/// An error from reading a manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("could not read the manifest {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no manifest.
    #[error("{path} is not a manifest; write it anew with `artisand manifest`")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The file is of another version of artisand.
    #[error(
        "{path} has format {found}, this version reads {FORMAT}; write it anew with `artisand manifest`"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// It is not there, no manifest, or of another format.
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read(path).map_err(|source| ManifestError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Reads a manifest's text; `path` is for messages.
    ///
    /// # Errors
    ///
    /// It is no manifest, or of another format.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|source| ManifestError::Content {
                path: path.to_owned(),
                source,
            })?;
        if manifest.artisand != FORMAT {
            return Err(ManifestError::Format {
                path: path.to_owned(),
                found: manifest.artisand,
            });
        }
        Ok(manifest)
    }

    /// Classes whose jobs are deleted, and not failed, when a model of theirs is gone.
    pub fn deleting_when_missing_models(&self) -> impl Iterator<Item = &str> {
        let deletes = |class: &Class| {
            let says = class.limits.get("deleteWhenMissingModels");
            says.is_some_and(is_truthy)
        };
        let classes = self.classes.iter();
        classes.filter_map(move |(name, class)| deletes(class).then_some(&**name))
    }

    /// Why the manifest may no longer be true of the app in this directory; empty if nothing says so.
    ///
    /// `installed` is the version of the framework that is there now.
    pub fn stale(&self, base: &Path, installed: Option<&str>) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(installed) = installed.filter(|installed| *installed != self.laravel) {
            let then = &self.laravel;
            reasons.push(format!(
                "it was written under Laravel {then}, and {installed} is installed"
            ));
        }
        if self.paths.base.is_dir() && !is_same_directory(&self.paths.base, base) {
            let other = self.paths.base.display();
            reasons.push(format!(
                "it was written for the app in {other}, and not in {}",
                base.display()
            ));
        }
        let is_newer = |path: &Path| modified(path).is_some_and(|at| at > self.generated_at);
        let mut newer: Vec<&str> = Vec::new();
        let mut gone: Vec<&str> = Vec::new();
        for (name, class) in &self.classes {
            match modified(&base.join(&class.file)) {
                // Deploys set old times on new files: any other time than then is news.
                Some(at) if at > self.generated_at || at != class.mtime => newer.push(name),
                Some(_) => {}
                None => gone.push(name),
            }
        }
        let list = |names: &[&str]| match names {
            [first] => (*first).to_owned(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
            [] => String::new(),
        };
        // An app whose files are elsewhere is no app whose classes are gone.
        let is_here = gone.len() < self.classes.len();
        if !newer.is_empty() {
            reasons.push(format!("changed since: {}", list(&newer)));
        }
        if !gone.is_empty() && is_here {
            reasons.push(format!("gone since: {}", list(&gone)));
        }
        for path in [&self.paths.env_file, &self.paths.config_cache]
            .into_iter()
            .flatten()
        {
            let name = path.strip_prefix(&self.paths.base).unwrap_or(path);
            if is_newer(&base.join(name)) {
                reasons.push(format!("{} changed since", name.display()));
            }
        }
        for name in ["app", "queue", "cache", "database", "broadcasting"] {
            let name = format!("config/{name}.php");
            if self.paths.config_cache.is_none() && is_newer(&base.join(&name)) {
                reasons.push(format!("{name} changed since"));
            }
        }
        reasons
    }
}

/// As PHP casts to bool.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(&**text, "" | "0"),
        Value::Array(list) => !list.is_empty(),
        Value::Object(_) => true,
    }
}

/// Whether two paths lead to the same directory, links followed.
pub fn is_same_directory(left: &Path, right: &Path) -> bool {
    match (left.canonicalize(), right.canonicalize()) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

fn modified(path: &Path) -> Option<i64> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_manifest_is_stale_when_what_it_describes_has_changed() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("Job.php");
        let set_time = |seconds: u64| {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            let opened = std::fs::File::create(&file).unwrap();
            opened.set_modified(time).unwrap();
        };
        set_time(1000);
        let text = serde_json::json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 2000,
            "paths": {"base": base.path(), "storage": base.path().join("storage")},
            "config": {},
            "classes": {"App\\Job": {"kind": "job", "file": "Job.php", "mtime": 1000, "flags": {"queued": true}}},
        });
        let path = Path::new("artisand.json");
        let manifest = Manifest::parse(path, text.to_string().as_bytes()).unwrap();
        assert_eq!(manifest.stale(base.path(), Some("13.31.0")), [""; 0]);
        let reasons = manifest.stale(base.path(), Some("13.32.0"));
        assert_eq!(
            reasons,
            ["it was written under Laravel 13.31.0, and 13.32.0 is installed"]
        );
        for seconds in [1500, 500] {
            set_time(seconds);
            assert_eq!(
                manifest.stale(base.path(), None),
                ["changed since: App\\Job"]
            );
        }
        set_time(1000);
        // Deployments reach an app through a link.
        let link = base.path().join("current");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert_eq!(manifest.stale(&link, None), [""; 0]);
        let elsewhere = tempfile::tempdir().unwrap();
        let reasons = manifest.stale(elsewhere.path(), None);
        assert!(
            reasons[0].starts_with("it was written for the app in"),
            "{reasons:?}"
        );
        std::fs::create_dir(base.path().join("config")).unwrap();
        std::fs::write(base.path().join("config/queue.php"), "<?php").unwrap();
        assert!(SystemTime::now() > UNIX_EPOCH + Duration::from_secs(2000));
        assert_eq!(
            manifest.stale(base.path(), None),
            ["config/queue.php changed since"]
        );
        let other = text.to_string().replace("\"artisand\":1", "\"artisand\":9");
        let error = Manifest::parse(path, other.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("has format 9"), "{error}");
        assert!(Manifest::parse(path, b"{").is_err());
    }
}
