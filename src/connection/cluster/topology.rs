//! What is known of a cluster: its masters and their slots, shared by all connections of this process to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::slots::SlotMap;
use crate::connection::Error;
use crate::connection::address::Address;
use crate::connection::redis::{Node, RedisAddress, RedisOptions};

/// Connections to nodes, by their addresses.
pub(super) type Nodes = Mutex<HashMap<Address, Node>>;

/// What is known of a cluster.
pub(super) struct Topology {
    /// Nodes to ask as long as none is known.
    seeds: Vec<Address>,
    has_tls: bool,
    /// How every node is reached, but for its address.
    options: RedisOptions,
    map: RwLock<SlotMap>,
    /// Held while the nodes are asked.
    asking: tokio::sync::Mutex<()>,
    answers: Mutex<NodeAnswers>,
    /// How often they have been asked, so that several callers ask once.
    rounds: AtomicUsize,
    /// Where to begin with asking: a node that is cut off from the others would answer with old news forever.
    turn: AtomicUsize,
    /// All connections to nodes, of which those to former nodes are closed.
    connections: Mutex<Vec<Weak<Nodes>>>,
}

/// How the nodes have answered the last time.
#[derive(Default)]
struct NodeAnswers {
    has_answer: bool,
    /// Nodes that did not answer, and when they were asked; for a while they are asked last.
    silent: HashMap<Address, Instant>,
}

/// How long one node may take to tell of the cluster.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a caller waits for another one that asks the nodes. Not forever: a handler may block the thread of that
/// one, or of one that is the next to ask.
const TURN: Duration = Duration::from_secs(6);
/// How long a node that did not answer is asked last. Not forever: the one that is left may be cut off from the others.
const ASKED_LAST: Duration = Duration::from_secs(10);

impl Topology {
    pub(super) fn new(seeds: Vec<Address>, has_tls: bool, options: RedisOptions) -> Self {
        Self {
            seeds,
            has_tls,
            options,
            map: RwLock::default(),
            asking: tokio::sync::Mutex::default(),
            answers: Mutex::default(),
            rounds: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            connections: Mutex::default(),
        }
    }

    /// The connection to a node; nothing is sent yet.
    pub(super) fn node(&self, address: &Address) -> Result<Node, Error> {
        let (host, port) = (address.host.clone(), address.port);
        Node::new(&RedisOptions {
            address: if self.has_tls {
                RedisAddress::Tls(host, port)
            } else {
                RedisAddress::Tcp(host, port)
            },
            ..self.options.clone()
        })
    }

    /// Keeps these connections to the nodes that there are.
    pub(super) fn prune(&self, nodes: &Arc<Nodes>) {
        let mut all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|nodes| nodes.strong_count() > 0);
        all.push(Arc::downgrade(nodes));
    }

    /// The master of a slot; any master for no slot, or if nothing is known of the slot. `None` if none is known.
    pub(super) fn master(&self, slot: Option<u16>) -> Option<Address> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let of_slot = slot.and_then(|slot| map.master(slot)).cloned();
        of_slot.or_else(|| map.masters().first().map(|first| (*first).clone()))
    }

    /// All masters.
    pub(super) fn masters(&self) -> Vec<Address> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.masters().into_iter().cloned().collect()
    }

    /// Notes that another node serves a slot.
    pub(super) fn note_move(&self, slot: u16, to: Address) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.note_move(slot, to);
    }

    /// Asks the nodes for their slots, one after the other until one answers.
    ///
    /// # Errors
    ///
    /// None has answered; what was known stays.
    ///
    /// # Cancel safety
    ///
    /// What is known stays as it is.
    pub(super) async fn refresh(&self) -> Result<(), Error> {
        let before = self.rounds.load(Ordering::Relaxed);
        let _asking = tokio::time::timeout(TURN, self.asking.lock()).await;
        if self.rounds.load(Ordering::Relaxed) != before {
            // Another caller has just asked.
            let answer = self.answers().has_answer.then_some(());
            return answer.ok_or_else(|| self.no_nodes());
        }
        let asked = self.ask_all().await;
        self.answers().has_answer = asked.is_ok();
        self.rounds.fetch_add(1, Ordering::Relaxed);
        asked
    }

    fn answers(&self) -> MutexGuard<'_, NodeAnswers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All nodes that are known, in the order in which they are to be asked.
    fn nodes_in_turn(&self) -> Vec<Address> {
        let mut nodes = self.masters();
        nodes.extend(self.seeds.iter().cloned());
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers();
        (answers.silent).retain(|_, asked| asked.elapsed() < ASKED_LAST);
        in_turn(nodes, turn, &answers.silent)
    }

    async fn ask_all(&self) -> Result<(), Error> {
        let mut problem = None;
        for node in self.nodes_in_turn() {
            // Before: a caller that is dropped meanwhile has had no answer either.
            (self.answers().silent).insert(node.clone(), Instant::now());
            match self.ask(&node).await {
                Ok(map) => {
                    self.answers().silent.remove(&node);
                    self.put(map);
                    return Ok(());
                }
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| self.no_nodes()))
    }

    fn no_nodes(&self) -> Error {
        Error::NoNodes(self.options.address.to_string())
    }

    /// Asks one node, on a connection of its own: a command that blocks may be under way on another.
    async fn ask(&self, address: &Address) -> Result<SlotMap, Error> {
        let node = self.node(address)?.another(PATIENCE);
        let command = redis::cmd("CLUSTER").arg("SLOTS").take();
        let slots = node.command::<Value>(&command);
        let odd = || Error::OddReply {
            address: address.to_string(),
            command: "CLUSTER SLOTS",
        };
        let Ok(reply) = tokio::time::timeout(PATIENCE, slots).await else {
            return Err(Error::Connect {
                address: address.to_string(),
                source: std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
            });
        };
        let map = SlotMap::read(reply?, address).ok_or_else(odd)?;
        // A node that has lost its memory knows no other: its answer must not replace what is known.
        if map.masters().is_empty() {
            return Err(self.no_nodes());
        }
        Ok(map)
    }

    fn put(&self, map: SlotMap) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = map;
        let masters = self.masters();
        let all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for nodes in all.iter().filter_map(Weak::upgrade) {
            let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.retain(|address, _| masters.contains(address));
        }
    }

    /// Put before every key.
    pub(super) fn prefix(&self) -> &str {
        &self.options.prefix
    }
}

/// The nodes in the order in which they are asked: each of them comes first in some turn, unless it was silent.
fn in_turn(
    mut nodes: Vec<Address>,
    turn: usize,
    silent: &HashMap<Address, Instant>,
) -> Vec<Address> {
    let turn = turn % nodes.len().max(1);
    nodes.rotate_left(turn);
    nodes.sort_by_key(|node| silent.contains_key(node));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In paused time, so whatever is waited for takes too long.
    #[tokio::test(start_paused = true)]
    async fn a_caller_on_a_blocked_thread_does_not_keep_others_from_asking() {
        // A node that does not answer.
        let node = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let seed = Address::new("127.0.0.1", node.local_addr().unwrap().port());
        let topology = Topology::new(vec![seed], false, RedisOptions::default());
        // It is not polled again: a handler blocks its thread.
        let mut blocked = std::pin::pin!(topology.refresh());
        assert!(futures_util::poll!(blocked.as_mut()).is_pending());
        let other = tokio::time::timeout(Duration::from_secs(3600), topology.refresh());
        assert!(other.await.unwrap().is_err());
    }

    #[test]
    fn each_node_has_its_turn_and_silent_ones_come_last() {
        let node = |port| Address {
            host: "h".into(),
            port,
        };
        let ports = |turn, silent: &[u16]| -> Vec<u16> {
            let silent = silent.iter().map(|port| (node(*port), Instant::now()));
            let nodes = in_turn([1, 2, 3].map(node).into(), turn, &silent.collect());
            nodes.into_iter().map(|node| node.port).collect()
        };
        assert_eq!(ports(0, &[]), [1, 2, 3]);
        assert_eq!(ports(4, &[]), [2, 3, 1]);
        assert_eq!(ports(4, &[2]), [3, 1, 2]);
        assert_eq!(ports(1, &[1, 2, 3]), [2, 3, 1]);
        assert!(in_turn(Vec::new(), 7, &HashMap::new()).is_empty());
    }
}
