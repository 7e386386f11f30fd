//! Knows whether a Redis server is away, and says so once for all who use it.
//!
//! Pops, settlements, renewals, locks and signals all meet the same loss
//! within milliseconds, and each of them tries again. What an operator wants to
//! read of that is two lines: the server is away, the server is back. Every
//! connection of this process to one server shares one [`Presence`], and those
//! who only try again say nothing of errors for which [`is_away`] holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::Error;

/// What is known of one server.
#[derive(Debug)]
pub(super) struct Presence {
    address: String,
    /// The same as in `state`, for a look at every answer.
    is_away: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    away_since: Option<Instant>,
    back_since: Option<Instant>,
}

/// Servers of this process, by address.
static SERVERS: LazyLock<Mutex<HashMap<String, Weak<Presence>>>> = LazyLock::new(Mutex::default);

impl Presence {
    /// The one of this server.
    pub(super) fn of(address: &str) -> Arc<Self> {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers.get(address).and_then(Weak::upgrade) {
            return known;
        }
        servers.retain(|_, server| server.strong_count() > 0);
        let server = Arc::new(Self {
            address: address.to_owned(),
            is_away: AtomicBool::new(false),
            state: Mutex::default(),
        });
        servers.insert(address.to_owned(), Arc::downgrade(&server));
        server
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was lost that was asked for at this moment, or none was had; true if that is news.
    ///
    /// One that was opened before the server came back broke when the server went, and is only noticed now.
    fn goes(&self, opened: Option<Instant>) -> bool {
        let mut state = self.state();
        let is_old = opened
            .zip(state.back_since)
            .is_some_and(|(opened, back)| opened <= back);
        if state.away_since.is_some() || is_old {
            return false;
        }
        state.away_since = Some(Instant::now());
        self.is_away.store(true, Ordering::Relaxed);
        true
    }

    /// The server answered what it was asked at this moment; says since when it had been away, if that is news.
    fn comes(&self, asked: Instant) -> Option<Instant> {
        if !self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state();
        // An answer to what was asked before the loss says nothing of now.
        let since = state.away_since.filter(|since| *since <= asked)?;
        state.away_since = None;
        state.back_since = Some(Instant::now());
        self.is_away.store(false, Ordering::Relaxed);
        Some(since)
    }

    /// Takes note of a loss, and logs it if it is news.
    pub(super) fn is_lost(&self, opened: Option<Instant>, error: &redis::RedisError) {
        let address = &*self.address;
        if self.goes(opened) {
            tracing::error!(address, %error, "Redis is away: what needs it waits, and is tried again");
        } else {
            tracing::debug!(address, %error, "Redis is away");
        }
    }

    /// Takes note of an answer, and logs it if it is news.
    pub(super) fn answered(&self, asked: Instant) {
        if let Some(since) = self.comes(asked) {
            tracing::info!(
                address = self.address,
                away = format_args!("{:.1} s", since.elapsed().as_secs_f64()),
                "Redis is back"
            );
        }
    }
}

/// Whether an error or one of its causes is that a Redis server is away, which is logged here once for all.
pub(crate) fn is_away(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error @ (Error::Connect { .. } | Error::Command { .. })) = error.downcast_ref()
        {
            return error.is_lost_connection();
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_loss_and_a_return_are_news_once() {
        let server = Presence::of("a-loss-and-a-return");
        let opened = Instant::now();
        assert_eq!(server.comes(opened), None);
        assert!(server.goes(Some(opened)));
        assert!(!server.goes(None) && !Presence::of("a-loss-and-a-return").goes(None));
        // Asked before the loss, answered after it.
        assert_eq!(server.comes(opened), None);
        assert!(server.comes(Instant::now()).is_some());
        assert_eq!(server.comes(Instant::now()), None);
        // Another connection, which broke in the same moment and is used again only now.
        assert!(!server.goes(Some(opened)));
        assert!(server.goes(Some(Instant::now() + Duration::from_secs(1))));
    }
}
