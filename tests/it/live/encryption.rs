//! Encrypted texts and jobs: one side writes, the other reads, and no job is lost because of a missing key.

use std::time::Duration;

use artisand::payload::Encrypter;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::harness::laravel::{Laravel, Served};
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(90);

/// A mapping for the encrypted journal.
const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\EncryptedJournal'
handler = "journal"
"#;

/// The mapping, and jobs that it cannot run are failed.
const OR_FAIL: &str = "[unmapped]\npolicy = \"fail\"\n";

/// A key of this many bytes, in the form of an app's setting.
fn key(byte: u8, len: usize) -> String {
    format!("base64:{}", BASE64.encode(vec![byte; len]))
}

/// The app's encrypter, or its error.
fn php(served: &Served, verb: &str, text: &[u8]) -> Result<Vec<u8>, String> {
    let answer = served.run(&["interop:crypt", verb, &BASE64.encode(text)]);
    match answer["result"].as_str() {
        Some(result) => Ok(BASE64.decode(result).unwrap()),
        None => Err(answer["error"].as_str().unwrap().to_owned()),
    }
}

/// Texts that an encrypter must refuse, made from one that it accepts.
fn tampered(text: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let json: Value = serde_json::from_slice(&BASE64.decode(text).unwrap()).unwrap();
    let with = |field: &str, value: Value| {
        let mut json = json.clone();
        json[field] = value;
        BASE64.encode(json.to_string()).into_bytes()
    };
    let flipped = |field: &str| {
        let mut bytes = BASE64.decode(json[field].as_str().unwrap()).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        with(field, BASE64.encode(bytes).into())
    };
    let is_aead = json["mac"] == "";
    let mut texts = vec![
        ("value", flipped("value")),
        ("iv", flipped("iv")),
        ("short iv", with("iv", "AQEB".into())),
        ("null value", with("value", Value::Null)),
        ("no json", text[..text.len() / 2].to_vec()),
        ("nothing", Vec::new()),
    ];
    if is_aead {
        texts.push(("tag", flipped("tag")));
        texts.push(("no tag", with("tag", "".into())));
    } else {
        let mac = json["mac"].as_str().unwrap();
        texts.push(("upper mac", with("mac", mac.to_ascii_uppercase().into())));
        texts.push(("no mac", with("mac", "".into())));
        // The version decides whether the MAC or the tag is checked first.
        texts.push(("tag", with("tag", "Zjxyp90pUyLUZK22GgL6Yg==".into())));
    }
    texts
}

fn both_encrypters_read_and_refuse_the_same(version: u8) {
    let redis = RedisServer::start();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let plain = [&b""[..], b"s:1:\"a\";", &[b'x'; 4096], &all_bytes];
    for (cipher, len) in [
        ("AES-128-CBC", 16),
        ("AES-256-CBC", 32),
        ("aes-128-gcm", 16),
        ("AES-256-GCM", 32),
    ] {
        let place = format!("Laravel {version} {cipher}");
        let env = [("APP_CIPHER", cipher.to_owned()), ("APP_KEY", key(7, len))];
        let laravel = Laravel::with_env(version, &redis, &env);
        let served = laravel.serve();
        let ours: Encrypter = laravel.settings().encrypter().unwrap();
        for text in plain {
            let by_php = php(&served, "encrypt", text).unwrap();
            assert_eq!(ours.decrypt(&by_php).unwrap(), text, "{place}");
            let by_us = ours.encrypt(text).into_bytes();
            assert_eq!(by_us.len(), by_php.len(), "{place}: another form");
            assert_eq!(php(&served, "decrypt", &by_us).unwrap(), text, "{place}");
        }
        // Both ignore white space and characters that are not base64.
        let mut spaced = ours.encrypt(b"spaced").into_bytes();
        spaced.splice(8..8, *b" \n-\xff");
        assert_eq!(
            php(&served, "decrypt", &spaced).unwrap(),
            b"spaced",
            "{place}"
        );
        assert_eq!(ours.decrypt(&spaced).unwrap(), b"spaced", "{place}");
        for (what, text) in tampered(ours.encrypt(b"s:1:\"a\";").as_bytes()) {
            let theirs = php(&served, "decrypt", &text);
            let theirs = theirs.expect_err(&format!("{place}: PHP takes a changed {what}"));
            let ours = ours.decrypt(&text).unwrap_err().to_string();
            assert_eq!(ours, theirs, "{place}: {what}");
        }
    }
}

on_every_laravel!(both_encrypters_read_and_refuse_the_same);

#[derive(Debug, Clone, Copy)]
enum By {
    Php,
    Rust,
}

/// The state after an attempt: events of the journal, and where the job is.
type Seen = (Vec<String>, &'static str);

struct Encrypted {
    scene: Scene,
}

in_scene!(Encrypted);

impl Encrypted {
    fn new(version: u8) -> Self {
        let driver = [("QUEUE_FAILED_DRIVER", "database-uuids")];
        Self {
            scene: Scene::new(version, &driver, MAPPINGS),
        }
    }

    /// Queues a job on a queue of its name; returns its payload.
    fn dispatch(&self, name: &str, options: &[&str]) -> Value {
        let queue = format!("--queue={name}");
        let args = ["interop:journal", name, "--encrypted", &*queue];
        self.laravel.run(&[&args[..], options].concat());
        let payload = self.waiting(name).pop().unwrap();
        let command = payload["data"]["command"].as_str().unwrap();
        assert!(command.starts_with("eyJpdiI6"), "not encrypted: {payload}");
        payload
    }

    /// Payloads that wait on a queue, due or not.
    fn waiting(&self, name: &str) -> Vec<Value> {
        let queue = self.queue(name);
        let delayed = self.redis.scores(&format!("{queue}:delayed")).into_iter();
        let elements = self.redis.list(&queue).into_iter();
        let elements = elements.chain(delayed.map(|(element, _)| element));
        elements
            .map(|element| serde_json::from_slice(&element).unwrap())
            .collect()
    }

    /// Payloads of failed jobs, by the queue they came from.
    fn failed(&self) -> Vec<(String, Value)> {
        let rows = self.scene.failed();
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let read = |row| {
            let payload = serde_json::from_str(&text(row, "payload")).unwrap();
            (text(row, "queue"), payload)
        };
        rows.iter().map(read).collect()
    }

    fn work(&self, by: By, name: &str) {
        let queue = format!("--queue={name}");
        let args = ["--once", "--sleep=0", "--backoff=0", &*queue];
        let mut worker = match by {
            By::Php => self.php_worker(&args),
            By::Rust => self.worker(&args),
        };
        worker.succeeds_within(SOON);
    }

    /// Runs a job attempt by attempt until it is gone; returns the state after each.
    fn walk(&self, name: &str, turns: [By; 2], options: &[&str]) -> Vec<Seen> {
        let sent = self.dispatch(name, options);
        let mut seen = Vec::new();
        for by in turns.iter().cycle().take(8) {
            let from = self.events(name).len();
            self.work(*by, name);
            let events = self.events(name).split_off(from);
            let waiting = self.waiting(name);
            for payload in &waiting {
                assert_eq!(payload["data"], sent["data"], "{name}: {by:?} changed it");
            }
            if !waiting.is_empty() {
                seen.push((events, "waits"));
                continue;
            }
            let failed = self.failed();
            let row = failed.iter().find(|(queue, _)| queue == name);
            if let Some((_, row)) = row {
                assert_eq!(row["data"], sent["data"], "{name}: {by:?} changed it");
            }
            seen.push((events, if row.is_some() { "failed" } else { "gone" }));
            break;
        }
        seen
    }
}

fn encrypted_jobs_run_and_stay_as_they_were_encrypted(version: u8) {
    let scene = Encrypted::new(version);
    #[rustfmt::skip]
    let cases: [(&str, &[&str], &str); 3] = [
        ("ok", &["--tries=3", "--script=throw,release:0,ok"], "gone"),
        ("fails", &["--tries=2", "--script=throw,throw"], "failed"),
        ("gives-up", &["--tries=2", "--script=fail"], "failed"),
    ];
    for (name, options, end) in cases {
        let walk = |who: &str, turns| scene.walk(&format!("{name}-{who}"), turns, options);
        let reference = walk("php", [By::Php, By::Php]);
        assert_eq!(reference.last().unwrap().1, end, "{reference:?}");
        for (who, turns) in [
            ("rust", [By::Rust, By::Rust]),
            ("php-rust", [By::Php, By::Rust]),
            ("rust-php", [By::Rust, By::Php]),
        ] {
            assert_eq!(
                walk(who, turns),
                reference,
                "Laravel {version} {name} {who}"
            );
        }
    }
    // artisan and artisand queue a failed job again with the same ciphertext, and it runs.
    for (name, by_php) in [("fails-rust", true), ("fails-php", false)] {
        let failed = scene.failed();
        let (_, row) = failed.iter().find(|(queue, _)| queue == name).unwrap();
        let uuid = row["uuid"].as_str().unwrap();
        if by_php {
            assert_eq!(scene.laravel.text(&["queue:retry", uuid]).1, 0);
        } else {
            let output = scene.workplace.artisand(&["queue:retry", uuid]).output();
            assert!(output.unwrap().status.success());
        }
        let waiting = scene.waiting(name);
        assert_eq!(waiting.len(), 1, "{}", scene.redis.state());
        assert_eq!(waiting[0]["data"], row["data"]);
        let from = scene.events(name).len();
        scene.work(if by_php { By::Rust } else { By::Php }, name);
        assert_eq!(scene.events(name).split_off(from), ["run:1"]);
    }
}

on_every_laravel!(encrypted_jobs_run_and_stay_as_they_were_encrypted);

/// Whether this version of Laravel reads what an earlier key encrypted.
fn has_previous_keys(version: u8) -> bool {
    version >= 11
}

fn a_job_of_an_old_key_is_never_lost(version: u8) {
    let redis = RedisServer::start();
    let (old, new) = (key(1, 32), key(2, 32));
    let app = |env: &[(&str, &str)]| {
        let driver = ("QUEUE_FAILED_DRIVER", "database-uuids");
        Laravel::with_env(version, &redis, &[&[driver][..], env].concat())
    };
    let before = app(&[("APP_KEY", &old)]);
    let rotated = app(&[("APP_KEY", &new), ("APP_PREVIOUS_KEYS", &old)]);
    let forgotten = app(&[("APP_KEY", &new)]);
    let queue = before.key("queues:default");
    let journal = || redis.length("interop:journal");
    let dispatch = || {
        before.run(&["interop:journal", "x", "--encrypted", "--tries=1"]);
        redis.list(&queue).pop().unwrap()
    };
    let once = ["--once", "--sleep=0"];
    let place = format!("Laravel {version}");

    // Without the key it stays in its place, the log says why, and a later job runs.
    let sent = dispatch();
    forgotten.run(&["interop:journal", "y", "--encrypted", "--tries=1"]);
    let workplace = Workplace::for_app(&forgotten, MAPPINGS);
    for expected in 1..=2 {
        let mut worker = workplace.worker(&["--stop-when-empty", "--sleep=0"]);
        worker.succeeds_within(SOON);
        assert_eq!(journal(), expected, "{place}: {}", worker.describe());
        assert_eq!(redis.list(&queue), std::slice::from_ref(&sent), "{place}");
        let said = "jobs of a class have a handler and cannot be run here: they count as unmapped";
        let stderr = worker.stderr();
        assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
        assert!(stderr.contains("The MAC is invalid."), "{stderr}");
        let remedy = if has_previous_keys(version) {
            "put the old key into APP_PREVIOUS_KEYS"
        } else {
            "reads the current key only"
        };
        assert!(stderr.contains(remedy), "{stderr}");
        assert!(
            !stderr.contains(&old[7..]) && !stderr.contains(&new[7..]),
            "{stderr}"
        );
        forgotten.run(&["interop:journal", "z", "--encrypted", "--tries=1"]);
    }
    // The last one above is still there.
    let mut worker = workplace.worker(&once);
    worker.succeeds_within(SOON);
    assert_eq!(redis.list(&queue), std::slice::from_ref(&sent), "{place}");

    // With it as a previous key, the result is that of PHP in this version.
    let workplace = Workplace::for_app(&rotated, MAPPINGS);
    let mut worker = workplace.worker(&once);
    worker.succeeds_within(SOON);
    let ran = journal() - 3;
    assert_eq!(
        ran == 1,
        has_previous_keys(version),
        "{place}: {}",
        worker.describe()
    );
    assert_eq!(redis.length(&queue), 1 - ran, "{place}");

    // With the old key again it runs, if it was not run yet.
    let workplace = Workplace::for_app(&before, MAPPINGS);
    let mut worker = workplace.worker(&once);
    worker.succeeds_within(SOON);
    assert_eq!((journal(), redis.length(&queue)), (4, 0), "{place}");

    // PHP fails it, and so does artisand under policy `fail`, with the ciphertext in the store.
    let row = |app: &Laravel| {
        let found = app.run(&["interop:failed"]).remove(0);
        assert_eq!(found["count"], 1, "{place}: {found}");
        found["jobs"][0].clone()
    };
    let of_failed = |row: &Value| {
        let text = row["payload"].as_str().unwrap();
        let payload: Value = serde_json::from_str(text).unwrap();
        payload["data"].clone()
    };
    let data_of = |sent: &[u8]| serde_json::from_slice::<Value>(sent).unwrap()["data"].clone();
    let by_php = app(&[("APP_KEY", &new)]);
    let sent = dispatch();
    let mut worker = by_php.worker(&once);
    worker.wait_timeout(SOON);
    let failed = row(&by_php);
    assert_eq!(of_failed(&failed), data_of(&sent), "{place}");
    let exception = failed["exception"].as_str().unwrap();
    assert!(exception.contains("The MAC is invalid."), "{exception}");

    let sent = dispatch();
    // The first use makes the table.
    forgotten.run(&["interop:failed"]);
    let workplace = Workplace::for_app(&forgotten, &format!("{OR_FAIL}{MAPPINGS}"));
    let mut worker = workplace.worker(&once);
    worker.succeeds_within(SOON);
    let failed = row(&forgotten);
    assert_eq!(of_failed(&failed), data_of(&sent), "{place}");
    let exception = failed["exception"].as_str().unwrap();
    assert!(exception.contains("The MAC is invalid."), "{exception}");
    assert_eq!(journal(), 4, "{place}");
}

on_every_laravel!(a_job_of_an_old_key_is_never_lost);

/// An app without any key: encrypted jobs stay, and other jobs run.
#[test]
fn without_a_key_encrypted_jobs_stay_and_others_run() {
    let redis = RedisServer::start();
    let encrypter = Encrypter::new("13.0".parse().unwrap(), &"k".repeat(32), "AES-256-CBC");
    let command = r#"O:25:"App\Jobs\EncryptedJournal":2:{s:2:"id";s:1:"a";s:6:"script";a:0:{}}"#;
    let payload = |uuid: &str, command: &str| {
        let payload = json!({
            "uuid": uuid, "displayName": "App\\Jobs\\EncryptedJournal",
            "job": "Illuminate\\Queue\\CallQueuedHandler@call",
            "data": {"commandName": "App\\Jobs\\EncryptedJournal", "command": command},
            "id": uuid, "attempts": 0,
        });
        payload.to_string().into_bytes()
    };
    let locked = payload("1", &encrypter.unwrap().encrypt_command(command.as_bytes()));
    let plain = payload("2", command);
    redis.query::<()>(&[b"RPUSH", b"queues:default", &locked, &plain]);
    let mapping = format!("{}concurrency = 1\n", MAPPINGS.replace("journal", "log"));
    let workplace = Workplace::new(&redis, "", 90, &mapping);
    let work = |variables: &[(&str, String)]| {
        let mut command = workplace.artisand(&["queue:work", "redis", "--stop-when-empty"]);
        command.envs(variables.to_vec());
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(SOON);
        worker
    };
    let worker = work(&[]);
    let left = redis.list("queues:default");
    assert_eq!(left, std::slice::from_ref(&locked), "{}", redis.state());
    let why = "No application encryption key has been specified.";
    assert!(worker.stderr().contains(why), "{}", worker.describe());
    assert_eq!(worker.stdout().matches("DONE").count(), 1);
    // Also without an app the environment may have it.
    redis.query::<()>(&[b"RPUSH", b"queues:default", &locked, &locked]);
    let worker = work(&[("APP_KEY", "k".repeat(32))]);
    assert_eq!(redis.length("queues:default"), 0, "{}", redis.state());
    assert_eq!(worker.stdout().matches("DONE").count(), 3);
}
