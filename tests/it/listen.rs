//! `queue:listen`: a change of a file counts from the next job on, and no job is cut short for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::process::{
    ManagedChild, Workplace, artisand, eventually, install_program, is_alive, poll, processes,
};
use crate::harness::redis::RedisServer;
use crate::worker::payload;

const SOON: Duration = Duration::from_secs(60);

struct Scene {
    redis: RedisServer,
    workplace: Workplace,
    pushed: u32,
}

impl Scene {
    /// Jobs append to `ran` what this setting says.
    fn new(says: &str) -> Self {
        let redis = RedisServer::start();
        let workplace = Workplace::new(&redis, "", 90, &mapping(says));
        Self {
            redis,
            workplace,
            pushed: 0,
        }
    }

    /// Changes the file behind the connection's own settings.
    fn change(&self, says: &str) {
        let path = self.path("artisand.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let connection = text.split("[[map]]").next().unwrap();
        std::fs::write(
            path,
            format!("{connection}{}unique = false\n", mapping(says)),
        )
        .unwrap();
    }

    fn push(&mut self) {
        self.pushed += 1;
        let payload = payload("App\\Jobs\\Once", self.pushed, &json!({}));
        self.redis
            .query::<()>(&[b"RPUSH", b"queues:default", &payload]);
    }

    fn listener(&self, args: &[&str]) -> ManagedChild {
        let all = [&["queue:listen", "redis", "--sleep=0.1"][..], args].concat();
        ManagedChild::spawn(self.workplace.artisand(&all))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.workplace.path().join(name)
    }

    fn ran(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("ran")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for these lines of the jobs.
    fn expect(&self, listener: &ManagedChild, lines: &[&str]) {
        let found = poll(SOON, || (self.ran() == lines).then_some(()));
        assert!(found.is_some(), "{:?}: {}", self.ran(), listener.describe());
    }

    /// The workers of the listener here.
    fn workers(&self) -> Vec<u32> {
        let home = self.workplace.path().display().to_string();
        processes(|command| command.contains(&home) && command.contains("--as-worker"))
    }

    /// Waits until another worker has taken the place of these: the listener says that it has seen a change before it
    /// tells them to end, and until then they may take a job.
    fn are_replaced(&self, before: &[u32]) {
        eventually("another worker", SOON, || {
            let workers = self.workers();
            (!workers.is_empty() && !workers.iter().any(|pid| before.contains(pid))).then_some(())
        });
    }
}

/// The name of a script comes before it.
fn mapping(says: &str) -> String {
    let (name, script) = says.split_once(' ').unwrap_or((says, "true"));
    let script = format!("echo {name} >> ran; {script}; echo end >> ran");
    let command = json!(["sh", "-c", script]);
    format!("[[map]]\njob = 'App\\Jobs\\*'\nhandler = {{ exec = {command} }}\n")
}

/// Waits until the listener has printed a text.
fn expect_said(listener: &ManagedChild, text: &str) {
    let said = poll(SOON, || listener.stderr().contains(text).then_some(()));
    assert!(said.is_some(), "{text}: {}", listener.describe());
}

#[test]
fn a_changed_setting_counts_for_the_next_job_and_the_running_one_ends_first() {
    let mut scene = Scene::new("first");
    let mut listener = scene.listener(&[]);
    scene.push();
    scene.expect(&listener, &["first", "end"]);
    let before = scene.workers();
    // Runs until the test lets it go.
    scene.change("long until test -e go; do sleep 0.05; done");
    expect_said(
        &listener,
        "artisand.toml changed: the worker ends its jobs and starts again.",
    );
    scene.are_replaced(&before);
    scene.push();
    eventually("the long job runs", SOON, || {
        (scene.ran().len() == 3).then_some(())
    });
    scene.change("last");
    let said = "artisand.toml changed";
    eventually("it is said again", SOON, || {
        (listener.stderr().matches(said).count() == 2).then_some(())
    });
    scene.push();
    // The job is not cut short, and nothing runs beside it.
    assert_eq!(scene.ran(), ["first", "end", "long"]);
    std::fs::write(scene.path("go"), "").unwrap();
    eventually(&format!("all ran: {}", listener.describe()), SOON, || {
        (scene.ran().last().map(String::as_str) == Some("end") && scene.ran().len() >= 6)
            .then_some(())
    });
    let ran = scene.ran();
    assert_eq!(ran[3..], ["end", "last", "end"], "{ran:?}");
    listener.signal(Signal::INT);
    listener.succeeds_within(SOON);
    assert_eq!(scene.workers(), [] as [u32; 0]);
}

#[test]
fn settings_that_cannot_be_read_are_said_and_mended_while_it_waits() {
    let mut scene = Scene::new("first");
    let mut listener = scene.listener(&[]);
    scene.push();
    scene.expect(&listener, &["first", "end"]);
    let path = scene.path("artisand.toml");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{good}\nhandlr = 1\n")).unwrap();
    expect_said(&listener, "handlr");
    expect_said(&listener, "The worker starts again when a file changes.");
    scene.push();
    std::fs::write(&path, good).unwrap();
    scene.expect(&listener, &["first", "end", "first", "end"]);
    listener.signal(Signal::TERM);
    listener.succeeds_within(SOON);
}

#[test]
fn a_build_that_fails_leaves_the_worker_as_it_is() {
    let mut scene = Scene::new("first");
    let source = scene.path("crate/src/main.rs");
    std::fs::create_dir_all(source.parent().unwrap()).unwrap();
    std::fs::write(&source, "1").unwrap();
    let command = "cat crate/src/main.rs >> built; echo compiled; grep -q good crate/src/main.rs";
    let mut listener = scene.listener(&["--exec", command, "--watch=crate"]);
    scene.push();
    scene.expect(&listener, &["first", "end"]);
    let before = scene.workers();
    std::fs::write(&source, "bad\n").unwrap();
    expect_said(
        &listener,
        "failed (exit status: 1): the worker goes on as it was",
    );
    assert!(listener.stderr().contains("crate/src/main.rs changed: cat"));
    // What a build prints is no line of a job.
    assert!(listener.stderr().contains("compiled") && !listener.stdout().contains("compiled"));
    assert_eq!(scene.workers(), before);
    std::fs::write(&source, "good\n").unwrap();
    eventually("it is built", SOON, || {
        let built = std::fs::read_to_string(scene.path("built")).unwrap();
        (built == "bad\ngood\n").then_some(())
    });
    scene.push();
    scene.expect(&listener, &["first", "end", "first", "end"]);
    // The program itself is the same.
    assert_eq!(scene.workers(), before);
    listener.signal(Signal::TERM);
    listener.succeeds_within(SOON);
}

#[test]
fn a_program_that_was_built_anew_takes_over() {
    let mut scene = Scene::new("first");
    let program = scene.path("program");
    install_program(Path::new(env!("CARGO_BIN_EXE_artisand")), &program);
    let command = scene
        .workplace
        .artisand(&["queue:listen", "redis", "--sleep=0.1"]);
    let mut copied = std::process::Command::new(&program);
    copied
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(scene.workplace.path());
    let mut listener = ManagedChild::spawn(copied);
    scene.push();
    scene.expect(&listener, &["first", "end"]);
    let before = scene.workers();
    // As a linker does: the old file goes, and another takes its name. The worker goes on meanwhile.
    std::fs::remove_file(&program).unwrap();
    expect_said(&listener, "program is gone: the worker goes on.");
    scene.push();
    scene.expect(&listener, &["first", "end", "first", "end"]);
    assert_eq!(scene.workers(), before);
    let new = scene.path("new");
    install_program(Path::new(env!("CARGO_BIN_EXE_artisand")), &new);
    std::fs::rename(&new, &program).unwrap();
    expect_said(
        &listener,
        "program changed: the worker ends its jobs and starts again.",
    );
    scene.are_replaced(&before);
    scene.push();
    scene.expect(&listener, &["first", "end", "first", "end", "first", "end"]);
    listener.signal(Signal::TERM);
    listener.succeeds_within(SOON);
}

#[test]
fn a_worker_that_ends_is_started_again_and_one_whose_listener_is_gone_ends() {
    let mut scene = Scene::new("first");
    let mut listener = scene.listener(&[]);
    scene.push();
    scene.expect(&listener, &["first", "end"]);
    let [first] = scene.workers()[..] else {
        panic!("{:?}", scene.workers())
    };
    let pid = |pid: u32| rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid(first), Signal::KILL).unwrap();
    expect_said(&listener, "it starts again in 3 s, or when a file changes.");
    scene.push();
    scene.expect(&listener, &["first", "end", "first", "end"]);
    let [second] = scene.workers()[..] else {
        panic!("{:?}", scene.workers())
    };
    assert_ne!(first, second);
    listener.signal(Signal::KILL);
    listener.wait_timeout(SOON);
    eventually("the worker ends", SOON, || {
        (!is_alive(second)).then_some(())
    });
}

#[test]
fn what_would_end_the_worker_is_refused() {
    for option in [
        "--once",
        "--stop-when-empty",
        "--max-jobs=1",
        "--max-time=1",
    ] {
        let output = artisand(&["queue:listen", option]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let name = option.split('=').next().unwrap();
        assert!(text.contains(&format!("`{name}` ends a worker")), "{text}");
    }
    let scene = Scene::new("first");
    let refused = [(
        &["--watch=nowhere"][..],
        "`--watch` names nowhere, which is not there",
    )];
    for (args, said) in refused {
        let mut listener = scene.listener(args);
        assert_eq!(listener.wait_timeout(SOON).code(), Some(2));
        assert!(listener.stderr().contains(said), "{}", listener.describe());
    }
}
