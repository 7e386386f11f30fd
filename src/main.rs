//! The `artisand` command: the handlers that need no Rust.

use std::process::ExitCode;

use artisand::Registry;
use artisand::cli::Application;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: artisand::Jemalloc = artisand::Jemalloc;

fn main() -> ExitCode {
    Application::new(Registry::new())
        .named(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .run()
}
