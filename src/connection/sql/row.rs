//! Values of statements, and rows of text.

use std::borrow::Cow;

/// A value of a statement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Param<'a> {
    /// A number.
    Int(i64),
    /// Text.
    Text(&'a str),
    /// No value.
    Null,
}

impl<'a> From<&'a str> for Param<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Param<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Param<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl<'a> From<Option<&'a str>> for Param<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }
}

/// A row of text columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(pub(super) Vec<Option<Vec<u8>>>);

impl Row {
    /// The bytes of a column; `None` for NULL, and if there is no such column.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column)?.as_deref()
    }

    /// The bytes of a column, taken out of the row; empty for NULL.
    pub fn into_bytes(mut self, column: usize) -> Vec<u8> {
        let column = self.0.get_mut(column).and_then(Option::take);
        column.unwrap_or_default()
    }

    /// The text of a column, with replacement characters for bytes that are not UTF-8.
    pub fn text(&self, column: usize) -> Option<Cow<'_, str>> {
        self.bytes(column).map(String::from_utf8_lossy)
    }

    /// The number in a column.
    pub fn int(&self, column: usize) -> Option<i64> {
        self.text(column)?.trim().parse().ok()
    }
}
