//! What a failed job is called.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::StoredJob;

/// The displayed name of a failed job.
///
/// # Source
///
/// `Illuminate\Queue\Console\ListFailedCommand::extractJobName`, since 13.12.
pub fn class(payload: &[u8]) -> String {
    type Fields<'a> = HashMap<String, &'a RawValue>;
    fn text(fields: &Fields<'_>, name: &str) -> Option<String> {
        serde_json::from_str(fields.get(name)?.get()).ok()
    }
    let fields: Fields<'_> = serde_json::from_slice(payload).unwrap_or_default();
    let job = || text(&fields, "job");
    let data: Option<Fields<'_>> = fields
        .get("data")
        .and_then(|data| serde_json::from_str(data.get()).ok());
    let command = data.filter(|data| {
        let command = data.get("command");
        command.is_some_and(|command| command.get() != "null")
    });
    let found = match command {
        None => job(),
        Some(data) => text(&fields, "displayName")
            .filter(|name| !matches!(&**name, "" | "0"))
            .or_else(|| first_quoted(&text(&data, "command")?))
            .or_else(job),
    };
    found.unwrap_or_default()
}

fn first_quoted(text: &str) -> Option<String> {
    let mut rest = text;
    while let Some((_, inside)) = rest.split_once('"') {
        match inside.split_once('"') {
            Some(("", _)) => rest = inside,
            Some((quoted, _)) => return Some(quoted.to_owned()),
            None => return None,
        }
    }
    None
}

impl StoredJob {
    /// Class and message of the exception, as far as its text tells: it begins with both.
    pub fn exception_parts(&self) -> (&str, &str) {
        let line = self.exception.lines().next().unwrap_or_default();
        match line.split_once(": ") {
            Some((class, message)) if !class.contains(char::is_whitespace) => (class, message),
            // Without a message PHP writes `Class in file:line`.
            _ => match line.split_once(" in ") {
                Some((class, _)) if !class.contains(char::is_whitespace) => (class, ""),
                _ => ("", line),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_called_what_laravel_calls_them() {
        #[rustfmt::skip]
        let rows = [
            (r#"{"job":"A@b","displayName":"A","data":{"x":1}}"#, "A@b"),
            (r#"{"job":"A@b","displayName":"A","data":{"command":null}}"#, "A@b"),
            (r#"{"job":"A@b","displayName":"A","data":"text"}"#, "A@b"),
            (r#"{"job":"C@call","displayName":"A","data":{"command":"O:1:\"B\":0:{}"}}"#, "A"),
            (r#"{"job":"C@call","displayName":"","data":{"command":"O:1:\"B\":0:{}"}}"#, "B"),
            (r#"{"job":"C@call","displayName":7,"data":{"command":"s:0:\"\";s:1:\"x\""}}"#, ";s:1:"),
            (r#"{"job":"C@call","data":{"command":"nothing"}}"#, "C@call"),
            (r#"{"data":{"command":"nothing"}}"#, ""),
            ("[]", ""),
            ("not json", ""),
        ];
        for (payload, expected) in rows {
            assert_eq!(class(payload.as_bytes()), expected, "{payload}");
        }
    }

    #[test]
    fn exceptions_begin_with_their_class() {
        let rows = [
            (
                "RuntimeException: no: disk in /a.php:1\nStack",
                ("RuntimeException", "no: disk in /a.php:1"),
            ),
            ("App\\E in /a.php:3\nStack", ("App\\E", "")),
            ("some text: other", ("", "some text: other")),
            ("", ("", "")),
        ];
        for (exception, expected) in rows {
            let job = StoredJob {
                id: String::new(),
                connection: String::new(),
                queue: String::new(),
                payload: Vec::new(),
                exception: exception.to_owned(),
                failed_at: String::new(),
            };
            assert_eq!(job.exception_parts(), expected);
        }
    }
}
