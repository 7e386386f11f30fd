//! `maxExceptions`: exceptions of a job are counted in the cache, whichever side ran it.

use std::time::Duration;

use crate::harness::process::INTEROP_MAPPINGS;
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(90);
/// The app keeps the keys of its cache in this database.
const CACHE: &[u8] = b"1";

#[derive(Debug, Clone, Copy)]
enum By {
    Php,
    Rust,
}

/// The state after an attempt: events of the journal, the count with its expiry, and where the job is.
type Seen = (Vec<String>, Option<String>, bool, bool);

struct Counted {
    scene: Scene,
}

in_scene!(Counted);

impl Counted {
    /// The count of a job's exceptions, and whether it expires within a day.
    fn count(&self, uuid: &str) -> (Option<String>, bool) {
        let prefix = self.laravel.config["cache"]["effective_prefix"].as_str();
        let key = self
            .laravel
            .key(&format!("{}job-exceptions:{uuid}", prefix.unwrap()));
        let mut connection = self.redis.connection();
        redis::cmd("SELECT")
            .arg(CACHE)
            .exec(&mut connection)
            .unwrap();
        let count: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        let ttl: i64 = redis::cmd("TTL").arg(&key).query(&mut connection).unwrap();
        let count = count.map(|count| String::from_utf8(count).unwrap());
        (count, (86_000..=86_400).contains(&ttl))
    }

    /// Runs a job attempt by attempt until it is gone; returns the state after each.
    fn walk(&self, name: &str, turns: [By; 2], options: &[&str]) -> Vec<Seen> {
        let queue = format!("--queue={name}");
        let args = [&["interop:journal", name, &*queue][..], options].concat();
        let line = self.laravel.run(&args).remove(0);
        let uuid = line["uuid"].as_str().unwrap();
        let mut seen = Vec::new();
        for by in turns.iter().cycle().take(8) {
            let from = self.events(name).len();
            let args = ["--once", "--sleep=0", "--backoff=0", &*queue];
            let mut worker = match by {
                By::Php => self.php_worker(&args),
                By::Rust => self.worker(&args),
            };
            worker.succeeds_within(SOON);
            let key = self.laravel.key(&format!("queues:{name}"));
            let waiting =
                self.redis.length(&key) + self.redis.scores(&format!("{key}:delayed")).len();
            let (count, has_end) = self.count(uuid);
            seen.push((
                self.events(name).split_off(from),
                count,
                has_end,
                waiting == 1,
            ));
            if waiting == 0 {
                break;
            }
        }
        seen
    }
}

fn exceptions_are_counted_together(version: u8) {
    #[rustfmt::skip]
    let cases: [(&str, &[&str]); 4] = [
        ("twice", &["--max-exceptions=2", "--tries=10", "--script=throw,throw,ok"]),
        ("once", &["--max-exceptions=1", "--tries=10", "--script=throw,ok"]),
        // Releases are attempts, but no exceptions; a count that is not reached stays.
        ("between", &["--max-exceptions=2", "--tries=10", "--script=throw,release:0,release:0,throw,ok"]),
        ("not-reached", &["--max-exceptions=3", "--tries=10", "--script=throw,throw,ok"]),
    ];
    let scene = Counted {
        scene: Scene::new::<&str>(version, &[], INTEROP_MAPPINGS),
    };
    for (name, options) in cases {
        let walk = |who: &str, turns| scene.walk(&format!("{name}-{who}"), turns, options);
        let reference = walk("php", [By::Php, By::Php]);
        let last = reference.last().unwrap();
        let is_failed = last.0.iter().any(|event| event.starts_with("failed"));
        assert_eq!(is_failed, name != "not-reached", "{reference:?}");
        assert_eq!(last.1.is_none(), is_failed, "{reference:?}");
        for (who, turns) in [
            ("rust", [By::Rust, By::Rust]),
            ("php-rust", [By::Php, By::Rust]),
            ("rust-php", [By::Rust, By::Php]),
        ] {
            let seen = walk(who, turns);
            assert_eq!(seen, reference, "Laravel {version} {name} {who}");
        }
    }
}

on_every_laravel!(exceptions_are_counted_together);
