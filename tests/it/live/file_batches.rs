//! Batches in a `SQLite` file: few transactions, so that PHP is seldom rejected.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::process::{ManagedChild, eventually};
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(240);

const SETTINGS: &str = r#"
[php]
queue = "default"

[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct InFile {
    scene: Scene,
    batch: String,
}

in_scene!(InFile);

impl InFile {
    fn new(version: u8, jobs: usize) -> Self {
        let scene = Scene::new(version, &[("QUEUE_FAILED_DRIVER", "null")], SETTINGS);
        let args = [&["interop:batch"][..], &vec!["ok"; jobs], &["--then"]].concat();
        let batch = scene.laravel.run(&args).remove(0);
        let batch = batch["id"].as_str().unwrap().to_owned();
        Self { scene, batch }
    }

    fn rust(&self) -> ManagedChild {
        self.workplace
            .worker(&["--concurrency=1", "--sleep=0.05", "--tries=3"])
    }

    /// Waits for the end of the batch and stops the workers.
    fn finish(&self, workers: &mut [ManagedChild]) {
        let done = crate::harness::process::poll(SOON, || {
            (self.redis.length("interop:batch") > 0).then_some(())
        });
        let state = self.laravel.run(&["interop:batch-state", &self.batch]);
        let workers_say: Vec<_> = workers.iter().map(ManagedChild::describe).collect();
        assert!(done.is_some(), "{state:?} {}", workers_say.join("\n"));
        for worker in workers.iter_mut() {
            worker.signal(Signal::TERM);
        }
        for worker in workers.iter_mut() {
            worker.wait_timeout(SOON);
        }
        let state = self.laravel.run(&["interop:batch-state", &self.batch]);
        assert_eq!(state[0]["pending"], 0, "{state:?}");
        assert_eq!(
            state[0]["failed_ids"].as_array().unwrap().len(),
            0,
            "{state:?}"
        );
        assert_eq!(self.redis.length("interop:batch"), 1);
    }

    /// How many transactions have written to the file.
    fn writes(&self) -> u32 {
        let settings = self.laravel.settings();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let path = settings.open_database(None).unwrap().address();
        let bytes = std::fs::read(path).unwrap();
        u32::from_be_bytes(bytes[24..28].try_into().unwrap())
    }
}

fn counts_of_a_batch_in_a_file_are_gathered(version: u8) {
    const JOBS: usize = 200;
    let scene = InFile::new(version, JOBS);
    let before = scene.writes();
    let since = Instant::now();
    let mut workers = [scene.rust(), scene.laravel.worker(&["--queue=none,php"])];
    let queue = scene.laravel.key("queues:default");
    eventually("Rust has run them", SOON, || {
        (scene.redis.length("interop:journal") == JOBS && scene.redis.length(&queue) == 1)
            .then_some(())
    });
    // Five a second, and those that end the batch.
    let writes = scene.writes() - before;
    let most = u32::try_from(since.elapsed().as_secs() + 1).unwrap() * 5 + 5;
    assert!(writes > 0 && writes <= most, "{writes} of {most}");
    workers[1].signal(Signal::TERM);
    workers[1].wait_timeout(SOON);
    workers[1] = scene.laravel.worker(&["--tries=3"]);
    scene.finish(&mut workers);
}

on_every_laravel!(counts_of_a_batch_in_a_file_are_gathered);
