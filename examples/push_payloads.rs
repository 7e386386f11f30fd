//! Pushes captured payloads onto a queue, with unchanged bytes.
//!
//! ```sh
//! cargo run --example push_payloads -- fixtures/payloads/laravel-13.jsonl redis://127.0.0.1:6379 laravel-database-
//! ```

#![expect(clippy::print_stdout, reason = "a command line says what it did")]

use artisand::connection::{Redis, RedisOptions};
use artisand::queue::{Queue, QueueName, RedisQueue, RedisQueueOptions};

/// The fields of a line of `fixtures/payloads/*.jsonl` that this program needs.
#[derive(serde::Deserialize)]
struct Captured {
    /// Where the payload was found: `list` or `delayed`.
    key: String,
    /// The payload.
    element: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, url, prefix] = args.as_slice() else {
        return Err("usage: push_payloads FILE URL PREFIX".into());
    };
    let mut options = RedisOptions {
        prefix: prefix.clone(),
        ..RedisOptions::default()
    };
    options.apply_url(url)?;
    let queue = RedisQueue::new(Redis::new(&options)?, RedisQueueOptions::default());
    let mut payloads = Vec::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let captured: Captured = serde_json::from_str(line)?;
        if captured.key == "list" {
            payloads.push(captured.element.into_bytes());
        }
    }
    queue.push(&QueueName::from("default"), &payloads).await?;
    println!("{} payloads pushed", payloads.len());
    Ok(())
}
