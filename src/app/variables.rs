//! Settings of a manifest that come from variables, and their values in the current environment.
//!
//! The exporter found these settings by loading the app's configuration with other values of each
//! variable. A setting that is a variable's plain text follows the environment, so that an image
//! obeys the variables that it runs with. A setting that is computed from a variable (a
//! prefix from `APP_NAME`) cannot be computed here: if the variable has changed, the setting is
//! unknown. So it is if the variable is set and may be a secret (`REDIS_URL`), of which only a manifest
//! with secrets has a digest. With a cached configuration variables have no effect, as in Laravel.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::env::cast;
use crate::shown::hex;

/// Variables and the settings that come from them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Variables {
    /// Sources, by the setting's JSON pointer into the configuration.
    settings: BTreeMap<String, Sources>,
    /// Variables with another value of which the configuration could not be loaded.
    unknown: Vec<String>,
    salt: String,
    /// Salted digests of the values when the manifest was written; `None` for a variable that was not set. A manifest
    /// without secrets has none of a variable that may be one.
    marks: BTreeMap<String, Option<String>>,
}

/// Where a setting comes from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Sources {
    /// Variables whose plain text is the setting; the first that is set wins.
    is: Vec<String>,
    /// Variables from which the setting is computed.
    from: Vec<String>,
}

/// Changes that the environment made to a manifest's configuration: settings, with the variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Settings that now have the variable's text.
    pub taken: Vec<(String, String)>,
    /// Settings that are unknown now, since the variable has changed.
    pub lost: Vec<(String, String)>,
    /// Settings that are unknown now, since the manifest does not tell whether the variable has changed.
    pub untold: Vec<(String, String)>,
    /// Variables that have changed, or may have, of which it is not known which settings come from them.
    pub unclear: Vec<String>,
}

impl Overrides {
    /// Whether prefixes of cache stores may have changed.
    pub fn concern_cache_prefixes(&self) -> bool {
        let unknown = self.lost.iter().chain(&self.untold);
        let mut settings = self.taken.iter().chain(unknown);
        settings.any(|(setting, _)| setting.starts_with("cache.") && setting.ends_with("prefix"))
    }
}

impl Variables {
    /// Applies the variables of the environment to a configuration.
    pub fn apply<'e>(
        &self,
        config: &mut Value,
        env: impl Fn(&str) -> Option<&'e str>,
    ) -> Overrides {
        let mut overrides = Overrides::default();
        for (pointer, sources) in &self.settings {
            let Some(setting) = config.pointer_mut(pointer) else {
                continue;
            };
            let name = || pointer.trim_start_matches('/').replace('/', ".");
            let mut sets = sources.is.iter();
            if let Some((variable, raw)) = sets.find_map(|name| Some((name, env(name)?))) {
                let now = as_setting(raw, setting);
                if *setting != now {
                    *setting = now;
                    overrides.taken.push((name(), variable.clone()));
                }
                continue;
            }
            if setting.get("$env").is_some() {
                // A secret, which is looked up.
                continue;
            }
            let made = sources.from.iter();
            let mut made = made.map(|name| (name, self.has_changed(name, &env)));
            let Some((variable, changed)) = made.find(|(_, changed)| *changed != Some(false))
            else {
                continue;
            };
            let (unknown, how) = match changed {
                Some(_) => (
                    &mut overrides.lost,
                    "is set to something else than when the manifest was written",
                ),
                None => (
                    &mut overrides.untold,
                    "is set and may be a secret: only a manifest with `--with-secrets` tells whether it has changed",
                ),
            };
            let why = format!("it is made of `{variable}`, which {how}");
            *setting = serde_json::json!({"$unknown": why});
            unknown.push((name(), variable.clone()));
        }
        let unclear = self.unknown.iter();
        let unclear = unclear.filter(|name| self.has_changed(name, &env) != Some(false));
        overrides.unclear = unclear.cloned().collect();
        overrides
    }

    /// Whether a variable's value differs from that at the time of the manifest; `None` if the manifest does not
    /// tell.
    fn has_changed<'e>(&self, name: &str, env: impl Fn(&str) -> Option<&'e str>) -> Option<bool> {
        let Some(now) = env(name) else {
            return Some(false);
        };
        let then = self.marks.get(name)?;
        let text = [self.salt.as_bytes(), name.as_bytes(), b"\0", now.as_bytes()].concat();
        let digest = hex(&Sha256::digest(text));
        Some(then.as_deref() != Some(&*digest))
    }
}

/// A variable's text as `env()` returns it; a number if the setting is a number.
fn as_setting(raw: &str, setting: &Value) -> Value {
    match raw.to_ascii_lowercase().as_str() {
        "true" | "(true)" => return true.into(),
        "false" | "(false)" => return false.into(),
        _ => {}
    }
    let Some(text) = cast(raw) else {
        return Value::Null;
    };
    let number = setting.is_number().then(|| text.parse::<i64>().ok());
    number.flatten().map_or(Value::String(text), Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_follow_the_variables_that_they_are() {
        let salted = |name: &str, value: &str| hex(&Sha256::digest(format!("s{name}\0{value}")));
        let variables: Variables = serde_json::from_value(json!({
            "settings": {
                "/redis/prefix": {"is": ["REDIS_PREFIX"], "from": ["APP_NAME"]},
                "/redis/password": {"is": ["REDIS_PASSWORD", "OLD_PASSWORD"]},
                "/queue/retry_after": {"is": ["RETRY_AFTER"]},
                "/cache/prefix": {"from": ["APP_NAME"]},
                "/gone": {"is": ["REDIS_PREFIX"]},
                "/redis/host": {"from": ["REDIS_URL"]},
                "/redis/token": {"from": ["REDIS_URL"]},
            },
            "unknown": ["ODD"], "salt": "s",
            "marks": {"APP_NAME": salted("APP_NAME", "Shop"), "ODD": null},
        }))
        .unwrap();
        let config = json!({
            "redis": {
                "prefix": "shop_", "password": {"$secret": true}, "host": "of-ci", "token": {"$env": "TOKEN"},
            },
            "queue": {"retry_after": 90}, "cache": {"prefix": "shop_cache_"},
        });
        let applied = |env: &[(&str, &'static str)]| {
            let mut config = config.clone();
            let find = |name: &str| {
                env.iter()
                    .find(|(of, _)| *of == name)
                    .map(|(_, value)| *value)
            };
            let overrides = variables.apply(&mut config, find);
            (config, overrides)
        };
        let unchanged = [("APP_NAME", "Shop"), ("REDIS_PREFIX", "shop_")];
        assert_eq!(applied(&unchanged), (config.clone(), Overrides::default()));
        let (now, overrides) = applied(&[
            ("REDIS_PREFIX", "prod_"),
            ("OLD_PASSWORD", "null"),
            ("RETRY_AFTER", "120"),
        ]);
        let expected = json!({
            "redis": {"prefix": "prod_", "password": null, "host": "of-ci", "token": {"$env": "TOKEN"}},
            "queue": {"retry_after": 120}, "cache": {"prefix": "shop_cache_"},
        });
        assert_eq!(now, expected);
        assert_eq!(overrides.taken.len(), 3, "{overrides:?}");
        let (now, overrides) = applied(&[("APP_NAME", "Other"), ("ODD", "x")]);
        for pointer in ["/redis/prefix", "/cache/prefix"] {
            let why = now.pointer(pointer).unwrap()["$unknown"].as_str().unwrap();
            assert!(why.contains("`APP_NAME`"), "{why}");
        }
        assert!(overrides.concern_cache_prefixes());
        assert_eq!(overrides.unclear, ["ODD"]);
        // There is no mark of what may be a secret, also not if it is the same as then.
        let (now, overrides) = applied(&[("REDIS_URL", "redis://of-ci")]);
        let why = now["redis"]["host"]["$unknown"].as_str().unwrap();
        for part in ["`REDIS_URL`", "may be a secret", "`--with-secrets`"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(now["redis"]["token"], json!({"$env": "TOKEN"}));
        let untold = [("redis.host".to_owned(), "REDIS_URL".to_owned())];
        assert_eq!(overrides.untold, untold);
        assert!(overrides.lost.is_empty(), "{overrides:?}");
        // A setting with its own variable is not computed from the other one.
        let (now, _) = applied(&[("APP_NAME", "Other"), ("REDIS_PREFIX", "p_")]);
        assert_eq!(now["redis"]["prefix"], "p_");
    }
}
