//! Stores of failed jobs, and the way from the spool into them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use artisand::cache::{Cache, FileStore, FileStoreOptions};
use artisand::connection::{Database, DatabaseKind, DatabaseOptions};
use artisand::failed::{
    DatabaseFailedJobs, FailedJob, FailedJobs, FileFailedJobs, FileLock, Recorded, Unlock,
};
use artisand::handler::{self, BoxFuture, JobContext};
use artisand::payload::Pattern;
use artisand::queue::{MemoryQueue, Queue as _, QueueName, Spool};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{Control, StopReason, StopRules, Worker, WorkerOptions};
use jiff::tz::TimeZone;
use tempfile::TempDir;

/// The lock of the file driver, from the app's `file` cache store.
#[derive(Debug)]
struct CacheLock(Cache);

impl FileLock for CacheLock {
    fn lock(
        &self,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let lock = self
                .0
                .lock("laravel-failed-jobs", "owner", Duration::from_secs(5));
            if !lock.block(wait).await? {
                return Ok(None);
            }
            let unlock: Unlock = Box::new(move || {
                Box::pin(async move {
                    assert!(lock.release().await.unwrap());
                })
            });
            Ok(Some(unlock))
        })
    }
}

fn sqlite(directory: &Path) -> Database {
    let path = directory.join("database.sqlite");
    if !path.exists() {
        std::fs::write(&path, b"").unwrap();
    }
    let options = DatabaseOptions {
        database: path.to_str().unwrap().into(),
        prefix: "app_".into(),
        ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
    };
    Database::new(&options).unwrap()
}

async fn make_table(database: &Database, by_uuid: bool) {
    let uuid = if by_uuid {
        "uuid text not null unique, "
    } else {
        ""
    };
    let sql = format!(
        "create table app_failed_jobs (id integer primary key autoincrement, {uuid}connection text not null, \
         queue text not null, payload text not null, exception text not null, failed_at datetime default current_timestamp)"
    );
    database.execute(&sql, &[]).await.unwrap();
}

/// A store of each driver, empty, in UTC.
async fn stores(directory: &Path) -> Vec<FailedJobs> {
    let mut stores = Vec::new();
    for by_uuid in [true, false] {
        let directory = directory.join(by_uuid.to_string());
        std::fs::create_dir(&directory).unwrap();
        let database = sqlite(&directory);
        make_table(&database, by_uuid).await;
        let store = DatabaseFailedJobs::new(database, "failed_jobs", by_uuid, TimeZone::UTC);
        stores.push(FailedJobs::Database(store));
    }
    let options = FileStoreOptions {
        directory: directory.join("cache"),
        lock_directory: directory.join("cache"),
        permission: None,
        separate_locks: true,
    };
    let lock = Arc::new(CacheLock(Cache::file(FileStore::new(
        options,
        Clock::System,
    ))));
    let path = directory.join("failed-jobs.json");
    stores.push(FailedJobs::File(FileFailedJobs::new(
        path,
        3,
        TimeZone::UTC,
        lock,
    )));
    stores
}

fn job(uuid: &str, queue: &str, failed_at: i64) -> FailedJob {
    FailedJob {
        uuid: Some(uuid.into()),
        connection: "redis".into(),
        queue: queue.into(),
        payload: format!("{{\"uuid\":\"{uuid}\",\"é\":\"/\"}}"),
        exception: "E: boom in artisand:0".into(),
        failed_at,
        token: None,
    }
}

#[tokio::test]
async fn every_store_keeps_finds_and_deletes_failed_jobs() {
    let directory = TempDir::new().unwrap();
    for store in stores(directory.path()).await {
        let name = store.describe();
        store.check().await.unwrap();
        for (uuid, queue, at) in [
            ("a", "default", 1000),
            ("b", "high", 2000),
            ("c", "default", 3000),
        ] {
            let recorded = store.record(&job(uuid, queue, at)).await.unwrap();
            assert_eq!(recorded, Recorded::New, "{name}");
        }
        let again = store.record(&job("a", "default", 1000)).await.unwrap();
        assert_eq!(again, Recorded::Already, "{name}");
        let all = store.all().await.unwrap();
        let times: Vec<&str> = all.iter().map(|job| &job.failed_at[11..]).collect();
        assert_eq!(times, ["00:50:00", "00:33:20", "00:16:40"], "{name}");
        let ids = store.ids(Some("default")).await.unwrap();
        assert_eq!(ids, [&*all[0].id, &*all[2].id], "{name}");
        let found = store.find(&all[1].id).await.unwrap().unwrap();
        assert_eq!(found, all[1], "{name}");
        assert_eq!(
            found.payload,
            job("b", "high", 2000).payload.as_bytes(),
            "{name}"
        );
        assert_eq!(store.find("1 or 1=1").await.unwrap(), None, "{name}");
        assert!(store.forget(&all[1].id).await.unwrap(), "{name}");
        assert!(!store.forget(&all[1].id).await.unwrap(), "{name}");
        assert_eq!(
            store.prune(UnixSeconds(1001)).await.unwrap(),
            Some(1),
            "{name}"
        );
        // As in Laravel, a job of exactly that second stays in the table and leaves the file.
        assert_eq!(
            store.record(&job("a", "high", 1000)).await.unwrap(),
            Recorded::New,
            "{name}"
        );
        let is_file = matches!(store, FailedJobs::File(_));
        for (second, pruned) in [(1000, is_file), (1001, !is_file)] {
            assert_eq!(
                store.prune(UnixSeconds(second)).await.unwrap(),
                Some(u64::from(pruned)),
                "{name} {second}"
            );
        }
        assert_eq!(store.ids(None).await.unwrap(), [&*all[0].id], "{name}");
        store.flush(Some(UnixSeconds(2999))).await.unwrap();
        assert_eq!(store.all().await.unwrap().len(), 1, "{name}");
        store.flush(None).await.unwrap();
        assert_eq!(store.all().await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn another_failure_of_the_same_job_is_told_from_the_same_failure() {
    let directory = TempDir::new().unwrap();
    for store in stores(directory.path()).await {
        if store.provider().ends_with("\\DatabaseFailedJobProvider") {
            // Without uuids every failure has a separate row.
            continue;
        }
        let name = store.describe();
        store.record(&job("a", "default", 1000)).await.unwrap();
        let later = job("a", "default", 1500);
        assert_eq!(
            store.record(&later).await.unwrap(),
            Recorded::Occupied,
            "{name}"
        );
        store.replace(&later).await.unwrap();
        let all = store.all().await.unwrap();
        assert_eq!(all.len(), 1, "{name}");
        assert_eq!(all[0].failed_at, "1970-01-01 00:25:00", "{name}");
        store.forget("a").await.unwrap();
        store.replace(&later).await.unwrap();
        assert_eq!(store.all().await.unwrap().len(), 1, "{name}");
    }
}

/// Such a table has no index on what tells its rows apart.
#[tokio::test]
async fn a_failure_that_is_recorded_again_without_a_uuid_is_found_among_the_last_rows() {
    let directory = TempDir::new().unwrap();
    let database = sqlite(directory.path());
    make_table(&database, false).await;
    let store = DatabaseFailedJobs::new(database.clone(), "failed_jobs", false, TimeZone::UTC);
    let store = FailedJobs::Database(store);
    let failed = job("a", "default", 1000);
    // The id of a row that comes before it, if any.
    for (id, expected) in [
        (None, Recorded::New),
        (Some(10_000_i64), Recorded::Already),
        (Some(10_001), Recorded::New),
        (None, Recorded::Already),
    ] {
        if let Some(id) = id {
            let sql = "insert into app_failed_jobs (id, connection, queue, payload, exception) values (?, '', '', '', '')";
            database.execute(sql, &[id.into()]).await.unwrap();
        }
        let recorded = store.record(&failed).await.unwrap();
        assert_eq!(recorded, expected, "{id:?}");
    }
}

fn payload(uuid: &str) -> Vec<u8> {
    let command = r#"O:15:\"App\\Jobs\\Broken\":0:{}"#;
    format!(
        r#"{{"uuid":"{uuid}","displayName":"App\\Jobs\\Broken","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":1,"data":{{"commandName":"App\\Jobs\\Broken","command":"{command}"}},"attempts":0}}"#
    )
    .into_bytes()
}

#[derive(serde::Deserialize)]
struct Broken {}

async fn broken(_: Broken, _: JobContext) -> Result<(), std::io::Error> {
    Err(std::io::Error::other("boom"))
}

fn worker(queue: &Arc<MemoryQueue>, store: FailedJobs, bounded: bool) -> Worker {
    let registry = Registry::new().with("broken", handler::function(broken));
    let mapping = Mapping::new(
        Pattern::parse("App\\Jobs\\Broken").unwrap(),
        HandlerChoice::Named("broken".into()),
    );
    let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &registry).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            when_empty: bounded,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    Worker::new(Arc::clone(queue), router, options).with_failed_jobs(store)
}

async fn run(queue: &Arc<MemoryQueue>, store: FailedJobs) {
    let report = worker(queue, store, true).run(&Control::new()).await;
    assert_eq!(report.reason, StopReason::QueueEmpty);
    assert_eq!(report.unsettled, 0);
}

fn store_in(directory: &Path) -> FailedJobs {
    let database = sqlite(directory);
    FailedJobs::Database(DatabaseFailedJobs::new(
        database,
        "failed_jobs",
        true,
        TimeZone::UTC,
    ))
}

#[tokio::test]
async fn failed_jobs_wait_for_their_store_and_get_there_once() {
    let directory = TempDir::new().unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    let name = QueueName::from("default");
    queue
        .push(&name, &[payload("a"), payload("b")])
        .await
        .unwrap();
    // The table does not exist yet, which is like a database that is down.
    run(&queue, store_in(directory.path())).await;
    assert_eq!(queue.spool(Spool::FailedJobs).len(), 2);
    make_table(&sqlite(directory.path()), true).await;
    queue.push(&name, &[payload("c")]).await.unwrap();
    run(&queue, store_in(directory.path())).await;
    assert_eq!(queue.spool(Spool::FailedJobs).len(), 0);
    let all = store_in(directory.path()).all().await.unwrap();
    let ids: Vec<&str> = all.iter().map(|job| &*job.id).collect();
    assert_eq!(ids, ["c", "b", "a"]);
    assert_eq!(
        all[0].payload,
        payload("c"),
        "attempts as they were before the last try"
    );
    assert_eq!(
        all[0].exception,
        "Artisand\\HandlerError: boom in artisand:0\nStack trace:\n\
         #0 [internal function]: App\\Jobs\\Broken->handle()\n#1 {main}"
    );
}

#[tokio::test]
async fn a_record_that_a_dead_worker_left_behind_is_not_written_twice() {
    let directory = TempDir::new().unwrap();
    make_table(&sqlite(directory.path()), true).await;
    let store = store_in(directory.path());
    // Its row was written, and the worker died before it took the record out of the spool.
    let old = job("a", "default", Clock::System.now().0 - 60);
    store.record(&old).await.unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    queue.spool_record(Spool::FailedJobs, old.to_json());
    // An earlier failure of the same job: the later one counts.
    let newer = job("b", "default", Clock::System.now().0 - 60);
    store.record(&job("b", "default", 1000)).await.unwrap();
    queue.spool_record(Spool::FailedJobs, newer.to_json());
    run(&queue, store).await;
    assert_eq!(queue.spool(Spool::FailedJobs).len(), 0);
    let all = store_in(directory.path()).all().await.unwrap();
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|job| !job.failed_at.starts_with("1970")),
        "{all:?}"
    );
}

#[tokio::test]
async fn a_row_that_may_be_about_to_go_is_waited_for() {
    let directory = TempDir::new().unwrap();
    make_table(&sqlite(directory.path()), true).await;
    let store = store_in(directory.path());
    let just_now = job("a", "default", Clock::System.now().0);
    store.record(&job("a", "default", 1000)).await.unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    queue.spool_record(Spool::FailedJobs, just_now.to_json());
    run(&queue, store).await;
    assert_eq!(
        queue.spool(Spool::FailedJobs).len(),
        1,
        "`queue:retry` deletes the old row in a moment"
    );
    let store = store_in(directory.path());
    store.forget("a").await.unwrap();
    run(&queue, store).await;
    assert_eq!(queue.spool(Spool::FailedJobs).len(), 0);
    assert_eq!(store_in(directory.path()).all().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_row_that_another_column_refuses_is_an_error_and_loses_nothing() {
    let directory = TempDir::new().unwrap();
    let database = sqlite(directory.path());
    make_table(&database, true).await;
    let unique = "create unique index one_per_queue on app_failed_jobs (queue)";
    database.execute(unique, &[]).await.unwrap();
    let long_ago = Clock::System.now().0 - 60;
    let store = store_in(directory.path());
    store.record(&job("a", "default", long_ago)).await.unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    queue.spool_record(Spool::FailedJobs, job("b", "default", long_ago).to_json());
    queue.spool_record(Spool::FailedJobs, job("c", "high", long_ago).to_json());
    run(&queue, store).await;
    // The refused record stays, and does not delay others.
    assert_eq!(
        queue.spool(Spool::FailedJobs),
        [job("b", "default", long_ago).to_json()]
    );
    let ids = store_in(directory.path()).ids(None).await.unwrap();
    assert_eq!(ids, ["c", "a"]);
}

#[tokio::test]
#[ignore = "needs MariaDB (make test)"]
async fn a_payload_that_does_not_fit_is_refused_and_not_cut() {
    use crate::harness::sql::MariaDbServer;
    let server = tokio::task::spawn_blocking(|| {
        let server = MariaDbServer::start();
        server.query("set global sql_mode = ''");
        server.query(
            "create table failed_jobs (id bigint auto_increment primary key, uuid varchar(255) unique, connection text, \
             queue text, payload varchar(10), exception text, failed_at timestamp default current_timestamp)",
        );
        server
    })
    .await
    .unwrap();
    let setting = |name: &str| {
        let env = server.env();
        let value = env.into_iter().find(|(variable, _)| *variable == name);
        value.unwrap().1
    };
    let options = DatabaseOptions {
        port: setting("DB_PORT").parse().unwrap(),
        database: setting("DB_DATABASE"),
        username: setting("DB_USERNAME"),
        password: Some(setting("DB_PASSWORD")),
        ..DatabaseOptions::new("mysql", DatabaseKind::MySql)
    };
    let database = Database::new(&options).unwrap();
    let store = FailedJobs::Database(DatabaseFailedJobs::new(
        database.clone(),
        "failed_jobs",
        true,
        TimeZone::UTC,
    ));
    let error = store.record(&job("a", "default", 1000)).await.unwrap_err();
    assert!(format!("{error:?}").contains("too long"), "{error:?}");
    assert_eq!(store.all().await.unwrap(), []);
    // This concerns one record only: others are written.
    let short = FailedJob {
        payload: "{}".into(),
        ..job("b", "default", 1000)
    };
    assert_eq!(store.record(&short).await.unwrap(), Recorded::New);
    // As it refuses what is in the hour that a change to summer time skips.
    let refuse = "create trigger skipped before insert on failed_jobs for each row \
                  if new.failed_at = '1970-01-01 00:16:41' then \
                  signal sqlstate '22007' set mysql_errno = 1292, message_text = 'Incorrect datetime value'; end if";
    database.execute(refuse, &[]).await.unwrap();
    let skipped = FailedJob {
        payload: "{}".into(),
        ..job("c", "default", 1001)
    };
    for expected in [Recorded::New, Recorded::Already] {
        assert_eq!(store.record(&skipped).await.unwrap(), expected);
    }
    let found = store.find("c").await.unwrap().unwrap();
    assert_eq!(found.failed_at, "1970-01-01 01:16:41");
}

#[tokio::test]
async fn the_file_stays_the_one_that_php_writes() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    let shared = directory.path().join("shared.json");
    // A payload without uuid is stored by Laravel under no id.
    let old = r#"[{"id":null,"connection":"redis","queue":"q","payload":"{}","exception":"E","failed_at":"2026-01-02 03:04:05","failed_at_timestamp":1767323045}]"#;
    std::fs::write(&shared, old).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o640)).unwrap();
    let link = directory.path().join("failed-jobs.json");
    std::os::unix::fs::symlink(&shared, &link).unwrap();
    let store = stores(directory.path()).await.pop().unwrap();
    store.check().await.unwrap();
    store.record(&job("a", "default", 1000)).await.unwrap();
    assert!(link.is_symlink());
    let mode = std::fs::metadata(&shared).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let text = std::fs::read_to_string(&shared).unwrap();
    assert!(
        text.contains("\"id\": null,") && text.contains("\"id\": \"a\","),
        "{text}"
    );
    assert_eq!(store.ids(None).await.unwrap(), ["a", ""]);
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains(".artisand-")),
        "{left:?}"
    );
}

#[tokio::test]
async fn what_is_planted_beside_the_file_is_neither_written_nor_given_away() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("failed-jobs.json");
    std::fs::write(&file, "[]").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "the victim's").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    let guessed = format!("failed-jobs.json.{}", std::process::id());
    std::os::unix::fs::symlink(&victim, directory.path().join(&guessed)).unwrap();
    let store = stores(directory.path()).await.pop().unwrap();
    store.check().await.unwrap();
    store.record(&job("a", "default", 1000)).await.unwrap();
    assert_eq!(store.ids(None).await.unwrap(), ["a"]);
    assert_eq!(std::fs::read(&victim).unwrap(), b"the victim's");
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&victim), mode(&file)), (0o600, 0o666));
    assert!(!file.is_symlink());
}

#[tokio::test]
async fn records_that_are_refused_keep_no_other_from_its_row() {
    let directory = TempDir::new().unwrap();
    let database = sqlite(directory.path());
    make_table(&database, true).await;
    let refuse = "create trigger refuse before insert on app_failed_jobs when new.queue = 'bad' begin select raise(abort, 'no'); end";
    database.execute(refuse, &[]).await.unwrap();
    let long_ago = Clock::System.now().0 - 60;
    let queue = Arc::new(MemoryQueue::new(None));
    for number in 0..45 {
        queue.spool_record(
            Spool::FailedJobs,
            job(&format!("bad-{number}"), "bad", long_ago).to_json(),
        );
    }
    queue.spool_record(Spool::FailedJobs, job("a", "default", long_ago).to_json());
    // A running worker writes it, and so does one that stops at once.
    let control = Control::new();
    let running = tokio::spawn({
        let (worker, control) = (
            worker(&queue, store_in(directory.path()), false),
            control.clone(),
        );
        async move { worker.run(&control).await }
    });
    let store = store_in(directory.path());
    crate::harness::process::until("the job is recorded", Duration::from_secs(60), async || {
        store.ids(None).await.unwrap() == ["a"]
    })
    .await;
    control.quit();
    running.await.unwrap();
    queue.spool_record(Spool::FailedJobs, job("b", "default", long_ago).to_json());
    run(&queue, store_in(directory.path())).await;
    assert_eq!(queue.spool(Spool::FailedJobs).len(), 45);
    assert_eq!(store.ids(None).await.unwrap(), ["b", "a"]);
}
