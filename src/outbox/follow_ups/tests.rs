use std::sync::{Mutex, OnceLock};

use super::*;
use crate::cache::{FileStore, FileStoreOptions, Stores};
#[cfg(feature = "sqlite")]
use crate::connection::{Database, DatabaseKind, DatabaseOptions};
use crate::outbox::follow_up::LockRequest;
use crate::outbox::push::UNTIL_FREED;
#[cfg(feature = "sqlite")]
use crate::payload::Encrypter;
use crate::queue::faulty::{Fault, Server, push_of};
use crate::queue::{
    Ability, Connections, Destination, FailoverQueue, Inner, MemoryQueue, Once, Place,
};
use crate::time::UnixSeconds;

pub(in crate::outbox) fn follower(
    queue: &Arc<MemoryQueue>,
    services: Services,
    left: &Arc<Left>,
    last: &CancellationToken,
) -> FollowUpRelay {
    FollowUpRelay {
        ledger: Arc::clone(queue) as _,
        queues: vec!["default".into()],
        services: Arc::new(services),
        queue: Arc::clone(queue) as _,
        connection: "redis".into(),
        clock: Clock::System,
        left: Arc::clone(left),
        last: last.clone(),
        progress: Progress::default(),
        on_refusal: OnRefusal::new(|_| {}),
    }
}

/// A store of locks in this directory.
fn files(directory: &std::path::Path, clock: Clock) -> Cache {
    let options = FileStoreOptions {
        directory: directory.to_owned(),
        lock_directory: directory.to_owned(),
        permission: None,
        separate_locks: true,
    };
    Cache::file(FileStore::new(options, clock))
}

/// Services that call this store `files`; `opened` is called when it is first needed.
fn with_cache(cache: &Cache, opened: impl Fn() + Send + Sync + 'static) -> Services {
    let cache = cache.clone();
    let stores = Stores::new("files", move |_: &str| {
        opened();
        Ok::<_, std::convert::Infallible>(cache.clone())
    });
    Services {
        stores: Some(stores),
        ..Services::default()
    }
}

/// A store of locks in this directory, and services that call it `files`.
fn with_files(directory: &std::path::Path) -> (Cache, Services) {
    let cache = files(directory, Clock::System);
    let services = with_cache(&cache, || {});
    (cache, services)
}

/// Does all that the records say; returns how many jobs are queued then.
async fn pending_after_all(queue: &Arc<MemoryQueue>, services: Services) -> u64 {
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let follower = follower(queue, services, &left, &last);
    let following = tokio::spawn(keep_following(follower));
    // In paused time.
    while !queue.spool(Spool::FollowUps).is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    last.cancel();
    assert_eq!(following.await.unwrap(), DrainStatus::All);
    queue.sizes(&"default".into()).await.unwrap().pending
}

/// A push to the worker's own connection.
fn to_default(id: &str) -> RemotePush {
    RemotePush {
        connection: "redis".to_owned(),
        queue: "default".to_owned(),
        payload: "{}".to_owned(),
        bytes: None,
        due: None,
        id: id.to_owned(),
        lock: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_task_panicked_is_emptied_all_the_same() {
    let queue = Arc::new(MemoryQueue::new(None));
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    queue.spool_record(Spool::FollowUps, b"from another program".to_vec());
    let push = FollowUp::Push(to_default("a"));
    queue.spool_record(Spool::FollowUps, push.to_record());
    left.note();
    let panicked = std::sync::atomic::AtomicBool::new(false);
    let on_refusal = OnRefusal::new(move |_| {
        let was_before = panicked.swap(true, std::sync::atomic::Ordering::Relaxed);
        assert!(was_before, "a bug");
    });
    let follower = FollowUpRelay {
        on_refusal,
        ..follower(&queue, Services::default(), &left, &last)
    };
    let mut changes = left.changes();
    let following = tokio::spawn(keep_following(follower));
    // What is stuck is not waited for.
    while !left.is_clear() {
        changes.changed().await.unwrap();
    }
    while queue.spool(Spool::FollowUps).len() > 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let pending = queue.sizes(&"default".into()).await.unwrap().pending;
    assert_eq!(pending, 1);
    last.cancel();
    assert_eq!(following.await.unwrap(), DrainStatus::Failed);
}

/// The reply to a push is lost, then the worker dies, and its successor cannot reach that server.
#[tokio::test(start_paused = true)]
async fn a_push_goes_to_one_of_several_connections_whichever_worker_repeats_it() {
    let queue = Arc::new(MemoryQueue::new(None));
    let servers = [("first", Server::new()), ("second", Server::new())];
    // Each worker has connections of its own.
    let services = || {
        let default_queue = || QueueName::from("default");
        let inner = |(name, server): &(&str, Arc<Server>)| Inner {
            name: (*name).into(),
            default_queue: default_queue(),
            queues: Arc::clone(server) as _,
        };
        let both = FailoverQueue::new(servers.iter().map(inner).collect()).unwrap();
        let singles = servers
            .iter()
            .map(|(name, server)| (*name, Arc::clone(server) as _));
        let all: Vec<(&str, Arc<dyn Queue>)> =
            singles.chain([("both", Arc::new(both) as _)]).collect();
        let all = all.into_iter().map(|(name, queues)| {
            let destination = Destination {
                default_queue: default_queue(),
                queues: Ok(queues),
            };
            (name.to_owned(), destination)
        });
        Services {
            connections: Some(Connections::new("redis", all)),
            ..Services::default()
        }
    };
    let push = FollowUp::Push(RemotePush {
        connection: "both".to_owned(),
        ..to_default("a")
    });
    let [first, second] = [&servers[0].1, &servers[1].1];
    first.next("push_once", [Fault::ReplyLost, Fault::Away].map(Some));
    queue.spool_record(Spool::FollowUps, push.to_record());
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let start = || tokio::spawn(keep_following(follower(&queue, services(), &left, &last)));
    let one = start();
    while first.calls("push_once").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    one.abort();
    first.next("ping", [Some(Fault::Away); 9]);
    let other = start();
    while !queue.spool(Spool::FollowUps).is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    last.cancel();
    assert_eq!(other.await.unwrap(), DrainStatus::All);
    let pending = [first.sizes().await.pending, second.sizes().await.pending];
    assert_eq!(pending, [1, 0]);
    assert_eq!(first.calls("push_once").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_push_to_the_default_queue_goes_to_that_of_the_connection_that_is_there() {
    let servers = [("first", Server::new()), ("second", Server::new())];
    let [first, second] = [&servers[0].1, &servers[1].1];
    first.next("ping", [Some(Fault::Away); 9]);
    let inner = |(name, server): &(&str, Arc<Server>), default_queue: &str| Inner {
        name: (*name).into(),
        default_queue: default_queue.into(),
        queues: Arc::clone(server) as _,
    };
    let inner = vec![inner(&servers[0], "default"), inner(&servers[1], "jobs")];
    let both = FailoverQueue::new(inner).unwrap();
    let all: [(&str, Arc<dyn Queue>); 2] = [
        ("both", Arc::new(both)),
        ("second", Arc::clone(second) as _),
    ];
    let all = all.map(|(name, queues)| {
        let destination = Destination {
            default_queue: "default".into(),
            queues: Ok(queues),
        };
        (name.to_owned(), destination)
    });
    let services = Services {
        connections: Some(Connections::new("redis", all)),
        ..Services::default()
    };
    let queue = Arc::new(MemoryQueue::new(None));
    let push = FollowUp::Push(RemotePush {
        connection: "both".to_owned(),
        ..to_default("a")
    });
    note(&queue, &push);
    assert_eq!(pending_after_all(&queue, services).await, 0);
    let sizes = second.jobs.sizes(&"jobs".into()).await.unwrap();
    assert_eq!(sizes.pending, 1);
    assert!(first.calls("push_once").is_empty());
}

/// A push that cannot happen in one step with taking out its record is remembered.
#[tokio::test(start_paused = true)]
async fn a_push_in_a_step_of_its_own_is_remembered() {
    let in_one_step = MemoryQueue::new(None);
    let in_two_steps = MemoryQueue::new(None).without(Ability::FinishesInOneStep);
    let mut in_another_slot = MemoryQueue::new(None);
    let part = Arc::new(MemoryQueue::new(None));
    in_another_slot.parts.insert("elsewhere".into(), part);
    for (queue, expected) in [
        (in_one_step, false),
        (in_two_steps, true),
        (in_another_slot, true),
    ] {
        let queue = Arc::new(queue);
        note(&queue, &FollowUp::Push(to_default("a")));
        assert_eq!(pending_after_all(&queue, Services::default()).await, 1);
        let is_remembered = queue.was_pushed(&"default".into(), "a").await;
        assert_eq!(is_remembered.unwrap(), expected);
    }
}

/// A worker for which these queues are another connection has pushed the job, and died before it took the record.
#[tokio::test(start_paused = true)]
async fn a_job_that_another_worker_has_pushed_is_not_pushed_again() {
    let queue = Arc::new(MemoryQueue::new(None));
    let once = Once {
        id: "pushed",
        remembered: Duration::from_secs(60),
        note: "1",
    };
    queue.push_once(&[push_of("default")], once).await.unwrap();
    for id in ["pushed", "new"] {
        queue.spool_record(Spool::FollowUps, FollowUp::Push(to_default(id)).to_record());
    }
    assert_eq!(pending_after_all(&queue, Services::default()).await, 2);
}

/// The lock of a chain's next job is freed further on in the list, by a record that is not read together with it.
#[tokio::test(start_paused = true)]
async fn a_step_waits_for_a_lock_that_a_later_record_frees() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let before = cache.lock("step", "before", Duration::from_secs(3600));
    assert!(before.acquire().await.unwrap());
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &locked("a", "step"));
    for number in 0..PAGE {
        note(&queue, &unlock_of(&format!("other{number}"), Some("other")));
    }
    note(&queue, &unlock_of("step", Some("before")));
    assert_eq!(pending_after_all(&queue, services).await, 1);
    let owner = before.current_owner().await.unwrap();
    assert_eq!(owner.as_deref(), Some("me"));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_done_makes_the_others_wait_for_half_a_second_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    queue.spool_record(Spool::FollowUps, b"from another program".to_vec());
    let (cache, services) = with_files(directory.path());
    let lock = cache.lock("lock", "me", Duration::from_secs(3600));
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let follower = follower(&queue, services, &left, &last);
    let following = tokio::spawn(keep_following(follower));
    // By now the waits between two passes without news are seconds long.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for _ in 0..3 {
        assert!(lock.acquire().await.unwrap());
        note(&queue, &unlock_of(lock.name(), Some("me")));
        left.note();
        let noted = Instant::now();
        while lock.current_owner().await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(noted.elapsed() <= BETWEEN_PASSES + Duration::from_millis(100));
    }
    last.cancel();
    assert_eq!(following.await.unwrap(), DrainStatus::Failed);
    assert_eq!(queue.spool(Spool::FollowUps).len(), 1);
}

/// Another connection, which is this server.
fn with_other(server: &Arc<Server>, services: Services) -> Services {
    let destination = Destination {
        default_queue: "default".into(),
        queues: Ok(Arc::clone(server) as _),
    };
    Services {
        connections: Some(Connections::new(
            "redis",
            [("other".to_owned(), destination)],
        )),
        ..services
    }
}

/// The lists of two queues, and a ledger in which each of these queues has its own.
fn two_lists() -> ([Arc<MemoryQueue>; 2], Arc<MemoryQueue>) {
    let lists = [(); 2].map(|()| Arc::new(MemoryQueue::new(None)));
    let mut whole = MemoryQueue::new(None);
    for (name, list) in ["first", "second"].into_iter().zip(&lists) {
        whole.parts.insert(name.into(), Arc::clone(list));
    }
    (lists, Arc::new(whole))
}

/// One list waits for a server that does not answer.
#[tokio::test(start_paused = true)]
async fn a_list_that_takes_long_does_not_hold_up_the_others() {
    let other = Server::new();
    other.next("push_once", [Some(Fault::Hangs)]);
    let ([slow, fast], whole) = two_lists();
    let to_other = RemotePush {
        connection: "other".to_owned(),
        ..to_default("a")
    };
    note(&slow, &FollowUp::Push(to_other));
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let services = with_other(&other, Services::default());
    let relay = FollowUpRelay {
        queues: vec!["first".into(), "second".into()],
        ..follower(&whole, services, &left, &last)
    };
    let following = tokio::spawn(keep_following(relay));
    for id in ["b", "c"] {
        note(&fast, &FollowUp::Push(to_default(id)));
        left.note();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(left_in(&fast), 0, "{id}");
    }
    assert_eq!(other.calls("push_once").len(), 1);
    assert!(!left.is_clear(), "the slow list is not done");
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn the_list_of_a_queue_without_a_worker_is_looked_at_now_and_then() {
    let ([own, other], whole) = two_lists();
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let relay = FollowUpRelay {
        queues: vec!["first".into()],
        ..follower(&whole, Services::default(), &left, &last)
    };
    let following = tokio::spawn(keep_following(relay));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for list in [&own, &other] {
        note(list, &FollowUp::Push(to_default("a")));
    }
    left.note();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!([left_in(&own), left_in(&other)], [0, 1]);
    assert!(left.is_clear(), "jobs of this worker left nothing there");
    // At the next look, a worker of that queue has the lease.
    let lives = parts::LOOK_EVERY;
    assert!(
        other
            .lease(Spool::FollowUps, "another", lives)
            .await
            .unwrap()
    );
    tokio::time::sleep(parts::LOOK_EVERY + Duration::from_secs(5)).await;
    assert_eq!(left_in(&other), 1, "it is left to that worker");
    tokio::time::sleep(parts::LOOK_EVERY).await;
    assert_eq!(left_in(&other), 0);
    note(&other, &FollowUp::Push(to_default("b")));
    last.cancel();
    assert_eq!(following.await.unwrap(), DrainStatus::All);
    assert_eq!(left_in(&other), 1, "it is left to other workers");
}

/// The list of another queue may have the record that frees the lock.
#[tokio::test(start_paused = true)]
async fn a_step_waits_a_minute_for_another_list_to_free_its_lock() {
    for is_freed in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (cache, services) = with_files(directory.path());
        let taken = cache.lock("step", "before", Duration::from_secs(3600));
        assert!(taken.acquire().await.unwrap());
        let ([own, _], whole) = two_lists();
        note(&own, &locked("a", "step"));
        let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
        let relay = FollowUpRelay {
            queues: vec!["first".into()],
            ..follower(&whole, services, &left, &last)
        };
        let following = tokio::spawn(keep_following(relay));
        tokio::time::sleep(UNTIL_FREED.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(left_in(&own), 1, "it waits");
        if is_freed {
            assert!(taken.release().await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(left_in(&own), 0);
        let sizes = own.sizes(&"default".into()).await.unwrap();
        assert_eq!(sizes.pending, u64::from(is_freed));
        last.cancel();
        following.await.unwrap();
    }
}

/// The store of the locks is away when the first pass is made.
#[tokio::test(start_paused = true)]
async fn a_lock_that_could_not_be_freed_is_no_obstacle_once_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let before = cache.lock("step", "before", Duration::from_secs(3600));
    assert!(before.acquire().await.unwrap());
    let stores = services.stores.unwrap();
    let is_away = std::sync::atomic::AtomicBool::new(true);
    let stores = Stores::new("files", move |name: &str| {
        if is_away.swap(false, std::sync::atomic::Ordering::Relaxed) {
            return Err(std::io::Error::other("away"));
        }
        Ok(stores.get(name).unwrap())
    });
    let services = Services {
        stores: Some(stores),
        ..Services::default()
    };
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &unlock_of("step", Some("before")));
    note(&queue, &locked("a", "step"));
    // What is done after this record leaves something behind, so that nothing else makes the relay forget the lock.
    queue.spool_record(Spool::FollowUps, b"from another program".to_vec());
    let (left, last) = (Arc::<Left>::default(), CancellationToken::new());
    let following = tokio::spawn(keep_following(follower(&queue, services, &left, &last)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(left_in(&queue), 1);
    let owner = before.current_owner().await.unwrap();
    assert_eq!(owner.as_deref(), Some("me"));
    last.cancel();
    assert_eq!(following.await.unwrap(), DrainStatus::Failed);
}

/// A relay, and what it has told of refusals.
fn telling(
    queue: &Arc<MemoryQueue>,
    services: Services,
) -> (FollowUpRelay, Arc<Mutex<Vec<&'static str>>>) {
    let told = Arc::<Mutex<Vec<_>>>::default();
    let tells = Arc::clone(&told);
    let (left, last) = (Arc::default(), CancellationToken::new());
    let relay = FollowUpRelay {
        on_refusal: OnRefusal::new(move |what| tells.lock().unwrap().push(what)),
        ..follower(queue, services, &left, &last)
    };
    (relay, told)
}

fn unlock_of(name: &str, owner: Option<&str>) -> FollowUp {
    FollowUp::Unlock {
        store: "files".to_owned(),
        name: name.to_owned(),
        owner: owner.map(str::to_owned),
    }
}

fn lock_of(name: &str) -> LockRequest {
    LockRequest {
        store: "files".to_owned(),
        name: name.to_owned(),
        owner: "me".to_owned(),
        seconds: 3600,
    }
}

/// A push to the worker's own connection that takes this lock first.
fn locked(id: &str, lock: &str) -> FollowUp {
    FollowUp::Push(RemotePush {
        lock: Some(lock_of(lock)),
        ..to_default(id)
    })
}

fn note(queue: &MemoryQueue, what: &FollowUp) {
    queue.spool_record(Spool::FollowUps, what.to_record());
}

fn left_in(queue: &MemoryQueue) -> usize {
    queue.spool(Spool::FollowUps).len()
}

#[tokio::test]
async fn a_pass_ends_after_many_records_that_stay_and_the_next_one_goes_on_behind_them() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let lock = cache.lock("lock", "me", Duration::from_secs(3600));
    assert!(lock.acquire().await.unwrap());
    let queue = Arc::new(MemoryQueue::new(None));
    // A whole number of pages.
    let stay = MOST_LEFT.next_multiple_of(PAGE);
    (0..stay).for_each(|_| queue.spool_record(Spool::FollowUps, b"{}".to_vec()));
    note(&queue, &unlock_of("lock", Some("me")));
    let (relay, told) = telling(&queue, services);
    let mut state = ListState::default();
    let is_held = async || lock.current_owner().await.unwrap().is_some();
    assert_eq!(
        relay.drain(&relay.ledger, &mut state).await,
        DrainStatus::Failed
    );
    assert_eq!((state.start, is_held().await), (stay, true));
    assert_eq!(
        relay.drain(&relay.ledger, &mut state).await,
        DrainStatus::Failed
    );
    assert_eq!((state.start, is_held().await), (0, false));
    assert_eq!((left_in(&queue), told.lock().unwrap().len()), (stay, stay));
    assert_eq!(
        told.lock().unwrap()[0],
        "read a record in artisand:follow-ups"
    );
    // The same problem is logged once.
    assert_eq!(state.said.problems.len(), 1);
}

/// The record is first replaced by one that names the owner, so that a lock which is taken anew is never freed.
#[tokio::test]
async fn a_lock_whose_owner_was_not_known_is_freed_of_the_owner_that_it_has_now() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let lock = cache.lock("lock", "me", Duration::from_secs(3600));
    assert!(lock.acquire().await.unwrap());
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &unlock_of("lock", None));
    note(&queue, &unlock_of("free", None));
    let (relay, told) = telling(&queue, services);
    let mut state = ListState::default();
    assert_eq!(
        relay.drain(&relay.ledger, &mut state).await,
        DrainStatus::All
    );
    assert_eq!(
        (left_in(&queue), lock.current_owner().await.unwrap()),
        (0, None)
    );
    assert!(told.lock().unwrap().is_empty());
    // One record of the free lock; of the other lock first the one without an owner, then the one that names it.
    assert_eq!(relay.progress.records(), 3);
}

#[tokio::test]
async fn a_lock_that_cannot_be_freed_is_not_taken_in_the_same_pass() {
    for owner in [None, Some("before")] {
        let queue = Arc::new(MemoryQueue::new(None));
        note(&queue, &unlock_of("step", owner));
        note(&queue, &locked("a", "step"));
        // Without the app's cache.
        let (relay, told) = telling(&queue, Services::default());
        let mut state = ListState::default();
        assert_eq!(
            relay.drain(&relay.ledger, &mut state).await,
            DrainStatus::Failed
        );
        // The push waits and is no refusal itself.
        assert_eq!(
            (left_in(&queue), &**told.lock().unwrap()),
            (2, &["free a lock"][..])
        );
        assert!(
            state
                .said
                .held
                .contains(&("files".to_owned(), "step".to_owned()))
        );
    }
}

pub(in crate::outbox) fn ended(uuid: &str) -> Ended {
    Ended {
        token: "t".to_owned(),
        uuid: uuid.to_owned(),
        outcome: crate::batch::JobOutcome::Succeeded,
    }
}

pub(in crate::outbox) fn count_of(batch: &str, uuid: &str) -> Count {
    Count {
        batch: batch.to_owned(),
        ended: ended(uuid),
        connection: None,
        queue: None,
        message: None,
        name: None,
        inherited: None,
        timeout: None,
    }
}

fn count(batch: &str, uuid: &str) -> FollowUp {
    FollowUp::Count(count_of(batch, uuid))
}

/// Batches in this `SQLite` file of an app that listens to their events.
#[cfg(feature = "sqlite")]
fn batches_in(file: &std::path::Path) -> (Database, Services) {
    let options = DatabaseOptions {
        database: file.display().to_string(),
        ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
    };
    let database = Database::new(&options).unwrap();
    let version = "13.31.0".parse().unwrap();
    let batches = Batches::new(database.clone(), "job_batches", version, Clock::System);
    let key = Encrypter::new(version, &"k".repeat(32), "AES-256-CBC").unwrap();
    let services = Services {
        batches: Some(batches.with_events(true)),
        version,
        encrypter: Some(Arc::new(key)),
        ..Services::default()
    };
    (database, services)
}

/// After one batch could not be reached, the others are not tried in the same pass.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn records_of_all_batches_stay_where_their_database_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let (_, services) = batches_in(&directory.path().join("nowhere/file"));
    let queue = Arc::new(MemoryQueue::new(None));
    for batch in ["a", "b", "c"] {
        note(&queue, &count(batch, "1"));
    }
    for batch in ["a", "c"] {
        let forget = FollowUp::Forget {
            batch: batch.to_owned(),
            ended: vec![ended("0")],
        };
        note(&queue, &forget);
    }
    let (relay, told) = telling(&queue, services);
    let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
    assert_eq!((drained, left_in(&queue)), (DrainStatus::Failed, 5));
    assert_eq!(**told.lock().unwrap(), ["count jobs in a batch"]);
}

/// Each try may cost the whole of a timeout.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_database_of_batches_that_is_away_is_tried_once_in_a_pass_of_several_pages() {
    let directory = tempfile::tempdir().unwrap();
    let (_, services) = batches_in(&directory.path().join("nowhere/file"));
    let queue = Arc::new(MemoryQueue::new(None));
    for number in 0..=PAGE {
        note(&queue, &count(&number.to_string(), "1"));
    }
    let forget = FollowUp::Forget {
        batch: "b".to_owned(),
        ended: vec![ended("0")],
    };
    note(&queue, &forget);
    let (relay, told) = telling(&queue, services);
    let mut state = ListState::default();
    for tries in 1..=2 {
        let drained = relay.drain(&relay.ledger, &mut state).await;
        assert_eq!((drained, left_in(&queue)), (DrainStatus::Failed, PAGE + 2));
        assert_eq!(told.lock().unwrap().len(), tries);
    }
}

/// A batch of three jobs, without callbacks.
#[cfg(feature = "sqlite")]
async fn with_a_batch(file: &std::path::Path) -> (Database, Services) {
    let (database, services) = batches_in(file);
    std::fs::File::create(file).unwrap();
    let statements = [
        "create table \"job_batches\" (\"id\" varchar primary key, \"name\" varchar, \"total_jobs\" integer, \
         \"pending_jobs\" integer, \"failed_jobs\" integer, \"failed_job_ids\" text, \"options\" text, \
         \"cancelled_at\" integer, \"created_at\" integer, \"finished_at\" integer)",
        "insert into \"job_batches\" values ('b', '', 3, 3, 0, '[]', 'a:0:{}', null, 1800000000, null)",
    ];
    for statement in statements {
        database.execute(statement, &[]).await.unwrap();
    }
    (database, services)
}

/// Jobs that are pending, as the row of the batch says, and what it says of failed jobs and marks.
#[cfg(feature = "sqlite")]
async fn row_of(database: &Database) -> (i64, String) {
    let query = "select \"pending_jobs\", \"failed_job_ids\" from \"job_batches\"";
    let rows = database.rows(query, &[]).await.unwrap();
    (
        rows[0].int(0).unwrap(),
        rows[0].text(1).unwrap().into_owned(),
    )
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn counted_ends_leave_no_mark_and_the_first_one_raises_an_event() {
    let directory = tempfile::tempdir().unwrap();
    let (database, services) = with_a_batch(&directory.path().join("file")).await;
    let queue = Arc::new(MemoryQueue::new(None));
    let inherited = serde_json::Map::from_iter([("of_job".to_owned(), 7.into())]);
    let first = FollowUp::Count(Count {
        queue: Some("php".to_owned()),
        inherited: Some(inherited),
        timeout: Some(900),
        ..count_of("b", "1")
    });
    note(&queue, &first);
    note(&queue, &count("b", "2"));
    let services = Services {
        has_horizon: true,
        ..services
    };
    let (relay, _) = telling(&queue, services);
    let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
    assert_eq!((drained, left_in(&queue)), (DrainStatus::All, 0));
    assert_eq!(row_of(&database).await, (1, "[]".to_owned()));
    let jobs = queue.look(&"php".into(), Place::Pending, 0, 2).await;
    let jobs = jobs.unwrap();
    assert_eq!(jobs.len(), 1);
    let payload = crate::payload::Payload::parse(&jobs[0]).unwrap();
    let text = String::from_utf8_lossy(&jobs[0]);
    assert!(payload.uuid.is_some());
    // Horizon does not show what artisand adds.
    let parts = [
        "BatchStarted",
        "\"of_job\":7",
        "\"timeout\":900",
        "\"silenced\":true",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

/// A column that takes no mark more, as one of 64 KiB that is full of failed jobs.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn ends_for_whose_marks_there_is_no_room_are_counted_by_php() {
    let directory = tempfile::tempdir().unwrap();
    let (database, services) = with_a_batch(&directory.path().join("file")).await;
    let failed: Vec<String> = (0..1000).map(|number| format!("{number:036}")).collect();
    let failed = serde_json::to_string(&failed).unwrap();
    let statements = [
        format!("update \"job_batches\" set \"failed_job_ids\" = '{failed}'"),
        format!(
            "create trigger full before update on \"job_batches\" when length(new.\"failed_job_ids\") > {} \
             begin select raise(abort, 'too long'); end",
            failed.len()
        ),
    ];
    for statement in statements {
        database.execute(&statement, &[]).await.unwrap();
    }
    let queue = Arc::new(MemoryQueue::new(None));
    for uuid in ["u-1", "u-2"] {
        note(&queue, &count("b", uuid));
    }
    let services = Services {
        php_queue: Some("php".into()),
        ..services
    };
    let (relay, _) = telling(&queue, services);
    let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
    assert_eq!((drained, left_in(&queue)), (DrainStatus::All, 0));
    assert_eq!(row_of(&database).await, (3, failed));
    let jobs = queue.look(&"php".into(), Place::Pending, 0, 9).await;
    let jobs = jobs.unwrap();
    let counts = |uuid: &str| {
        let texts = jobs.iter().map(|job| String::from_utf8_lossy(job));
        texts.filter(|text| text.contains(uuid)).count()
    };
    assert_eq!((jobs.len(), counts("u-1"), counts("u-2")), (2, 1, 1));
}

/// The jobs are the last ones of their batch, and no queue with PHP workers is known.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn ends_that_php_must_count_stay_while_no_queue_of_php_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let (database, services) = with_a_batch(&directory.path().join("file")).await;
    let statement = "update \"job_batches\" set \"pending_jobs\" = 1";
    database.execute(statement, &[]).await.unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &count("b", "1"));
    note(&queue, &count("b", "2"));
    let (relay, told) = telling(&queue, services);
    let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
    assert_eq!((drained, left_in(&queue)), (DrainStatus::Failed, 2));
    assert_eq!(
        **told.lock().unwrap(),
        ["let PHP run a batch's callbacks"; 2]
    );
    assert_eq!(row_of(&database).await.0, 1);
}

/// Another job holds the lock of the next one; what waits further on in the list frees others.
#[tokio::test]
async fn a_step_does_not_wait_for_records_that_free_other_locks() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let taken = cache.lock("step", "another", Duration::from_secs(3600));
    assert!(taken.acquire().await.unwrap());
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &locked("a", "step"));
    for number in 0..PAGE {
        note(&queue, &unlock_of(&format!("other{number}"), Some("other")));
    }
    let in_another_store = FollowUp::Unlock {
        store: "second".to_owned(),
        name: "step".to_owned(),
        owner: Some("other".to_owned()),
    };
    note(&queue, &in_another_store);
    let (relay, told) = telling(&queue, services);
    let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
    assert_eq!((drained, left_in(&queue)), (DrainStatus::All, 0));
    assert_eq!(queue.sizes(&"default".into()).await.unwrap().pending, 0);
    assert!(told.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_cannot_be_done_stays_and_what_is_behind_it_is_done() {
    let queue = Arc::new(MemoryQueue::new(None));
    let server = Server::new();
    let push = |connection: &str, id: &str| {
        FollowUp::Push(RemotePush {
            connection: connection.to_owned(),
            ..to_default(id)
        })
    };
    note(&queue, &push("unknown", "a"));
    note(&queue, &push("other", "b"));
    note(&queue, &push("redis", "c"));
    note(&queue, &count("batch", "u"));
    note(
        &queue,
        &FollowUp::Forget {
            batch: "another".to_owned(),
            ended: vec![ended("u")],
        },
    );
    server.next("push_once", [Some(Fault::Refused)]);
    let (relay, told) = telling(&queue, with_other(&server, Services::default()));
    let mut state = ListState::default();
    assert_eq!(
        relay.drain(&relay.ledger, &mut state).await,
        DrainStatus::Failed
    );
    assert_eq!(left_in(&queue), 4);
    let expected = [
        "push a job",
        "push a job",
        "count jobs in a batch",
        "clean up a batch",
    ];
    assert_eq!(**told.lock().unwrap(), expected);
    assert!(
        state
            .said
            .problems
            .contains("there is no queue connection `unknown`")
    );
    assert_eq!(queue.sizes(&"default".into()).await.unwrap().pending, 1);
    // The other server takes the job the next time.
    relay.drain(&relay.ledger, &mut state).await;
    assert_eq!((left_in(&queue), server.sizes().await.pending), (3, 1));
}

#[tokio::test]
async fn a_job_that_its_server_will_never_take_becomes_a_failed_job_and_its_lock_is_freed() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let queue = Arc::new(MemoryQueue::new(None));
    let server = Server::new();
    server.next("push_once", [Some(Fault::Impossible)]);
    note(
        &queue,
        &FollowUp::Push(RemotePush {
            connection: "other".to_owned(),
            payload: r#"{"uuid":"u-1","displayName":"A","job":"B@call","data":{}}"#.to_owned(),
            lock: Some(lock_of("step")),
            ..to_default("a")
        }),
    );
    let (relay, _) = telling(&queue, with_other(&server, services));
    let relay = FollowUpRelay {
        clock: Clock::Fixed(UnixSeconds(1_800_000_000)),
        ..relay
    };
    assert_eq!(
        relay.drain(&relay.ledger, &mut ListState::default()).await,
        DrainStatus::All
    );
    let records = queue.spool(Spool::FailedJobs);
    assert_eq!(
        (left_in(&queue), records.len(), server.sizes().await.pending),
        (0, 1, 0)
    );
    let job: crate::payload::FailedJob = serde_json::from_slice(&records[0]).unwrap();
    assert_eq!(
        (job.connection.as_str(), job.queue.as_str()),
        ("other", "default")
    );
    assert_eq!(
        (job.uuid.as_deref(), job.failed_at),
        (Some("u-1"), 1_800_000_000)
    );
    assert!(job.payload.contains("u-1") && job.exception.starts_with("Artisand\\PushRefused: "));
    let lock = cache.lock("step", "me", Duration::ZERO);
    assert_eq!(lock.current_owner().await.unwrap(), None);
}

/// The next job of a chain is unique, and another one is queued: Laravel drops it, and with it the rest of the chain.
#[tokio::test]
async fn a_step_whose_lock_another_job_holds_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let queue = Arc::new(MemoryQueue::new(None));
    let other = cache.lock("step", "another job", Duration::from_secs(3600));
    assert!(other.acquire().await.unwrap());
    for (id, name) in [("a", "step"), ("b", "mine"), ("c", "mine")] {
        note(&queue, &locked(id, name));
    }
    let (relay, told) = telling(&queue, services);
    assert_eq!(
        relay.drain(&relay.ledger, &mut ListState::default()).await,
        DrainStatus::All
    );
    // An owner may take its lock again: a worker may have died between the lock and the push.
    assert_eq!(
        (
            left_in(&queue),
            queue.sizes(&"default".into()).await.unwrap().pending
        ),
        (0, 2)
    );
    assert!(told.lock().unwrap().is_empty());
    let owner = other.current_owner().await.unwrap();
    assert_eq!(owner.as_deref(), Some("another job"));
}

/// A process that slept for longer than its lease lived: its successor frees and takes these locks.
#[tokio::test]
async fn without_the_lease_no_lock_is_taken_and_no_record_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (cache, services) = with_files(directory.path());
    let queue = Arc::new(MemoryQueue::new(None));
    note(&queue, &locked("a", "step"));
    let (relay, _) = telling(&queue, services);
    let lease = Lease::take(&relay.ledger, Spool::FollowUps, &relay.progress).await;
    let mut lease = lease.unwrap();
    // The lease is another's.
    assert_eq!(
        relay.drain(&relay.ledger, &mut ListState::default()).await,
        DrainStatus::Later
    );
    relay
        .ledger
        .unlease(Spool::FollowUps, lease.holder())
        .await
        .unwrap();
    let mut state = ListState::default();
    assert_eq!(
        relay.drain_leased(&mut lease, &mut state).await,
        DrainStatus::Later
    );
    let lock = cache.lock("step", "me", Duration::ZERO);
    assert_eq!(
        (left_in(&queue), lock.current_owner().await.unwrap()),
        (1, None)
    );
    assert_eq!(queue.sizes(&"default".into()).await.unwrap().pending, 0);
}

/// The second in which locks are taken, for the tests of their lifetimes.
const TAKEN: i64 = 1_800_000_000;

/// Who holds the lock `step` in this directory, this many seconds after it was taken.
async fn holder_after(directory: &std::path::Path, seconds: i64) -> Option<String> {
    let now = Clock::Fixed(UnixSeconds(TAKEN + seconds));
    let lock = files(directory, now).lock("step", "", Duration::ZERO);
    lock.current_owner().await.unwrap()
}

/// A push that takes the lock `step` for this many seconds.
fn locked_for(seconds: u64) -> FollowUp {
    let lock = LockRequest {
        seconds,
        ..lock_of("step")
    };
    FollowUp::Push(RemotePush {
        lock: Some(lock),
        ..to_default("a")
    })
}

/// The request for the lock comes to its store when another worker has long taken the lease, pushed the job, and the
/// job has run.
#[tokio::test]
async fn a_lock_that_is_taken_too_late_is_free_after_a_minute() {
    for seconds in [0, 3600] {
        let directory = tempfile::tempdir().unwrap();
        let queue = Arc::new(MemoryQueue::new(None));
        note(&queue, &locked_for(seconds));
        let holder = Arc::<OnceLock<String>>::default();
        let loses_the_lease = {
            let (queue, holder) = (Arc::clone(&queue), Arc::clone(&holder));
            move || drop(queue.unlease(Spool::FollowUps, holder.get().unwrap()))
        };
        let now = Clock::Fixed(UnixSeconds(TAKEN));
        let cache = files(directory.path(), now);
        let (relay, _) = telling(&queue, with_cache(&cache, loses_the_lease));
        let lease = Lease::take(&relay.ledger, Spool::FollowUps, &relay.progress).await;
        let mut lease = lease.unwrap();
        holder.set(lease.holder().to_owned()).unwrap();
        let mut state = ListState::default();
        let drained = relay.drain_leased(&mut lease, &mut state).await;
        assert_eq!(drained, DrainStatus::Later);
        let holders = [
            holder_after(directory.path(), 59).await,
            holder_after(directory.path(), 60).await,
        ];
        assert_eq!(holders, [Some("me".to_owned()), None], "{seconds}");
        assert_eq!(queue.sizes(&"default".into()).await.unwrap().pending, 0);
    }
}

#[tokio::test]
async fn a_lock_lives_as_long_as_its_record_says_once_the_job_is_pushed() {
    const CENTURY: i64 = 3_153_600_000;
    // A worker may have taken the lock and died, a while ago.
    for is_taken in [false, true] {
        for (seconds, lives) in [(0, None), (3600, Some(3600)), (30, Some(30))] {
            let directory = tempfile::tempdir().unwrap();
            let now = Clock::Fixed(UnixSeconds(TAKEN));
            let cache = files(directory.path(), now);
            if is_taken {
                let before = cache.lock("step", "me", Duration::from_secs(10));
                assert!(before.acquire().await.unwrap());
            }
            let queue = Arc::new(MemoryQueue::new(None));
            note(&queue, &locked_for(seconds));
            let (relay, _) = telling(&queue, with_cache(&cache, || {}));
            let drained = relay.drain(&relay.ledger, &mut ListState::default()).await;
            assert_eq!(drained, DrainStatus::All);
            assert_eq!(queue.sizes(&"default".into()).await.unwrap().pending, 1);
            let last = lives.map_or(CENTURY, |lives| lives - 1);
            let holder = holder_after(directory.path(), last).await;
            assert_eq!(holder.as_deref(), Some("me"), "{seconds}, {is_taken}");
            if let Some(lives) = lives {
                let holder = holder_after(directory.path(), lives).await;
                assert_eq!(holder, None, "{seconds}, {is_taken}");
            }
        }
    }
}

#[test]
fn a_problem_is_logged_once_until_there_were_many_others() {
    let mut said = Logged::default();
    for _ in 0..2 {
        said.problem("push a job", "away".to_owned());
    }
    assert_eq!(said.problems.len(), 1);
    for number in 1..MOST_PROBLEMS {
        said.problem("push a job", number.to_string());
    }
    assert_eq!(said.problems.len(), MOST_PROBLEMS);
    said.problem("push a job", "one more".to_owned());
    assert_eq!(said.problems.len(), 1);
    said.all_done();
    assert!(said.problems.is_empty());
}

#[test]
fn records_that_stay_are_added_up() {
    let left = |done| match done {
        RelayResult::All => Some(0),
        RelayResult::Left(left) => Some(left),
        RelayResult::Lost | RelayResult::Unreachable(_) => None,
    };
    let rows = [
        (RelayResult::All, 0, Some(0)),
        (RelayResult::All, 2, Some(2)),
        (RelayResult::Left(3), 0, Some(3)),
        (RelayResult::Left(3), 2, Some(5)),
        (RelayResult::Lost, 2, None),
    ];
    for (done, more, expected) in rows {
        assert_eq!(left(done.and_left(more)), expected, "{more} more");
    }
    assert!(matches!(RelayResult::All.and_left(0), RelayResult::All));
}
