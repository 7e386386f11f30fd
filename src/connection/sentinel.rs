//! Finds the master of a service by asking its sentinels.
//!
//! The sentinels are asked one after the other, first the one that answered last time. What they say is checked:
//! the server has to say itself that it is a master, because a sentinel that was cut off may name the old one.
//! Nothing here sends a command of a caller, so nothing can be done twice.
//!
//! # Source
//!
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>; docs/protocol/sentinel.md.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value};

use super::endpoint::{Endpoint, Login};
use super::error::Error;
use super::presence::Presence;
use super::tls::TlsOptions;

/// A service, and the sentinels that know its master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// The name by which the sentinels know the master and its replicas.
    pub service: String,
    /// The sentinels, in the order in which they are asked.
    pub servers: Vec<SentinelServer>,
    /// Whether the master is reached over TLS.
    pub has_tls: bool,
}

/// A sentinel.
#[derive(Clone, PartialEq, Eq)]
pub struct SentinelServer {
    /// Host name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User of the sentinel's own access lists.
    pub username: Option<String>,
    /// The sentinel's own password.
    pub password: Option<String>,
    /// How TLS to the sentinel is secured; `None` without TLS.
    pub tls: Option<TlsOptions>,
}

impl SentinelServer {
    /// The port of sentinels.
    pub const PORT: u16 = 26379;

    /// A sentinel without a password.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            username: None,
            password: None,
            tls: None,
        }
    }

    /// The sentinel of a text such as `host`, `host:26380`, `tcp://host` or `tls://[::1]:26379`; `None` for another
    /// text, which may hold a password and so must not be shown.
    #[must_use]
    pub fn parse(text: &str, port: u16, has_tls: bool) -> Option<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let has_tls = match scheme {
            "" | "tcp" | "redis" => has_tls,
            "tls" | "rediss" => true,
            _ => return None,
        };
        // An IPv6 address without brackets has colons and no port.
        let split = rest.rsplit_once(':');
        let split = split.filter(|(host, _)| host.ends_with(']') || !host.contains(':'));
        let (host, port) = match split {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (rest, port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = !host.is_empty() && !host.contains(['@', '/', '?']);
        is_host.then(|| Self {
            tls: has_tls.then(TlsOptions::default),
            ..Self::new(host, port)
        })
    }
}

impl fmt::Display for SentinelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "tls://" } else { "" };
        write!(f, "{scheme}{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for SentinelServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelServer")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("tls", &self.tls)
            .finish()
    }
}

impl fmt::Display for Sentinels {
    /// The same text for the same sentinels in any order, as two connections to one service are compared by it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        servers.sort_unstable();
        servers.dedup();
        write!(f, "{} via {}", self.service, servers.join(", "))
    }
}

/// How long a sentinel may take to accept a connection, and to answer: one that is gone must not cost much.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a master may take to accept a connection: after that the sentinels may name another.
const CONNECT: Duration = Duration::from_secs(2);

/// How often to ask whether the master has changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Finds the master of a service.
pub(super) struct Finder {
    service: String,
    sentinels: Vec<(String, Endpoint)>,
    /// Position of the sentinel that answered last.
    first: AtomicUsize,
    login: Login,
    tls: Option<TlsOptions>,
}

/// A connection to the master of a service.
pub(super) struct Master {
    pub(super) connection: MultiplexedConnection,
    /// Host and port.
    pub(super) server: Arc<str>,
}

impl Finder {
    /// Prepares the search; `login` and `tls` are for the master.
    ///
    /// # Errors
    ///
    /// There are no sentinels, or the certificates cannot be used.
    pub(super) fn new(options: &Sentinels, login: Login, tls: &TlsOptions) -> Result<Self, Error> {
        if options.servers.is_empty() {
            return Err(Error::NoMaster {
                service: options.service.clone(),
                problem: "no sentinel is named".to_owned(),
            });
        }
        let sentinels = options.servers.iter().map(|server| {
            let login = Login {
                username: server.username.clone(),
                password: server.password.clone(),
                database: 0,
            };
            let tls = server.tls.as_ref();
            let endpoint = Endpoint::tcp(&server.host, server.port, tls, &login)?;
            Ok::<_, Error>((server.to_string(), endpoint))
        });
        let finder = Self {
            service: options.service.clone(),
            sentinels: sentinels.collect::<Result<_, _>>()?,
            first: AtomicUsize::new(0),
            login,
            tls: options.has_tls.then(|| tls.clone()),
        };
        // What is wrong with the certificates for the master is said before one is found.
        finder.endpoint("localhost", 0)?;
        Ok(finder)
    }

    fn endpoint(&self, host: &str, port: u16) -> Result<Endpoint, Error> {
        Endpoint::tcp(host, port, self.tls.as_ref(), &self.login)
    }

    /// Opens a connection to the server that is the master now.
    ///
    /// # Errors
    ///
    /// No sentinel answers or knows the service, or what they name is no master or cannot be reached.
    pub(super) async fn master(&self) -> Result<Master, Error> {
        let count = self.sentinels.len();
        let first = self.first.load(Ordering::Relaxed);
        let mut failures = Failures::default();
        for position in (first..first + count).map(|position| position % count) {
            let (name, sentinel) = &self.sentinels[position];
            let (host, port) = match self.ask(sentinel).await {
                Ok(Ok(named)) => named,
                Ok(Err(known)) => {
                    failures.unknown.push(format!("{name} {known}"));
                    continue;
                }
                Err(error) => {
                    failures.silent.push(format!("{name}: {error}"));
                    continue;
                }
            };
            self.first.store(position, Ordering::Relaxed);
            let server = format!("{host}:{port}");
            if failures.named.contains(&server) {
                continue;
            }
            failures.named.push(server.clone());
            let endpoint = self.endpoint(&host, port)?;
            match open_master(&endpoint).await {
                Ok(Some(connection)) => {
                    let server = server.into();
                    return Ok(Master { connection, server });
                }
                Ok(None) => failures.replicas.push(format!("{server}, named by {name}")),
                Err(error) => failures.unreached = Some((server, error)),
            }
        }
        Err(failures.into_error(&self.service))
    }

    /// Looks again and again whether the sentinels name another master than the one that was reached, until the
    /// last connection to that one is dropped.
    ///
    /// For ten seconds and more after a failover the old master may not know of it. It answers as before, and all
    /// that is written there is lost.
    pub(super) async fn look_out(self: Arc<Self>, presence: Weak<Presence>) {
        let mut asked = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(server) = presence.upgrade().map(|presence| presence.server()) else {
                return;
            };
            let named = self.named(&mut asked).await;
            let is_other = named.is_some() && named.as_deref() != server.as_deref();
            if is_other
                && let Ok(master) = self.master().await
                && let Some(presence) = presence.upgrade()
            {
                // The connections from before end, or are left by the next who uses them.
                presence.reached(&master.server);
            }
        }
    }

    /// The master that a sentinel names, which is the one asked before if that one still answers.
    async fn named(&self, asked: &mut Option<MultiplexedConnection>) -> Option<String> {
        let mut connection = if let Some(connection) = asked.take() {
            connection
        } else {
            let count = self.sentinels.len();
            let first = self.first.load(Ordering::Relaxed);
            let (_, sentinel) = &self.sentinels[first % count];
            // Unless it names a master, another one is asked the next time.
            self.first.store((first + 1) % count, Ordering::Relaxed);
            let connection = sentinel.open(PATIENCE, Some(PATIENCE)).await.ok()?;
            self.first.store(first, Ordering::Relaxed);
            connection
        };
        let named = self.named_by(&mut connection).await.ok().flatten();
        let Some((host, port)) = named else {
            let first = self.first.load(Ordering::Relaxed);
            let next = (first + 1) % self.sentinels.len();
            self.first.store(next, Ordering::Relaxed);
            return None;
        };
        *asked = Some(connection);
        Some(format!("{host}:{port}"))
    }

    async fn named_by(
        &self,
        sentinel: &mut MultiplexedConnection,
    ) -> RedisResult<Option<(String, u16)>> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(&self.service);
        match command.query_async(sentinel).await {
            // It knows the service, but has not yet heard of its master.
            Err(error) if error.code() == Some("IDONTKNOW") => Ok(None),
            named => named,
        }
    }

    /// Asks a sentinel for the master's host and port; if it does not know the service, says which ones it knows.
    async fn ask(&self, sentinel: &Endpoint) -> RedisResult<Result<(String, u16), String>> {
        let mut connection = sentinel.open(PATIENCE, Some(PATIENCE)).await?;
        if let Some(named) = self.named_by(&mut connection).await? {
            return Ok(Ok(named));
        }
        let mut command = redis::cmd("SENTINEL");
        let masters = command.arg("masters").query_async(&mut connection).await;
        Ok(Err(match masters {
            Ok(masters) => known(masters),
            Err(_) => "does not".to_owned(),
        }))
    }

    /// What each sentinel says: the master it names, or why it names none.
    pub(super) async fn roll_call(&self) -> Vec<(String, Result<String, String>)> {
        let calls = self.sentinels.iter().map(|(name, sentinel)| async move {
            let said = match self.ask(sentinel).await {
                Ok(Ok((host, port))) => Ok(format!("{host}:{port}")),
                Ok(Err(known)) => Err(known),
                Err(error) => Err(error.to_string()),
            };
            (name.clone(), said)
        });
        futures_util::future::join_all(calls).await
    }
}

/// Opens a connection to a server; `None` if it is no master.
async fn open_master(endpoint: &Endpoint) -> RedisResult<Option<MultiplexedConnection>> {
    let mut connection = endpoint.open(CONNECT, None).await?;
    let command = redis::cmd("ROLE");
    let role = command.query_async::<Vec<Value>>(&mut connection);
    match tokio::time::timeout(CONNECT, role).await {
        Ok(Ok(role)) => {
            let is_master = role.first() == Some(&Value::BulkString(b"master".to_vec()));
            Ok(is_master.then_some(connection))
        }
        // A user who may not ask finds out with the first write, which a replica refuses.
        Ok(Err(error)) if error.code() == Some("NOPERM") => Ok(Some(connection)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// The services in a reply to `SENTINEL masters`, as the end of a sentence.
fn known(masters: Vec<Vec<Value>>) -> String {
    let names = masters.into_iter().filter_map(|fields| {
        let mut fields = fields.chunks_exact(2);
        let name = fields.find(|pair| pair[0] == Value::BulkString(b"name".to_vec()))?;
        redis::from_redis_value::<String>(name[1].clone()).ok()
    });
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        "knows none".to_owned()
    } else {
        format!("knows {}", names.join(", "))
    }
}

/// Why there is no master.
#[derive(Default)]
struct Failures {
    /// Sentinels that do not answer, and what happened.
    silent: Vec<String>,
    /// Sentinels that do not know the service, and what they know.
    unknown: Vec<String>,
    /// Servers that were named.
    named: Vec<String>,
    /// Servers that were named and are no masters.
    replicas: Vec<String>,
    /// A server that was named and could not be reached.
    unreached: Option<(String, RedisError)>,
}

impl Failures {
    fn into_error(self, service: &str) -> Error {
        if let Some((server, source)) = self.unreached {
            return Error::Connect {
                address: format!("{server}, the master of `{service}`"),
                source,
            };
        }
        let problem = if !self.replicas.is_empty() {
            let replicas = self.replicas.join("; ");
            format!(
                "what the sentinels name is a replica ({replicas}), so a failover may be under way"
            )
        } else if self.unknown.is_empty() {
            format!("no sentinel answers ({})", self.silent.join("; "))
        } else {
            let said = [self.unknown, self.silent].concat().join("; ");
            format!("no sentinel knows this service ({said})")
        };
        Error::NoMaster {
            service: service.to_owned(),
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_is_a_host_with_or_without_port_and_scheme() {
        #[rustfmt::skip]
        let rows = [
            ("h", "h:26379"),
            ("h:1", "h:1"),
            ("tcp://h:1", "h:1"),
            ("tls://h", "tls://h:26379"),
            ("10.0.0.1:2", "10.0.0.1:2"),
            ("::1", "::1:26379"),
            ("[::1]:3", "::1:3"),
        ];
        for (text, expected) in rows {
            let server = SentinelServer::parse(text, SentinelServer::PORT, false).unwrap();
            assert_eq!(server.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn the_order_of_the_sentinels_makes_no_other_service() {
        let via = |ports: &[u16]| {
            let servers = ports.iter().map(|port| SentinelServer::new("h", *port));
            let sentinels = Sentinels {
                service: "s".into(),
                servers: servers.collect(),
                has_tls: false,
            };
            sentinels.to_string()
        };
        assert_eq!(via(&[2, 1]), "s via h:1, h:2");
        assert_eq!(via(&[2, 1]), via(&[1, 2]));
        assert_ne!(via(&[2, 1]), via(&[1]));
    }

    #[test]
    fn it_is_said_why_there_is_no_master() {
        let text = |failures: Failures| failures.into_error("s").to_string();
        let silent = || vec!["a:1: refused".to_owned()];
        let unknown = || vec!["b:2 knows `x`".to_owned()];
        #[rustfmt::skip]
        let rows = [
            (Failures { silent: silent(), ..Failures::default() },
                "no master of `s` was found: no sentinel answers (a:1: refused)"),
            (Failures { silent: silent(), unknown: unknown(), ..Failures::default() },
                "no master of `s` was found: no sentinel knows this service (b:2 knows `x`; a:1: refused)"),
            (Failures { silent: silent(), replicas: vec!["c:3, named by b:2".into()], ..Failures::default() },
                "no master of `s` was found: what the sentinels name is a replica (c:3, named by b:2), so a failover may be under way"),
        ];
        for (failures, expected) in rows {
            assert_eq!(text(failures), expected);
        }
    }
}
