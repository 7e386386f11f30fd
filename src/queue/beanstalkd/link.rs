//! What is under way on one connection: commands that wait for their replies, and jobs that it has reserved. No I/O.
//!
//! Replies come in the order of the commands. A reservation belongs to its connection: when that is lost, so is the
//! reservation, and a call about the job answers [`CommandResult::Gone`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::ask::{Act, AnswerTo, Ask, Caught, CommandResult, HeldJob, Load, Lost, Turn};
use super::client::{Batch, Reply, Verb, fields, time_left};
use super::ticket::Ticket;
use super::tube::Tube;

/// How long a server may take for each reply, apart from the time that it was told to wait.
const ANSWERS_IN: Duration = Duration::from_secs(10);
/// Seconds below which a renewal may come too late: the server counts whole ones.
const SHORT: u32 = 3;
/// The last second of a reservation, in which a reserve command is not made to wait, and half a second before it.
const SOON: Duration = Duration::from_millis(1500);

#[derive(Debug)]
struct Reservation {
    number: u64,
    /// Dead once the job is dropped: then its reservation may end.
    ticket: Weak<[u8]>,
    /// Known as soon as the server was asked.
    time_to_run: Option<Duration>,
    ends: Instant,
    /// Whether the connection has sent something about it by itself.
    is_cared_for: bool,
}

#[derive(Debug)]
struct Expected {
    verb: Verb,
    /// Position of its outcome; `None` if it is not wanted.
    index: Option<usize>,
    ticket: Option<Ticket>,
}

/// A request that was sent.
#[derive(Debug)]
struct Flight {
    outcomes: Vec<CommandResult>,
    left: usize,
    sent: Instant,
    /// How long the server may wait before it answers.
    waits: Duration,
    is_about_held: bool,
    wait: Option<(Turn, CancellationToken)>,
    /// `None` for what the connection does by itself.
    answer: Option<AnswerTo>,
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Link {
    holder: u64,
    /// What is to be sent.
    pub(super) out: Vec<u8>,
    expected: VecDeque<Expected>,
    flights: VecDeque<Flight>,
    watched: BTreeSet<Tube>,
    held: HashMap<u64, Reservation>,
    load: Arc<Load>,
    caught: Caught,
    last_reply: Instant,
    /// When the last command was sent that has an answer.
    pub(super) asked: Instant,
    has_warned: bool,
}

/// Counts reservations, so that no number is ever used again by this process.
static RESERVATIONS: AtomicU64 = AtomicU64::new(0);

impl Link {
    /// A connection that was opened just now.
    pub(super) fn new(holder: u64, load: Arc<Load>, caught: Caught) -> Self {
        Self {
            holder,
            out: Vec::new(),
            expected: VecDeque::new(),
            flights: VecDeque::new(),
            watched: BTreeSet::from([Tube::of_new_connections()]),
            held: HashMap::new(),
            load,
            caught,
            last_reply: Instant::now(),
            asked: Instant::now(),
            has_warned: false,
        }
    }

    /// Whether something may have to be done later without a reply or a request.
    pub(super) fn is_in_use(&self) -> bool {
        !self.flights.is_empty() || !self.held.is_empty()
    }

    /// Cancelled when a wait is of no use any more; `None` if nothing waits, or if jobs would be lost with the
    /// connection.
    pub(super) fn cancellation(&self) -> Option<CancellationToken> {
        let (_, cancel) = self.flights.front()?.wait.as_ref()?;
        self.held.is_empty().then(|| cancel.clone())
    }

    /// Sends a request.
    pub(super) fn begin(&mut self, ask: Ask, answer: AnswerTo) {
        match ask {
            Ask::Held(acts) => self.begin_held(&acts, Some(answer)),
            Ask::Plain(batch) => {
                let mut flight = Flight::new(batch.verbs.len(), Some(answer));
                for (index, verb) in batch.verbs.iter().enumerate() {
                    flight.left += 1;
                    self.expect(*verb, Some(index), None);
                }
                self.out.extend_from_slice(&batch.bytes);
                self.fly(flight);
            }
            Ask::Reserve { tube, most } => {
                let mut flight = Flight::new(most, Some(answer));
                self.watch_only(&[tube], &mut flight);
                self.reserve(most, 0, &mut flight);
                self.fly(flight);
            }
            Ask::Wait {
                tubes,
                seconds,
                turn,
                cancel,
            } => {
                let mut flight = Flight::new(1, Some(answer));
                flight.waits = Duration::from_secs(seconds.into());
                flight.wait = Some((turn, cancel));
                self.watch_only(&tubes, &mut flight);
                self.reserve(1, seconds, &mut flight);
                self.fly(flight);
            }
        }
    }

    fn begin_held(&mut self, acts: &[(Ticket, Act)], answer: Option<AnswerTo>) {
        let mut flight = Flight::new(acts.len(), answer);
        flight.is_about_held = true;
        let mut batch = Batch::default();
        for (index, (ticket, act)) in acts.iter().enumerate() {
            let reservation = self.held.get(&ticket.id);
            if reservation.is_none_or(|held| held.number != ticket.reservation) {
                continue;
            }
            match act {
                Act::Delete => batch.delete(ticket.id),
                Act::Release(delay) => batch.release(ticket.id, *delay),
                Act::Bury => batch.bury(ticket.id),
                Act::Touch => batch.touch(ticket.id),
                Act::Stats => batch.stats_job(ticket.id),
            }
            flight.left += 1;
            if let Some(verb) = batch.verbs.last() {
                self.expect(*verb, Some(index), Some(*ticket));
            }
        }
        self.out.extend_from_slice(&batch.bytes);
        self.fly(flight);
    }

    /// Makes the connection watch these tubes and no others.
    fn watch_only(&mut self, tubes: &[Tube], flight: &mut Flight) {
        let wanted: BTreeSet<Tube> = tubes.iter().cloned().collect();
        let mut batch = Batch::default();
        // First the new ones: the last tube cannot be ignored.
        for tube in wanted.difference(&self.watched) {
            batch.watch(tube);
        }
        for tube in self.watched.difference(&wanted) {
            batch.ignore(tube);
        }
        for verb in batch.verbs {
            flight.left += 1;
            self.expect(verb, None, None);
        }
        self.out.extend_from_slice(&batch.bytes);
        self.watched = wanted;
    }

    fn reserve(&mut self, most: usize, seconds: u32, flight: &mut Flight) {
        let mut batch = Batch::default();
        for index in 0..most {
            batch.reserve(seconds);
            flight.left += 1;
            self.expect(Verb::Reserve, Some(index), None);
        }
        self.out.extend_from_slice(&batch.bytes);
    }

    fn expect(&mut self, verb: Verb, index: Option<usize>, ticket: Option<Ticket>) {
        self.expected.push_back(Expected {
            verb,
            index,
            ticket,
        });
    }

    fn fly(&mut self, flight: Flight) {
        if flight.left == 0 {
            // Nothing was sent for it.
            self.land(flight);
        } else {
            self.flights.push_back(flight);
        }
    }

    /// Takes all whole replies out of what was received.
    ///
    /// # Errors
    ///
    /// The server is out of step with this connection, which cannot be used any more.
    pub(super) fn receive(&mut self, inbox: &mut Vec<u8>) -> Result<(), &'static str> {
        let mut used = 0;
        while let Some((reply, length)) = Reply::read(&inbox[used..])? {
            used += length;
            self.accept(reply)?;
        }
        inbox.drain(..used);
        Ok(())
    }

    fn accept(&mut self, reply: Reply) -> Result<(), &'static str> {
        let expected = self.expected.front();
        if expected.is_some_and(|expected| !expected.verb.accepts(&reply)) {
            return Err("a reply to something else");
        }
        let expected = self.expected.pop_front();
        let (Some(expected), Some(mut flight)) = (expected, self.flights.pop_front()) else {
            return Err("a reply without a request");
        };
        self.last_reply = Instant::now();
        self.asked = flight.sent;
        let is_deadline_soon = reply == Reply::DeadlineSoon;
        if let Some(ticket) = expected.ticket {
            self.note(ticket, &reply, flight.sent);
        }
        let outcome = match reply {
            Reply::Reserved { id, body } => CommandResult::Taken(self.take(id, body, flight.sent)),
            reply => CommandResult::Reply(reply),
        };
        if let Some(place) = expected
            .index
            .and_then(|index| flight.outcomes.get_mut(index))
        {
            *place = outcome;
        }
        flight.left -= 1;
        if flight.left == 0 {
            self.land(flight);
        } else {
            self.flights.push_front(flight);
        }
        if is_deadline_soon {
            self.care(|held, now| held.ends < now + SOON);
        }
        Ok(())
    }

    /// Notes a new reservation.
    fn take(&mut self, id: u64, body: Vec<u8>, sent: Instant) -> HeldJob {
        let number = RESERVATIONS.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket {
            holder: self.holder,
            reservation: number,
            id,
        };
        let ticket: Arc<[u8]> = ticket.to_bytes().as_slice().into();
        let reservation = Reservation {
            number,
            ticket: Arc::downgrade(&ticket),
            time_to_run: None,
            ends: sent,
            is_cared_for: false,
        };
        // A reservation of the same job that stands here has ended: the server gave the job once more.
        self.held.insert(id, reservation);
        self.load.held.store(self.held.len(), Ordering::Release);
        let payload = body.into();
        HeldJob { ticket, payload }
    }

    /// Notes what a reply says about a reservation.
    fn note(&mut self, ticket: Ticket, reply: &Reply, sent: Instant) {
        let held = self.held.get_mut(&ticket.id);
        let Some(held) = held.filter(|held| held.number == ticket.reservation) else {
            return;
        };
        match reply {
            Reply::Deleted | Reply::Released | Reply::Buried | Reply::NotFound => {
                self.held.remove(&ticket.id);
                self.load.held.store(self.held.len(), Ordering::Release);
            }
            Reply::Touched => {
                held.is_cared_for = false;
                held.ends = sent + held.time_to_run.unwrap_or_default();
            }
            Reply::Ok(body) => {
                let fields = fields(body);
                let time_to_run = fields.get("ttr").and_then(|ttr| ttr.parse::<u32>().ok());
                if let (Some(whole), Some(left)) = (time_to_run, time_left(&fields)) {
                    held.time_to_run = Some(Duration::from_secs(whole.into()));
                    held.ends = sent + left;
                    if whole < SHORT && !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(
                            seconds = whole,
                            "a job has so short a time to run that its reservation may end before it is renewed"
                        );
                    }
                }
            }
            _ => held.is_cared_for = false,
        }
    }

    /// Answers a request all of whose replies are there.
    fn land(&mut self, mut flight: Flight) {
        if flight.wait.is_some() {
            let taken: Vec<_> = flight
                .outcomes
                .drain(..)
                .filter_map(|outcome| match outcome {
                    CommandResult::Taken(taken) => Some(taken),
                    _ => None,
                })
                .collect();
            // No call may ask about them before the next pop, and a job is only touched in time if its time to run is
            // known.
            let tickets = taken.iter().filter_map(|taken| Ticket::read(&taken.ticket));
            let acts: Vec<_> = tickets
                .flat_map(|ticket| [(ticket, Act::Touch), (ticket, Act::Stats)])
                .collect();
            self.caught
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(taken);
            if !acts.is_empty() {
                self.begin_held(&acts, None);
            }
        }
        let Some(Err(Ok(unwanted))) = flight.answer.map(|answer| answer.send(Ok(flight.outcomes)))
        else {
            return;
        };
        // The pop of these jobs was given up: other workers get them.
        let back: Vec<_> = unwanted
            .iter()
            .filter_map(|outcome| match outcome {
                CommandResult::Taken(taken) => {
                    Some((Ticket::read(&taken.ticket)?, Act::Release(0)))
                }
                _ => None,
            })
            .collect();
        if !back.is_empty() {
            self.begin_held(&back, None);
        }
    }

    /// Touches the jobs whose reservation would end soon, although they are still in use.
    ///
    /// The worker renews reservations in the rhythm of its own connection; a job brings the time to run that its
    /// producer gave it, which may be much shorter.
    ///
    /// # Errors
    ///
    /// The server takes too long for a reply.
    pub(super) fn tick(&mut self) -> Result<(), &'static str> {
        if let Some(flight) = self.flights.front() {
            let waited = flight.sent.max(self.last_reply).elapsed();
            if waited > ANSWERS_IN + flight.waits {
                return Err("no answer in time");
            }
        }
        self.care(|held, now| {
            let third = held.time_to_run.map(|whole| whole / 3);
            third.is_some_and(|third| held.ends < now + third)
        });
        Ok(())
    }

    /// Touches the jobs in use that are due, and releases the others at their end.
    ///
    /// A server with much to do may be late with ends (beanstalkd#380).
    fn care(&mut self, is_due: impl Fn(&Reservation, Instant) -> bool) {
        let now = Instant::now();
        let mut acts = Vec::new();
        for (id, held) in &mut self.held {
            let act = match held.ticket.strong_count() {
                0 if held.ends <= now => Act::Release(0),
                1.. if is_due(held, now) => Act::Touch,
                _ => continue,
            };
            if !std::mem::replace(&mut held.is_cared_for, true) {
                let ticket = Ticket {
                    holder: self.holder,
                    reservation: held.number,
                    id: *id,
                };
                acts.push((ticket, act));
            }
        }
        if !acts.is_empty() {
            self.begin_held(&acts, None);
        }
    }

    /// Answers all requests, because the connection is lost.
    pub(super) fn lose(self, source: &std::io::Error) {
        self.load.held.store(0, Ordering::Release);
        for flight in self.flights {
            let Some(answer) = flight.answer else {
                continue;
            };
            let result = if flight.is_about_held {
                // What was not answered is gone with its reservation.
                Ok(flight.outcomes)
            } else {
                Err(Lost::after(source))
            };
            // The caller may have stopped waiting.
            let _ = answer.send(result);
        }
    }
}

impl Flight {
    fn new(commands: usize, answer: Option<AnswerTo>) -> Self {
        Self {
            outcomes: std::iter::repeat_with(|| CommandResult::Gone)
                .take(commands)
                .collect(),
            left: 0,
            sent: Instant::now(),
            waits: Duration::ZERO,
            is_about_held: false,
            wait: None,
            answer,
        }
    }
}

#[cfg(test)]
mod tests;
