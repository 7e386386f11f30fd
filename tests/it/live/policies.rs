//! A queue of all kinds of jobs under each policy for unmapped jobs: no job is lost, and the order stays.

use std::collections::BTreeMap;
use std::time::Duration;

use artisand::payload::{Payload, Target};

use crate::harness::fixtures::project;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(60);

/// Pushes two kinds of jobs alternating with others; one is mapped by its class, one by the class inside its wrapper.
const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Journal'
handler = "journal"

[[map]]
notification = 'App\Notifications\*'
channel = "mail"
handler = "log"
"#;

/// Kinds of the jobs between the mapped ones.
const OTHERS: [&str; 7] = [
    "closure",
    "string",
    "mailable",
    "listener",
    "notification",
    "command-bare",
    "broadcast",
];

/// Lines that jobs of the other kinds write to `interop:seen` when PHP runs them.
const SEEN: usize = 15;

struct Mixed {
    scene: Scene,
    /// What was queued, in order.
    queued: Vec<Vec<u8>>,
}

in_scene!(Mixed);

fn is_mapped(element: &[u8]) -> bool {
    let payload = Payload::parse(element).unwrap();
    match Target::of(&payload) {
        Ok(Target::Job { class }) => class.as_str() == "App\\Jobs\\Journal",
        Ok(Target::Notification { channel, .. }) => channel.as_deref() == Some("mail"),
        _ => false,
    }
}

/// Payloads by uuid: a worker may have counted an attempt.
fn uuids(elements: &[Vec<u8>]) -> Vec<String> {
    let uuid = |element: &Vec<u8>| Payload::parse(element).unwrap().uuid.unwrap().to_string();
    elements.iter().map(uuid).collect()
}

impl Mixed {
    fn new(version: u8) -> Self {
        let scene = Scene::new(version, &[("QUEUE_FAILED_DRIVER", "database-uuids")], "");
        let served = scene.php();
        for round in 0..3 {
            for (number, kind) in OTHERS.iter().enumerate() {
                served.run(&["interop:journal", &format!("rust-{round}-{number}")]);
                served.text(&["interop:dispatch", kind, "--queue=default"]);
                // Encrypted jobs of another class: only their wrapper is readable.
                let name = format!("php-{round}-{number}");
                served.run(&["interop:journal", &name, "--encrypted"]);
            }
        }
        let queued = scene.redis.list(&scene.queue("default"));
        let mapped = queued.iter().filter(|element| is_mapped(element)).count();
        assert!(
            mapped >= 24 && queued.len() >= mapped + 30,
            "{mapped} of {}",
            queued.len()
        );
        Self { scene, queued }
    }

    fn unmapped(&self) -> Vec<Vec<u8>> {
        let unmapped = self.queued.iter().filter(|element| !is_mapped(element));
        unmapped.cloned().collect()
    }

    fn run(&self, rest: &str) -> ManagedChild {
        let php = project().join("php-interop").join("laravel");
        let rest = format!(
            "{MAPPINGS}{rest}\n[php]\nbinary = [\"{}\", \"{}\"]\napp = \".\"\nprocesses = 2\n",
            php.display(),
            self.laravel.version
        );
        let workplace = Workplace::for_app(&self.laravel, &rest);
        let mut command = workplace.worker_command(&["--stop-when-empty"]);
        let env = self.laravel.env.iter();
        command.envs(env.map(|(name, value)| (name.as_str(), value.as_str())));
        let mut child = ManagedChild::spawn(command);
        child.succeeds_within(SOON);
        child
    }

    fn list(&self, queue: &str) -> Vec<Vec<u8>> {
        self.redis.list(&self.queue(queue))
    }

    /// Which side ran which jobs of the journal, in order.
    fn runs(&self, by: &str) -> Vec<String> {
        let lines = self.lines().into_iter();
        lines
            .filter(|line| line.by == by)
            .map(|line| line.id)
            .collect()
    }

    fn assert_mapped_ones_ran_here(&self) {
        let expected = (0..3).flat_map(|round| {
            (0..OTHERS.len()).map(move |number| format!("rust-{round}-{number}"))
        });
        assert_eq!(self.runs("rust"), expected.collect::<Vec<_>>());
    }
}

fn what_is_left_stays_in_order(version: u8) {
    let scene = Mixed::new(version);
    scene.run("[unmapped]\npolicy = \"leave\"");
    scene.assert_mapped_ones_ran_here();
    // Byte for byte, attempts and all.
    assert_eq!(scene.list("default"), scene.unmapped());
    assert_eq!(scene.runs("php"), [] as [&str; 0]);
    // PHP runs them as if artisand had not been there.
    scene
        .php_worker(&["--stop-when-empty", "--sleep=0"])
        .succeeds_within(SOON);
    assert_eq!(scene.runs("php").len(), 3 * OTHERS.len());
    assert_eq!(scene.list("default"), [] as [Vec<u8>; 0]);
    assert_eq!(scene.redis.length("interop:seen"), SEEN);
}

on_every_laravel!(what_is_left_stays_in_order);

fn what_is_forwarded_keeps_its_bytes_and_order(version: u8) {
    let scene = Mixed::new(version);
    scene.run("[unmapped]\npolicy = \"forward\"\nqueue = \"php\"");
    scene.assert_mapped_ones_ran_here();
    assert_eq!(scene.list("php"), scene.unmapped());
    assert_eq!(scene.list("default"), [] as [Vec<u8>; 0]);
}

on_every_laravel!(what_is_forwarded_keeps_its_bytes_and_order);

fn what_fails_by_policy_can_be_retried(version: u8) {
    let scene = Mixed::new(version);
    scene.run("[unmapped]\npolicy = \"fail\"");
    scene.assert_mapped_ones_ran_here();
    assert_eq!(scene.list("default"), [] as [Vec<u8>; 0]);
    let failed = scene.failed();
    let by_uuid: BTreeMap<&str, &str> = failed
        .iter()
        .map(|job| {
            (
                job["id"].as_str().unwrap(),
                job["payload"].as_str().unwrap(),
            )
        })
        .collect();
    let unmapped = scene.unmapped();
    assert_eq!(
        (failed.len(), by_uuid.len()),
        (unmapped.len(), unmapped.len())
    );
    for (uuid, element) in uuids(&unmapped).iter().zip(&unmapped) {
        assert_eq!(by_uuid[uuid.as_str()].as_bytes(), element, "{uuid}");
    }
    scene.php().text(&["queue:retry", "all"]);
    scene
        .php_worker(&["--stop-when-empty", "--sleep=0"])
        .succeeds_within(SOON);
    assert_eq!(scene.runs("php").len(), 3 * OTHERS.len());
}

on_every_laravel!(what_fails_by_policy_can_be_retried);

fn php_runs_the_rest_beside_us(version: u8) {
    let scene = Mixed::new(version);
    scene.run("[unmapped]\npolicy = \"php\"");
    scene.assert_mapped_ones_ran_here();
    let mut ran = scene.runs("php");
    ran.sort();
    let expected = (0..3)
        .flat_map(|round| (0..OTHERS.len()).map(move |number| format!("php-{round}-{number}")));
    assert_eq!(ran, expected.collect::<Vec<_>>());
    for part in ["default", "default:notify"] {
        assert_eq!(scene.list(part), [] as [Vec<u8>; 0]);
    }
    let key = |part: &str| scene.queue(&format!("default:{part}"));
    assert_eq!(scene.redis.scores(&key("reserved")), []);
    assert_eq!(scene.redis.scores(&key("delayed")), []);
    assert_eq!(scene.redis.length("interop:seen"), SEEN);
}

on_every_laravel!(php_runs_the_rest_beside_us);
