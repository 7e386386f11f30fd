//! What real Horizon left of jobs, and what artisand leaves of the same ones: CI has no Horizon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use artisand::connection::{Database, DatabaseKind, DatabaseOptions};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{LISTS, P, SOON, Scene, answers, now};
use crate::harness::fixtures::project;
use crate::harness::jobs_table::batches_table;
use crate::harness::process::poll;

/// What the jobs of the recordings do in PHP (`php-interop/horizon/overlay/App/Jobs/Hz`).
const MAPPINGS: &str = r#"
[[map]]
job = '/^App\\Jobs\\Hz\\(Ok|Tagged|Tags|Keyed|Quiet|Hush|Step|Secret)$/'
handler = "discard"
[[map]]
job = '/^App\\Jobs\\Hz\\(Fails|TagFails|StepFails)$/'
handler = { exec = ["sh", "-c", "echo no >&2; exit 1"] }
[[map]]
job = 'App\Jobs\Hz\FailNow'
handler = { exec = ["sh", "-c", "echo no >&2; exit 65"] }
[[map]]
job = 'App\Jobs\Hz\TimesOut'
handler = { exec = ["sleep", "20"] }
[[map]]
job = 'App\Jobs\Hz\Batched'
handler = { exec = ["sh", "-c", "! grep -q bad"] }
[[map]]
job = 'App\Jobs\Hz\Flaky'
handler = { exec = ["sh", "-c", "[ $ARTISAND_JOB_ATTEMPTS = 3 ]"] }
[[map]]
job = 'App\Jobs\Hz\Releases'
handler = { exec = ["sh", "-c", "[ $ARTISAND_JOB_ATTEMPTS = 2 ] || { echo release 1; exit 75; }"] }
"#;

/// The same payloads as real Horizon had; its records are in `fixtures/horizon`, made by
/// `php-interop/horizon/record.py`.
fn records_are_those_that_real_horizon_has_left(version: u8) {
    let file = project().join(format!("fixtures/horizon/laravel-{version}.json"));
    let recorded: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let jobs = recorded["jobs"].as_array().unwrap();
    assert!(jobs.len() > 30);
    let scene = Scene::new();
    let settings = scene.app.path().join("artisand.toml");
    let text = std::fs::read_to_string(&settings).unwrap() + MAPPINGS;
    // The manifest knows only the classes that are pushed here, and payloads of Laravel 10 do not say it.
    let text = text.replace("[[map]]\n", "[[map]]\nunique = false\n");
    std::fs::write(settings, text).unwrap();
    let database = scene.app.path().join("database.sqlite");
    scene.change_manifest(|manifest| {
        manifest["laravel"] = recorded["laravel"].clone();
        manifest["classes"] = recorded["classes"].clone();
        let config = &mut manifest["config"];
        config["horizon"]["trim"] = json!({});
        // That of php-interop/horizon/setup.sh.
        config["app"]["key"] = json!("base64:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
        config["database"]["default"] = json!("sqlite");
        config["database"]["connections"]["sqlite"] =
            json!({"driver": "sqlite", "database": database});
        config["queue"]["batching"] = json!({"database": "sqlite", "table": "job_batches"});
    });
    let batches = Batches::create(&database);
    for batch in recorded["batches"].as_array().unwrap() {
        batches.restore(batch);
    }
    for tag in recorded["monitoring"].as_array().unwrap() {
        let key = format!("{P}monitoring");
        scene
            .redis
            .query::<()>(&[b"SADD", key.as_bytes(), tag.as_str().unwrap().as_bytes()]);
    }
    for job in jobs {
        scene.restore(&job["before"]);
    }
    let mut worker = scene.worker(&["--tries=1"]);
    let left = poll(SOON, || scene.jobs("pending_jobs").is_empty().then_some(()));
    assert!(left.is_some(), "{}", worker.describe());
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);

    // Jobs that the ends of others have pushed have ids of their own.
    let known: BTreeSet<&str> = jobs.iter().map(|job| job["id"].as_str().unwrap()).collect();
    let new: Vec<String> = (scene.jobs("recent_jobs").into_iter())
        .filter(|id| !known.contains(&**id))
        .collect();
    let steps = recorded["steps"].as_array().unwrap();
    assert_eq!(new.len(), steps.len(), "{}", worker.describe());
    let steps = steps.iter().map(|step| {
        let command = |text: &str| payload(text)["data"]["command"].clone();
        let theirs = command(step["after"]["payload"].as_str().unwrap());
        let is_it = |id: &&String| command(&scene.hash(id)["payload"]) == theirs;
        let id = new.iter().find(is_it).unwrap_or_else(|| panic!("{theirs}"));
        with_id(step, id, &scene.hash(id)["payload"])
    });
    let jobs: Vec<Value> = jobs.iter().cloned().chain(steps).collect();

    let mut measured = BTreeMap::<String, u64>::new();
    let completed = jobs
        .iter()
        .filter(|job| job["after"]["status"] == "completed");
    for job in completed {
        for (kind, name) in [("queue", "queue"), ("job", "name")] {
            let name = format!("{kind}:{}", job["after"][name].as_str().unwrap());
            *measured.entry(name).or_default() += 1;
        }
    }
    for (name, throughput) in measured {
        assert_eq!(
            scene.hash(&name)["throughput"],
            throughput.to_string(),
            "{name}"
        );
    }
    answers::assert_counts_like_recorded(&scene, &recorded, &jobs);
    for job in &jobs {
        assert_left_as_recorded(&scene, job);
    }
    for batch in recorded["batches"].as_array().unwrap() {
        batches.assert_like_recorded(batch);
    }
}

/// What is left of a job is what Horizon left of it.
fn assert_left_as_recorded(scene: &Scene, job: &Value) {
    let is_moment = |name: &str| name.ends_with("_at");
    let id = job["id"].as_str().unwrap();
    let (mut record, theirs) = (scene.hash(id), job["after"].as_object().unwrap());
    // Horizon newer than 5.29 has this field.
    record.remove("delay");
    let names: BTreeSet<&str> = record.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        theirs.keys().map(String::as_str).collect(),
        "{theirs:?}"
    );
    for (name, value) in theirs {
        let (ours, theirs) = (&record[name], value.as_str().unwrap());
        match &**name {
            "payload" => assert_eq!(payload(ours), payload(theirs), "{theirs}"),
            "exception" => assert!(ours.contains("Stack trace:"), "{ours}"),
            name if is_moment(name) => {
                let moment: f64 = ours.parse().unwrap();
                assert!((moment - now()).abs() < 120.0, "{name}: {ours}");
            }
            name => assert_eq!(ours, theirs, "{name} of {theirs:?}"),
        }
    }
    let minutes = match job["ttl"].as_str().unwrap() {
        "60m" => 60,
        "7d" => 7 * 24 * 60,
        other => panic!("{other}"),
    };
    assert_eq!(scene.minutes_to_live(id), minutes, "{theirs:?}");
    let lists: Vec<&str> = LISTS
        .into_iter()
        .filter(|list| scene.jobs(list).contains(id))
        .collect();
    assert_eq!(json!(lists), job["lists"], "{theirs:?}");
    answers::assert_like_recorded(scene, job);
    for tag in job["tags"].as_array().unwrap() {
        let tag = tag.as_str().unwrap();
        // Tags of the push are the pushing program's.
        if tag.starts_with("failed:") {
            let members = scene.redis.scores(&format!("{P}{tag}"));
            assert!(
                members.iter().any(|(member, _)| member == id.as_bytes()),
                "{tag}"
            );
        }
    }
}

/// A payload; Laravel's own script turns empty lists into objects, and the reader of the recorded answers turns them
/// into lists again.
pub(super) fn payload(text: &str) -> Value {
    let mut payload: Value = serde_json::from_str(text).unwrap();
    if payload["tags"] == json!({}) {
        payload["tags"] = json!([]);
    }
    payload
}

/// What was recorded of a job, as it would be with this id and the moments of this payload.
fn with_id(job: &Value, id: &str, ours: &str) -> Value {
    let text = job.to_string();
    let mut job: Value =
        serde_json::from_str(&text.replace(job["id"].as_str().unwrap(), id)).unwrap();
    let ours = payload(ours);
    let with_moments = |theirs: &mut Value| {
        for moment in ["pushedAt", "createdAt"] {
            if let Some(theirs) = theirs.get_mut(moment) {
                *theirs = ours[moment].clone();
            }
        }
    };
    let mut theirs = payload(job["after"]["payload"].as_str().unwrap());
    with_moments(&mut theirs);
    job["after"]["payload"] = json!(theirs.to_string());
    for answer in job["answers"].as_object_mut().unwrap().values_mut() {
        with_moments(&mut answer["payload"]);
    }
    job
}

/// The table of the app's batches.
struct Batches {
    database: Database,
    runtime: tokio::runtime::Runtime,
}

impl Batches {
    fn create(file: &Path) -> Self {
        std::fs::File::create(file).unwrap();
        let options = DatabaseOptions {
            database: file.to_str().unwrap().into(),
            ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let database = {
            let _inside = runtime.enter();
            Database::new(&options).unwrap()
        };
        let table = batches_table("job_batches", "text");
        runtime.block_on(database.execute(&table, &[])).unwrap();
        Self { database, runtime }
    }

    /// A batch none of whose jobs has run, without its callbacks, which PHP runs.
    fn restore(&self, batch: &Value) {
        let total = batch["totalJobs"].as_i64().unwrap();
        assert_eq!(batch["options"]["allowFailures"], true);
        let sql = "insert into job_batches values (?, '', ?, ?, 0, '[]', ?, null, 1000, null)";
        let options = r#"a:1:{s:13:"allowFailures";b:1;}"#;
        let id = batch["id"].as_str().unwrap();
        let values = [id.into(), total.into(), total.into(), options.into()];
        self.runtime
            .block_on(self.database.execute(sql, &values))
            .unwrap();
    }

    fn assert_like_recorded(&self, batch: &Value) {
        let sql = "select pending_jobs, failed_jobs, cancelled_at is null, finished_at is null \
             from job_batches where id = ?";
        let id = batch["id"].as_str().unwrap();
        let rows = self.runtime.block_on(self.database.rows(sql, &[id.into()]));
        let rows = rows.unwrap();
        let ours = [0, 1, 2, 3].map(|column| rows[0].text(column).unwrap().into_owned());
        let is_null = |name: &str| i64::from(batch[name].is_null()).to_string();
        let theirs = [
            batch["pendingJobs"].to_string(),
            batch["failedJobs"].to_string(),
            is_null("cancelledAt"),
            is_null("finishedAt"),
        ];
        assert_eq!(ours, theirs, "{batch}");
    }
}

#[test]
fn records_are_those_that_real_horizon_has_left_on_laravel_10() {
    records_are_those_that_real_horizon_has_left(10);
}

#[test]
fn records_are_those_that_real_horizon_has_left_on_laravel_13() {
    records_are_those_that_real_horizon_has_left(13);
}
