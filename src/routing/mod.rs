//! Routing: which handler runs a job, by its class and `artisand.toml`.

mod builtin;
mod canary;
mod dispatched;
mod registry;

pub use builtin::{Discard, Log};
pub use canary::Canary;
pub(crate) use dispatched::DispatchedType;
pub(crate) use registry::Telling;
pub use registry::{
    FailedHook, HandlerChoice, Mapping, MappingError, Mode, OnMismatch, PhpEvents, Registry, Route,
    Router, Runner, UnmappedPolicy,
};
