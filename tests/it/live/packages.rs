//! Queued classes of packages: the exporter finds them without loading other files of packages.

use serde_json::json;

use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::RedisServer;

fn queued_classes_of_packages_are_in_the_manifest(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let manifest = laravel.exported();
    // One file of the package calls `exit`, and loading one of its queued classes ends PHP.
    assert!(manifest.complete);
    let notes = manifest.notes.join("\n");
    assert!(!notes.contains("Acme"), "{notes}");
    let of_packages = manifest
        .classes
        .iter()
        .filter(|(_, class)| class.is_of_package());
    let found = of_packages.map(|(name, class)| (name.as_str(), class.kind.as_str()));
    let (frameworks, packages): (Vec<_>, Vec<_>) =
        found.partition(|(name, _)| name.starts_with("Illuminate\\"));
    let expected = [
        ("Acme\\Queued\\Jobs\\Convert", "job"),
        ("Acme\\Queued\\Jobs\\ConvertVideo", "job"),
        ("Acme_Old_Job", "job"),
    ];
    assert_eq!(packages, expected);
    let batch = (version > 8).then_some("Bus\\ChainedBatch");
    let wrappers = [
        "Broadcasting\\BroadcastEvent",
        "Events\\CallQueuedListener",
        "Foundation\\Console\\QueuedCommand",
        "Notifications\\SendQueuedNotifications",
        "Queue\\CallQueuedClosure",
    ];
    for class in wrappers.into_iter().chain(batch) {
        let name = format!("Illuminate\\{class}");
        assert!(
            frameworks.contains(&(&name, "job")),
            "{name}: {frameworks:?}"
        );
        assert!(manifest.targets().all(|(target, _)| target != name));
    }
    let video = &manifest.classes["Acme\\Queued\\Jobs\\ConvertVideo"];
    assert!(video.is_queued() && video.is_batchable());
    assert_eq!(video.limits["tries"], json!(2));
    assert_eq!(video.limits["timeout"], json!(70));
}

on_every_laravel!(queued_classes_of_packages_are_in_the_manifest);

fn commands_know_the_classes_of_packages(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let manifest = laravel.manifest_with_classes();
    let mapping = "[[map]]\njob = 'Acme\\Queued\\Jobs\\Convert'\nhandler = 'log'\n\
        [[map]]\nnotification = 'Acme\\Queued\\Jobs\\ConvertVideo'\nhandler = 'log'\n";
    let place = Workplace::with_manifest(&laravel, &manifest, mapping);
    let said = |args: &[&str]| {
        let output = place.artisand(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let checked = said(&["config:check"]);
    assert!(!checked.contains("the app has no class"), "{checked}");
    let doubt = "names `Acme\\Queued\\Jobs\\ConvertVideo`, which is a job";
    assert!(checked.contains(doubt), "{checked}");
    // The facts are those of the files that are installed.
    assert!(!checked.contains("changed since"), "{checked}");
    let made = said(&["make:handler", "Acme\\Queued\\Jobs\\Convert"]);
    assert!(made.contains("the manifest alone"), "{made}");
    assert!(made.contains("pub path: String,"), "{made}");
}

on_every_laravel!(commands_know_the_classes_of_packages);
