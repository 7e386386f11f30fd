//! Redis connections of the app.

use serde_json::{Map, Value};

use super::context::place_of_context;
use super::error::SettingResult;
use super::url::{Connection, Kind};
use super::{Laravel, sentinel};
use crate::connection::{RedisAddress, RedisOptions, Sentinels, TlsOptions};

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
    pub fn redis_connections(&self) -> SettingResult<Vec<String>> {
        let mut names = self.names(&["database", "redis"])?;
        names.retain(|name| !matches!(&**name, "client" | "options" | "clusters"));
        let mut clusters = self.clusters()?;
        clusters.retain(|name| !names.contains(name));
        names.extend(clusters);
        Ok(names)
    }

    /// A Redis connection.
    ///
    /// # Errors
    ///
    /// It is missing, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Redis\RedisManager`, `Illuminate\Redis\Connectors\PhpRedisConnector`.
    pub fn redis(&self, name: &str) -> SettingResult<RedisSettings> {
        self.prefixed_redis(name, None)
    }

    /// The connection that Horizon makes of another one, with this prefix in its options. As for any connection, a
    /// prefix beside the options counts more.
    ///
    /// A cluster of that name counts more than a single server, unless the settings are those of an app in which
    /// Horizon has made its connection of a server already: that is what it uses then.
    pub(in crate::config) fn horizon_connection(
        &self,
        name: &str,
        prefix: &str,
    ) -> SettingResult<RedisSettings> {
        if self.at(&["database", "redis", "horizon"])?.is_none()
            && let Some(cluster) = self.redis_cluster(name, Some(prefix))?
        {
            return Ok(cluster);
        }
        let of_connection = self.at(&["database", "redis", name, "prefix"])?;
        let is_set = of_connection.is_some() && (self.is_at_least(9, 12) || self.is_predis()?);
        self.prefixed_redis(name, (!is_set).then_some(prefix))
    }

    pub(super) fn is_predis(&self) -> SettingResult<bool> {
        Ok(self.text(&["database", "redis", "client"])?.as_deref() == Some("predis"))
    }

    pub(super) fn prefixed_redis(
        &self,
        name: &str,
        prefix: Option<&str>,
    ) -> SettingResult<RedisSettings> {
        // A single server of the same name counts more.
        if self.at(&["database", "redis", name])?.is_none()
            && let Some(cluster) = self.redis_cluster(name, prefix)?
        {
            return Ok(cluster);
        }
        let fields = self.redis_fields(name)?;
        let is_list = sentinel::is_list(&fields);
        let is_predis = is_list || self.is_predis()?;
        let is_said = self.redis.service_of(name).is_some();
        let group = format!("redis.{name}");
        let (connection, options, sentinels) = if is_list {
            let options = self.redis_options(&fields, prefix, is_predis)?;
            let sentinels = (!is_said).then(|| self.sentinels_in_list(name, &fields, &options));
            let own = fields.get("options").and_then(|own| own.get("parameters"));
            let fields = sentinel::parameters(&options, own.is_some(), name);
            let path = ["database", &group, "options.parameters"];
            let connection = Connection::new(self, path, Kind::Redis, fields)?;
            (connection, options, sentinels.transpose()?)
        } else {
            let path = ["database", "redis", name];
            let connection = Connection::new(self, path, Kind::Redis, fields)?;
            let options = self.redis_options(&connection.fields, prefix, is_predis)?;
            let sentinels = (!is_said).then(|| self.sentinels_in_fields(&connection));
            (connection, options, sentinels.transpose()?.flatten())
        };
        let option = |key: &'static str| match options.get(key) {
            Some(value) => self.scalar(value, &["database", "redis", "options", key]),
            None => Ok(None),
        };
        let encoded = encoded(|key| Ok(option(key)?.or(connection.text(key)?)))?;
        let address = address(&connection)?;
        let has_tls = address.has_tls();
        let address = match sentinels {
            Some(sentinels) => RedisAddress::Sentinel(Sentinels {
                has_tls,
                ..sentinels
            }),
            None => self.redis.over(name, address),
        };
        let mut redis = self.redis_login(&connection, is_predis)?;
        redis.address = address;
        redis.prefix = option("prefix")?.unwrap_or_default();
        if has_tls {
            redis.tls = self.redis_tls(&connection, is_predis)?;
        }
        Ok(RedisSettings {
            options: redis,
            encoded,
        })
    }

    /// User, password and database of a connection.
    fn redis_login(
        &self,
        connection: &Connection<'_>,
        is_predis: bool,
    ) -> SettingResult<RedisOptions> {
        // A password that looks like a number came as one out of a URL; then no user name is sent with it.
        let password = connection.fields.get("password");
        let has_text_password = password.is_some_and(|password| !password.is_number());
        let password = connection.filled("password")?;
        let sends_user =
            is_predis || (self.is_at_least(9, 6) && has_text_password && password.is_some());
        let database = connection.text("database")?;
        Ok(RedisOptions {
            username: connection.filled("username")?.filter(|_| sends_user),
            password,
            database: database.map_or(0, |database| database.trim().parse().unwrap_or(0)),
            ..RedisOptions::default()
        })
    }

    fn redis_tls(&self, connection: &Connection<'_>, is_predis: bool) -> SettingResult<TlsOptions> {
        let (first, rest) = place_of_context(is_predis);
        let context = connection.fields.get(first);
        let context = context.and_then(|context| {
            let mut keys = rest.iter();
            keys.try_fold(context, |context, key| context.get(key))
        });
        let path = [&connection.path_of(first)[..], rest].concat();
        self.tls_of_context(context, &path)
    }

    fn redis_fields(&self, name: &str) -> SettingResult<Map<String, Value>> {
        let path = ["database", "redis", name];
        match self.at(&path)? {
            Some(Value::Object(fields))
                if fields.contains_key("$env") || fields.contains_key("$secret") =>
            {
                let url = self.secret(fields, &["database", "redis", name, "url"])?;
                Ok(url_only(url))
            }
            Some(Value::Object(fields)) => Ok(fields.clone()),
            Some(Value::String(url)) => Ok(url_only(url.clone())),
            Some(Value::Array(servers)) if !servers.is_empty() => {
                let numbered = servers.iter().enumerate();
                let numbered =
                    numbered.map(|(position, server)| (position.to_string(), server.clone()));
                Ok(numbered.collect())
            }
            _ => Err(self.missing(&path)),
        }
    }

    /// The options of all connections, overridden by those of this one.
    fn redis_options(
        &self,
        fields: &Map<String, Value>,
        prefix: Option<&str>,
        is_predis: bool,
    ) -> SettingResult<Map<String, Value>> {
        let global = self.at(&["database", "redis", "options"])?;
        let own = fields.get("options");
        let mut options = Map::new();
        for given in [global, own].into_iter().flatten() {
            options.extend(given.as_object().cloned().unwrap_or_default());
        }
        // Before 9.12 phpredis took no notice of a prefix beside the options.
        let beside = fields.get("prefix");
        let beside = beside.filter(|_| self.is_at_least(9, 12) || is_predis);
        if let Some(prefix) = prefix.map(Value::from).or(beside.cloned()) {
            options.insert("prefix".into(), prefix);
        }
        Ok(options)
    }
}

/// Path and value of an option that changes the bytes of values.
pub(super) fn encoded(
    option: impl Fn(&'static str) -> SettingResult<Option<String>>,
) -> SettingResult<Option<(String, String)>> {
    for key in ["serializer", "compression"] {
        let value = option(key)?;
        if let Some(value) = value.filter(|value| !matches!(&**value, "" | "0" | "none")) {
            return Ok(Some((format!("database.redis.options.{key}"), value)));
        }
    }
    Ok(None)
}

/// Where a connection says that its server is.
fn address(connection: &Connection<'_>) -> SettingResult<RedisAddress> {
    let host = connection.text("host")?;
    let host = host.unwrap_or_else(|| "127.0.0.1".into());
    let port = connection.port(6379)?;
    let scheme = connection.text("scheme")?;
    let is_tls = matches!(scheme.as_deref(), Some("tls" | "rediss"));
    let socket = connection.text("path")?;
    let socket = socket.filter(|_| scheme.as_deref() == Some("unix"));
    Ok(match socket {
        Some(socket) => RedisAddress::Unix(socket.into()),
        None => RedisOptions::address_of(&host, port, is_tls),
    })
}

fn url_only(url: String) -> Map<String, Value> {
    Map::from_iter([("url".to_owned(), Value::String(url))])
}
