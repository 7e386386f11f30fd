//! Laravel's database driver: the table `jobs`, on `SQLite`, `PostgreSQL`, `MySQL` and `MariaDB`.
//!
//! The contract is `docs/protocol/other-drivers.md`. A reservation is known by the row's id and its number of
//! attempts: each reservation adds one, a release makes a new row, and a renewal changes neither. A worker whose
//! reservation has ended therefore changes nothing, where Laravel deletes the job of its next owner.
//!
//! artisand's own records are rows of the same table, so that they change in the same transaction as jobs. Their
//! queues begin with `artisand:`, which no worker looks at.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::OnceCell;

use super::{
    Abilities, Ability, Answer, CallListener, ConnectionName, Due, Error, Fate, Held, JobRow,
    Ledger, Once, Place, PopRequest, Popped, Push, PushListener, PushedOnce, Queue, QueueName,
    ReservedJob, Settled, Settlement, Sizes, Unsettled,
};
use crate::connection::{
    Database, DatabaseKind, DatabaseOptions, FailedJobsTable, LockPlace, Presence, Transaction,
};
use crate::shown::with_causes;
use crate::time::{Clock, UnixSeconds};

mod effects;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod inside;
mod ledger;
mod look;
mod marks;
mod pop;
mod renew;
mod settle;
mod step;
mod table;
mod wake;

use marks::Marks;
use step::Failure;
use table::Table;
use wake::Wake;

/// Settings of a queue connection with the driver `database` (`queue.connections.NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseQueueOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// The table of jobs, without the prefix of the database connection.
    pub table: String,
    /// How long a reservation lives.
    pub retry_after: Duration,
    /// How far a pop looks into a queue if it takes only some of the jobs.
    pub look_ahead: usize,
    /// Forwarded queues (`Queue::forward`, Laravel 13): jobs of the first are rows of the second.
    pub forwards: BTreeMap<QueueName, QueueName>,
    /// The clock by which jobs are due.
    pub clock: Clock,
    /// The app's table of failed jobs, if it is in the same database: a job that fails for good becomes a row of it in
    /// the step in which it leaves its queue.
    pub failed: Option<FailedJobsTable>,
}

impl Default for DatabaseQueueOptions {
    fn default() -> Self {
        Self {
            connection: "database".into(),
            table: "jobs".into(),
            // The default of Laravel's connector if the setting is missing or null.
            retry_after: Duration::from_secs(60),
            look_ahead: 500,
            forwards: BTreeMap::new(),
            clock: Clock::System,
            failed: None,
        }
    }
}

/// The queues in one table.
#[derive(Debug)]
pub struct DatabaseQueue {
    table: Table,
    /// The runtime that takes jobs.
    pops_on: OnceLock<runtime::Id>,
    /// Connections for renewals from another runtime.
    renewing: OnceCell<Database>,
    marks: Marks,
    options: DatabaseQueueOptions,
    abilities: Abilities,
    wake: Wake,
    presence: Arc<Presence>,
    pushes: OnceLock<Arc<dyn PushListener>>,
    calls: OnceLock<CallTimes>,
}

/// Hears how long calls take.
#[derive(Debug)]
struct CallTimes(Arc<dyn CallListener>);

/// Most jobs of one transaction, so that none holds its locks for long.
const MOST_AT_ONCE: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not 0");

impl DatabaseQueue {
    /// The statements of Laravel's own migration on `SQLite`, for a file that has no table yet.
    pub(crate) const TABLE_OF_JOBS: [&str; 2] = [
        "create table if not exists \"jobs\" (\"id\" integer primary key autoincrement not null, \"queue\" varchar not null, \
         \"payload\" text not null, \"attempts\" integer not null, \"reserved_at\" integer, \
         \"available_at\" integer not null, \"created_at\" integer not null)",
        "create index if not exists \"jobs_queue_index\" on \"jobs\" (\"queue\")",
    ];
    /// The queues in a table; nothing is opened yet.
    ///
    /// The queues have connections of their own: handlers that hold all connections of the app's pool for long keep
    /// no job waiting.
    ///
    /// # Errors
    ///
    /// As [`Database::new`].
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn new(
        database: &DatabaseOptions,
        options: DatabaseQueueOptions,
    ) -> Result<Self, crate::connection::Error> {
        let abilities = Abilities {
            driver: "database",
            retry_after: Some(options.retry_after),
            most_at_once: MOST_AT_ONCE,
            can: Ability::ALL
                .into_iter()
                .filter(|ability| !matches!(ability, Ability::CountsInPayload | Ability::Migrates))
                .collect(),
        };
        let kind = match database.kind {
            DatabaseKind::Sqlite => "the SQLite file of the queues",
            DatabaseKind::MySql => "MySQL",
            DatabaseKind::Postgres => "PostgreSQL",
        };
        Ok(Self {
            presence: Presence::of(kind, &database.address()),
            table: Table::new(Database::new(database)?, &options.table),
            pops_on: OnceLock::new(),
            renewing: OnceCell::new(),
            marks: Marks::default(),
            wake: Wake::new(database)?,
            options,
            abilities,
            pushes: OnceLock::new(),
            calls: OnceLock::new(),
        })
    }

    /// The database that holds the table.
    #[cfg(any(test, feature = "internals"))]
    pub fn database(&self) -> &Database {
        &self.table.database
    }

    /// The queue as rows name it.
    fn stored<'a>(&'a self, queue: &'a QueueName) -> &'a str {
        self.options.forwards.get(queue).unwrap_or(queue).as_str()
    }

    fn now(&self) -> UnixSeconds {
        self.options.clock.now()
    }

    /// The latest second of a reservation that has ended by now.
    fn expired(&self, now: UnixSeconds) -> i64 {
        let retry_after = i64::try_from(self.options.retry_after.as_secs()).unwrap_or(i64::MAX);
        now.0.saturating_sub(retry_after)
    }

    /// The error of a call about a queue; that the server is away is logged once.
    fn failed(&self, what: &'static str, queue: &str) -> impl FnOnce(Failure) -> Error {
        let queue = QueueName::from(queue);
        move |failure| {
            let Failure { is_unknown, source } = failure;
            let is_away = source.is_lost_connection() && !source.is_deadlock();
            let source = if is_away {
                // What was asked before the server came back may go unanswered until now.
                let asked = source
                    .unanswered_for()
                    .and_then(|time| Instant::now().checked_sub(time));
                self.presence.note_loss(asked, &with_causes(&source));
                crate::connection::Error::Away(Box::new(source))
            } else {
                source
            };
            Error::Sql {
                what,
                queue,
                is_unknown,
                source,
            }
        }
    }

    /// Tells of jobs that are pushed, if anything listens.
    fn tell_pushed<'p>(&self, pushes: impl IntoIterator<Item = &'p Push>) {
        for push in pushes {
            self.tell_push(&push.queue, &push.payload);
        }
    }

    fn tell_push(&self, queue: &QueueName, payload: &[u8]) {
        if let Some(listener) = self.pushes.get() {
            listener.pushed(&self.options.connection, queue, payload);
        }
    }

    /// Tells how long a call takes, if anything listens.
    async fn timed<T, E>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let sent = Instant::now();
        let answer = answer.await;
        if answer.is_ok() {
            self.presence.answered(sent);
        }
        if let Some(CallTimes(listener)) = self.calls.get() {
            listener.answered(call, sent.elapsed(), answer.is_err());
        }
        answer
    }
}

impl Queue for DatabaseQueue {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        Box::pin(self.table.ping())
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        Box::pin(self.timed("pop", self.pop_jobs(request)))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        Box::pin(self.timed("settle", self.settle_jobs(jobs)))
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        Box::pin(self.timed("renew", self.renew_jobs(jobs, now)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        Box::pin(async move {
            let is_woken = self.wake.next(timeout).await;
            let first = queues.first().map_or("", QueueName::as_str);
            let is_woken = is_woken.map_err(self.failed("wait for pushes", first))?;
            // Any of them may have jobs.
            Ok(queues.first().filter(|_| is_woken).cloned())
        })
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let pushed = self.push_payloads(queue, payloads, None).await;
            pushed.map_err(self.failed("push", queue.as_str()))
        })
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let payloads = [payload.to_vec()];
            let pushed = self.push_payloads(queue, &payloads, Some(due)).await;
            pushed.map_err(self.failed("push", queue.as_str()))
        })
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        Box::pin(async move {
            let queue = pushes.first().map_or("", |push| push.queue.as_str());
            let ended = step::repeated(|| self.push_unless_pushed(pushes, once)).await;
            self.wake.now();
            ended.map_err(self.failed("push once", queue))
        })
    }

    fn push_within<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        pushes: &'a [Push],
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            if !transaction.database().is_same(&self.table.database) {
                return Ok(false);
            }
            let queue = pushes.first().map_or("", |push| push.queue.as_str());
            // These are not told of: Laravel's `DatabaseQueue::bulk` raises no event, either.
            let ended = self.push_in(transaction, pushes).await;
            ended.map_err(self.failed("push", queue)).map(|()| true)
        })
    }

    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    fn push_inside<'a>(
        &'a self,
        connection: &'a mut dyn crate::connection::SqlConnection,
        push: &'a Push,
    ) -> Answer<'a, bool, crate::queue::InsideError> {
        Box::pin(self.push_for(connection, push))
    }

    fn row(&self, push: &Push) -> Option<JobRow> {
        let now = self.now();
        Some(JobRow {
            table: self.table.plain().to_owned(),
            queue: self.stored(&push.queue).to_owned(),
            payload: String::from_utf8(push.payload.clone()).ok()?,
            attempts: 0,
            reserved_at: None,
            available_at: push.due.unwrap_or(now),
            created_at: now,
        })
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.holds(queue, place)
    }

    fn was_pushed<'a>(&'a self, _queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let noted = self.pushed_note(id).await;
            Ok(noted.map_err(self.failed("look up a push", id))?.is_some())
        })
    }

    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        // The first one stays.
        let _ = self.pushes.set(listener);
    }

    fn tell_late(&self, pushes: &[Push]) {
        self.tell_pushed(pushes);
    }

    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        drop(self.calls.set(CallTimes(listener)));
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        Box::pin(async move {
            let ended = self.count_ended(queue, now).await;
            // A delayed job that is due counts as pending.
            Ok(Due {
                delayed: 0,
                reserved: ended.map_err(self.failed("count", queue.as_str()))?,
            })
        })
    }

    fn first_due<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Option<UnixSeconds>> {
        Box::pin(async move {
            let first = self.earliest(queue).await;
            first.map_err(self.failed("look at", queue.as_str()))
        })
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        Box::pin(async move {
            let sizes = self.count(queue).await;
            sizes.map_err(self.failed("count", queue.as_str()))
        })
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        Box::pin(async move {
            let found = self.payloads(queue, place, from, limit).await;
            found.map_err(self.failed("look at", queue.as_str()))
        })
    }

    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64> {
        Box::pin(async move {
            let cleared = self.delete_all(queue, now).await;
            cleared.map_err(self.failed("clear", queue.as_str()))
        })
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(async move { self.names().await.map_err(self.failed("list", "*")) })
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        Box::pin(async move { (self.with_quarantine().await).map_err(self.failed("list", "*")) })
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let taken = step::repeated(|| self.take_from_quarantine(queue, payloads, fate)).await;
            self.wake.now();
            taken.map_err(self.failed("empty the quarantine of", queue.as_str()))
        })
    }
}
