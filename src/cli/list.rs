//! `list` and `help` in artisan's format: commands grouped by namespace.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::{names, output};

/// Arguments of `list`, as given.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ListArgs {
    /// Namespace whose commands are listed [default: all]
    #[arg(value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Print names and descriptions alone
    #[arg(long)]
    raw: bool,

    /// Format of the list
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    #[default]
    Txt,
    Json,
}

/// Arguments of `help`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct HelpArgs {
    /// Name of the command
    #[arg(value_name = "COMMAND", default_value = "help")]
    command_name: String,
}

/// A line of the list for one command.
struct Line {
    name: String,
    text: String,
}

fn namespace_of(name: &str) -> &str {
    name.split_once(':').map_or("", |(namespace, _)| namespace)
}

fn lines(command: &clap::Command, namespace: Option<&str>) -> Vec<Line> {
    let line = |command: &clap::Command| {
        let aliases: Vec<&str> = command.get_visible_aliases().collect();
        let aliases = if aliases.is_empty() {
            String::new()
        } else {
            format!("[{}] ", aliases.join("|"))
        };
        let about = command.get_about().map(ToString::to_string);
        Line {
            name: command.get_name().to_owned(),
            text: aliases + &about.unwrap_or_default(),
        }
    };
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut lines: Vec<Line> = shown.map(line).collect();
    lines.retain(|line| namespace.is_none_or(|only| namespace_of(&line.name) == only));
    // Commands without a namespace come first.
    lines.sort_by(|a, b| (namespace_of(&a.name), &a.name).cmp(&(namespace_of(&b.name), &b.name)));
    lines
}

/// Options of all commands, each with the first line of its help.
fn options(command: &clap::Command) -> Vec<Line> {
    let option = |arg: &clap::Arg| {
        let short = arg
            .get_short()
            .map_or("    ".to_owned(), |short| format!("-{short}, "));
        let value = match arg.get_value_names() {
            Some([value, ..]) if arg.get_action().takes_values() => format!("={value}"),
            _ => String::new(),
        };
        Line {
            name: format!("{short}--{}{value}", arg.get_long().unwrap_or_default()),
            text: arg.get_help().map(ToString::to_string).unwrap_or_default(),
        }
    };
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    options.map(option).collect()
}

fn columns(text: &mut String, lines: &[&Line], width: usize) {
    for Line { name, text: about } in lines {
        writeln!(text, "  {name:width$}  {about}").expect("a string takes everything");
    }
}

/// The commands as Symfony's `--format=json` names them, without their options.
fn json(command: &clap::Command, lines: &[Line]) -> String {
    let commands: Vec<_> = lines
        .iter()
        .map(|line| serde_json::json!({"name": line.name, "description": line.text}))
        .collect();
    let namespaces: Vec<_> = lines
        .chunk_by(|a, b| namespace_of(&a.name) == namespace_of(&b.name))
        .map(|group| {
            let id = match namespace_of(&group[0].name) {
                "" => "_global",
                id => id,
            };
            let names: Vec<&str> = group.iter().map(|line| &*line.name).collect();
            serde_json::json!({"id": id, "commands": names})
        })
        .collect();
    let application = serde_json::json!({
        "name": command.get_name(), "version": command.get_version(),
    });
    let list = serde_json::json!({
        "application": application, "commands": commands, "namespaces": namespaces,
    });
    format!("{list}\n")
}

pub(super) fn list(args: &ListArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    command.build();
    let namespace = args.namespace.as_deref();
    let lines = lines(&command, namespace);
    if let Some(namespace) = namespace.filter(|_| lines.is_empty()) {
        anyhow::bail!("There are no commands defined in the \"{namespace}\" namespace.");
    }
    if args.format == Format::Json {
        output::data(&json(&command, &lines))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = |lines: &[Line]| lines.iter().map(|line| line.name.len()).max();
    if args.raw {
        let wide = width(&lines).unwrap_or_default();
        let lines = lines
            .iter()
            .map(|line| format!("{:wide$}   {}\n", line.name, line.text));
        output::data(&lines.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let version = command.get_version().unwrap_or_default();
    let mut text = format!(
        "{} {version}\n\nUsage:\n  command [options] [arguments]\n\nOptions:\n",
        command.get_name()
    );
    let options = options(&command);
    let wide = width(&options).unwrap_or_default();
    columns(&mut text, &options.iter().collect::<Vec<_>>(), wide);
    match namespace {
        None => text.push_str("\nAvailable commands:\n"),
        Some(name) => {
            writeln!(text, "\nAvailable commands for the \"{name}\" namespace:")
                .expect("a string takes everything");
        }
    }
    let wide = width(&lines).unwrap_or_default();
    for group in lines.chunk_by(|a, b| namespace_of(&a.name) == namespace_of(&b.name)) {
        let name = namespace_of(&group[0].name);
        if namespace.is_none() && !name.is_empty() {
            writeln!(text, " {name}").expect("a string takes everything");
        }
        columns(&mut text, &group.iter().collect::<Vec<_>>(), wide);
    }
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn help(args: &HelpArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    command.build();
    let name = names::find(&command, &args.command_name)?;
    let found = command.find_subcommand_mut(name);
    let help = found.map(clap::Command::render_help);
    output::data(&help.unwrap_or_default().to_string())?;
    Ok(ExitCode::SUCCESS)
}
