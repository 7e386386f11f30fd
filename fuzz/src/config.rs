//! Reads any text as `artisand.toml` and checks it, without files and servers: mistakes have a place and hold no
//! secrets.

use std::fmt::Debug;

use artisand::Registry;
use artisand::config::{self, Config, Error, HandlerTable};
use toml::{Table, Value};

use super::secrets::{is_telling, password, with_causes};

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut found = Vec::new();
    if let Ok(table) = toml::from_str::<Table>(text) {
        collect(&Value::Table(table), &mut Vec::new(), &mut found);
    }
    found.retain(|secret| is_telling(text, secret));
    let hides = |shown: &str| {
        for secret in &found {
            assert!(!shown.contains(secret.as_str()), "{secret} is in {shown}");
        }
    };
    let (mut config, mistakes) = Config::of_text(text);
    let mut last = 0;
    for (offset, problem) in &mistakes {
        assert!((last..=text.len()).contains(offset) && !problem.is_empty());
        last = *offset;
        hides(problem);
    }
    // The same text has the same mistakes.
    assert_eq!(Config::of_text(text).1, mistakes);
    hides(&format!("{config:?}"));
    for mapping in &mut config.file.map {
        // Their secrets are in files and variables.
        if let HandlerTable::Http(options) = mapping.handler.get_mut() {
            options.secret = None;
            options.headers_env.clear();
        }
    }
    for error in config.mistakes(&Registry::new()) {
        hides(&with_causes(&error));
    }
    for name in config.connections().into_iter().take(20) {
        show(config::connection_without_prefix(&config, &name), &hides);
    }
    show(config.output_timezone(), &hides);
    show(
        config::router(&config, &Registry::new()).map(|_| ()),
        &hides,
    );
    show(config::pulse(&config).map(|_| ()), &hides);
    let _ = (
        config.obeys_app(),
        config.default_connection(),
        config.php_program(),
    );
}

/// Shows what was found, or why nothing was.
fn show<T: Debug>(found: Result<T, Error>, hides: &impl Fn(&str)) {
    match found {
        Ok(found) => hides(&format!("{found:?}")),
        Err(error) => hides(&with_causes(&error)),
    }
}

/// Values that are secrets by their key.
fn collect(value: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    let is_secret = match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["connections", _, "password"]
        | ["redis", "sentinel_password"]
        | ["http", "token"]
        | ["map", "handler", "headers" | "env", _] => true,
        ["connections", _, "url"] | ["map", "handler", "http"] => {
            found.extend(value.as_str().and_then(password).map(str::to_owned));
            false
        }
        _ => false,
    };
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                path.push(key.clone());
                collect(value, path, found);
                path.pop();
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, path, found)),
        Value::String(text) if is_secret => found.push(text.clone()),
        Value::Integer(number) if is_secret => found.push(number.to_string()),
        _ => {}
    }
}
