use serde_json::json;

use super::*;
use crate::process::pool::{Member, Pool};
use crate::queue::Sizes;
use crate::routing::UnmappedPolicy;
use crate::time::UnixSeconds;
use crate::worker::Report;
use crate::worker::attempt::decide::Decision;
use crate::worker::stop::{Control, StopReason};
use crate::worker::test_support::{
    Fault, NOW, S, Scene, Server, info, job, nothing, payload, payload_of, router,
};

/// What a member does with its job: it reports, waits for answers, and is killed.
struct Part {
    member: Member,
    server: Arc<Server>,
    control: Control,
}

impl Part {
    async fn says(&self, said: impl IntoIterator<Item = PoolMessage>) {
        for said in said {
            self.member.says(said).await;
        }
    }
}

/// Runs this job in a single process that a test plays.
async fn play<F: Future<Output = ()>>(
    payload: Vec<u8>,
    tries: i64,
    act: impl FnOnce(Part) -> F,
) -> (Report, Vec<String>, Arc<Server>) {
    let mut scene = Scene::new(nothing());
    scene.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
    scene.options.defaults.tries = tries;
    scene.server.push(&[payload]).await;
    let pool = Pool::played(1);
    scene.pool = Some(pool.clone());
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    let first = pool.offer();
    let playing = async {
        let part = Part {
            member: first.job().await,
            server: Arc::clone(&server),
            control,
        };
        act(part).await;
        // The process is ready for another job.
        let waiting = pool.offer();
        std::future::pending::<()>().await;
        drop(waiting);
    };
    let (report, events) = tokio::select! {
        ran = scene.run() => ran,
        () = playing => unreachable!("it waits forever"),
    };
    (report, events, server)
}

fn exception() -> PoolMessage {
    PoolMessage::Exception {
        class: "RuntimeException".to_owned(),
        message: "disk full".to_owned(),
    }
}

fn failed(class: &str, logged: bool) -> PoolMessage {
    PoolMessage::Failed {
        class: class.to_owned(),
        message: "disk full".to_owned(),
        exception: format!("{class}: disk full in A.php:1"),
        logged,
    }
}

fn nothing_left() -> Sizes {
    Sizes::default()
}

const BEGUN: &str = "JobProcessing uuid-1 1";

#[tokio::test(start_paused = true)]
async fn a_job_that_laravel_is_done_with_is_deleted() {
    for waits in [false, true] {
        let (report, told, server) = play(job(1), 1, |mut part| async move {
            part.says([PoolMessage::Deleted { last: !waits }]).await;
            if waits {
                // The job deleted itself and works on: only now it cannot run twice.
                assert_eq!(part.member.answer().await, Some(true));
                assert_eq!(part.server.sizes().await, nothing_left());
            }
            part.says([PoolMessage::Done]).await;
        })
        .await;
        assert_eq!(told, [BEGUN, "JobProcessed uuid-1", "WorkerStopping empty"]);
        assert_eq!(server.sizes().await, nothing_left());
        assert_eq!((report.jobs_processed, report.unsettled), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_told_as_what_led_to_it() {
    let released = |delay| PoolMessage::Released { delay };
    #[rustfmt::skip]
    let rows = [
        // reports => events, seconds until the job is due
        (vec![released(7)],              vec!["JobProcessed uuid-1", "JobReleased uuid-1"], 7),
        (vec![exception(), released(7)], vec!["JobExceptionOccurred disk full", "JobReleasedAfterException uuid-1"], 7),
        (vec![released(-3)],             vec!["JobProcessed uuid-1", "JobReleased uuid-1"], 0),
        // The last report counts: a release brings a deleted job back.
        (vec![released(7), released(9)], vec!["JobProcessed uuid-1", "JobReleased uuid-1"], 9),
    ];
    for (reports, expected, seconds) in rows {
        let (_, told, server) = play(job(1), 3, |part| async move {
            part.says(reports).await;
            // No further pop, so that the job stays where it went.
            part.control.quit();
            part.says([PoolMessage::Done]).await;
        })
        .await;
        assert_eq!(told[1..=expected.len()], expected);
        let due = server.jobs.all()[0].1;
        assert_eq!(due, Some(UnixSeconds(NOW.0 + seconds)), "{expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_written_down_before_php_goes_on() {
    for logged in [false, true] {
        let (_, told, server) = play(job(1), 1, |mut part| async move {
            part.says([failed("RuntimeException", logged)]).await;
            assert_eq!(part.member.answer().await, Some(true));
            assert_eq!(part.server.sizes().await, nothing_left());
            assert_eq!(part.server.failed().len(), usize::from(!logged));
            part.says([exception(), PoolMessage::Deleted { last: false }])
                .await;
            assert_eq!(part.member.answer().await, Some(true));
            part.says([PoolMessage::Done]).await;
        })
        .await;
        let expected = [
            BEGUN,
            "JobFailed uuid-1",
            "JobExceptionOccurred disk full",
            "WorkerStopping empty",
        ];
        assert_eq!(told, expected);
        for record in server.failed() {
            assert_eq!(record.exception, "RuntimeException: disk full in A.php:1");
            assert_eq!(record.payload.as_bytes(), job(1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn php_is_told_that_a_failed_job_belongs_to_another_worker_by_now() {
    let (_, told, server) = play(job(1), 1, |mut part| async move {
        part.server.jobs.lose_reservations(&"default".into());
        part.says([failed("RuntimeException", false)]).await;
        // It must not count the batch, nor call `failed()`.
        assert_eq!(part.member.answer().await, Some(false));
        part.says([exception(), PoolMessage::Done]).await;
    })
    .await;
    assert!(
        told.contains(&"JobFailed uuid-1 gone".to_owned()),
        "{told:?}"
    );
    assert!(server.failed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn php_waits_while_the_server_cannot_take_the_end_of_a_job() {
    let (_, _, server) = play(job(1), 1, |mut part| async move {
        part.server.next("settle", [Some(Fault::Refused); 4]);
        part.says([PoolMessage::Deleted { last: false }]).await;
        assert_eq!(part.member.answer().await, Some(true));
        assert_eq!(part.server.sizes().await, nothing_left());
        part.says([PoolMessage::Done]).await;
    })
    .await;
    assert_eq!(server.calls("settle").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn every_answer_reaches_the_process_that_waits_for_it() {
    let pool = Pool::played(1);
    let waiting = pool.offer();
    let run = pool
        .take()
        .unwrap()
        .run(info(&job(1)), b"{}", None)
        .unwrap();
    let mut member = waiting.job().await;
    run.answer(true);
    run.answer(false);
    assert_eq!(member.answer().await, Some(true));
    assert_eq!(member.answer().await, Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_leaves_its_job_reserved() {
    let ended = || PoolMessage::Ended("killed by signal 9".to_owned());
    #[rustfmt::skip]
    let rows = [
        (vec![ended()],                "JobLost uuid-1"),
        (vec![exception(), ended()],   "JobLost uuid-1"),
        (vec![PoolMessage::Timeout, ended()], "JobTimedOut uuid-1"),
    ];
    for (reports, expected) in rows {
        let (report, told, server) = play(job(1), 3, |part| async move {
            part.says(reports).await;
        })
        .await;
        assert_eq!(told[..2], [BEGUN, expected]);
        let left = Sizes {
            reserved: 1,
            ..Sizes::default()
        };
        assert_eq!((server.sizes().await, report.released), (left, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_laravel_does_not_say_that_its_job_timed_out() {
    let payload = payload("A", 1, &json!({"timeout": 5}));
    let (_, told, _) = play(payload, 3, |part| async move {
        tokio::time::sleep(S(5)).await;
        part.says([PoolMessage::Ended("killed by signal 9".to_owned())])
            .await;
    })
    .await;
    assert_eq!(told[1], "JobTimedOut uuid-1");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_end_itself_after_the_timeout_is_killed() {
    let payload = payload("A", 1, &json!({"timeout": 5}));
    let began = Instant::now();
    let (_, told, server) = play(payload, 3, |part| async move {
        part.member.killed().await;
        assert_eq!(began.elapsed(), S(15));
        part.says([PoolMessage::Ended("killed by signal 9".to_owned())])
            .await;
    })
    .await;
    assert_eq!(told[1], "JobTimedOut uuid-1");
    assert_eq!(server.sizes().await.reserved, 1);
}

/// It hangs in the system, and nothing cuts jobs short.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_process_that_does_not_die_of_its_timeout() {
    let payload = payload("A", 1, &json!({"timeout": 5}));
    let began = Instant::now();
    let (report, told, server) = play(payload, 3, |part| async move {
        part.member.killed().await;
        tokio::time::sleep(S(60)).await;
        assert!(part.server.calls("settle").is_empty());
        part.control.quit();
        std::future::pending::<()>().await;
    })
    .await;
    assert!(began.elapsed() < S(15 + 60 + 10), "{:?}", began.elapsed());
    assert_eq!(
        (report.reason, report.released),
        (StopReason::Interrupted, 0)
    );
    assert_eq!(told[1], "JobTimedOut uuid-1");
    assert_eq!(server.sizes().await.reserved, 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_itself_during_an_outage_has_its_time_after_that() {
    let deleted = PoolMessage::Deleted { last: false };
    for report in [deleted, failed("RuntimeException", false)] {
        let payload = payload("A", 1, &json!({"timeout": 5}));
        let (_, told, _) = play(payload, 1, |mut part| async move {
            part.server.next("settle", [Some(Fault::Slow(S(60)))]);
            part.says([report]).await;
            assert_eq!(part.member.answer().await, Some(true));
            let killed = tokio::time::timeout(S(14), part.member.killed()).await;
            assert!(killed.is_err(), "what it works on would be lost");
            part.says([PoolMessage::Done]).await;
        })
        .await;
        assert_eq!(told[0], BEGUN);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_kills_a_job_that_runs_and_gives_it_back() {
    for dies in [true, false] {
        let began = Instant::now();
        let (report, told, server) = play(job(1), 3, |part| async move {
            part.control.hurry();
            part.member.killed().await;
            if dies {
                part.says([PoolMessage::Ended("killed by signal 9".to_owned())])
                    .await;
            } else {
                // It hangs in the system.
                std::future::pending::<()>().await;
            }
        })
        .await;
        assert_eq!(report.reason, StopReason::Interrupted);
        assert_eq!((report.released, report.unsettled), (1, 0));
        assert_eq!(told[1], "JobReleasedAfterException uuid-1");
        assert_eq!(server.sizes().await.delayed, 1);
        assert!(began.elapsed() <= S(if dies { 1 } else { 6 }), "{dies}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_php_do_what_follows_a_job_that_has_ended() {
    let (report, told, server) = play(job(1), 1, |mut part| async move {
        part.says([failed("RuntimeException", false)]).await;
        assert_eq!(part.member.answer().await, Some(true));
        part.control.hurry();
        let early = tokio::time::timeout(S(9), part.member.killed()).await;
        assert!(early.is_err(), "the batch would never be counted");
        part.says([exception(), PoolMessage::Done]).await;
    })
    .await;
    assert_eq!((report.released, report.unsettled), (0, 0));
    assert_eq!(
        told[1..3],
        ["JobFailed uuid-1", "JobExceptionOccurred disk full"]
    );
    assert_eq!(server.failed().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_php_does_not_begin_costs_no_attempt() {
    let told = declined(Duration::ZERO).await;
    // A job that is declined at once is not announced.
    #[rustfmt::skip]
    assert_eq!(told, ["JobGivenBack", BEGUN, "JobProcessed uuid-1", "WorkerStopping empty"]);
    // What was announced is over before it is announced again.
    let told = declined(S(3)).await;
    #[rustfmt::skip]
    assert_eq!(told, [BEGUN, "JobReleased uuid-1", BEGUN, "JobProcessed uuid-1", "WorkerStopping empty"]);
}

/// Put back, the job would have spent its only attempt.
#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_put_back_as_it_was_goes_to_the_next_process() {
    for after in [Duration::ZERO, S(3)] {
        let mut scene = Scene::new(nothing());
        scene.server = Server::that_counts_reservations();
        let server = Arc::clone(&scene.server);
        let told = declined_by(scene, after).await;
        // Its beginning is told once.
        let rest = ["JobProcessed uuid-1", "WorkerStopping empty"];
        assert_eq!(told, [&[BEGUN][..], &rest].concat(), "{after:?}");
        assert_eq!(server.sizes_of("settle"), [1]);
        assert!(!server.calls("renew").is_empty());
    }
}

/// No process can boot any more, and nothing cuts jobs short.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_process_that_never_comes() {
    let mut scene = Scene::new(nothing()).endless();
    scene.server = Server::that_counts_reservations();
    scene.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
    scene.server.push(&[job(1)]).await;
    let pool = Pool::played(1);
    scene.pool = Some(pool.clone());
    let (server, control) = (Arc::clone(&scene.server), scene.control.clone());
    let stopping = async {
        pool.offer().decline(Duration::ZERO).await;
        tokio::time::sleep(S(600)).await;
        assert!(server.calls("settle").is_empty());
        control.quit();
        Instant::now()
    };
    let ((report, _), told) = tokio::join!(scene.run(), stopping);
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::Interrupted, 0)
    );
    assert!(told.elapsed() >= LAST_BOOT && told.elapsed() < LAST_BOOT + S(5));
    assert_eq!(server.sizes().await.pending, 1);
}

/// What is told of a job that a process declines after this time, and another one runs.
async fn declined(after: Duration) -> Vec<String> {
    declined_by(Scene::new(nothing()), after).await
}

async fn declined_by(mut scene: Scene, after: Duration) -> Vec<String> {
    scene.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
    scene.server.push(&[job(1)]).await;
    let pool = Pool::played(1);
    scene.pool = Some(pool.clone());
    let server = Arc::clone(&scene.server);
    let playing = async {
        pool.offer().decline(after).await;
        let member = pool.offer().job().await;
        assert_eq!(member.info().attempts, 1);
        member.says(PoolMessage::Deleted { last: true }).await;
        member.says(PoolMessage::Done).await;
        let _waiting = pool.offer();
        std::future::pending::<()>().await;
    };
    let (report, told) = tokio::select! {
        ran = scene.run() => ran,
        () = playing => unreachable!("it waits forever"),
    };
    assert_eq!(report.jobs_processed, 1);
    assert_eq!(server.sizes().await, nothing_left());
    told
}

#[tokio::test(start_paused = true)]
async fn a_job_that_php_cannot_read_and_may_try_for_ever_waits() {
    let broken = payload_of("App\\Jobs\\A", "O:10:\"App", 1, &json!({"maxTries": 0}));
    let readable = payload("A", 1, &json!({"maxTries": 0}));
    for (payload, seconds) in [(broken, 1), (readable, 0)] {
        let (_, _, server) = play(payload, 0, |part| async move {
            part.says([exception()]).await;
            part.control.quit();
            part.says([PoolMessage::Released { delay: 0 }, PoolMessage::Done])
                .await;
        })
        .await;
        let due = server.jobs.all()[0].1;
        assert_eq!(due, Some(UnixSeconds(NOW.0 + seconds)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_an_attempt_left_has_the_last_error_as_its_cause() {
    let class = "Illuminate\\Queue\\MaxAttemptsExceededException";
    let (_, _, server) = play(job(1), 1, |mut part| async move {
        let ledger: &dyn crate::queue::Ledger = &*part.server.jobs;
        ledger
            .keep_error("uuid-1", "E: out of memory", S(60))
            .await
            .unwrap();
        part.says([failed(class, false)]).await;
        assert_eq!(part.member.answer().await, Some(true));
        part.says([exception(), PoolMessage::Done]).await;
    })
    .await;
    let expected = format!("E: out of memory\n\nNext {class}: disk full in A.php:1");
    assert_eq!(server.failed()[0].exception, expected);
}

#[test]
fn a_delivery_is_named_by_its_job_its_attempt_and_its_receipt() {
    let delivery = |receipt: Option<&str>| Delivery {
        id: "7".to_owned(),
        pushed: None,
        receipt: receipt.map(str::to_owned),
    };
    assert_eq!(&*named(&delivery(None), 2), b"7:2");
    assert_eq!(&*named(&delivery(Some("r")), 2), b"7:2:r");
}

#[test]
fn what_laravel_has_not_settled_stays_reserved_or_goes_back_at_a_stop() {
    let lost = Outcome::Lost(crate::handler::FailureText::new("E", "m"));
    for outcome in [Outcome::Finished, Outcome::TimedOut, lost] {
        assert_eq!(Judged::left(outcome).decision, Decision::Leave);
    }
    let released = Decision::Release {
        delay: Duration::ZERO,
        after_exception: false,
    };
    assert_eq!(Judged::left(Outcome::Stopped).decision, released);
}
