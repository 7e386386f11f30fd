//! The file that `artisand manifest` writes, with which a worker needs no PHP.

use std::time::Duration;

use super::settings::{NO_PROGRAMS, write_manifest};
use crate::harness::fixtures::project;
use crate::harness::process::{ManagedChild, Workplace, without_settings};
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

/// What the exporter finds for classes with attributes, as JSON lists of `tries` and `deleteWhenMissingModels`.
const ATTRIBUTES: &str = r"
require 'vendor/autoload.php';

#[\Illuminate\Queue\Attributes\Tries(5)]
#[\Illuminate\Queue\Attributes\DeleteWhenMissingModels]
trait Marked {}

#[\Illuminate\Queue\Attributes\Tries(5)]
#[\Illuminate\Queue\Attributes\DeleteWhenMissingModels]
class Own { public $tries; }

class Inherits extends Own {}

class Redeclares extends Own { public $tries = 2; }

class WithTrait { use Marked; public $tries = 2; }

#[\Illuminate\Queue\Attributes\DeleteWhenMissingModels]
class Contradicts { public $deleteWhenMissingModels = false; }

foreach (array_slice($argv, 1) as $question) {
    [$version, $name] = explode(' ', $question);
    $find = function () use ($name) {
        $limits = $this->limits(new \ReflectionClass(__NAMESPACE__.'\\'.$name), 'job');

        return [$limits['tries'], $limits['deleteWhenMissingModels']];
    };
    echo json_encode($find->call(new Classes('.', $version, new Notes))), PHP_EOL;
}
";

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn attributes_are_found_where_each_laravel_looks_for_them() {
    // Laravel before 13 has no `Tries`.
    let rows = [
        ("12.67.0 Own", "[5,true]"),
        ("12.67.0 Inherits", "[null,null]"),
        ("12.67.0 WithTrait", "[2,null]"),
        ("12.67.0 Contradicts", "[null,false]"),
        ("13.0.0 Inherits", "[5,true]"),
        ("13.0.0 Contradicts", "[null,true]"),
        ("13.13.0 Redeclares", "[5,true]"),
        ("13.14.0 Redeclares", "[2,true]"),
        ("13.15.0 WithTrait", "[2,null]"),
        ("13.16.0 WithTrait", "[5,true]"),
    ];
    let directory = project().join("php-interop");
    let exporter = std::fs::read_to_string(directory.join("manifest.php")).unwrap();
    let (exporter, _) = exporter.rsplit_once("Exporter::main(").unwrap();
    let program = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(program.path(), format!("{exporter}{ATTRIBUTES}")).unwrap();
    let mut command = std::process::Command::new(directory.join("laravel"));
    let output = without_settings(&mut command)
        .args(["13", "--"])
        .args(rows.map(|(question, _)| question))
        .stdin(program.reopen().unwrap())
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&output.stdout);
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(found, rows.map(|(_, expected)| expected), "{output:?}");
}
