//! Unique jobs without a manifest: the app's PHP says which classes are unique where their jobs do not.

use std::time::Duration;

use crate::harness::fixtures::project;
use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, artisand};
use crate::harness::redis::RedisServer;

fn php_says_which_jobs_have_a_lock(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let directory = tempfile::tempdir().unwrap();
    let php = project().join("php-interop").join("laravel");
    let settings = format!(
        "[php]\nbinary = ['{}', '{version}']\napp = '.'\n[[map]]\njob = 'App\\Jobs\\*Journal'\nhandler = 'discard'\n[unmapped]\npolicy = 'leave'\n",
        php.display()
    );
    std::fs::write(directory.path().join("artisand.toml"), settings).unwrap();
    // The lock of the one name is free for each of them, or the second is not queued.
    for round in 1..=2 {
        let rush = ["interop:rush", "1", "note:end", "--ids=1"];
        let queued = laravel.run(&rush).remove(0);
        let uuids = queued["uuids"].as_array().unwrap();
        assert_eq!(uuids.len(), 1, "round {round}: {}", redis.state());
        let mut command = artisand(&["queue:work", "--stop-when-empty", "--sleep=0.1"]);
        command
            .current_dir(directory.path())
            .envs(laravel.env.iter().map(|(name, value)| (name, value)));
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(Duration::from_secs(120));
        let left = redis.jobs(&laravel.key("queues:default"));
        assert_eq!(left, 0, "{}\n{}", worker.describe(), redis.state());
        assert!(!worker.stderr().contains("unique"), "{}", worker.describe());
    }
}

on_every_laravel!(php_says_which_jobs_have_a_lock);
