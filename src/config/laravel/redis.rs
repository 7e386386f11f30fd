//! Redis connections of the app.

use serde_json::{Map, Value};

use super::Laravel;
use super::error::{Found, SettingError};
use super::url::Url;
use crate::connection::{RedisAddress, RedisOptions};

/// A Redis connection of the app, and what would change its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// How to reach it.
    pub options: RedisOptions,
    /// Path and value of a serializer or compression option.
    pub encoded: Option<(String, String)>,
}

impl Laravel {
    /// Names of the Redis connections.
    ///
    /// # Errors
    ///
    /// They cannot be told.
    pub fn redis_connections(&self) -> Found<Vec<String>> {
        let mut names = self.names(&["database", "redis"])?;
        names.retain(|name| !matches!(&**name, "client" | "options" | "clusters"));
        Ok(names)
    }

    /// A Redis connection.
    ///
    /// # Errors
    ///
    /// It is missing, a cluster, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Redis\RedisManager`, `Illuminate\Redis\Connectors\PhpRedisConnector`.
    pub fn redis(&self, name: &str) -> Found<RedisSettings> {
        self.prefixed_redis(name, None)
    }

    /// The connection that Horizon makes of another one, with this prefix in its options. As for any connection, a
    /// prefix beside the options counts more.
    pub(in crate::config) fn horizon_connection(
        &self,
        name: &str,
        prefix: &str,
    ) -> Found<RedisSettings> {
        let of_connection = self.at(&["database", "redis", name, "prefix"])?;
        let is_set = of_connection.is_some() && (self.is_at_least(9, 12) || self.is_predis()?);
        self.prefixed_redis(name, (!is_set).then_some(prefix))
    }

    fn is_predis(&self) -> Found<bool> {
        Ok(self.text(&["database", "redis", "client"])?.as_deref() == Some("predis"))
    }

    pub(super) fn prefixed_redis(&self, name: &str, prefix: Option<&str>) -> Found<RedisSettings> {
        let path = ["database", "redis", name];
        let Some(connection) = self.at(&path)? else {
            if self.at(&["database", "redis", "clusters", name])?.is_some() {
                return Err(SettingError::Wrong {
                    path: format!("database.redis.clusters.{name}"),
                    found: "a Redis cluster".into(),
                    expected: "a single server, the only kind this version works".into(),
                });
            }
            return Err(self.missing(&path));
        };
        let mut fields = match connection {
            Value::Object(fields)
                if fields.contains_key("$env") || fields.contains_key("$secret") =>
            {
                url_only(self.secret(fields, &["database", "redis", name, "url"])?)
            }
            Value::Object(fields) => fields.clone(),
            Value::String(url) => url_only(url.clone()),
            _ => return Err(self.missing(&path)),
        };
        let is_predis = self.is_predis()?;
        self.apply_url(&mut fields, &path, Url::Redis)?;
        let of = |key: &'static str| ["database", "redis", name, key];
        let field = |key: &'static str| match fields.get(key) {
            Some(value) => self.scalar(value, &of(key)),
            None => Ok(None),
        };
        let mut merged = Map::new();
        if let Some(Value::Object(global)) = self.at(&["database", "redis", "options"])? {
            merged.extend(global.clone());
        }
        if let Some(Value::Object(own)) = fields.get("options") {
            merged.extend(own.clone());
        }
        // Before 9.12 phpredis took no notice of a prefix beside the options.
        if let Some(prefix) = fields
            .get("prefix")
            .filter(|_| self.is_at_least(9, 12) || is_predis)
        {
            merged.insert("prefix".into(), prefix.clone());
        }
        if let Some(prefix) = prefix {
            merged.insert("prefix".into(), prefix.into());
        }
        let option = |key: &'static str| match merged.get(key) {
            Some(value) => self.scalar(value, &["database", "redis", "options", key]),
            None => Ok(None),
        };
        let mut encoded = None;
        for key in ["serializer", "compression"] {
            let value = option(key)?.or(field(key)?);
            if let Some(value) = value.filter(|value| !matches!(&**value, "" | "0" | "none")) {
                encoded.get_or_insert((format!("database.redis.options.{key}"), value));
            }
        }
        let host = field("host")?.unwrap_or_else(|| "127.0.0.1".into());
        let port = match fields.get("port") {
            Some(_) => self.port(&fields, &of("port"), 6379)?,
            None => 6379,
        };
        let is_tls = matches!(field("scheme")?.as_deref(), Some("tls" | "rediss"));
        let socket =
            field("path")?.filter(|_| field("scheme").ok().flatten().as_deref() == Some("unix"));
        // A password that looks like a number came as one out of a URL; then no user name is sent with it.
        let has_text_password = fields
            .get("password")
            .is_some_and(|password| !password.is_number());
        let password = field("password")?.filter(|password| !password.is_empty());
        let sends_user =
            is_predis || (self.is_at_least(9, 6) && has_text_password && password.is_some());
        let database = match field("database")? {
            Some(database) => database.trim().parse().unwrap_or(0),
            None => 0,
        };
        Ok(RedisSettings {
            options: RedisOptions {
                address: match socket {
                    Some(socket) => RedisAddress::Unix(socket.into()),
                    None => RedisOptions::address_of(&host, port, is_tls),
                },
                username: field("username")?.filter(|name| sends_user && !name.is_empty()),
                password,
                database,
                prefix: option("prefix")?.unwrap_or_default(),
            },
            encoded,
        })
    }
}

fn url_only(url: String) -> Map<String, Value> {
    Map::from_iter([("url".to_owned(), Value::String(url))])
}
