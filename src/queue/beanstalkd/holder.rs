//! A connection and the task that owns it.
//!
//! Only the connection that reserved a job can end it, so every command about a job goes to the task that holds
//! it. The tasks run on a thread of their own: a handler that keeps the worker's thread busy delays no renewal.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::ask::{AnswerTo, Ask, Caught, CommandResult, Load, Lost, Turn};
use super::link::Link;
use super::options::BeanstalkdOptions;
use crate::connection::Presence;

/// How often a connection in use looks whether reservations end soon, or an answer takes too long.
const TICK: Duration = Duration::from_millis(100);
/// Room for what is read at once.
const READ: usize = 16 * 1024;

/// The end of a connection whose wait was given up.
const CANCELLED: ErrorKind = ErrorKind::Interrupted;

/// Counts connections, so that no number is ever used again by this process.
static HOLDERS: AtomicU64 = AtomicU64::new(0);

/// A handle on a connection, which is opened when it is needed, and again after it was lost.
///
/// Dropping it closes the connection; jobs that it still holds are then ready at once.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) number: u64,
    pub(super) load: Arc<Load>,
    address: Arc<str>,
    requests: mpsc::UnboundedSender<(Ask, AnswerTo)>,
}

impl Holder {
    /// Starts the task; nothing is sent yet.
    pub(super) fn start(
        options: &Arc<BeanstalkdOptions>,
        runtime: &Handle,
        caught: Caught,
    ) -> Self {
        let number = HOLDERS.fetch_add(1, Ordering::Relaxed);
        let load = Arc::new(Load::default());
        let (requests, receiver) = mpsc::unbounded_channel();
        let address = format!("{}:{}", options.host, options.port);
        let keeper = Keeper {
            presence: Presence::of("beanstalkd", &address),
            options: Arc::clone(options),
            number,
            load: Arc::clone(&load),
            caught,
            requests: receiver,
        };
        runtime.spawn(keeper.run());
        Self {
            number,
            load,
            address: address.into(),
            requests,
        }
    }

    /// Asks the connection; the first poll sends the request, behind those sent before.
    ///
    /// # Errors
    ///
    /// There is no connection, or it was lost before all replies were there. Never for [`Ask::Held`].
    pub(super) async fn ask(
        &self,
        ask: Ask,
    ) -> Result<Vec<CommandResult>, crate::connection::Error> {
        let (answer, outcomes) = oneshot::channel();
        let is_sent = self.requests.send((ask, answer)).is_ok();
        let ended = || Lost::after(&Error::other("the task of the connection has ended"));
        let result = match outcomes.await {
            Ok(result) if is_sent => result,
            _ => Err(ended()),
        };
        result.map_err(|lost| self.lost(lost))
    }

    fn lost(&self, lost: Lost) -> crate::connection::Error {
        crate::connection::Error::Beanstalkd {
            address: self.address.to_string(),
            was_connected: lost.was_connected,
            source: lost.source,
        }
    }

    /// The right to wait on this connection, if it holds nothing and no wait is under way on it.
    pub(super) fn turn(&self) -> Option<Turn> {
        Turn::take(&self.load)
    }
}

/// The task that owns a connection.
struct Keeper {
    presence: Arc<Presence>,
    options: Arc<BeanstalkdOptions>,
    number: u64,
    load: Arc<Load>,
    caught: Caught,
    requests: mpsc::UnboundedReceiver<(Ask, AnswerTo)>,
}

enum Event {
    Read(std::io::Result<usize>),
    Written(std::io::Result<usize>),
    Asked(Option<(Ask, AnswerTo)>),
    /// The wait was given up while the connection still waits for a job.
    Cancelled,
    Tick,
}

impl Keeper {
    async fn run(mut self) {
        while let Some((ask, answer)) = self.requests.recv().await {
            if let Ask::Held(acts) = &ask {
                // Their connection is gone, and so are they.
                let gone = acts.iter().map(|_| CommandResult::Gone).collect();
                // The caller may have stopped waiting.
                let _ = answer.send(Ok(gone));
                continue;
            }
            match self.connect().await {
                Ok(stream) => {
                    let Some((ask, answer)) = unless_given_up(ask, answer) else {
                        continue;
                    };
                    let (load, caught) = (Arc::clone(&self.load), Arc::clone(&self.caught));
                    let mut link = Link::new(self.number, load, caught);
                    link.begin(ask, answer);
                    let opened = Instant::now();
                    let Some(error) = self.serve(&mut link, stream).await else {
                        return;
                    };
                    // A connection that was idle tells nothing by its end: a firewall may have had enough of it.
                    if error.kind() != CANCELLED && link.is_in_use() {
                        self.presence.note_loss(Some(opened), &error);
                    }
                    link.lose(&error);
                }
                Err(error) => {
                    self.presence.note_loss(None, &error);
                    self.refuse(ask, answer, &error);
                }
            }
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let (host, port) = (&*self.options.host, self.options.port);
        let opening = timeout(
            self.options.connect_timeout,
            TcpStream::connect((host, port)),
        );
        let stream = opening.await.unwrap_or_else(|_| {
            let wait = self.options.connect_timeout;
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("no connection in {wait:?}"),
            ))
        })?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Answers everything that was asked meanwhile: another try for each of them would take as long again.
    fn refuse(&mut self, ask: Ask, answer: AnswerTo, error: &Error) {
        let mut next = Some((ask, answer));
        while let Some((ask, answer)) = next {
            let result = match ask {
                Ask::Held(acts) => Ok(acts.iter().map(|_| CommandResult::Gone).collect()),
                Ask::Plain(_) | Ask::Reserve { .. } | Ask::Wait { .. } => Err(Lost::before(error)),
            };
            // The caller may have stopped waiting.
            let _ = answer.send(result);
            next = self.requests.try_recv().ok();
        }
    }

    /// Serves requests until the connection is lost; `None` once its handle is dropped.
    async fn serve(&mut self, link: &mut Link, stream: TcpStream) -> Option<Error> {
        let (mut reader, mut writer) = stream.into_split();
        let (mut inbox, mut writing, mut written) = (Vec::new(), Vec::new(), 0);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if written == writing.len() {
                writing.clear();
                written = 0;
                std::mem::swap(&mut writing, &mut link.out);
            }
            inbox.reserve(READ);
            let cancellation = link.cancellation();
            let event = tokio::select! {
                biased;
                // First, or much traffic would keep it from its turn.
                _ = ticks.tick(), if link.is_in_use() => Event::Tick,
                read = reader.read_buf(&mut inbox) => Event::Read(read),
                sent = writer.write(&writing[written..]), if written < writing.len() => Event::Written(sent),
                asked = self.requests.recv() => Event::Asked(asked),
                () = cancelled(cancellation.as_ref()) => Event::Cancelled,
            };
            let result = match event {
                Event::Read(Ok(0)) | Event::Written(Ok(0)) => {
                    return Some(ErrorKind::UnexpectedEof.into());
                }
                Event::Read(Err(error)) | Event::Written(Err(error)) => return Some(error),
                Event::Asked(None) => return None,
                Event::Cancelled => return Some(CANCELLED.into()),
                Event::Read(Ok(_)) => {
                    let received = link.receive(&mut inbox);
                    if received.is_ok() {
                        self.presence.answered(link.asked);
                    }
                    received
                }
                Event::Written(Ok(length)) => {
                    written += length;
                    Ok(())
                }
                Event::Asked(Some((ask, answer))) => {
                    if let Some((ask, answer)) = unless_given_up(ask, answer) {
                        link.begin(ask, answer);
                    }
                    Ok(())
                }
                Event::Tick => link.tick(),
            };
            if let Err(problem) = result {
                return Some(Error::new(ErrorKind::InvalidData, problem));
            }
        }
    }
}

/// Answers a wait that was given up before it was sent; all else comes back.
///
/// The server could give such a wait a job, which would lose an attempt when the connection is closed.
fn unless_given_up(ask: Ask, answer: AnswerTo) -> Option<(Ask, AnswerTo)> {
    match &ask {
        Ask::Wait { cancel, .. } if cancel.is_cancelled() => {
            // The caller may have stopped waiting.
            let _ = answer.send(Err(Lost::before(&CANCELLED.into())));
            None
        }
        _ => Some((ask, answer)),
    }
}

async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

/// The thread that the tasks run on; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) runtime: Handle,
    /// Dropped with it.
    _stop: oneshot::Sender<()>,
}

impl Runner {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system gives no thread, or no more open files.
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("beanstalkd".into());
        thread.spawn(move || {
            // Nothing is ever sent: the other end is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self {
            runtime: handle,
            _stop: stop,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::queue::beanstalkd::tube::Tube;

    #[tokio::test]
    async fn a_wait_that_is_given_up_while_its_connection_is_opened_reserves_nothing() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let options = BeanstalkdOptions {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            ..BeanstalkdOptions::default()
        };
        let holder = Holder::start(&Arc::new(options), &Handle::current(), Caught::default());
        let cancel = CancellationToken::new();
        cancel.cancel();
        let wait = Ask::Wait {
            tubes: vec![Tube::new("q").unwrap()],
            seconds: 10,
            turn: holder.turn().unwrap(),
            cancel,
        };
        let error = holder.ask(wait).await.unwrap_err();
        let crate::connection::Error::Beanstalkd { was_connected, .. } = error else {
            panic!("{error:?}");
        };
        assert!(!was_connected);
        let (mut client, _) = listener.accept().await.unwrap();
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.unwrap();
        assert!(sent.is_empty(), "{sent:?}");
    }
}
