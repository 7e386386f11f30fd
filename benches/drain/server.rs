//! A private Redis, what is pushed to it, and what it says of its work.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use artisand::connection::{Redis, RedisOptions};
use artisand::queue::{Queue as _, QueueName, RedisQueue, RedisQueueOptions};

pub(crate) const PREFIX: &str = "laravel-database-";
/// The prefix of Horizon's keys.
pub(crate) const HORIZON: &str = "laravel_horizon:";

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

/// A port of this machine that is free at this moment.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    pub(crate) fn start() -> Self {
        let port = free_port();
        let child = Command::new("redis-server")
            .args("--bind 127.0.0.1 --save  --appendonly no --port".split(' '))
            .arg(port.to_string())
            // Of calls that take a millisecond or longer.
            .args("--slowlog-log-slower-than 1000 --slowlog-max-len 1000".split(' '))
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (php-interop/setup.sh --host-only)");
        let server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.try_connection().is_none() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn try_connection(&self) -> Option<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection().ok()?;
        let pong = redis::cmd("PING").query::<String>(&mut connection);
        pong.ok().map(|_| connection)
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        self.try_connection().unwrap()
    }

    pub(crate) fn queue(&self) -> RedisQueue {
        let mut options = RedisOptions {
            prefix: PREFIX.into(),
            ..RedisOptions::default()
        };
        options
            .apply_url(&format!("redis://127.0.0.1:{}", self.port))
            .unwrap();
        RedisQueue::new(Redis::new(&options).unwrap(), RedisQueueOptions::default())
    }

    pub(crate) async fn fill(&self, payloads: &[Vec<u8>]) {
        let queue = self.queue();
        for chunk in payloads.chunks(1000) {
            let pushed = queue.push(&QueueName::from("default"), chunk).await;
            pushed.unwrap();
        }
    }

    /// Writes what Horizon's queue writes about jobs that it pushes.
    pub(crate) fn record(&self, payloads: &[Vec<u8>]) {
        let mut connection = self.connection();
        for chunk in payloads.chunks(1000) {
            let mut pipeline = redis::pipe();
            for payload in chunk {
                // `{"uuid":"..",`
                let id = std::str::from_utf8(&payload[9..45]).unwrap();
                let (key, moment) = (format!("{HORIZON}{id}"), "1760000000.1234");
                for list in ["recent_jobs", "pending_jobs"] {
                    let list = format!("{HORIZON}{list}");
                    (pipeline.cmd("ZADD").arg(list))
                        .arg(format!("-{moment}"))
                        .arg(id);
                }
                (pipeline.cmd("HSET").arg(&key))
                    .arg(&["id", id, "connection", "redis", "queue", "default"])
                    .arg(&["name", "App\\Jobs\\Counted", "status", "pending"])
                    .arg("payload")
                    .arg(payload)
                    .arg(&["created_at", moment, "updated_at", moment]);
                pipeline.cmd("EXPIREAT").arg(&key).arg(4_000_000_000_u64);
            }
            let _: redis::Value = pipeline.query(&mut connection).unwrap();
        }
    }

    /// Pushes jobs that became due long ago.
    pub(crate) fn delay(&self, payloads: &[Vec<u8>]) {
        let mut connection = self.connection();
        for chunk in payloads.chunks(1000) {
            let mut command = redis::cmd("ZADD");
            command.arg(format!("{PREFIX}queues:default:delayed"));
            for payload in chunk {
                command.arg(1_760_000_000).arg(payload);
            }
            let _: usize = command.query(&mut connection).unwrap();
        }
    }

    fn info(&self, section: &str) -> String {
        let mut info = redis::cmd("INFO");
        info.arg(section).query(&mut self.connection()).unwrap()
    }

    /// Number of commands that clients sent; commands that scripts call are no round trips.
    pub(crate) fn client_commands(&self) -> u64 {
        calls(&self.info("commandstats"))
    }

    /// Number of all commands, those of scripts too.
    pub(crate) fn commands(&self) -> u64 {
        number(&self.info("stats"), "total_commands_processed:")
    }

    /// Seconds of processor time that Redis has used.
    pub(crate) fn processor_seconds(&self) -> f64 {
        seconds(&self.info("cpu"))
    }

    /// The longest call of a script since the start, in milliseconds; 0 if none took a millisecond.
    pub(crate) fn longest_script(&self) -> f64 {
        let mut command = redis::cmd("SLOWLOG");
        command.arg("GET").arg(-1);
        let calls: Vec<redis::Value> = command.query(&mut self.connection()).unwrap();
        let micros = calls.iter().filter_map(|call| {
            let redis::Value::Array(fields) = call else {
                return None;
            };
            let words: Vec<String> = redis::from_redis_value_ref(fields.get(3)?).ok()?;
            let is_script = words.first()?.to_lowercase().starts_with("eval");
            let micros: u32 = redis::from_redis_value_ref(fields.get(2)?).ok()?;
            is_script.then(|| f64::from(micros))
        });
        micros.fold(0.0, f64::max) / 1e3
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Number of commands that clients sent, of `INFO commandstats`.
pub(crate) fn calls(info: &str) -> u64 {
    let calls = |name: &str| -> u64 {
        let name = format!("cmdstat_{name}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&*name));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse().unwrap())
    };
    ["evalsha", "eval", "blpop"].into_iter().map(calls).sum()
}

/// Seconds of processor time, of `INFO cpu`.
pub(crate) fn seconds(info: &str) -> f64 {
    number::<f64>(info, "used_cpu_user:") + number::<f64>(info, "used_cpu_sys:")
}

fn number<N: std::str::FromStr<Err: std::fmt::Debug>>(info: &str, name: &str) -> N {
    let value = info.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim().parse().unwrap()
}
