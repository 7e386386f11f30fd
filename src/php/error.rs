//! The error of the codec: the problem, its byte offset, and the path to the value.

use std::fmt::{self, Write as _};

use super::text::DisplayBytes;

/// An error met while reading or writing PHP's serialize format.
///
/// One pointer wide, because it travels through the parser's hot path.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    offset: Option<usize>,
    /// Innermost segment first; it grows while the error is passed outwards.
    path: Vec<Segment>,
}

/// One step on the path from the outermost value to the place of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// An integer array key or the position in a sequence.
    Index(i64),
    /// A string array key or a property, without visibility marks.
    Name(Box<[u8]>),
}

/// The kind of problem.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The input ended inside a value, or a length or count promises more bytes than are left.
    Eof,
    /// A byte that is not allowed here.
    Unexpected {
        /// The byte that was found.
        found: u8,
        /// What the format requires here.
        expected: &'static str,
    },
    /// A number that PHP would not read.
    BadNumber,
    /// A class name that PHP refuses, or that is not UTF-8.
    BadClassName,
    /// A length or count too large for any memory.
    LengthOverflow,
    /// More levels of nesting than allowed.
    DepthExceeded {
        /// The limit.
        limit: usize,
    },
    /// `r:` or `R:` to a slot that does not exist, is not an object, or is the reference itself.
    BadReference {
        /// The slot number as written.
        slot: u64,
    },
    /// `r:` or `R:` to a slot after a `C:` body that only its class can read: PHP may count values in that body.
    UncertainReference {
        /// The slot number as written.
        slot: u64,
        /// Class of the first such object.
        class: Box<str>,
    },
    /// A value that contains itself, though a tree was requested.
    Cycle,
    /// References would expand to more values than allowed.
    ExpansionExceeded,
    /// Bytes after the end of the value.
    TrailingData,
    /// A string that is not UTF-8, though text was requested.
    NotUtf8,
    /// A value of another type than requested.
    Mismatch {
        /// The requested type.
        expected: Box<str>,
        /// The type that was found.
        found: Box<str>,
    },
    /// A message from a `Deserialize` or `Serialize` implementation.
    Message(Box<str>),
    /// A Rust value that has no counterpart in PHP.
    Unsupported(&'static str),
}

/// The broad class of an error, for callers that decide what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// The input is incomplete.
    Eof,
    /// Not PHP's serialize format.
    Syntax,
    /// Valid, but beyond a limit that protects this process, or undecidable without the PHP class.
    Limit,
    /// Valid, but not of the requested shape.
    Data,
}

impl Error {
    pub(crate) fn new(kind: Kind, offset: usize) -> Self {
        Self(Box::new(Inner {
            kind,
            offset: Some(offset),
            path: Vec::new(),
        }))
    }

    pub(crate) fn without_offset(kind: Kind) -> Self {
        Self(Box::new(Inner {
            kind,
            offset: None,
            path: Vec::new(),
        }))
    }

    pub(crate) fn mismatch(expected: impl Into<Box<str>>, found: impl Into<Box<str>>) -> Self {
        Self::without_offset(Kind::Mismatch {
            expected: expected.into(),
            found: found.into(),
        })
    }

    /// Sets the offset if the error has none yet.
    pub(crate) fn at(mut self, offset: usize) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    pub(crate) fn inside(mut self, segment: Segment) -> Self {
        self.0.path.push(segment);
        self
    }

    /// The kind of problem.
    pub fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// Byte offset in the input; `None` for errors while writing.
    pub fn offset(&self) -> Option<usize> {
        self.0.offset
    }

    /// Path from the outermost value to the place of the error, outermost first.
    pub fn path(&self) -> impl Iterator<Item = &Segment> {
        self.0.path.iter().rev()
    }

    /// The broad class of the error.
    pub fn category(&self) -> Category {
        match self.0.kind {
            Kind::Eof => Category::Eof,
            Kind::Unexpected { .. }
            | Kind::BadNumber
            | Kind::BadClassName
            | Kind::LengthOverflow
            | Kind::BadReference { .. }
            | Kind::TrailingData => Category::Syntax,
            Kind::DepthExceeded { .. }
            | Kind::ExpansionExceeded
            | Kind::UncertainReference { .. } => Category::Limit,
            Kind::Cycle
            | Kind::NotUtf8
            | Kind::Mismatch { .. }
            | Kind::Message(_)
            | Kind::Unsupported(_) => Category::Data,
        }
    }
}

/// Most bytes of a path, and of what is wrong there, that are shown.
const MOST_SHOWN: usize = 1000;

/// Writes the beginning of a text that may hold names of any length: they are data of strangers.
struct Cut<'a, 'f> {
    to: &'a mut fmt::Formatter<'f>,
    /// `None` once something was left out.
    room: Option<usize>,
}

impl<'a, 'f> Cut<'a, 'f> {
    fn new(to: &'a mut fmt::Formatter<'f>) -> Self {
        let room = Some(MOST_SHOWN);
        Self { to, room }
    }
}

impl fmt::Write for Cut<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some(room) = self.room else {
            return Ok(());
        };
        self.room = room.checked_sub(text.len());
        if self.room.is_some() {
            return self.to.write_str(text);
        }
        self.to.write_str(&text[..text.floor_char_boundary(room)])?;
        self.to.write_str("..")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.path.is_empty() {
            f.write_str("`")?;
            let mut shown = Cut::new(f);
            for (depth, segment) in self.path().enumerate() {
                match segment {
                    Segment::Index(index) => write!(shown, "[{index}]")?,
                    Segment::Name(name) if depth == 0 => write!(shown, "{}", DisplayBytes(name))?,
                    Segment::Name(name) => write!(shown, ".{}", DisplayBytes(name))?,
                }
            }
            f.write_str("`: ")?;
        }
        let mut shown = Cut::new(f);
        match &self.0.kind {
            Kind::Eof => shown.write_str("the input ends inside a value")?,
            Kind::Unexpected { found, expected } => {
                write!(
                    shown,
                    "expected {expected}, found `{}`",
                    DisplayBytes(&[*found])
                )?;
            }
            Kind::BadNumber => shown.write_str("not a number that PHP reads")?,
            Kind::BadClassName => shown.write_str("not a class name")?,
            Kind::LengthOverflow => shown.write_str("a length beyond any memory")?,
            Kind::DepthExceeded { limit } => write!(shown, "nested deeper than {limit} levels")?,
            Kind::BadReference { slot } => {
                write!(shown, "no value that a reference to slot {slot} could mean")?;
            }
            Kind::UncertainReference { slot, class } => write!(
                shown,
                "a reference to slot {slot} behind an object of class `{class}` that wrote itself (`C:`): \
                 how many slots are in there only the class knows"
            )?,
            Kind::Cycle => shown.write_str("the value contains itself")?,
            Kind::ExpansionExceeded => shown.write_str("references expand to too many values")?,
            Kind::TrailingData => shown.write_str("data after the end of the value")?,
            Kind::NotUtf8 => shown.write_str("expected text, found a string that is not UTF-8")?,
            Kind::Mismatch { expected, found } => {
                write!(shown, "expected {expected}, found {found}")?;
            }
            Kind::Message(message) => shown.write_str(message)?,
            Kind::Unsupported(what) => write!(shown, "PHP has nothing for {what}")?,
        }
        match self.0.offset {
            Some(offset) => write!(f, " (byte {offset})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("offset", &self.0.offset)
            .field("path", &self.path().collect::<Vec<_>>())
            .finish()
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::without_offset(Kind::Message(message.to_string().into()))
    }

    fn invalid_type(
        unexpected: serde::de::Unexpected<'_>,
        expected: &dyn serde::de::Expected,
    ) -> Self {
        Self::mismatch(expected.to_string(), without_content(unexpected))
    }

    fn invalid_value(
        unexpected: serde::de::Unexpected<'_>,
        expected: &dyn serde::de::Expected,
    ) -> Self {
        Self::mismatch(
            expected.to_string(),
            format!("{} that does not fit", without_content(unexpected)),
        )
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        let names: Vec<String> = expected.iter().map(|name| format!("`{name}`")).collect();
        Self::mismatch(
            format!("one of {}", names.join(", ")),
            "a name that is none of them",
        )
    }

    fn missing_field(field: &'static str) -> Self {
        // Since Laravel 9.4, properties equal to their class default are not written.
        Self::without_offset(Kind::Message(
            format!("property `{field}` is not in the object (Laravel leaves out properties equal to their class default)").into(),
        ))
    }
}

/// The type of the value, without its content, which may be a secret: error messages are logged.
fn without_content(unexpected: serde::de::Unexpected<'_>) -> &'static str {
    use serde::de::Unexpected as Found;
    match unexpected {
        Found::Bool(_) => "a bool",
        Found::Unsigned(_) | Found::Signed(_) => "an int",
        Found::Float(_) => "a float",
        Found::Char(_) | Found::Str(_) => "a string",
        Found::Bytes(_) => "bytes",
        Found::Unit | Found::Option => "null",
        Found::Seq => "a list",
        Found::Map => "a map",
        _ => "another type",
    }
}

impl serde::ser::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::without_offset(Kind::Message(message.to_string().into()))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::{Error as _, Unexpected};

    use super::*;

    #[test]
    fn messages_say_of_what_type_a_value_is_and_not_what_is_in_it() {
        let rows = [
            (Unexpected::Bool(true), "a bool"),
            (Unexpected::Unsigned(7), "an int"),
            (Unexpected::Signed(-7), "an int"),
            (Unexpected::Float(7.5), "a float"),
            (Unexpected::Char('s'), "a string"),
            (Unexpected::Str("secret"), "a string"),
            (Unexpected::Bytes(b"secret"), "bytes"),
            (Unexpected::Unit, "null"),
            (Unexpected::Option, "null"),
            (Unexpected::Seq, "a list"),
            (Unexpected::Map, "a map"),
            (Unexpected::Other("secret"), "another type"),
        ];
        for (unexpected, found) in rows {
            let error = Error::invalid_type(unexpected, &"x");
            assert_eq!(error.to_string(), format!("expected x, found {found}"));
        }
        let error = Error::unknown_variant("secret", &["A", "B"]);
        assert_eq!(
            error.to_string(),
            "expected one of `A`, `B`, found a name that is none of them"
        );
    }
}
