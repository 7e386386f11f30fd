//! JSON as PHP's `json_encode` writes it by default: `\/` and `\uXXXX`.

use std::fmt::Write as _;

/// One object, built field by field; like Laravel, it omits values that are falsy in PHP.
#[derive(Debug)]
pub(super) struct PhpJson(String);

impl PhpJson {
    pub(super) fn new() -> Self {
        Self(String::from("{"))
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.string(key);
        self.0.push(':');
    }

    /// Adds text unless it is falsy in PHP: empty or `"0"`.
    #[must_use]
    pub(super) fn text(mut self, key: &str, text: Option<&str>) -> Self {
        if let Some(text) = text.filter(|text| !matches!(*text, "" | "0")) {
            self.key(key);
            self.string(text);
        }
        self
    }

    /// Adds text, including falsy text.
    #[must_use]
    pub(super) fn any_text(mut self, key: &str, text: &str) -> Self {
        self.key(key);
        self.string(text);
        self
    }

    /// Adds a number, including zero.
    #[must_use]
    pub(super) fn number(mut self, key: &str, number: impl std::fmt::Display) -> Self {
        self.key(key);
        write!(self.0, "{number}").expect("a string takes everything");
        self
    }

    /// Adds a value that is JSON already.
    #[must_use]
    pub(super) fn value(self, key: &str, json: Option<&str>) -> Self {
        match json {
            Some(json) => self.number(key, json),
            None => self,
        }
    }

    /// Adds a fact that is true.
    #[must_use]
    pub(super) fn flag(self, key: &str, is_so: bool) -> Self {
        if is_so { self.number(key, true) } else { self }
    }

    fn string(&mut self, text: &str) {
        crate::payload::write_json_text(&mut self.0, text);
    }

    /// The object with a line end.
    pub(super) fn line(self) -> String {
        self.object() + "\n"
    }

    /// The object.
    pub(super) fn object(self) -> String {
        self.0 + "}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_as_php_escapes_it() {
        let line = PhpJson::new()
            .text("job", Some("App\\É/\u{1f600}\"\n"))
            .text("no", Some("0"))
            .number("n", 0)
            .line();
        assert_eq!(
            line,
            "{\"job\":\"App\\\\\\u00c9\\/\\ud83d\\ude00\\\"\\n\",\"n\":0}\n"
        );
    }
}
