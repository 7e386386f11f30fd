//! `[redis]`: sentinels that name the app's Redis servers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::connection::{RedisAddress, SentinelServer, Sentinels};

/// `[redis]`: for apps whose own configuration does not show artisand their sentinels.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisTable {
    /// The sentinels, each as `host`, `host:port` or `tls://host:port`.
    #[serde(default)]
    pub sentinels: Vec<String>,
    /// The service whose master all of the app's Redis connections lead to.
    pub service: Option<String>,
    /// Services of those connections of `database.redis` that have another one.
    #[serde(default)]
    pub services: BTreeMap<String, String>,
    /// User of the sentinels' own access lists.
    pub sentinel_username: Option<String>,
    /// The sentinels' own password; better in the environment.
    pub sentinel_password: Option<String>,
}

impl fmt::Debug for RedisTable {
    /// Without the password, which a wrong text for a sentinel may hold as well.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTable")
            .field("sentinels", &self.sentinels.len())
            .field("service", &self.service)
            .field("services", &self.services)
            .field("sentinel_username", &self.sentinel_username)
            .field(
                "sentinel_password",
                &self.sentinel_password.as_ref().map(|_| "(set)"),
            )
            .finish()
    }
}

impl RedisTable {
    /// The service of a connection of `database.redis`, if one is said here.
    pub(super) fn service_of(&self, name: &str) -> Option<&str> {
        let service = self.services.get(name).or(self.service.as_ref());
        service.map(String::as_str)
    }

    /// Where a connection of `database.redis` leads, whose address the app says.
    pub(super) fn over(&self, name: &str, address: RedisAddress) -> RedisAddress {
        let Some(service) = self.service_of(name) else {
            return address;
        };
        let servers = self.servers().flatten().map(|server| SentinelServer {
            username: self.sentinel_username.clone(),
            password: self.sentinel_password.clone(),
            ..server
        });
        RedisAddress::Sentinel(Sentinels {
            service: service.to_owned(),
            servers: servers.collect(),
            has_tls: address.has_tls(),
        })
    }

    /// The sentinels; `None` for each text that names none.
    fn servers(&self) -> impl Iterator<Item = Option<SentinelServer>> {
        let texts = self.sentinels.iter();
        texts.map(|text| SentinelServer::parse(text, SentinelServer::PORT, false))
    }

    /// What is wrong with the table, if anything.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.servers().any(|server| server.is_none()) {
            // Without the text, which may hold a password.
            return Some(
                "each of `sentinels` under [redis] has to be `host`, `host:port` or `tls://host:port`; user and password go into `sentinel_username` and `sentinel_password`, or ARTISAND_SENTINEL_PASSWORD",
            );
        }
        let has_service = self.service.is_some() || !self.services.is_empty();
        if has_service && self.sentinels.is_empty() {
            return Some(
                "`service` under [redis] needs `sentinels`, such as `[\"10.0.0.1:26379\"]`",
            );
        }
        if !has_service && !self.sentinels.is_empty() {
            return Some(
                "`sentinels` under [redis] needs `service`, the name that the sentinels know the master by (`sentinel monitor NAME ..`)",
            );
        }
        None
    }
}
