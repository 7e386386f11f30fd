//! `completions` and `man`, made from the command line's own description.

use std::process::ExitCode;

use super::output;

/// Arguments of `completions`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "artisand", &mut script);
    output::data(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn man(command: &clap::Command) -> anyhow::Result<ExitCode> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let man = clap_mangen::Man::new(sub.clone());
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    output::data(&String::from_utf8(page)?)?;
    Ok(ExitCode::SUCCESS)
}
