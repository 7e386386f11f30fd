use tokio::sync::mpsc;

use super::*;
use crate::process::pool::Pool;
use crate::queue::{Settled, Settlement};
use crate::routing::UnmappedPolicy;
use crate::worker::gauge::Gauge;
use crate::worker::settler::PendingSettlement;
use crate::worker::test_support::{NOW, S, Scene, does, job, nothing, router, slow};

/// An attempt of this job, number 1, whose reservation is renewed.
pub(super) fn attempt_of(shared: &Arc<Shared>, job: &Arc<ReservedJob>) -> Attempt {
    (shared.leases.running).insert(1, Arc::clone(job), Duration::ZERO);
    Attempt {
        shared: Arc::clone(shared),
        job: Arc::clone(job),
        number: 1,
        lease: OnceLock::new(),
        runner: OnceLock::new(),
        is_handed_in: AtomicBool::new(false),
    }
}

/// Runs a job in this process; returns how its task ended and how long that took.
async fn run_local(shared: &Arc<Shared>, job: Arc<ReservedJob>) -> (TaskEnd, Duration) {
    let began = Instant::now();
    let candidate = shared.triage.triage(&job.payload, &job.queue);
    let end = run(Arc::clone(shared), job, candidate, 1, Placement::Local).await;
    (end, began.elapsed())
}

type Ends = mpsc::Receiver<PendingSettlement>;

async fn scene(scene: Scene) -> (Arc<Shared>, Ends, Arc<ReservedJob>) {
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, ends) = scene.shared();
    (shared, ends, job)
}

#[tokio::test(start_paused = true)]
async fn a_reservation_is_renewed_until_its_job_is_settled() {
    let (shared, mut ends, job) = scene(Scene::new(nothing())).await;
    let attempt = attempt_of(&shared, &job);
    attempt.settle(Ending::put_back(None)).await;
    drop(attempt);
    assert!(shared.leases.running.has(1), "the settler removes it");
    assert!(ends.recv().await.is_some());
    // An attempt that is dropped halfway lets its reservation run out.
    drop(attempt_of(&shared, &job));
    assert!(!shared.leases.running.has(1));
    // So does one whose ending nothing takes any more.
    drop(ends);
    let attempt = attempt_of(&shared, &job);
    attempt.settle(Ending::put_back(None)).await;
    assert!(
        attempt
            .settle_and_wait(Ending::put_back(None))
            .await
            .is_none()
    );
    drop(attempt);
    assert!(!shared.leases.running.has(1));
}

#[tokio::test(start_paused = true)]
async fn a_slot_rests_after_its_job_until_the_worker_stops() {
    let resting = || {
        let mut scene = Scene::new(nothing());
        scene.options.rest = S(20);
        scene
    };
    let (shared, _ends, job) = scene(resting()).await;
    let (_, took) = run_local(&shared, job).await;
    assert_eq!(took, S(20));
    let (shared, _ends, job) = scene(resting()).await;
    let stops = shared.stops.begun.clone();
    tokio::spawn(async move {
        tokio::time::sleep(S(3)).await;
        stops.cancel();
    });
    let (_, took) = run_local(&shared, job).await;
    assert_eq!(took, S(3));
    // A job that was cut is followed by none.
    let mut cut = Scene::new(slow(S(60)));
    cut.options.rest = S(20);
    let (shared, _ends, job) = scene(cut).await;
    shared.stops.cut.cancel();
    let (end, took) = run_local(&shared, job).await;
    assert_eq!((end.was_cut, took), (true, S(0)));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_another_worker_may_have_is_neither_run_nor_settled() {
    let ran = does(|_| panic!("it runs here"));
    let (shared, mut ends, job) = scene(Scene::new(ran)).await;
    let late = Arc::new(ReservedJob {
        lease: Some(NOW),
        ticket: Arc::from(&b"the reservation of another worker"[..]),
        ..(*job).clone()
    });
    let (end, _) = run_local(&shared, late).await;
    assert!(end.was_declined);
    drop(shared);
    assert!(ends.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_php_did_not_begin_goes_back_and_is_not_counted() {
    let mut php = Scene::new(nothing());
    php.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
    php.pool = Some(Pool::played(2));
    let (told, unsettled) = (php.told(), Gauge::default());
    let (shared, mut ends, job) = scene(php).await;
    let candidate = shared.triage.triage(&job.payload, &job.queue);
    let placement = Placement::Php {
        idle: None,
        unsettled: unsettled.hold(),
    };
    let end = run(Arc::clone(&shared), job, candidate, 1, placement).await;
    assert!(end.was_declined && !end.was_cut);
    let pending = ends.recv().await.unwrap();
    assert_eq!(pending.ending.settlement, Settlement::PutBack);
    assert_eq!(unsettled.count(), 0);
    assert!(told.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_single_php_process_waits_for_the_end_of_its_last_job_and_not_for_that_of_the_worker() {
    struct Unhurried;
    impl crate::worker::Observer for Unhurried {
        fn on_event(&self, _: &Event<'_>) {}

        fn is_in_order(&self) -> bool {
            false
        }
    }
    let shared_of = || async {
        let mut php = Scene::new(nothing());
        php.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
        php.pool = Some(Pool::played(1));
        let (shared, _ends, job) = scene(php).await;
        let mut shared = Arc::into_inner(shared).unwrap();
        let unhurried: Arc<dyn crate::worker::Observer> = Arc::new(Unhurried);
        shared.observers = std::iter::once(unhurried).collect();
        (Arc::new(shared), job)
    };
    let (of_settled, job) = shared_of().await;
    let attempt = attempt_of(&of_settled, &job);
    assert!(attempt.last_is_settled().await);
    let (shared, job) = shared_of().await;
    shared.settlements.settle_counts.note_ended();
    let attempt = attempt_of(&shared, &job);
    let mut is_settled = std::pin::pin!(attempt.last_is_settled());
    assert!(futures_util::poll!(is_settled.as_mut()).is_pending());
    // A server that is away must not keep the worker from its stop.
    assert_eq!(shared.settlements.waiting.count(), 1);
    shared.stops.cut.cancel();
    assert!(!is_settled.await, "the job is given back");
    let (shared, job) = shared_of().await;
    shared.settlements.settle_counts.note_ended();
    shared.settlements.settle_counts.note_given_up(1);
    let attempt = attempt_of(&shared, &job);
    assert!(
        !attempt.last_is_settled().await,
        "the last job stays reserved"
    );
}

#[tokio::test(start_paused = true)]
async fn the_answer_about_a_settled_job_reaches_the_attempt_that_waits() {
    for settled in [Settled::Done, Settled::Gone] {
        let (shared, mut ends, job) = scene(Scene::new(nothing())).await;
        let attempt = attempt_of(&shared, &job);
        let mut waits = std::pin::pin!(attempt.settle_and_wait(Ending::put_back(None)));
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        // A worker that only waits for the server knows it by this.
        assert_eq!(shared.settlements.waiting.count(), 1);
        let pending = ends.recv().await.unwrap();
        pending.done.unwrap().send(settled).unwrap();
        assert_eq!(waits.await, Some(settled));
        assert_eq!(shared.settlements.waiting.count(), 0);
    }
}
