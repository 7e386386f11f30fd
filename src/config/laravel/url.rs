//! Connections of the app, which may be given as a URL.

use serde_json::{Map, Value};

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::connection;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Redis,
    Database,
}

/// The fields of a connection; what its `url` says overrides the others.
pub(super) struct Connection<'a> {
    laravel: &'a Laravel,
    path: [&'a str; 3],
    kind: Kind,
    pub(super) fields: Map<String, Value>,
}

impl<'a> Connection<'a> {
    /// # Source
    ///
    /// `Illuminate\Support\ConfigurationUrlParser`.
    pub(super) fn new(
        laravel: &'a Laravel,
        path: [&'a str; 3],
        kind: Kind,
        fields: Map<String, Value>,
    ) -> SettingResult<Self> {
        let mut connection = Self {
            laravel,
            path,
            kind,
            fields,
        };
        let url = connection.raw("url")?.filter(|url| !url.is_empty());
        connection.fields.remove("url");
        if let Some(url) = url {
            let parts = Parts::of(&url).filter(|parts| {
                let has_port = parts.port.is_none_or(|port| port.parse::<u16>().is_ok());
                has_port && (kind == Kind::Database || !parts.authority.is_empty())
            });
            // The URL is not shown: what looks like a port may be part of a password that was not encoded.
            let parts = parts.ok_or_else(|| SettingError::Wrong {
                path: connection.path_of("url").join("."),
                found: "malformed".into(),
                expected: "`scheme://user:password@host:port/database`".into(),
            })?;
            parts.override_in(&mut connection.fields, kind);
        }
        Ok(connection)
    }

    pub(super) fn path_of(&self, key: &'a str) -> [&'a str; 4] {
        let [section, group, name] = self.path;
        [section, group, name, key]
    }

    fn raw(&self, key: &'a str) -> SettingResult<Option<String>> {
        match self.fields.get(key) {
            Some(value) => self.laravel.scalar(value, &self.path_of(key)),
            None => Ok(None),
        }
    }

    /// A field as text.
    pub(super) fn text(&self, key: &'a str) -> SettingResult<Option<String>> {
        match self.fields.get(key) {
            // Of several hosts of a database Laravel picks any.
            Some(Value::Array(several)) if self.kind == Kind::Database => match several.first() {
                Some(first) => self.laravel.scalar(first, &self.path_of(key)),
                None => Ok(None),
            },
            _ => self.raw(key),
        }
    }

    /// A field as text, unless it is empty.
    pub(super) fn filled(&self, key: &'a str) -> SettingResult<Option<String>> {
        Ok(self.text(key)?.filter(|text| !text.is_empty()))
    }

    pub(super) fn port(&self, default: u16) -> SettingResult<u16> {
        self.port_at("port", default)
    }

    pub(super) fn port_at(&self, key: &'a str, default: u16) -> SettingResult<u16> {
        match self.raw(key)?.filter(|text| !text.is_empty()) {
            None => Ok(default),
            Some(text) => text.trim().parse().map_err(|_| SettingError::Wrong {
                path: self.path_of(key).join("."),
                found: format!("`{text}`"),
                expected: "a port number".into(),
            }),
        }
    }
}

/// The parts of a URL, not decoded.
struct Parts<'u> {
    scheme: &'u str,
    authority: &'u str,
    user: Option<&'u str>,
    password: Option<&'u str>,
    host: &'u str,
    port: Option<&'u str>,
    database: &'u str,
    query: &'u str,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let (user, password) = match user.and_then(|user| user.split_once(':')) {
            Some((user, password)) => (Some(user), Some(password)),
            None => (user, None),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (host, None),
        };
        Some(Self {
            scheme,
            authority,
            user,
            password,
            host,
            port,
            database,
            query,
        })
    }

    fn override_in(&self, fields: &mut Map<String, Value>, kind: Kind) {
        let mut set = |key: &str, text: &str| {
            fields.insert(key.to_owned(), json_word(&connection::percent_decode(text)));
        };
        let scheme = match self.scheme {
            driver if kind == Kind::Database => Some(("driver", driver)),
            scheme @ ("tcp" | "tls") => Some(("scheme", scheme)),
            "rediss" => Some(("scheme", "tls")),
            _ => None,
        };
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let given = [
            scheme,
            self.user.map(|user| ("username", user)),
            self.password.map(|password| ("password", password)),
            (!self.host.is_empty()).then_some(("host", host)),
            self.port.map(|port| ("port", port)),
            (!self.database.is_empty()).then_some(("database", self.database)),
        ];
        for (key, text) in given.into_iter().flatten() {
            set(key, text);
        }
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            set(&connection::percent_decode(key), &value.replace('+', " "));
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
