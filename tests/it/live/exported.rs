//! The file that `artisand manifest` writes, with which a worker needs no PHP.

use std::time::Duration;

use super::settings::{NO_PROGRAMS, write_manifest};
use crate::harness::fixtures::project;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;
use crate::harness::stores::{Databases, Kind};

const SOON: Duration = Duration::from_secs(60);
/// The file contains no secrets, so this one is in the environment of both.
const APP_KEY: &str = "base64:a2V5IG9mIDMyIGJ5dGVzIG9mIGFuIGFwcCBmb3IgaXQ=";

/// Jobs that PHP has queued, of classes whose facts a worker has to know.
fn a_worker_needs_nothing_but_the_file_that_artisand_manifest_writes(version: u8) {
    let databases = Databases::shared();
    let mut variables = databases.create(Kind::Postgres, "exported");
    variables.push(("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()));
    variables.push(("APP_KEY", APP_KEY.to_owned()));
    let redis = RedisServer::start();
    let workplace = Workplace::with_settings(&redis, "");
    let scene = Scene::on(redis, version, &variables, |laravel| {
        let app = laravel.config["app_path"].as_str().unwrap();
        let php = project().join("php-interop").join("laravel");
        // As PHP sees it, which may have a root of its own.
        let copy = laravel.copy();
        let inside = if copy.is_empty() {
            app.to_owned()
        } else {
            format!("/{copy}")
        };
        let asked = format!(
            "app = '{app}'\n[php]\nbinary = ['{}', '{version}']\napp = '{inside}'\n",
            php.display()
        );
        let manifest = workplace.path().join("artisand.json");
        write_manifest(&asked, &manifest, &laravel.env);
        let settings = format!(
            "app = '{app}'\nsettings = 'manifest'\nmanifest = 'artisand.json'\n[unmapped]\npolicy = 'leave'\n\
             [[map]]\njob = 'App\\Jobs\\*Journal'\nhandler = 'journal'\n"
        );
        std::fs::write(workplace.path().join("artisand.toml"), settings).unwrap();
        workplace
    });
    assert!(scene.failed().is_empty(), "the first look makes the tables");
    scene.push("alone", &[]);
    let fails = scene.push("fails", &["--script=throw", "--tries=1"]);
    let classes = "--classes=UniqueJournal,Journal,EncryptedJournal";
    let chain = ["chain", "ok", "ok", "ok", classes, "--without-catch"];
    scene.php().text(&[&["interop:chain"], &chain[..]].concat());
    let args = ["--stop-when-empty", "--sleep=0"];
    let mut command = scene.workplace.worker_command(&args);
    command
        .env("PATH", NO_PROGRAMS)
        // Passwords and keys, which the file does not contain.
        .envs(scene.laravel.env.iter().map(|(name, value)| (name, value)));
    let mut worker = ManagedChild::spawn(command);
    worker.succeeds_within(SOON);
    let said = format!("{}: {}", scene.name, worker.describe());
    assert_eq!(scene.queued(), 0, "{said}");
    let lines = scene.lines();
    assert!(lines.iter().all(|line| line.by == "rust"), "{lines:?}");
    for id in ["alone", "chain-1", "chain-2", "chain-3"] {
        assert_eq!(scene.events(id), ["run:1"], "{id}: {said}");
    }
    assert_eq!(scene.failed_uuids(), [fails], "{said}");
    assert_eq!(scene.keys("*laravel_unique_job*"), [""; 0], "{said}");
}

on_every_laravel!(a_worker_needs_nothing_but_the_file_that_artisand_manifest_writes);
