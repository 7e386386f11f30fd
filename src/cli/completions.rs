//! `completions` and `man`, generated from clap's description of the command line.

use std::process::ExitCode;

use clap_complete::Shell;

use super::output;

/// Arguments of `completions`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Shell to print the script for
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, &name, &mut script);
    let mut script = String::from_utf8(script)?;
    if args.shell == Shell::Bash {
        script += &colons_of_bash(&name);
    }
    output::data(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// A shell function that wraps the generated one, for names with colons.
///
/// Bash treats a colon as the end of a word (`COMP_WORDBREAKS`): it splits `queue:w` into three words and
/// completes only `w`. The function splits words at blanks and removes from the answers the part that bash already
/// has.
fn colons_of_bash(name: &str) -> String {
    const FUNCTION: &str = r#"
_NAME_with_colons() {
    local line="${COMP_LINE:0:COMP_POINT}" words=() given i
    read -r -a words <<< "$line"
    if [[ -z "$line" || "$line" == *[[:blank:]] ]]; then
        words+=("")
    fi
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    given="${words[COMP_CWORD]}"
    _NAME "${words[0]}" "$given" "${words[COMP_CWORD - 1]}"
    if [[ "$given" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        given="${given%"${given##*:}"}"
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]="${COMPREPLY[i]#"$given"}"
        done
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _NAME_with_colons -o nosort -o bashdefault -o default COMMAND
else
    complete -F _NAME_with_colons -o bashdefault -o default COMMAND
fi
"#;
    // The name that clap_complete gives its function.
    let function = name.replace('-', "__");
    FUNCTION
        .replace("_NAME", &format!("_{function}"))
        .replace("COMMAND", name)
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
