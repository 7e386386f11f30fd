//! One connection to a Redis server that several tasks share and that reconnects.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Script, ScriptInvocation, Value,
};
use tokio::runtime::Handle;

use super::address::Address;
use super::endpoint::{Endpoint, Login};
use super::error::{Error, is_lost, is_refused};
use super::presence::Presence;
use super::sentinel::{Finder, Master, Sentinels};
use super::tls::TlsOptions;

/// Where a Redis server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisAddress {
    /// Host and port over TCP.
    Tcp(String, u16),
    /// Host and port over TLS.
    Tls(String, u16),
    /// Path of a unix socket.
    Unix(PathBuf),
    /// Some nodes of a cluster, which know the others.
    Cluster {
        /// The nodes to begin with.
        seeds: Vec<Address>,
        /// Whether the nodes are reached over TLS.
        tls: bool,
    },
    /// The master of a service, which sentinels name.
    Sentinel(Sentinels),
}

impl RedisAddress {
    /// Whether the server, the master or the nodes are reached over TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        match self {
            Self::Tcp(..) | Self::Unix(_) => false,
            Self::Tls(..) => true,
            Self::Cluster { tls, .. } => *tls,
            Self::Sentinel(sentinels) => sentinels.has_tls,
        }
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Tls(host, port) => write!(f, "tls://{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Cluster { seeds, tls } => {
                let scheme = if *tls { "tls://" } else { "" };
                let seeds: Vec<_> = seeds.iter().map(ToString::to_string).collect();
                write!(f, "the cluster of {scheme}{}", seeds.join(", "))
            }
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

/// How to reach a Redis database, and the prefix of its keys.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// Where the server listens.
    pub address: RedisAddress,
    /// User of Redis 6 access lists.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Number of the database.
    pub database: i64,
    /// Put before every key (`database.redis.options.prefix`).
    pub prefix: String,
    /// How TLS to the server is secured, if the address says TLS.
    pub tls: TlsOptions,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            address: RedisAddress::Tcp("127.0.0.1".into(), 6379),
            username: None,
            password: None,
            database: 0,
            prefix: String::new(),
            tls: TlsOptions::default(),
        }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("address", &self.address)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .field("tls", &self.tls)
            .finish()
    }
}

impl RedisOptions {
    /// Applies a URL: `redis://user:password@host:port/database`, also `rediss://`, `tls://`, `tcp://`,
    /// `unix:///path`.
    ///
    /// # Errors
    ///
    /// `Error::Url` for another scheme, a port or database that is no number.
    pub fn apply_url(&mut self, url: &str) -> Result<(), Error> {
        let bad = |problem| Error::Url {
            url: without_password(url),
            problem,
        };
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad("it has no scheme"))?;
        let is_tls = match scheme {
            "redis" | "tcp" => false,
            "rediss" | "tls" => true,
            "unix" | "redis+unix" => {
                self.address = RedisAddress::Unix(rest.into());
                return Ok(());
            }
            _ => return Err(bad("the scheme is none of redis, rediss, tls, tcp, unix")),
        };
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, host_and_port) = authority.rsplit_once('@').unwrap_or(("", authority));
        if !userinfo.is_empty() {
            let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
            self.username = non_empty(percent_decode(user));
            self.password = non_empty(percent_decode(password));
        }
        let (host, port) = match host_and_port.rsplit_once(':') {
            // An IPv6 address stands in brackets; the colons inside do not separate a port.
            Some((host, port)) if !port.ends_with(']') => (
                host,
                port.parse().map_err(|_| bad("the port is not a number"))?,
            ),
            _ => (host_and_port, 6379),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        self.address = if is_tls {
            RedisAddress::Tls(host.into(), port)
        } else {
            RedisAddress::Tcp(host.into(), port)
        };
        if !path.is_empty() {
            self.database = path
                .parse()
                .map_err(|_| bad("the database is not a number"))?;
        }
        Ok(())
    }

    /// Whether they lead to a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self.address, RedisAddress::Cluster { .. })
    }

    /// Converts a host from Laravel's configuration: a name, `tls://name`, or the path of a socket.
    #[must_use]
    pub fn address_of(host: &str, port: u16, is_tls: bool) -> RedisAddress {
        if host.starts_with('/') {
            RedisAddress::Unix(host.into())
        } else if let Some(host) = host
            .strip_prefix("tls://")
            .or_else(|| host.strip_prefix("rediss://"))
        {
            RedisAddress::Tls(host.into(), port)
        } else if is_tls {
            RedisAddress::Tls(host.into(), port)
        } else {
            RedisAddress::Tcp(host.strip_prefix("tcp://").unwrap_or(host).into(), port)
        }
    }
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A URL as it may be shown. Written without escapes, a password may hold `?` and `#`: then only the scheme is certain
/// to be none of it.
fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let (known, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    match rest.rsplit_once('@') {
        Some((_, host)) if query.is_empty() => format!("{scheme}...@{host}"),
        Some(_) => format!("{scheme}..."),
        None => format!("{scheme}{known}"),
    }
}

/// Decodes percent escapes such as `%40`.
pub(crate) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes
            .get(i + 1..i + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        match (
            bytes[i],
            hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()),
        ) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                i += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A shared connection to a database of one Redis server.
#[derive(Clone)]
pub(super) struct Node(Arc<Inner>);

/// Where connections lead.
#[derive(Clone)]
enum Target {
    /// To one server.
    Fixed(Arc<Endpoint>),
    /// To the server that sentinels name.
    Sentinel(Arc<Finder>),
}

struct Inner {
    target: Target,
    address: Arc<str>,
    database: i64,
    prefix: String,
    response_timeout: Duration,
    presence: Arc<Presence>,
    /// Where connections are opened, if not where they are needed.
    runtime: OnceLock<Handle>,
    /// Held while a connection is opened, and only by tasks of that runtime: a handler may block the thread of all
    /// others, which would keep it then, or be the next to get it.
    opening: tokio::sync::Mutex<()>,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// Grows with every connection, so that a late report of a loss does not close the next connection.
    generation: u64,
    opened: Option<Instant>,
    /// The server that sentinels have named.
    master: Option<Arc<str>>,
    /// The term of the [`Presence`] in which it was opened.
    term: u64,
    /// When opening one failed last, and why.
    failed: Option<(Instant, Error)>,
}

impl Current {
    fn lent(&self, connection: MultiplexedConnection, asked: Instant) -> Lent {
        Lent {
            connection,
            generation: self.generation,
            opened: self.opened,
            master: self.master.clone(),
            term: self.term,
            asked,
        }
    }

    /// Why opening a connection has failed, if it has since then.
    fn failed_since(&self, asked: Instant) -> Option<Error> {
        let failed = self.failed.as_ref().filter(|(at, _)| *at > asked);
        failed.and_then(|(_, error)| error.again())
    }
}

/// A connection in use.
struct Lent {
    connection: MultiplexedConnection,
    generation: u64,
    opened: Option<Instant>,
    /// The server that sentinels have named.
    master: Option<Arc<str>>,
    term: u64,
    /// When it was lent for a command.
    asked: Instant,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.0.address)
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call is sent again to the master that sentinels name, if a server refuses it.
const SENT_AGAIN: Duration = Duration::from_secs(5);
/// The wait before it is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long a reply may lie unread because this thread was blocked.
const UNREAD: Duration = Duration::from_secs(1);
/// How long an answer is waited for from a server that is not the master any more.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

impl Node {
    /// How long a reply may take before the connection is given up, by default.
    ///
    /// The time is long, because a server that is busy with another client's slow command still carries out later
    /// commands: giving up early would leave popped jobs reserved.
    pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

    /// Prepares a connection; the first command opens it.
    ///
    /// # Errors
    ///
    /// `Error::NoTls`, or an address the client refuses.
    pub(super) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let address: Arc<str> = options.address.to_string().into();
        let login = Login {
            username: options.username.clone(),
            password: options.password.clone(),
            database: options.database,
        };
        let target = match &options.address {
            RedisAddress::Tcp(host, port) => {
                Target::Fixed(Arc::new(Endpoint::tcp(host, *port, None, &login)?))
            }
            RedisAddress::Tls(host, port) => Target::Fixed(Arc::new(Endpoint::tcp(
                host,
                *port,
                Some(&options.tls),
                &login,
            )?)),
            RedisAddress::Unix(path) => Target::Fixed(Arc::new(Endpoint::unix(path, &login)?)),
            RedisAddress::Sentinel(sentinels) => {
                Target::Sentinel(Arc::new(Finder::new(sentinels, login, &options.tls)?))
            }
            RedisAddress::Cluster { .. } => unreachable!("a cluster is reached by its nodes"),
        };
        Ok(Self(Arc::new(Inner {
            presence: Presence::of("Redis", &address),
            target,
            address,
            database: options.database,
            prefix: options.prefix.clone(),
            response_timeout: Self::RESPONSE_TIMEOUT,
            runtime: OnceLock::new(),
            opening: tokio::sync::Mutex::default(),
            current: Mutex::default(),
        })))
    }

    /// Another connection to the same database, for commands that block.
    #[must_use]
    pub(super) fn another(&self, response_timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            target: self.0.target.clone(),
            address: Arc::clone(&self.0.address),
            database: self.0.database,
            prefix: self.0.prefix.clone(),
            response_timeout,
            presence: Arc::clone(&self.0.presence),
            runtime: OnceLock::new(),
            opening: tokio::sync::Mutex::default(),
            current: Mutex::default(),
        }))
    }

    /// Opens connections on this runtime from now on; only the first one that is given counts.
    pub(super) fn open_on(&self, runtime: &Handle) {
        let _ = self.0.runtime.set(runtime.clone());
    }

    /// Whether both lead to the same database of the same server, judged by their addresses, or by service and
    /// sentinels.
    pub(super) fn is_same_database(&self, other: &Self) -> bool {
        self.0.address == other.0.address && self.0.database == other.0.database
    }

    /// Put before every key.
    pub(super) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Host and port, path of the socket, or service and sentinels.
    pub(super) fn address(&self) -> &str {
        &self.0.address
    }

    /// What each of the sentinels says: the master that it names, or why it names none; `None` without sentinels.
    pub(super) async fn ask_sentinels(&self) -> Option<Vec<(String, Result<String, String>)>> {
        match &self.0.target {
            Target::Fixed(_) => None,
            Target::Sentinel(finder) => Some(finder.roll_call().await),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to the right server, if there is one.
    fn lend(&self, asked: Instant) -> Option<Lent> {
        let term = self.0.presence.term();
        let current = self.current();
        let is_right = current.term == term;
        let connection = current.connection.clone().filter(|_| is_right)?;
        Some(current.lent(connection, asked))
    }

    async fn connect(&self) -> Result<Lent, Error> {
        let asked = Instant::now();
        if let Some(lent) = self.lend(asked) {
            return Ok(lent);
        }
        let Some(runtime) = self.0.runtime.get() else {
            return self.open(asked).await;
        };
        let node = self.clone();
        let opening = runtime.spawn(async move { node.open(asked).await });
        match opening.await {
            Ok(opened) => opened,
            // The runtime has ended.
            Err(ended) if ended.is_cancelled() => self.open(asked).await,
            Err(panicked) => Err(self.unreachable(std::io::Error::other(panicked).into())),
        }
    }

    /// Opens a connection, unless another caller has done so since `asked`, or has failed to.
    async fn open(&self, asked: Instant) -> Result<Lent, Error> {
        let _opening = self.0.opening.lock().await;
        if let Some(lent) = self.lend(asked) {
            return Ok(lent);
        }
        // Those who waited while it failed get the same error: one after the other they would wait for minutes.
        let failed = self.current().failed_since(asked);
        if let Some(error) = failed {
            return Err(error);
        }
        let reached = self.reach().await;
        let mut current = self.current();
        match reached {
            Ok((connection, master)) => {
                if let Some((server, term)) = master {
                    (current.master, current.term) = (Some(server), term);
                }
                current.generation += 1;
                current.connection = Some(connection.clone());
                current.opened = Some(Instant::now());
                Ok(current.lent(connection, asked))
            }
            Err(error) => {
                current.failed = error.again().map(|error| (Instant::now(), error));
                Err(error)
            }
        }
    }

    /// A new connection to the server, with its name and term if sentinels have named it. The runtime of the caller
    /// reads and writes for all who use it.
    async fn reach(&self) -> Result<(MultiplexedConnection, Option<(Arc<str>, u64)>), Error> {
        match &self.0.target {
            Target::Fixed(server) => {
                let opened = server.open(CONNECT_TIMEOUT, None).await;
                let connection = opened.map_err(|source| self.unreachable(source))?;
                Ok((connection, None))
            }
            Target::Sentinel(finder) => {
                let Master { connection, server } = finder.master().await?;
                let presence = &self.0.presence;
                let term = presence.reached(&server);
                presence.keep_lookout(|| {
                    let lookout = Arc::clone(finder).look_out(Arc::downgrade(presence));
                    tokio::spawn(lookout)
                });
                Ok((connection, Some((server, term))))
            }
        }
    }

    fn unreachable(&self, source: RedisError) -> Error {
        Error::Connect {
            address: self.0.address.to_string(),
            source,
        }
    }

    async fn connection(&self) -> Result<Lent, Error> {
        let lent = self.connect().await;
        match &lent {
            Err(Error::Connect { source, .. }) => self.0.presence.note_loss(None, source),
            Err(error @ Error::NoMaster { .. }) => self.0.presence.note_loss(None, error),
            _ => {}
        }
        lent
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    ///
    /// The connection cannot be opened (this is not logged; the caller has to report it), or the server refuses to
    /// serve.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        let mut lent = self.connect().await?;
        let ping = redis::cmd("PING");
        let answer = ping.query_async::<String>(&mut lent.connection);
        let answer = self.answer(answer).await;
        self.finish(lent, answer.map(|_| ()))
    }

    /// Waits for a reply.
    ///
    /// A handler may block this thread, and with it the task that reads replies, beyond the time for one. A reply that
    /// came meanwhile counts: the jobs in it are reserved.
    async fn answer<T>(&self, reply: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let mut reply = std::pin::pin!(reply);
        for limit in [self.0.response_timeout, UNREAD] {
            if let Ok(result) = tokio::time::timeout(limit, &mut reply).await {
                return result;
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }

    fn finish<T>(&self, lent: Lent, result: RedisResult<T>) -> Result<T, Error> {
        let lost = result.as_ref().err().filter(|error| is_lost(error));
        match lost {
            None => self.0.presence.answered(lent.asked),
            Some(error) => {
                self.0.presence.note_loss(lent.opened, error);
                let mut current = self.current();
                if current.generation == lent.generation {
                    current.connection = None;
                }
            }
        }
        result.map_err(|source| Error::Command {
            address: match lent.master {
                Some(master) => format!("{master} ({})", self.0.address),
                None => self.0.address.to_string(),
            },
            source,
        })
    }

    /// Sends a call, once; behind sentinels again if the server refuses it, for that one may not be the master any
    /// more, and has done nothing.
    async fn call<T: FromRedisValue>(&self, call: Call<'_>) -> Result<T, Error> {
        let begun = Instant::now();
        let mut was_refused = false;
        loop {
            let result = self.call_once(&call).await;
            let is_sent_again = match (&result, &self.0.target) {
                (Ok(_), _) | (_, Target::Fixed(_)) => false,
                (Err(Error::Command { source, .. }), _) => call.is_one() && is_refused(source),
                (Err(error), _) => was_refused && error.is_lost_connection(),
            };
            if !is_sent_again || begun.elapsed() > SENT_AGAIN {
                return result;
            }
            was_refused = true;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn call_once<T: FromRedisValue>(&self, call: &Call<'_>) -> Result<T, Error> {
        let mut lent = self.connection().await?;
        let answer = self.answer(call.send(&mut lent.connection));
        if lent.master.is_none() {
            let result = answer.await;
            return self.finish(lent, result);
        }
        let result = tokio::select! {
            biased;
            result = answer => result,
            () = self.unanswered(lent.term) => {
                let said = "another server has become the master before it answered";
                Err(std::io::Error::new(std::io::ErrorKind::TimedOut, said).into())
            }
        };
        self.finish(lent, result)
    }

    /// Returns when an answer need not be waited for any more: another server is the master, and this one may hang, or
    /// wait for a push that comes elsewhere.
    async fn unanswered(&self, term: u64) {
        self.0.presence.end_of(term).await;
        tokio::time::sleep(LAST_ANSWERS).await;
    }

    /// Sends one command, once, or again to another master if a server refused it.
    ///
    /// # Errors
    ///
    /// `Error::Connect` or `Error::NoMaster` if nothing was sent, `Error::Command` otherwise; the
    /// command may then have been carried out.
    pub(super) async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        self.call(Call::Command(command)).await
    }

    /// Sends one command, once, about keys of a slot that is being moved to this node.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command).
    pub(super) async fn asking(&self, command: &Cmd) -> Result<Value, Error> {
        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("ASKING").add_command(command.clone());
        let mut lent = self.connection().await?;
        let replies = lent.connection.send_packed_commands(&commands, 0, 2);
        let reply = self
            .answer(replies)
            .await
            .and_then(|mut replies| match replies.pop() {
                Some(reply) => reply.extract_error(),
                None => Ok(Value::Nil),
            });
        self.finish(lent, reply)
    }

    /// Makes the text of a script known to the server.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command).
    pub(super) async fn load(&self, script: &Script) -> Result<(), Error> {
        let mut lent = self.connection().await?;
        let loaded = self.answer(script.load_async(&mut lent.connection)).await;
        self.finish(lent, loaded.map(drop))
    }

    /// Sends several commands at once, each on its own: others may be served in between.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command); the first error of any of them. What was refused is not sent again, because
    /// others of them may have been carried out.
    pub(super) async fn pipeline<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, Error> {
        self.call(Call::Pipeline(commands)).await
    }

    /// Runs a script by its digest, or by its text if the server does not know it.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command).
    pub(super) async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[Arg<'_>],
    ) -> Result<T, Error> {
        let mut invocation = script.prepare_invoke();
        for key in keys {
            invocation.key(key);
        }
        for arg in args {
            match arg {
                Arg::Int(value) => invocation.arg(*value),
                Arg::Bytes(value) => invocation.arg(*value),
                Arg::Owned(value) => invocation.arg(value),
            };
        }
        self.call(Call::Script(&invocation)).await
    }
}

/// What is sent to a server.
enum Call<'a> {
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
    Script(&'a ScriptInvocation<'a>),
}

impl Call<'_> {
    /// Whether all of it is carried out, or nothing.
    fn is_one(&self) -> bool {
        !matches!(self, Self::Pipeline(_))
    }

    async fn send<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<T> {
        match self {
            Self::Command(command) => command.query_async(connection).await,
            Self::Pipeline(commands) => commands.query_async(connection).await,
            Self::Script(script) => script.invoke_async(connection).await,
        }
    }
}

/// An argument of a script.
#[derive(Debug, Clone)]
pub enum Arg<'a> {
    /// A number.
    Int(i64),
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// Bytes that were made for the call.
    Owned(Vec<u8>),
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers every command of a connection alike.
    async fn answer_all(mut connection: TcpStream) {
        let mut bytes = [0; 1024];
        while let Ok(read @ 1..) = connection.read(&mut bytes).await {
            // Each command begins with the number of its words, and no word of these has an asterisk.
            let commands = String::from_utf8_lossy(&bytes[..read]).matches('*').count();
            let answers = "+PONG\r\n".repeat(commands);
            connection.write_all(answers.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn callers_on_a_blocked_thread_do_not_keep_others_from_a_new_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // One connection is opened, for all of them.
        tokio::spawn(async move { answer_all(listener.accept().await.unwrap().0).await });
        let node = Node::new(&RedisOptions {
            address: RedisAddress::Tcp("127.0.0.1".into(), port),
            ..RedisOptions::default()
        });
        let node = node.unwrap();
        node.open_on(&Handle::current());
        // Both need the connection, and are not polled again: a handler blocks their thread.
        let mut first = std::pin::pin!(node.ping());
        let mut second = std::pin::pin!(node.ping());
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        let third = tokio::time::timeout(Duration::from_secs(20), node.ping());
        third.await.unwrap().unwrap();
        // The handler has returned.
        first.await.unwrap();
        second.await.unwrap();
    }

    #[test]
    fn urls_say_where_and_as_whom() {
        let tcp = |host: &str, port| RedisAddress::Tcp(host.into(), port);
        let tls = |host: &str, port| RedisAddress::Tls(host.into(), port);
        #[rustfmt::skip]
        let rows = [
            ("redis://h", tcp("h", 6379), None, None, 9),
            ("redis://user:p%40ss@h:6380/3", tcp("h", 6380), Some("user"), Some("p@ss"), 3),
            ("rediss://:secret@h/", tls("h", 6379), None, Some("secret"), 9),
            ("tls://[::1]:7000/0?x=1", tls("::1", 7000), None, None, 0),
            ("unix:///run/redis.sock", RedisAddress::Unix("/run/redis.sock".into()), None, None, 9),
        ];
        for (url, address, username, password, database) in rows {
            let mut options = RedisOptions {
                database: 9,
                ..RedisOptions::default()
            };
            options.apply_url(url).unwrap();
            assert_eq!(options.address, address, "{url}");
            assert_eq!(options.username.as_deref(), username, "{url}");
            assert_eq!(options.password.as_deref(), password, "{url}");
            assert_eq!(options.database, database, "{url}");
        }
        let error = RedisOptions::default()
            .apply_url("redis://:secret@h:port")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`redis://...@h:port` is not a Redis URL: the port is not a number"
        );
        for url in [
            "u:secret@h:1",
            "redis://h:x?password=secret",
            "redis://:secret#x@h:1",
            "redis://u:secret?x@h:1",
            "redis://h:x?password=a@secret",
        ] {
            let error = RedisOptions::default().apply_url(url).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
