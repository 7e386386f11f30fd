//! The command name in the arguments of `Artisan::queue`.

/// The first argument of a queued artisan command, split into name and rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLine<'a> {
    /// Name of the command, or its class.
    pub name: &'a str,
    /// The text after the name, if the argument is one line of text.
    pub rest: Option<&'a str>,
}

impl<'a> CommandLine<'a> {
    /// Splits the argument.
    ///
    /// Without parameters the text is parsed as a line, as if typed after `php
    /// artisan`; with parameters all of it is the name. A line that does not
    /// begin with a plain name (but with an option, or in quotes) is not split.
    ///
    /// # Source
    ///
    /// `Illuminate\Console\Application::parseCommand`.
    pub fn of(text: &'a str, has_parameters: bool) -> Self {
        let whole = Self {
            name: text,
            rest: None,
        };
        if has_parameters {
            return whole;
        }
        let line = text.trim_matches(is_blank);
        let Some((name, rest)) = line.split_once(is_blank) else {
            return Self {
                name: line,
                rest: None,
            };
        };
        if name.starts_with('-') || name.contains(['"', '\'', '\\']) {
            return whole;
        }
        Self {
            name,
            rest: Some(rest.trim_start_matches(is_blank)),
        }
    }
}

/// Whether Symfony ends a word at this character when it splits a line.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_command_ends_where_its_line_of_arguments_begins() {
        #[rustfmt::skip]
        let rows = [
            ("mail:send", false, "mail:send", None),
            ("mail:send", true, "mail:send", None),
            ("mail:send 1 --queue=high", false, "mail:send", Some("1 --queue=high")),
            (" mail:send\t 1", false, "mail:send", Some("1")),
            ("mail:send ", false, "mail:send", None),
            ("mail:send 1", true, "mail:send 1", None),
            ("-v mail:send", false, "-v mail:send", None),
            ("'mail:send' 1", false, "'mail:send' 1", None),
            (r"App\Console\Send", false, r"App\Console\Send", None),
            ("", false, "", None),
        ];
        for (text, has_parameters, name, rest) in rows {
            let found = CommandLine::of(text, has_parameters);
            assert_eq!(
                found,
                CommandLine { name, rest },
                "{text:?} {has_parameters}"
            );
        }
    }
}
