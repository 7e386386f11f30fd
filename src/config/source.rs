//! The text of `artisand.toml`, read into tables with all its mistakes, said in the words of the file.
//!
//! TOML itself and serde stop at the first mistake and speak of their own types. Here, what
//! is wrong is taken out and the rest is read again, so that all mistakes are found at once,
//! each with its place. Values are only shown where they cannot be secrets.

use std::ops::Range;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::{File, MapTable};
use crate::app;

/// A mistake in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Where, in bytes.
    pub(super) offset: usize,
    /// What is wrong and what would work.
    pub(super) problem: String,
}

/// Most mistakes that are looked for in TOML itself, and most in the settings.
const MOST: usize = 50;

/// Keys that hold names of classes, channels and commands, which are no secrets.
const NAMES: [&str; 9] = [
    "job",
    "listener",
    "event",
    "notification",
    "channel",
    "mailable",
    "broadcast",
    "command",
    "string",
];

/// Keys that are easily written outside of their table.
const TABLES: [(&str, &[&str]); 7] = [
    (
        "worker",
        &[
            "concurrency",
            "threads",
            "grace",
            "control_plane",
            "last_errors",
            "heartbeat",
            "ledger",
            "timezone",
        ],
    ),
    (
        "php",
        &[
            "binary",
            "processes",
            "max_jobs",
            "max_time",
            "memory",
            "boot_timeout",
        ],
    ),
    ("http", &["listen", "token", "hosts"]),
    ("otlp", &["endpoint"]),
    ("unmapped", &["policy"]),
    ("redis", &["sentinels", "service"]),
    (
        "connections.redis",
        &[
            "url",
            "host",
            "port",
            "socket",
            "cluster",
            "username",
            "password",
            "database",
            "prefix",
            "retry_after",
        ],
    ),
];

/// Keys that lead to a value, and the value.
struct Part<'t, 'i> {
    path: Vec<Step>,
    value: &'t Spanned<DeValue<'i>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Position(usize),
}

/// Reads the file's text: what can be understood of it, and what is wrong with the rest.
///
/// A mapping with a mistake is left out as a whole.
pub(super) fn read(text: &str) -> (File, Vec<Mistake>) {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let mut mistakes = Vec::new();
    let mut damaged: Vec<usize> = Vec::new();
    let mut is_readable = errors.len() <= MOST;
    for error in errors.iter().take(MOST) {
        let offset = error.span().unwrap_or_default().start;
        let part = part_at(table.get_ref(), offset);
        let said = part
            .as_ref()
            .and_then(|part| syntax(text, part, error.message()));
        is_readable &= said.is_some();
        let offset = match &part {
            Some(part) if said.is_some() => part.value.span().start,
            _ => offset,
        };
        let problem = said.unwrap_or_else(|| error.message().to_owned());
        damaged.extend(part.and_then(|part| part.mapping()));
        add(&mut mistakes, offset, problem);
    }
    // Each round takes something out, or gives up.
    for _ in 0..if is_readable { MOST } else { 0 } {
        let error = match File::deserialize(Deserializer::from(table.clone())) {
            Ok(mut file) => {
                let mut position = 0;
                file.map.retain(|mapping| {
                    let escaped = escaped_name(text, mapping);
                    let is_whole = escaped.is_none() && !damaged.contains(&position);
                    if let Some((offset, problem)) = escaped {
                        add(&mut mistakes, offset, problem);
                    }
                    position += 1;
                    is_whole
                });
                mistakes.sort_by_key(|mistake| mistake.offset);
                return (file, mistakes);
            }
            Err(error) => error,
        };
        let offset = error.span().unwrap_or_default().start;
        let Some(part) = part_at(table.get_ref(), offset) else {
            add(&mut mistakes, offset, error.message().to_owned());
            break;
        };
        let (mapping, misses) = (part.mapping(), error.message().starts_with("missing field"));
        let is_follow_up = mapping.is_some_and(|position| damaged.contains(&position));
        if !(misses && is_follow_up) {
            add(&mut mistakes, offset, part.in_words(error.message()));
        }
        damaged.extend(mapping.filter(|_| !is_follow_up));
        let path = part.wrong_path();
        match mapping {
            // The places of the others stay: what is missing is filled with what is surely understood.
            Some(position) if misses => complete(table.get_mut(), position),
            _ => remove(table.get_mut(), &path),
        }
    }
    mistakes.sort_by_key(|mistake| mistake.offset);
    (File::default(), mistakes)
}

/// What is said twice of one place is one mistake.
fn add(mistakes: &mut Vec<Mistake>, offset: usize, problem: String) {
    if !mistakes.iter().any(|mistake| mistake.offset == offset) {
        mistakes.push(Mistake { offset, problem });
    }
}

/// What keeps a value from being TOML, where that is a matter of quotes; `None` for anything else.
fn syntax(text: &str, part: &Part<'_, '_>, message: &str) -> Option<String> {
    let key = part.key();
    let written = text.get(part.value.span()).unwrap_or_default();
    if key == "canary" && written.ends_with('%') {
        return Some(canary(written));
    }
    if message.starts_with("missing escaped value") || message.contains("unicode") {
        return Some(single_quotes(text, key, part.value.span()));
    }
    if !message.starts_with("string values must be quoted") {
        return None;
    }
    Some(match key {
        _ if NAMES.contains(&key) => {
            format!("`{key}` is a text, which needs quotes: `{key} = '{written}'`")
        }
        _ => format!("`{key}` is a text, which needs quotes"),
    })
}

/// Says how to write a text with backslashes.
fn single_quotes(text: &str, key: &str, span: Range<usize>) -> String {
    let written = text.get(span).unwrap_or_default();
    let inner = written.trim_matches('"').replace(r"\\", r"\");
    let example = if NAMES.contains(&key) && !inner.contains(['\'', '\n']) {
        format!(": `{key} = '{inner}'`")
    } else {
        format!(" for `{key}`")
    };
    format!("a backslash in double quotes begins an escape; use single quotes{example}")
}

fn canary(written: &str) -> String {
    let number = written.trim_end_matches('%').trim();
    let is_number = number.parse::<f64>().is_ok();
    let number = if is_number { number } else { "10" };
    format!("`canary` is a number, per cent of the jobs: write `canary = {number}`")
}

/// A name of a mapping in which double quotes made something else of a backslash and a letter.
fn escaped_name(text: &str, mapping: &MapTable) -> Option<(usize, String)> {
    let beside = [("event", &mapping.event), ("channel", &mapping.channel)];
    let beside = beside.into_iter();
    let beside = beside.filter_map(|(key, name)| Some((key, name.as_ref()?)));
    let mut names = mapping.kinds().chain(beside);
    let (key, name) = names.find(|(_, name)| name.get_ref().contains(char::is_control))?;
    let span = name.span();
    Some((span.start, single_quotes(text, key, span)))
}

impl Part<'_, '_> {
    fn key(&self) -> &str {
        let mut keys = self.path.iter().rev().filter_map(|step| match step {
            Step::Key(key) => Some(&**key),
            Step::Position(_) => None,
        });
        keys.next().unwrap_or_default()
    }

    /// The mapping that it is in.
    fn mapping(&self) -> Option<usize> {
        match &*self.path {
            [Step::Key(key), Step::Position(position), ..] if key == "map" => Some(*position),
            _ => None,
        }
    }

    /// What has to go so that the rest can be read: never a part of a setting.
    fn wrong_path(&self) -> Vec<Step> {
        let is_named = |key: &str| matches!(key, "map" | "connections" | "limiters");
        let depth = match self.path.first() {
            Some(Step::Key(key)) if is_named(key) => 3,
            _ => 2,
        };
        self.path.iter().take(depth).cloned().collect()
    }

    /// What serde says of it, in the words of the file.
    fn in_words(&self, message: &str) -> String {
        let key = self.key();
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        if let (Some(rest), [found, known @ ..]) = (message.strip_prefix("unknown "), &*quoted) {
            let what = if rest.starts_with("field") {
                "key"
            } else {
                "name"
            };
            let meant = app::nearest(found, known.iter().copied());
            let meant = meant.map_or(String::new(), |key| format!("; did you mean `{key}`?"));
            let elsewhere = TABLES.iter().find(|(_, keys)| keys.contains(found));
            let elsewhere = elsewhere.filter(|_| self.path.len() == 1);
            let meant = elsewhere.map_or(meant, |(table, _)| format!("; write it below [{table}]"));
            // They are known only to say why there is no such thing.
            let known = known
                .iter()
                .filter(|key| !matches!(**key, "closure" | "batch"));
            let known: Vec<String> = known.map(|key| format!("`{key}`")).collect();
            let known = known.join(", ");
            return format!("unknown {what} `{found}`{meant} (there are: {known})");
        }
        if message.starts_with("missing field") {
            let missing = quoted.first().unwrap_or(&"");
            return match self.mapping() {
                Some(_) => format!("the mapping has no `{missing}`"),
                None => format!("`{key}` has no `{missing}`"),
            };
        }
        if message.starts_with("invalid value: integer `0`, expected a nonzero") {
            return format!("`{key}` is 0, expected a whole number from 1");
        }
        let Some((_, expected)) = message.split_once(", expected ") else {
            return message.to_owned();
        };
        if !message.starts_with("invalid type") {
            return message.to_owned();
        }
        let value = self.value.get_ref();
        match (key, value.as_str()) {
            ("canary", Some(written)) => return canary(written),
            ("exec", Some(line)) => return exec(line),
            _ => {}
        }
        let found = match value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let expected = match expected {
            "a string" | "path string" => "a text in quotes",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "f64" => "a number",
            number if number.ends_with(char::is_numeric) || number.ends_with("size") => {
                "a whole number without quotes"
            }
            other => other,
        };
        format!("`{key}` is {found}, expected {expected}")
    }
}

/// Says how to write a command line.
fn exec(line: &str) -> String {
    let needs_shell = line.contains(['|', '&', ';', '<', '>', '$', '*', '"', '\'', '\\', '`']);
    let words: Vec<&str> = if needs_shell {
        vec!["sh", "-c", line]
    } else {
        line.split_whitespace().collect()
    };
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let list = words.join(", ");
    format!("`exec` is a text, expected a list of the program and its arguments: `exec = [{list}]`")
}

/// The smallest key or value around an offset.
fn part_at<'t, 'i>(table: &'t DeTable<'i>, offset: usize) -> Option<Part<'t, 'i>> {
    /// Everything in a table, with the spans of its keys and values; what is inside comes later.
    fn collect<'t, 'i>(
        table: &'t DeTable<'i>,
        path: &[Step],
        all: &mut Vec<(Range<usize>, Part<'t, 'i>)>,
    ) {
        for (key, value) in table {
            let step = Step::Key(key.get_ref().clone().into_owned());
            let path = [path, &[step]].concat();
            let part = Part {
                path: path.clone(),
                value,
            };
            all.push((key.span(), part));
            collect_value(value, path, all);
        }
    }

    fn collect_value<'t, 'i>(
        value: &'t Spanned<DeValue<'i>>,
        path: Vec<Step>,
        all: &mut Vec<(Range<usize>, Part<'t, 'i>)>,
    ) {
        match value.get_ref() {
            DeValue::Table(table) => collect(table, &path, all),
            DeValue::Array(list) => {
                for (position, inner) in list.iter().enumerate() {
                    let path = [&path[..], &[Step::Position(position)]].concat();
                    collect_value(inner, path, all);
                }
            }
            _ => {}
        }
        all.push((value.span(), Part { path, value }));
    }

    let mut all = Vec::new();
    collect(table, &[], &mut all);
    let is_around = |span: &Range<usize>| span.start <= offset && offset <= span.end;
    let around = all.into_iter().filter(|(span, _)| is_around(span));
    // The end of one is where another begins, at times.
    let smallest = around.min_by_key(|(span, part)| {
        (
            span.end == offset,
            span.len(),
            std::cmp::Reverse(part.path.len()),
        )
    });
    smallest.map(|(_, part)| part)
}

/// Gives a mapping a handler.
fn complete(table: &mut DeTable<'_>, position: usize) {
    let handler = Spanned::new(0..0, DeValue::String("log".into()));
    if let Some(DeValue::Array(list)) = table.get_mut("map").map(Spanned::get_mut)
        && let Some(DeValue::Table(mapping)) = list.get_mut(position).map(Spanned::get_mut)
    {
        mapping.insert(Spanned::new(0..0, "handler".into()), handler);
    }
}

/// Takes out what a path leads to.
fn remove(table: &mut DeTable<'_>, path: &[Step]) {
    match path {
        [Step::Key(key)] => {
            table.remove(&**key);
        }
        [Step::Key(key), rest @ ..] => {
            if let Some(value) = table.get_mut(&**key) {
                remove_inside(value.get_mut(), rest);
            }
        }
        _ => {}
    }
}

fn remove_inside(value: &mut DeValue<'_>, path: &[Step]) {
    match (value, path) {
        (DeValue::Table(table), path) => remove(table, path),
        (DeValue::Array(list), [Step::Position(position), rest @ ..]) => {
            if let Some(element) = list.get_mut(*position) {
                remove_inside(element.get_mut(), rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line and text of each mistake, and the number of mappings that are left.
    fn mistakes(text: &str) -> (Vec<String>, usize) {
        let (file, mistakes) = read(text);
        let line = |offset: usize| text[..offset].matches('\n').count() + 1;
        let said = mistakes.iter();
        let said = said.map(|mistake| format!("{}: {}", line(mistake.offset), mistake.problem));
        (said.collect(), file.map.len())
    }

    #[test]
    fn mistakes_are_said_in_the_words_of_the_file() {
        let map = |line: &str| format!("[[map]]\n{line}\n");
        #[rustfmt::skip]
        let rows = [
            (map("job = \"App\\Jobs\\SendReceipt\"\nhandler = 'log'"),
                r"2: a backslash in double quotes begins an escape; use single quotes: `job = 'App\Jobs\SendReceipt'`"),
            // All of them are escapes that TOML knows.
            (map("listener = \"app\\news\\best\"\nhandler = 'log'"),
                r"2: a backslash in double quotes begins an escape; use single quotes: `listener = 'app\news\best'`"),
            (map("job = \"App\\\\Jobs\\unit\"\nhandler = 'log'"),
                r"2: a backslash in double quotes begins an escape; use single quotes: `job = 'App\Jobs\unit'`"),
            ("[connections.redis]\npassword = \"a\\q\"".to_owned(),
                "2: a backslash in double quotes begins an escape; use single quotes for `password`"),
            (map("job = App\\Jobs\\X\nhandler = 'log'"), r"2: `job` is a text, which needs quotes: `job = 'App\Jobs\X'`"),
            ("[connections.redis]\npassword = s3cret".to_owned(), "2: `password` is a text, which needs quotes"),
            (map("job = 'A'\nhandler = 'log'\ncanary = \"10%\""), "4: `canary` is a number, per cent of the jobs: write `canary = 10`"),
            (map("job = 'A'\nhandler = 'log'\ncanary = 2.5%"), "4: `canary` is a number, per cent of the jobs: write `canary = 2.5`"),
            (map("job = 'A'\nhandler = { exec = \"python3 x.py\" }"),
                r#"3: `exec` is a text, expected a list of the program and its arguments: `exec = ["python3", "x.py"]`"#),
            (map("job = 'A'\nhandler = { exec = 'a | b' }"),
                r#"3: `exec` is a text, expected a list of the program and its arguments: `exec = ["sh", "-c", "a | b"]`"#),
            ("[worker]\nconcurency = 3".to_owned(),
                "2: unknown key `concurency`; did you mean `concurrency`? (there are: `concurrency`, `threads`, `grace`, `control_plane`, `last_errors`, `heartbeat`, `ledger`, `timezone`)"),
            ("[worker]\nzzz = 3".to_owned(),
                "2: unknown key `zzz` (there are: `concurrency`, `threads`, `grace`, `control_plane`, `last_errors`, `heartbeat`, `ledger`, `timezone`)"),
            (map("job = 'A'"), "1: the mapping has no `handler`"),
            ("[connections.redis]\nport = '6379'".to_owned(), "2: `port` is a text, expected a whole number without quotes"),
            ("[connections.redis]\npassword = 12345".to_owned(), "2: `password` is a whole number, expected a text in quotes"),
            ("[worker]\ncontrol_plane = 'no'".to_owned(), "2: `control_plane` is a text, expected true or false"),
            ("app = ['x']".to_owned(), "1: `app` is a list, expected a text in quotes"),
            (map("jobb = 'A'\nhandler = 'log'"),
                "2: unknown key `jobb`; did you mean `job`? (there are: `job`, `listener`, `event`, `notification`, `channel`, `mailable`, `broadcast`, `command`, `string`, `handler`, `concurrency`, `middleware`, `debounce`, `canary`, `mode`, `on_mismatch`, `failed`, `events`, `unique`)"),
            ("concurrency = 4".to_owned(),
                "1: unknown key `concurrency`; write it below [worker] (there are: `app`, `manifest`, `settings`, `laravel`, `connections`, `redis`, `worker`, `php`, `horizon`, `pulse`, `http`, `otlp`, `unmapped`, `map`, `limiters`)"),
            ("[php]\nevents = 'some'".to_owned(), "2: `events` is `some`, expected `none`, `failures` or `all`"),
            ("[php]\npayload_hooks = 'never'".to_owned(), "2: unknown name `never` (there are: `ask`, `skip`)"),
            ("[php]\nhooks = 'ask'".to_owned(),
                "2: unknown key `hooks` (there are: `queue`, `binary`, `app`, `processes`, `max_jobs`, `max_time`, `memory`, `boot_timeout`, `events`, `payload_hooks`)"),
            ("[php]\nprocesses = 0".to_owned(), "2: `processes` is 0, expected a whole number from 1"),
            ("not toml".to_owned(), "1: key with no value, expected `=`"),
            ("app = \"x\nlaravel = 3".to_owned(), "1: invalid basic string, expected `\"`"),
        ];
        for (text, expected) in rows {
            assert_eq!(mistakes(&text).0, [expected], "{text}");
        }
    }

    #[test]
    fn a_text_that_is_full_of_mistakes_or_deep_is_given_up_soon() {
        let began = std::time::Instant::now();
        for text in [
            "x y\n".repeat(50_000),
            "a = s3cret\n".repeat(50_000),
            "[[map]]\n".repeat(10_000),
            "[worker]\n".repeat(10_000),
            format!("a = {}", "[".repeat(100_000)),
            format!("a = {}", "{a=".repeat(100_000)),
            "a.".repeat(100_000),
        ] {
            let said = read(&text).1.len();
            assert!((1..=2 * MOST).contains(&said), "{said}: {}", &text[..20]);
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    #[test]
    fn all_mistakes_are_found_at_once_and_the_rest_is_read() {
        let text = r#"
ap = "x"
[worker]
concurency = 3
grace = "long"
[connections.redis]
port = 7
prefx = "a"
[[map]]
job = "App\Jobs\X"
handler = { exec = "x y" }
[[map]]
job = 'A'
[[map]]
job = 'B'
handler = 'log'
mod = 'shadow'
canary = '5%'
[[map]]
job = 'C'
handler = 'log'
"#;
        let (said, mappings) = mistakes(text);
        let places: Vec<&str> = said
            .iter()
            .filter_map(|said| said.split(':').next())
            .collect();
        assert_eq!(
            places,
            ["2", "4", "5", "8", "10", "11", "12", "17", "18"],
            "{said:?}"
        );
        assert_eq!(mappings, 1);
        let (file, _) = read(text);
        assert_eq!(file.connections["redis"].port, Some(7));
    }
}
