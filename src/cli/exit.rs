//! Exit codes: Laravel's, and 2 for errors that the user has to correct.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done, also after a stop order |
//! | 1 | error, or stopped by a signal with work left (`queue:retry`, `queue:retry-batch`, `dispatch`, `bench`) |
//! | 2 | wrong usage or configuration |
//! | 12 | memory limit (`queue:work`) |
//! | 137 | a blocking handler did not return after its timeout (`queue:work`) |

use std::process::ExitCode;

/// Wrong usage or configuration.
pub(super) const USAGE: u8 = 2;

/// A combination of arguments that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The exit code for an error that ended a command.
pub(super) fn code_of(error: &anyhow::Error) -> ExitCode {
    let config = error.downcast_ref::<crate::config::Error>();
    // Laravel ends with 1 where a connection is not configured, and where the app cannot be loaded.
    let is_laravels = matches!(
        config,
        Some(
            crate::config::Error::UnknownConnection { .. }
                | crate::config::Error::Driver { .. }
                | crate::config::Error::Settings { .. }
        )
    );
    let is_usage = (config.is_some() && !is_laravels) || error.is::<UsageError>();
    ExitCode::from(if is_usage { USAGE } else { 1 })
}
