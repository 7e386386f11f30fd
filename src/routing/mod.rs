//! Routing: which handler runs a job, by its class and `artisand.toml`.

mod builtin;
mod canary;
mod registry;

pub use builtin::{Discard, Log};
pub use canary::Canary;
pub use registry::{
    HandlerChoice, Mapping, MappingError, Mode, OnMismatch, Registry, Route, Router, Runner,
    UnmappedPolicy,
};
