//! The `artisand` command: the handlers that need no Rust.

use std::process::ExitCode;

fn main() -> ExitCode {
    artisand::cli::run(artisand::handler::Registry::new())
}
