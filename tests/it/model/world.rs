//! The world of the model: two servers, a database, two workers, and what may go wrong.

use std::fmt;

use super::server::{Call, Deed, Drainer, Ending, Owner, Record, Reply, Server};
use super::{Model, Scenario};

/// Where a worker stands with the job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    Idle,
    Held {
        member: u8,
        /// The reservation has ended, and a pop has taken the job from it.
        is_lost: bool,
        has_run: bool,
        /// What was sent to settle it, if no answer came.
        sent: Option<Ending>,
    },
    /// The job is deleted, its effects are not yet sent: only where [`super::Rules::ends_in_one_step`] is off.
    Following(Vec<Deed>),
}

/// Where a worker stands with the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outbox {
    Idle,
    Leased,
    Doing(Record, Stage),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Begun,
    /// The row of the batch is locked.
    RowLocked,
    /// .. and the lease was still held after that.
    MayCount,
    /// Counted, but not marked.
    Unmarked,
    /// The deed is done: the record may go.
    Done,
    /// The record is gone: only where [`super::Rules::removes_records_last`] is off.
    Removed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    pub(crate) job: Job,
    pub(crate) outbox: Outbox,
}

/// The app's database: a batch and the failed jobs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Database {
    pub(crate) counted: u8,
    pub(crate) is_marked: bool,
    /// The worker whose transaction has the batch's row.
    pub(crate) row: Option<u8>,
    pub(crate) failed: u8,
}

/// One state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) here: Server,
    pub(crate) there: Server,
    pub(crate) database: Database,
    pub(crate) workers: [Worker; 2],
    /// How many more things may go wrong.
    pub(crate) faults: u8,
    /// How often the job was ended, run, released, and how often a worker reported that it had lost the job.
    pub(crate) ended: u8,
    pub(crate) runs: u8,
    pub(crate) releases: u8,
    pub(crate) reports: u8,
    /// Whether anything that reports can have been lost: a worker crashed, or a reply did.
    pub(crate) is_excused: bool,
    pub(crate) other_took_the_lock: bool,
}

/// One step, for the trace of a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Who takes it, if it is a worker.
    worker: Option<u8>,
    what: &'static str,
    /// The call that a server carried out, with the server before it.
    pub(crate) call: Option<(Server, Call)>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(worker) = self.worker {
            write!(f, "worker {worker}: ")?;
        }
        if let Some((_, call)) = &self.call {
            write!(f, "{call:?}, ")?;
        }
        f.write_str(self.what)
    }
}

/// What comes of a call on the network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    Answered,
    /// The server carried it out, and the worker does not learn it.
    ReplyLost,
    /// The server did not get it, and the worker cannot tell the difference.
    RequestLost,
}

#[derive(Clone, Copy)]
enum Place {
    Here,
    There,
}

impl World {
    pub(crate) fn begin(model: &Model) -> Self {
        let idle = Worker {
            job: Job::Idle,
            outbox: Outbox::Idle,
        };
        let mut world = Self {
            here: Server {
                pending: vec![0],
                ..Server::default()
            },
            there: Server::default(),
            database: Database::default(),
            workers: [idle.clone(), idle],
            faults: model.faults,
            ended: 0,
            runs: 0,
            releases: 0,
            reports: 0,
            is_excused: false,
            other_took_the_lock: false,
        };
        world.lock_server(model).lock = Some(Owner::First);
        world
    }

    fn lock_server(&mut self, model: &Model) -> &mut Server {
        match model.scenario {
            Scenario::Elsewhere => &mut self.there,
            _ => &mut self.here,
        }
    }

    fn lock(&self, model: &Model) -> Option<Owner> {
        match model.scenario {
            Scenario::Elsewhere => self.there.lock,
            _ => self.here.lock,
        }
    }

    /// What must never be.
    pub(crate) fn violation(&self, model: &Model) -> Option<&'static str> {
        let lock = self.lock(model);
        let holds = |worker: &&Worker| {
            matches!(
                worker.job,
                Job::Held {
                    is_lost: false,
                    sent: None,
                    ..
                }
            )
        };
        let is_following = |worker: &Worker| matches!(worker.job, Job::Following(_));
        let rows: [(bool, &'static str); 9] = [
            (self.ended > 1, "the job ended twice"),
            (
                self.ended == 0 && self.here.copies() == 0,
                "the job is lost",
            ),
            (self.here.copies() > 1, "the job is there twice"),
            (
                self.ended > 0 && self.here.copies() > 0,
                "the job is back after its end",
            ),
            (
                self.workers.iter().filter(holds).count() > 1,
                "two workers run the job, and neither has lost its reservation",
            ),
            (
                self.here.next + self.there.next > 1,
                "the next job was pushed twice",
            ),
            (
                self.database.counted > 1 || self.database.failed > 1,
                "the end was recorded twice",
            ),
            (
                self.ended == 0 && lock != Some(Owner::First),
                "the job's lock was freed before its end",
            ),
            (
                self.other_took_the_lock && lock != Some(Owner::Other),
                "the lock of another job was freed",
            ),
        ];
        let broken = rows.iter().find(|(is_broken, _)| *is_broken);
        let doubles = self.runs.saturating_sub(1 + self.releases);
        let is_silent = self.is_end(model) && doubles > self.reports && !self.is_excused;
        let is_over = !self.workers.iter().any(is_following);
        broken
            .map(|(_, what)| *what)
            .or((is_silent && is_over).then_some("the job ran twice, and no worker reported it"))
    }

    /// Whether all is done that the job brings about.
    pub(crate) fn is_end(&self, model: &Model) -> bool {
        let lock = self.lock(model);
        let is_idle = |worker: &Worker| worker.job == Job::Idle && worker.outbox == Outbox::Idle;
        let next = self.here.next + self.there.next;
        let Database {
            counted, failed, ..
        } = self.database;
        let expected = match model.scenario {
            Scenario::Here | Scenario::Elsewhere | Scenario::Callbacks => (1, 0, 0),
            Scenario::Fails => (0, 0, 1),
            Scenario::Batch => (0, 1, 0),
        };
        self.ended == 1
            && self.here.records.is_empty()
            && lock != Some(Owner::First)
            && (next, counted, failed) == expected
            && !self.database.is_marked
            && self.workers.iter().all(is_idle)
    }

    /// Everything that may happen next.
    pub(crate) fn steps(&self, model: &Model) -> Vec<(Step, Self)> {
        let mut steps = Vec::new();
        for worker in 0..2 {
            let mut turn = Turn {
                world: self,
                model,
                me: worker,
                steps: &mut steps,
            };
            turn.job();
            turn.outbox();
            turn.crash();
        }
        self.environment(model, &mut steps);
        steps
    }

    fn environment(&self, model: &Model, steps: &mut Vec<(Step, Self)>) {
        let mut add = |what: &'static str, world: Self| {
            let (worker, call) = (None, None);
            steps.push((Step { worker, what, call }, world));
        };
        for (member, has_ended) in &self.here.reserved {
            let holds = |worker: &Worker| matches!(worker.job, Job::Held { member: held, is_lost: false, .. } if held == *member);
            let cost = u8::from(self.workers.iter().any(holds));
            if !has_ended && self.faults >= cost {
                let mut world = self.clone();
                world.faults -= cost;
                world.here.reserved.insert(*member, true);
                add("a reservation ends", world);
            }
        }
        if let Some(drainer) = self.here.lease {
            let cost = u8::from(drainer != Drainer::Dead);
            if self.faults >= cost {
                let mut world = self.clone();
                world.faults -= cost;
                world.here.lease = None;
                add("the lease ends", world);
            }
        }
        if self.lock(model).is_none() && !self.other_took_the_lock {
            let mut world = self.clone();
            world.lock_server(model).lock = Some(Owner::Other);
            world.other_took_the_lock = true;
            add("the app dispatches another job of this lock", world);
        }
    }
}

/// The steps of one worker.
struct Turn<'a> {
    world: &'a World,
    model: &'a Model,
    me: u8,
    steps: &'a mut Vec<(Step, World)>,
}

impl Turn<'_> {
    fn worker(&self) -> &Worker {
        &self.world.workers[usize::from(self.me)]
    }

    fn of(world: &mut World, me: u8) -> &mut Worker {
        &mut world.workers[usize::from(me)]
    }

    /// A step without a server.
    fn alone(&mut self, what: &'static str, change: impl Fn(&mut World, u8)) {
        let mut world = self.world.clone();
        change(&mut world, self.me);
        let (worker, call) = (Some(self.me), None);
        self.steps.push((Step { worker, what, call }, world));
    }

    /// A call, with everything that the network may do to it; `then` gets no reply if none came.
    fn call(&mut self, place: Place, call: &Call, then: impl Fn(&mut World, u8, Option<Reply>)) {
        use Network::{Answered, ReplyLost, RequestLost};
        for network in [Answered, ReplyLost, RequestLost] {
            let mut world = self.world.clone();
            if network != Answered {
                if world.faults == 0 {
                    continue;
                }
                world.faults -= 1;
                world.is_excused = true;
            }
            let server = match place {
                Place::Here => &mut world.here,
                Place::There => &mut world.there,
            };
            let before = server.clone();
            let mut reply = None;
            if network != RequestLost {
                let lost: Vec<u8> = match call {
                    Call::Pop => server.ended_reservations().collect(),
                    _ => Vec::new(),
                };
                let answer = server.answer(call, &self.model.rules);
                for worker in &mut world.workers {
                    if let Job::Held {
                        member, is_lost, ..
                    } = &mut worker.job
                    {
                        *is_lost |= lost.contains(member);
                    }
                }
                if let (Call::Settle(_, ending), Reply::Settled { done: true }) = (call, answer) {
                    world.ended += u8::from(matches!(ending, Ending::Finish(_)));
                    world.releases += u8::from(*ending == Ending::Release);
                }
                reply = Some(answer);
            }
            then(&mut world, self.me, reply.filter(|_| network == Answered));
            let what = match network {
                Answered => "answered",
                ReplyLost => "the reply is lost",
                RequestLost => "the request is lost",
            };
            let (worker, call) = (Some(self.me), Some((before, call.clone())));
            self.steps.push((Step { worker, what, call }, world));
        }
    }

    fn crash(&mut self) {
        let is_idle = self.worker().job == Job::Idle && self.worker().outbox == Outbox::Idle;
        if is_idle || self.world.faults == 0 {
            return;
        }
        self.alone("crashes, and begins anew", |world, me| {
            world.faults -= 1;
            world.is_excused = true;
            *Self::of(world, me) = Worker {
                job: Job::Idle,
                outbox: Outbox::Idle,
            };
            Self::give_lease_up(world, me);
            if world.database.row == Some(me) {
                world.database.row = None;
            }
        });
    }

    /// The lease stays until it ends, and no process uses it any more.
    fn give_lease_up(world: &mut World, me: u8) {
        if world.here.lease == Some(Drainer::Worker(me)) {
            world.here.lease = Some(Drainer::Dead);
        }
    }

    fn job(&mut self) {
        match self.worker().job.clone() {
            Job::Idle => self.pop(),
            Job::Held {
                member,
                sent: Some(ending),
                ..
            } => self.settle(member, &ending, true),
            Job::Held {
                member,
                has_run: false,
                ..
            } => {
                self.alone("runs the job", |world, me| {
                    world.runs += 1;
                    if let Job::Held { has_run, .. } = &mut Self::of(world, me).job {
                        *has_run = true;
                    }
                });
                self.settle(member, &Ending::PutBack, false);
            }
            Job::Held { member, .. } => {
                self.call(Place::Here, &Call::Renew(member), |_, _, _| {});
                if self.world.releases == 0 {
                    self.settle(member, &Ending::Release, false);
                }
                let deeds = self.model.scenario.deeds();
                self.settle(member, &Ending::Finish(deeds), false);
            }
            Job::Following(deeds) => self.call(Place::Here, &Call::Apply(deeds), |world, me, _| {
                Self::of(world, me).job = Job::Idle;
            }),
        }
    }

    fn pop(&mut self) {
        self.call(Place::Here, &Call::Pop, |world, me, reply| {
            if let Some(Reply::Popped(Some(member))) = reply {
                Self::of(world, me).job = Job::Held {
                    member,
                    is_lost: false,
                    has_run: false,
                    sent: None,
                };
            }
        });
    }

    fn settle(&mut self, member: u8, ending: &Ending, asked_again: bool) {
        let rules = self.model.rules;
        let deeds = match ending {
            Ending::Finish(deeds) if !rules.ends_in_one_step => Some(deeds.clone()),
            _ => None,
        };
        let sent = match deeds {
            Some(_) => Ending::Finish(Vec::new()),
            None => ending.clone(),
        };
        let call = Call::Settle(member, sent);
        self.call(Place::Here, &call, |world, me, reply| {
            let is_reported = reply == Some(Reply::Settled { done: false }) && !asked_again;
            world.reports += u8::from(is_reported);
            let job = &mut Self::of(world, me).job;
            match (reply, &deeds) {
                (Some(Reply::Settled { done: true }), Some(deeds)) => {
                    *job = Job::Following(deeds.clone());
                }
                (Some(_), _) => *job = Job::Idle,
                (None, _) if *ending == Ending::PutBack && rules.puts_back_once => *job = Job::Idle,
                (None, _) => {
                    if let Job::Held { sent, .. } = job {
                        *sent = Some(ending.clone());
                    }
                }
            }
        });
    }

    fn outbox(&mut self) {
        match self.worker().outbox {
            Outbox::Idle => {
                if !self.world.here.records.is_empty() {
                    self.call(Place::Here, &Call::Lease(self.me), |world, me, reply| {
                        match reply {
                            Some(Reply::Yes(true)) => Self::of(world, me).outbox = Outbox::Leased,
                            // The next try uses another name.
                            _ => Self::give_lease_up(world, me),
                        }
                    });
                }
            }
            Outbox::Leased => {
                for record in self.world.here.records.clone() {
                    self.alone("reads the outbox", |world, me| {
                        Self::of(world, me).outbox = Outbox::Doing(record, Stage::Begun);
                    });
                }
                if self.world.here.records.is_empty() {
                    self.call(Place::Here, &Call::Unlease(self.me), |world, me, _| {
                        Self::of(world, me).outbox = Outbox::Idle;
                        Self::give_lease_up(world, me);
                    });
                }
            }
            Outbox::Doing(record, stage) => self.follow(record, stage),
        }
    }

    fn follow(&mut self, record: Record, stage: Stage) {
        let rules = self.model.rules;
        match stage {
            Stage::Begun if !rules.removes_records_last && record != Record::Count => {
                self.ack(record, &[], Outbox::Doing(record, Stage::Removed));
            }
            Stage::Begun => self.deed(record, Outbox::Doing(record, Stage::Done)),
            Stage::Removed => self.deed(record, Outbox::Leased),
            Stage::RowLocked if rules.counts_under_the_lease => {
                self.call(Place::Here, &Call::Keep(self.me), |world, me, reply| {
                    if let Some(Reply::Yes(true)) = reply {
                        Self::of(world, me).outbox = Outbox::Doing(record, Stage::MayCount);
                    } else {
                        world.database.row = None;
                        Self::stop(world, me);
                    }
                });
            }
            Stage::RowLocked | Stage::MayCount => {
                let marks = rules.marks_with_the_count;
                self.database(move |world, me| {
                    let database = &mut world.database;
                    database.row = None;
                    let mut stage = Stage::Done;
                    if !database.is_marked {
                        database.counted += 1;
                        database.is_marked = marks;
                        if !marks {
                            stage = Stage::Unmarked;
                        }
                    }
                    Self::of(world, me).outbox = Outbox::Doing(record, stage);
                });
            }
            Stage::Unmarked => self.database(move |world, me| {
                world.database.is_marked = true;
                Self::of(world, me).outbox = Outbox::Doing(record, Stage::Done);
            }),
            Stage::Done if record == Record::Count && !rules.keeps_marks_until_then => {
                if self.world.database.is_marked {
                    self.database(|world, _| world.database.is_marked = false);
                } else {
                    self.ack(record, &[], Outbox::Leased);
                }
            }
            Stage::Done => {
                let deeds: &[Deed] = match record {
                    Record::Count => &[Deed::Append(Record::Forget)],
                    Record::PushHere => &[Deed::Push],
                    _ => &[],
                };
                self.ack(record, deeds, Outbox::Leased);
            }
        }
    }

    /// Does what a record asks for.
    fn deed(&mut self, record: Record, then: Outbox) {
        let done = move |world: &mut World, me: u8, reply: Option<Reply>| {
            Self::of(world, me).outbox = match reply {
                Some(_) => then,
                // Tried again later, if the record is still there.
                None => Outbox::Leased,
            };
        };
        let rules = self.model.rules;
        match record {
            Record::Push => self.call(Place::There, &Call::PushOnce, done),
            Record::Unlock => self.call(Place::There, &Call::FreeLock, done),
            Record::PushHere => {
                self.alone("leaves a push to the last step", |world, me| {
                    Self::of(world, me).outbox = then;
                });
            }
            Record::Count if self.world.database.row.is_none() => {
                self.alone("locks the batch's row", |world, me| {
                    world.database.row = Some(me);
                    Self::of(world, me).outbox = Outbox::Doing(record, Stage::RowLocked);
                });
            }
            Record::Count => {}
            Record::Forget => self.database(move |world, me| {
                world.database.is_marked = false;
                Self::of(world, me).outbox = then;
            }),
            Record::Row => self.database(move |world, me| {
                let failed = &mut world.database.failed;
                *failed = if rules.knows_its_rows { 1 } else { *failed + 1 };
                Self::of(world, me).outbox = then;
            }),
        }
    }

    /// A transaction, whose answer may be lost, too.
    fn database(&mut self, change: impl Fn(&mut World, u8)) {
        self.alone("writes to the database", &change);
        if self.world.faults > 0 {
            self.alone("writes to the database, ReplyLost", |world, me| {
                world.faults -= 1;
                world.is_excused = true;
                change(world, me);
                Self::of(world, me).outbox = Outbox::Leased;
            });
        }
    }

    fn ack(&mut self, record: Record, deeds: &[Deed], then: Outbox) {
        let call = Call::Ack(self.me, record, deeds.to_vec());
        self.call(Place::Here, &call, move |world, me, reply| match reply {
            Some(Reply::Taken(1..)) => Self::of(world, me).outbox = then,
            _ => Self::stop(world, me),
        });
    }

    /// Ends the pass over the outbox.
    fn stop(world: &mut World, me: u8) {
        Self::of(world, me).outbox = Outbox::Idle;
        Self::give_lease_up(world, me);
    }
}
