//! artisand
#![forbid(unsafe_code)]
pub mod connection;
pub mod handler;
pub mod payload;
pub mod php;
pub mod queue;
pub mod time;
