//! The report of `doctor` and `config:check`: what was found, and what to do about it.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::{GlobalArgs, output};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

/// One line of the report.
#[derive(Debug, serde::Serialize)]
struct Finding {
    level: Level,
    check: &'static str,
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// What was checked, line by line.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Finding>);

impl Report {
    pub(super) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.push(Level::Ok, check, found.into(), None);
    }

    pub(super) fn warn(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Level::Warning, check, found.into(), Some(remedy.into()));
    }

    pub(super) fn error(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Level::Error, check, found.into(), Some(remedy.into()));
    }

    fn push(&mut self, level: Level, check: &'static str, found: String, remedy: Option<String>) {
        self.0.push(Finding {
            level,
            check,
            found,
            remedy,
        });
    }

    /// Adds all of another report.
    pub(super) fn extend(&mut self, part: Self) {
        self.0.extend(part.0);
    }

    /// The levels of its findings.
    #[cfg(test)]
    pub(super) fn levels(&self) -> String {
        let levels = self.0.iter().map(|finding| match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        });
        levels.collect::<Vec<_>>().join(" ")
    }

    fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    /// Prints the report; the exit code shows the worst finding.
    pub(super) fn finish(
        self,
        global: &GlobalArgs,
        is_json: bool,
        is_strict: bool,
    ) -> anyhow::Result<ExitCode> {
        let (errors, warnings) = (self.count(Level::Error), self.count(Level::Warning));
        let text = if is_json {
            let json =
                serde_json::json!({"findings": self.0, "errors": errors, "warnings": warnings});
            format!("{json}\n")
        } else {
            self.text(global.is_coloured())
        };
        output::data(&text)?;
        Ok(ExitCode::from(match (errors, warnings) {
            (1.., _) => 2,
            (0, 1..) if is_strict => 1,
            _ => 0,
        }))
    }

    pub(super) fn text(&self, is_coloured: bool) -> String {
        let mut text = String::from("\n");
        for finding in &self.0 {
            let (word, colour) = match finding.level {
                Level::Ok => ("OK   ", "32;1"),
                Level::Warning => ("WARN ", "33;1"),
                Level::Error => ("ERROR", "31;1"),
            };
            let word = if is_coloured {
                format!("\x1b[{colour}m{word}\x1b[0m")
            } else {
                word.to_owned()
            };
            let found = output::printable(&finding.found).into_owned();
            let _ = writeln!(text, "  {word}  {:<12}  {found}", finding.check);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "  {:21}-> {}", "", output::printable(remedy));
            }
        }
        let plural = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let errors = plural(self.count(Level::Error), "error");
        let warnings = plural(self.count(Level::Warning), "warning");
        text + &format!("\n  {errors}, {warnings}\n\n")
    }
}
