//! Mistakes in mappings that keep no worker from starting: what they name is not there, or is something else.
//!
//! Each is told with its line, at the start of a worker as a warning, and by `doctor` and
//! `config:check`. What cannot be told is not doubted.

use toml::Spanned;

use super::handler::HandlerTable;
use super::laravel::Origin;
use super::place::{ErrorPlace, place};
use super::routing::handler;
use super::{Config, ConnectionTable, MapTable};
use crate::app::{self, Classes, Presence};
use crate::php::ClassName;
use crate::routing::Mode;

/// Variables with the prefix `ARTISAND_`, and `JOB_..`, which programs get.
const VARIABLES: [&str; 18] = [
    "APP",
    "ARGUMENTS",
    "CHILD",
    "CONCURRENCY",
    "CONFIG",
    "CONNECTION",
    "DEBIAN_MIRROR",
    "GRACE",
    "HTTP_TOKEN",
    "LOG",
    "MANIFEST",
    "METRICS",
    "PHP",
    "QUEUE",
    "ROOTS",
    "SENTINEL_PASSWORD",
    "SETTINGS",
    "THREADS",
];

/// Something in the settings that most probably is not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Where it stands; none if it is not in the file.
    pub place: Option<ErrorPlace>,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
    /// Whether jobs certainly do not go where the mapping says.
    pub is_certain: bool,
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

impl Config {
    /// Looks at the app's directory and at everything that mappings name.
    pub fn doubts(&self) -> Vec<Doubt> {
        let mut doubts: Vec<Doubt> = self.doubt_of_app().into_iter().collect();
        doubts.extend(self.doubts_of_variables());
        doubts.extend(self.doubts_of_connections());
        doubts.extend(self.doubts_of_sentinels());
        doubts.extend(self.doubt_of_php());
        let manifest = self.manifest().map(|(_, manifest)| manifest);
        let laravel = self.laravel();
        let classes = laravel.map(|laravel| Classes::new(&laravel.base, manifest));
        for table in &self.file.map {
            if let Some(classes) = &classes {
                doubts.extend(self.doubts_of_names(table, classes));
            }
            doubts.extend(self.doubt_of_program(table));
            doubts.extend(self.doubt_of_script(table));
        }
        // Where PHP is asked at the start, it tells.
        if !self.is_php_unasked {
            doubts.extend(self.doubts_of_locks());
        }
        doubts
    }

    /// Mappings of classes whose jobs may be unique without saying so, and of which nothing is known.
    fn doubts_of_locks(&self) -> Vec<Doubt> {
        let version = self.known_version();
        let failure = self.classes_failure.as_ref();
        if !version.hides_locks() && failure.is_none() {
            return Vec::new();
        }
        let failed = failure.map_or_else(String::new, |why| format!(" ({why})"));
        let doubt = |name: &Spanned<String>| {
            let class = name.get_ref().trim_start_matches('\\');
            Doubt {
                place: Some(self.place_of(name)),
                problem: if version.hides_locks() {
                    format!(
                        "nothing says whether `{class}` is unique, and not all jobs of Laravel {version} do: they count as unmapped{failed}"
                    )
                } else {
                    format!(
                        "if `{class}` is unique, its jobs count as unmapped, as nothing says when its lock is freed{failed}"
                    )
                },
                remedy: "write a manifest (`artisand manifest`), let PHP tell it (`settings = \"php\"`), or say that the class is not unique: `unique = false`",
                is_certain: false,
            }
        };
        self.unknown_classes().map(doubt).collect()
    }

    /// Classes that mappings name, whose jobs run here and may be unique, and of which nothing is known.
    pub(crate) fn unknown_classes(&self) -> impl Iterator<Item = &Spanned<String>> {
        let has_unique_jobs = self.known_version().has_unique_jobs();
        let tables = self.file.map.iter().filter(move |_| has_unique_jobs);
        tables.filter_map(|table: &MapTable| {
            let name = table.job.as_ref()?;
            let is_forwarded = matches!(table.handler.get_ref(), HandlerTable::Forward(_));
            let is_shadow = table.mode == Mode::Shadow;
            if is_forwarded || is_shadow || table.is_never_unique() {
                return None;
            }
            let class = name.get_ref().trim_start_matches('\\');
            let is_pattern = class.starts_with('/') || class.contains(['*', '?']);
            let is_known = self.classes().is_some_and(|classes| {
                let known = ClassName::new(class).and_then(|class| classes.class(&class));
                known.is_some() || (is_pattern && classes.changed().next().is_none())
            });
            (!is_known).then_some(name)
        })
    }

    /// Where a mapping says what it is for.
    pub fn place_of_mapping(&self, position: usize) -> Option<ErrorPlace> {
        let (_, name) = self.file.map.get(position)?.kinds().next()?;
        Some(self.place_of(name))
    }

    pub(super) fn place_of<T>(&self, at: &Spanned<T>) -> ErrorPlace {
        place(&self.path, at.span().start)
    }

    fn doubt_of_app(&self) -> Option<Doubt> {
        let base = self.app.as_ref()?;
        // A manifest says everything of an app that is elsewhere.
        if self.manifest.is_some() || app::is_app(base) {
            return None;
        }
        let parts = [".env", "config", "bootstrap", "composer.json"];
        let has_some = parts.iter().any(|part| base.join(part).exists());
        Some(Doubt {
            place: None,
            problem: format!(
                "{} is no Laravel app: it has no `artisan` and no `bootstrap/app.php`{}",
                base.display(),
                if has_some {
                    ""
                } else {
                    ", and nothing else of one"
                }
            ),
            remedy: "name the directory where `artisan` is",
            is_certain: !has_some,
        })
    }

    /// Variables of artisand that it does not know.
    fn doubts_of_variables(&self) -> Vec<Doubt> {
        let handlers = self.file.map.iter().filter_map(handler);
        let named: Vec<String> = handlers.flat_map(|handler| handler.variables()).collect();
        let doubt = |name: &String| {
            let own = name.strip_prefix("ARTISAND_")?;
            if VARIABLES.contains(&own) || own.starts_with("JOB_") || named.contains(name) {
                return None;
            }
            let meant = app::nearest(own, VARIABLES.iter().copied());
            let meant = meant.map_or(String::new(), |own| {
                format!("; did you mean `ARTISAND_{own}`?")
            });
            Some(Doubt {
                place: None,
                problem: format!("artisand knows no variable `{name}`{meant}"),
                remedy: "correct its name in the environment, or remove it",
                is_certain: false,
            })
        };
        self.process.keys().filter_map(doubt).collect()
    }

    /// Connections that the app does not have, and of which the file does not say all.
    fn doubts_of_connections(&self) -> Vec<Doubt> {
        let laravel = self.laravel();
        // The environment alone says what Laravel's own configuration has.
        let laravel = laravel.filter(|known| !matches!(known.origin, Origin::Environment(_)));
        let names = laravel.and_then(|laravel| laravel.queue_connections().ok());
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            return Vec::new();
        };
        let doubt = |(name, table): (&String, &ConnectionTable)| {
            let nearest = app::nearest(name, names.iter().map(String::as_str));
            if names.contains(name) || (table.says_all() && nearest.is_none()) {
                return None;
            }
            let meant = nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            let all = names.join(", ");
            Some(Doubt {
                place: None,
                problem: format!(
                    "[connections.{name}]: the app has no queue connection `{name}` (there are: {all}){meant}"
                ),
                remedy: "correct the name: no connection of the app gets these settings",
                is_certain: !table.says_all() && !self.is_php_unasked,
            })
        };
        self.file.connections.iter().filter_map(doubt).collect()
    }

    /// Services under `[redis]` for connections that the app does not have.
    fn doubts_of_sentinels(&self) -> Vec<Doubt> {
        let laravel = self.laravel();
        let laravel = laravel.filter(|known| !matches!(known.origin, Origin::Environment(_)));
        let names = laravel.and_then(|laravel| laravel.redis_connections().ok());
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            return Vec::new();
        };
        let table = self.redis_table();
        let unknown = table.services.keys().filter(|name| !names.contains(name));
        let doubt = |name: &String| {
            let all = names.join(", ");
            Doubt {
                place: None,
                problem: format!(
                    "`services` under [redis]: the app has no Redis connection `{name}` (there are: {all})"
                ),
                remedy: "correct the name: no connection of the app gets this service",
                is_certain: false,
            }
        };
        unknown.map(doubt).collect()
    }

    /// An option of phpredis with which PHP and scripts do not see the same bytes in the queues of a connection.
    ///
    /// Laravel pushes through scripts, but before 12.45 it adds delayed jobs with a plain command, and up to now it
    /// deletes jobs with one (docs/protocol/redis-driver.md 3).
    pub(crate) fn doubt_of_encoding(&self, connection: &str) -> Option<Doubt> {
        let laravel = self.laravel()?;
        let (path, value) = laravel.queue_encoding(connection).ok()??;
        // The connection may have options of its own.
        let option = path.rsplit('.').next().unwrap_or(&path);
        let are_delayed_encoded = !laravel.known_version().is_at_least(12, 45);
        let effect = if are_delayed_encoded {
            "delayed jobs that PHP pushes cannot be read and go to quarantine, and PHP workers cannot delete jobs"
        } else {
            "PHP workers cannot delete jobs, which run again"
        };
        Some(Doubt {
            place: None,
            problem: format!(
                "queue connection `{connection}`: the option `{option}` of its Redis connection is {value}, with which phpredis encodes what it sends outside of scripts: {effect}"
            ),
            remedy: "unset it, or give the queue a Redis connection without it",
            is_certain: are_delayed_encoded,
        })
    }

    /// Classes that the app does not have, or that are of another kind.
    fn doubts_of_names(&self, table: &MapTable, classes: &Classes<'_>) -> Vec<Doubt> {
        let Some((kind, name)) = table.kinds().next().filter(|(kind, _)| *kind != "command") else {
            return Vec::new();
        };
        let class = name.get_ref().trim_start_matches('\\');
        let class = match kind {
            "listener" | "string" => class.split('@').next().unwrap_or_default(),
            _ => class,
        };
        let mut doubts: Vec<Doubt> = self
            .doubt_of_class(name, class, classes)
            .into_iter()
            .collect();
        if doubts.is_empty() && kind != "string" {
            doubts.extend(self.doubt_of_short_name(name, class, classes));
        }
        if let Some(event) = &table.event {
            let class = event.get_ref().trim_start_matches('\\');
            doubts.extend(self.doubt_of_class(event, class, classes));
        }
        let found = classes.of_manifest(class).map(|class| &*class.kind);
        let found = found.or_else(|| classes.kind_of_file(class));
        doubts.extend(found.and_then(|found| self.doubt_of_kind(name, class, kind, found)));
        doubts
    }

    fn doubt_of_class(
        &self,
        at: &Spanned<String>,
        class: &str,
        classes: &Classes<'_>,
    ) -> Option<Doubt> {
        let doubt = |problem: String, remedy| Doubt {
            place: Some(self.place_of(at)),
            problem,
            remedy,
            is_certain: true,
        };
        if class.starts_with('/') {
            return None;
        }
        if let Some(end) = class.find(['*', '?']) {
            let namespace = class[..end].rfind('\\').map_or("", |at| &class[..=at]);
            let pattern = crate::payload::Pattern::parse(class).ok()?;
            let has_none = classes.has_none(namespace, |class| pattern.matches(class));
            let problem = || format!("the app has no class that `{class}` names");
            return has_none
                .then(|| doubt(problem(), "correct the namespace, or delete the mapping"));
        }
        let Presence::Missing { nearest } = classes.look_up(class) else {
            return None;
        };
        let meant = nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
        Some(doubt(
            format!("the app has no class `{class}`{meant}"),
            "correct the name, or delete the mapping: no job is of this class",
        ))
    }

    /// A class without a namespace, which the app has in one.
    fn doubt_of_short_name(
        &self,
        at: &Spanned<String>,
        class: &str,
        classes: &Classes<'_>,
    ) -> Option<Doubt> {
        let is_short = !class.contains(['\\', '/', '*', '?']);
        if !is_short || classes.look_up(class) == Presence::Here {
            return None;
        }
        let meant = classes.in_a_namespace(class)?;
        Some(Doubt {
            place: Some(self.place_of(at)),
            problem: format!("`{class}` matches nothing; did you mean `{meant}`?"),
            remedy: "write the class with its namespace",
            is_certain: false,
        })
    }

    /// A class that the manifest or its file takes for something else.
    fn doubt_of_kind(
        &self,
        at: &Spanned<String>,
        class: &str,
        kind: &str,
        found: &str,
    ) -> Option<Doubt> {
        // What a job is, and an event that PHP broadcasts, its class says; a listener may be registered by code.
        let is_other = match (kind, found) {
            ("string", _) | ("listener", "job") => false,
            (kind, found) => kind != found,
        };
        let instead = match found {
            "event" => "an event, of which only listeners are queued: write `listener = '..'`, together with `event = '..'`".to_owned(),
            found => format!("a {found}: write `{found} = '..'`"),
        };
        is_other.then(|| Doubt {
            place: Some(self.place_of(at)),
            problem: format!("`{kind} = ..` names `{class}`, which is {instead}"),
            remedy: "map it by its kind: this mapping takes no job of it",
            is_certain: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The doubts of an app with a file, a manifest with these classes, and this `artisand.toml`.
    fn doubts(classes: &serde_json::Value, toml: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        std::fs::write(
            place("composer.json"),
            r#"{"autoload": {"psr-4": {"App\\": "app/"}}}"#,
        )
        .unwrap();
        std::fs::create_dir_all(place("app/Jobs")).unwrap();
        std::fs::write(place("app/Jobs/SendReceipt.php"), "<?php").unwrap();
        std::fs::create_dir_all(place("app/Listeners")).unwrap();
        for (file, text) in [
            ("Listeners/Ship", "class Ship implements ShouldQueue {}"),
            ("Listeners/Import", "class Import { use Dispatchable; }"),
            ("Paid", "class Paid extends Notification {}"),
            ("Letter", "class Letter extends Mailable {}"),
        ] {
            std::fs::write(place(&format!("app/{file}.php")), text).unwrap();
        }
        std::fs::write(place("tool"), "").unwrap();
        let manifest = serde_json::json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 1,
            "config": {"queue": {"connections": {"redis": {}, "jobs": {}}}},
            "paths": {"base": directory.path(), "storage": directory.path()},
            "classes": classes,
        });
        std::fs::write(place("artisand.json"), manifest.to_string()).unwrap();
        let text = toml.replace("DIR", directory.path().to_str().unwrap());
        std::fs::write(place("artisand.toml"), text).unwrap();
        let process = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        let config = Config::load(
            Some(&place("artisand.toml")),
            Some(directory.path()),
            process,
        );
        let doubts = config.unwrap().doubts();
        let start = format!("{}/", directory.path().display());
        let shown = doubts.iter().map(|doubt| {
            let shown = doubt.to_string().replace(&start, "");
            shown.replace(&start[..start.len() - 1], "DIR")
        });
        shown.collect()
    }

    #[test]
    fn what_a_mapping_names_has_to_be_there() {
        let classes = serde_json::json!({
            "App\\Listeners\\Ship": {"kind": "listener", "file": "a.php"},
            "App\\Events\\Shipped": {"kind": "event", "file": "b.php"},
            "App\\Jobs\\Queued": {"kind": "job", "file": "c.php"},
            "Kit\\Job": {"kind": "job", "file": "d.php", "flags": {"package": true}},
        });
        #[rustfmt::skip]
        let rows = [
            (r"job = 'App\Jobs\SendReceipt'", "'log'", None),
            (r"job = '\App\Jobs\sendreceipt'", "'log'", None),
            (r"job = 'App\Jobs\SendReciept'", "'log'",
                Some(r"artisand.toml:2: the app has no class `App\Jobs\SendReciept`; did you mean `App\Jobs\SendReceipt`?")),
            (r"job = 'App\Job\*'", "'log'", Some(r"artisand.toml:2: the app has no class that `App\Job\*` names")),
            (r"job = 'App\Jobs\*'", "'log'", None),
            (r"job = '/Reciept$/'", "'log'", None),
            (r"job = 'Vendor\Job'", "'log'", None),
            (r"job = 'Kit\Job'", "'log'", None),
            (r"mailable = 'Kit\Job'", "'log'",
                Some(r"artisand.toml:2: `mailable = ..` names `Kit\Job`, which is a job: write `job = '..'`")),
            (r"command = 'mail:send'", "'log'", None),
            (r"string = 'App\Jobs\SendReceipt@anything'", "'log'", None),
            (r"job = 'App\Listeners\Ship'", "'log'",
                Some(r"artisand.toml:2: `job = ..` names `App\Listeners\Ship`, which is a listener: write `listener = '..'`")),
            (r"broadcast = 'App\Events\Shipped'", "'log'",
                Some(r"artisand.toml:2: `broadcast = ..` names `App\Events\Shipped`, which is an event, of which only listeners are queued: write `listener = '..'`, together with `event = '..'`")),
            (r"notification = 'App\Jobs\Queued'", "'log'",
                Some(r"artisand.toml:2: `notification = ..` names `App\Jobs\Queued`, which is a job: write `job = '..'`")),
            // A listener that code registers looks like a job.
            (r"listener = 'App\Jobs\Queued@handle'", "'log'", None),
            ("listener = 'App\\Listeners\\Ship'\nevent = 'App\\Events\\Shiped'", "'log'",
                Some(r"artisand.toml:3: the app has no class `App\Events\Shiped`; did you mean `App\Events\Shipped`?")),
            ("command = 'a'", "{ exec = ['sh', 'x'] }", None),
            ("command = 'a'", "{ exec = ['/bin/sh'] }", None),
            ("command = 'a'", "{ exec = ['no-such-tool'], persistent = true }",
                Some("artisand.toml:3: no program `no-such-tool` in the search path (PATH)")),
            ("command = 'a'", "{ exec = ['DIR/nothing'] }",
                Some("artisand.toml:3: no program `nothing`: No such file or directory (os error 2)")),
            ("command = 'a'", "{ exec = ['DIR/tool'] }",
                Some("artisand.toml:3: `tool` cannot be executed by this user")),
            ("command = 'a'", "{ exec = ['/tmp'] }", Some("artisand.toml:3: `/tmp` is no program")),
            ("command = 'a'", "{ exec = ['sh', 'app/Jobs/SendReceipt.php'] }", None),
            ("command = 'a'", "{ exec = ['sh', '-e', 'storage/invioce.py'] }",
                Some("artisand.toml:3: no script `storage/invioce.py` in DIR, where `sh` starts")),
            ("command = 'a'", "{ exec = ['sh', 'SendReceipt.php'], cwd = 'app/Jobs' }", None),
            ("command = 'a'", "{ exec = ['sh', 'x.py'], cwd = 'app/Jobs', persistent = true }",
                Some("artisand.toml:3: no script `x.py` in app/Jobs, where `sh` starts")),
            ("command = 'a'", "{ exec = ['sh'], cwd = 'app/Job' }",
                Some("artisand.toml:3: no directory app/Job, in which `sh` would start")),
            ("command = 'a'", "{ exec = ['sh', 'bin/receipt', 'a/b'] }",
                Some("artisand.toml:3: no script `bin/receipt` in DIR, where `sh` starts")),
            // None of these is a path.
            ("command = 'a'", "{ exec = ['sh', '-c', 'cat > x/y.sh', 's/a/b/', '--to=x.py', 'http://a/b.js'] }", None),
        ];
        for (name, handler, expected) in rows {
            let found = doubts(&classes, &format!("[[map]]\n{name}\nhandler = {handler}\n"));
            assert_eq!(found, Vec::from_iter(expected), "{name} {handler}");
        }
    }

    #[test]
    fn names_that_are_not_quite_right_are_doubted() {
        let classes = serde_json::json!({"Kit\\Job": {"kind": "job", "file": "d.php", "flags": {"package": true}}});
        #[rustfmt::skip]
        let rows = [
            (r"job = 'SendReceipt'", Some(r"artisand.toml:2: `SendReceipt` matches nothing; did you mean `App\Jobs\SendReceipt`?")),
            (r"job = 'sendreceipt'", Some(r"artisand.toml:2: `sendreceipt` matches nothing; did you mean `App\Jobs\SendReceipt`?")),
            (r"job = 'Unknown'", None),
            (r"job = '*Receipt'", None),
            // Files tell what a class is.
            (r"job = 'App\Listeners\Ship'", Some(r"artisand.toml:2: `job = ..` names `App\Listeners\Ship`, which is a listener: write `listener = '..'`")),
            (r"listener = 'App\Listeners\Ship'", None),
            (r"job = 'App\Listeners\Import'", None),
            (r"job = 'App\Paid'", Some(r"artisand.toml:2: `job = ..` names `App\Paid`, which is a notification: write `notification = '..'`")),
            (r"job = 'App\Letter'", Some(r"artisand.toml:2: `job = ..` names `App\Letter`, which is a mailable: write `mailable = '..'`")),
        ];
        for (name, expected) in rows {
            let found = doubts(&classes, &format!("[[map]]\n{name}\nhandler = 'log'\n"));
            assert_eq!(found, Vec::from_iter(expected), "{name}");
        }
        let table = |name: &str| format!("[connections.{name}]\nhost = 'h'\n");
        let known = "(there are: jobs, redis)";
        #[rustfmt::skip]
        let rows = [
            (table("redis"), None),
            (table("reids"), Some(format!("[connections.reids]: the app has no queue connection `reids` {known}; did you mean `redis`?"))),
            (table("other"), Some(format!("[connections.other]: the app has no queue connection `other` {known}"))),
            // It is no connection of the app, but of artisand alone.
            (table("other") + "prefix = ''\n", None),
            ("[php]\nbinary = ['php99', '-d']\n".to_owned(), Some("artisand.toml:2: no program `php99` in the search path (PATH)".to_owned())),
            ("[php]\nbinary = 'sh'\n".to_owned(), None),
        ];
        for (toml, expected) in rows {
            let found = doubts(&classes, &format!("settings = 'manifest'\n{toml}"));
            let expected = expected.map(|said| said.replace(":2:", ":3:"));
            assert_eq!(found, Vec::from_iter(expected), "{toml}");
        }
    }

    #[test]
    fn an_encoding_of_the_queues_redis_is_doubted_for_that_queue() {
        let directory = tempfile::tempdir().unwrap();
        let doubt = |version: &str, connection: &str| {
            let manifest = serde_json::json!({
                "artisand": 1, "laravel": version, "generated_at": 1,
                "config": {
                    "queue": {"connections": {
                        "redis": {"driver": "redis", "connection": "queue"},
                        "plain": {"driver": "redis", "connection": "default"},
                        "database": {"driver": "database"},
                    }},
                    "database": {"redis": {
                        "client": "phpredis",
                        "queue": {"options": {"serializer": 1}},
                        "default": {},
                    }},
                },
                "paths": {"base": directory.path(), "storage": directory.path()},
                "classes": {},
            });
            let file = directory.path().join("artisand.json");
            std::fs::write(file, manifest.to_string()).unwrap();
            let env = [("ARTISAND_SETTINGS".to_owned(), "manifest".to_owned())];
            let config = Config::load(None, Some(directory.path()), env);
            config.unwrap().doubt_of_encoding(connection)
        };
        let old = doubt("12.44.0", "redis").unwrap();
        let problem = old.to_string();
        assert!(
            old.is_certain && problem.contains("delayed jobs"),
            "{problem}"
        );
        let option = "the option `serializer` of its Redis connection is 1";
        assert!(problem.contains(option), "{problem}");
        let new = doubt("12.45.0", "redis").unwrap();
        let problem = new.to_string();
        assert!(!new.is_certain && !problem.contains("delayed"), "{problem}");
        for connection in ["plain", "database", "none"] {
            assert_eq!(doubt("12.44.0", connection), None, "{connection}");
        }
    }

    #[test]
    fn unknown_variables_of_artisand_are_doubted() {
        let names = [
            "ARTISAND_CONCURENCY",
            "ARTISAND_ELSE",
            "ARTISAND_QUEUE",
            "ARTISAND_JOB_CLASS",
            "ARTISAND_TOKEN",
            "OTHER",
        ];
        let mut config = Config::default();
        let toml =
            "[[map]]\njob = 'A'\nhandler = { exec = ['sh'], pass_env = ['ARTISAND_TOKEN'] }\n";
        config.file = toml::from_str(toml).unwrap();
        let process = names.map(|name| (name.to_owned(), "1".to_owned()));
        config.process = std::sync::Arc::new(process.into());
        let found: Vec<String> = config
            .doubts_of_variables()
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "artisand knows no variable `ARTISAND_CONCURENCY`; did you mean `ARTISAND_CONCURRENCY`?",
            "artisand knows no variable `ARTISAND_ELSE`",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_directory_that_is_no_app_is_doubted() {
        let directory = tempfile::tempdir().unwrap();
        let doubts = || {
            let env = [("ARTISAND_SETTINGS".to_owned(), "env".to_owned())];
            let config = Config::load(None, Some(directory.path()), env).unwrap();
            config.doubts()
        };
        assert!(doubts()[0].is_certain);
        std::fs::write(directory.path().join(".env"), "").unwrap();
        assert!(!doubts()[0].is_certain);
        std::fs::write(directory.path().join("artisan"), "").unwrap();
        std::fs::create_dir(directory.path().join("bootstrap")).unwrap();
        std::fs::write(directory.path().join("bootstrap/app.php"), "").unwrap();
        assert_eq!(doubts(), []);
    }
}
