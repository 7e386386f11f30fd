//! Knows whether a server of queues is away, and logs that once for all users of the server.
//!
//! Pops, settlements, renewals, locks and signals all meet the same loss within milliseconds, and each of them
//! tries again. An operator should read two lines about it: the server is away, the server is back. Every
//! connection of this process to one server shares one [`Presence`], and code that only retries does not log
//! errors for which [`is_away`] holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Error;

/// What is known about one server.
#[derive(Debug)]
pub(crate) struct Presence {
    /// What kind of server it is, as its makers write it.
    kind: &'static str,
    address: String,
    /// Mirrors `state`, for a cheap check at every answer.
    is_away: AtomicBool,
    /// Grows when sentinels name another server: connections from before lead to the wrong one.
    term: watch::Sender<u64>,
    state: Mutex<State>,
    /// Slots of a cluster that are not served, and when that was noted.
    slots: Mutex<HashMap<Option<u16>, Instant>>,
    /// The task that asks sentinels for another master; it ends with the last connection to this server.
    lookout: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    away_since: Option<Instant>,
    back_since: Option<Instant>,
    /// The server that was reached last, where sentinels say which one it is.
    reached: Option<Arc<str>>,
}

/// Servers of this process, by address.
static SERVERS: LazyLock<Mutex<HashMap<String, Weak<Presence>>>> = LazyLock::new(Mutex::default);
/// How many of them are away.
static AWAY: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// How many servers of queues of this process are known to be away.
pub(crate) fn servers_away() -> watch::Receiver<usize> {
    AWAY.subscribe()
}

/// How long what was noted of a slot of a cluster counts, if no command for it is sent.
pub(super) const FORGOTTEN: Duration = Duration::from_secs(30);

/// How long after another process of this machine this one may notice that a server is away.
const NOTICE: Duration = Duration::from_millis(500);

/// Checks whether a server is away, which may explain an error of another process.
///
/// A PHP process may lose its connection, and report that, before the connections of this process are read. So an
/// answer of no takes half a second.
pub(crate) async fn check_for_outage() -> bool {
    let mut away = servers_away();
    let is_away = tokio::time::timeout(NOTICE, away.wait_for(|away| *away > 0)).await;
    is_away.is_ok()
}

impl Drop for Presence {
    fn drop(&mut self) {
        if *self.is_away.get_mut() {
            AWAY.send_modify(|away| *away -= 1);
        }
        let lookout = self.lookout.get_mut();
        if let Some(lookout) = lookout.unwrap_or_else(PoisonError::into_inner).take() {
            lookout.abort();
        }
    }
}

impl Presence {
    /// The shared presence of this server.
    pub(crate) fn of(kind: &'static str, address: &str) -> Arc<Self> {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers.get(address).and_then(Weak::upgrade) {
            return known;
        }
        servers.retain(|_, server| server.strong_count() > 0);
        let server = Arc::new(Self {
            kind,
            address: address.to_owned(),
            is_away: AtomicBool::new(false),
            term: watch::Sender::default(),
            state: Mutex::default(),
            slots: Mutex::default(),
            lookout: Mutex::default(),
        });
        servers.insert(address.to_owned(), Arc::downgrade(&server));
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a connection opened at this moment was lost, or could not be opened; true if that is news.
    ///
    /// A connection from before the server came back broke when the server went away, and the loss is only noticed
    /// now.
    fn note_away(&self, opened: Option<Instant>) -> bool {
        let mut state = self.state();
        let is_old = opened
            .zip(state.back_since)
            .is_some_and(|(opened, back)| opened <= back);
        if state.away_since.is_some() || is_old {
            return false;
        }
        state.away_since = Some(Instant::now());
        self.is_away.store(true, Ordering::Relaxed);
        AWAY.send_modify(|away| *away += 1);
        true
    }

    /// Notes an answer to a command sent at `asked`; returns since when the server had been away, if the answer is
    /// news.
    fn note_back(&self, asked: Instant) -> Option<Instant> {
        if !self.is_away() {
            return None;
        }
        let mut state = self.state();
        // An answer to a command from before the loss says nothing about the server now.
        let since = state.away_since.filter(|since| *since <= asked)?;
        state.away_since = None;
        state.back_since = Some(Instant::now());
        self.is_away.store(false, Ordering::Relaxed);
        AWAY.send_modify(|away| *away -= 1);
        Some(since)
    }

    /// Whether the server is away, as far as is known.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Notes a loss, and logs it if it is news.
    pub(crate) fn note_loss(&self, opened: Option<Instant>, error: &dyn fmt::Display) {
        let (kind, address) = (self.kind, &*self.address);
        if self.note_away(opened) {
            tracing::error!(address, %error, "{kind} is away: what needs it waits, and is tried again");
        } else {
            tracing::debug!(address, %error, "{kind} is away");
        }
    }

    /// Notes that a slot of a cluster is not served.
    pub(crate) fn note_loss_of(&self, slot: Option<u16>, error: &dyn fmt::Display) {
        self.slots().insert(slot, Instant::now());
        self.note_loss(None, error);
    }

    /// Notes an answer for a slot of a cluster to a command sent at `asked`. The cluster is back when all of its slots
    /// are: those that were not served and for which no more commands are sent are forgotten after a while.
    pub(crate) fn answered_for(&self, slot: Option<u16>, asked: Instant) {
        let mut slots = self.slots();
        slots.retain(|other, noted| *other != slot && noted.elapsed() < FORGOTTEN);
        if slots.is_empty() {
            self.answered(asked);
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Option<u16>, Instant>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which connections lead to the right server: those that were opened in this term.
    pub(crate) fn term(&self) -> u64 {
        *self.term.borrow()
    }

    /// Returns when another term than this one has begun.
    pub(crate) async fn end_of(&self, term: u64) {
        // The sender lives as long as this.
        let _ = self.term.subscribe().wait_for(|now| *now != term).await;
    }

    /// Notes which server was reached, logs it if it is another one than before, and returns the term.
    pub(crate) fn reached(&self, server: &Arc<str>) -> u64 {
        let mut state = self.state();
        let before = state.reached.replace(Arc::clone(server));
        if let Some(before) = before.filter(|before| before != server) {
            self.term.send_modify(|term| *term += 1);
            tracing::warn!(
                address = self.address,
                master = &**server,
                before = &*before,
                "the sentinels name another master"
            );
        }
        self.term()
    }

    /// The server that was reached last, where sentinels name it.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.state().reached.clone()
    }

    /// Starts the one task that looks whether sentinels name another server. It ends once the last connection to this
    /// one is dropped.
    pub(crate) fn keep_lookout(&self, start: impl FnOnce() -> JoinHandle<()>) {
        let mut lookout = self.lookout.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends with the runtime that it was started in.
        if lookout.as_ref().is_none_or(JoinHandle::is_finished) {
            *lookout = Some(start());
        }
    }

    /// Notes an answer, and logs it if it is news.
    pub(crate) fn answered(&self, asked: Instant) {
        if let Some(since) = self.note_back(asked) {
            tracing::info!(
                address = self.address,
                away = format_args!("{:.1} s", since.elapsed().as_secs_f64()),
                "{} is back",
                self.kind
            );
        }
    }
}

/// Whether an error or one of its causes means that a server of queues is away, which this module logs once.
pub(crate) fn is_away(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(
            error @ (Error::Connect { .. }
            | Error::NoNodes(_)
            | Error::Unserved { .. }
            | Error::NoMaster { .. }
            | Error::Command { .. }
            | Error::Beanstalkd { .. }
            | Error::Sqs { .. }
            | Error::Away(_)),
        ) = error.downcast_ref()
        {
            return error.is_lost_connection();
        }
        cause = error.source();
    }
    false
}

/// A server that is away until the value is dropped.
#[cfg(test)]
pub(crate) fn server_away(address: &str) -> impl Drop {
    let server = Presence::of("Redis", address);
    assert!(server.note_away(None));
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_that_is_noticed_a_moment_after_an_error_explains_it() {
        // Servers of other tests may be away at the same time, so only this answer is certain.
        let (is_away, server) = tokio::join!(check_for_outage(), async {
            tokio::time::sleep(NOTICE / 2).await;
            server_away("noticed-late")
        });
        assert!(is_away);
        drop(server);
    }

    #[test]
    fn a_cluster_is_back_when_all_of_its_slots_are() {
        let server = Presence::of("Redis", "slots");
        let asked = Instant::now();
        server.note_loss_of(Some(1), &"gone");
        server.note_loss_of(Some(2), &"gone");
        // Other slots say nothing about these.
        server.answered_for(Some(3), Instant::now());
        server.answered_for(Some(1), Instant::now());
        assert!(server.is_away());
        // Sent before the loss, answered after it.
        server.answered_for(Some(2), asked);
        assert!(server.is_away());
        server.answered_for(Some(3), Instant::now());
        assert!(!server.is_away());
    }

    #[test]
    fn a_loss_and_a_return_are_news_once() {
        let server = Presence::of("Redis", "a-loss-and-a-return");
        let opened = Instant::now();
        assert_eq!(server.note_back(opened), None);
        assert!(server.note_away(Some(opened)));
        assert!(
            !server.note_away(None)
                && !Presence::of("Redis", "a-loss-and-a-return").note_away(None)
        );
        // Sent before the loss, answered after it.
        assert_eq!(server.note_back(opened), None);
        assert!(server.note_back(Instant::now()).is_some());
        assert_eq!(server.note_back(Instant::now()), None);
        // Another connection that broke at the same moment, and is used again only now.
        assert!(!server.note_away(Some(opened)));
        assert!(server.note_away(Some(Instant::now() + Duration::from_secs(1))));
    }
}
