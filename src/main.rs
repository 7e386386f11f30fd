//! The `artisand` command: the handlers that need no Rust.

use std::process::ExitCode;

use artisand::Registry;
use artisand::cli::Application;

fn main() -> ExitCode {
    Application::new(Registry::new())
        .named(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .run()
}
