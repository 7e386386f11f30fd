//! Broadcast events beside real Laravel: the same bytes on the same channels, and PHP for what only PHP knows.

use std::sync::Arc;

use artisand::config::Config;
use artisand::handler::{Broadcaster, Handler, JobContext, JobInfo, Services};
use artisand::payload::Payload;
use artisand::queue::{ConnectionName, QueueName};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::harness::laravel::{Laravel, Served};
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;

/// Channel and text.
type Published = (String, Vec<u8>);

/// What is published while this runs.
fn published(redis: &RedisServer, run: impl FnOnce()) -> Vec<Published> {
    let mut connection = redis.connection();
    let mut ear = connection.as_pubsub();
    ear.psubscribe("*").unwrap();
    run();
    let _: i64 = redis.query(&[b"PUBLISH", b"the-end", b""]);
    let mut heard = Vec::new();
    loop {
        let message = ear.get_message().unwrap();
        let channel = message.get_channel_name().to_owned();
        if channel == "the-end" {
            return heard;
        }
        heard.push((channel, message.get_payload_bytes().to_vec()));
    }
}

/// The app with a Redis broadcaster, and what is known of it here.
struct Scene {
    redis: RedisServer,
    laravel: Laravel,
    served: Served,
    services: Arc<Services>,
    runtime: Runtime,
}

const QUEUES: [&str; 2] = ["default", "casts"];

/// What `artisand manifest` would write.
fn whole_manifest(laravel: &Laravel) -> serde_json::Value {
    let mut manifest = laravel.manifest();
    let classes = laravel.exported_classes().as_object().unwrap().clone();
    manifest.as_object_mut().unwrap().extend(classes);
    manifest
}

/// What `queue:work` of this app needs to know.
fn services(laravel: &Laravel, is_with_classes: bool) -> Services {
    let manifest = if is_with_classes {
        whole_manifest(laravel)
    } else {
        laravel.manifest()
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifest.to_string()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let env = [("ARTISAND_MANIFEST".to_owned(), path)];
    let config = Config::load(None, None, env).unwrap();
    config.services().unwrap()
}

impl Scene {
    fn new(version: u8, env: &[(&str, &str)]) -> Self {
        let redis = RedisServer::start();
        let env = [&[("BROADCAST_CONNECTION", "redis")], env].concat();
        let laravel = Laravel::with_env(version, &redis, &env);
        let served = laravel.serve();
        let runtime = Runtime::new().unwrap();
        let inside = runtime.enter();
        let services = Arc::new(services(&laravel, true));
        drop(inside);
        Self {
            redis,
            laravel,
            served,
            services,
            runtime,
        }
    }

    fn kinds(&self) -> Vec<String> {
        let kinds = self.served.run(&["interop:cast"]);
        serde_json::from_value(kinds).unwrap()
    }

    /// Queues an event and gives its job.
    fn queue(&self, kind: &str) -> Arc<JobInfo> {
        self.served.run(&["interop:cast", kind]);
        let on = |queue: &&str| {
            let list = self
                .redis
                .list(&self.laravel.key(&format!("queues:{queue}")));
            let element = list.into_iter().next()?;
            Some((QueueName::from(*queue), element))
        };
        let (queue, body) = QUEUES
            .iter()
            .find_map(on)
            .unwrap_or_else(|| panic!("{kind}"));
        Arc::new(JobInfo {
            connection: ConnectionName::from("redis"),
            queue,
            attempts: 1,
            payload: Arc::new(Payload::parse(&body).unwrap()),
            body: body.into(),
        })
    }

    /// Lets PHP run what is queued, with no trouble.
    fn run_by_php(&self) -> Vec<Published> {
        let (heard, said) = self.tried_by_php();
        assert!(!said.to_lowercase().contains("fail"), "{said}");
        heard
    }

    /// Lets PHP run what is queued, and gives what it said of it.
    fn tried_by_php(&self) -> (Vec<Published>, String) {
        let mut said = String::new();
        let heard = published(&self.redis, || {
            let args = ["queue:work", "redis", "--once", "--queue=default,casts"];
            said = self.served.text(&args);
        });
        for queue in QUEUES {
            let left = self
                .redis
                .length(&self.laravel.key(&format!("queues:{queue}")));
            assert_eq!(left, 0, "{}", self.redis.state());
        }
        (heard, said)
    }

    fn run_here(&self, job: Arc<JobInfo>) -> (Vec<Published>, Result<(), String>) {
        let services = Arc::clone(&self.services);
        let context = JobContext::new(job, CancellationToken::new(), services);
        let mut result = Ok(());
        let heard = published(&self.redis, || {
            let ended = self.runtime.block_on(Broadcaster.handle(context));
            result = ended.map_err(|error| error.to_string());
        });
        (heard, result)
    }

    /// Why a job is left to PHP.
    fn refusal(&self, job: &JobInfo) -> Option<String> {
        let _inside = self.runtime.enter();
        Broadcaster.refuses(&job.payload, &self.services)
    }
}

fn shown(published: &[Published]) -> Vec<(String, String)> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let shown = published.iter();
    shown
        .map(|(channel, json)| (channel.clone(), text(json)))
        .collect()
}

/// Why PHP has to publish these kinds.
fn reason(kind: &str) -> &'static str {
    match kind {
        "php-model" => "its public property `user` is a model",
        "php-computed" => "its `broadcastOn()` is PHP code",
        "php-collection" => "class `Illuminate\\Support\\Collection`",
        "php-log" => "`broadcasting.connections.log.driver` of the app is `log`, expected `redis`",
        "php-middleware" => "a method `middleware()`",
        kind => panic!("{kind}"),
    }
}

fn events_are_published_as_laravel_publishes_them(version: u8) {
    let scene = Scene::new(version, &[]);
    let kinds = scene.kinds();
    assert!(kinds.len() >= 21, "{kinds:?}");
    let mut count = 0;
    for kind in &kinds {
        let job = scene.queue(kind);
        let refusal = scene.refusal(&job);
        let by_php = scene.run_by_php();
        if kind.starts_with("php-") {
            let why = refusal.unwrap_or_else(|| panic!("Laravel {version} {kind} was not refused"));
            assert!(
                why.contains(reason(kind)),
                "Laravel {version} {kind}: {why}"
            );
            let (heard, result) = scene.run_here(job);
            assert!(
                heard.is_empty() && result.is_err(),
                "Laravel {version} {kind}"
            );
            continue;
        }
        assert_eq!(refusal, None, "Laravel {version} {kind}");
        let (here, result) = scene.run_here(job);
        assert_eq!(result, Ok(()), "Laravel {version} {kind}");
        assert_eq!(shown(&here), shown(&by_php), "Laravel {version} {kind}");
        assert_eq!(here, by_php, "Laravel {version} {kind}");
        assert_eq!(
            by_php.is_empty(),
            kind == "nowhere",
            "Laravel {version} {kind}"
        );
        count += by_php.len();
    }
    assert!(count >= 25, "only {count} messages");
}

on_every_laravel!(events_are_published_as_laravel_publishes_them);

fn nothing_is_published_for_a_model_that_is_gone(version: u8) {
    let scene = Scene::new(version, &[]);
    for kind in ["model-key", "notification"] {
        let job = scene.queue(kind);
        scene.served.text(&["interop:user", "1", "--gone"]);
        let (heard, said) = scene.tried_by_php();
        assert!(heard.is_empty(), "Laravel {version} {kind}: {said}");
        assert_eq!(scene.refusal(&job), None, "Laravel {version} {kind}");
        let (heard, result) = scene.run_here(job);
        assert!(heard.is_empty(), "Laravel {version} {kind}");
        let error = result.unwrap_err();
        assert!(
            error.contains("No query results for model [App\\Models\\User]"),
            "{error}"
        );
        scene.served.text(&["interop:user", "1"]);
    }
}

on_every_laravel!(nothing_is_published_for_a_model_that_is_gone);

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn an_anonymous_event_needs_no_facts_about_classes() {
    let mut scene = Scene::new(13, &[("REDIS_PREFIX", "own:")]);
    let inside = scene.runtime.enter();
    let bare = Arc::new(services(&scene.laravel, false));
    drop(inside);
    // As without a manifest: settings alone are known.
    let mut without = (*bare).clone();
    without.manifest = None;
    scene.services = Arc::new(without);
    for kind in ["anonymous", "anonymous-named", "anonymous-list"] {
        let job = scene.queue(kind);
        let by_php = scene.run_by_php();
        let (here, result) = scene.run_here(job);
        assert_eq!(result, Ok(()), "{kind}");
        assert_eq!(shown(&here), shown(&by_php), "{kind}");
        assert!(here.iter().all(|(channel, _)| channel.starts_with("own:")));
        assert!(!here.is_empty());
    }
    let job = scene.queue("bare");
    let why = scene.refusal(&job).unwrap();
    assert!(
        why.contains("there is no manifest; write it with `artisand manifest`"),
        "{why}"
    );
}

const MAPPED: &str = r#"
[[map]]
broadcast = '*'
handler = "broadcast"

[unmapped]
policy = "forward"
queue = "php"
"#;

fn a_worker_publishes_what_it_can_and_leaves_the_rest_to_php(version: u8) {
    let scene = Scene::new(version, &[]);
    let kinds = scene.kinds();
    let locks = || -> Vec<String> {
        let keys: Vec<String> = scene.redis.query(&[b"KEYS", b"*unique*"]);
        let elsewhere: Vec<String> = {
            let mut connection = scene.redis.connection();
            redis::cmd("SELECT").arg(1).exec(&mut connection).unwrap();
            redis::cmd("KEYS")
                .arg("*unique*")
                .query(&mut connection)
                .unwrap()
        };
        [keys, elsewhere].concat()
    };
    for kind in &kinds {
        scene.served.run(&["interop:cast", kind]);
    }
    // Laravel 8 has no unique broadcast events.
    assert_eq!(locks().len(), usize::from(version >= 10), "{:?}", locks());
    let workplace =
        Workplace::with_manifest(&scene.laravel, &whole_manifest(&scene.laravel), MAPPED);
    let mut said = String::new();
    let heard = published(&scene.redis, || {
        let args = [
            "queue:work",
            "redis",
            "--stop-when-empty",
            "--queue=default,casts",
        ];
        let mut worker = ManagedChild::spawn(workplace.artisand(&args));
        worker.succeeds_within(std::time::Duration::from_secs(30));
        // The log doubles backslashes.
        said = (worker.stderr() + &worker.stdout()).replace("\\\\", "\\");
    });
    let on = |queue: &str| {
        scene
            .redis
            .length(&scene.laravel.key(&format!("queues:{queue}")))
    };
    let for_php = kinds.iter().filter(|kind| kind.starts_with("php-")).count();
    assert_eq!(
        (on("default"), on("casts"), on("php")),
        (0, 0, for_php),
        "{said}"
    );
    assert!(heard.len() >= 25, "only {} messages: {said}", heard.len());
    assert_eq!(locks(), [""; 0], "{said}");
    for kind in kinds.iter().filter(|kind| kind.starts_with("php-")) {
        assert!(
            said.contains(reason(kind)),
            "Laravel {version} {kind}: {said}"
        );
    }
    let mut doctor = ManagedChild::spawn(workplace.artisand(&["doctor"]));
    doctor.wait_timeout(std::time::Duration::from_secs(30));
    let said = doctor.stdout();
    let expected =
        "PHP has to publish App\\Events\\Cast\\Computed: its `broadcastOn()` is PHP code";
    assert!(said.contains(expected), "{said}");
}

on_every_laravel!(a_worker_publishes_what_it_can_and_leaves_the_rest_to_php);
