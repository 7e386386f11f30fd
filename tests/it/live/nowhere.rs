//! Connections without a server of their own: `sync` and the like, where no job waits, and `failover`.

use std::time::Duration;

use serde_json::Value;

use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(60);

/// What a command prints, and its exit code.
fn run(scene: &Scene, args: &[&str]) -> (i32, String) {
    let output = scene.workplace.artisand(args).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

fn a_worker_of_sync_finds_nothing(version: u8) {
    let settings = [("INTEROP_FAILOVER", "redis".to_owned())];
    let mut drivers = vec![("sync", "SyncQueue"), ("nothing", "NullQueue")];
    // Laravel 12.35 and 12.37 brought them.
    if version >= 13 {
        drivers.extend([
            ("deferred", "DeferredQueue"),
            ("background", "BackgroundQueue"),
        ]);
    }
    let scene = Scene::with_classes(version, &settings, "");
    for (connection, class) in drivers {
        let args = ["queue:work", connection, "--stop-when-empty", "--sleep=0"];
        let (code, text) = run(&scene, &args);
        let name = format!("{} {connection}: {text}", scene.name);
        assert_eq!(code, 0, "{name}");
        assert!(text.contains("its jobs wait nowhere"), "{name}");
        // As Laravel, which does not say why.
        let told = scene.php().text(&args);
        assert!(
            told.is_empty() || told.contains("Queue empty"),
            "{name} {told}"
        );
        let (code, text) = run(&scene, &["queue:monitor", &format!("{connection}:default")]);
        assert!(code == 0 && text.contains("[0] OK"), "{name} {text}");
        let (code, text) = run(&scene, &["queue:migrate", connection]);
        assert!(
            code == 0 && text.contains("Nothing to move"),
            "{name} {text}"
        );
        let (code, text) = run(&scene, &["queue:clear", connection, "--force"]);
        assert_eq!(code, 1, "{name}");
        assert!(
            text.contains(&format!("not supported on [{class}]")),
            "{name} {text}"
        );
        let (_, text) = run(&scene, &["doctor", connection]);
        assert!(text.contains("a worker finds none"), "{name} {text}");
        let (code, text) = run(&scene, &["queue:peek", "--connection", connection]);
        assert!(code == 0 && text.contains("0 pending"), "{name} {text}");
        // Only PHP runs a job where it is pushed.
        let args = ["dispatch", "App\\Jobs\\Plain", "--connection", connection];
        let (code, text) = run(&scene, &args);
        assert_eq!(code, 1, "{name}");
        assert!(text.contains("wait nowhere"), "{name} {text}");
    }
}

on_every_laravel!(a_worker_of_sync_finds_nothing);

/// An app whose default connection is `failover`, on Laravel 13, which has it.
fn failing_over(connections: &str) -> Scene {
    let env = [
        // No server is there.
        ("REDIS_CACHE_PORT", "1".to_owned()),
        ("CACHE_STORE", "file".to_owned()),
        ("INTEROP_FAILOVER", connections.to_owned()),
        ("QUEUE_CONNECTION", "failover".to_owned()),
        ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
    ];
    let settings = "[[map]]\njob = 'App\\Jobs\\Journal'\nhandler = \"journal\"\n";
    Scene::with_classes(13, &env, settings)
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_worker_of_failover_works_the_first_connection() {
    let scene = failing_over("redis,database");
    // The first look makes the tables.
    scene.failed();
    scene.push("one", &[]);
    scene.push("lost", &["--script=throw", "--tries=1"]);
    scene.php().run(&["interop:chain", "chain", "ok", "ok"]);
    let work = |args: &[&str]| {
        let args = [
            &["queue:work", "failover", "--stop-when-empty", "--sleep=0"][..],
            args,
        ];
        let mut worker = scene.workplace.worker_of(&args.concat());
        worker.succeeds_within(SOON);
        worker.stdout()
    };
    // Those of its first connection.
    let (code, text) = run(&scene, &["queue:migrate", "failover"]);
    assert!(code == 0 && text.contains("0 delayed"), "{text}");
    // The app pauses it by its own name.
    scene.php().text(&["queue:pause", "failover:default"]);
    work(&[]);
    assert_eq!(scene.queued(), 3, "{}", scene.redis.state());
    scene.php().text(&["queue:continue", "failover:default"]);
    let printed = work(&["--json"]);
    assert_eq!(scene.queued(), 0, "{}", scene.redis.state());
    let mut ids: Vec<String> = scene.lines().into_iter().map(|line| line.id).collect();
    ids.sort();
    assert_eq!(ids, ["chain-1", "chain-2", "lost", "lost", "one"]);
    // As in Laravel, jobs and failed jobs have the name of the connection that they came from.
    assert!(printed.contains("\"connection\":\"redis\""), "{printed}");
    assert_eq!(scene.failed()[0]["connection"], "redis");
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_push_goes_to_the_first_connection_that_takes_it() {
    let scene = failing_over("elsewhere,redis");
    scene.php().text(&["interop:journal", "php"]);
    let data = r#"{"id":"rust","script":[]}"#;
    let args = [
        "dispatch",
        "App\\Jobs\\Journal",
        "--connection=failover",
        "--data",
        data,
    ];
    let (code, text) = run(&scene, &args);
    assert_eq!(code, 0, "{text}");
    // The first connection's queue is called so.
    let payloads = scene.redis.list(&scene.queue("default"));
    let payloads: Vec<Value> = (payloads.iter())
        .map(|payload| serde_json::from_slice(payload).unwrap())
        .collect();
    assert_eq!(payloads.len(), 2, "{payloads:?}");
    for payload in &payloads {
        assert!(
            payload["id"].is_string() && payload["attempts"] == 0,
            "{payload}"
        );
    }
    let args = ["queue:work", "redis", "--stop-when-empty", "--sleep=0"];
    scene.workplace.worker_of(&args).succeeds_within(SOON);
    assert_eq!(scene.lines().len(), 2);
}

/// The app's default connection is `failover`, so that is where a step without a connection of its own goes.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_step_of_a_chain_goes_to_the_first_connection_that_answers() {
    let scene = failing_over("elsewhere,redis");
    // Laravel warns that it passed by the first one.
    let chain = ["interop:chain", "chain", "ok", "ok", "ok"];
    scene.php().text(&chain);
    let worker = scene
        .workplace
        .worker_of(&["queue:work", "redis", "--sleep=0.1"]);
    scene.redis.eventually("all steps have run", SOON, || {
        (scene.lines().len() == 3).then_some(())
    });
    let ids: Vec<String> = scene.lines().into_iter().map(|line| line.id).collect();
    assert_eq!(
        ids,
        ["chain-1", "chain-2", "chain-3"],
        "{}",
        worker.describe()
    );
    scene.redis.eventually("nothing is left", SOON, || {
        (scene.queued() == 0 && scene.own_keys().is_empty()).then_some(())
    });
}
