use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::*;
use crate::handler::{self, BoxError};
use crate::queue::ReservedJob;
use crate::worker::attempt::tests::attempt_of;
use crate::worker::test_support::{
    Fault, NOW, RETRY_AFTER, S, Scene, does, info, job, nothing, payload,
};

/// A job whose reservation ends this number of seconds from now.
fn ending_in(job: &ReservedJob, seconds: i64) -> Arc<ReservedJob> {
    Arc::new(ReservedJob {
        lease: Some(UnixSeconds(NOW.0 + seconds)),
        ..job.clone()
    })
}

#[tokio::test(start_paused = true)]
async fn a_job_begins_only_if_no_other_worker_can_have_it() {
    let gone = || Fault::Refused;
    #[rustfmt::skip]
    let rows = [
        // seconds left, what happens to the question, whether the queue was cleared => begins, questions
        (60, None,                false, true,  0),
        // The first renewal of a job that has begun comes within half of its reservation.
        (46, None,                false, true,  0),
        (45, None,                false, true,  1),
        (45, None,                true,  false, 1),
        // It begins without an answer as long as it is certainly reserved.
        (45, Some(gone()),        false, true,  1),
        (1,  Some(gone()),        false, false, 1),
        (1,  None,                false, true,  1),
        (-5, None,                false, true,  1),
        (-5, None,                true,  false, 1),
        (-5, Some(gone()),        false, false, 1),
        (-5, Some(Fault::Hangs),  false, false, 1),
    ];
    for (left, fault, is_cleared, begins, questions) in rows {
        let scene = Scene::new(nothing());
        let server = Arc::clone(&scene.server);
        server.push(&[job(1)]).await;
        let job = ending_in(&server.reserve().await[0], left);
        if is_cleared {
            server.jobs.lose_reservations(&"default".into());
        }
        server.next("renew", [fault]);
        let (shared, _ends) = scene.shared();
        let attempt = attempt_of(&shared, &job);
        let row = format!("{left} {fault:?} {is_cleared}");
        assert_eq!(attempt.confirm_reservation().await, begins, "{row}");
        assert_eq!(server.calls("renew").len(), questions, "{row}");
        // A renewed reservation lasts as long as a new one.
        if begins && questions > 0 && fault.is_none() {
            assert_eq!(attempt.lease(), Some(NOW.plus(RETRY_AFTER)), "{row}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_question_whether_a_job_is_still_reserved() {
    let scene = Scene::new(nothing());
    let server = Arc::clone(&scene.server);
    server.push(&[job(1)]).await;
    let job = ending_in(&server.reserve().await[0], 0);
    server.next("renew", [Some(Fault::Hangs)]);
    let (shared, _ends) = scene.shared();
    shared.stops.cut.cancel();
    let attempt = attempt_of(&shared, &job);
    let asked = tokio::time::timeout(Duration::from_millis(1), attempt.confirm_reservation());
    assert_eq!(asked.await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_stays_reserved_is_not_renewed_any_more() {
    let scene = Scene::new(nothing());
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, mut ends) = scene.shared();
    for (settlement, is_renewed) in [
        (Settlement::LeaveUntil(NOW), false),
        (Settlement::Delete, true),
        (Settlement::Release(NOW), true),
    ] {
        let attempt = attempt_of(&shared, &job);
        let row = format!("{settlement:?}");
        let ending = Ending {
            settlement,
            ..Ending::put_back(None)
        };
        attempt.settle(ending).await;
        // A renewal under way would move its end once more.
        assert_eq!(shared.leases.running.has(1), is_renewed, "{row}");
        assert!(ends.recv().await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_end_is_handed_in_needs_no_thread_of_busy_handlers() {
    let scene = Scene::new(nothing());
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, _ends) = scene.shared();
    let attempt = attempt_of(&shared, &job);
    let running = &shared.leases.running;
    running.set_needs_thread(1, true);
    assert!(running.are_given_up(true) && !running.are_given_up(false));
    attempt.settle(Ending::put_back(None)).await;
    assert!(running.has(1) && !running.are_given_up(true));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_room_to_be_settled_waits_only_for_the_server() {
    let scene = Scene::new(nothing());
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, mut ends) = scene.shared();
    let attempt = attempt_of(&shared, &job);
    let waiting = &shared.settlements.waiting;
    for _ in 0..ends.max_capacity() {
        attempt.settle(Ending::put_back(None)).await;
    }
    assert_eq!(waiting.count(), 0);
    let mut settling = std::pin::pin!(attempt.settle(Ending::put_back(None)));
    assert!(futures_util::poll!(settling.as_mut()).is_pending());
    // A stop sees that, and gives the server up after a while.
    assert_eq!(waiting.count(), 1);
    assert!(ends.recv().await.is_some());
    settling.await;
    assert_eq!(waiting.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_a_stuck_handler_comes_back_after_the_process_has_ended() {
    let after = |seconds| UnixSeconds(NOW.0 + seconds);
    #[rustfmt::skip]
    let rows = [
        (Settlement::LeaveUntil(NOW),            Settlement::LeaveUntil(after(40))),
        (Settlement::LeaveUntil(after(50)),      Settlement::LeaveUntil(after(50))),
        (Settlement::Release(NOW),               Settlement::Release(after(40))),
        (Settlement::ReleaseUncounted(after(9)), Settlement::ReleaseUncounted(after(40))),
    ];
    for (settlement, expected) in rows {
        let scene = Scene::new(nothing());
        scene.server.push(&[job(1)]).await;
        let job = scene.server.reserve().await.remove(0);
        let (shared, mut ends) = scene.shared();
        let attempt = attempt_of(&shared, &job);
        let running = &shared.leases.running;
        attempt.settle_stuck(Ending {
            settlement,
            ..Ending::put_back(None)
        });
        drop(attempt);
        // Its reservation is renewed, and nothing else is waited for.
        assert!(running.has(1) && running.are_given_up(false));
        assert!(ends.try_recv().is_err());
        shared.settlements.settle_stuck(&shared.leases, NOW).await;
        assert!(!running.has(1));
        assert_eq!(ends.recv().await.unwrap().ending.settlement, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_ends_no_earlier_than_now() {
    let scene = Scene::new(nothing());
    scene.server.push(&[job(1)]).await;
    let job = scene.server.reserve().await.remove(0);
    let (shared, _ends) = scene.shared();
    let end = |job: &Arc<ReservedJob>| attempt_of(&shared, job).reservation_end(NOW);
    assert_eq!(end(&ending_in(&job, 30)), UnixSeconds(NOW.0 + 30));
    assert_eq!(end(&ending_in(&job, -30)), NOW);
    let endless = Arc::new(ReservedJob {
        lease: None,
        ..(*job).clone()
    });
    assert_eq!(end(&endless), NOW);
}

#[tokio::test(start_paused = true)]
async fn the_failed_hook_runs_only_for_a_failure_that_this_worker_wrote_down() {
    for (settled, calls) in [(Settled::Done, 1), (Settled::Gone, 0)] {
        let hooks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&hooks);
        let handler =
            handler::function(|_: serde::de::IgnoredAny, context: JobContext| async move {
                context.fail("no longer wanted");
                Ok::<(), BoxError>(())
            });
        let handler = handler.on_failed(move |_, failure| {
            assert_eq!(failure.message, "no longer wanted");
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        });
        let attempted = Scene::new(handler).attempt(&job(1), 1, settled).await;
        assert!(attempted.failed().exception.contains("no longer wanted"));
        assert_eq!(hooks.load(Ordering::Relaxed), calls, "{settled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_job_is_recorded_as_it_was_popped() {
    let handler = does(|_| Err("disk full".into()));
    let bytes = payload("A", 1, &json!({"unknown": {"b": 1, "a": [2]}}));
    let attempted = Scene::new(handler).attempt(&bytes, 1, Settled::Done).await;
    let failed = attempted.failed();
    assert_eq!(failed.payload.as_bytes(), bytes);
    assert_eq!(failed.uuid.as_deref(), Some("uuid-1"));
    assert_eq!((&*failed.connection, &*failed.queue), ("redis", "default"));
    assert_eq!(failed.failed_at, NOW.0);
    assert!(
        failed
            .exception
            .starts_with("Artisand\\HandlerError: disk full in ")
    );
    assert_eq!(failed.token, None);
}

#[tokio::test(start_paused = true)]
async fn failures_of_equal_jobs_without_a_uuid_have_records_of_their_own() {
    let bytes = payload("A", 1, &json!({"uuid": null}));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let scene = Scene::new(does(|_| Err("disk full".into())));
        let attempted = scene.attempt(&bytes, 1, Settled::Done).await;
        ids.push(attempted.failed().id());
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test(start_paused = true)]
async fn a_job_without_an_attempt_left_fails_with_the_error_of_its_last_one() {
    let mut scene = Scene::new(does(|_| panic!("it runs once more")));
    scene.options.defaults.tries = 3;
    let server = Arc::clone(&scene.server);
    server.push(&[job(1)]).await;
    let reserved = server.reserve().await.remove(0);
    let told = scene.told();
    let (shared, ends) = scene.shared();
    let attempt = attempt_of(&shared, &reserved);
    let (info, failure) = (info(&job(1)), FailureText::new("E", "disk full"));
    let release = |after_exception| Decision::Release {
        delay: S(0),
        after_exception,
    };
    let threw = Outcome::threw(failure);
    #[rustfmt::skip]
    let rows = [
        // What is not tried again needs no error, and what the handler asked for is none.
        (Outcome::threw(FailureText::new("E", "first")), release(false)),
        (Outcome::Finished, release(true)),
        (Outcome::Stopped, release(true)),
        (Outcome::TimedOut, Decision::Delete),
    ];
    for (outcome, decision) in rows {
        attempt.keep_error(&info, &outcome, &decision).await;
        let errors = &shared.triage.app.last_errors;
        let exhausted = FailureText::new("MaxAttemptsExceededException", "");
        let behind = errors.behind(&info, &exhausted).await;
        assert_eq!(behind, None, "{outcome:?} {decision:?}");
    }
    attempt.keep_error(&info, &threw, &release(true)).await;
    drop(attempt);
    let settling = crate::worker::test_support::settling(ends, Settled::Done);
    let job = Arc::new(ReservedJob {
        attempts: 4,
        ..(*reserved).clone()
    });
    let candidate = shared.triage.triage(&job.payload, &job.queue);
    let placement = crate::worker::attempt::Placement::Local;
    let run = crate::worker::attempt::run(Arc::clone(&shared), job, candidate, 1, placement);
    run.await;
    drop(shared);
    let settlements = settling.await.unwrap();
    let Settlement::Finish(effects) = &settlements[0] else {
        panic!("{settlements:?}");
    };
    let Effect::Record(record) = &effects[0] else {
        panic!("{effects:?}");
    };
    let exception = &record.exception;
    assert!(
        exception.starts_with("Artisand\\Cause: E: disk full in "),
        "{exception}"
    );
    let says = "has been attempted too many times.";
    assert!(exception.contains(says), "{exception}");
    assert_eq!(told.take(), ["JobProcessing uuid-1 4"]);
}
