//! Finds commands by their names: abbreviated as in artisan, or misspelt.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::UsageError;

/// Most names that a message proposes.
const MOST: usize = 3;

/// Replaces an abbreviated command name in the arguments of a process by the whole one.
pub(super) fn complete(command: &clap::Command, args: &mut [OsString]) -> Result<(), UsageError> {
    let Some(place) = place_of_command(command, args) else {
        return Ok(());
    };
    // What is no text is no name either: clap says so.
    if let Some(given) = args[place].to_str() {
        args[place] = find(command, given)?.into();
    }
    Ok(())
}

/// Where the name of the command stands: options of all commands may come before it.
fn place_of_command(command: &clap::Command, args: &[OsString]) -> Option<usize> {
    let takes_value = |option: &str| {
        let mut all = command.get_arguments();
        all.any(|arg| arg.get_long() == Some(option) && arg.get_action().takes_values())
    };
    let mut place = 1;
    loop {
        let arg = args.get(place)?.to_string_lossy();
        if !arg.starts_with('-') {
            return Some(place);
        }
        let has_value = arg.strip_prefix("--").is_some_and(takes_value);
        place += if has_value { 2 } else { 1 };
    }
}

/// The whole name of the command that this name means.
///
/// # Source
///
/// `Symfony\Component\Console\Application::find`: each part between colons may be cut short, and must be so by itself.
pub(super) fn find(command: &clap::Command, given: &str) -> Result<String, UsageError> {
    let commands = command.get_subcommands();
    let mut names: Vec<(&str, &str)> = commands
        .flat_map(|sub| {
            let own = sub.get_name();
            let names = std::iter::once(own).chain(sub.get_all_aliases());
            names.map(move |name| (name, own))
        })
        .collect();
    names.sort_unstable();
    if names.iter().any(|(name, _)| *name == given) {
        return Ok(given.to_owned());
    }
    let parts: Vec<&str> = given.split(':').collect();
    let found: Vec<_> = names.iter().filter(|it| is_cut(&parts, it.0)).collect();
    let is_whole = |name: &str| name.split(':').count() == parts.len();
    if !found.iter().any(|(name, _)| is_whole(name)) {
        let near = nearest(given, names.iter().map(|(name, _)| *name));
        return Err(wrong(given, "is not defined", &near));
    }
    let is_listed = |wanted: &str| found.iter().any(|(name, _)| *name == wanted);
    let found: Vec<&str> = (found.iter())
        .filter(|(name, own)| name == own || !is_listed(own))
        .map(|(name, _)| *name)
        .collect();
    match found[..] {
        [name] => Ok(name.to_owned()),
        _ => Err(wrong(given, "is ambiguous", &found)),
    }
}

/// Whether these parts are beginnings of the first parts of a name.
fn is_cut(parts: &[&str], name: &str) -> bool {
    let mut whole = name.split(':');
    parts
        .iter()
        .all(|part| whole.next().is_some_and(|whole| whole.starts_with(part)))
}

fn wrong(given: &str, what: &str, meant: &[&str]) -> UsageError {
    let given = super::output::printable(given);
    let question = match meant.len() {
        0 => "",
        1 => " Did you mean this?\n",
        _ => " Did you mean one of these?\n",
    };
    let list = [&[question], meant].concat().join("\n  ⇂ ");
    UsageError(format!("Command \"{given}\" {what}.{list}"))
}

/// The names that are nearest to a misspelt one, the nearest first.
fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let distance = |name: &str| {
        if name.contains(given) {
            1
        } else {
            strsim::osa_distance(given, name)
        }
    };
    let mut near: Vec<(usize, &str)> = names.map(|name| (distance(name), name)).collect();
    near.sort_unstable();
    let best = near.first().map_or(0, |(distance, _)| *distance);
    near.retain(|(distance, _)| *distance <= best + 1 && *distance <= given.len().div_ceil(3));
    near.truncate(MOST);
    near.into_iter().map(|(_, name)| name).collect()
}

/// Makes clap propose the option that was begun, rather than one that only looks like it.
pub(super) fn propose_option(error: &mut clap::Error, command: &clap::Command, args: &[OsString]) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let Some(begun) = given.strip_prefix("--").filter(|begun| !begun.is_empty()) else {
        return;
    };
    let sub = place_of_command(command, args).and_then(|place| args[place].to_str());
    let sub = sub.and_then(|name| command.find_subcommand(name));
    let options = command
        .get_arguments()
        .chain(sub.into_iter().flat_map(clap::Command::get_arguments));
    let options: Vec<&str> = options.filter_map(clap::Arg::get_long).collect();
    let longer = options.iter().filter(|option| option.starts_with(begun));
    // Of those that continue it the shortest, as the least had to be added.
    let meant = longer.min_by_key(|option| option.len()).copied();
    if let Some(meant) = meant.or_else(|| nearest(begun, options.into_iter()).first().copied()) {
        error.insert(
            ContextKind::SuggestedArg,
            ContextValue::String(format!("--{meant}")),
        );
        // It shows the option that clap has guessed.
        error.remove(ContextKind::Usage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        let named = |names: &[&'static str]| {
            names
                .iter()
                .fold(clap::Command::new("artisand"), |command, name| {
                    command.subcommand(clap::Command::new(*name))
                })
        };
        let resume = clap::Command::new("queue:resume").visible_alias("queue:continue");
        named(&[
            "list",
            "doctor",
            "queue:work",
            "queue:retry",
            "queue:retry-batch",
            "queue:restart",
            "queue:peek",
            "config:check",
        ])
        .subcommand(resume)
        .arg(clap::Arg::new("app").long("app"))
    }

    #[test]
    fn names_may_be_cut_as_in_artisan() {
        #[rustfmt::skip]
        let rows = [
            ("queue:work",  Ok("queue:work")),
            ("q:w",         Ok("queue:work")),
            ("queue:w",     Ok("queue:work")),
            ("doc",         Ok("doctor")),
            ("c:c",         Ok("config:check")),
            ("q:con",       Ok("queue:continue")),
            ("queue:retry", Ok("queue:retry")),
            ("q:retry-",    Ok("queue:retry-batch")),
            ("q:ret",       Err("Command \"q:ret\" is ambiguous. Did you mean one of these?\n\n  ⇂ queue:retry\n  ⇂ queue:retry-batch")),
            ("queue:wrok",  Err("Command \"queue:wrok\" is not defined. Did you mean this?\n\n  ⇂ queue:work")),
            ("work",        Err("Command \"work\" is not defined. Did you mean this?\n\n  ⇂ queue:work")),
            ("nope",        Err("Command \"nope\" is not defined.")),
            ("qu:x",        Err("Command \"qu:x\" is not defined.")),
        ];
        for (given, expected) in rows {
            let found = find(&command(), given).map_err(|error| error.to_string());
            assert_eq!(
                found.as_deref().map_err(String::as_str),
                expected,
                "{given}"
            );
        }
    }

    #[test]
    fn options_may_stand_before_the_name() {
        let rows: [(&[&str], &str); 4] = [
            (
                &["artisand", "q:w", "--queue=a"],
                "artisand queue:work --queue=a",
            ),
            (
                &["artisand", "-v", "--app", "q:w", "doc"],
                "artisand -v --app q:w doctor",
            ),
            (
                &["artisand", "--app=q:w", "--no-ansi", "doc"],
                "artisand --app=q:w --no-ansi doctor",
            ),
            (&["artisand", "--app"], "artisand --app"),
        ];
        for (args, expected) in rows {
            let mut args: Vec<OsString> = args.iter().map(Into::into).collect();
            complete(&command(), &mut args).unwrap();
            let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            assert_eq!(args.join(" "), expected);
        }
    }
}
