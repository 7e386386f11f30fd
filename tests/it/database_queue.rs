//! What only queues in databases do: many workers on one table, columns that end, transactions in each other's way.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::connection::{DatabaseLock, FailedJobsTable, LockPlace, SqlConnection};
use artisand::dispatch::{Dispatch, Dispatched};
use artisand::failed::FailedJob;
use artisand::queue::{
    Claim, ConnectionName, Connections, DatabaseQueue, DatabaseQueueOptions, Destination, Effect,
    Held, Ledger as _, Once, PopRequest, Push, PushListener, PushedOnce, Queue, QueueName,
    ReservedJob, Settled, Settlement, Spool, Unlock,
};
use artisand::time::Clock;
use serde_json::json;

use crate::harness::jobs_table::{JobsTable, migration};
use crate::harness::process::{ManagedChild, artisand, eventually, until};
use crate::harness::sql::{Engine, MariaDb, MySql, Postgres, SqlServer};
use crate::harness::stores::Kind;

/// Makes a test per kind of database of a function that takes the kind.
macro_rules! on_every_database {
    ($($scenario:ident)*) => {
        $(on_databases! { $scenario: sqlite Sqlite mariadb MariaDb mysql MySql postgres Postgres })*
    };
}

/// The same on some kinds of databases.
macro_rules! on_databases {
    ($scenario:ident: $($name:ident $kind:ident)*) => {
        mod $scenario {
            use crate::harness::stores::Kind;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$scenario(Kind::$kind).await;
            })*
        }
    };
}

on_every_database! {
    many_workers_run_every_job_once
    a_job_that_cannot_end_keeps_no_other_from_its_end
    attempts_end_where_the_column_does
    a_job_that_fails_becomes_a_row_in_the_step_that_ends_it
    what_another_transaction_holds_is_passed_by_or_waited_for
    pushes_are_told_once_they_are_made
    identities_that_look_alike_are_not_the_same
    records_of_many_bytes_are_removed_each_once
    reservations_may_end_later_than_the_column_can_say
}

// A transaction locks the whole file of SQLite: there, a settlement under way delays everything.
on_databases! { a_settlement_under_way_delays_no_renewal: mariadb MariaDb mysql MySql postgres Postgres }

// SQLite keeps to no width of a column.
on_databases! { a_lock_whose_key_is_too_long_is_not_taken: mariadb MariaDb mysql MySql postgres Postgres }
on_databases! { attempts_end_where_the_column_of_the_named_schema_does: mariadb MariaDb mysql MySql postgres Postgres }

fn name(text: &str) -> QueueName {
    text.into()
}

fn payload(id: usize) -> Vec<u8> {
    format!(r#"{{"uuid":"u{id}","displayName":"A","job":"A@run","data":""}}"#).into_bytes()
}

async fn pop(queue: &dyn Queue, max: usize) -> Vec<ReservedJob> {
    let request = PopRequest {
        queues: &[name("q")],
        max: NonZeroUsize::new(max).unwrap(),
        now: Clock::System.now(),
        woken: &[],
        selection: None,
        thorough: false,
    };
    queue.pop(request).await.unwrap().jobs
}

async fn many_workers_run_every_job_once(kind: Kind) {
    const JOBS: usize = 3_000;
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    let payloads: Vec<_> = (0..JOBS).map(payload).collect();
    queue.push(&name("q"), &payloads).await.unwrap();
    let workers = (0..6).map(|worker| {
        // Each with connections of its own, as processes have them.
        let queue = table.queue(Clock::System);
        tokio::spawn(async move {
            let mut done = Vec::new();
            loop {
                let jobs = pop(&queue, 7 + worker).await;
                if jobs.is_empty() {
                    return done;
                }
                let ends = jobs.into_iter().enumerate().map(|(place, job)| {
                    let settlement = match place % 3 {
                        0 => Settlement::Delete,
                        1 => Settlement::Finish(vec![Effect::Push(Push {
                            queue: name("next"),
                            payload: job.payload.to_vec(),
                            due: None,
                            claim: None,
                        })]),
                        _ => {
                            let record = String::from_utf8_lossy(&job.payload).into_owned();
                            Settlement::Finish(vec![Effect::Append(
                                Spool::FollowUps,
                                record.into_bytes(),
                            )])
                        }
                    };
                    (Arc::new(job), settlement)
                });
                let ends: Vec<_> = ends.collect();
                let settled = queue.settle(&ends).await.unwrap();
                assert!(settled.iter().all(|settled| *settled == Settled::Done));
                done.extend(ends.into_iter().map(|(job, _)| job.payload.to_vec()));
            }
        })
    });
    let mut done = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        done.extend(worker.await.unwrap());
    }
    assert_eq!(done.len(), JOBS);
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), JOBS);
    let left = queue.sizes(&name("q")).await.unwrap();
    assert_eq!((left.pending, left.reserved), (0, 0));
    let next = queue.sizes(&name("next")).await.unwrap().pending;
    let noted = artisand::queue::Ledger::length(&queue, Spool::FollowUps);
    let noted = noted.await.unwrap();
    assert!(next > 0 && noted > 0);
    assert!(usize::try_from(next + noted).unwrap() < JOBS);
}

async fn a_job_that_cannot_end_keeps_no_other_from_its_end(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    let payloads = [payload(1), payload(2), payload(3)];
    queue.push(&name("q"), &payloads).await.unwrap();
    let mut jobs = pop(&queue, 3).await.into_iter().map(Arc::new);
    let mut next = |settlement| (jobs.next().unwrap(), settlement);
    let push = |payload: &[u8]| {
        Effect::Push(Push {
            queue: name("next"),
            payload: payload.to_vec(),
            due: None,
            claim: None,
        })
    };
    // A database holds text only.
    let broken = Settlement::Finish(vec![push(b"{}"), push(b"\xff")]);
    let ends = [
        next(Settlement::Finish(vec![push(b"{}")])),
        next(broken),
        next(Settlement::Delete),
    ];
    let error = queue.settle(&ends).await.unwrap_err();
    assert_eq!(
        error.settled,
        [Some(Settled::Done), None, Some(Settled::Done)]
    );
    let text = format!("{:?}", error.source);
    assert!(text.contains("NotText"), "{text}");
    assert!(!error.source.is_of_unknown_outcome());
    let next = queue.sizes(&name("next")).await.unwrap();
    assert_eq!(next.pending, 1);
    let left = queue.sizes(&name("q")).await.unwrap();
    assert_eq!((left.pending, left.reserved), (0, 1));
}

/// The pushes that were told: connection, queue and payload.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl PushListener for Told {
    fn pushed(&self, connection: &ConnectionName, queue: &QueueName, payload: &[u8]) {
        let payload = String::from_utf8_lossy(payload);
        let push = format!("{connection} {queue} {payload}");
        self.0.lock().unwrap().push(push);
    }
}

async fn pushes_are_told_once_they_are_made(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let (queue, told) = (table.queue(Clock::System), Arc::new(Told::default()));
    queue.tell_pushes(Arc::<Told>::clone(&told));
    let told = || std::mem::take(&mut *told.0.lock().unwrap());
    let push = |payload: &str, claim| Push {
        queue: name("q"),
        payload: payload.into(),
        due: None,
        claim,
    };
    let lock = |owner: &str| Claim {
        place: LockPlace::Database(DatabaseLock {
            database: queue.database().clone(),
            table: queue.database().table("cache_locks"),
            key: "lock".into(),
            forever: Duration::from_secs(60),
        }),
        owner: owner.into(),
        ttl: Duration::ZERO,
    };
    queue.push(&name("q"), &[b"1".to_vec()]).await.unwrap();
    let due = Clock::System.now().plus(Duration::from_secs(60));
    queue.later(&name("q"), due, b"2").await.unwrap();
    assert_eq!(told(), ["database q 1", "database q 2"]);
    let once = Once {
        id: "once",
        remembered: Duration::from_secs(60),
        note: "",
    };
    for told_of in [&["database q 3"][..], &[]] {
        let pushes = [push("3", Some(lock("one")))];
        queue.push_once(&pushes, once).await.unwrap();
        assert_eq!(told(), told_of);
    }
    let job = Arc::new(pop(&queue, 1).await.remove(0));
    let effects = [push("4", Some(lock("other"))), push("5", None)].map(Effect::Push);
    let end = [(job, Settlement::Finish(effects.into()))];
    queue.settle(&end).await.unwrap();
    assert_eq!(told(), ["database q 5"]);
    // The job is gone, and nothing is pushed.
    queue.settle(&end).await.unwrap();
    assert_eq!(told(), [""; 0]);
}

/// The collation of `MySQL` and `MariaDB` takes these for equal.
async fn identities_that_look_alike_are_not_the_same(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    let ids = ["José", "Jose", "jose", "Jose "];
    for (number, id) in ids.into_iter().enumerate() {
        let push = Push {
            queue: name("q"),
            payload: payload(number),
            due: None,
            claim: None,
        };
        let once = Once {
            id,
            remembered: Duration::from_secs(60),
            note: id,
        };
        let (now, before) = (
            PushedOnce::Now { locked: 0 },
            PushedOnce::Before { note: id.into() },
        );
        for expected in [now, before] {
            let pushed = queue.push_once(std::slice::from_ref(&push), once).await;
            assert_eq!(pushed.unwrap(), expected, "{id:?}");
        }
    }
    assert_eq!(pop(&queue, 9).await.len(), ids.len());
    let at = Clock::System.now();
    queue.note_end(ids[0], at, &[]).await.unwrap();
    let ends = queue.ends(&ids.map(str::to_owned)).await.unwrap();
    assert_eq!(ends, [Some(at), None, None, None]);
}

async fn records_of_many_bytes_are_removed_each_once(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    let records = ["a", "A", "a", "b"].map(|letter| letter.repeat(200_000).into_bytes());
    let spool = Spool::FollowUps;
    let effects = records.clone().map(|record| Effect::Append(spool, record));
    let at = Clock::System.now();
    queue.note_end("id", at, &effects).await.unwrap();
    let lives = Duration::from_secs(60);
    assert!(queue.lease(spool, "me", lives).await.unwrap());
    for expected in [3, 0] {
        let removed = queue.ack(spool, "me", &records[..3], &[]).await;
        assert_eq!(removed.unwrap(), expected);
        let left = queue.read(spool, 0, 9).await.unwrap();
        assert!(left == records[3..], "{} are left", left.len());
    }
}

async fn a_lock_whose_key_is_too_long_is_not_taken(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    for (length, fits) in [(255, true), (256, false)] {
        let place = LockPlace::Database(DatabaseLock {
            database: table.database(),
            table: queue.database().table("cache_locks"),
            key: "ł".repeat(length),
            forever: Duration::from_secs(60),
        });
        let claim = Claim {
            place,
            owner: "me".into(),
            ttl: Duration::ZERO,
        };
        let push = Push {
            queue: name("q"),
            payload: payload(1),
            due: None,
            claim: Some(claim),
        };
        let id = length.to_string();
        let once = Once {
            id: &id,
            remembered: Duration::from_secs(60),
            note: "",
        };
        let pushed = queue.push_once(&[push], once).await;
        let is_pushed = matches!(pushed, Ok(PushedOnce::Now { locked: 0 }));
        assert_eq!(is_pushed, fits, "{length} characters: {pushed:?}");
    }
    assert_eq!(pop(&queue, 9).await.len(), 1);
}

async fn reservations_may_end_later_than_the_column_can_say(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let options = DatabaseQueueOptions {
        // The end is beyond what the column can hold.
        retry_after: Duration::from_secs(2_147_483_647),
        ..DatabaseQueueOptions::default()
    };
    let queue = DatabaseQueue::new(table.options(), options).unwrap();
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    for expected in [1, 0] {
        assert_eq!(pop(&queue, 9).await.len(), expected);
    }
}

async fn a_job_that_fails_becomes_a_row_in_the_step_that_ends_it(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let failed = FailedJobsTable {
        name: "failed_jobs".into(),
        by_uuid: true,
        timezone: jiff::tz::TimeZone::UTC,
    };
    let (queue, database) = (
        table.queue_beside(Clock::System, Some(failed)),
        table.database(),
    );
    let end = async |uuid: &str| {
        queue.push(&name("q"), &[payload(1)]).await.unwrap();
        let job = pop(&queue, 1).await.remove(0);
        let record = FailedJob {
            uuid: Some(uuid.into()),
            connection: "database".into(),
            queue: "q".into(),
            payload: String::from_utf8(job.payload.to_vec()).unwrap(),
            exception: "RuntimeException: why\0".into(),
            failed_at: 1_767_323_045,
            token: None,
        };
        let settlement = Settlement::Finish(vec![Effect::Record(record)]);
        let settled = queue.settle(&[(Arc::new(job), settlement)]).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
    };
    let noted = async || {
        let notes = queue.read(Spool::FailedJobs, 0, 10).await.unwrap();
        notes.len()
    };
    end("u1").await;
    let text = |column| database.as_text(column);
    let sql = format!(
        "select \"uuid\", \"exception\", {}, \"queue\" from \"failed_jobs\"",
        text("failed_at")
    );
    let rows = database.rows(&sql, &[]).await.unwrap();
    let columns = |column| rows[0].text(column).unwrap().into_owned();
    assert_eq!(
        [0, 1, 2, 3].map(columns),
        ["u1", "RuntimeException: why?", "2026-01-02 03:04:05", "q"]
    );
    assert_eq!((rows.len(), noted().await), (1, 0));
    // The recorder judges what to do about another failure of the same job.
    end("u1").await;
    assert_eq!(database.rows(&sql, &[]).await.unwrap().len(), 1);
    assert_eq!(noted().await, 1);
    // It waits for a table that is not there; the job has ended.
    let gone = database.execute("drop table \"failed_jobs\"", &[]).await;
    gone.unwrap();
    end("u2").await;
    assert_eq!(noted().await, 2);
    let left = queue.sizes(&name("q")).await.unwrap();
    assert_eq!((left.pending, left.reserved), (0, 0));
}

async fn attempts_end_where_the_column_does(kind: Kind) {
    let most = match kind {
        Kind::Sqlite => return sqlite_counts_on().await,
        Kind::MariaDb | Kind::MySql => 255,
        Kind::Postgres => 32_767,
    };
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    for (before, expected) in [
        (0, 1),
        (most - 2, u32::try_from(most - 1).unwrap()),
        (most - 1, ReservedJob::UNCOUNTABLE),
        (most, ReservedJob::UNCOUNTABLE),
    ] {
        table.set("attempts", before).await;
        let job = pop(&queue, 1).await.remove(0);
        assert_eq!(job.attempts, expected, "after {before} attempts");
        let settled = queue.settle(&[(Arc::new(job), Settlement::PutBack)]).await;
        assert_eq!(settled.unwrap(), [Settled::Done], "after {before} attempts");
    }
}

async fn attempts_end_where_the_column_of_the_named_schema_does(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let (database, own) = (table.database(), &table.options().database);
    let schema = format!("{own}_other");
    let (create, jobs, most) = match kind {
        Kind::Postgres => ("schema", format!("set schema {schema}"), 32_767),
        _ => ("database", format!("rename to {schema}.jobs"), 255),
    };
    for sql in [
        format!("create {create} {schema}"),
        format!("alter table jobs {jobs}"),
    ] {
        database.execute(&sql, &[]).await.unwrap();
    }
    let options = DatabaseQueueOptions {
        table: format!("{schema}.jobs"),
        ..DatabaseQueueOptions::default()
    };
    let queue = DatabaseQueue::new(table.options(), options).unwrap();
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let sql = format!("update {schema}.jobs set attempts = {most}");
    database.execute(&sql, &[]).await.unwrap();
    let job = pop(&queue, 1).await.remove(0);
    assert_eq!(job.attempts, ReservedJob::UNCOUNTABLE);
}

async fn sqlite_counts_on() {
    let table = JobsTable::create(Kind::Sqlite).await;
    let queue = table.queue(Clock::System);
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    table.set("attempts", 70_000).await;
    assert_eq!(pop(&queue, 1).await[0].attempts, 70_001);
}

/// As a worker of PHP does in the middle of its own pop.
async fn what_another_transaction_holds_is_passed_by_or_waited_for(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = table.queue(Clock::System);
    let payloads = [payload(1), payload(2)];
    queue.push(&name("q"), &payloads).await.unwrap();
    let database = table.database();
    let mut other = database.begin().await.unwrap();
    let first = "update \"jobs\" set \"attempts\" = \"attempts\" where \"id\" = 1";
    other.execute(first, &[]).await.unwrap();
    if kind == Kind::Sqlite {
        // One writer at a time: the pop waits for it.
        let popped = tokio::spawn(async move { pop(&queue, 2).await.len() });
        other.commit().await.unwrap();
        assert_eq!(popped.await.unwrap(), 2);
        return;
    }
    let jobs = pop(&queue, 2).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(*jobs[0].payload, *payload(2));
    other.rollback().await.unwrap();
    assert_eq!(*pop(&queue, 2).await[0].payload, *payload(1));
}

/// As while a handler blocks the thread that settles, in the middle of a transaction.
async fn a_settlement_under_way_delays_no_renewal(kind: Kind) {
    let table = JobsTable::create(kind).await;
    let queue = Arc::new(table.queue(Clock::System));
    let payloads: Vec<_> = (1..=4).map(payload).collect();
    queue.push(&name("q"), &payloads).await.unwrap();
    let jobs: Vec<_> = pop(&*queue, 4).await.into_iter().map(Arc::new).collect();
    let database = table.database();
    let lock =
        "insert into \"cache_locks\" (\"key\", \"owner\", \"expiration\") values ('lock', 'me', 1)";
    database.execute(lock, &[]).await.unwrap();
    // The settlement comes to this row once it has that of its job.
    let mut other = database.begin().await.unwrap();
    let taken = "update \"cache_locks\" set \"owner\" = 'other' where \"key\" = 'lock'";
    other.execute(taken, &[]).await.unwrap();
    let unlock = Effect::Unlock(Unlock {
        place: LockPlace::Database(DatabaseLock {
            database: database.clone(),
            table: database.table("cache_locks"),
            key: "lock".into(),
            forever: Duration::from_secs(60),
        }),
        owner: None,
    });
    let end = [(Arc::clone(&jobs[0]), Settlement::Finish(vec![unlock]))];
    let settling = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.settle(&end).await.unwrap() }
    });
    let text = |column| database.as_text(column);
    let first = format!(
        "select {} from \"jobs\" where \"id\" = 1 for update skip locked",
        text("id")
    );
    until(
        "the settlement has locked its job",
        Duration::from_secs(60),
        async || {
            assert!(!settling.is_finished());
            database.rows(&first, &[]).await.unwrap().is_empty()
        },
    )
    .await;
    let later = Clock::System.now().plus(Duration::from_secs(5));
    let renewed = tokio::time::timeout(Duration::from_secs(15), queue.renew(&jobs, later));
    let renewed = renewed.await.expect("it waits for no settlement").unwrap();
    assert_eq!(
        renewed,
        [Held::Until(later.plus(Duration::from_secs(90))); 4]
    );
    let others = format!(
        "select {} from \"jobs\" where \"id\" > 1",
        text("reserved_at")
    );
    let others = database.rows(&others, &[]).await.unwrap();
    let since: Vec<_> = others.iter().map(|row| row.int(0)).collect();
    assert_eq!(since, [Some(later.0); 3]);
    other.rollback().await.unwrap();
    assert_eq!(settling.await.unwrap(), [Settled::Done]);
    // It is marked no longer: what is gone is gone.
    let held = queue.renew(&jobs[..1], later).await.unwrap();
    assert_eq!(held, [Held::Lost]);
}

#[test]
fn a_handler_that_blocks_its_thread_delays_no_renewal() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    for kind in Kind::ALL {
        let (of_jobs, overseer) = (runtime(), runtime());
        let (table, queue, jobs) = of_jobs.block_on(async {
            let table = JobsTable::create(kind).await;
            let queue = table.queue(Clock::System);
            let payloads = [payload(1), payload(2)];
            queue.push(&name("q"), &payloads).await.unwrap();
            let jobs: Vec<_> = pop(&queue, 2).await.into_iter().map(Arc::new).collect();
            // All connections of the pool are open from here on.
            let q = name("q");
            let looks = (0..8).map(|_| queue.sizes(&q));
            for sizes in futures_util::future::join_all(looks).await {
                assert_eq!(sizes.unwrap().reserved, 2);
            }
            (table, queue, jobs)
        });
        // Nothing drives them now: the thread of their runtime is here.
        let later = Clock::System.now().plus(Duration::from_secs(5));
        let held = overseer.block_on(queue.renew(&jobs, later)).unwrap();
        let end = later.plus(Duration::from_secs(90));
        assert_eq!(held, [Held::Until(end); 2], "{kind:?}");
        drop(table);
    }
}

#[tokio::test]
async fn a_transaction_on_postgres_sees_what_others_commit_meanwhile() {
    let table = JobsTable::create(Kind::Postgres).await;
    let (database, env) = (table.database(), &table.settings);
    let own = env.iter().find(|(variable, _)| *variable == "DB_DATABASE");
    let default = format!(
        "alter database {} set default_transaction_isolation = 'serializable'",
        own.unwrap().1
    );
    database.execute(&default, &[]).await.unwrap();
    // It counts for new connections.
    let mut transaction = table.database().begin().await.unwrap();
    let level = "select current_setting('transaction_isolation')";
    let level = transaction.rows(level, &[]).await.unwrap();
    assert_eq!(level[0].text(0).unwrap(), "read committed");
}

/// As after a failover, when the old writer lives on, and new connections reach the new one.
#[tokio::test]
async fn connections_on_which_postgres_has_become_read_only_are_replaced() {
    let table = JobsTable::create(Kind::Postgres).await;
    let (database, own) = (table.database(), &table.options().database);
    let set = async |value: &str| {
        let sql = format!("alter database {own} set default_transaction_read_only = {value}");
        database.execute(&sql, &[]).await.unwrap();
    };
    set("on").await;
    let queue = table.queue(Clock::System);
    let (q, payloads) = (name("q"), [payload(1)]);
    queue.push(&q, &payloads).await.unwrap_err();
    // It counts for new connections.
    set("off").await;
    queue.push(&q, &payloads).await.unwrap();
    assert_eq!(pop(&queue, 9).await.len(), 1);
}

/// What a manifest says of an app whose queues are in this database.
fn manifest_of<E: Engine>(server: &SqlServer<E>) -> serde_json::Value {
    let env = server.env();
    let of = |name: &str| {
        env.iter()
            .find(|(variable, _)| *variable == name)
            .unwrap()
            .1
            .clone()
    };
    serde_json::json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "cache_prefixes": {},
        "paths": {"base": "/nonexistent", "storage": "/nonexistent"},
        "config": {
            "app": {"maintenance": {"driver": "file"}, "timezone": "UTC"},
            "cache": {"default": "array", "stores": {"array": {"driver": "array"}}, "prefix": ""},
            "database": {"default": "app", "connections": {"app": {
                "driver": of("DB_CONNECTION"), "host": of("DB_HOST"), "port": of("DB_PORT"),
                "database": of("DB_DATABASE"), "username": of("DB_USERNAME"), "password": of("DB_PASSWORD"),
                "prefix": "",
            }}},
            "queue": {
                "default": "database",
                "connections": {"database": {
                    "driver": "database", "table": "jobs", "queue": "q", "retry_after": 5,
                }},
                "failed": {"driver": "null"},
            },
        },
    })
}

/// A server that is stopped in the middle of the work, and comes back: nothing is lost, and it is said once.
fn a_server_that_goes_away_is_waited_for<E: Engine>(kind: Kind) {
    const JOBS: usize = 400;
    let mut server = SqlServer::<E>::start();
    for statement in migration(kind) {
        let quoted = if kind == Kind::Postgres { "\"" } else { "`" };
        server.query(&statement.replace('"', quoted));
    }
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
    write("artisand.json", &manifest_of(&server).to_string());
    write(
        "artisand.toml",
        "settings = 'manifest'\n[[map]]\nstring = 'A@run'\nhandler = { exec = ['sh', '-c', 'sleep 0.02; echo >> done'] }\n",
    );
    let values = (0..JOBS).map(|id| {
        let payload = String::from_utf8(payload(id)).unwrap();
        format!("('q', '{payload}', 0, null, 0, 0)")
    });
    let columns = "queue, payload, attempts, reserved_at, available_at, created_at";
    let values = values.collect::<Vec<_>>().join(", ");
    server.query(&format!("insert into jobs ({columns}) values {values}"));
    let mut work = artisand(&["queue:work", "--concurrency=4", "--tries=9"]);
    let mut worker = ManagedChild::spawn({
        work.current_dir(home.path());
        work
    });
    let done = || {
        let done = std::fs::read_to_string(home.path().join("done"));
        done.unwrap_or_default().lines().count()
    };
    let patience = Duration::from_secs(90);
    eventually("jobs are run", patience, || {
        assert!(worker.is_running(), "{}", worker.describe());
        (done() > 20).then_some(())
    });
    server.kill();
    eventually("it is said", patience, || {
        worker.stderr().contains("away").then_some(())
    });
    server.restart();
    let left = "select count(*) from jobs where queue = 'q'";
    eventually("all jobs are run and deleted", patience, || {
        assert!(worker.is_running(), "{}", worker.describe());
        (server.query(left)[0][0].as_deref() == Some("0")).then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(patience);
    assert!(done() >= JOBS, "{} of {JOBS}", done());
    let log = worker.stderr();
    let said = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!((said(" is away"), said(" is back")), (1, 1), "{log}");
}

#[test]
fn a_mariadb_that_goes_away_is_waited_for() {
    a_server_that_goes_away_is_waited_for::<MariaDb>(Kind::MariaDb);
}

#[test]
fn a_mysql_that_goes_away_is_waited_for() {
    a_server_that_goes_away_is_waited_for::<MySql>(Kind::MySql);
}

#[test]
fn a_postgres_that_goes_away_is_waited_for() {
    a_server_that_goes_away_is_waited_for::<Postgres>(Kind::Postgres);
}

/// Pushes in a transaction of the caller: there with the commit, and not without it.
async fn pushed_inside<C>(
    queue: Arc<artisand::queue::DatabaseQueue>,
    connection: &mut C,
    ends: [&str; 2],
) where
    C: SqlConnection,
{
    let mut services = artisand::handler::Services::default();
    services.version = "13.31.0".parse().unwrap();
    let here = Destination {
        default_queue: "q".into(),
        queues: Ok(Arc::clone(&queue) as Arc<dyn Queue>),
    };
    services.connections = Some(Connections::new(
        "database",
        [("database".to_owned(), here)],
    ));
    let dispatch = Dispatch::of_services(services);
    let sizes = async || {
        let sizes = queue.sizes(&name("q")).await.unwrap();
        (sizes.pending, sizes.delayed)
    };
    for (end, expected) in ends.into_iter().zip([(0, 0), (1, 1)]) {
        connection.run("begin", &[]).await.unwrap();
        let job = || dispatch.string("A@run", &json!({"n": 1}));
        let done = job().inside(connection).await.unwrap();
        assert!(matches!(done, Dispatched::Queued { .. }), "{done:?}");
        let delayed = job().delay(Duration::from_secs(60)).inside(connection);
        delayed.await.unwrap();
        assert_eq!(sizes().await, (0, 0), "before {end}");
        connection.run(end, &[]).await.unwrap();
        assert_eq!(sizes().await, expected, "after {end}");
    }
    let mut taken = pop(&*queue, 2).await;
    assert_eq!(taken.len(), 1);
    let payload = String::from_utf8(taken.remove(0).payload.to_vec()).unwrap();
    assert!(
        payload.contains("\"job\":\"A@run\"") && !payload.contains("\"attempts\""),
        "{payload}"
    );
    // A lock in the same database is taken with the push.
    let push = Push {
        queue: name("locked"),
        payload: b"{}".to_vec(),
        due: None,
        claim: Some(Claim {
            place: LockPlace::Database(DatabaseLock {
                database: queue.database().clone(),
                table: queue.database().table("cache_locks"),
                key: "lock".into(),
                forever: Duration::from_secs(60),
            }),
            owner: "me".into(),
            ttl: Duration::ZERO,
        }),
    };
    assert!(queue.push_inside(connection, &push).await.unwrap());
    assert!(!queue.push_inside(connection, &push).await.unwrap());
    assert_eq!(queue.sizes(&name("locked")).await.unwrap().pending, 1);
    // For callers with another library.
    let row = dispatch
        .string("A@run", &json!({"n": 2}))
        .row()
        .await
        .unwrap();
    assert_eq!((&*row.table, &*row.queue, row.attempts), ("jobs", "q", 0));
    assert_eq!((row.reserved_at, row.available_at), (None, row.created_at));
    assert!(row.payload.contains("A@run"));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_pushed_in_transactions_of_their_callers() {
    use sqlx::Connection as _;
    const ENDS: [&str; 2] = ["rollback", "commit"];
    for kind in Kind::ALL {
        let table = JobsTable::create(kind).await;
        let queue = Arc::new(table.queue(Clock::System));
        let url = table.url();
        match kind {
            Kind::Sqlite => {
                let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
                pushed_inside(queue, &mut connection, ENDS).await;
            }
            Kind::MariaDb | Kind::MySql => {
                let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
                pushed_inside(Arc::clone(&queue), &mut connection, ENDS).await;
                // A connection of another kind is refused.
                let other = JobsTable::create(Kind::Postgres).await;
                let other = other.queue(Clock::System);
                let push = Push {
                    queue: name("q"),
                    payload: b"{}".to_vec(),
                    due: None,
                    claim: None,
                };
                let error = other.push_inside(&mut connection, &push).await.unwrap_err();
                assert!(
                    error.to_string().contains("in another kind of database"),
                    "{error}"
                );
            }
            Kind::Postgres => {
                let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
                pushed_inside(queue, &mut connection, ENDS).await;
            }
        }
    }
}
