//! Shared parts of tests: fixtures, servers, Laravel.

pub(crate) mod apps;
pub(crate) mod beanstalkd;
pub(crate) mod chromium;
pub(crate) mod cluster;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod fixtures;
pub(crate) mod jobs_table;
pub(crate) mod journal;
pub(crate) mod laravel;
#[cfg(feature = "sqs")]
pub(crate) mod moto;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod scene;
pub(crate) mod sentinel;
pub(crate) mod sql;
#[cfg(feature = "sqs")]
pub(crate) mod sqs;
pub(crate) mod stores;
