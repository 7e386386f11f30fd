use super::*;
use crate::queue::{Push, Sizes};
use crate::routing::Runner;
use crate::time::UnixSeconds;
use crate::worker::attempt::decide::Decision;
use crate::worker::attempt::ending::{Circumstances, RaisedByPhp};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::event::Observer;
use crate::worker::test_support::{Fault, NOW, S, Server, Told, info, job};

/// Reserved jobs, and the task that settles them.
struct Scene {
    server: Arc<Server>,
    jobs: Vec<Arc<ReservedJob>>,
    running: Arc<Running>,
    told: Told,
    settle_counts: Arc<SettleCounts>,
    returns: Arc<NextRelease>,
    spooled: Arc<Notify>,
    left: Arc<Left>,
    give_up: CancellationToken,
    sender: mpsc::Sender<PendingSettlement>,
    task: tokio::task::JoinHandle<usize>,
}

impl Scene {
    /// A scene with this many jobs, of the uuids `uuid-0`, `uuid-1` ..
    async fn of(jobs: u32) -> Self {
        Self::on(Server::new(), jobs).await
    }

    async fn on(server: Arc<Server>, jobs: u32) -> Self {
        let payloads: Vec<_> = (0..jobs).map(job).collect();
        server.push(&payloads).await;
        let (sender, received) = mpsc::channel(64);
        let told = Told::default();
        let observer: Arc<dyn Observer> = Arc::new(told.clone());
        let (running, settle_counts) = (Arc::<Running>::default(), Arc::<SettleCounts>::default());
        let (returns, left) = (Arc::<NextRelease>::default(), Arc::<Left>::default());
        let (spooled, give_up) = (Arc::new(Notify::new()), CancellationToken::new());
        let settler = Settler {
            queue: Arc::clone(&server) as _,
            running: Arc::clone(&running),
            observers: std::iter::once(observer).collect(),
            spooled: Arc::clone(&spooled),
            left: Arc::clone(&left),
            returns: Arc::clone(&returns),
            settle_counts: Arc::clone(&settle_counts),
            give_up: give_up.clone(),
            gave_up: OnceLock::new(),
        };
        let jobs = server.reserve().await;
        for (number, job) in (0..).zip(&jobs) {
            running.insert(number, Arc::clone(job), Duration::ZERO);
        }
        let task = tokio::spawn(keep_settling(settler, received));
        Self {
            server,
            jobs,
            running,
            told,
            settle_counts,
            returns,
            spooled,
            left,
            give_up,
            sender,
            task,
        }
    }

    /// Ends a job; the answer comes when it is settled.
    fn end(&self, number: usize, settlement: Settlement) -> oneshot::Receiver<Settled> {
        let circumstances = Circumstances {
            job: &info(&self.jobs[number].payload),
            elapsed: Duration::ZERO,
            ended: std::time::Instant::now(),
            now: NOW,
            reservation_end: NOW,
            raised_by_php: RaisedByPhp::default(),
            runner: Runner::Rust,
        };
        let ending = Ending::of(
            Outcome::Finished,
            Decision::Delete,
            Vec::new(),
            &circumstances,
        );
        let ending = Ending {
            settlement,
            ..ending
        };
        self.hand_in(number, ending)
    }

    fn hand_in(&self, number: usize, ending: Ending) -> oneshot::Receiver<Settled> {
        let (done, settled) = oneshot::channel();
        self.settle_counts.note_ended();
        let pending = PendingSettlement {
            job: Arc::clone(&self.jobs[number]),
            ending,
            number: number as u64,
            done: Some(done),
            may_be_done: false,
            handed_in: Instant::now(),
        };
        assert!(self.sender.try_send(pending).is_ok());
        settled
    }

    /// Waits for the end of the task; returns how many jobs are not settled.
    async fn finish(self) -> usize {
        drop(self.sender);
        self.task.await.unwrap()
    }
}

/// The end of a job that pushes another one.
fn pushing() -> Settlement {
    let push = Push {
        queue: "next".into(),
        payload: job(99),
        due: None,
        claim: None,
    };
    Settlement::Finish(vec![Effect::Push(push)])
}

/// The end of a job that leaves a record in this list.
fn recording(spool: Spool) -> Settlement {
    Settlement::Finish(vec![Effect::Append(spool, b"a record".to_vec())])
}

fn is_finish(settlement: &Settlement) -> bool {
    matches!(settlement, Settlement::Finish(_))
}

#[tokio::test(start_paused = true)]
async fn jobs_that_end_during_a_call_share_the_next_one() {
    let scene = Scene::of(4).await;
    let server = Arc::clone(&scene.server);
    server.next("settle", [Some(Fault::Slow(S(2)))]);
    let first = scene.end(0, Settlement::Delete);
    tokio::time::sleep(S(1)).await;
    for number in 1..4 {
        scene.end(number, Settlement::Delete);
    }
    assert_eq!(first.await, Ok(Settled::Done));
    assert_eq!(scene.finish().await, 0);
    assert_eq!(server.sizes_of("settle"), [1, 3]);
    assert_eq!(server.sizes().await, Sizes::default());
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_is_sent_again_after_a_lost_reply_counts_as_done() {
    let scene = Scene::of(1).await;
    let (server, told, settle_counts) = (
        Arc::clone(&scene.server),
        scene.told.clone(),
        Arc::clone(&scene.settle_counts),
    );
    server.next("settle", [Some(Fault::ReplyLost)]);
    let settled = scene.end(0, Settlement::Delete);
    assert_eq!(settled.await, Ok(Settled::Done));
    assert_eq!(scene.finish().await, 0);
    assert_eq!(told.take(), ["JobProcessed uuid-0"]);
    assert_eq!(server.sizes_of("settle"), [1, 1]);
    // Both calls are one job.
    assert!(settle_counts.are_settled());
    settle_counts.note_ended();
    assert!(!settle_counts.are_settled());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_another_worker_took_while_the_server_refused_its_end_is_gone() {
    let scene = Scene::of(1).await;
    let (server, told) = (Arc::clone(&scene.server), scene.told.clone());
    server.refuses(|_| Some(Fault::Refused));
    let settled = scene.end(0, recording(Spool::FollowUps));
    tokio::time::sleep(S(60)).await;
    scene.server.jobs.lose_reservations(&"default".into());
    server.refuses(|_| None);
    // What follows the end is done by the worker that has the job.
    assert_eq!(settled.await, Ok(Settled::Gone));
    assert_eq!(scene.finish().await, 0);
    assert_eq!(told.take(), ["JobProcessed uuid-0 gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_reservation_is_gone_is_said_to_be_gone() {
    let scene = Scene::of(1).await;
    let told = scene.told.clone();
    scene.server.jobs.lose_reservations(&"default".into());
    let settled = scene.end(0, Settlement::Delete);
    assert_eq!(settled.await, Ok(Settled::Gone));
    assert!(scene.running.is_empty());
    assert_eq!(scene.finish().await, 0);
    assert_eq!(told.take(), ["JobProcessed uuid-0 gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_said_to_be_moved_only_if_it_was_this_workers_to_move() {
    #[rustfmt::skip]
    let rows = [
        (Settled::Done, &["JobForwarded elsewhere", "JobGivenBack"][..]),
        (Settled::Gone, &[]),
    ];
    for (expected, events) in rows {
        let scene = Scene::of(2).await;
        let told = scene.told.clone();
        if expected == Settled::Gone {
            scene.server.jobs.lose_reservations(&"default".into());
        }
        let facts = |number: usize| info(&scene.jobs[number].payload);
        let forward = Ending::forward(facts(0), "elsewhere".into());
        let back = Ending::put_back(Some(facts(1)));
        let (forwarded, put_back) = (scene.hand_in(0, forward), scene.hand_in(1, back));
        assert_eq!(forwarded.await, Ok(expected));
        assert_eq!(put_back.await, Ok(expected));
        assert_eq!(scene.finish().await, 0);
        assert_eq!(told.take(), events, "{expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_looks_the_same_at_its_next_pop_is_not_settled_twice() {
    let later = UnixSeconds(NOW.0 + 5);
    #[rustfmt::skip]
    let rows = [
        // settlement, fault => calls, also to a server that may take an old reservation for the present one;
        // a second call could end the reservation of another worker
        (Settlement::PutBack,                 Fault::ReplyLost, 1, 1),
        (Settlement::ReleaseUncounted(later), Fault::ReplyLost, 1, 1),
        (Settlement::PutBack,                 Fault::Refused,   2, 2),
        (Settlement::ReleaseUncounted(later), Fault::Refused,   2, 2),
        (Settlement::Release(later),          Fault::ReplyLost, 2, 1),
        (Settlement::Release(later),          Fault::Refused,   2, 2),
        (Settlement::Delete,                  Fault::ReplyLost, 2, 2),
        (Settlement::LeaveUntil(later),       Fault::ReplyLost, 2, 1),
    ];
    for (settlement, fault, calls, calls_of_unsure) in rows {
        for (lacking, calls) in [(&[][..], calls), (&[Ability::TellsGone], calls_of_unsure)] {
            let scene = Scene::on(Server::without(lacking), 1).await;
            let server = Arc::clone(&scene.server);
            server.next("settle", [Some(fault)]);
            let row = format!("{settlement:?} {fault:?} {lacking:?}");
            let settled = scene.end(0, settlement.clone());
            assert_eq!(settled.await, Ok(Settled::Done), "{row}");
            assert_eq!(scene.finish().await, 0, "{row}");
            assert_eq!(server.calls("settle").len(), calls, "{row}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_jobs_that_are_not_settled_are_sent_again() {
    let scene = Scene::of(3).await;
    let (server, told) = (Arc::clone(&scene.server), scene.told.clone());
    server.next("settle", [Some(Fault::OnlyFirst)]);
    for number in 0..3 {
        scene.end(number, Settlement::Delete);
    }
    assert_eq!(scene.finish().await, 0);
    assert_eq!(server.sizes_of("settle"), [3, 2]);
    let expected = ["uuid-0", "uuid-1", "uuid-2"].map(|uuid| format!("JobProcessed {uuid}"));
    assert_eq!(told.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_effects_are_refused_keeps_no_other_from_its_end() {
    let scene = Scene::of(4).await;
    let server = Arc::clone(&scene.server);
    server.refuses(|settlement| is_finish(settlement).then_some(Fault::Refused));
    let deleted = scene.end(0, Settlement::Delete);
    let mut first = scene.end(1, pushing());
    scene.end(2, Settlement::Delete);
    let mut second = scene.end(3, pushing());
    assert_eq!(deleted.await, Ok(Settled::Done));
    assert_eq!(server.sizes().await.reserved, 2);
    // Together, then those without effects as one, and each of the others by itself.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(server.sizes_of("settle"), [4, 2, 1, 1]);
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    assert!(scene.running.has(1) && scene.running.has(3));
    server.refuses(|_| None);
    assert_eq!(scene.finish().await, 0);
    assert_eq!(server.sizes().await, Sizes::default());
    assert_eq!(server.jobs.sizes(&"next".into()).await.unwrap().pending, 2);
}

#[tokio::test(start_paused = true)]
async fn ends_that_are_refused_keep_no_other_from_its_own_however_many_they_are() {
    let scene = Scene::of(70).await;
    let server = Arc::clone(&scene.server);
    server.refuses(|settlement| is_finish(settlement).then_some(Fault::Refused));
    for number in 1..70 {
        scene.end(number, pushing());
        tokio::task::yield_now().await;
    }
    let deleted = tokio::time::timeout(S(60), scene.end(0, Settlement::Delete)).await;
    assert_eq!(deleted.unwrap(), Ok(Settled::Done));
    assert!(scene.settle_counts.are_too_many_parked());
    let settle_counts = Arc::clone(&scene.settle_counts);
    server.refuses(|_| None);
    assert_eq!(scene.finish().await, 0);
    assert!(!settle_counts.are_too_many_parked());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_told_to_those_who_wait_for_the_ends_of_jobs() {
    let scene = Scene::of(1).await;
    let settle_counts = Arc::clone(&scene.settle_counts);
    scene.server.refuses(|_| panic!("a bug"));
    assert!(scene.end(0, Settlement::Delete).await.is_err());
    assert!(!settle_counts.settled().await && settle_counts.are_given_up());
    assert_eq!(scene.finish().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_push_to_a_key_that_is_no_queue_is_given_up_and_its_job_runs_again() {
    let scene = Scene::of(1).await;
    let (server, running) = (Arc::clone(&scene.server), Arc::clone(&scene.running));
    let (told, settle_counts) = (scene.told.clone(), Arc::clone(&scene.settle_counts));
    server.refuses(|settlement| is_finish(settlement).then_some(Fault::Impossible));
    let settled = scene.end(0, pushing());
    assert!(settled.await.is_err(), "it is not settled");
    assert_eq!(scene.finish().await, 1);
    // The reservation is no longer renewed, so that it ends.
    assert!(running.is_empty() && settle_counts.are_settled());
    assert_eq!(server.sizes().await.reserved, 1);
    assert_eq!(told.take(), [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_never_given_up_while_the_worker_runs() {
    let scene = Scene::of(1).await;
    let server = Arc::clone(&scene.server);
    server.refuses(|settlement| is_finish(settlement).then_some(Fault::Impossible));
    scene.end(0, recording(Spool::FailedJobs));
    tokio::time::sleep(S(3600)).await;
    assert!(scene.running.has(0) && server.calls("settle").len() > 100);
    server.refuses(|_| None);
    assert_eq!(scene.finish().await, 0);
    assert_eq!(server.jobs.spool(Spool::FailedJobs).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_to_stop_gives_a_lost_server_three_seconds_more() {
    for fault in [Fault::Refused, Fault::Hangs] {
        let scene = Scene::of(2).await;
        let (server, told) = (Arc::clone(&scene.server), scene.told.clone());
        server.refuses(move |_| Some(fault));
        scene.end(0, Settlement::Delete);
        scene.end(1, pushing());
        tokio::time::sleep(S(60)).await;
        let stops = Instant::now();
        scene.give_up.cancel();
        assert_eq!(scene.finish().await, 2, "{fault:?}");
        let waited = stops.elapsed();
        assert!(
            waited >= LAST_CHANCE && waited < LAST_CHANCE + LAST_TRIES,
            "{fault:?}: {waited:?}"
        );
        assert_eq!(server.sizes().await.reserved, 2, "{fault:?}");
        assert_eq!(told.take(), [] as [String; 0], "{fault:?}");
        // Sent again, a settlement that the server still has could end the reservation of another worker.
        if fault == Fault::Hangs {
            assert_eq!(server.calls("settle").len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_long_after_the_stop_deadline_has_its_last_chance_then() {
    let scene = Scene::of(3).await;
    let server = Arc::clone(&scene.server);
    server.next("settle", [Some(Fault::Slow(S(1))); 2]);
    scene.give_up.cancel();
    assert_eq!(scene.end(0, Settlement::Delete).await, Ok(Settled::Done));
    tokio::time::sleep(S(10)).await;
    assert_eq!(scene.end(1, Settlement::Delete).await, Ok(Settled::Done));
    server.refuses(|_| Some(Fault::Hangs));
    scene.end(2, Settlement::Delete);
    let ended = Instant::now();
    assert_eq!(scene.finish().await, 1);
    let waited = ended.elapsed();
    assert!(
        waited >= LAST_CHANCE && waited < LAST_CHANCE + LAST_TRIES,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_in_time_gets_the_last_ends() {
    let scene = Scene::of(1).await;
    let server = Arc::clone(&scene.server);
    server.refuses(|_| Some(Fault::Refused));
    scene.end(0, Settlement::Delete);
    // By now the waits between two tries are seconds long.
    tokio::time::sleep(S(60)).await;
    scene.give_up.cancel();
    tokio::time::sleep(S(1)).await;
    server.refuses(|_| None);
    let back = Instant::now();
    assert_eq!(scene.finish().await, 0);
    assert!(back.elapsed() <= LAST_TRIES);
    assert_eq!(server.sizes().await, Sizes::default());
}

#[tokio::test(start_paused = true)]
async fn the_loop_hears_once_when_the_first_released_job_is_due() {
    let scene = Scene::of(4).await;
    let after = |seconds| UnixSeconds(NOW.0 + seconds);
    scene.end(0, Settlement::Release(after(9)));
    scene.end(1, Settlement::ReleaseUncounted(after(5)));
    scene.end(2, Settlement::Delete);
    assert_eq!(scene.returns.next().await, after(5));
    let again = tokio::time::timeout(S(1), scene.returns.next()).await;
    assert!(again.is_err());
    scene.end(3, Settlement::LeaveUntil(after(30)));
    assert_eq!(scene.returns.next().await, after(30));
}

#[tokio::test(start_paused = true)]
async fn records_wake_the_task_that_is_to_carry_them_out() {
    let record = Settlement::Finish(vec![Effect::Quarantine]);
    #[rustfmt::skip]
    let rows = [
        // settlement => wakes the recorder of failed jobs, leaves something to follow
        (Settlement::Delete,           false, false),
        (record,                       false, false),
        (pushing(),                    false, false),
        (recording(Spool::FailedJobs), true,  false),
        (recording(Spool::FollowUps),  false, true),
    ];
    for (settlement, records, follows) in rows {
        let scene = Scene::of(1).await;
        let row = format!("{settlement:?}");
        let settled = scene.end(0, settlement);
        assert_eq!(settled.await, Ok(Settled::Done), "{row}");
        let notified = tokio::time::timeout(S(1), scene.spooled.notified()).await;
        assert_eq!(notified.is_ok(), records, "{row}");
        assert_eq!(!scene.left.is_clear(), follows, "{row}");
    }
}
