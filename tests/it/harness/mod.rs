//! Shared parts of tests: fixtures, servers, Laravel.

pub(crate) mod apps;
pub(crate) mod beanstalkd;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod fixtures;
pub(crate) mod jobs_table;
pub(crate) mod journal;
pub(crate) mod laravel;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod scene;
pub(crate) mod sql;
pub(crate) mod stores;
