//! Sends commands to the nodes of a Redis Cluster that serve their keys.
//!
//! A command that a node refuses was not carried out: it goes to the node that serves the slot now, or waits a moment
//! for one. A command whose reply was lost is never sent again: only the caller knows whether it may be. Replicas are
//! never asked.
//!
//! | reply | what it means | what follows |
//! | --- | --- | --- |
//! | `MOVED` | another node serves the slot | noted, and sent there |
//! | `ASK` | the slot is being moved, and its keys are there | sent there once, behind `ASKING` |
//! | `TRYAGAIN` | some of the keys are moved already | sent again in a moment |
//! | `CLUSTERDOWN`, `MASTERDOWN`, `LOADING`, `READONLY` | the slot has no master now | slots are looked up; sent again |
//! | no connection | nothing was sent | as above |
//! | the connection is lost after that | unknown | an error; slots are looked up before the next command |

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, join_all};
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, Script, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Error;
use super::address::Address;
use super::presence::{FORGOTTEN, Presence};
use super::redis::{Arg, Node, RedisOptions};
use crate::shown::with_causes;

mod slots;
mod topology;

pub(crate) use slots::{slot, tag};
use topology::{Nodes, Topology};

/// Connections to the nodes of a cluster, one to each.
pub(super) struct Cluster {
    topology: Arc<Topology>,
    /// The seeds, by which the cluster is known.
    name: String,
    response_timeout: Duration,
    nodes: Arc<Nodes>,
    /// Where connections are opened, if not where they are needed.
    runtime: OnceLock<Handle>,
    /// Whether a connection was lost since the nodes were asked for their slots.
    is_stale: AtomicBool,
    /// Slots for which a command has waited in vain.
    unserved: Mutex<HashMap<Option<u16>, Unserved>>,
    /// Masters that were asked for a sign of life, and since when.
    knocks: Mutex<HashMap<Address, (Instant, Knock)>>,
    presence: Arc<Presence>,
}

/// What is known of a slot for which a command has waited in vain.
#[derive(Clone, Copy)]
struct Unserved {
    /// Until when further commands for it fail without waiting.
    until: Instant,
    /// Whether its master did not answer in time, or could not be reached in time.
    is_silent: bool,
}

/// Ends when a master has given a sign of life, or it is known that it cannot.
type Knock = Shared<BoxFuture<'static, ()>>;

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How long a command waits for a node that serves its slot. A failover may take longer: then the caller tries again,
/// as after the loss of a single server.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long further commands for a slot fail without waiting, once a command for it has waited in vain.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// How long a command waits for a sign of life of a master that was silent.
const KNOCK: Duration = Duration::from_millis(500);
/// The wait before a command is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a command is sent on at once.
const MOST_HOPS: u32 = 5;

/// What to do about an error.
enum Redirect {
    /// Another node serves the slot.
    Moved(Address),
    /// The slot is being moved to this node.
    Ask(Address),
    /// The slot has no master for the moment; whether the nodes are to be asked for their slots.
    Wait { asks: bool },
    /// The error is the caller's.
    Fail,
}

impl Redirect {
    fn after(error: &Error, by: &Address) -> Self {
        let source = match error {
            Error::Connect { .. } => return Self::Wait { asks: true },
            Error::Command { source, .. } => source,
            _ => return Self::Fail,
        };
        let ErrorKind::Server(kind) = source.kind() else {
            return Self::Fail;
        };
        let to = || by.redirected(source.redirect_node()?.0);
        match kind {
            ServerErrorKind::Moved => to().map_or(Self::Wait { asks: true }, Self::Moved),
            ServerErrorKind::Ask => to().map_or(Self::Wait { asks: true }, Self::Ask),
            ServerErrorKind::TryAgain => Self::Wait { asks: false },
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly => Self::Wait { asks: true },
            _ => Self::Fail,
        }
    }
}

impl Cluster {
    /// A cluster behind these nodes; nothing is sent yet.
    pub(super) fn new(
        seeds: &[Address],
        has_tls: bool,
        options: &RedisOptions,
    ) -> Result<Self, Error> {
        let name = options.address.to_string();
        let topology = Topology::new(seeds.to_vec(), has_tls, options.clone());
        // What no connection can be made of is said now.
        for seed in seeds {
            topology.node(seed)?;
        }
        Ok(Self::over(Arc::new(topology), name, Node::RESPONSE_TIMEOUT))
    }

    fn over(topology: Arc<Topology>, name: String, response_timeout: Duration) -> Self {
        let nodes = Arc::<Nodes>::default();
        topology.prune(&nodes);
        Self {
            topology,
            presence: Presence::of("Redis", &name),
            name,
            response_timeout,
            nodes,
            runtime: OnceLock::new(),
            is_stale: AtomicBool::new(false),
            unserved: Mutex::default(),
            knocks: Mutex::default(),
        }
    }

    /// Other connections to the same nodes.
    pub(super) fn another(&self, response_timeout: Duration) -> Self {
        Self::over(
            Arc::clone(&self.topology),
            self.name.clone(),
            response_timeout,
        )
    }

    /// Opens connections on this runtime from now on; only the first one that is given counts.
    pub(super) fn open_on(&self, runtime: &Handle) {
        let _ = self.runtime.set(runtime.clone());
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.values().for_each(|node| node.open_on(runtime));
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn prefix(&self) -> &str {
        self.topology.prefix()
    }

    /// All masters.
    ///
    /// # Errors
    ///
    /// No node tells which there are.
    pub(super) async fn masters(&self) -> Result<Vec<Node>, Error> {
        // A scan must not miss a master that is new.
        self.topology.refresh().await?;
        let masters = self.topology.masters();
        masters.iter().map(|address| self.node(address)).collect()
    }

    fn node(&self, address: &Address) -> Result<Node, Error> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Ok(node.clone());
        }
        let node = self.topology.node(address)?.another(self.response_timeout);
        if let Some(runtime) = self.runtime.get() {
            node.open_on(runtime);
        }
        nodes.insert(address.clone(), node.clone());
        Ok(node)
    }

    /// The master of a slot, as far as it is known.
    async fn master(&self, slot: Option<u16>) -> Result<Address, Error> {
        let is_stale = self.is_stale.load(Ordering::Relaxed);
        let known = self.topology.master(slot);
        if let Some(known) = known.filter(|_| !is_stale) {
            return Ok(known);
        }
        let refreshed = self.topology.refresh().await;
        if refreshed.is_ok() {
            // Only now: until then no other command is to go to the old master either.
            self.is_stale.store(false, Ordering::Relaxed);
        }
        match self.topology.master(slot) {
            Some(master) => Ok(master),
            None => Err((refreshed.err()).unwrap_or_else(|| Error::NoNodes(self.name.clone()))),
        }
    }

    /// Has the nodes asked for their slots before the next command, if this is news; what another command has noted
    /// stays.
    fn note_stale(&self, is_stale: bool) {
        self.is_stale.fetch_or(is_stale, Ordering::Relaxed);
    }

    fn doubts(&self) -> MutexGuard<'_, HashMap<Option<u16>, Unserved>> {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when a command for this slot waits. If the slot's master was silent the last time, it must give a sign of
    /// life first: one that hangs would cost each command the time of a connection.
    async fn deadline(&self, slot: Option<u16>) -> Result<Instant, Error> {
        let now = Instant::now();
        let doubt = self.doubts().get(&slot).copied();
        // What is long past says nothing about the master now.
        let doubt = doubt.filter(|doubt| now < doubt.until + FORGOTTEN);
        let Some(Unserved { until, is_silent }) = doubt else {
            return Ok(now + PATIENCE);
        };
        let is_impatient = now < until;
        if is_silent && is_impatient {
            return Err(Error::Unserved {
                cluster: self.name.clone(),
                source: Error::NoNodes(self.name.clone()).into(),
            });
        }
        // If no master is known, the command waits for one.
        if is_silent
            && let Ok(master) = self.master(slot).await
            && !self.knock(&master).await?
        {
            self.note_stale(true);
            let error = Error::Connect {
                address: master.to_string(),
                source: std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
            };
            return Err(self.unserved(slot, error));
        }
        Ok(if is_impatient { now } else { now + PATIENCE })
    }

    /// Asks a master for a sign of life; false if it takes long. Then the question stays open, and the next call looks
    /// at its answer: a slow connection is opened once, however often a command cannot wait for it.
    async fn knock(&self, master: &Address) -> Result<bool, Error> {
        let node = self.node(master)?;
        let knocks = || self.knocks.lock().unwrap_or_else(PoisonError::into_inner);
        let knock = {
            let (mut knocks, now) = (knocks(), Instant::now());
            // An answer from then, which no call has looked at, says nothing about the master now.
            knocks.retain(|_, (since, _)| now < *since + FORGOTTEN);
            let asked = knocks.entry(master.clone()).or_insert_with(|| {
                let ping = async move { node.ping().await };
                // Callers on other threads wait for it, too.
                let ping = match self.runtime.get() {
                    Some(runtime) => runtime.spawn(ping),
                    None => tokio::spawn(ping),
                };
                (now, ping.map(drop).boxed().shared())
            });
            asked.1.clone()
        };
        let has_ended = tokio::time::timeout(KNOCK, knock).await.is_ok();
        if has_ended {
            knocks().remove(master);
        }
        Ok(has_ended)
    }

    fn note_served(&self, slot: Option<u16>, asked: std::time::Instant) {
        let mut doubts = self.doubts();
        if !doubts.is_empty() {
            doubts.remove(&slot);
        }
        drop(doubts);
        if self.presence.is_away() {
            self.presence.answered_for(slot, asked);
        }
    }

    /// Notes that a command has waited in vain for a master of its slot; returns the error of the command.
    fn unserved(&self, slot: Option<u16>, error: Error) -> Error {
        let is_silent = matches!(&error, Error::Connect { source, .. } if source.is_timeout());
        let until = Instant::now() + IMPATIENCE;
        self.doubts().insert(slot, Unserved { until, is_silent });
        let error = Error::Unserved {
            cluster: self.name.clone(),
            source: Box::new(error),
        };
        self.presence.note_loss_of(slot, &with_causes(&error));
        error
    }

    /// Sends one command to the node that serves its key, once.
    pub(super) async fn command(&self, command: &Cmd) -> Result<Value, Error> {
        self.send(slot_of(command), command, None).await
    }

    /// Runs a script on the node that serves its keys, once.
    pub(super) async fn script(
        &self,
        script: &Script,
        keys: &[String],
        args: &[Arg<'_>],
    ) -> Result<Value, Error> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len()).arg(keys);
        for arg in args {
            match arg {
                Arg::Int(value) => command.arg(*value),
                Arg::Bytes(value) => command.arg(*value),
                Arg::Owned(value) => command.arg(value),
            };
        }
        let slot = keys.first().map(|key| slot(key.as_bytes()));
        self.send(slot, &command, Some(script)).await
    }

    /// Sends a command until a node takes it or waiting is in vain.
    async fn send(
        &self,
        slot: Option<u16>,
        command: &Cmd,
        script: Option<&Script>,
    ) -> Result<Value, Error> {
        let asked = std::time::Instant::now();
        let deadline = self.deadline(slot).await?;
        let (mut hops, mut ask) = (0, None);
        loop {
            let (error, next) = match self.try_once(slot, command, script, ask.take()).await {
                Ok(reply) => {
                    self.note_served(slot, asked);
                    return Ok(reply);
                }
                Err(failed) => failed,
            };
            hops += 1;
            let may_hop = hops <= MOST_HOPS;
            match next {
                Redirect::Moved(to) => {
                    if let Some(slot) = slot {
                        self.topology.note_move(slot, to);
                    }
                    // One slot that was moved is seldom alone.
                    self.note_stale(hops > 1);
                    if may_hop {
                        continue;
                    }
                }
                Redirect::Ask(to) if may_hop => {
                    ask = Some(to);
                    continue;
                }
                Redirect::Ask(_) => {}
                Redirect::Wait { asks } => self.note_stale(asks),
                Redirect::Fail => {
                    self.note_stale(error.is_of_unknown_outcome());
                    if matches!(&error, Error::Command { source, .. } if source.is_timeout()) {
                        let silent = Unserved {
                            until: Instant::now(),
                            is_silent: true,
                        };
                        self.doubts().insert(slot, silent);
                    }
                    return Err(error);
                }
            }
            if Instant::now() + PAUSE > deadline {
                return Err(self.unserved(slot, error));
            }
            tokio::time::sleep(PAUSE).await;
            hops = 0;
        }
    }

    /// Sends a command once: to the node to which the slot is being moved, or to the master of the slot.
    async fn try_once(
        &self,
        slot: Option<u16>,
        command: &Cmd,
        script: Option<&Script>,
        ask: Option<Address>,
    ) -> Result<Value, (Error, Redirect)> {
        let is_asking = ask.is_some();
        let found = async {
            let address = match ask {
                Some(address) => address,
                None => self.master(slot).await?,
            };
            Ok((self.node(&address)?, address))
        };
        let (node, address) = found.await.map_err(|error: Error| {
            // Nothing was sent: the node may be gone.
            let next = if error.is_lost_connection() {
                Redirect::Wait { asks: true }
            } else {
                Redirect::Fail
            };
            (error, next)
        })?;
        let send = async || {
            if is_asking {
                node.asking(command).await
            } else {
                node.command(command).await
            }
        };
        let mut reply = send().await;
        if let Some(script) = script
            && reply.as_ref().is_err_and(lacks_script)
        {
            // Each node has scripts of its own.
            reply = match node.load(script).await {
                Ok(()) => send().await,
                // The command itself was refused.
                Err(error) if error.is_lost_connection() => {
                    return Err((error, Redirect::Wait { asks: true }));
                }
                Err(error) => Err(error),
            };
        }
        reply.map_err(|error| {
            let next = Redirect::after(&error, &address);
            (error, next)
        })
    }

    /// Sends several commands, whose keys all lie in one slot, to the node that serves it. Each is carried out on its
    /// own.
    ///
    /// # Errors
    ///
    /// The keys lie in different slots, no node is known, or the first error of any of them. [`Error::Unserved`] if the
    /// slot is being moved or has no master: they may be sent again, but some may have been carried out.
    pub(super) async fn pipeline<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, Error> {
        let mut slots: Vec<_> = commands.cmd_iter().filter_map(slot_of).collect();
        slots.sort_unstable();
        slots.dedup();
        if slots.len() > 1 {
            return Err(Error::Slots {
                cluster: self.name.clone(),
            });
        }
        let address = self.master(slots.first().copied()).await?;
        let replies = self.node(&address)?.pipeline(commands).await;
        replies.map_err(|error| {
            // The next ones may need another node.
            self.is_stale.store(true, Ordering::Relaxed);
            match Redirect::after(&error, &address) {
                // Without a connection nothing was sent.
                _ if matches!(error, Error::Connect { .. }) => error,
                Redirect::Fail => error,
                Redirect::Moved(_) | Redirect::Ask(_) | Redirect::Wait { .. } => Error::Unserved {
                    cluster: self.name.clone(),
                    source: Box::new(error),
                },
            }
        })
    }

    /// Asks a node for a sign of life.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.topology.refresh().await?;
        let masters = self.topology.masters();
        // One that answers is enough: a slot without a master does not keep the queues of the others.
        let pings = masters
            .iter()
            .map(|address| async move { self.node(address)?.ping().await });
        let mut failed = None;
        for answer in join_all(pings).await {
            match answer {
                Ok(()) => return Ok(()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::NoNodes(self.name.clone())))
    }
}

fn lacks_script(error: &Error) -> bool {
    let kind = ErrorKind::Server(ServerErrorKind::NoScript);
    matches!(error, Error::Command { source, .. } if source.kind() == kind)
}

/// The slot of a command's keys, which is that of its first one; `None` if it has none.
fn slot_of(command: &Cmd) -> Option<u16> {
    let mut words = command.args_iter().map(|arg| match arg {
        redis::Arg::Simple(word) => word,
        _ => b"",
    });
    let key = match words.next()?.to_ascii_uppercase().as_slice() {
        b"EVAL" | b"EVALSHA" => words.nth(2),
        b"XREAD" => words.skip_while(|word| *word != b"STREAMS").nth(1),
        b"INFO" | b"CONFIG" | b"TIME" | b"PING" | b"CLUSTER" | b"SCRIPT" | b"CLIENT" | b"SCAN"
        | b"DBSIZE" => None,
        _ => words.next(),
    };
    key.map(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_where_its_first_key_lies() {
        let foo = Some(slot(b"foo"));
        #[rustfmt::skip]
        let rows: [(&[&str], _); 6] = [
            (&["GET", "foo"], foo),
            (&["EVAL", "return 1", "2", "foo", "bar"], foo),
            (&["evalsha", "1234", "1", "foo", "bar"], foo),
            (&["XREAD", "COUNT", "1", "BLOCK", "1", "STREAMS", "foo", "0"], foo),
            (&["INFO", "server"], None),
            (&["PING"], None),
        ];
        for (words, expected) in rows {
            let mut command = Cmd::new();
            command.arg(words);
            assert_eq!(slot_of(&command), expected, "{words:?}");
        }
    }
}
