//! Statements with their parameters as literals: `MySQL` and `PostgreSQL` answer only such statements in text.

use std::borrow::Cow;

use super::options::DatabaseKind;
use super::row::Param;
use crate::connection::record::Value;

/// A statement with its parameters as literals.
pub(super) fn with_literals(kind: DatabaseKind, sql: &str, params: &[Param<'_>]) -> String {
    let sql = match kind {
        DatabaseKind::MySql => Cow::Owned(sql.replace('"', "`")),
        _ => Cow::Borrowed(sql),
    };
    let mut whole = String::with_capacity(sql.len() + 64);
    let mut params = params.iter();
    for part in sql.split_inclusive('?') {
        match part.strip_suffix('?') {
            Some(part) => {
                whole.push_str(part);
                whole.push_str(&literal(kind, *params.next().unwrap_or(&Param::Null)));
            }
            None => whole.push_str(part),
        }
    }
    whole
}

/// A value as part of a statement. Text is spelled in digits, so that no character of it can end the literal.
fn literal(kind: DatabaseKind, param: Param<'_>) -> String {
    use std::fmt::Write as _;
    let mut literal = String::new();
    let written = match (param, kind) {
        (Param::Null, _) => write!(literal, "null"),
        // A quoted literal has no type yet, so the column's type decides.
        (Param::Int(number), DatabaseKind::Postgres) => write!(literal, "'{number}'"),
        (Param::Int(number), _) => write!(literal, "{number}"),
        (Param::Text(text), DatabaseKind::Postgres) => {
            literal.push_str("E'");
            for c in text.chars() {
                // Writing to a `String` cannot fail.
                let _ = write!(literal, "\\U{:08x}", u32::from(c));
            }
            write!(literal, "'")
        }
        (Param::Text(text), _) => {
            literal.push_str("_utf8mb4 x'");
            for byte in text.bytes() {
                let _ = write!(literal, "{byte:02x}");
            }
            write!(literal, "'")
        }
    };
    written.expect("a string takes everything");
    literal
}

pub(super) fn int_or_text(text: String) -> Value {
    text.parse().map_or(Value::Text(text), Value::Int)
}
