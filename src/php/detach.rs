//! Copies a part of a value into an independent value.

use super::error::{Error, Kind};
use super::json::{Graph, MAX_EXPANDED, MAX_EXPANDED_BYTES};
use super::value::{Array, Key, Object, Value};

/// Most levels of nesting in a part: copying recurses on the call stack.
const DEPTH: usize = 256;

impl<'v> Graph<'v> {
    /// Copies a part of the graph, including the targets of its references.
    ///
    /// A value that contains itself would never end: the copy leaves out the
    /// inner occurrence, including its key.
    ///
    /// # Errors
    ///
    /// [`Kind::DepthExceeded`], or [`Kind::ExpansionExceeded`] if references
    /// expand to more values than any job needs.
    pub fn detached(&self, part: &'v Value) -> Result<Value, Error> {
        let mut copy = Copy {
            graph: self,
            open: Vec::new(),
            left: MAX_EXPANDED,
            left_bytes: MAX_EXPANDED_BYTES,
        };
        let cycle = || Error::without_offset(Kind::Cycle);
        copy.value(part, false)?.ok_or_else(cycle)
    }
}

struct Copy<'g, 'v> {
    graph: &'g Graph<'v>,
    /// Containers that are being copied.
    open: Vec<*const Value>,
    left: usize,
    /// Remaining bytes of texts copied in place of references.
    left_bytes: usize,
}

impl<'v> Copy<'_, 'v> {
    /// `None` for a value that is being copied already.
    fn value(&mut self, value: &'v Value, inside_expansion: bool) -> Result<Option<Value>, Error> {
        let is_expansion =
            inside_expansion || matches!(value, Value::ObjectRef(_) | Value::VarRef(_));
        let value = self.graph.resolve(value);
        if self.open.contains(&std::ptr::from_ref(value)) {
            return Ok(None);
        }
        let spent = || Error::without_offset(Kind::ExpansionExceeded);
        self.left = self.left.checked_sub(1).ok_or_else(spent)?;
        let pairs = match value {
            Value::Array(array) => &array.pairs,
            Value::Object(object) => &object.properties,
            // The reference has no target.
            Value::ObjectRef(_) | Value::VarRef(_) => return Ok(None),
            other => {
                let len = match other {
                    Value::String(text) => text.len(),
                    Value::Custom(custom) => custom.body().len(),
                    _ => 0,
                };
                self.spend(len, is_expansion)?;
                return Ok(Some(other.clone()));
            }
        };
        if self.open.len() == DEPTH {
            return Err(Error::without_offset(Kind::DepthExceeded { limit: DEPTH }));
        }
        self.open.push(std::ptr::from_ref(value));
        let mut copied: Vec<(Key, Value)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            if let Key::String(key) = key {
                self.spend(key.len(), is_expansion)?;
            }
            if let Some(value) = self.value(value, is_expansion)? {
                copied.push((key.clone(), value));
            }
        }
        self.open.pop();
        Ok(Some(match value {
            Value::Object(object) => Value::Object(Object {
                class: object.class.clone(),
                properties: copied,
            }),
            _ => Value::Array(Array { pairs: copied }),
        }))
    }

    fn spend(&mut self, len: usize, is_expansion: bool) -> Result<(), Error> {
        let len = if is_expansion { len } else { 0 };
        let left = self.left_bytes.checked_sub(len);
        self.left_bytes = left.ok_or_else(|| Error::without_offset(Kind::ExpansionExceeded))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn a_part_takes_along_what_it_refers_to() {
        #[rustfmt::skip]
        let rows = [
            // whole, property => part by itself
            (r#"O:1:"W":2:{s:1:"d";O:1:"D":1:{s:1:"t";i:7;}s:1:"e";O:1:"E":1:{s:2:"at";r:2;}}"#, r#"O:1:"E":1:{s:2:"at";O:1:"D":1:{s:1:"t";i:7;}}"#),
            (r#"O:1:"W":1:{s:1:"e";O:1:"E":2:{s:4:"self";r:2;s:1:"n";i:1;}}"#, r#"O:1:"E":1:{s:1:"n";i:1;}"#),
            (r#"O:1:"W":1:{s:1:"e";O:1:"E":1:{s:5:"outer";r:1;}}"#, r#"O:1:"E":1:{s:5:"outer";O:1:"W":0:{}}"#),
            (r#"O:1:"W":1:{s:1:"e";i:5;}"#, "i:5;"),
        ];
        for (whole, part) in rows {
            let value = Value::from_bytes(whole.as_bytes()).unwrap();
            let graph = Graph::new(&value);
            let found = graph.detached(value.as_object().unwrap().get("e").unwrap());
            let found = found.unwrap().to_bytes();
            assert_eq!(String::from_utf8(found).unwrap(), part, "{whole}");
        }
    }

    #[test]
    fn references_that_fan_out_are_refused() {
        // Each level is an array with two references to the level before.
        let mut whole = String::from("a:20:{i:0;a:2:{i:0;i:1;i:1;i:1;}");
        for level in 1..20 {
            let before = if level == 1 { 2 } else { level + 3 };
            write!(whole, "i:{level};a:2:{{i:0;R:{before};i:1;R:{before};}}").unwrap();
        }
        whole += "}";
        let value = Value::from_bytes(whole.as_bytes()).unwrap();
        let graph = Graph::new(&value);
        let error = graph.detached(&value).unwrap_err();
        assert_eq!(*error.kind(), Kind::ExpansionExceeded);
    }

    #[test]
    fn bytes_that_references_repeat_are_limited() {
        let long = "x".repeat(1 << 20);
        let rows = [
            format!("s:{}:\"{long}\";", long.len()),
            format!("C:1:\"S\":{}:{{{long}}}", long.len()),
            format!("a:1:{{s:{}:\"{long}\";N;}}", long.len()),
        ];
        for first in rows {
            let detached = |times| {
                let references: Vec<String> = (1..=times).map(|i| format!("i:{i};R:2;")).collect();
                let references = references.concat();
                let whole = format!("a:{}:{{i:0;{first}{references}}}", times + 1);
                let value = Value::from_bytes(whole.as_bytes()).unwrap();
                Graph::new(&value).detached(&value).map(drop)
            };
            let most = MAX_EXPANDED_BYTES / long.len();
            assert!(detached(most).is_ok(), "{}", &first[..20]);
            let error = detached(most + 1).unwrap_err();
            assert_eq!(*error.kind(), Kind::ExpansionExceeded);
        }
    }
}
