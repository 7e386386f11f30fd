//! Redis servers that an app finds through sentinels, in the forms that clients and packages have for it.
//!
//! Laravel itself knows no sentinels (docs/protocol/sentinel.md 2).

use serde_json::{Map, Value};

use super::Laravel;
use super::error::{SettingError, SettingResult};
use super::url::{Connection, Kind};
use crate::connection::{RedisAddress, RedisOptions, SentinelServer, Sentinels};

/// The client of the package `namoshek/laravel-redis-sentinel`.
const CLIENT: &str = "phpredis-sentinel";
/// The name of a service where none is set.
const SERVICE: &str = "mymaster";

/// Whether a connection is a list of servers, as predis takes it.
pub(super) fn is_list(fields: &Map<String, Value>) -> bool {
    fields.contains_key("0")
}

/// What predis tells each server of a list: the parameters of this connection, or those of all.
///
/// # Source
///
/// `Illuminate\Redis\RedisManager::resolve`.
pub(super) fn parameters(
    options: &Map<String, Value>,
    has_own: bool,
    name: &str,
) -> Map<String, Value> {
    let all = options.get("parameters");
    let of_name = all.and_then(|all| all.get(name)).filter(|_| !has_own);
    let found = of_name.or(all).and_then(Value::as_object);
    found.cloned().unwrap_or_default()
}

impl Laravel {
    /// The sentinels in a list of servers.
    ///
    /// # Source
    ///
    /// `Predis\Connection\Aggregate\SentinelReplication` (predis 1),
    /// `Predis\Connection\Replication\SentinelReplication` (predis 2 and 3).
    pub(super) fn sentinels_in_list(
        &self,
        name: &str,
        fields: &Map<String, Value>,
        options: &Map<String, Value>,
    ) -> SettingResult<Sentinels> {
        let path = |key| ["database", "redis", name, key];
        let option = |key| match options.get(key) {
            Some(value) => self.scalar(value, &["database", "redis", "options", key]),
            None => Ok(None),
        };
        if option("replication")?.as_deref() != Some("sentinel") {
            return Err(SettingError::Wrong {
                path: format!("database.redis.{name}"),
                found: "a list of servers".into(),
                expected: "one server, or sentinels: `'replication' => 'sentinel'` and `service` in its `options`".into(),
            });
        }
        let service = option("service")?.filter(|service| !service.is_empty());
        let service = service.ok_or_else(|| self.missing(&path("options.service")))?;
        let mut servers = Vec::new();
        for position in 0.. {
            match fields.get(&position.to_string()) {
                Some(Value::Object(server)) if !server.contains_key("$env") => {
                    servers.extend(self.listed_servers(name, server.clone())?);
                }
                // A URL with a password is a secret.
                Some(url) => servers.push(self.server_at(name, url)?),
                None => break,
            }
        }
        Ok(Sentinels {
            service,
            servers,
            has_tls: false,
        })
    }

    fn server_at(&self, name: &str, url: &Value) -> SettingResult<SentinelServer> {
        let url = self.scalar(url, &["database", "redis", name, "url"])?;
        let mut options = RedisOptions::default();
        let applied = options.apply_url(&url.unwrap_or_default());
        applied.map_err(|source| SettingError::Connection {
            path: format!("database.redis.{name}"),
            source,
        })?;
        let (host, port, has_tls) = match options.address {
            RedisAddress::Tcp(host, port) => (host, port, false),
            RedisAddress::Tls(host, port) => (host, port, true),
            other => {
                return Err(SettingError::Wrong {
                    path: format!("database.redis.{name}"),
                    found: format!("`{other}`"),
                    expected: "sentinels, each as `tcp://host:port` or `tls://host:port`".into(),
                });
            }
        };
        Ok(SentinelServer {
            username: options.username,
            password: options.password,
            tls: has_tls.then(|| options.tls.clone()),
            ..SentinelServer::new(host, port)
        })
    }

    /// The servers of one element of a list, whose host may be several with commas in between.
    fn listed_servers(
        &self,
        name: &str,
        fields: Map<String, Value>,
    ) -> SettingResult<Vec<SentinelServer>> {
        let server = Connection::new(self, ["database", "redis", name], Kind::Redis, fields)?;
        let host = server.filled("host")?;
        let host = host.unwrap_or_else(|| "127.0.0.1".into());
        let scheme = server.text("scheme")?;
        let has_tls = matches!(scheme.as_deref(), Some("tls" | "rediss"));
        let login = (server.filled("username")?, server.filled("password")?);
        // As predis, whose default is the port of Redis.
        let path = server.path_of("host");
        let mut servers = servers(&host, server.port(6379)?, has_tls, &login, &path)?;
        let tls = self.tls_of_context(server.fields.get("ssl"), &server.path_of("ssl"))?;
        for server in &mut servers {
            server.tls = server.tls.as_ref().map(|_| tls.clone());
        }
        Ok(servers)
    }

    /// The sentinels beside the fields of a connection, if the app's client is one that has them there.
    ///
    /// # Source
    ///
    /// `Namoshek\Redis\Sentinel\Connectors\PhpRedisSentinelConnector`.
    pub(super) fn sentinels_in_fields(
        &self,
        connection: &Connection<'_>,
    ) -> SettingResult<Option<Sentinels>> {
        if self.text(&["database", "redis", "client"])?.as_deref() != Some(CLIENT) {
            return Ok(None);
        }
        // Its first versions took the host itself for that of a sentinel.
        let host = match connection.filled("sentinel_host")? {
            Some(host) => Some(host),
            None => connection.filled("host")?,
        };
        let Some(host) = host else {
            let path = connection.path_of("sentinel_host").join(".");
            return Err(SettingError::Wrong {
                path,
                found: "not set".into(),
                expected: "the host of a sentinel; or say `sentinels` and `service` under [redis] in artisand.toml".into(),
            });
        };
        let port = connection.port_at("sentinel_port", SentinelServer::PORT)?;
        let login = (
            connection.filled("sentinel_username")?,
            connection.filled("sentinel_password")?,
        );
        let service = connection.filled("sentinel_service")?;
        Ok(Some(Sentinels {
            service: service.unwrap_or_else(|| SERVICE.into()),
            servers: servers(
                &host,
                port,
                false,
                &login,
                &connection.path_of("sentinel_host"),
            )?,
            has_tls: false,
        }))
    }
}

/// The sentinels in a text such as `a, tls://b, c:26380`, which is at `path`.
fn servers(
    text: &str,
    port: u16,
    has_tls: bool,
    (username, password): &(Option<String>, Option<String>),
    path: &[&str],
) -> SettingResult<Vec<SentinelServer>> {
    let hosts = text.split([',', ';']).map(str::trim);
    let hosts = hosts.filter(|host| !host.is_empty());
    let servers = hosts.map(|host| {
        let server = SentinelServer::parse(host, port, has_tls);
        // Without the text, which may hold a password.
        let server = server.ok_or_else(|| SettingError::Wrong {
            path: path.join("."),
            found: "a text that is no host".into(),
            expected: "`host`, `host:port` or `tls://host:port`, several with commas; user and password have settings of their own".into(),
        })?;
        Ok(SentinelServer {
            username: username.clone(),
            password: password.clone(),
            ..server
        })
    });
    servers.collect()
}
