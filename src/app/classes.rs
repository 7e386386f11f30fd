//! Which classes an app has, according to its files and its manifest, without PHP.
//!
//! This is only about names: no job ever shows that a mapping names a class that does not exist.
//! If files and manifest cannot tell, the answer is [`Presence::Unknown`], so that an answer of
//! [`Presence::Missing`] is reliable. The rules are composer's:
//!
//! * `psr-4` of the app's `composer.json` maps namespaces to directories.
//! * `vendor/composer/autoload_classmap.php` names single classes, wherever they are.
//! * A namespace that only a package or a module declares is not checked.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{Class, Manifest};
use crate::php::ClassName;

/// Largest number of files and directories of an app that are listed.
const MOST_FILES: usize = 50_000;

/// Whether a class exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// The app has it.
    Here,
    /// Files and manifest do not tell.
    Unknown,
    /// The app does not have it.
    Missing {
        /// A class of the app with almost the same name.
        nearest: Option<String>,
    },
}

/// The names of an app's classes.
#[derive(Debug)]
pub struct Classes<'a> {
    base: &'a Path,
    manifest: Option<&'a Manifest>,
    /// Namespaces, with the `\` at their end, and their directories.
    roots: Vec<(String, Vec<PathBuf>)>,
    listed: OnceCell<Listed>,
    class_map: OnceCell<String>,
}

/// The classes that the app's files should contain, by the names of the files.
#[derive(Debug, Default)]
struct Listed {
    /// Names as the files spell them, by their lower case.
    names: BTreeMap<String, String>,
    /// Whether a directory could not be read to its end.
    is_partial: bool,
}

impl<'a> Classes<'a> {
    /// Reads the app in `base`, which may be absent, and the manifest.
    pub fn new(base: &'a Path, manifest: Option<&'a Manifest>) -> Self {
        let text = std::fs::read(base.join("composer.json")).unwrap_or_default();
        let composer: Json = serde_json::from_slice(&text).unwrap_or_default();
        let roots = ["autoload", "autoload-dev"]
            .into_iter()
            .flat_map(|section| {
                let prefixes = composer[section]["psr-4"].as_object();
                prefixes.into_iter().flatten().map(|(namespace, places)| {
                    let places = match places {
                        Json::Array(places) => places.iter().collect(),
                        place => vec![place],
                    };
                    let places = places.into_iter().filter_map(Json::as_str);
                    (
                        namespace.clone(),
                        places.map(|place| base.join(place)).collect(),
                    )
                })
            });
        Self {
            base,
            manifest,
            roots: roots.collect(),
            listed: OnceCell::new(),
            class_map: OnceCell::new(),
        }
    }

    /// Whether the app has a class of this name, ignoring case.
    pub fn look_up(&self, name: &str) -> Presence {
        if self.of_manifest(name).is_some() || self.has_file(name) || self.is_mapped(name) {
            return Presence::Here;
        }
        let lower = name.to_lowercase();
        let is_known = if self.roots.is_empty() {
            self.is_manifests(name)
        } else {
            let is_apps = self.is_apps(name);
            if is_apps && self.listed().names.contains_key(&lower) {
                return Presence::Here;
            }
            if is_apps {
                !self.listed().is_partial
            } else {
                self.is_nowhere(&lower)
            }
        };
        if !is_known {
            return Presence::Unknown;
        }
        let nearest = nearest(name, self.names()).map(str::to_owned);
        Presence::Missing { nearest }
    }

    /// The manifest's facts about a class.
    pub fn of_manifest(&self, name: &str) -> Option<&'a Class> {
        self.manifest?.class(&ClassName::new(name)?)
    }

    /// Whether all classes of this namespace are known, and none of them is one that `is_meant` takes.
    pub fn has_none(&self, namespace: &str, is_meant: impl Fn(&str) -> bool) -> bool {
        self.is_apps(namespace) && !self.listed().is_partial && !self.names().any(is_meant)
    }

    /// Whether the app's own `composer.json` says where classes of this namespace are.
    fn is_apps(&self, name: &str) -> bool {
        let mut roots = self.roots.iter();
        roots.any(|(namespace, _)| starts_with(name, namespace))
    }

    /// Whether a complete manifest has other classes of the app in the same first namespace.
    fn is_manifests(&self, name: &str) -> bool {
        let first = |name: &str| name.split('\\').next().unwrap_or_default().to_lowercase();
        let mut manifest = self
            .manifest
            .filter(|manifest| manifest.complete)
            .into_iter();
        manifest.any(|manifest| {
            // Of packages it has the queued classes only.
            let mut own = manifest
                .classes
                .iter()
                .filter(|(_, class)| !class.is_of_package());
            own.any(|(other, _)| first(other) == first(name))
        })
    }

    /// Whether composer looks for no part of the class's namespace.
    fn is_nowhere(&self, lower: &str) -> bool {
        let read = |file: &str| {
            let text = std::fs::read(self.base.join("vendor/composer").join(file));
            text.map(|text| String::from_utf8_lossy(&text).to_lowercase())
        };
        let (Ok(psr4), Ok(psr0)) = (read("autoload_psr4.php"), read("autoload_namespaces.php"))
        else {
            return false;
        };
        let ends = lower.match_indices('\\').map(|(at, _)| &lower[..=at]);
        let is_declared = |namespace: &str| {
            let quoted = format!("'{}", namespace.replace('\\', "\\\\"));
            psr4.contains(&format!("{quoted}'")) || psr0.contains(quoted.trim_end_matches('\\'))
        };
        let namespaces: Vec<&str> = ends.collect();
        !namespaces.is_empty() && !namespaces.into_iter().any(is_declared)
    }

    fn has_file(&self, name: &str) -> bool {
        self.file(name).is_some()
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.roots.iter().find_map(|(namespace, places)| {
            let rest = name.strip_prefix(&**namespace)?;
            let file = rest.replace('\\', "/") + ".php";
            let mut paths = places.iter().map(|place| place.join(&file));
            paths.find(|path| path.is_file())
        })
    }

    /// What a class is if it is surely no job, according to its file: Laravel's own commands write it so.
    pub fn kind_of_file(&self, name: &str) -> Option<&'static str> {
        let text = std::fs::read_to_string(self.file(name)?).ok()?;
        if text.contains(" extends Notification") {
            return Some("notification");
        }
        if text.contains(" extends Mailable") {
            return Some("mailable");
        }
        let is_listener = name.contains("\\Listeners\\") && !text.contains("Dispatchable");
        is_listener.then_some("listener")
    }

    /// A class of the app with this name in some namespace.
    pub fn in_a_namespace(&self, name: &str) -> Option<&str> {
        let is_it = |class: &str| {
            let short = class.rsplit_once('\\').map(|(_, short)| short);
            short.is_some_and(|short| short.eq_ignore_ascii_case(name))
        };
        self.names().find(|class| is_it(class))
    }

    /// Whether composer's class map names it.
    fn is_mapped(&self, name: &str) -> bool {
        let map = self.class_map.get_or_init(|| {
            let path = self.base.join("vendor/composer/autoload_classmap.php");
            let text = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&text).to_lowercase()
        });
        let name = name.to_lowercase().replace('\\', "\\\\");
        map.contains(&format!("'{name}' =>"))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let of_manifest = self
            .manifest
            .into_iter()
            .flat_map(|manifest| manifest.classes.keys());
        let listed = self.listed().names.values();
        listed.chain(of_manifest).map(String::as_str)
    }

    fn listed(&self) -> &Listed {
        self.listed.get_or_init(|| {
            let mut listed = Listed::default();
            let mut budget = MOST_FILES;
            for (namespace, places) in &self.roots {
                for place in places {
                    listed.add(place, namespace, &mut budget);
                }
            }
            listed
        })
    }
}

impl Listed {
    fn add(&mut self, directory: &Path, namespace: &str, budget: &mut usize) {
        let Ok(entries) = std::fs::read_dir(directory) else {
            // A missing directory has no classes.
            self.is_partial |= directory.exists();
            return;
        };
        for entry in entries {
            let entry = entry.and_then(|entry| Ok((entry.file_type()?, entry.file_name())));
            let (Ok((kind, name)), 1..) = (entry, *budget) else {
                self.is_partial = true;
                return;
            };
            *budget -= 1;
            let Some(name) = name.to_str() else {
                continue;
            };
            if kind.is_dir() {
                self.add(
                    &directory.join(name),
                    &format!("{namespace}{name}\\"),
                    budget,
                );
            } else if let Some(name) = name.strip_suffix(".php") {
                let class = format!("{namespace}{name}");
                self.names.insert(class.to_lowercase(), class);
            } else if kind.is_symlink() {
                // A link may lead anywhere, even in a circle.
                self.is_partial = true;
            }
        }
    }
}

/// Whether a name is in a namespace, ignoring case.
fn starts_with(name: &str, namespace: &str) -> bool {
    let start = name.get(..namespace.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(namespace))
}

/// The candidate most similar to `name`; `None` if all differ too much.
pub fn nearest<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let short = |name: &str| name.rsplit('\\').next().unwrap_or_default().to_lowercase();
    let (wanted, wanted_short) = (name.to_lowercase(), short(name));
    let most = (wanted_short.chars().count() / 3).max(1);
    let distance = |candidate: &str| {
        let lower = candidate.to_lowercase();
        let is_moved = name.contains('\\') && short(candidate) == wanted_short;
        let can_be_near = lower.len().abs_diff(wanted.len()) <= most;
        // A misspelt class ranks before one with the same short name in another namespace.
        let far = is_moved.then_some(most);
        let near = can_be_near.then(|| strsim::osa_distance(&lower, &wanted));
        near.filter(|near| *near <= most).or(far)
    };
    let near = candidates.filter_map(|candidate| Some((distance(candidate)?, candidate)));
    // Of two that are equally near, people misspell the end of a word more often than its first letter.
    let begins_alike = |candidate: &str| {
        let first = |text: &str| text.chars().next().map(|c| c.to_ascii_lowercase());
        first(candidate) == first(name)
    };
    let near = near.min_by_key(|(distance, name)| (*distance, !begins_alike(name), *name));
    near.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_equally_near_names_the_one_that_begins_alike_is_meant() {
        assert_eq!(nearest("mapp", ["app", "map"].into_iter()), Some("map"));
        assert_eq!(nearest("ap", ["app", "map"].into_iter()), Some("app"));
    }

    fn write(base: &Path, name: &str, text: &str) {
        let path = base.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn missing(nearest: Option<&str>) -> Presence {
        let nearest = nearest.map(str::to_owned);
        Presence::Missing { nearest }
    }

    #[test]
    fn the_files_of_an_app_say_which_classes_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let composer = r#"{"autoload": {"psr-4": {"App\\": "app/", "Shop\\": ["shop", "more"]}}}"#;
        write(base, "composer.json", composer);
        for file in [
            "app/Jobs/SendReceipt.php",
            "app/Jobs/Deep/Import.php",
            "more/Order.php",
        ] {
            write(base, file, "<?php");
        }
        let map = r"'App\\Legacy\\Old' => $baseDir . '/x.php',";
        write(base, "vendor/composer/autoload_classmap.php", map);
        let psr4 = r"'Vendor\\Kit\\' => array($vendorDir . '/kit'),";
        write(base, "vendor/composer/autoload_psr4.php", psr4);
        write(base, "vendor/composer/autoload_namespaces.php", "");
        let classes = Classes::new(base, None);
        #[rustfmt::skip]
        let rows = [
            (r"App\Jobs\SendReceipt", Presence::Here),
            (r"app\jobs\sendreceipt", Presence::Here),
            (r"App\Legacy\Old", Presence::Here),
            (r"Shop\Order", Presence::Here),
            (r"App\Jobs\SendReciept", missing(Some(r"App\Jobs\SendReceipt"))),
            (r"App\Job\SendReceipt", missing(Some(r"App\Jobs\SendReceipt"))),
            (r"App\Jobs\Import", missing(Some(r"App\Jobs\Deep\Import"))),
            (r"Ap\Jobs\SendReceipt", missing(Some(r"App\Jobs\SendReceipt"))),
            (r"App\Jobs\Nothing", missing(None)),
            (r"Vendor\Kit\Job", Presence::Unknown),
            ("SendReceipt", Presence::Unknown),
        ];
        for (name, expected) in rows {
            assert_eq!(classes.look_up(name), expected, "{name}");
        }
        assert!(classes.has_none(r"App\Job\", |class| class.starts_with(r"App\Job\")));
        assert!(!classes.has_none(r"App\Jobs\", |class| class.starts_with(r"App\Jobs\")));
        assert!(!classes.has_none(r"Vendor\Kit\", |_| false));
        // Links are not followed, so the classes behind them are unknown.
        std::os::unix::fs::symlink("/nonexistent", base.join("app/Linked")).unwrap();
        let classes = Classes::new(base, None);
        assert_eq!(classes.look_up(r"App\Linked\Job"), Presence::Unknown);
    }

    #[test]
    fn without_files_the_manifest_says_it() {
        let nowhere = Path::new("/nonexistent");
        let manifest = |complete: bool| {
            let text = serde_json::json!({
                "artisand": 1, "laravel": "13.0.0", "generated_at": 1, "complete": complete,
                "paths": {"base": nowhere, "storage": nowhere}, "config": {},
                "classes": {
                    "App\\Jobs\\SendReceipt": {"kind": "job", "file": "x.php"},
                    "Kit\\Job": {"kind": "job", "file": "y.php", "flags": {"package": true}},
                },
            });
            Manifest::parse(nowhere, text.to_string().as_bytes()).unwrap()
        };
        let whole = manifest(true);
        let classes = Classes::new(nowhere, Some(&whole));
        assert_eq!(classes.look_up(r"app\Jobs\SendReceipt"), Presence::Here);
        let misspelt = r"App\Jobs\SendReciept";
        let expected = missing(Some(r"App\Jobs\SendReceipt"));
        assert_eq!(classes.look_up(misspelt), expected);
        assert_eq!(classes.look_up(r"Vendor\Job"), Presence::Unknown);
        // Of a package the manifest has only what is queued.
        assert_eq!(classes.look_up(r"Kit\Job"), Presence::Here);
        assert_eq!(classes.look_up(r"Kit\Event"), Presence::Unknown);
        let partial = manifest(false);
        let classes = Classes::new(nowhere, Some(&partial));
        assert_eq!(classes.look_up(misspelt), Presence::Unknown);
        assert_eq!(
            Classes::new(nowhere, None).look_up(misspelt),
            Presence::Unknown
        );
    }
}
