//! `queue:prune-batches`

use std::process::ExitCode;

use super::failed::hours_ago;
use super::style::Screen;
use super::{GlobalArgs, output};
use crate::batch::Prune;
use crate::config::{self, Error};

/// Arguments of `queue:prune-batches`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct PruneArgs {
    /// The number of hours to retain batch data
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,

    /// The number of hours to retain unfinished batch data
    #[arg(long, value_name = "HOURS")]
    unfinished: Option<u32>,

    /// The number of hours to retain cancelled batch data
    #[arg(long, value_name = "HOURS")]
    cancelled: Option<u32>,
}

pub(super) async fn prune(args: PruneArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    if config.laravel().is_none() {
        return Err(Error::NoApp.into());
    }
    let batches = config::batches(&config)?;
    let mut screen = Screen::new(global);
    for (which, hours, what) in [
        (Prune::Finished, Some(args.hours), ""),
        (Prune::Unfinished, args.unfinished, "unfinished "),
        (Prune::Cancelled, args.cancelled, "cancelled "),
    ] {
        let Some(hours) = hours else {
            continue;
        };
        let count = match &batches {
            Some(batches) => batches.prune(which, hours_ago(hours)).await?,
            // As in Laravel, which deletes none there, because these batches expire by themselves.
            None => 0,
        };
        screen.info(&format!("{count} {what}entries deleted"))?;
    }
    if batches.is_none() {
        output::notice(
            "batches in DynamoDB are not pruned: they end by themselves (queue.batching.ttl)",
        );
    }
    Ok(ExitCode::SUCCESS)
}
