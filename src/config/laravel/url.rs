//! Connections that are given as a URL.

use serde_json::{Map, Value};

use super::Laravel;
use super::error::{Found, SettingError};
use crate::connection;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Url {
    Redis,
    Database,
}

impl Laravel {
    /// Lays what a `url` says over the other fields.
    ///
    /// # Source
    ///
    /// `Illuminate\Support\ConfigurationUrlParser`.
    pub(super) fn apply_url(
        &self,
        fields: &mut Map<String, Value>,
        path: &[&str],
        kind: Url,
    ) -> Found<()> {
        let url = match fields.remove("url") {
            Some(url) => self.scalar(&url, &[path, &["url"]].concat())?,
            None => None,
        };
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Ok(());
        };
        let malformed = || SettingError::Wrong {
            path: format!("{}.url", path.join(".")),
            found: "malformed".into(),
            expected: "`scheme://user:password@host:port/database`".into(),
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = match rest.split_once('/') {
            Some((authority, database)) => (authority, Some(database)),
            None => (rest, None),
        };
        if authority.is_empty() && kind == Url::Redis {
            return Err(malformed());
        }
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (host, None),
        };
        // Not told: what looks like a port may be part of a password that was not encoded.
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(malformed());
        }
        let mut set = |key: &str, text: &str| {
            fields.insert(key.to_owned(), json_word(&connection::percent_decode(text)));
        };
        if kind == Url::Database || matches!(scheme, "tcp" | "tls") {
            set(
                if kind == Url::Database {
                    "driver"
                } else {
                    "scheme"
                },
                scheme,
            );
        } else if scheme == "rediss" {
            set("scheme", "tls");
        }
        if let Some(userinfo) = userinfo {
            let (user, password) = match userinfo.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (userinfo, None),
            };
            set("username", user);
            if let Some(password) = password {
                set("password", password);
            }
        }
        if !host.is_empty() {
            set("host", host.trim_start_matches('[').trim_end_matches(']'));
        }
        if let Some(port) = port {
            set("port", port);
        }
        if let Some(database) = database.filter(|database| !database.is_empty()) {
            set("database", database);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            set(&connection::percent_decode(key), &value.replace('+', " "));
        }
        Ok(())
    }

    pub(super) fn port(
        &self,
        fields: &Map<String, Value>,
        path: &[&str],
        default: u16,
    ) -> Found<u16> {
        let text = match fields.get("port") {
            Some(value) => self.scalar(value, path)?,
            None => None,
        };
        match text.filter(|text| !text.is_empty()) {
            None => Ok(default),
            Some(text) => text.trim().parse().map_err(|_| SettingError::Wrong {
                path: path.join("."),
                found: format!("`{text}`"),
                expected: "a port number".into(),
            }),
        }
    }
}

/// A part of a URL: Laravel runs each through a JSON decoder.
fn json_word(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => Value::String(text.to_owned()),
    }
}
