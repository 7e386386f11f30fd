//! Cache values and locks, written by one side and read by the other.

use std::time::Duration;

use artisand::cache::Cache;
use artisand::php::{self, Value};
use serde_json::Value as Json;
use tokio::runtime::Runtime;

use crate::harness::process::poll;
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind, Settings};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(90);

/// One store of an app, from both sides.
#[expect(clippy::struct_field_names, reason = "the store's name in the app")]
struct Store {
    scene: Scene,
    store: &'static str,
    cache: Cache,
    runtime: Runtime,
}

in_scene!(Store);

impl Store {
    fn new(version: u8, store: &'static str, settings: &Settings) -> Self {
        let mut scene = Scene::new(version, settings, "");
        scene.name = format!("Laravel {version} {store} {settings:?}");
        let runtime = Runtime::new().unwrap();
        let entered = runtime.enter();
        let cache = scene.laravel.settings().cache(store).unwrap();
        drop(entered);
        let scene = Self {
            scene,
            store,
            cache,
            runtime,
        };
        // The first use makes the tables.
        scene.kept(&["get", "nothing"]);
        scene
    }

    fn rust<T, E: std::fmt::Debug>(&self, future: impl Future<Output = Result<T, E>>) -> T {
        let result = self.runtime.block_on(future);
        result.unwrap_or_else(|e| panic!("{}: {e:?}", self.name))
    }

    /// The result that `interop:cache` printed.
    fn kept(&self, args: &[&str]) -> Json {
        self.command("interop:cache", args)["result"].take()
    }

    /// The output of `interop:lock`.
    fn lock(&self, args: &[&str]) -> Json {
        self.command("interop:lock", args)
    }

    fn command(&self, name: &str, args: &[&str]) -> Json {
        let store = format!("--store={}", self.store);
        let args = [&[name][..], args, &[&*store]].concat();
        self.php().run(&args)
    }

    fn get(&self, key: &str) -> Json {
        self.rust(self.cache.get(key)).map_or(Json::Null, to_json)
    }
}

/// Runs a scenario on every store of a version.
fn each_store(version: u8, scenario: impl Fn(&Store) + Sync) {
    let databases = Databases::shared();
    let mut stores = vec![("redis", Vec::new()), ("file", Vec::new())];
    for kind in Kind::ALL {
        let name = format!("cache_{kind:?}").to_lowercase();
        stores.push(("database", databases.create(kind, &name)));
    }
    std::thread::scope(|scope| {
        for (store, settings) in &stores {
            scope.spawn(|| scenario(&Store::new(version, store, settings)));
        }
    });
}

/// A PHP value in the form of `json_encode`.
fn to_json(value: Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::Float(value) => value.get().into(),
        Value::String(text) => String::from_utf8(text).unwrap().into(),
        Value::Array(array) => {
            let is_list = array
                .pairs
                .iter()
                .enumerate()
                .all(|(at, (key, _))| matches!(key, php::Key::Int(key) if usize::try_from(*key) == Ok(at)));
            let pairs = array.pairs.into_iter();
            if is_list {
                return pairs.map(|(_, value)| to_json(value)).collect();
            }
            let text = |key| match key {
                php::Key::Int(key) => key.to_string(),
                php::Key::String(key) => String::from_utf8(key).unwrap(),
            };
            pairs
                .map(|(key, value)| (text(key), to_json(value)))
                .collect()
        }
        value => panic!("not a plain value: {value:?}"),
    }
}

fn text(text: &str) -> Value {
    Value::String(text.as_bytes().to_vec())
}

/// Values of every kind that is cached, and as arguments of `interop:cache`.
fn values() -> Vec<(&'static str, Value)> {
    let array = |pairs: Vec<(php::Key, Value)>| Value::Array(php::Array { pairs });
    let list = vec![
        (php::Key::Int(0), Value::Int(1)),
        (php::Key::Int(1), Value::Bool(false)),
    ];
    // A NUL, as in names of properties, is stored differently in databases.
    let map = vec![
        (php::Key::String(b"a\0b".to_vec()), text("\u{17c}\0")),
        (php::Key::Int(7), array(list)),
    ];
    vec![
        ("true", Value::Bool(true)),
        ("5", Value::Int(5)),
        ("1.5", Value::Float(1.5.into())),
        (r#""7 \u017c\n""#, text("7 \u{17c}\n")),
        (r#""0123""#, text("0123")),
        (r#"{"a\u0000b":"\u017c\u0000","7":[1,false]}"#, array(map)),
    ]
}

fn values_are_shared(version: u8) {
    each_store(version, |scene| {
        let (name, cache) = (&scene.name, &scene.cache);
        for (json, value) in values() {
            // All readers must see the value that PHP sees.
            assert_eq!(scene.kept(&["put", "theirs", json, "60"]), true, "{name}");
            let expected = scene.kept(&["get", "theirs"]);
            assert_eq!(scene.get("theirs"), expected, "{name}: {json}");
            scene.rust(cache.put("ours", &value, MINUTE));
            assert_eq!(scene.get("ours"), expected, "{name}: {json}");
            assert_eq!(scene.kept(&["get", "ours"]), expected, "{name}: {json}");
        }

        scene.rust(cache.forever("ours", &text("kept")));
        assert_eq!(scene.kept(&["get", "ours"]), "kept", "{name}");
        scene.kept(&["forever", "theirs", r#""kept""#]);
        assert_eq!(scene.get("theirs"), "kept", "{name}");
        let keys = ["ours", "none", "theirs"].map(str::to_owned);
        let many = scene.rust(cache.many(&keys));
        assert_eq!(
            many,
            [Some(text("kept")), None, Some(text("kept"))],
            "{name}"
        );

        assert!(
            !scene.rust(cache.add("theirs", &Value::Int(1), MINUTE)),
            "{name}"
        );
        assert_eq!(scene.kept(&["add", "ours", "1", "60"]), false, "{name}");
        assert!(scene.rust(cache.forget("theirs")), "{name}");
        assert!(!scene.rust(cache.forget("theirs")), "{name}");
        assert_eq!(scene.kept(&["forget", "ours"]), true, "{name}");
        assert_eq!(scene.kept(&["get", "theirs"]), Json::Null, "{name}");
        assert_eq!(scene.get("ours"), Json::Null, "{name}");
        assert!(
            scene.rust(cache.add("theirs", &Value::Int(1), MINUTE)),
            "{name}"
        );
        assert_eq!(scene.kept(&["add", "ours", "1", "60"]), true, "{name}");

        assert_eq!(scene.rust(cache.increment("ours", 4)), Some(5), "{name}");
        assert_eq!(scene.kept(&["increment", "ours", "2"]), 7, "{name}");
        assert_eq!(scene.rust(cache.increment("ours", -3)), Some(4), "{name}");
        assert_eq!(scene.kept(&["increment", "theirs"]), 2, "{name}");
        assert_eq!(
            scene.get("theirs"),
            scene.kept(&["get", "theirs"]),
            "{name}"
        );

        scene.kept(&["put", "theirs", "true", "1"]);
        scene.rust(cache.put("ours", &Value::Bool(true), SECOND));
        let gone = poll(SOON, || scene.get("theirs").is_null().then_some(()));
        assert!(gone.is_some(), "{name}: does not end");
        let gone = poll(SOON, || {
            scene.kept(&["get", "ours"]).is_null().then_some(())
        });
        assert!(gone.is_some(), "{name}: does not end");
    });
}

on_every_laravel!(values_are_shared);

fn locks_are_respected(version: u8) {
    each_store(version, |scene| {
        let (name, cache) = (&scene.name, &scene.cache);
        let ours = cache.lock("door", "rust", MINUTE);
        let theirs = ["door", "--owner=php", "--seconds=60"];
        let php = |verb: &str| scene.lock(&[&[verb][..], &theirs].concat())["result"].take();

        assert!(scene.rust(ours.acquire()), "{name}");
        assert_eq!(php("acquire"), false, "{name}");
        assert_eq!(scene.lock(&["owner", "door"])["owner"], "rust", "{name}");
        assert_eq!(php("release"), false, "{name}");
        assert!(scene.rust(ours.release()), "{name}");
        assert!(!scene.rust(ours.release()), "{name}");

        assert_eq!(php("acquire"), true, "{name}");
        assert!(!scene.rust(ours.acquire()), "{name}");
        let owner = scene.rust(ours.current_owner());
        assert_eq!(owner.as_deref(), Some("php"), "{name}");
        assert!(!scene.rust(ours.release()), "{name}");
        assert_eq!(php("release"), true, "{name}");

        // A caller that knows the owner may release it, and every caller may force it.
        assert!(scene.rust(ours.acquire()), "{name}");
        let released = scene.lock(&["release", "door", "--owner=rust"]);
        assert_eq!(released["result"], true, "{name}");
        assert!(scene.rust(ours.acquire()), "{name}");
        scene.lock(&["force-release", "door"]);
        assert_eq!(scene.rust(ours.current_owner()), None, "{name}");
        assert_eq!(php("acquire"), true, "{name}");
        assert!(scene.rust(ours.force_release()), "{name}");
        assert_eq!(
            scene.lock(&["owner", "door"])["owner"],
            Json::Null,
            "{name}"
        );

        let short = cache.lock("door", "rust", SECOND);
        assert!(scene.rust(short.acquire()), "{name}");
        let taken = poll(SOON, || (php("acquire") == true).then_some(()));
        assert!(taken.is_some(), "{name}: does not end");
    });
}

on_every_laravel!(locks_are_respected);

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn locks_are_refreshed_as_by_laravel_13() {
    each_store(13, |scene| {
        let (name, cache) = (&scene.name, &scene.cache);
        let by_rust = |owner, life| cache.lock("door", owner, life);
        let by_php = |args: &[&str]| scene.lock(&[args, &["door"]].concat())["result"].take();
        let ends = |name_of_lock| {
            let lock = cache.lock(name_of_lock, "rust", SECOND);
            let ended = poll(SOON, || {
                scene.rust(lock.current_owner()).is_none().then_some(())
            });
            assert!(ended.is_some(), "{name}: {name_of_lock} does not end");
        };

        // A refresh makes a lock of PHP end later or sooner. However slowly PHP starts, no lock ends too early for it.
        let acquired = by_php(&["acquire", "--owner=php", "--seconds=600"]);
        assert_eq!(acquired, true, "{name}");
        assert!(!scene.rust(by_rust("rust", SECOND).refresh()), "{name}");
        assert!(scene.rust(by_rust("php", 20 * MINUTE).refresh()), "{name}");
        assert!(scene.rust(by_rust("php", SECOND).refresh()), "{name}");
        ends("door");
        assert!(!scene.rust(by_rust("php", SECOND).refresh()), "{name}");

        // It outlives the expiry that it had.
        let short = by_rust("rust", 5 * SECOND);
        assert!(scene.rust(short.acquire()), "{name}");
        assert!(scene.rust(by_rust("rust", 10 * MINUTE).refresh()), "{name}");
        assert!(scene.rust(cache.lock("other", "rust", 5 * SECOND).acquire()));
        ends("other");
        let owner = scene.rust(short.current_owner());
        assert_eq!(owner.as_deref(), Some("rust"), "{name}");

        let refreshed = |owner, life| by_php(&["refresh", owner, life]);
        assert_eq!(refreshed("--owner=php", "--seconds=1"), false, "{name}");
        assert_eq!(refreshed("--owner=rust", "--seconds=600"), true, "{name}");
        assert_eq!(refreshed("--owner=rust", "--seconds=1"), true, "{name}");
        ends("door");
    });
}
