//! What the screen shows, and what keys do to it: no terminal and no server.

use crate::telemetry::{Failures, Order, Overview, QueueLine};

/// A key, or several that mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    First,
    Last,
    /// To the next pane.
    Next,
    /// To the pane before.
    Previous,
    Escape,
    /// Ctrl-C
    Interrupt,
    Char(char),
}

/// A list on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Queues,
    Classes,
    Failures,
    Running,
    Workers,
}

impl Pane {
    pub(super) const ALL: [Self; 5] = [
        Self::Queues,
        Self::Classes,
        Self::Failures,
        Self::Running,
        Self::Workers,
    ];

    /// The pane that many places further on, around the end.
    fn further(self, places: usize) -> Self {
        Self::ALL[(self as usize + places) % Self::ALL.len()]
    }
}

/// What lies over the lists until a key is pressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Popup {
    Help,
    /// Whether to retry these failed jobs.
    Retry {
        class: String,
        exception: String,
        count: usize,
    },
}

/// A line of a list: where it stood, and what it is. The lists change their order while people look at them, and a key
/// must not reach another line than the one that was marked.
#[derive(Debug, Default, Clone)]
struct Marked {
    at: usize,
    id: Option<String>,
}

/// All of it.
#[derive(Debug)]
pub(super) struct State {
    /// What was last seen; `None` at the start.
    pub(super) overview: Option<Overview>,
    pub(super) focus: Pane,
    /// The list below that of the queues.
    pub(super) below: Pane,
    pub(super) popup: Option<Popup>,
    /// What the last key or order came to.
    pub(super) said: Option<String>,
    /// Whether an order is being carried out.
    pub(super) is_busy: bool,
    /// Whether to end.
    pub(super) is_over: bool,
    marked: [Marked; Pane::ALL.len()],
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            overview: None,
            focus: Pane::Queues,
            below: Pane::Classes,
            popup: None,
            said: None,
            is_busy: false,
            is_over: false,
            marked: Default::default(),
        }
    }

    /// Takes what was seen; marked lines stay marked wherever they stand now.
    pub(super) fn show(&mut self, overview: Overview) {
        self.overview = Some(overview);
        for pane in Pane::ALL {
            let ids = self.ids(pane);
            let marked = &mut self.marked[pane as usize];
            let again = ids.iter().position(|id| Some(id) == marked.id.as_ref());
            // In place of a line that has gone, none is marked until a key moves the mark.
            if let Some(at) = again {
                marked.at = at;
            } else {
                marked.id = None;
            }
        }
    }

    /// The place of the marked line of a list.
    pub(super) fn marked(&self, pane: Pane) -> Option<usize> {
        let marked = &self.marked[pane as usize];
        marked.id.is_some().then_some(marked.at)
    }

    /// What tells the lines of a list from each other.
    fn ids(&self, pane: Pane) -> Vec<String> {
        let Some(overview) = &self.overview else {
            return Vec::new();
        };
        let pair = |one: &str, other: &str| format!("{one}\0{other}");
        match pane {
            Pane::Queues => {
                let queues = overview.queues.iter();
                queues
                    .map(|line| pair(&line.connection, &line.queue))
                    .collect()
            }
            Pane::Classes => {
                let classes = overview.classes.iter();
                classes.map(|line| line.class.clone()).collect()
            }
            Pane::Failures => {
                let failed = overview.failed.iter().flat_map(|failed| &failed.groups);
                failed
                    .map(|group| pair(&group.class, &group.exception))
                    .collect()
            }
            Pane::Running => {
                let running = overview.running.iter();
                running
                    .map(|job| format!("{}\0{:?}\0{}", job.worker, job.uuid, job.since))
                    .collect()
            }
            Pane::Workers => {
                let workers = overview.workers.iter();
                workers.map(|worker| worker.id.clone()).collect()
            }
        }
    }

    /// Does what a key asks for; an order is for the caller to carry out.
    pub(super) fn on_key(&mut self, key: Key) -> Option<Order> {
        self.said = None;
        if key == Key::Interrupt {
            self.is_over = true;
            return None;
        }
        match self.popup.take() {
            None => {}
            Some(Popup::Help) => return None,
            Some(Popup::Retry {
                class, exception, ..
            }) => {
                if key == Key::Char('y') {
                    return Some(Order::Retry(Failures::Like { class, exception }));
                }
                self.said = Some("nothing was retried".to_owned());
                return None;
            }
        }
        match key {
            Key::Char('q') => self.is_over = true,
            Key::Char('?') => self.popup = Some(Popup::Help),
            Key::Next => self.go(self.focus.further(1)),
            Key::Previous => self.go(self.focus.further(Pane::ALL.len() - 1)),
            Key::Up | Key::Down | Key::First | Key::Last => self.mark(key),
            Key::Char('p') => return self.pause(true),
            Key::Char('r') => return self.pause(false),
            Key::Char('R') => self.ask_retry(),
            Key::Escape | Key::Interrupt | Key::Char(_) => {}
        }
        None
    }

    fn go(&mut self, pane: Pane) {
        self.focus = pane;
        if pane != Pane::Queues {
            self.below = pane;
        }
    }

    fn mark(&mut self, key: Key) {
        let ids = self.ids(self.focus);
        let now = self.marked(self.focus);
        let last = ids.len().saturating_sub(1);
        let at = match (key, now) {
            (Key::Up, Some(at)) => at.saturating_sub(1),
            (Key::Down, Some(at)) => (at + 1).min(last),
            (Key::Last, _) => last,
            _ => 0,
        };
        let id = ids.into_iter().nth(at);
        self.marked[self.focus as usize] = Marked { at, id };
    }

    /// Says so if no other order can be given; true if one can.
    fn check_free(&mut self) -> bool {
        if self.is_busy {
            self.said = Some("the last order is still being carried out".to_owned());
        }
        !self.is_busy
    }

    fn pause(&mut self, pauses: bool) -> Option<Order> {
        if !self.check_free() {
            return None;
        }
        let marked = (self.focus == Pane::Queues).then(|| self.marked(Pane::Queues));
        let queues = self.overview.iter().flat_map(|overview| &overview.queues);
        let line = marked.flatten().and_then(|at| queues.clone().nth(at));
        let Some(QueueLine {
            paused_as, queue, ..
        }) = line
        else {
            self.said = Some("mark a queue first, with the arrows".to_owned());
            return None;
        };
        Some(Order::Pause {
            connection: paused_as.clone(),
            queue: queue.clone(),
            pauses,
        })
    }

    fn ask_retry(&mut self) {
        if !self.check_free() {
            return;
        }
        let marked = (self.focus == Pane::Failures).then(|| self.marked(Pane::Failures));
        let failed = self.overview.as_ref().and_then(|seen| seen.failed.as_ref());
        let group = failed.and_then(|failed| failed.groups.get(marked.flatten()?));
        match group {
            Some(group) => {
                self.popup = Some(Popup::Retry {
                    class: group.class.clone(),
                    exception: group.exception.clone(),
                    count: group.count,
                });
            }
            None => {
                self.said = Some("mark failed jobs first, with tab and the arrows".to_owned());
            }
        }
    }
}
