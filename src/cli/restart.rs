//! `queue:restart`, `canary:resume`

use std::process::ExitCode;

use super::GlobalArgs;
use super::style::Screen;
use crate::cache::{Cache, keys};
use crate::config::{self, Config};
use crate::php::Value;
use crate::time::Clock;

/// The cache through which the app signals its workers; `None` after printing an error.
pub(super) fn shared_cache(config: &Config, screen: &mut Screen) -> anyhow::Result<Option<Cache>> {
    let (name, cache) = config::app_cache(config)?;
    if cache.is_shared() {
        return Ok(Some(cache));
    }
    screen.error(&format!(
        "No worker would see it: `cache.default` is [{name}], which is not shared between processes"
    ))?;
    Ok(None)
}

pub(super) async fn run(global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut screen = Screen::new(global);
    let Some(cache) = shared_cache(&config, &mut screen)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = Value::Int(Clock::System.now().0);
    cache.forever(keys::RESTART, &now).await?;
    screen.info("Broadcasting queue restart signal")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn resume_canaries(global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut screen = Screen::new(global);
    let Some(cache) = shared_cache(&config, &mut screen)? else {
        return Ok(ExitCode::FAILURE);
    };
    // Milliseconds, so that two calls in a row are two signals.
    let now = jiff::Timestamp::now().as_millisecond();
    cache.forever(keys::CANARY_RESUME, &Value::Int(now)).await?;
    screen.info("Canaries that stopped themselves run jobs again")?;
    Ok(ExitCode::SUCCESS)
}
