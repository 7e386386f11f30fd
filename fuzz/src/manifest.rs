//! Parses any bytes as a manifest, and asks it everything: errors and what is shown of it hold no secrets.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use artisand::app::{Answers, Manifest, cast};
use artisand::config::{Laravel, Origin, RedisTable, SettingError};
use artisand::php::{ClassName, Object, Value};
use artisand::time::UnixSeconds;
use serde_json::Value as Json;
use tokio::runtime::Builder;

use super::secrets::{is_telling, password, with_causes};

const MARK: &str = "---artisand-manifest---";

/// Keys of the configuration whose values are secrets.
const SECRETS: [&str; 6] = [
    "password",
    "sentinel_password",
    "key",
    "secret",
    "token",
    "url",
];

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let path = Path::new("artisand.json");
    let text = String::from_utf8_lossy(bytes);
    let mut found = Vec::new();
    if let Ok(json) = serde_json::from_slice::<Json>(bytes) {
        collect(json.get("config").unwrap_or(&Json::Null), false, &mut found);
    }
    found.retain(|secret| is_telling(&text, secret));
    let hides = |shown: &str| {
        for secret in &found {
            assert!(!shown.contains(secret.as_str()), "{secret} is in {shown}");
        }
    };
    let manifest = match Manifest::parse(path, bytes) {
        Err(error) => return hides(&with_causes(&error)),
        Ok(manifest) => manifest,
    };
    let debug = format!("{manifest:?}");
    hides(&debug);
    if !text.contains(MARK) && std::str::from_utf8(bytes).is_ok() {
        let printed = format!("Deprecated: x\n{MARK}\n{text}\n{MARK}\nbye");
        let again = Manifest::parse(path, printed.as_bytes()).expect("the same within marks");
        assert_eq!(format!("{again:?}"), debug);
    }
    ask_of_classes(&manifest);
    // Pools of connections to databases have tasks.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    ask_of_settings(&manifest, &hides);
}

fn ask_of_classes(manifest: &Manifest) {
    let now = UnixSeconds(1_700_000_000);
    for (name, class) in manifest.targets().take(20) {
        let _ = (
            class.has_middleware(),
            class.is_unique(),
            class.is_queueable(),
        );
        let Some(name) = ClassName::new(name) else {
            continue;
        };
        let _ = manifest.deletes_when_missing_models(&name);
        let _ = manifest.nearest_class(name.as_str());
        let _ = manifest.can_tell_lock(&name);
        let _ = manifest.constructor_notes(&name, &["a"]);
        let _ = manifest.check_fields(&name, &["a"]);
        let job = Object::new(name.clone());
        if let Ok(made) = manifest.command(job, vec![("queue", Value::from("high"))]) {
            let again = Value::from_bytes(&made.bytes).expect("what is written is read");
            assert_eq!(again.to_bytes(), made.bytes);
            let _ = manifest.unique(&made.value);
            if let Ok(facts) = manifest.facts_with(&made.value, &Answers::default(), now) {
                let _ = facts.payload(made.bytes, now, manifest.timezone());
            }
        }
    }
    let _ = manifest.forwarded_queue("default", "redis");
}

fn ask_of_settings(manifest: &Manifest, hides: &impl Fn(&str)) {
    let mut config = manifest.config.clone();
    if let Some(variables) = &manifest.variables {
        let env = |name: &str| name.len().is_multiple_of(2).then_some("of the process");
        let _ = variables.apply(&mut config, env).concern_cache_prefixes();
    }
    let laravel = Laravel {
        version: Some(manifest.laravel.clone()),
        config,
        // A directory that is not there: nothing is read from disk.
        base: "/nowhere/app".into(),
        storage: "/nowhere/app/storage".into(),
        cache_prefixes: manifest.cache_prefixes.clone(),
        origin: Origin::Manifest("artisand.json".into()),
        env: Arc::new(cast),
        redis: RedisTable::default(),
    };
    hides(&format!("{laravel:?}"));
    show(laravel.timezone(), hides);
    show(laravel.output_timezone(), hides);
    show(laravel.environment(), hides);
    show(laravel.encrypter().map(|_| ()), hides);
    show(laravel.failed_jobs().map(|_| ()), hides);
    show(laravel.default_queue_connection(), hides);
    show(laravel.default_cache(), hides);
    for name in names(laravel.queue_connections()) {
        show(laravel.queue(&name, None), hides);
        show(laravel.queue(&name, Some("prefix:")), hides);
    }
    for name in names(laravel.redis_connections()) {
        show(laravel.redis(&name), hides);
    }
    for name in keys(&laravel, "/database/connections") {
        show(laravel.database(Some(&name)), hides);
        show(laravel.transaction_mode(&name), hides);
    }
    for name in keys(&laravel, "/cache/stores") {
        show(laravel.cache_prefix(&name, "redis"), hides);
    }
}

/// Shows what was found, or why nothing was.
fn show<T: Debug>(found: Result<T, SettingError>, hides: &impl Fn(&str)) {
    match found {
        Ok(found) => hides(&format!("{found:?}")),
        Err(error) => hides(&with_causes(&error)),
    }
}

/// Some of the names, and one that is not there.
fn names(found: Result<Vec<String>, SettingError>) -> Vec<String> {
    let mut names = found.unwrap_or_default();
    names.truncate(20);
    names.push("missing".to_owned());
    names
}

fn keys(laravel: &Laravel, pointer: &str) -> Vec<String> {
    let object = laravel.config.pointer(pointer).and_then(Json::as_object);
    object
        .into_iter()
        .flatten()
        .map(|(key, _)| key.clone())
        .take(20)
        .collect()
}

/// Texts of the configuration that are secrets.
fn collect(value: &Json, is_secret: bool, found: &mut Vec<String>) {
    match value {
        Json::String(text) if is_secret => match password(text) {
            Some(password) => found.push(password.to_owned()),
            None => found.push(text.clone()),
        },
        Json::Array(list) => list
            .iter()
            .for_each(|value| collect(value, is_secret, found)),
        Json::Object(map) => {
            let map: BTreeMap<_, _> = map.iter().collect();
            // `{"$env": NAME}` names a variable, and beside a `secret` the `key` is a name: neither is secret.
            let has_secret = map.keys().any(|key| *key == "secret");
            for (key, value) in map {
                let is_name = key.starts_with('$') || (has_secret && key == "key");
                let is_secret = is_secret || SECRETS.contains(&&**key);
                collect(value, is_secret && !is_name, found);
            }
        }
        _ => {}
    }
}
