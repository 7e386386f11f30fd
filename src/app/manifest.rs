//! The manifest: facts about the app that its own PHP wrote (`artisand.json`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::payload::Kind;
use crate::php::{self, ClassName};

/// The line before and after the exporter's result, because an app may print while it boots.
const MARK: &str = "---artisand-manifest---";

/// What Composer has installed.
const INSTALLED: &str = "vendor/composer/installed.json";

/// Format that this version reads.
const FORMAT: u64 = 1;

/// The facts about an app.
#[derive(Clone, Deserialize)]
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
    /// `config('app')`, `config('queue')`, `config('cache')` and `config('database')`.
    pub config: Value,
    /// Which settings come from variables; empty with a cached configuration, and in a manifest of an older version.
    #[serde(default)]
    pub variables: Option<super::Variables>,
    /// Prefix of each cache store, as the store itself returns it.
    #[serde(default)]
    pub cache_prefixes: BTreeMap<String, Option<String>>,
    /// Routes of classes to queues (`Queue::route`, Laravel 13): a queue, or connection and queue, by class.
    #[serde(default, deserialize_with = "map")]
    pub queue_routes: BTreeMap<String, Value>,
    /// Connection and queue that replace a queue (`Queue::forward`, Laravel 13).
    #[serde(default, deserialize_with = "map")]
    pub queue_forwards: BTreeMap<String, Value>,
    /// Classes that add fields to payloads (`Queue::createPayloadUsing`), except the framework's own.
    #[serde(default)]
    pub payload_hooks: Vec<String>,
    /// Settings that the app makes in code and that Laravel's workers and commands obey; empty in a manifest of an
    /// older version.
    #[serde(default, deserialize_with = "or_default")]
    pub code: Code,
    /// Classes that can be queued or be inside jobs, by name.
    #[serde(default)]
    pub classes: BTreeMap<String, Class>,
    /// Properties of Laravel's own wrappers, in this version; empty in a manifest of an older version of artisand.
    #[serde(default)]
    pub(super) wrappers: BTreeMap<String, Class>,
    /// Models by name.
    #[serde(default)]
    pub models: BTreeMap<String, Model>,
    /// Notes about facts that PHP could not find out.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Classes that were removed from [`classes`](Self::classes), with the file that has changed since.
    #[serde(skip)]
    pub(super) changed: BTreeMap<String, PathBuf>,
    /// Declared names of classes, by their lower case.
    #[serde(skip)]
    pub(super) declared: OnceLock<HashMap<String, String>>,
}

impl fmt::Debug for Manifest {
    /// Shows no configuration, which may contain passwords and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("laravel", &self.laravel)
            .field("generated_at", &self.generated_at)
            .field("paths", &self.paths)
            .field("classes", &self.classes.keys())
            .finish_non_exhaustive()
    }
}

/// Settings that the app makes in code and that Laravel's workers and commands obey.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Code {
    /// Names of workers that choose their jobs by a callback (`Worker::popUsing`).
    pub pop_using: Vec<String>,
    /// Exit codes that the app changes: static properties of `Worker` (Laravel 13).
    pub exit_codes: Vec<String>,
    /// Signals that its workers do not ask the cache for: `restart`, `pause` (`Queue::withoutInterruptionPolling`).
    pub unpolled: Vec<String>,
    /// Classes of the pipes that commands go through (`Bus::pipeThrough`).
    pub pipes: Vec<String>,
    /// Commands that must not run (`prohibit()`), such as `queue:clear`.
    pub prohibited: Vec<String>,
    /// Whether a callback names Horizon's masters (`MasterSupervisor::determineNameUsing`).
    pub names_masters: bool,
}

/// A value, or its default for null.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
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

/// A name, as which older exporters also wrote a number, or a list of names, which is none.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(name) => Some(name),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// Hashes by file; empty for a class of a package, which PHP may write as a list.
fn hashes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<PathBuf, String>, D::Error> {
    let hashes = map(deserializer)?.into_iter();
    let text = |(file, hash): (String, Value)| Some((file.into(), hash.as_str()?.to_owned()));
    Ok(hashes.filter_map(text).collect())
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
    /// Its file, relative to the app's directory unless it is elsewhere.
    pub file: PathBuf,
    /// When the file was last changed, in unix seconds.
    #[serde(default)]
    pub mtime: i64,
    /// Files that define the class, its parents, traits and interfaces, except the framework's, with their SHA-256;
    /// empty in a manifest of an older version.
    #[serde(default, deserialize_with = "hashes")]
    sources: BTreeMap<PathBuf, String>,
    /// Its properties in the order in which `serialize()` writes them.
    #[serde(default)]
    pub properties: Vec<Property>,
    /// Limits as the class declares them, including attributes; `{"$method": true}` for a method.
    #[serde(default)]
    pub limits: BTreeMap<String, Value>,
    /// Flags of the class: `queued`, `unique`, `encrypted`, `package` and so on.
    #[serde(default)]
    pub flags: BTreeMap<String, Value>,
    /// Where the id of its unique lock comes from; `None` without an id.
    #[serde(default)]
    pub unique_id: Option<UniqueId>,
    /// Seconds of its unique lock, in the form of [`limits`](Self::limits).
    #[serde(default)]
    pub unique_for: Option<Value>,
    /// Whether a method chooses the cache store of its unique lock.
    #[serde(default)]
    pub unique_via: bool,
    /// Whether a method chooses the cache store that records the last of its debounced jobs.
    #[serde(default)]
    pub debounce_via: bool,
    /// Whether it has a method `displayName`.
    #[serde(default)]
    pub display_name: bool,
    /// Results of those methods that consist of one `return`.
    #[serde(default)]
    pub methods: BTreeMap<String, Returned>,
    /// Its middleware.
    #[serde(default)]
    pub middleware: Middleware,
    /// Its parent class, the parent's parent, and so on.
    #[serde(default)]
    pub parents: Vec<String>,
    /// All interfaces.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// All traits, including those of parents and traits.
    #[serde(default)]
    pub uses: Vec<String>,
    /// Classes of the parameters of its `handle` or `__invoke`, separated by `|` within a union; `None` for other
    /// types.
    #[serde(default)]
    pub handle: Vec<Option<String>>,
    /// What its constructors do; empty in a manifest of an older version.
    #[serde(default, deserialize_with = "or_default")]
    pub constructor: Constructor,
    /// Which events its methods listen to.
    #[serde(default)]
    pub listens: Vec<Listens>,
}

/// What the constructors of a class do, which do not run where a job is made in Rust.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Constructor {
    /// Properties that they set otherwise than from a parameter of the same name.
    pub sets: Vec<String>,
    /// Methods that they call on the new object, with the arguments as they are written.
    pub calls: Vec<String>,
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
    /// Its type in PHP's notation.
    #[serde(rename = "type", default)]
    pub type_name: Option<String>,
    /// Its default value; `None` if it has a type and no default, and so begins uninitialised.
    #[serde(default, deserialize_with = "serialized")]
    pub default: Option<php::Value>,
}

/// A method of a listener and an event that it is registered for.
#[derive(Debug, Clone, Deserialize)]
pub struct Listens {
    /// Name of the event, mostly its class.
    pub event: String,
    /// The method; `handle` also for `__invoke`.
    pub method: String,
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
    /// Whether a method returns it.
    pub method: bool,
    /// Class names in the default of the property `middleware`.
    pub property: Vec<String>,
    /// Names of Laravel's own classes in that method, without their namespace.
    pub named: Vec<String>,
}

/// The result of a method that consists of one `return`.
#[derive(Debug, Clone, Deserialize)]
pub struct Returned {
    /// Whether the result is the joined text of all parts; otherwise there is only one part.
    pub text: bool,
    /// The parts in order.
    pub parts: Vec<Part>,
}

/// A part of a method's result.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A scalar, or a list of them.
    Literal(Value),
    /// A property of the object.
    Property(String),
}

impl Class {
    /// Whether jobs of the class have middleware that is not in their bytes.
    pub fn has_middleware(&self) -> bool {
        self.middleware.method || !self.middleware.property.is_empty()
    }

    /// Whether jobs of this class, or wrappers around it, are queued.
    pub fn is_queued(&self) -> bool {
        self.is("queued")
    }

    /// Whether it is not of the app, but of a package that Composer installed.
    pub fn is_of_package(&self) -> bool {
        self.is("package")
    }
}

/// An Eloquent model.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    /// Its table.
    pub table: String,
    /// Column of its primary key; `None` if there is none, or if the key has several columns.
    #[serde(default, deserialize_with = "name")]
    pub key: Option<String>,
    /// Type of the key in PHP: `int` or `string`.
    #[serde(default, deserialize_with = "name")]
    pub key_type: Option<String>,
    /// Its database connection; `None` for the default one.
    #[serde(default, deserialize_with = "name")]
    pub connection: Option<String>,
    /// The name of its class in polymorphic relations, and in jobs if the app says so: the class, or an alias.
    #[serde(default, deserialize_with = "name")]
    pub morph_class: Option<String>,
    /// Kind of the pivot, if it is a pivot model: a row that connects two others and may have no key.
    #[serde(default)]
    pub pivot: Option<Pivot>,
    /// Whether the app's own code makes the query that loads it for a job (`newQueryForRestoration`).
    #[serde(default)]
    pub restored_by_code: bool,
}

/// Kind of a pivot model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pivot {
    /// Pivot of a relation between two models.
    Plain,
    /// Pivot of a polymorphic relation.
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
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is not a manifest.
    #[error("{path} is not a manifest; write it again with `artisand manifest`")]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: serde_json::Error,
    },
    /// The file is of another version of artisand.
    #[error(
        "{path} has format {found}, this version reads {FORMAT}; write it again with `artisand manifest`"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The file's format.
        found: u64,
    },
}

/// The exporter's result within everything that was printed; `None` if there is none.
pub(crate) fn between_marks(printed: &str) -> Option<&str> {
    let said = printed.split(MARK).nth(1)?.trim();
    Some(said).filter(|said| !said.is_empty())
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// The file does not exist, is not a manifest, or has another format.
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read(path).map_err(|source| ManifestError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Reads a manifest's text, which may be the whole output of the exporter; `path` is for messages.
    ///
    /// # Errors
    ///
    /// The text is not a manifest, or has another format.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, ManifestError> {
        let printed = std::str::from_utf8(text).ok().and_then(between_marks);
        let text = printed.map_or(text, str::as_bytes);
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

    /// Removes classes that have changed since the manifest was written, because its facts about them may be wrong.
    ///
    /// Removed classes are unknown, so the caller has to ask PHP about them.
    /// Does nothing if the app's files are not on this machine.
    pub fn distrust_changed(&mut self, base: &Path) {
        let mut files = Files::new(self, base);
        let changed = &mut self.changed;
        self.classes.retain(|name, class| {
            let file = files.changed(class);
            let is_trusted = file.is_none();
            changed.extend(file.map(|file| (name.clone(), file)));
            is_trusted
        });
    }

    /// Classes that a mapping can name: all but Laravel's wrappers, whose jobs are about what is inside them.
    pub fn targets(&self) -> impl Iterator<Item = (&str, &Class)> {
        let is_wrapper = |name: &str| {
            let class = ClassName::new(name);
            class.is_some_and(|class| Kind::of_class(&class) != Kind::Job)
        };
        let classes = self.classes.iter();
        let classes = classes.map(|(name, class)| (&**name, class));
        classes.filter(move |(name, _)| !is_wrapper(name))
    }

    /// Classes that have changed since the manifest was written, each with the changed file.
    pub fn changed(&self) -> impl Iterator<Item = (&str, &Path)> {
        let changed = self.changed.iter();
        changed.map(|(name, file)| (&**name, &**file))
    }

    /// Whether jobs of this class are deleted, and not failed, when one of their models is gone; `None` for a class
    /// that is not known, or no longer.
    pub fn deletes_when_missing_models(&self, class: &ClassName) -> Option<bool> {
        let says = self.class(class)?.limits.get("deleteWhenMissingModels");
        Some(says.is_some_and(is_truthy))
    }

    /// Reasons why the manifest may be out of date for the app in this directory; empty if there are none.
    ///
    /// `installed` is the version of the framework that is installed now.
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
        if base.is_dir() && !base.join("composer.json").is_file() {
            reasons.push(format!("there is no composer.json in {}", base.display()));
        }
        if self.classes.values().all(Class::is_of_package) && self.changed.is_empty() {
            reasons.push("it knows no class of the app".to_owned());
        }
        let (newer, gone) = self.changed_classes(base);
        if let Some(newer) = newer {
            reasons.push(format!(
                "changed since, and only PHP is asked about it: {newer}"
            ));
        }
        if let Some(gone) = gone {
            reasons.push(format!("gone since: {gone}"));
        }
        let is_newer = |path: &Path| modified(path).is_some_and(|at| at > self.generated_at);
        for path in [&self.paths.env_file, &self.paths.config_cache]
            .into_iter()
            .flatten()
        {
            let name = path.strip_prefix(&self.paths.base).unwrap_or(path);
            if is_newer(&base.join(name)) {
                reasons.push(format!("{} changed since", name.display()));
            }
        }
        if is_newer(&base.join(INSTALLED)) {
            reasons.push("packages were installed or updated since".to_owned());
        }
        for name in ["app", "queue", "cache", "database"] {
            let name = format!("config/{name}.php");
            if self.paths.config_cache.is_none() && is_newer(&base.join(&name)) {
                reasons.push(format!("{name} changed since"));
            }
        }
        reasons
    }

    /// The classes of which a file has changed, and those that are gone, in words.
    fn changed_classes(&self, base: &Path) -> (Option<String>, Option<String>) {
        let shown = |name: &str, file: &Path| format!("{name} ({})", file.display());
        let changed = self.changed();
        let mut newer: Vec<String> = changed.map(|(name, file)| shown(name, file)).collect();
        let mut gone: Vec<String> = Vec::new();
        let mut files = Files::new(self, base);
        for (name, class) in &self.classes {
            match files.changed(class) {
                Some(file) if file == class.file && !base.join(&file).is_file() => {
                    gone.push(name.clone());
                }
                Some(file) => newer.push(shown(name, &file)),
                None => {}
            }
        }
        let list = |names: &[String]| match names {
            [first] => Some(first.clone()),
            [first, rest @ ..] => Some(format!("{first} and {} more", rest.len())),
            [] => None,
        };
        (list(&newer), list(&gone))
    }
}

/// The files of the classes of a manifest, as they are now.
struct Files<'a> {
    base: &'a Path,
    generated_at: i64,
    /// Whether files of the app, and files of packages, are on this machine.
    are_here: [bool; 2],
    /// Hashes of the files that were read: most classes share some.
    hashes: HashMap<PathBuf, Option<String>>,
}

impl<'a> Files<'a> {
    fn new(manifest: &Manifest, base: &'a Path) -> Self {
        let is_here = |package: bool| {
            let mut classes = manifest.classes.values();
            classes
                .any(|class| class.is_of_package() == package && base.join(&class.file).is_file())
        };
        Self {
            base,
            generated_at: manifest.generated_at,
            are_here: [is_here(false), is_here(true)],
            hashes: HashMap::new(),
        }
    }

    /// The first of a class's files that has changed or is gone; `None` if such files are not on this machine.
    fn changed(&mut self, class: &Class) -> Option<PathBuf> {
        if !self.are_here[usize::from(class.is_of_package())] {
            return None;
        }
        if class.sources.is_empty() {
            let at = modified(&self.base.join(&class.file));
            // Deploys may set old times on new files, so any other time counts as a change.
            let is_same =
                at.is_some_and(|at| at <= self.generated_at && [0, at].contains(&class.mtime));
            return (!is_same).then(|| class.file.clone());
        }
        // Its own file first: a class that is gone is not one whose parent has changed.
        let own = class.sources.get_key_value(&class.file);
        let mut sources = own.into_iter().chain(&class.sources);
        let changed = sources.find(|(file, hash)| self.hash(file).as_ref() != Some(*hash));
        changed.map(|(file, _)| file.clone())
    }

    fn hash(&mut self, file: &Path) -> Option<String> {
        if let Some(known) = self.hashes.get(file) {
            return known.clone();
        }
        let hash = sha256(&self.base.join(file));
        self.hashes.insert(file.to_owned(), hash.clone());
        hash
    }
}

/// PHP's cast to bool.
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

/// SHA-256 of a file in hexadecimal digits; `None` if it cannot be read.
fn sha256(path: &Path) -> Option<String> {
    let digest = Sha256::digest(std::fs::read(path).ok()?);
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    Some(digits.collect())
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
    fn nothing_is_known_of_a_class_that_changed_since() {
        let base = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(base.path().join(name), text).unwrap();
        for name in ["A.php", "B.php", "Base.php", "composer.json"] {
            write(name, "<?php");
        }
        // printf '<?php' | sha256sum
        let hash = "fe5bcb54c56e0b9f456a060364dd28b2248f3a0e21c168d4ce9d009b73e83e3c";
        let text = serde_json::json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 1,
            "paths": {"base": base.path(), "storage": base.path().join("storage")},
            "config": {},
            "classes": {
                "App\\A": {"kind": "job", "file": "A.php", "sources": {"A.php": hash}},
                "App\\B": {"kind": "job", "file": "B.php", "sources": {"B.php": hash, "Base.php": hash}},
                "Package\\C": {"kind": "job", "file": "A.php", "mtime": 1, "sources": []},
            },
        });
        let read = |base: &Path| {
            let text = text.to_string();
            let mut manifest =
                Manifest::parse(Path::new("artisand.json"), text.as_bytes()).unwrap();
            manifest.distrust_changed(base);
            let changed: Vec<String> = manifest
                .changed()
                .map(|(class, file)| format!("{class} {}", file.display()))
                .collect();
            let stale = manifest.stale(base, None);
            let known: Vec<String> = manifest.classes.into_keys().collect();
            (known, changed, stale)
        };
        // With hashes, times do not matter.
        let (known, changed, _) = read(base.path());
        assert_eq!(known, ["App\\A", "App\\B"]);
        assert_eq!(changed, ["Package\\C A.php"]);
        write("Base.php", "<?php // encrypted");
        let (known, changed, stale) = read(base.path());
        assert_eq!(known, ["App\\A"]);
        assert_eq!(changed, ["App\\B Base.php", "Package\\C A.php"]);
        assert_eq!(
            stale,
            ["changed since, and only PHP is asked about it: App\\B (Base.php) and 1 more"]
        );
        // Without the app's files, no class counts as changed.
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(read(elsewhere.path()).0.len(), 3);
    }

    #[test]
    fn a_class_of_a_package_is_as_fresh_as_its_files() {
        let base = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = base.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let hash = "fe5bcb54c56e0b9f456a060364dd28b2248f3a0e21c168d4ce9d009b73e83e3c";
        let (own, base_class) = ("vendor/kit/Job.php", "vendor/kit/Base.php");
        let text = serde_json::json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 4_000_000_000_u64,
            "paths": {"base": base.path(), "storage": base.path()}, "config": {},
            "classes": {
                "App\\A": {"kind": "job", "file": "A.php", "sources": {"A.php": hash}},
                "Kit\\Job": {
                    "kind": "job", "file": own, "flags": {"package": true},
                    "sources": {base_class: hash, own: hash},
                },
            },
        });
        let reasons = || {
            let text = text.to_string();
            let mut manifest =
                Manifest::parse(Path::new("artisand.json"), text.as_bytes()).unwrap();
            manifest.distrust_changed(base.path());
            let known: Vec<String> = manifest.classes.keys().cloned().collect();
            (known.join(" "), manifest.stale(base.path(), None))
        };
        write("composer.json", "{}");
        write("A.php", "<?php");
        write(INSTALLED, "{}");
        // Without the packages, nothing tells that they changed.
        let both = ("App\\A Kit\\Job".to_owned(), Vec::new());
        assert_eq!(reasons(), both);
        for file in [own, base_class] {
            write(own, "<?php");
            write(base_class, "<?php");
            assert_eq!(reasons(), both);
            // As an update of the package does.
            write(file, "<?php // 2.0");
            let (known, stale) = reasons();
            assert_eq!(known, "App\\A");
            let expected =
                format!("changed since, and only PHP is asked about it: Kit\\Job ({file})");
            assert_eq!(stale, [expected]);
        }
        // A new package changes no class, but may bring some.
        write(base_class, "<?php");
        let late = UNIX_EPOCH + Duration::from_secs(4_000_000_001);
        let installed = std::fs::File::open(base.path().join(INSTALLED)).unwrap();
        installed.set_modified(late).unwrap();
        let (known, stale) = reasons();
        assert_eq!(known, "App\\A Kit\\Job");
        assert_eq!(stale, ["packages were installed or updated since"]);
    }

    #[test]
    fn a_manifest_is_stale_when_what_it_describes_has_changed() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("Job.php");
        std::fs::write(base.path().join("composer.json"), "{}").unwrap();
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
                ["changed since, and only PHP is asked about it: App\\Job (Job.php)"]
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
        std::fs::remove_dir_all(base.path().join("config")).unwrap();
        std::fs::remove_file(base.path().join("composer.json")).unwrap();
        let reasons = manifest.stale(base.path(), None);
        assert!(
            reasons[0].starts_with("there is no composer.json"),
            "{reasons:?}"
        );
        let empty = Manifest {
            classes: BTreeMap::new(),
            ..manifest
        };
        let reasons = empty.stale(base.path(), None);
        assert!(
            reasons.contains(&"it knows no class of the app".to_owned()),
            "{reasons:?}"
        );
        let printed = format!("noise\n{MARK}\n{text}\n{MARK}\n");
        let alone = Manifest::parse(path, printed.as_bytes()).unwrap();
        assert_eq!(alone.laravel, "13.31.0");
        let other = text.to_string().replace("\"artisand\":1", "\"artisand\":9");
        let error = Manifest::parse(path, other.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("has format 9"), "{error}");
        assert!(Manifest::parse(path, b"{").is_err());
    }

    #[test]
    fn a_name_of_a_model_may_be_a_number_or_none() {
        #[rustfmt::skip]
        let rows = [
            (serde_json::json!("id"), Some("id")),
            (serde_json::json!(1), Some("1")),
            (serde_json::json!(["order_id", "product_id"]), None),
            (serde_json::json!({"$php": "App\\Key"}), None),
            (Value::Null, None),
        ];
        for (written, expected) in rows {
            let model = serde_json::json!({
                "table": "t", "key": written, "key_type": written, "connection": written, "morph_class": written,
            });
            let model: Model = serde_json::from_value(model).unwrap();
            for name in [
                model.key,
                model.key_type,
                model.connection,
                model.morph_class,
            ] {
                assert_eq!(name.as_deref(), expected, "{written}");
            }
        }
    }
}
