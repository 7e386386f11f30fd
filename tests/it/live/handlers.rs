//! `make:handler` beside real Laravel: from jobs that PHP has just queued, and from the manifest.

use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::RedisServer;

on_every_laravel!(handlers_are_made_of_what_waits);
fn handlers_are_made_of_what_waits(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    for kind in ["typed", "model", "listener"] {
        laravel.run(&["interop:dispatch", kind]);
    }
    let manifest = laravel.manifest_with_classes();
    let place = Workplace::with_manifest(&laravel, &manifest, "");
    let made = |class: &str| {
        let output = place.artisand(&["make:handler", class]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let before = redis.state();

    let typed = made("App\\Jobs\\Typed");
    assert!(typed.contains("pub count: i64,"), "{typed}");
    // Declared, and with a default that Laravel leaves out since 9.4.
    assert!(typed.contains("pub ratio: f64,"), "{typed}");
    assert!(typed.contains("and of the manifest"), "{typed}");

    let model = made("App\\Jobs\\WithModel");
    assert!(model.contains("pub user: ModelIdentifier,"), "{model}");
    assert!(model.contains("`App\\Models\\User`"), "{model}");

    let listener = made("App\\Listeners\\SendShipmentNotification");
    assert!(
        listener.contains("job: Listener<OrderShipped>,"),
        "{listener}"
    );
    assert!(
        listener.contains("pub at: artisand::php::Date,"),
        "{listener}"
    );

    // No job of the class waits: the manifest has it.
    let plain = made("App\\Jobs\\Plain");
    assert!(plain.contains("the manifest alone"), "{plain}");
    assert!(plain.contains("pub struct Plain {"), "{plain}");

    // A listener's method and event, and what PHP does around a class's jobs.
    let count = made("App\\Listeners\\CountReading");
    for part in [
        "listener = 'App\\Listeners\\CountReading@count'\n",
        "event = 'App\\Events\\ArticleRead'\n",
        "job: Listener<ArticleRead>,",
        "pub article: i64,",
        "pub share: f64,",
    ] {
        assert!(count.contains(part), "{part} in {count}");
    }
    let guarded = made("App\\Jobs\\Guarded");
    assert!(guarded.contains("# middleware = [\n"), "{guarded}");
    assert!(guarded.contains("* `failed()`, "), "{guarded}");
    // Registered as a listener only while the app runs, which the manifest does not see.
    let wrapped = made("App\\Wrapped\\Guarded");
    let line = "//! #     { without_overlapping = { key = \"{PROPERTY}\" } },\n";
    assert!(wrapped.contains(line), "{wrapped}");
    assert_eq!(redis.state(), before);
}
