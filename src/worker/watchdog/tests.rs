use super::*;
use crate::worker::test_support::{S, Server, info, job, payload};

/// A watchdog over one running job, number 1.
struct Scene {
    turns: Arc<Turns>,
    running: Arc<Running>,
    control: Control,
    watchdog: Watchdog,
}

async fn scene(grace: Option<Duration>) -> Scene {
    let server = Server::new();
    server.push(&[job(1)]).await;
    let (turns, running) = (Arc::new(Turns::new(true)), Arc::<Running>::default());
    running.insert(1, server.reserve().await.remove(0), Duration::ZERO);
    let control = Control::new();
    let watchdog = Watchdog {
        turns: Arc::clone(&turns),
        running: Arc::clone(&running),
        control: control.clone(),
        runtimes: vec![tokio::runtime::Handle::current()],
        orders: control.subscribe(),
        grace,
    };
    Scene {
        turns,
        running,
        control,
        watchdog,
    }
}

/// A handler whose poll began in this tick; 0 if it is not being polled.
fn turn(number: u64, polled: u64, deadline: Option<Instant>) -> Arc<Turn> {
    Arc::new(Turn {
        part: Part::Handler,
        info: info(&job(1)),
        number,
        deadline,
        polled: AtomicU64::new(polled),
        is_given_up: AtomicBool::new(false),
    })
}

#[test]
fn a_handler_blocks_if_one_poll_takes_a_second() {
    let turns = Turns::new(true);
    turns.tick.store(10, Ordering::Relaxed);
    #[rustfmt::skip]
    let rows = [
        // tick in which its poll began => how long it has blocked
        (0, None),
        (10, None),
        (7, None),
        (6, Some(S(1))),
        (2, Some(S(2))),
    ];
    for (polled, expected) in rows {
        turns.turns().insert(1, turn(1, polled, None));
        let blocked = turns.blocked();
        let blocked = blocked.first().map(|(_, blocked_for)| *blocked_for);
        assert_eq!(blocked, expected, "{polled}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_marked_while_it_is_polled_and_forgotten_when_it_ends() {
    let turns = Turns::new(true);
    let job = info(&job(1));
    let polled = || turns.turns()[&1].polled.load(Ordering::Relaxed);
    let run = async {
        assert_eq!(polled(), 1);
        tokio::time::sleep(S(1)).await;
        assert_eq!(polled(), 1);
    };
    let mut watched = Box::pin(turns.watch(&job, 1, Part::Handler, Some(S(5)), run));
    assert!(futures_util::poll!(watched.as_mut()).is_pending());
    assert_eq!(polled(), 0);
    assert_eq!(turns.turns()[&1].deadline, Some(Instant::now() + S(5)));
    watched.await;
    assert!(turns.turns().is_empty());
    // A handler that is cut off leaves no mark either.
    let hook = std::future::pending::<()>();
    let mut watched = Box::pin(turns.watch(&job, 2, Part::FailedHook, None, hook));
    assert!(futures_util::poll!(watched.as_mut()).is_pending());
    assert_eq!(turns.turns().len(), 1);
    drop(watched);
    assert!(turns.turns().is_empty());
    // Without a watchdog there is nothing to mark.
    let unwatched = Turns::new(false);
    let run = async { assert!(unwatched.turns().is_empty()) };
    unwatched.watch(&job, 1, Part::Handler, None, run).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_blocks_is_given_up_a_second_after_its_timeout_or_the_stop_deadline() {
    let now = Instant::now() + S(100);
    let (just, late) = (now - S(1) / 2, now - S(1));
    #[rustfmt::skip]
    let rows = [
        // its timeout, the stop deadline => exit code, whether the worker has to stop
        (None,       None,       None,      false),
        (Some(just), None,       None,      false),
        (Some(late), None,       Some(137), true),
        (None,       Some(just), None,      false),
        (None,       Some(late), Some(0),   false),
        (Some(just), Some(late), Some(0),   false),
        (Some(late), Some(late), Some(137), true),
    ];
    for (deadline, cut_since, code, is_overdue) in rows {
        let scene = scene(None).await;
        let blocked = [(turn(1, 1, deadline), S(9))];
        let given = scene.watchdog.give_up_overdue(&blocked, cut_since, now);
        let row = (deadline, cut_since);
        assert_eq!(given, code, "{row:?}");
        assert_eq!(scene.turns.is_overdue(), is_overdue, "{row:?}");
        // Another worker gets the job once this process has ended, and not before.
        assert!(scene.running.has(1), "{row:?}");
        let is_given_up = scene.running.are_given_up(false);
        assert_eq!(is_given_up, code.is_some(), "{row:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_among_blocking_handlers_decides_the_exit_code() {
    let scene = scene(None).await;
    let now = Instant::now() + S(100);
    let late = Some(now - S(2));
    for turns in [
        [turn(1, 1, late), turn(2, 1, None)],
        [turn(2, 1, None), turn(1, 1, late)],
    ] {
        let blocked = turns.map(|turn| (turn, S(9)));
        let code = scene.watchdog.give_up_overdue(&blocked, late, now);
        assert_eq!(code, Some(137));
    }
}

#[test]
fn the_stop_deadline_counts_from_the_first_order() {
    let now = Instant::now();
    let quit = |hurry| Orders {
        quit: true,
        hurry,
        ..Orders::default()
    };
    let mut memory = Memory::default();
    memory.note_orders(Orders::default(), Some(S(8)), now);
    memory.note_orders(quit(false), Some(S(8)), now + S(1));
    memory.note_orders(quit(false), Some(S(8)), now + S(8));
    assert_eq!(memory.cut_since, None);
    memory.note_orders(quit(false), Some(S(8)), now + S(9));
    memory.note_orders(quit(true), Some(S(8)), now + S(20));
    assert_eq!(memory.cut_since, Some(now + S(9)));
    // Without a grace period only a second Ctrl-C cuts jobs.
    let mut memory = Memory::default();
    memory.note_orders(quit(false), None, now);
    memory.note_orders(quit(false), None, now + S(999));
    assert_eq!(memory.cut_since, None);
    memory.note_orders(quit(true), None, now + S(1000));
    assert_eq!(memory.cut_since, Some(now + S(1000)));
}

#[test]
fn a_class_that_blocks_is_named_once_and_many_classes_fill_no_memory() {
    let mut memory = Memory::default();
    let of = |class: &str| {
        let payload = payload(class, 1, &serde_json::json!({}));
        let turn = Turn {
            info: info(&payload),
            ..Arc::into_inner(turn(1, 1, None)).unwrap()
        };
        [(Arc::new(turn), S(2))]
    };
    memory.name(&of("A"));
    memory.name(&of("A"));
    assert_eq!(memory.named.len(), 1);
    for n in 0..2000 {
        memory.name(&of(&format!("B{n}")));
    }
    assert_eq!(memory.named.len(), MOST_NAMES);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_not_heard_from_is_woken_and_at_last_counts_as_blocked() {
    let scene = scene(None).await;
    let mut nudges = <[JoinSet<()>; 2]>::default();
    let mut counts = Vec::new();
    for tick in 1..=40 {
        scene.turns.tick.store(tick, Ordering::Relaxed);
        let silent = scene.watchdog.nudge(&mut nudges);
        assert_eq!(silent, [tick > SILENT, false], "{tick}");
        counts.push(nudges[0].len());
    }
    assert_eq!(counts[..3], [0, 1, 2]);
    // Its tasks wait while all of its threads are blocked.
    assert_eq!(counts.last(), Some(&MOST_NUDGES));
    tokio::task::yield_now().await;
    scene.turns.alive[0].store(40, Ordering::Relaxed);
    assert_eq!(scene.watchdog.nudge(&mut nudges), [false; 2]);
    assert!(nudges[0].is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_process_ends_when_all_that_is_left_of_it_is_blocked() {
    let scene = scene(None).await;
    let deadline = Some(Instant::now() + S(2));
    let blocked = turn(1, 1, deadline);
    scene.turns.turns().insert(1, blocked);
    let mut helpers = JoinSet::new();
    helpers.spawn(scene.watchdog.keep_watching());
    // The runtime has another thread, which gives signs of life.
    helpers.spawn(Arc::clone(&scene.turns).keep_alive(0));
    let began = Instant::now();
    assert_eq!(scene.control.abandoned().await, 137);
    let passed = began.elapsed();
    assert!(passed >= S(3) && passed <= S(3) + TICK, "{passed:?}");
    assert!(scene.running.has(1));
}

/// A `failed` hook that blocks its thread now.
fn hook(number: u64, deadline: Instant) -> Arc<Turn> {
    let turn = Arc::into_inner(turn(number, 1, Some(deadline))).unwrap();
    Arc::new(Turn {
        part: Part::FailedHook,
        ..turn
    })
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_that_blocks_has_its_timeout_and_ten_seconds_at_the_stop_deadline() {
    let now = Instant::now() + S(100);
    let later = now + S(100);
    #[rustfmt::skip]
    let rows = [
        // its timeout, the stop deadline => exit code
        (later,      None,              None),
        (now,        None,              None),
        (now - S(1), None,              Some(137)),
        (later,      Some(now - S(10)), None),
        (later,      Some(now - S(11)), Some(0)),
    ];
    for (deadline, cut_since, code) in rows {
        let scene = scene(None).await;
        let blocked = [(hook(2, deadline), S(9))];
        let given = scene.watchdog.give_up_overdue(&blocked, cut_since, now);
        assert_eq!(given, code, "{deadline:?} {cut_since:?}");
        assert_eq!(scene.turns.is_overdue(), code == Some(137));
        // It is given up, and no running job is.
        let is_given_up = blocked[0].0.is_given_up.load(Ordering::Relaxed);
        assert_eq!(is_given_up, code.is_some());
        assert!(!scene.running.are_given_up(false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_that_blocks_the_workers_thread_ends_the_process() {
    // Another job waits for that thread.
    let scene = scene(None).await;
    let until = Instant::now() + S(2);
    scene.turns.turns().insert(2, hook(2, until));
    let mut helpers = JoinSet::new();
    // Nothing gives signs of life.
    helpers.spawn(scene.watchdog.keep_watching());
    assert_eq!(scene.control.abandoned().await, 137);
    assert!(Instant::now() >= until + S(1));
    assert!(scene.turns.is_overdue());
}

#[tokio::test(start_paused = true)]
async fn a_process_waits_for_a_hook_within_its_time_that_has_a_thread_or_may_get_one() {
    #[rustfmt::skip]
    let rows = [
        // whether the hook has a thread; the silent runtimes => whether it is waited for
        (true,  [true, false],  true),
        (true,  [false, true],  true),
        (true,  [false, false], true),
        (false, [false, false], true),
        (false, [true, false],  false),
        (false, [false, true],  false),
    ];
    for (has_thread, silent, waits) in rows {
        let scene = scene(None).await;
        // The only job that is not settled.
        scene.running.give_up(1);
        let hook = hook(2, Instant::now() + S(60));
        hook.polled.store(has_thread.into(), Ordering::Relaxed);
        scene.turns.turns().insert(2, Arc::clone(&hook));
        let is_left = || !scene.watchdog.is_nothing_left(silent);
        assert_eq!(is_left(), waits, "{has_thread} {silent:?}");
        hook.is_given_up.store(true, Ordering::Relaxed);
        assert!(!is_left(), "{has_thread} {silent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_with_a_blocked_handler_lives_while_other_jobs_can_end() {
    let scene = scene(None).await;
    let (server, other) = (Server::new(), 2);
    server.push(&[job(2)]).await;
    let job = server.reserve().await.remove(0);
    scene.running.insert(other, job, Duration::ZERO);
    let deadline = Some(Instant::now() + S(2));
    scene.turns.turns().insert(1, turn(1, 1, deadline));
    let mut helpers = JoinSet::new();
    helpers.spawn(scene.watchdog.keep_watching());
    helpers.spawn(Arc::clone(&scene.turns).keep_alive(0));
    let abandoned = tokio::time::timeout(S(60), scene.control.abandoned()).await;
    assert!(abandoned.is_err());
    // The loop takes no more jobs, and the other job keeps its reservation.
    assert!(scene.turns.is_overdue() && scene.running.has(other));
    scene.running.remove(other);
    assert_eq!(scene.control.abandoned().await, 137);
}

/// What another job does while a handler blocks a thread beyond its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    /// Its handler keeps a thread, within its time.
    Computes,
    /// It waits for a thread.
    Waits,
    /// It runs in PHP, or its end is on the way to the server.
    Elsewhere,
}

#[tokio::test(start_paused = true)]
async fn a_process_lives_while_another_job_can_end_whichever_threads_are_blocked() {
    use Other::{Computes, Elsewhere, Waits};
    #[rustfmt::skip]
    let rows = [
        // whether the late handler, and the other job, are on the threads for busy handlers; the silent runtimes;
        // what the other job does => whether the process waits for it
        (true,  true,  [false, true],  Computes,  true),
        (true,  true,  [false, true],  Waits,     false),
        (true,  false, [false, true],  Elsewhere, true),
        (true,  false, [false, true],  Computes,  true),
        (true,  false, [true,  true],  Computes,  true),
        // No end of a job can be settled.
        (false, true,  [true,  false], Computes,  false),
        (false, true,  [true,  false], Waits,     false),
        (false, false, [true,  false], Waits,     false),
        (false, false, [true,  false], Elsewhere, false),
    ];
    for (late_needs_thread, needs_thread, silent, does, waits) in rows {
        let row = format!("{late_needs_thread} {needs_thread} {silent:?} {does:?}");
        let mut scene = scene(None).await;
        scene.watchdog.runtimes = vec![tokio::runtime::Handle::current(); 2];
        let (server, other) = (Server::new(), 2);
        server.push(&[job(2)]).await;
        let other_job = server.reserve().await.remove(0);
        let (running, turns) = (Arc::clone(&scene.running), Arc::clone(&scene.turns));
        running.insert(other, other_job, Duration::ZERO);
        running.set_needs_thread(1, late_needs_thread);
        running.set_needs_thread(other, needs_thread);
        let deadline = Some(Instant::now() + S(2));
        turns.turns().insert(1, turn(1, 1, deadline));
        if does != Elsewhere {
            let polled = u64::from(does == Computes);
            turns.turns().insert(other, turn(other, polled, None));
        }
        let mut helpers = JoinSet::new();
        for (position, _) in silent.iter().enumerate().filter(|(_, silent)| !**silent) {
            helpers.spawn(Arc::clone(&turns).keep_alive(position));
        }
        helpers.spawn(scene.watchdog.keep_watching());
        let abandoned = tokio::time::timeout(S(60), scene.control.abandoned()).await;
        assert_eq!(abandoned.is_err(), waits, "{row}");
        turns.turns().remove(&other);
        running.remove(other);
        assert_eq!(scene.control.abandoned().await, 137, "{row}");
    }
}
