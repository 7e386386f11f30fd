//! artisand
#![forbid(unsafe_code)]
pub mod app;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod connection;
pub mod failed;
pub mod handler;
pub mod payload;
pub mod php;
pub mod queue;
pub mod time;
pub mod worker;
