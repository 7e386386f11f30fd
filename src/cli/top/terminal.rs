//! The terminal: taken over at the start, given back at the end; and its keys.

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::sync::mpsc;

use super::state::Key;

/// How long the thread that reads keys may take to see that nobody wants them any more.
const LOOKS: Duration = Duration::from_millis(100);

/// The terminal, drawn on as a whole until it is dropped: then it is as it was, also after an error or a panic.
pub(super) struct TakenTerminal {
    terminal: Option<DefaultTerminal>,
}

impl TakenTerminal {
    /// # Errors
    ///
    /// The terminal cannot be set; it is as it was.
    pub(super) fn take() -> io::Result<Self> {
        // What is set halfway is set back by dropping this.
        let mut taken = Self { terminal: None };
        taken.terminal = Some(ratatui::try_init()?);
        Ok(taken)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        match &mut self.terminal {
            Some(terminal) => terminal.draw(draw).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for TakenTerminal {
    fn drop(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            let _ = terminal.show_cursor();
        }
        // A terminal that has gone needs nothing.
        let _ = ratatui::try_restore();
    }
}

/// What the terminal tells.
pub(super) enum TerminalEvent {
    Key(Key),
    /// Its size has changed.
    Resized,
}

/// Reads keys on a thread of its own, since the terminal lets nobody wait for them in another way.
pub(super) struct Keys {
    told: mpsc::Receiver<TerminalEvent>,
    thread: Option<JoinHandle<()>>,
}

impl Keys {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, told) = mpsc::channel(64);
        let thread = std::thread::Builder::new().name("keys".into());
        let thread = thread.spawn(move || read(&sender))?;
        Ok(Self {
            told,
            thread: Some(thread),
        })
    }

    /// The next key; `None` once the terminal has gone.
    pub(super) async fn next(&mut self) -> Option<TerminalEvent> {
        self.told.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.told.close();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let until = Instant::now() + 3 * LOOKS;
        // If the terminal goes away while crossterm reads from it, the thread never ends.
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOKS / 20);
        }
    }
}

/// Waits a while for keys; false once the terminal has gone.
///
/// crossterm does not notice: it would read without a pause and never return.
fn wait_for_keys(terminal: BorrowedFd<'_>) -> bool {
    let mut terminal = [PollFd::new(&terminal, PollFlags::IN)];
    let wait = Timespec::try_from(LOOKS).ok();
    // An error here is an interruption by a signal.
    let _ = rustix::event::poll(&mut terminal, wait.as_ref());
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    !terminal[0].revents().intersects(gone)
}

fn read(sender: &mpsc::Sender<TerminalEvent>) {
    let (input, output) = (io::stdin(), io::stdout());
    // crossterm reads keys from standard input, or else from the terminal of the process, which the output is.
    let terminal = if input.is_terminal() {
        input.as_fd()
    } else {
        output.as_fd()
    };
    while !sender.is_closed() && wait_for_keys(terminal) {
        let told = match event::poll(Duration::ZERO) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let told = match told {
            Ok(Event::Key(key)) => key_of(key).map(TerminalEvent::Key),
            Ok(Event::Resize(..)) => Some(TerminalEvent::Resized),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(_) => return,
        };
        if let Some(told) = told
            && sender.blocking_send(told).is_err()
        {
            return;
        }
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Tab | KeyCode::Right => Key::Next,
        KeyCode::BackTab | KeyCode::Left => Key::Previous,
        KeyCode::Esc => Key::Escape,
        KeyCode::Char(char) => Key::Char(char),
        _ => return None,
    })
}
