//! What holds for any input of a parser: the fuzz targets check it, and `tests/it/fuzz.rs` for the inputs in `seeds/`.

pub mod beanstalkd;
pub mod config;
pub mod env;
pub mod http;
pub mod manifest;
pub mod payload;
pub mod php;
pub mod pool;
mod secrets;
