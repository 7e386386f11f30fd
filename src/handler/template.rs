//! Texts with properties of a job in them: `"podcast:{podcast.id}"`.
//!
//! Braces enclose a path of names through objects and arrays, starting at the job
//! object; `{{` and `}}` are literal braces. A value becomes text by PHP's string
//! conversion: `true` is `1`, `false` and null are empty, floats have 14 digits.
//! A value without text (an array, an object, an enum case, whose value is not in
//! the payload) and a path that leads nowhere are errors: an empty key would make
//! unrelated jobs share a lock.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::cache::float_text;
use crate::php::json::Graph;
use crate::php::{Key, Value};
use crate::shown;

/// A text with paths in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Path),
}

/// Names that lead from the job object to one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(Vec<String>);

/// A text that is not a valid template.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{template}` is no template: {problem}; write `{{name}}` or `{{name.name}}` for a property of the job, `{{{{` and `}}}}` for braces"
)]
pub struct TemplateError {
    template: String,
    problem: &'static str,
}

/// A path that does not lead to a text in this job.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path leads nowhere.
    #[error(
        "the job has no `{path}`: {owner} has no `{name}` (there are: {there}); properties that equal their default are not in the bytes since Laravel 9.4"
    )]
    Nowhere {
        /// The path as written.
        path: Path,
        /// The value in which the missing name was looked up.
        owner: String,
        /// The name.
        name: String,
        /// The names that exist there.
        there: String,
    },
    /// The value has no text.
    #[error("`{path}` of the job is {found}, which has no text")]
    NoText {
        /// The path as written.
        path: Path,
        /// The kind of the value.
        found: String,
    },
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.0.join("."))
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let wrong = |problem| TemplateError {
            template: text.to_owned(),
            problem,
        };
        let (mut parts, mut literal) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(wrong("a `}` closes nothing"));
            }
            let end = rest.find(['{', '}']);
            let end = end.filter(|end| rest[*end..].starts_with('}'));
            let end = end.ok_or_else(|| wrong("a `{` is not closed"))?;
            let path: Vec<String> = rest[..end].split('.').map(str::to_owned).collect();
            if path
                .iter()
                .any(|name| name.trim() != name || name.is_empty())
            {
                return Err(wrong("a path has an empty name or blanks"));
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Path(Path(path)));
            rest = &rest[end + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Path {
    /// Reads a template that consists of exactly one path.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let template = Template::deserialize(deserializer)?;
        match <[Part; 1]>::try_from(template.parts) {
            Ok([Part::Path(path)]) => Ok(path),
            _ => Err(serde::de::Error::custom(
                "expected one property of the job, such as `{muted}`",
            )),
        }
    }
}

impl Template {
    /// A text without paths; braces are literal.
    pub fn literal(text: impl Into<String>) -> Self {
        let text = text.into();
        let parts = if text.is_empty() {
            Vec::new()
        } else {
            vec![Part::Text(text)]
        };
        Self { parts }
    }

    /// Whether the template has paths, so that rendering needs the job.
    pub fn has_paths(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Path(_)))
    }

    /// Renders the text for a job.
    ///
    /// # Errors
    ///
    /// A path leads nowhere, or to something without a text.
    pub fn render(&self, job: &Value) -> Result<String, PathError> {
        let graph = self.has_paths().then(|| Graph::new(job));
        let mut text = String::new();
        for part in &self.parts {
            match (part, &graph) {
                (Part::Path(path), Some(graph)) => text.push_str(&path.text(job, graph)?),
                (Part::Text(literal), _) => text.push_str(literal),
                (Part::Path(_), None) => {}
            }
        }
        Ok(text)
    }
}

impl Path {
    /// Finds the value that the path leads to.
    ///
    /// # Errors
    ///
    /// The path leads nowhere.
    pub fn find<'v>(&self, job: &'v Value, graph: &Graph<'v>) -> Result<&'v Value, PathError> {
        let mut value = graph.resolve(job);
        for (depth, name) in self.0.iter().enumerate() {
            let next = match value {
                Value::Object(object) => object.get(name),
                Value::Array(array) => array.get(name.as_bytes()),
                _ => None,
            };
            let Some(next) = next else {
                let owner = match depth {
                    0 => "it".to_owned(),
                    _ => format!("`{}`, {},", Self(self.0[..depth].to_vec()), kind(value)),
                };
                return Err(PathError::Nowhere {
                    path: self.clone(),
                    owner,
                    name: name.clone(),
                    there: names(value),
                });
            };
            value = graph.resolve(next);
        }
        Ok(value)
    }

    fn text<'v>(&self, job: &'v Value, graph: &Graph<'v>) -> Result<String, PathError> {
        let value = self.find(job, graph)?;
        let no_text = |found: String| PathError::NoText {
            path: self.clone(),
            found,
        };
        match value {
            Value::Null | Value::Bool(false) => Ok(String::new()),
            Value::Bool(true) => Ok("1".to_owned()),
            Value::Int(value) => Ok(value.to_string()),
            Value::Float(value) => Ok(float_text(value.get())),
            Value::String(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(no_text("a string that is not UTF-8".to_owned())),
            },
            value => Err(no_text(kind(value))),
        }
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Object(object) => format!("an object of {}", shown::name(object.class.as_str())),
        Value::Array(_) => "an array".to_owned(),
        Value::Enum(case) => format!(
            "the case {}::{}, whose value is not in the bytes",
            shown::name(case.class.as_str()),
            shown::name(&String::from_utf8_lossy(&case.case))
        ),
        value => value.kind_name().into_owned(),
    }
}

/// Names of members, as many and as much of each as can be read.
fn names(value: &Value) -> String {
    const MOST: usize = 12;
    let names: Vec<String> = match value {
        Value::Object(object) => crate::php::json::object_members(object)
            .into_iter()
            .take(MOST + 1)
            .map(|(name, _)| shown::name(&name).into_owned())
            .collect(),
        Value::Array(array) => array
            .pairs
            .iter()
            .take(MOST + 1)
            .map(|(key, _)| match key {
                Key::Int(key) => key.to_string(),
                Key::String(key) => shown::name(&String::from_utf8_lossy(key)).into_owned(),
            })
            .collect(),
        _ => Vec::new(),
    };
    match names.len() {
        0 => "none".to_owned(),
        1..=MOST => names.join(", "),
        _ => format!("{}, ..", names[..MOST].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        let model = b"O:45:\"Illuminate\\Contracts\\Database\\ModelIdentifier\":2:{s:5:\"class\";s:3:\"Pod\";s:2:\"id\";i:7;}";
        let mut bytes = b"O:3:\"Job\":9:{s:7:\"podcast\";".to_vec();
        bytes.extend_from_slice(model);
        bytes.extend_from_slice(
            b"s:5:\"\0*\0on\";b:1;s:3:\"off\";b:0;s:4:\"none\";N;s:5:\"price\";d:0.1;",
        );
        bytes.extend_from_slice(
            b"s:4:\"list\";a:2:{i:0;s:1:\"x\";s:1:\"k\";a:1:{s:1:\"d\";d:1.0E+25;}}",
        );
        bytes.extend_from_slice(
            b"s:4:\"self\";r:1;s:4:\"suit\";E:11:\"Suit:Hearts\";s:3:\"raw\";s:1:\"\xff\";}",
        );
        Value::from_bytes(&bytes).unwrap()
    }

    #[test]
    fn long_names_of_a_job_are_cut_in_errors() {
        let long = "n".repeat(1000);
        for job in [
            format!("O:3:\"Job\":1:{{s:1000:\"{long}\";N;}}"),
            format!("a:1:{{s:1000:\"{long}\";N;}}"),
            format!("O:3:\"Job\":1:{{s:1:\"a\";O:1000:\"{long}\":0:{{}}}}"),
        ] {
            let job = Value::from_bytes(job.as_bytes()).unwrap();
            let template: Template = "{a.b}".parse().unwrap();
            let error = template.render(&job).unwrap_err().to_string();
            let cut = format!("{}…", &long[..255]);
            assert!(error.contains(&cut) && error.len() < 600, "{error}");
        }
    }

    #[test]
    fn properties_become_text_as_php_makes_it() {
        #[rustfmt::skip]
        let rows = [
            ("", ""), ("plain", "plain"), ("{{x}}", "{x}"), ("}}{{", "}{"),
            ("podcast:{podcast.id}", "podcast:7"), ("{on}|{off}|{none}", "1||"),
            ("{price}/{list.0}/{list.k.d}", "0.1/x/1.0E+25"), ("{self.self.podcast.id}{{", "7{"),
        ];
        for (template, expected) in rows {
            let parsed: Template = template.parse().unwrap();
            assert_eq!(parsed.render(&job()).unwrap(), expected, "{template}");
        }
        assert_eq!(Template::literal("{x}").render(&job()).unwrap(), "{x}");
    }

    #[test]
    fn what_has_no_text_is_an_error_and_no_empty_key() {
        #[rustfmt::skip]
        let rows = [
            ("{nope}", "the job has no `{nope}`: it has no `nope` (there are: podcast, on, off, none, price, list, self, suit, raw)"),
            ("{podcast.uuid}", "`{podcast}`, an object of Illuminate\\Contracts\\Database\\ModelIdentifier, has no `uuid` (there are: class, id)"),
            ("{on.id}", "`{on}`, a bool, has no `id` (there are: none)"),
            ("{podcast}", "`{podcast}` of the job is an object of"),
            ("{list}", "`{list}` of the job is an array, which has no text"),
            ("{suit}", "the case Suit::Hearts, whose value is not in the bytes"),
            ("{raw}", "a string that is not UTF-8"),
        ];
        for (template, expected) in rows {
            let error = template.parse::<Template>().unwrap().render(&job());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn mistakes_in_braces_are_named() {
        for text in [
            "{", "}", "{}", "{a", "{a{b}}", "{a.}", "{ a }", "x}", "{a}}",
        ] {
            assert!(text.parse::<Template>().is_err(), "{text}");
        }
        let error = "{a".parse::<Template>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`{a` is no template: a `{` is not closed; write `{name}` or `{name.name}` for a property of the job, `{{` and `}}` for braces"
        );
    }
}
