//! Integration tests: the codec against fixtures and PHP, the queue against
//! real servers, the worker beside real Laravel.

#![expect(
    clippy::unwrap_used,
    reason = "helpers here are tests too, but not `#[test]` functions"
)]

mod batch_jobs;
mod batches;
mod beanstalkd;
mod bench;
mod cli;
mod cluster;
mod codec;
mod commands;
mod connection;
mod contract;
mod database_queue;
mod dispatch;
mod docs;
mod doctor;
mod failed;
mod faults;
mod file_app;
mod follow;
#[cfg(feature = "http")]
mod fuzz;
mod harness;
mod horizon;
mod http;
mod kinds;
mod layers;
mod limits;
mod listen;
mod live;
mod log;
mod make_handler;
mod middleware;
mod migrate;
mod model;
mod models;
mod no_rust;
mod operations;
#[cfg(feature = "otlp")]
mod otlp;
mod own_worker;
mod package;
mod page;
mod payloads;
mod persistent;
mod programs;
mod pulse;
mod sentinel;
#[cfg(feature = "sqs")]
mod sqs;
mod stale;
mod supervised;
mod tail;
mod telemetry;
mod testing;
mod tls;
#[cfg(feature = "tui")]
mod top;
mod worker;
