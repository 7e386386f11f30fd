//! The table of batches: the rules for every database, and the effects of other transactions on artisand's.

use std::sync::Arc;
use std::time::Duration;

use artisand::batch::{Batch, Batches, Ended, Error, JobOutcome, Prune, Recorded};
use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Param, Transaction};
use artisand::handler::{JobContext, JobInfo, Services};
use artisand::payload::{Payload, Version};
use artisand::queue::{MemoryQueue, Spool};
use artisand::routing::{Registry, Router, UnmappedPolicy};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::harness::jobs_table::batches_table;
use crate::harness::process::until;
use crate::harness::sql::{MariaDbServer, NAME, PASSWORD, PostgresServer};

use JobOutcome::{Failed, Succeeded};
use Recorded::{AlreadyCounted, Counted, NeedsPhp, NoBatch};

const NOW: i64 = 1_767_323_045;
const SOON: Duration = Duration::from_secs(30);

/// A private database with the table of batches that Laravel 8 creates.
struct Home {
    server: Server,
    options: DatabaseOptions,
}

enum Server {
    Sqlite(TempDir),
    MariaDb(MariaDbServer),
    Postgres(PostgresServer),
}

impl Home {
    async fn start(kind: DatabaseKind) -> Self {
        let server = tokio::task::spawn_blocking(move || match kind {
            DatabaseKind::Sqlite => Server::Sqlite(TempDir::new().unwrap()),
            DatabaseKind::MySql => Server::MariaDb(MariaDbServer::start()),
            DatabaseKind::Postgres => Server::Postgres(PostgresServer::start()),
        });
        let server = server.await.unwrap();
        let mut options = DatabaseOptions {
            prefix: "app_".into(),
            ..DatabaseOptions::new("main", kind)
        };
        let env = match &server {
            Server::Sqlite(directory) => {
                let path = directory.path().join("database.sqlite");
                std::fs::write(&path, b"").unwrap();
                options.database = path.to_str().unwrap().into();
                None
            }
            Server::MariaDb(server) => Some(server.env()),
            Server::Postgres(server) => Some(server.env()),
        };
        if let Some(env) = env {
            let port = env.iter().find(|(name, _)| *name == "DB_PORT");
            options.port = port.unwrap().1.parse().unwrap();
            options.database = NAME.into();
            options.username = NAME.into();
            options.password = Some(PASSWORD.into());
        }
        if kind == DatabaseKind::Postgres {
            // Statements of a connection without this setting would not look here.
            options.search_path = Some("shop".into());
        }
        let home = Self { server, options };
        let (schema, long) = match kind {
            DatabaseKind::Sqlite => ("", "text"),
            DatabaseKind::MySql => ("", "mediumtext"),
            DatabaseKind::Postgres => {
                home.run("create schema shop").await;
                ("shop.", "text")
            }
        };
        let table = batches_table(&format!("{schema}app_job_batches"), long);
        home.run(&table).await;
        home
    }

    /// Runs a statement as the administrator.
    async fn run(&self, sql: &str) {
        match &self.server {
            Server::Sqlite(_) => {
                self.database().execute(sql, &[]).await.unwrap();
            }
            Server::MariaDb(server) => drop(server.query(sql)),
            Server::Postgres(server) => drop(server.query(sql)),
        }
    }

    /// The number that a query returns.
    fn number(&self, sql: &str) -> i64 {
        let rows = match &self.server {
            Server::Sqlite(_) => unreachable!("asked of servers only"),
            Server::MariaDb(server) => server.query(sql),
            Server::Postgres(server) => server.query(sql),
        };
        rows[0].last().unwrap().as_ref().unwrap().parse().unwrap()
    }

    /// The connections of another process.
    fn database(&self) -> Database {
        Database::new(&self.options).unwrap()
    }

    fn batches_at(&self, now: i64) -> Batches {
        let version: Version = "13.31.0".parse().unwrap();
        let clock = Clock::Fixed(UnixSeconds(now));
        Batches::new(self.database(), "job_batches", version, clock)
    }

    fn batches(&self) -> Batches {
        self.batches_at(NOW)
    }

    /// Writes a row; `jobs` are total, pending and failed.
    async fn insert(&self, id: &str, jobs: [i64; 3], options: &str) {
        let database = self.database();
        let sql = format!(
            "insert into {} (\"id\", \"name\", \"total_jobs\", \"pending_jobs\", \"failed_jobs\", \"failed_job_ids\", \"options\", \"created_at\") \
             values (?, 'n', ?, ?, ?, '[]', ?, ?)",
            database.table("job_batches")
        );
        let [total, pending, failed] = jobs.map(Param::from);
        let params = [
            id.into(),
            total,
            pending,
            failed,
            options.into(),
            1000.into(),
        ];
        database.execute(&sql, &params).await.unwrap();
    }

    /// `failed_job_ids` and `options` as they are.
    async fn columns(&self, id: &str) -> [String; 2] {
        let database = self.database();
        let sql = format!(
            "select {}, {} from {} where \"id\" = ?",
            database.as_text("failed_job_ids"),
            database.as_text("options"),
            database.table("job_batches")
        );
        let rows = database.rows(&sql, &[id.into()]).await.unwrap();
        [0, 1].map(|column| rows[0].text(column).unwrap().into_owned())
    }
}

fn ended(outcome: JobOutcome, uuid: impl Into<String>) -> Ended {
    Ended {
        uuid: uuid.into(),
        outcome,
        token: String::new(),
    }
}

fn ended_again(outcome: JobOutcome, uuid: &str, token: &str) -> Ended {
    Ended {
        token: token.into(),
        ..ended(outcome, uuid)
    }
}

async fn find(batches: &Batches, id: &str) -> Batch {
    batches.find(id).await.unwrap().unwrap()
}

/// Pending and failed.
fn counters(batch: &Batch) -> (i64, i64) {
    (batch.pending_jobs, batch.failed_jobs)
}

async fn endings_count_once_until_they_are_forgotten(home: Home) {
    let batches = home.batches();
    batches.check().await.unwrap();
    home.insert("b", [5, 5, 0], "a:0:{}").await;
    home.insert("other", [5, 5, 0], "a:0:{}").await;
    let endings = [
        ended(Succeeded, "u-1"),
        ended(Failed, "u-2"),
        ended(Succeeded, "u-1"),
        ended(Failed, "u-3"),
    ];
    let recorded = batches.record("b", &endings).await.unwrap();
    assert_eq!(recorded, [Counted, Counted, AlreadyCounted, Counted]);
    let batch = find(&batches, "b").await;
    assert_eq!(counters(&batch), (4, 2));
    assert_eq!(batch.failed_job_ids, ["u-2", "u-3"]);
    assert_eq!(
        (batch.cancelled_at, batch.finished_at),
        (Some(UnixSeconds(NOW)), Some(UnixSeconds(NOW)))
    );
    assert_eq!((batch.progress(), batch.processed_jobs()), (20, 1));
    let marked =
        r#"["artisand:succeeded:u-1","u-2","artisand:failed:u-2","u-3","artisand:failed:u-3"]"#;
    assert_eq!(home.columns("b").await[0], marked);

    // By another process, later: nothing changes.
    let later = home.batches_at(NOW + 60);
    let again = later.record("b", &endings).await.unwrap();
    assert_eq!(again, [AlreadyCounted; 4]);
    assert_eq!(find(&batches, "b").await, batch);

    // The marks of the others stay.
    for _ in 0..2 {
        later.forget_marks("b", &endings[1..3]).await.unwrap();
        let left = r#"["u-2","u-3","artisand:failed:u-3"]"#;
        assert_eq!(home.columns("b").await[0], left);
    }
    later.forget_marks("b", &endings).await.unwrap();
    assert_eq!(home.columns("b").await[0], r#"["u-2","u-3"]"#);
    assert_eq!(find(&batches, "b").await, batch);

    // A failed job that was retried.
    let retried = [ended(Succeeded, "u-2"), ended(Failed, "u-3")];
    let recorded = later.record("b", &retried).await.unwrap();
    assert_eq!(recorded, [Counted; 2]);
    let batch = find(&batches, "b").await;
    assert_eq!(counters(&batch), (3, 3));
    assert_eq!(batch.failed_job_ids, ["u-3"]);
    assert_eq!(batch.cancelled_at, Some(UnixSeconds(NOW)));

    let rest = ["u-3", "u-4", "u-5"].map(|uuid| ended(Succeeded, uuid));
    later.record("b", &rest).await.unwrap();
    let batch = find(&batches, "b").await;
    assert_eq!(counters(&batch), (0, 3));
    assert_eq!(batch.finished_at, Some(UnixSeconds(NOW + 60)));
    assert_eq!(counters(&find(&batches, "other").await), (5, 0));
}

async fn every_end_of_a_retried_job_counts_once(home: Home) {
    let batches = home.batches();
    home.insert("b", [2, 2, 0], "a:1:{s:13:\"allowFailures\";b:1;}")
        .await;
    // Failed, retried, failed, retried, done, and none of the records was cleaned up in between.
    let endings = [
        ended_again(Failed, "u-1", "0f"),
        ended_again(Failed, "u-1", "a2"),
        ended_again(Failed, "u-1", "0f"),
        ended_again(Succeeded, "u-1", "0f"),
        ended(Failed, "u-1"),
    ];
    let expected = [Counted, Counted, AlreadyCounted, Counted, Counted];
    let recorded = batches.record("b", &endings).await.unwrap();
    assert_eq!(recorded, expected);
    assert_eq!(counters(&find(&batches, "b").await), (1, 3));
    let recorded = batches.record("b", &endings).await.unwrap();
    assert_eq!(recorded, [AlreadyCounted; 5]);
    assert_eq!(counters(&find(&batches, "b").await), (1, 3));

    batches.forget_marks("b", &endings[..1]).await.unwrap();
    let left =
        r#"["artisand:failed:u-1:a2","artisand:succeeded:u-1:0f","u-1","artisand:failed:u-1"]"#;
    assert_eq!(home.columns("b").await[0], left);
    let recorded = batches.record("b", &endings[1..]).await.unwrap();
    assert_eq!(
        recorded,
        [AlreadyCounted, Counted, AlreadyCounted, AlreadyCounted]
    );
    batches.forget_marks("b", &endings).await.unwrap();
    assert_eq!(home.columns("b").await[0], r#"["u-1"]"#);
    assert_eq!(counters(&find(&batches, "b").await), (1, 4));
}

async fn callbacks_are_left_to_php_and_stay_as_they_are(home: Home) {
    let batches = home.batches();
    // A NUL, as in names of private properties, and text that is not ASCII.
    let plain = "a:2:{s:13:\"allowFailures\";b:1;s:4:\"then\";a:1:{i:0;O:2:\"Cb\":1:{s:5:\"\0Cb\0n\";s:2:\"\u{17c}\";}}}";
    let options = match home.options.kind {
        // PostgreSQL refuses NUL, so Laravel writes base64 there.
        DatabaseKind::Postgres => {
            "YToyOntzOjEzOiJhbGxvd0ZhaWx1cmVzIjtiOjE7czo0OiJ0aGVuIjthOjE6e2k6MDtPOjI6IkNiIjoxOntzOjU6IgBDYgBuIjtzOjI6IsW8Ijt9fX0="
        }
        DatabaseKind::Sqlite | DatabaseKind::MySql => plain,
    };
    home.insert("b", [4, 3, 0], options).await;
    let batch = find(&batches, "b").await;
    assert!(batch.allows_failures() && batch.options.callbacks.then);
    let endings = [
        ended(Succeeded, "u-1"),
        ended(Failed, "u-2"),
        ended(Succeeded, "u-3"),
        ended(Succeeded, "u-2"),
        ended(Failed, "u-4"),
    ];
    for expected in [
        [Counted, Counted, Counted, NeedsPhp, Counted],
        [
            AlreadyCounted,
            AlreadyCounted,
            AlreadyCounted,
            NeedsPhp,
            AlreadyCounted,
        ],
    ] {
        let recorded = batches.record("b", &endings).await.unwrap();
        assert_eq!(recorded, expected);
        let batch = find(&batches, "b").await;
        assert_eq!(counters(&batch), (1, 2));
        assert_eq!(batch.failed_job_ids, ["u-2", "u-4"]);
        assert_eq!((batch.finished_at, batch.cancelled_at), (None, None));
        assert_eq!(home.columns("b").await[1], options);
    }
}

async fn many_at_once_lose_no_count(home: Home) {
    const JOBS: i64 = 60;
    home.insert("b", [JOBS, JOBS, 0], "a:1:{s:13:\"allowFailures\";b:1;}")
        .await;
    // Each ending is recorded by two processes.
    let processes = [home.batches(), home.batches()];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..JOBS {
        let outcome = if number % 3 == 0 { Failed } else { Succeeded };
        for batches in processes.clone() {
            let ending = [ended(outcome, format!("u-{number}"))];
            tasks.spawn(async move {
                // The pool of connections is small: a task that gets none tries again.
                loop {
                    match batches.record("b", &ending).await {
                        Err(error) if error.is_lost_connection() => {}
                        recorded => break recorded.unwrap()[0],
                    }
                }
            });
        }
    }
    let recorded = tasks.join_all().await;
    let count = |what| {
        recorded
            .iter()
            .filter(|recorded| **recorded == what)
            .count()
    };
    assert_eq!((count(Counted), count(AlreadyCounted)), (60, 60));
    let batch = find(&processes[0], "b").await;
    assert_eq!(counters(&batch), (20, 20));
    assert_eq!(batch.failed_job_ids.len(), 20);
    assert_eq!(batch.finished_at, None);
}

/// Handlers run on any thread.
fn sent<F: Future + Send>(future: F) -> F {
    future
}

async fn jobs_are_added_with_their_push(home: Home) {
    let batches = home.batches();
    home.insert("b", [2, 0, 0], "a:0:{}").await;
    batches.cancel("b").await.unwrap();
    let refused: Result<Option<()>, Error> = batches
        .add_jobs("b", 3, async |open| {
            (open, Err::<(), _>(std::io::Error::other("no room")))
        })
        .await;
    let error = refused.unwrap_err();
    assert!(
        matches!(&error, Error::Push { batch, .. } if batch == "b"),
        "{error:?}"
    );
    let batch = find(&batches, "b").await;
    assert_eq!((batch.total_jobs, batch.pending_jobs), (2, 0));
    assert_eq!(batch.finished_at, Some(UnixSeconds(NOW)));

    // A job that is run before the others are pushed is counted after all of them.
    let (pushed, early) = oneshot::channel();
    let other = home.batches();
    let early = tokio::spawn(async move {
        early.await.unwrap();
        other.record("b", &[ended(Succeeded, "new")]).await.unwrap()
    });
    let push = async |open| {
        pushed.send(()).unwrap();
        // That nothing happens has no event: without a lock the job would have been counted by then.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!early.is_finished(), "the row is not locked");
        (open, Ok::<_, std::io::Error>("pushed"))
    };
    let added = sent(batches.add_jobs("b", 3, push)).await.unwrap();
    assert_eq!(added, Some("pushed"));
    assert_eq!(early.await.unwrap(), [Counted]);
    let batch = find(&batches, "b").await;
    assert_eq!((batch.total_jobs, batch.pending_jobs), (5, 2));
    assert_eq!(batch.finished_at, None);
    assert_eq!(batch.cancelled_at, Some(UnixSeconds(NOW)));

    let push = async |open| -> (_, Result<(), std::io::Error>) {
        drop::<artisand::connection::Transaction>(open);
        panic!("pushed for a batch that is gone")
    };
    let gone = batches.add_jobs("gone", 1, push).await;
    assert_eq!(gone.unwrap(), None);
}

async fn what_is_not_there_is_no_batch(home: Home) {
    let batches = home.batches();
    home.insert("b", [1, 1, 0], "a:0:{}").await;
    for id in [
        "gone",
        "",
        "b\0",
        &"x".repeat(70_000),
        "' or 1=1 --",
        "\u{1f600}",
    ] {
        let endings = [ended(Succeeded, "u"), ended(Failed, "v")];
        assert_eq!(batches.find(id).await.unwrap(), None);
        let recorded = batches.record(id, &endings).await.unwrap();
        assert_eq!(recorded, [NoBatch; 2]);
        batches.forget_marks(id, &endings).await.unwrap();
        assert!(!batches.cancel(id).await.unwrap());
    }
    assert_eq!(counters(&find(&batches, "b").await), (1, 0));
    assert!(batches.record("b", &[]).await.unwrap().is_empty());

    let database = home.database();
    let version = Version::NEWEST;
    let elsewhere = Batches::new(database, "no_such_table", version, Clock::System);
    let error = elsewhere.check().await.unwrap_err();
    assert!(elsewhere.is_missing(&error), "{error:?}");
    assert!(error.is_lost_connection(), "it may be made yet: {error:?}");
    let error = elsewhere
        .record("b", &[ended(Failed, "u")])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("`no_such_table`"), "{error}");
}

async fn as_many_as_are_allowed_have_room(home: Home) {
    let batches = home.batches();
    home.insert("b", [300, 300, 0], "a:1:{s:13:\"allowFailures\";b:1;}")
        .await;
    let uuid = |number: usize| format!("{number:08x}-aaaa-4bbb-8ccc-dddddddddddd");
    let many = |count| -> Vec<Ended> {
        (0..count)
            .map(|number| ended_again(Failed, &uuid(number), "0123456789abcdef"))
            .collect()
    };
    let error = batches.record("b", &many(Batches::MAX_EVENTS + 1)).await;
    assert!(matches!(error, Err(Error::TooMany { found: 201 })));
    let endings = many(Batches::MAX_EVENTS);
    let recorded = batches.record("b", &endings).await.unwrap();
    assert_eq!(recorded, [Counted; Batches::MAX_EVENTS]);
    assert_eq!(find(&batches, "b").await.failed_job_ids.len(), 200);
    batches.forget_marks("b", &endings).await.unwrap();
    assert!(!home.columns("b").await[0].contains("artisand"));
    // A text in place of a uuid is kept as by Laravel, and cannot look like a mark of another job.
    let odd = [ended(Succeeded, "artisand:failed:x/\u{17c}\0".repeat(40))];
    assert_eq!(batches.record("b", &odd).await.unwrap(), [Counted]);
    assert_eq!(batches.record("b", &odd).await.unwrap(), [AlreadyCounted]);
}

async fn old_batches_are_pruned(home: Home) {
    let batches = home.batches();
    let database = home.database();
    let table = database.table("job_batches");
    for (id, column) in [
        ("finished", Some("finished_at")),
        ("cancelled", Some("cancelled_at")),
        ("open", None),
    ] {
        for (suffix, at) in [("old", 4999), ("new", 5000)] {
            let id = format!("{id}-{suffix}");
            home.insert(&id, [1, 1, 0], "a:0:{}").await;
            for column in column.into_iter().chain(["created_at"]) {
                let sql = format!("update {table} set \"{column}\" = ? where \"id\" = ?");
                let params = [at.into(), (&id).into()];
                database.execute(&sql, &params).await.unwrap();
            }
        }
    }
    let limit = UnixSeconds(5000);
    for (which, gone) in [
        (Prune::Finished, "finished-old"),
        (Prune::Cancelled, "cancelled-old"),
        (Prune::Unfinished, "open-old"),
    ] {
        assert!(batches.find(gone).await.unwrap().is_some(), "{gone}");
        assert_eq!(batches.prune(which, limit).await.unwrap(), 1, "{gone}");
        assert_eq!(batches.find(gone).await.unwrap(), None);
        assert_eq!(batches.prune(which, limit).await.unwrap(), 0, "{gone}");
    }
    for id in ["finished-new", "cancelled-new", "open-new"] {
        assert!(batches.find(id).await.unwrap().is_some(), "{id}");
    }
}

async fn transactions_are_whole(home: Home) {
    let database = home.database();
    let table = database.table("job_batches");
    home.insert("b", [5, 5, 0], "a:0:{}").await;
    let set = format!("update {table} set \"pending_jobs\" = ? where \"id\" = ?");
    let get = format!("select {} from {table}", database.as_text("pending_jobs"));
    let pending = async |database: &Database| database.rows(&get, &[]).await.unwrap()[0].int(0);

    let mut dropped = database.begin().await.unwrap();
    let changed = dropped.execute(&set, &[1.into(), "b".into()]).await;
    assert_eq!(changed.unwrap(), 1);
    let seen = dropped.rows(&get, &[]).await.unwrap();
    assert_eq!(seen[0].int(0), Some(1));
    drop(dropped);
    assert_eq!(pending(&database).await, Some(5));

    let mut undone = database.begin().await.unwrap();
    undone.execute(&set, &[2.into(), "b".into()]).await.unwrap();
    undone.rollback().await.unwrap();
    assert_eq!(pending(&database).await, Some(5));

    // Also after an error.
    let mut failed = database.begin().await.unwrap();
    failed.execute(&set, &[3.into(), "b".into()]).await.unwrap();
    let error = failed
        .execute("update no_such_thing set x = ?", &[1.into()])
        .await;
    let error = error.unwrap_err();
    assert!(
        !error.is_deadlock() && error.is_missing_table(),
        "{error:?}"
    );
    drop(failed);
    assert_eq!(pending(&database).await, Some(5));

    let mut kept = database.begin().await.unwrap();
    kept.execute(&set, &[4.into(), "b".into()]).await.unwrap();
    kept.commit().await.unwrap();
    assert_eq!(pending(&home.database()).await, Some(4));
}

macro_rules! contract {
    ($($clause:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $clause() {
                super::$clause(super::Home::start(super::DatabaseKind::Sqlite).await).await;
            })*
        }

        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs MariaDB (make test)"]
            async fn $clause() {
                super::$clause(super::Home::start(super::DatabaseKind::MySql).await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL (make test)"]
            async fn $clause() {
                super::$clause(super::Home::start(super::DatabaseKind::Postgres).await).await;
            })*
        }
    };
}

contract! {
    endings_count_once_until_they_are_forgotten
    every_end_of_a_retried_job_counts_once
    callbacks_are_left_to_php_and_stay_as_they_are
    many_at_once_lose_no_count
    jobs_are_added_with_their_push
    what_is_not_there_is_no_batch
    as_many_as_are_allowed_have_room
    old_batches_are_pruned
    transactions_are_whole
}

/// A transaction that holds the second lock that counting needs, and is the last that a server would abort.
async fn rival(home: &Home) -> Transaction {
    let database = home.database();
    let mut rival = database.begin().await.unwrap();
    if home.options.kind == DatabaseKind::Postgres {
        // A transaction that waits this long checks for deadlocks, and gives up.
        let patient = "set local deadlock_timeout = '20s'";
        rival.execute(patient, &[]).await.unwrap();
    }
    for number in 2..60 {
        // InnoDB aborts the transaction that has changed least.
        let sql = "insert into app_others (id, n) values (?, 0)";
        rival.execute(sql, &[number.into()]).await.unwrap();
    }
    let sql = "update app_others set n = 100 where id = 1";
    rival.execute(sql, &[]).await.unwrap();
    rival
}

/// Makes a table that a trigger changes whenever a batch is changed.
async fn entangle(home: &Home) {
    let (schema, trigger) = match home.options.kind {
        DatabaseKind::Postgres => {
            home.run(
                "create function touch() returns trigger as $$ begin update shop.app_others set n = n + 1 where id = 1; \
                 return new; end $$ language plpgsql",
            )
            .await;
            (
                "shop.",
                "create trigger t before update on shop.app_job_batches for each row execute function touch()",
            )
        }
        _ => (
            "",
            "create trigger t before update on app_job_batches for each row update app_others set n = n + 1 where id = 1",
        ),
    };
    home.run(&format!(
        "create table {schema}app_others (id integer primary key, n integer)"
    ))
    .await;
    home.run(&format!("insert into {schema}app_others values (1, 0)"))
        .await;
    home.run(trigger).await;
}

/// Waits until some transaction waits for a lock.
async fn someone_waits(home: &Home) {
    let sql = match home.options.kind {
        DatabaseKind::Postgres => "select count(*) from pg_locks where not granted",
        _ => "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
    };
    let waits = async || {
        // Time is the subject: InnoDB shows the same answer until nothing has asked for a tenth of a second.
        tokio::time::sleep(Duration::from_millis(150)).await;
        home.number(sql) > 0
    };
    until("a transaction waits", SOON, waits).await;
}

/// Number of deadlocks that the server has detected.
fn deadlocks(home: &Home) -> i64 {
    home.number(match home.options.kind {
        DatabaseKind::Postgres => {
            "select deadlocks from pg_stat_database where datname = 'artisand'"
        }
        _ => "select variable_value from information_schema.global_status where variable_name = 'INNODB_DEADLOCKS'",
    })
}

async fn a_deadlock_is_tried_again(kind: DatabaseKind) {
    let home = Home::start(kind).await;
    home.insert("b", [5, 5, 0], "a:0:{}").await;
    entangle(&home).await;
    if kind == DatabaseKind::Postgres {
        // A transaction checks once, this long after it has begun to wait: the rival has to wait by then, too.
        home.run("alter database artisand set deadlock_timeout = '5s'")
            .await;
    }
    assert_eq!(deadlocks(&home), 0);

    let mut rival = rival(&home).await;
    let batches = home.batches();
    let recording = tokio::spawn({
        let batches = batches.clone();
        async move {
            let endings = [ended(Succeeded, "u"), ended(Succeeded, "v")];
            batches.record("b", &endings).await
        }
    });
    someone_waits(&home).await;
    let other = home.database();
    let lock = format!(
        "select {} from {} where \"id\" = 'b'{}",
        other.as_text("id"),
        other.table("job_batches"),
        other.for_update()
    );
    // Now each holds the lock that the other needs.
    rival.rows(&lock, &[]).await.unwrap();
    rival.commit().await.unwrap();

    let recorded = tokio::time::timeout(SOON, recording)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(recorded.unwrap(), [Counted, Counted]);
    assert_eq!(counters(&find(&batches, "b").await), (3, 0));
    // PostgreSQL publishes its statistics a little later.
    let counted = async || deadlocks(&home) > 0;
    until("the deadlock is counted", SOON, counted).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB (make test)"]
async fn a_deadlock_of_mariadb_is_tried_again() {
    a_deadlock_is_tried_again(DatabaseKind::MySql).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL (make test)"]
async fn a_deadlock_of_postgres_is_tried_again() {
    a_deadlock_is_tried_again(DatabaseKind::Postgres).await;
}

/// A row that stays locked: the error is the server's, and the tries end.
async fn a_lock_that_lasts_is_an_error_in_the_end(kind: DatabaseKind, impatient: &str) {
    let home = Home::start(kind).await;
    home.insert("b", [5, 5, 0], "a:0:{}").await;
    home.run(impatient).await;
    let database = home.database();
    let lock = format!(
        "update {} set \"name\" = 'mine'",
        database.table("job_batches")
    );
    let mut holder = database.begin().await.unwrap();
    holder.execute(&lock, &[]).await.unwrap();

    let mut other = home.database().begin().await.unwrap();
    let error = other.execute(&lock, &[]).await.unwrap_err();
    assert!(
        error.is_deadlock() && error.is_lost_connection(),
        "{error:?}"
    );
    drop(other);
    let batches = home.batches();
    let ending = [ended(Succeeded, "u")];
    let record = batches.record("b", &ending);
    let error = tokio::time::timeout(SOON, record)
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.is_lost_connection(), "{error:?}");
    holder.rollback().await.unwrap();
    assert_eq!(batches.record("b", &ending).await.unwrap(), [Counted]);
    assert_eq!(counters(&find(&batches, "b").await), (4, 0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB (make test)"]
async fn a_lock_of_mariadb_that_lasts_is_an_error_in_the_end() {
    let impatient = "set global innodb_lock_wait_timeout = 1";
    a_lock_that_lasts_is_an_error_in_the_end(DatabaseKind::MySql, impatient).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL (make test)"]
async fn a_lock_of_postgres_that_lasts_is_an_error_in_the_end() {
    let impatient = "alter database artisand set lock_timeout = '300ms'";
    a_lock_that_lasts_is_an_error_in_the_end(DatabaseKind::Postgres, impatient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_file_that_another_connection_writes_to_is_waited_for() {
    let home = Home::start(DatabaseKind::Sqlite).await;
    home.insert("b", [5, 5, 0], "a:0:{}").await;
    let holder = home.database().begin().await.unwrap();

    // Without a wait, the driver's error shows.
    let impatient = home.database();
    impatient
        .execute("pragma busy_timeout = 0", &[])
        .await
        .unwrap();
    let error = impatient.begin().await.unwrap_err();
    assert!(error.is_deadlock(), "{error:?}");

    let batches = home.batches();
    let recording = tokio::spawn({
        let batches = batches.clone();
        async move { batches.record("b", &[ended(Succeeded, "u")]).await }
    });
    // That nothing happens has no event: without the other's lock this would have ended by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!recording.is_finished());
    holder.commit().await.unwrap();
    assert_eq!(recording.await.unwrap().unwrap(), [Counted]);
    assert_eq!(counters(&find(&batches, "b").await), (4, 0));
}

/// The marks of a page of records have no room in the column beside the uuids of many failed jobs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB (make test)"]
async fn ends_whose_marks_do_not_fit_together_are_counted_in_parts() {
    let home = Home::start(DatabaseKind::MySql).await;
    home.insert("b", [2000, 2000, 1400], "a:0:{}").await;
    let uuid = |number: usize| format!("{number:036}");
    let failed: Vec<String> = (0..1400).map(uuid).collect();
    let failed = serde_json::to_string(&failed).unwrap();
    let database = home.database();
    let table = database.table("job_batches");
    let sql = format!("update {table} set \"failed_job_ids\" = ?");
    database.execute(&sql, &[(&failed).into()]).await.unwrap();

    let batches = home.batches();
    let ends = (0..Batches::MAX_EVENTS).map(|number| {
        let uuid = uuid(5000 + number);
        ended_again(Succeeded, &uuid, "0123456789abcdef")
    });
    let ends: Vec<Ended> = ends.collect();
    let error = batches.record("b", &ends).await.unwrap_err();
    assert!(!error.is_lost_connection(), "{error:?}");

    let queue = Arc::new(MemoryQueue::new(None));
    for ended in &ends {
        let mut record = serde_json::to_value(ended).unwrap();
        record["do"] = "count".into();
        record["batch"] = "b".into();
        queue.spool_record(Spool::FollowUps, record.to_string().into_bytes());
    }
    let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &Registry::new()).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let mut services = Services::default();
    services.batches = Some(batches.clone());
    let worker = Worker::new(Arc::clone(&queue), router, options).with_services(services);
    let control = Control::new();
    let ended = tokio::time::timeout(SOON, worker.run(&control)).await;
    ended.unwrap();
    assert!(queue.spool(Spool::FollowUps).is_empty());
    assert_eq!(counters(&find(&batches, "b").await), (1800, 1400));
    assert_eq!(home.columns("b").await[0], failed);
}

/// A job with this serialized command, as its handler gets it.
fn context(command: &str, batch_id: &str, batches: Option<Batches>) -> JobContext {
    let data = serde_json::json!({"commandName": "J", "command": command, "batchId": batch_id});
    let job = "Illuminate\\Queue\\CallQueuedHandler@call";
    let body = serde_json::json!({"uuid": "u", "displayName": "J", "job": job, "data": data});
    let body = body.to_string().into_bytes();
    let info = JobInfo {
        connection: "redis".into(),
        queue: "default".into(),
        attempts: 1,
        payload: Payload::parse(&body).unwrap().into(),
        body: body.into(),
        reserved: Arc::default(),
        trace: None,
    };
    let mut services = Services::default();
    services.batches = batches;
    JobContext::new(Arc::new(info), CancellationToken::new(), services.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_sees_its_batch_and_may_cancel_it() {
    let home = Home::start(DatabaseKind::Sqlite).await;
    home.insert("b-1", [4, 3, 0], "a:0:{}").await;
    let with = |command: &str, id| context(command, id, Some(home.batches()));
    let in_batch = r#"O:1:"J":1:{s:7:"batchId";s:3:"b-1";}"#;

    let job = with(in_batch, "");
    let batch = job.batch().await.unwrap().unwrap();
    assert_eq!(
        (&*batch.id, batch.progress(), batch.cancelled()),
        ("b-1", 25, false)
    );
    batch.cancel().await.unwrap();
    // It is as old as itself.
    assert!(!batch.cancelled());
    assert!(batch.fresh().await.unwrap().unwrap().cancelled());
    assert!(job.batch().await.unwrap().unwrap().cancelled());
    let sql = "delete from app_job_batches";
    home.database().execute(sql, &[]).await.unwrap();
    assert!(batch.fresh().await.unwrap().is_none());
    assert!(job.batch().await.unwrap().is_none());

    home.insert("b-1", [4, 3, 0], "a:0:{}").await;
    #[rustfmt::skip]
    let rows = [
        (in_batch, "other", Some("b-1")),
        // An encrypted value is marked as such.
        ("eyJpdiI6", "b-1", Some("b-1")),
        ("eyJpdiI6", "", None),
        (r#"O:1:"J":1:{s:7:"batchId";N;}"#, "", None),
        (r#"O:1:"J":1:{s:7:"batchId";s:4:"gone";}"#, "", None),
        (r#"O:1:"J":0:{}"#, "", None),
    ];
    for (command, beside, expected) in rows {
        let batch = with(command, beside).batch().await.unwrap();
        let id = batch.as_ref().map(|batch| &*batch.id);
        assert_eq!(id, expected, "{command} {beside}");
    }
    let unknown = context(in_batch, "", None).batch().await.unwrap_err();
    assert!(
        matches!(&unknown, Error::NoStore { batch } if batch == "b-1"),
        "{unknown:?}"
    );
    let none = context("O:1:\"J\":0:{}", "", None).batch().await.unwrap();
    assert!(none.is_none());
}
