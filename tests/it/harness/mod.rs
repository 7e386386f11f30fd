//! What several tests need: fixtures, servers, Laravel.

pub(crate) mod fixtures;
