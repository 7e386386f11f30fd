use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use serde_json::{Value, json};

use super::*;
use crate::cache::Lock;
use crate::handler::{self, BoxError, BoxFuture, Next};
use crate::php;
use crate::queue::{ReservedJob, Settled, Settlement};
use crate::routing::{Canary, Mapping, UnmappedPolicy};
use crate::time::UnixSeconds;
use crate::worker::attempt::tests::attempt_of;
use crate::worker::completion::unique::Unique;
use crate::worker::test_support::{
    NOW, S, Scene, does, files, job, manifest, mapping, nothing, object, payload, payload_of,
    router, slow, stores,
};

/// A middleware of this name that notes when it runs.
struct Notes(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Middleware for Notes {
    fn handle<'a>(
        &'a self,
        _: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        self.1.lock().unwrap().push(self.0);
        next.run()
    }
}

/// A middleware that does this and lets no job through.
struct Instead(fn(&JobContext));

impl Middleware for Instead {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        _: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        (self.0)(context);
        Box::pin(std::future::ready(Ok(())))
    }
}

fn unique(owner: Option<&str>) -> Unique {
    Unique {
        store: "files".to_owned(),
        name: "lock".to_owned(),
        owner: owner.map(str::to_owned),
        until_processing: true,
    }
}

#[test]
fn a_later_attempt_does_not_free_a_lock_that_may_be_of_a_later_job() {
    #[rustfmt::skip]
    let rows = [
        // attempt, owner, version => frees
        (1, None,       "13.31.0", true),
        (2, None,       "13.31.0", false),
        (2, Some("me"), "13.31.0", true),
        (2, None,       "13.4.0",  true),
        (2, None,       "13.5.0",  false),
        (2, None,       "13.22.0", false),
        (2, None,       "13.23.0", true),
        (2, None,       "13.24.0", false),
        (2, None,       "10.48.0", true),
    ];
    for (attempts, owner, version, expected) in rows {
        let completion = Completion::with_lock(unique(owner));
        let until = until_processing(&completion, attempts, version.parse().unwrap());
        assert_eq!(until.is_some(), expected, "{attempts} {owner:?} {version}");
    }
    let newest = "13.31.0".parse().unwrap();
    assert!(until_processing(&Completion::default(), 1, newest).is_none());
}

/// Looks whether the lock is held.
struct Looks(Lock, Arc<Mutex<Option<bool>>>);
impl Middleware for Looks {
    fn handle<'a>(
        &'a self,
        _: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let owner = self.0.current_owner().await?;
            *self.1.lock().unwrap() = Some(owner.is_some());
            next.run().await
        })
    }
}

#[tokio::test]
async fn the_lock_is_freed_behind_the_middleware_since_laravel_11_40_and_in_front_before() {
    for (version, is_held_in_middleware) in [("11.39.0", false), ("11.40.0", true)] {
        let directory = tempfile::tempdir().unwrap();
        let lock = held(directory.path(), "lock").await;
        let services = Arc::new(crate::handler::Services {
            stores: Some(stores(directory.path())),
            ..crate::worker::test_support::services(version)
        });
        let until = Arc::new(UntilProcessing::new(unique(Some("me"))));
        let was_held = Arc::new(Mutex::new(None));
        let looks: Arc<dyn Middleware> = Arc::new(Looks(lock.clone(), Arc::clone(&was_held)));
        let pipeline: Pipeline = std::iter::once(looks).collect();
        let pipeline = around(&pipeline, Some(&until), services.version);
        let info = crate::worker::test_support::info(&job(1));
        let context = JobContext::new(info, CancellationToken::new(), services);
        pipeline.run(&context, &nothing()).await.unwrap();
        assert_eq!(
            *was_held.lock().unwrap(),
            Some(is_held_in_middleware),
            "{version}"
        );
        assert_eq!(lock.current_owner().await.unwrap(), None, "{version}");
    }
}

/// A lock that a job holds.
async fn held(directory: &std::path::Path, name: &str) -> Lock {
    let lock = files(directory).lock(name, "me", S(600));
    assert!(lock.acquire().await.unwrap());
    lock
}

/// A job that is unique until it runs, and its lock.
async fn unique_job(scene: &mut Scene, directory: &std::path::Path) -> (Vec<u8>, Lock) {
    let class = json!({"App\\Jobs\\A": {"flags": {
        "queued": true, "unique": true, "unique_until_processing": true,
    }}});
    scene.services.stores = Some(stores(directory));
    scene.services.manifest = Some(manifest("13.31.0", &class));
    let lock = held(directory, "laravel_unique_job:App\\Jobs\\A:").await;
    let command = object("App\\Jobs\\A", 1, "s:15:\"uniqueLockOwner\";s:2:\"me\";");
    (payload_of("App\\Jobs\\A", &command, 1, &json!({})), lock)
}

#[tokio::test(start_paused = true)]
async fn a_job_that_its_middleware_ends_loses_its_lock_unless_it_comes_back() {
    type End = fn(&JobContext);
    let nothing: End = |_| {};
    let delete: End = |context| context.delete();
    let fail: End = |context| context.fail("x");
    let release: End = |context| context.release(S(5));
    let discard: End = |context| context.discard();
    #[rustfmt::skip]
    let rows = [
        (nothing, true),
        (delete,  true),
        (fail,    true),
        (release, false),
        // Another job has taken its place, and has the lock.
        (discard, false),
    ];
    for (number, (instead, is_freed)) in rows.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let handler = handler::function(|_: serde::de::IgnoredAny, _: JobContext| async {
            Ok::<(), BoxError>(())
        });
        let mut scene = Scene::new(handler.with_middleware(Instead(instead)));
        let (payload, lock) = unique_job(&mut scene, directory.path()).await;
        scene.attempt(&payload, 1, Settled::Done).await;
        let owner = lock.current_owner().await.unwrap();
        assert_eq!(owner.is_none(), is_freed, "row {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_job_dispatched_meanwhile_stays_when_the_running_one_deletes_itself_and_errs()
{
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let handler = handler::function(move |_: serde::de::IgnoredAny, context: JobContext| {
        let path = path.clone();
        async move {
            held(&path, "laravel_unique_job:App\\Jobs\\A:").await;
            context.delete();
            Err::<(), BoxError>("x".into())
        }
    });
    let mut scene = Scene::new(handler);
    let (_, lock) = unique_job(&mut scene, directory.path()).await;
    // Its owner is not known, so that any would be freed.
    let command = object("App\\Jobs\\A", 0, "");
    let payload = payload_of("App\\Jobs\\A", &command, 1, &json!({}));
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    assert_eq!(*attempted.settlement(), Settlement::Delete);
    assert!(lock.current_owner().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cut_off_in_its_middleware_keeps_its_lock() {
    struct Waits;
    impl Middleware for Waits {
        fn handle<'a>(
            &'a self,
            _: &'a JobContext,
            _: Next<'a>,
        ) -> BoxFuture<'a, Result<(), BoxError>> {
            Box::pin(std::future::pending())
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let handler = handler::function(|_: serde::de::IgnoredAny, _: JobContext| async {
        Ok::<(), BoxError>(())
    });
    let mut scene = Scene::new(handler.with_middleware(Waits));
    scene.options.defaults.tries = 3;
    let (payload, lock) = unique_job(&mut scene, directory.path()).await;
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    assert!(matches!(attempted.settlement(), Settlement::LeaveUntil(_)));
    assert!(lock.current_owner().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_job_past_its_limits_fails_before_its_middleware_runs() {
    #[rustfmt::skip]
    let rows = [
        // fields, attempt => runs
        (json!({"maxTries": 3}),                                3, true),
        (json!({"maxTries": 3}),                                4, false),
        (json!({"maxTries": 0}),                              999, true),
        // `retryUntil` switches `maxTries` off, and at its very second a job still starts.
        (json!({"maxTries": 1, "retryUntil": NOW.0}),           9, true),
        (json!({"maxTries": 9, "retryUntil": NOW.0 - 1}),       1, false),
        (json!({"maxTries": 0}), ReservedJob::UNCOUNTABLE,         false),
    ];
    for (fields, attempts, runs) in rows {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let handler = handler::function(|_: serde::de::IgnoredAny, _: JobContext| async {
            Ok::<(), BoxError>(())
        });
        let handler = handler.with_middleware(Notes("ran", Arc::clone(&noted)));
        let scene = Scene::new(handler);
        let payload = payload("A", 1, &fields);
        let attempted = scene.attempt(&payload, attempts, Settled::Done).await;
        assert_eq!(
            !noted.lock().unwrap().is_empty(),
            runs,
            "{fields} {attempts}"
        );
        if !runs {
            let exception = &attempted.failed().exception;
            let class = "Illuminate\\Queue\\MaxAttemptsExceededException: App\\Jobs\\A has been attempted too many times.";
            assert!(exception.starts_with(class), "{exception}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waits_between_attempts_follow_the_list_of_the_job_or_else_of_the_worker() {
    #[rustfmt::skip]
    let rows = [
        // backoff of the job, attempt => seconds until the next
        (json!("1,5,10"), 1, 1),
        (json!([1, 5, 10]), 2, 5),
        (json!([1, 5, 10]), 9, 10),
        (json!(30), 4, 30),
        (json!(null), 2, 7),
        (json!(0), 2, 0),
    ];
    for (backoff, attempts, expected) in rows {
        let mut scene = Scene::new(does(|_| Err("disk full".into())));
        scene.options.defaults.tries = 0;
        scene.options.defaults.backoff = crate::payload::Backoff::parse("3,7");
        let fields = json!({"backoff": backoff});
        let payload = payload("A", 1, &fields);
        let attempted = scene.attempt(&payload, attempts, Settled::Done).await;
        let due = UnixSeconds(NOW.0 + expected);
        assert_eq!(
            *attempted.settlement(),
            Settlement::Release(due),
            "{fields}"
        );
        let told = [
            format!("JobProcessing uuid-1 {attempts}"),
            "JobExceptionOccurred disk full".to_owned(),
        ];
        assert_eq!(attempted.told, told, "{fields}");
    }
}

#[tokio::test(start_paused = true)]
async fn exceptions_are_counted_across_attempts_and_workers() {
    type Act = fn(&JobContext) -> Result<(), BoxError>;
    let throws: Act = |_| Err("disk full".into());
    let fails: Act = |context| {
        context.fail("on purpose");
        Err("disk full".into())
    };
    let deletes: Act = |context| {
        context.delete();
        Err("disk full".into())
    };
    let releases: Act = |context| {
        context.release(S(9));
        Ok(())
    };
    #[rustfmt::skip]
    let rows = [
        // exceptions before, what the handler does => counted then, whether the job fails
        (None,    throws,   Some(1), false),
        (Some(1), throws,   Some(2), false),
        // The count begins anew, for `queue:retry`.
        (Some(2), throws,   None,    true),
        (Some(2), fails,    Some(2), true),
        (Some(2), deletes,  Some(2), false),
        (Some(2), releases, Some(2), false),
    ];
    for (before, act, expected, has_failed) in rows {
        let directory = tempfile::tempdir().unwrap();
        let cache = files(directory.path());
        let key = cache::keys::exceptions("uuid-1");
        if let Some(before) = before {
            cache
                .put(&key, &php::Value::Int(before), S(60))
                .await
                .unwrap();
        }
        let mut scene = Scene::new(does(act));
        scene.services.middleware.cache = Some(cache.clone());
        let payload = payload("A", 1, &json!({"maxTries": 0, "maxExceptions": 3}));
        let attempted = scene.attempt(&payload, 7, Settled::Done).await;
        let count = cache
            .get(&key)
            .await
            .unwrap()
            .and_then(|count| count.as_int());
        assert_eq!(count, expected, "{before:?}");
        let is_recorded = matches!(attempted.settlement(), Settlement::Finish(_));
        assert_eq!(is_recorded, has_failed, "{before:?} {attempted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_of_exceptions_that_cannot_be_kept_fails_no_job() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let mut scene = Scene::new(does(|_| Err("disk full".into())));
    scene.services.middleware.cache = Some(files(&file));
    let payload = payload("A", 1, &json!({"maxTries": 0, "maxExceptions": 1}));
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    assert!(matches!(attempted.settlement(), Settlement::Release(_)));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_an_exception_of_the_job_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(slow(S(3600)));
    scene.services.middleware.cache = Some(files(directory.path()));
    let payload = payload(
        "A",
        1,
        &json!({"maxTries": 0, "maxExceptions": 1, "timeout": 5}),
    );
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    let exception = &attempted.failed().exception;
    let class = "Illuminate\\Queue\\TimeoutExceededException: App\\Jobs\\A has timed out.";
    assert!(exception.starts_with(class), "{exception}");
}

#[tokio::test(start_paused = true)]
async fn laravel_before_10_10_has_no_exception_for_timeouts_alone() {
    let mut scene = Scene::new(slow(S(3600)));
    scene.services.version = "9.52.0".parse().unwrap();
    scene.services.manifest = Some(manifest("9.52.0", &json!({"App\\Jobs\\A": {}})));
    let payload = payload("A", 1, &json!({"maxTries": 1, "timeout": 5}));
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    let exception = &attempted.failed().exception;
    let class = "Illuminate\\Queue\\MaxAttemptsExceededException: App\\Jobs\\A has been attempted too many times or run too long. The job may have previously timed out.";
    assert!(exception.starts_with(class), "{exception}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_runs_once_lets_a_job_run_beyond_its_timeout() {
    let mut scene = Scene::new(slow(S(3600)));
    scene.options.stop.once = true;
    let payload = payload("A", 1, &json!({"timeout": 5}));
    let attempted = scene.attempt(&payload, 1, Settled::Done).await;
    assert_eq!(*attempted.settlement(), Settlement::Delete);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cut_at_the_stop_deadline_comes_back_at_once_with_its_attempt_counted() {
    let scene = Scene::new(slow(S(3600)));
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, mut ends) = scene.shared();
    let candidate = shared.triage.triage(&job.payload, &job.queue);
    shared.stops.cut.cancel();
    let placement = crate::worker::attempt::Placement::Local;
    let run = crate::worker::attempt::run(Arc::clone(&shared), job, candidate, 1, placement);
    assert!(run.await.was_cut);
    let pending = ends.recv().await.unwrap();
    assert_eq!(pending.ending.settlement, Settlement::Release(NOW));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_added_step_could_not_follow_has_failed_and_pushes_nothing() {
    let class = php::ClassName::new("App\\Jobs\\Unknown").unwrap();
    let handler = does(move |context| {
        context.append_to_chain(php::Object::new(class.clone()));
        Ok(())
    });
    let mut scene = Scene::new(handler);
    scene.services.encrypter = None;
    let attempted = scene.attempt(&job(1), 1, Settled::Done).await;
    let exception = &attempted.failed().exception;
    assert!(exception.starts_with("Artisand\\ChainError: the job added to the chain"));
    let Settlement::Finish(effects) = attempted.settlement() else {
        panic!("{attempted:?}");
    };
    assert_eq!(effects.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_settles_itself_is_settled_so_whatever_it_throws() {
    type Act = fn(&JobContext) -> Result<(), BoxError>;
    let due = |seconds| UnixSeconds(NOW.0 + seconds);
    #[rustfmt::skip]
    let rows: [(Act, Settlement); 6] = [
        (|context| { context.release(S(7)); Ok(()) }, Settlement::Release(due(7))),
        (|context| { context.release(S(7)); Err("x".into()) }, Settlement::Release(due(7))),
        (|context| { context.release_without_attempt(S(7)); Ok(()) }, Settlement::ReleaseUncounted(due(7))),
        (|context| { context.release_without_attempt(S(7)); context.release(S(1)); Ok(()) }, Settlement::Release(due(1))),
        (|context| { context.delete(); Err("x".into()) }, Settlement::Delete),
        (|context| { context.release(S(7)); context.delete(); Ok(()) }, Settlement::Delete),
    ];
    for (number, (act, expected)) in rows.into_iter().enumerate() {
        let mut scene = Scene::new(does(act));
        scene.options.defaults.tries = 3;
        let attempted = scene.attempt(&job(1), 1, Settled::Done).await;
        assert_eq!(*attempted.settlement(), expected, "row {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_counts_what_its_users_would_call_a_failure() {
    let request = |set: fn(&mut Request)| {
        let mut request = Request::default();
        set(&mut request);
        request
    };
    let plain = || request(|_| {});
    let failure = || FailureText::new("E", "m");
    let missing = |deletes| Outcome::ModelMissing {
        failure: failure(),
        deletes,
    };
    #[rustfmt::skip]
    let rows = [
        (Outcome::Finished,         plain(),                                          false),
        (Outcome::Finished,         request(|it| it.release = Some(Duration::ZERO)),   false),
        (Outcome::Finished,         request(|it| it.fail = Some(FailureText::new("E", ""))), true),
        // A middleware has swallowed the error.
        (Outcome::Finished,         request(|it| it.has_thrown = true),                true),
        (Outcome::threw(failure()), plain(),                                          true),
        (Outcome::TimedOut,         plain(),                                          true),
        (missing(true),             plain(),                                          false),
        (missing(false),            plain(),                                          true),
        // The worker stopped: that says nothing about the handler.
        (Outcome::Stopped,          plain(),                                          false),
    ];
    for (outcome, request, has_failed) in rows {
        let mut scene = Scene::new(nothing());
        let canary = Mapping {
            canary: Canary::new(100.0).and_then(|canary| canary.stop_at(50.0)),
            ..mapping("App\\Jobs\\A")
        };
        scene.router = router(vec![canary], UnmappedPolicy::Leave, nothing());
        scene.server.push(&[job(1)]).await;
        let job = scene.server.reserve().await.remove(0);
        let told = scene.told();
        let (shared, _ends) = scene.shared();
        let attempt = attempt_of(&shared, &job);
        for _ in 0..20 {
            attempt.count_for_canary(0, &outcome, &request);
        }
        let row = format!("{outcome:?} {request:?}");
        assert_eq!(shared.triage.stats.is_stopped(0), has_failed, "{row}");
        let stops = told.take();
        assert_eq!(stops.len(), usize::from(has_failed), "{row}: {stops:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_read_waits_before_it_is_tried_for_ever() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let handler = handler::function(move |_: String, _: JobContext| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async { Ok::<(), BoxError>(()) }
    });
    let mut scene = Scene::new(handler);
    scene.options.defaults.tries = 0;
    let fields: Value = json!({"maxTries": 0});
    let attempted = scene
        .attempt(&payload("A", 1, &fields), 3, Settled::Done)
        .await;
    let due = UnixSeconds(NOW.0 + 15);
    assert_eq!(*attempted.settlement(), Settlement::Release(due));
    assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 0);
}
