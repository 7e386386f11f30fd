use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cache::{Maintenance, keys};
use crate::handler::{self, BoxError, JobContext};
use crate::php::Value;
use crate::queue::Sizes;
use crate::routing::{Mapping, UnmappedPolicy};
use crate::time::UnixSeconds;
use crate::worker::event::{Looping, Observer};
use crate::worker::test_support::{
    Fault, NOW, S, Scene, Server, Stuck, does, files, job, mapping, nothing, payload, router, slow,
};

fn jobs(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(job).collect()
}

fn slots(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

/// The sizes of a queue with this number of jobs, none of them reserved.
fn pending(count: u64) -> Sizes {
    Sizes {
        pending: count,
        ..Sizes::default()
    }
}

#[tokio::test(start_paused = true)]
async fn pops_that_fail_are_made_again_and_lose_no_job() {
    let mut scene = Scene::new(nothing()).endless();
    scene.options.stop.max_jobs = Some(2);
    let server = Arc::clone(&scene.server);
    server.push(&jobs(2)).await;
    server.next("pop", [Some(Fault::Refused), None, Some(Fault::Refused)]);
    let (report, told) = scene.run().await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::MaxJobs, 2)
    );
    assert_eq!(
        told.iter()
            .filter(|it| it.starts_with("JobProcessed"))
            .count(),
        2
    );
    assert_eq!(server.sizes().await, pending(0));
}

#[tokio::test(start_paused = true)]
async fn php_processes_that_have_nothing_to_do_cost_handlers_no_pops() {
    let mut counts = Vec::new();
    for policy in [UnmappedPolicy::Leave, UnmappedPolicy::Php] {
        let mut scene = Scene::new(nothing());
        scene.pool = (policy == UnmappedPolicy::Php).then(|| Pool::played(1));
        let _member = scene.pool.as_ref().map(Pool::offer);
        scene.router = router(vec![mapping("App\\Jobs\\*")], policy, nothing());
        scene.options.concurrency = slots(4);
        let server = Arc::clone(&scene.server);
        server.push(&jobs(200)).await;
        let (report, _) = scene.run().await;
        assert_eq!(report.jobs_processed, 200);
        counts.push(server.calls("pop").len());
    }
    // PHP looks now and then, and when handlers have done all.
    assert!(counts[1] < counts[0] + 10, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_until_the_queue_is_empty_does_not_take_a_lost_server_for_an_empty_queue() {
    for once in [false, true] {
        let mut scene = Scene::new(nothing());
        scene.options.stop.once = once;
        let server = Arc::clone(&scene.server);
        server.push(&jobs(1)).await;
        server.next("pop", [Some(Fault::Refused); 9]);
        let (report, _) = scene.run().await;
        assert_eq!(report.reason, StopReason::LostConnection);
        assert_eq!(server.sizes().await, pending(1));
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_pop_whose_reply_was_lost_stay_reserved_and_are_not_run() {
    let mut scene = Scene::new(does(|_| panic!("it runs"))).endless();
    scene.options.concurrency = slots(4);
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    server.push(&jobs(3)).await;
    server.next("pop", [Some(Fault::ReplyLost)]);
    let stopping = async {
        tokio::time::sleep(S(60)).await;
        control.quit();
    };
    let ((report, _), ()) = tokio::join!(scene.run(), stopping);
    assert_eq!((report.jobs_processed, report.released), (0, 0));
    let left = Sizes {
        reserved: 3,
        ..Sizes::default()
    };
    assert_eq!(server.sizes().await, left);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_a_pop_holds_up_a_stop_for_five_seconds_at_most() {
    #[rustfmt::skip]
    let rows = [
        // grace, hurries after => the stop takes
        (None,       None,       5),
        (Some(S(9)), None,       5),
        (Some(S(3)), None,       3),
        (Some(S(0)), None,       1),
        (None,       Some(S(2)), 2),
        (None,       Some(S(0)), 1),
    ];
    for (grace, hurries_after, expected) in rows {
        let mut scene = Scene::new(nothing()).endless();
        scene.options.grace = grace;
        let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
        server.next("pop", [Some(Fault::Hangs)]);
        let stopping = async {
            tokio::time::sleep(S(60)).await;
            control.quit();
            let told = Instant::now();
            if let Some(after) = hurries_after {
                tokio::time::sleep(after).await;
                control.hurry();
            }
            told
        };
        let ((report, _), told) = tokio::join!(scene.run(), stopping);
        let row = format!("{grace:?} {hurries_after:?}");
        assert_eq!(report.reason, StopReason::Interrupted, "{row}");
        assert_eq!(told.elapsed().as_secs(), expected, "{row}");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_pop_that_was_under_way_at_the_stop_are_run() {
    for (grace, takes) in [(None, S(4)), (Some(S(3)), S(2)), (Some(S(0)), S(1) / 2)] {
        let mut scene = Scene::new(nothing()).endless();
        scene.options.grace = grace;
        let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
        server.push(&jobs(1)).await;
        server.next("pop", [Some(Fault::Slow(takes))]);
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            control.quit();
        };
        let ((report, told), ()) = tokio::join!(scene.run(), stopping);
        assert_eq!(report.jobs_processed, 1, "{takes:?}");
        assert_eq!(told[1], "JobProcessed uuid-0", "{takes:?}");
        assert_eq!(server.sizes().await, pending(0), "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_ends_of_jobs_are_refused_takes_no_more_until_they_are_not() {
    let mut scene = Scene::new(nothing());
    scene.options.concurrency = slots(2);
    let server = Arc::clone(&scene.server);
    server.push(&jobs(1000)).await;
    server.refuses(|_| Some(Fault::Refused));
    let mending = async {
        tokio::time::sleep(S(60)).await;
        let left = server.sizes().await.pending;
        server.refuses(|_| None);
        left
    };
    let ((report, _), left) = tokio::join!(scene.run(), mending);
    assert!(left > 0);
    assert_eq!((report.jobs_processed, report.unsettled), (1000, 0));
    assert_eq!(server.sizes().await, pending(0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_settling_panics_stops_with_an_error() {
    let scene = Scene::new(nothing()).endless();
    let server = Arc::clone(&scene.server);
    server.push(&jobs(1)).await;
    server.refuses(|_| panic!("a bug"));
    let (report, _) = scene.run().await;
    assert_eq!(report.reason, StopReason::SettlingFailed);
    assert_eq!((report.reason.exit_code(), report.unsettled), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_handler_is_stuck_stays_reserved_while_other_jobs_end() {
    let mut scene = Scene::new(Stuck).endless();
    scene.options.concurrency = slots(2);
    scene.options.defaults.tries = 3;
    let server = Arc::clone(&scene.server);
    let (stuck, other) = (json!({"timeout": 5}), json!({"timeout": 900}));
    server
        .push(&[payload("A", 1, &stuck), payload("A", 2, &other)])
        .await;
    let (report, told) = scene.run().await;
    assert_eq!(report.reason, StopReason::TimedOut);
    let expected = [
        "JobProcessing uuid-1 1",
        "JobProcessing uuid-2 1",
        "JobProcessed uuid-2",
        "JobTimedOut uuid-1",
        "WorkerStopping timed_out",
    ];
    assert_eq!(told, expected);
    // Both were renewed to the end.
    assert_eq!(server.sizes_of("renew").last(), Some(&2));
    assert_eq!(server.sizes().await.reserved, 1);
}

#[tokio::test(start_paused = true)]
async fn no_job_is_reserved_that_the_worker_may_not_begin() {
    let mut scene = Scene::new(slow(S(1))).endless();
    scene.options.concurrency = slots(8);
    scene.options.stop.max_jobs = Some(3);
    let server = Arc::clone(&scene.server);
    server.push(&jobs(10)).await;
    let (report, _) = scene.run().await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::MaxJobs, 3)
    );
    assert_eq!(server.sizes_of("pop"), [3]);
    assert_eq!(server.sizes().await, pending(7));
}

#[tokio::test(start_paused = true)]
async fn one_job_is_run_once_even_with_many_slots() {
    let mut scene = Scene::new(nothing());
    scene.options.concurrency = slots(8);
    scene.options.stop.once = true;
    let server = Arc::clone(&scene.server);
    server.push(&jobs(2)).await;
    let (report, told) = scene.run().await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::QueueEmpty, 1)
    );
    // Laravel says nothing of its end.
    assert_eq!(told, ["JobProcessing uuid-0 1", "JobProcessed uuid-0"]);
    assert_eq!(server.sizes().await, pending(1));
}

#[tokio::test(start_paused = true)]
async fn a_loop_around_once_does_not_spin_on_an_empty_queue_and_ends_when_it_is_told_to() {
    for quits_after in [60, 1] {
        let mut scene = Scene::new(nothing());
        scene.options.stop.once = true;
        scene.options.sleep = S(5);
        let control = scene.control.clone();
        let began = Instant::now();
        let running = async {
            scene.run().await;
            began.elapsed()
        };
        let stopping = async {
            tokio::time::sleep(S(quits_after)).await;
            control.quit();
        };
        let (took, ()) = tokio::join!(running, stopping);
        assert_eq!(took.as_secs(), quits_after.min(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_at_the_end_of_the_workers_time_is_finished() {
    let mut scene = Scene::new(slow(S(10))).endless();
    scene.options.stop.max_time = Some(S(5));
    let server = Arc::clone(&scene.server);
    server.push(&jobs(2)).await;
    let began = Instant::now();
    let (report, told) = scene.run().await;
    assert_eq!((report.reason, report.released), (StopReason::MaxTime, 0));
    assert_eq!(began.elapsed(), S(10));
    assert_eq!(told.last().unwrap(), "WorkerStopping max_time");
    assert_eq!(server.sizes().await, pending(1));
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_stops_on_time() {
    #[rustfmt::skip]
    let rows = [
        // max_time, empty_for => after, reason
        (Some(S(7)), None,       S(7), StopReason::MaxTime),
        (None,       Some(S(7)), S(7), StopReason::QueueEmptyFor),
        (Some(S(7)), Some(S(5)), S(5), StopReason::QueueEmptyFor),
    ];
    for (max_time, empty_for, after, reason) in rows {
        let mut scene = Scene::new(nothing()).endless();
        scene.options.sleep = S(3600);
        scene.options.stop.max_time = max_time;
        scene.options.stop.when_empty_for = empty_for;
        let began = Instant::now();
        let (report, _) = scene.run().await;
        assert_eq!(report.reason, reason);
        let took = began.elapsed();
        assert!(took >= after && took < after + S(1), "{reason}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_keeps_a_worker_that_waits_for_an_empty_queue_alive() {
    let mut scene = Scene::new(slow(S(30))).endless();
    scene.options.stop.when_empty_for = Some(S(10));
    scene.server.push(&jobs(1)).await;
    let began = Instant::now();
    let (report, _) = scene.run().await;
    assert_eq!(report.reason, StopReason::QueueEmptyFor);
    assert!(began.elapsed() >= S(30));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_the_app_has_paused_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let cache = files(directory.path());
    let key = keys::paused("redis", "high");
    cache.forever(&key, &Value::Bool(true)).await.unwrap();
    let mut scene = Scene::new(nothing());
    scene.control_plane.cache = Some(cache);
    scene.options.queues = vec!["high".into(), "default".into()];
    let server = Arc::clone(&scene.server);
    server.jobs.push(&"high".into(), &[job(1)]).await.unwrap();
    server.push(&[job(2)]).await;
    let (report, told) = scene.run().await;
    // A paused queue counts as empty, as in Laravel.
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::QueueEmpty, 1)
    );
    assert_eq!(
        told[..2],
        ["WorkerQueuePaused high", "JobProcessing uuid-2 1"]
    );
    let high = server.jobs.sizes(&"high".into()).await.unwrap();
    assert_eq!(high, pending(1));
}

/// Given back, they would have spent an attempt: their only one.
#[tokio::test(start_paused = true)]
async fn jobs_that_waits_have_taken_run_before_a_stop_also_those_of_a_paused_queue() {
    let directory = tempfile::tempdir().unwrap();
    let cache = files(directory.path());
    let paused = keys::paused("redis", "high");
    cache.forever(&paused, &Value::Bool(true)).await.unwrap();
    let mut scene = Scene::new(slow(S(5))).endless();
    scene.server = Server::that_counts_reservations();
    scene.control_plane.cache = Some(cache);
    scene.options.queues = vec!["high".into(), "default".into()];
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    let high = jobs(2);
    server.jobs.push(&"high".into(), &high).await.unwrap();
    let stopping = async {
        tokio::time::sleep(S(10)).await;
        server.catch("high").await;
        server.catch("high").await;
        tokio::time::sleep(S(10)).await;
        control.quit();
    };
    let ((report, told), ()) = tokio::join!(scene.run(), stopping);
    let begun = ["JobProcessing uuid-0 1", "JobProcessing uuid-1 1"];
    for event in ["WorkerQueuePaused high"].into_iter().chain(begun) {
        assert!(told.iter().any(|told| told == event), "{event}: {told:?}");
    }
    assert_eq!((report.jobs_processed, report.unsettled), (2, 0));
    assert_eq!(server.jobs.sizes(&"high".into()).await.unwrap(), pending(0));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_job_that_a_wait_has_taken_and_a_pop_does_not_get() {
    let mut scene = Scene::new(nothing()).endless();
    scene.server = Server::that_counts_reservations();
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    let elsewhere = "elsewhere".into();
    server.jobs.push(&elsewhere, &jobs(1)).await.unwrap();
    server.catch("elsewhere").await;
    let stopping = async {
        tokio::time::sleep(S(10)).await;
        control.quit();
        Instant::now()
    };
    let ((report, _), told) = tokio::join!(scene.run(), stopping);
    assert_eq!(report.reason, StopReason::Interrupted);
    assert!(told.elapsed() < S(1), "{:?}", told.elapsed());
}

#[tokio::test(start_paused = true)]
async fn while_all_queues_are_paused_the_server_is_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let cache = files(directory.path());
    cache
        .forever(keys::ALL_PAUSED, &Value::Int(1))
        .await
        .unwrap();
    let mut scene = Scene::new(nothing()).endless();
    scene.options.stop.max_jobs = Some(1);
    scene.control_plane.cache = Some(cache.clone());
    let server = Arc::clone(&scene.server);
    server.push(&jobs(1)).await;
    let resuming = async {
        tokio::time::sleep(S(60)).await;
        assert!(server.calls("pop").is_empty());
        cache.forget(keys::ALL_PAUSED).await.unwrap();
        Instant::now()
    };
    let ((report, told), resumed) = tokio::join!(scene.run(), resuming);
    assert_eq!(report.jobs_processed, 1);
    assert!(resumed.elapsed() <= S(2), "{:?}", resumed.elapsed());
    let expected = ["WorkerQueuePaused default", "WorkerQueueResumed default"];
    assert_eq!(told[..2], expected);
}

#[tokio::test(start_paused = true)]
async fn a_restart_lets_running_jobs_finish_and_begins_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let cache = files(directory.path());
    cache.forever(keys::RESTART, &Value::Int(1)).await.unwrap();
    let mut scene = Scene::new(slow(S(30))).endless();
    scene.control_plane.cache = Some(cache.clone());
    let server = Arc::clone(&scene.server);
    server.push(&jobs(2)).await;
    let began = Instant::now();
    let restarting = async {
        tokio::time::sleep(S(10)).await;
        cache.forever(keys::RESTART, &Value::Int(2)).await.unwrap();
    };
    let ((report, _), ()) = tokio::join!(scene.run(), restarting);
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::RestartSignal, 1)
    );
    assert_eq!((began.elapsed(), report.released), (S(30), 0));
    assert_eq!(server.sizes().await, pending(1));
}

#[tokio::test(start_paused = true)]
async fn no_job_begins_while_the_app_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let down = directory.path().join("down");
    std::fs::write(&down, "{}").unwrap();
    let mut scene = Scene::new(nothing()).endless();
    scene.options.stop.max_jobs = Some(1);
    scene.control_plane.maintenance = Some(Maintenance::File(down.clone()));
    let server = Arc::clone(&scene.server);
    server.push(&jobs(1)).await;
    let ups = async {
        tokio::time::sleep(S(60)).await;
        assert!(server.calls("pop").is_empty());
        std::fs::remove_file(&down).unwrap();
    };
    let ((report, told), ()) = tokio::join!(scene.run(), ups);
    assert_eq!(report.jobs_processed, 1);
    assert_eq!(told[..2], ["MaintenanceMode true", "MaintenanceMode false"]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_worker_finishes_its_job_and_takes_no_other() {
    let scene = Scene::new(slow(S(5))).endless();
    let (server, control, told) = (
        Arc::clone(&scene.server),
        scene.control.clone(),
        scene.told(),
    );
    server.push(&jobs(2)).await;
    let pausing = async {
        told.until("JobProcessing uuid-0 1").await;
        control.pause(true);
        tokio::time::sleep(S(60)).await;
        assert_eq!(server.sizes().await, pending(1));
        control.pause(false);
        told.until("JobProcessed uuid-1").await;
        control.quit();
    };
    let ((_, told), ()) = tokio::join!(scene.run(), pausing);
    let expected = [
        "JobProcessing uuid-0 1",
        "WorkerPausing",
        "JobProcessed uuid-0",
        "WorkerResuming",
        "JobProcessing uuid-1 1",
        "JobProcessed uuid-1",
        "WorkerStopping interrupted",
    ];
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn a_paused_worker_can_be_told_to_quit() {
    let scene = Scene::new(nothing()).endless();
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    server.push(&jobs(1)).await;
    control.pause(true);
    let stopping = async {
        tokio::time::sleep(S(60)).await;
        control.quit();
        Instant::now()
    };
    let ((report, _), quit) = tokio::join!(scene.run(), stopping);
    assert_eq!(report.reason, StopReason::Interrupted);
    assert_eq!(quit.elapsed(), Duration::ZERO);
    assert_eq!(server.sizes().await, pending(1));
}

/// Seconds after the start at which the worker looked at its queues.
async fn looks(scene: Scene, lives: u64) -> Vec<f64> {
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    let began = Instant::now();
    let stopping = async {
        tokio::time::sleep(S(lives)).await;
        control.quit();
    };
    tokio::join!(scene.run(), stopping);
    let calls = server.calls("pop");
    calls
        .iter()
        .map(|call| (call.at - began).as_secs_f64())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_looks_when_a_delayed_job_is_due_and_else_every_sleep() {
    let mut scene = Scene::new(nothing()).endless();
    scene.options.sleep = S(10);
    assert_eq!(looks(scene, 25).await, [0.0, 10.0, 20.0]);
    let mut scene = Scene::new(nothing()).endless();
    scene.options.sleep = S(10);
    let due = UnixSeconds(NOW.0 + 4);
    scene.server.jobs.put(&"default".into(), Some(due), job(1));
    // A moment past the second, so that the clock has surely reached it.
    assert_eq!(looks(scene, 5).await, [0.0, 4.001]);
    // One that is due beyond the next look does not delay that.
    let mut scene = Scene::new(nothing()).endless();
    scene.options.sleep = S(3);
    let due = UnixSeconds(NOW.0 + 4000);
    scene.server.jobs.put(&"default".into(), Some(due), job(1));
    assert_eq!(looks(scene, 5).await, [0.0, 3.0]);
}

#[tokio::test(start_paused = true)]
async fn a_released_job_is_looked_for_when_it_is_due() {
    let handler = does(|context| {
        context.release(S(4));
        Ok(())
    });
    let mut scene = Scene::new(handler).endless();
    scene.options.sleep = S(60);
    scene.options.defaults.tries = 9;
    scene.server.push(&jobs(1)).await;
    let looks = looks(scene, 6).await;
    assert!(looks.contains(&4.001), "{looks:?}");
    assert!(looks.len() <= 4, "{looks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_push_wakes_an_idle_worker() {
    let mut scene = Scene::new(nothing()).endless();
    scene.options.sleep = S(3600);
    scene.options.stop.max_jobs = Some(1);
    let server = Arc::clone(&scene.server);
    let pushing = async {
        tokio::time::sleep(S(100)).await;
        server.push(&jobs(1)).await;
        Instant::now()
    };
    let ((report, _), pushed) = tokio::join!(scene.run(), pushing);
    assert_eq!(report.jobs_processed, 1);
    assert!(pushed.elapsed() <= Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_with_the_queue_takes_no_announcement_of_others() {
    let scene = Scene::new(slow(S(60)));
    let server = Arc::clone(&scene.server);
    server.push(&jobs(1)).await;
    scene.run().await;
    assert!(server.calls("wait").is_empty());
}

#[tokio::test(start_paused = true)]
async fn jobs_that_a_job_pushes_are_run_before_the_queue_counts_as_empty() {
    let server = Arc::new(std::sync::OnceLock::<Arc<crate::queue::MemoryQueue>>::new());
    let queue = Arc::clone(&server);
    let handler = handler::function(move |_: serde::de::IgnoredAny, context: JobContext| {
        let queue = Arc::clone(queue.get().unwrap());
        async move {
            tokio::time::sleep(S(30)).await;
            if context.uuid().is_some_and(|uuid| uuid.as_str() == "uuid-0") {
                queue.push(&"default".into(), &[job(1)]).await?;
            }
            Ok::<(), BoxError>(())
        }
    });
    let mut scene = Scene::new(handler);
    scene.options.concurrency = slots(4);
    server.set(Arc::clone(&scene.server.jobs)).unwrap();
    scene.server.push(&jobs(1)).await;
    let (report, _) = scene.run().await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::QueueEmpty, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn overdue_reservations_are_renewed_before_a_pop_could_take_their_jobs_again() {
    for (renewal, expected) in [(None, "pop"), (Some(Fault::Refused), "renew")] {
        let mut scene = Scene::new(slow(S(150))).endless();
        scene.options.concurrency = slots(2);
        scene.options.sleep = S(80);
        scene.options.defaults.timeout = S(200);
        let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
        server.push(&jobs(1)).await;
        // The task that renews is refused every ten seconds from the twentieth on.
        server.next("renew", [Some(Fault::Refused); 6]);
        server.next("renew", [renewal; 50]);
        let stopping = async {
            tokio::time::sleep(S(81)).await;
            let order = server.order();
            control.hurry();
            order
        };
        let (_, order) = tokio::join!(scene.run(), stopping);
        let renewal = order.iter().rposition(|call| *call == "renew").unwrap();
        // With no renewal there is no pop.
        let after = order.get(renewal + 1).copied().unwrap_or("renew");
        assert_eq!(after, expected, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_one_slot_the_next_pop_is_sent_behind_the_end_of_the_last_job() {
    let scene = Scene::new(nothing());
    let server = Arc::clone(&scene.server);
    server.push(&jobs(3)).await;
    let (report, told) = scene.run().await;
    assert_eq!(report.jobs_processed, 3);
    let expected = ["pop", "settle", "pop", "settle", "pop", "settle", "pop"];
    assert_eq!(server.order()[..7], expected);
    let events: Vec<_> = told
        .iter()
        .map(|it| it.split(' ').next().unwrap())
        .collect();
    let one = ["JobProcessing", "JobProcessed"];
    assert_eq!(events[..6], [one, one, one].concat());
}

#[tokio::test(start_paused = true)]
async fn a_job_without_a_free_slot_of_its_mapping_stays_and_is_taken_when_one_is_free() {
    let mut scene = Scene::new(nothing());
    let limited = Mapping {
        concurrency: NonZeroUsize::new(1),
        ..mapping("App\\Jobs\\A")
    };
    let mappings = vec![limited, mapping("App\\Jobs\\B")];
    scene.router = router(mappings, UnmappedPolicy::Leave, slow(S(5)));
    scene.options.concurrency = slots(4);
    let of_b = payload("B", 7, &json!({}));
    scene.server.push(&[job(0), job(1), of_b]).await;
    let began = Instant::now();
    let (report, told) = scene.run().await;
    assert_eq!((report.jobs_processed, began.elapsed()), (3, S(10)));
    let starts: Vec<_> = told
        .iter()
        .filter(|it| it.starts_with("JobProcessing"))
        .collect();
    assert_eq!(
        starts[..2],
        ["JobProcessing uuid-0 1", "JobProcessing uuid-7 1"]
    );
    assert_eq!(*starts[2], "JobProcessing uuid-1 1");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_vetoes_makes_the_queue_count_as_empty() {
    struct Vetoes;
    impl Observer for Vetoes {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::Looping(looping) = event {
                looping.veto();
            }
        }
    }
    let options = WorkerOptions::default();
    let looping = Looping::new(&options);
    Vetoes.on_event(&Event::Looping(&looping));
    assert!(looping.is_vetoed());
    let scene = Scene::new(nothing());
    scene.server.push(&jobs(1)).await;
    let server = Arc::clone(&scene.server);
    let ledger = Arc::clone(&server.jobs) as _;
    let worker =
        crate::worker::Worker::with_ledger(scene.server, ledger, scene.router, scene.options);
    let report = worker.with_observer(Vetoes).run(&scene.control).await;
    assert_eq!(report.reason, StopReason::QueueEmpty);
    assert_eq!(server.sizes().await, pending(1));
    assert!(server.calls("pop").is_empty());
}
