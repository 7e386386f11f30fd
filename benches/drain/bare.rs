//! The minimum for any worker: pops a batch with one script call and deletes it with one command.

use std::time::Instant;

use crate::payload;
use crate::report::Round;
use crate::server::{PREFIX, Server};

/// Names, and jobs per batch.
pub(crate) const BARE: [(&str, usize); 2] = [("bare loop of 64", 64), ("bare loop of 256", 256)];

const POP: &str = "
local jobs = redis.call('LRANGE', KEYS[1], 0, ARGV[2] - 1)
if #jobs == 0 then return jobs end
for i, job in ipairs(jobs) do
  jobs[i] = string.gsub(job, '\"attempts\":0', '\"attempts\":1', 1)
  redis.call('ZADD', KEYS[2], ARGV[1], jobs[i])
end
redis.call('LTRIM', KEYS[1], #jobs, -1)
return jobs";

pub(crate) async fn run(name: &str, batch: usize, jobs: usize) -> Round {
    let server = Server::start();
    server.fill(&payload::of_size(jobs, 710)).await;
    let script = redis::Script::new(POP);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let list = format!("{PREFIX}queues:default");
    let reserved = format!("{PREFIX}queues:default:reserved");
    let (mut done, mut commands) = (0, 0);
    let began = Instant::now();
    loop {
        let mut call = script.key(&list);
        call.key(&reserved).arg(1_760_000_090).arg(batch);
        let popped: Vec<Vec<u8>> = call.invoke_async(&mut connection).await.unwrap();
        if popped.is_empty() {
            break;
        }
        done += popped.len();
        commands += 2;
        let mut remove = redis::cmd("ZREM");
        remove.arg(&reserved).arg(&popped);
        let removed: usize = remove.query_async(&mut connection).await.unwrap();
        assert_eq!(removed, popped.len());
    }
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(done, jobs);
    Round {
        name: name.to_owned(),
        jobs,
        seconds,
        commands_per_job: crate::float(commands) / crate::float(jobs),
        micros: None,
        longest_script: None,
        memory: None,
    }
}
