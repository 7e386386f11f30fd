//! Redis clusters of the app.

use serde_json::{Map, Value};

use super::Laravel;
use super::error::{SettingError, SettingResult};
use super::redis::{RedisSettings, encoded};
use super::url::{Connection, Kind};
use crate::connection::{Address, RedisAddress, RedisOptions, TlsOptions};

impl Laravel {
    /// Names of the clusters.
    pub(super) fn clusters(&self) -> SettingResult<Vec<String>> {
        let mut names = self.names(&["database", "redis", "clusters"])?;
        names.retain(|name| name != "options");
        Ok(names)
    }

    /// The cluster of this name; `None` if there is none.
    ///
    /// # Errors
    ///
    /// predis spreads its keys over single servers, or a setting cannot be read.
    ///
    /// # Source
    ///
    /// `Illuminate\Redis\RedisManager::resolveCluster`,
    /// `Illuminate\Redis\Connectors\PhpRedisConnector::connectToCluster`, `PredisConnector::connectToCluster`.
    pub(super) fn redis_cluster(
        &self,
        name: &str,
        prefix: Option<&str>,
    ) -> SettingResult<Option<RedisSettings>> {
        let Some(nodes) = self.cluster_nodes(name)? else {
            return Ok(None);
        };
        let mut options = self.cluster_options(name)?;
        if let Some(prefix) = prefix {
            options.insert("prefix".into(), prefix.into());
        }
        let option = |key: &'static str| match options.get(key) {
            Some(value) => {
                let value =
                    self.scalar(value, &["database", "redis", "clusters", "options", key])?;
                Ok(value.filter(|value| !value.is_empty()))
            }
            None => Ok(None),
        };
        let is_predis = self.is_predis()?;
        if is_predis && option("cluster")?.as_deref() != Some("redis") {
            return Err(SettingError::Wrong {
                path: "database.redis.options.cluster".into(),
                found: "not `redis`: predis then spreads keys over single servers by itself".into(),
                expected: "`redis`, for a cluster of Redis itself".into(),
            });
        }
        let mut cluster = Nodes::default();
        for node in nodes {
            cluster.add(self, name, node)?;
        }
        if cluster.seeds.is_empty() {
            return Err(self.missing(&["database", "redis", "clusters", name, "0"]));
        }
        // phpredis sends a user name since Laravel 13.5, and takes both from the options alone.
        let (username, password) = (option("username")?, option("password")?);
        let is_of_options = password.is_some();
        let password = password.or(cluster.password);
        let username = if is_of_options {
            username
        } else {
            cluster.username
        };
        let sends_user = is_predis || self.is_at_least(13, 5);
        let tls = self.cluster_tls(&options, is_predis)?;
        Ok(Some(RedisSettings {
            options: RedisOptions {
                tls,
                address: RedisAddress::Cluster {
                    seeds: cluster.seeds,
                    tls: cluster.has_tls,
                },
                username: username.filter(|_| sends_user && password.is_some()),
                password,
                // A cluster has no other.
                database: 0,
                prefix: option("prefix")?.unwrap_or_default(),
            },
            encoded: encoded(option)?,
        }))
    }

    /// How TLS to the nodes is secured.
    fn cluster_tls(
        &self,
        options: &Map<String, Value>,
        is_predis: bool,
    ) -> SettingResult<TlsOptions> {
        let place: &[&str] = if is_predis {
            &["parameters", "ssl"]
        } else {
            &["context"]
        };
        let mut keys = place[1..].iter();
        let context = options.get(place[0]);
        let context =
            context.and_then(|context| keys.try_fold(context, |context, key| context.get(key)));
        let path = [&["database", "redis", "clusters", "options"], place].concat();
        self.tls_of_context(context, &path)
    }

    /// The list of nodes of a cluster; `None` if there is no such cluster.
    fn cluster_nodes(&self, name: &str) -> SettingResult<Option<Vec<&Value>>> {
        Ok(match self.at(&["database", "redis", "clusters", name])? {
            Some(Value::Array(nodes)) => Some(nodes.iter().collect()),
            // With options beside its nodes, PHP's list has keys.
            Some(Value::Object(fields)) => {
                let nodes = fields.iter().filter(|(key, _)| *key != "options");
                Some(nodes.map(|(_, node)| node).collect())
            }
            _ => None,
        })
    }

    /// The options of all connections, overridden by those of all clusters, and those by the cluster's own.
    fn cluster_options(&self, name: &str) -> SettingResult<Map<String, Value>> {
        let paths: [&[&str]; 3] = [
            &["database", "redis", "options"],
            &["database", "redis", "clusters", "options"],
            &["database", "redis", "clusters", name, "options"],
        ];
        let mut options = Map::new();
        for path in paths {
            let given = self.at(path)?.and_then(Value::as_object);
            options.extend(given.cloned().unwrap_or_default());
        }
        Ok(options)
    }
}

/// What the nodes of a cluster say.
#[derive(Default)]
struct Nodes {
    seeds: Vec<Address>,
    has_tls: bool,
    username: Option<String>,
    password: Option<String>,
}

impl Nodes {
    fn add(&mut self, laravel: &Laravel, name: &str, node: &Value) -> SettingResult<()> {
        let fields = match node {
            Value::Object(fields) => fields.clone(),
            Value::String(url) => Map::from_iter([("url".to_owned(), Value::from(&**url))]),
            _ => return Ok(()),
        };
        let path = ["database.redis", "clusters", name];
        let node = Connection::new(laravel, path, Kind::Redis, fields)?;
        let host = node.filled("host")?;
        let host = host.unwrap_or_else(|| "127.0.0.1".into());
        let scheme = node.text("scheme")?;
        let is_tls = matches!(scheme.as_deref(), Some("tls" | "rediss"));
        match RedisOptions::address_of(&host, node.port(6379)?, is_tls) {
            RedisAddress::Tls(host, port) => {
                self.has_tls = true;
                self.seeds.push(Address::new(host, port));
            }
            RedisAddress::Tcp(host, port) => self.seeds.push(Address::new(host, port)),
            _ => {}
        }
        if self.password.is_none() {
            self.password = node.filled("password")?;
            self.username = node.filled("username")?;
        }
        Ok(())
    }
}
