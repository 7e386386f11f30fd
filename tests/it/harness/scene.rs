//! The scene of most tests with real Laravel: a server, the app, and a directory for artisand's workers.

use std::sync::OnceLock;

use serde_json::Value;

use super::journal::{self, Line};
use super::laravel::{Laravel, Served};
use super::process::{ManagedChild, Workplace};
use super::redis::{RedisServer, is_memory};

/// An app on a server of its own, and a directory for workers.
///
/// Tests that need more have a struct around it, which [`in_scene`] makes behave like the scene.
pub(crate) struct Scene {
    /// For messages.
    pub(crate) name: String,
    pub(crate) redis: RedisServer,
    pub(crate) laravel: Laravel,
    pub(crate) workplace: Workplace,
    php: OnceLock<Served>,
}

/// Makes a struct with a field `scene` behave like its scene.
macro_rules! in_scene {
    ($type:ty) => {
        impl std::ops::Deref for $type {
            type Target = $crate::harness::scene::Scene;

            fn deref(&self) -> &Self::Target {
                &self.scene
            }
        }

        impl std::ops::DerefMut for $type {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.scene
            }
        }
    };
}
pub(crate) use in_scene;

impl Scene {
    /// An app with these variables; its workers know its settings, and `rest` from their `artisand.toml`.
    pub(crate) fn new<V: AsRef<str>>(version: u8, env: &[(&str, V)], rest: &str) -> Self {
        Self::on(RedisServer::start(), version, env, |laravel| {
            Workplace::for_app(laravel, rest)
        })
    }

    /// The same; the workers know the app's classes, too.
    pub(crate) fn with_classes<V: AsRef<str>>(version: u8, env: &[(&str, V)], rest: &str) -> Self {
        Self::on(RedisServer::start(), version, env, |laravel| {
            Workplace::with_manifest(laravel, &laravel.manifest_with_classes(), rest)
        })
    }

    /// The same with a pool of PHP processes for what `rest` does not map; `rest` is before an open `[php]`.
    pub(crate) fn with_pool<V: AsRef<str>>(
        version: u8,
        env: &[(&str, V)],
        processes: usize,
        rest: &str,
    ) -> Self {
        Self::on(RedisServer::start(), version, env, |laravel| {
            Workplace::with_pool(laravel, processes, rest)
        })
    }

    /// An app on this server, with this directory for workers.
    pub(crate) fn on<V: AsRef<str>>(
        redis: RedisServer,
        version: u8,
        env: &[(&str, V)],
        workplace: impl FnOnce(&Laravel) -> Workplace,
    ) -> Self {
        let laravel = Laravel::with_env(version, &redis, env);
        Self {
            name: format!("Laravel {version}"),
            workplace: workplace(&laravel),
            redis,
            laravel,
            php: OnceLock::new(),
        }
    }

    /// A process of the app for many commands, started when it is needed first.
    pub(crate) fn php(&self) -> &Served {
        self.php.get_or_init(|| self.laravel.serve())
    }

    /// Lets the next command have another process of the app: this one has lost its server.
    pub(crate) fn renew_php(&mut self) {
        self.php = OnceLock::new();
    }

    /// A key as it is in Redis.
    pub(crate) fn key(&self, name: &str) -> String {
        self.laravel.key(name)
    }

    /// The key of a queue.
    pub(crate) fn queue(&self, name: &str) -> String {
        self.key(&format!("queues:{name}"))
    }

    /// Jobs of the default queue: in the list, delayed and reserved.
    pub(crate) fn queued(&self) -> usize {
        self.redis.jobs(&self.queue("default"))
    }

    /// Names of keys.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        self.redis.query(&[b"KEYS", pattern.as_bytes()])
    }

    /// Keys of artisand's own, but those that only remember something for a while.
    pub(crate) fn own_keys(&self) -> Vec<String> {
        let mut keys = self.keys("*artisand*");
        keys.retain(|key| !is_memory(key));
        keys
    }

    /// Queues a job that writes to the journal under this name; returns its uuid.
    pub(crate) fn push(&self, id: &str, options: &[&str]) -> String {
        let args = [&["interop:journal", id][..], options].concat();
        self.php().run(&args)["uuid"].as_str().unwrap().to_owned()
    }

    /// All lines of the journal.
    pub(crate) fn lines(&self) -> Vec<Line> {
        journal::since(&self.redis, 0)
    }

    /// What a job wrote to the journal, as `event:attempts`.
    pub(crate) fn events(&self, id: &str) -> Vec<String> {
        let lines = self.lines().into_iter().filter(|line| line.id == id);
        lines
            .map(|line| {
                let attempts = line.attempts.map_or("null".to_owned(), |n| n.to_string());
                format!("{}:{attempts}", line.event)
            })
            .collect()
    }

    /// Rows of failed jobs as the app sees them; the first look makes the tables.
    pub(crate) fn failed(&self) -> Vec<Value> {
        let found = self.php().run(&["interop:failed"]);
        found["jobs"].as_array().unwrap().clone()
    }

    /// Uuids of failed jobs, in their order.
    pub(crate) fn failed_uuids(&self) -> Vec<String> {
        let uuid = |job: Value| {
            let payload: Value = serde_json::from_str(text(&job["payload"])).unwrap();
            text(&payload["uuid"]).to_owned()
        };
        let mut uuids: Vec<String> = self.failed().into_iter().map(uuid).collect();
        uuids.sort();
        uuids
    }

    /// A worker with Rust handlers.
    pub(crate) fn worker(&self, args: &[&str]) -> ManagedChild {
        self.workplace.worker(args)
    }

    /// A worker of Laravel.
    pub(crate) fn php_worker(&self, args: &[&str]) -> ManagedChild {
        self.laravel.worker(args)
    }
}

/// The text that a JSON value is.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}
