//! A proxy in front of a server, which cuts connections, holds back bytes, and loses replies.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What a proxy does with the bytes of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Nothing goes either way, until the mode changes.
    Stall,
    /// Requests go to the server. The first reply is lost, and its connection with it.
    LoseReplies,
    /// The connection of the next request is cut at once, the request itself goes to the server when the mode changes.
    Late,
    /// The same once that request has come: all others pass.
    Held,
    /// Connections are cut, new ones at once.
    Cut,
}

/// Carries connections to a server on this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            mode: Mutex::new(Mode::Pass),
            changed: Condvar::new(),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepting.connect(client, server);
            }
        });
        Self { port, state }
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.state.mode.lock().unwrap() = mode;
        self.state.changed.notify_all();
        if mode == Mode::Cut {
            for connection in self.state.open.lock().unwrap().drain(..) {
                // It may be closed already.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

impl State {
    fn connect(self: &Arc<Self>, client: TcpStream, server: u16) {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        if *self.mode.lock().unwrap() == Mode::Cut {
            return;
        }
        let both = [&client, &server].map(|stream| stream.try_clone().unwrap());
        self.open.lock().unwrap().extend(both);
        let (to_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (asking, answering) = (Arc::clone(self), Arc::clone(self));
        std::thread::spawn(move || asking.pass(client, server, false));
        std::thread::spawn(move || answering.pass(from_server, to_client, true));
    }

    /// Waits as long as the mode is this one.
    fn wait_while<'a>(&self, mode: MutexGuard<'a, Mode>, this: Mode) -> MutexGuard<'a, Mode> {
        let waiting = self.changed.wait_while(mode, |mode| *mode == this);
        waiting.unwrap()
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, are_replies: bool) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mode = {
                let mut mode = self.wait_while(self.mode.lock().unwrap(), Mode::Stall);
                if *mode == Mode::Late && !are_replies {
                    *mode = Mode::Held;
                    let _ = from.shutdown(Shutdown::Both);
                    mode = self.wait_while(mode, Mode::Held);
                }
                *mode
            };
            let is_lost = mode == Mode::Cut || (mode == Mode::LoseReplies && are_replies);
            if is_lost || to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
