//! A PHP value as JSON: the forms of the job document.
//!
//! | PHP value | JSON |
//! | --- | --- |
//! | null, bool, int | the same; ints exact, also beyond 2^53 |
//! | float | shortest exact number, always with a fraction or exponent; `{"$float":"NAN"}`, `"INF"`, `"-INF"` |
//! | string | string; not UTF-8: `{"$bytes":"<base64>"}` |
//! | array | keys 0..n-1 in order: array; else object, keys as strings, order kept; empty: `[]` |
//! | object | object of its properties, `"$class"` first, names without visibility marks |
//! | a parent's private property whose name collides | `"Parent\\Class::name"` |
//! | enum case | `{"$enum":"App\\Enums\\Status","case":"Live"}` |
//! | `ModelIdentifier` | `{"$model":class,"id":..,"relations":[..],"connection":..}`, `"collectionClass"` when set |
//! | date (`date`, `timezone_type`, `timezone`) | `{"$date":"2026-01-02T03:04:05.678901+01:00","timezone":"Europe/Warsaw","$class":..}` |
//! | `C:` body | `{"$class":..,"$custom":string or $bytes}` |
//! | reference to an earlier value | the value again; where that would not end: `{"$ref":"<JSON pointer>"}` |
//! | key that is not UTF-8 | `"$bytes:<base64>"` |
//!
//! "Would not end" also covers references that fan out to more than
//! [`MAX_EXPANDED`] values or [`MAX_EXPANDED_BYTES`] bytes: a kilobyte of nested
//! references can stand for more than any memory holds. Pointers of more than
//! [`MAX_EXPANDED_BYTES`] bytes together are left out: `{"$ref":null}`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::class::{MODEL_IDENTIFIER, PropertyName, Visibility};
use super::date;
use super::value::{Array, Key, Object, Value};

/// Most values that references of one document are expanded to; later ones become `$ref`.
pub const MAX_EXPANDED: usize = 250_000;

/// Most bytes that references of one document are expanded to; later ones become `$ref`.
pub const MAX_EXPANDED_BYTES: usize = 16 << 20;

/// A value with its numbered slots, to resolve references in it.
#[derive(Debug)]
pub struct Graph<'v> {
    slots: Vec<Numbered<'v>>,
}

#[derive(Debug, Clone, Copy)]
struct Numbered<'v> {
    value: &'v Value,
    /// The value after following references.
    root: &'v Value,
    /// Slot index of the container and the key in it; `None` for the outermost value and the value of a `C:` body.
    parent: Option<(usize, &'v Key)>,
}

impl<'v> Graph<'v> {
    /// Numbers the values of a complete tree.
    pub fn new(root: &'v Value) -> Self {
        let mut slots: Vec<Numbered<'v>> = Vec::new();
        let mut open = Vec::new();
        let mut next = Some((root, None));
        while let Some((value, parent)) = next {
            if !matches!(value, Value::VarRef(_)) {
                let index = slots.len();
                // A reference always points back to a value that is resolved already.
                let target = match value {
                    Value::ObjectRef(number) => slot(&slots, *number),
                    _ => None,
                };
                let root = target.map_or(value, |target| target.root);
                slots.push(Numbered {
                    value,
                    root,
                    parent,
                });
                match value {
                    Value::Array(array) => open.push((index, array.pairs.iter())),
                    Value::Object(object) => open.push((index, object.properties.iter())),
                    Value::Custom(custom) => {
                        // Values in the body are numbered as if they were in its place.
                        if let Some(inner) = custom.inner() {
                            next = Some((inner, None));
                            continue;
                        }
                    }
                    _ => {}
                }
            }
            next = loop {
                let Some((parent, pairs)) = open.last_mut() else {
                    break None;
                };
                let Some((key, value)) = pairs.next() else {
                    open.pop();
                    continue;
                };
                break Some((value, Some((*parent, key))));
            };
        }
        Self { slots }
    }

    /// Follows references to a value that is not a reference.
    ///
    /// Returns the reference itself if it has no target, which is possible in a
    /// tree built by hand.
    pub fn resolve(&self, value: &'v Value) -> &'v Value {
        match value {
            Value::ObjectRef(number) | Value::VarRef(number) => {
                self.slot(*number).map_or(value, |target| target.root)
            }
            _ => value,
        }
    }

    /// The value of a property, with references followed.
    pub fn property(&self, object: &'v Object, name: &str) -> Option<&'v Value> {
        object.get(name).map(|value| self.resolve(value))
    }

    fn slot(&self, number: u64) -> Option<Numbered<'v>> {
        slot(&self.slots, number)
    }

    /// JSON pointer to the first occurrence of the slot's value, below the root.
    fn pointer(&self, number: u64) -> String {
        let mut segments = Vec::new();
        let mut current = self.slot(number);
        while let Some(Numbered {
            parent: Some((parent, key)),
            ..
        }) = current
        {
            current = self.slots.get(parent).copied();
            let in_array = current.is_some_and(|parent| matches!(parent.value, Value::Array(_)));
            segments.push(if in_array {
                array_key(key)
            } else {
                property_name(key)
            });
        }
        segments
            .iter()
            .rev()
            .fold(String::new(), |mut pointer, segment| {
                push_segment(&mut pointer, segment);
                pointer
            })
    }
}

fn slot<'v>(slots: &[Numbered<'v>], number: u64) -> Option<Numbered<'v>> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    slots.get(index).copied()
}

impl Value {
    /// The value as JSON text, in the forms that PHP gives.
    pub fn to_json(&self) -> String {
        let graph = Graph::new(self);
        let mut writer = Writer::new(&graph);
        writer.value(self);
        writer.finish()
    }

    /// The same; `None` if it has more than `limit` bytes, beyond which nothing is expanded.
    pub(crate) fn to_json_within(&self, limit: usize) -> Option<String> {
        let graph = Graph::new(self);
        let mut writer = Writer::new(&graph);
        writer.limit = limit;
        writer.value(self);
        Some(writer.finish()).filter(|json| json.len() <= limit)
    }
}

/// Writes values of one graph, and text of the caller, into one JSON text.
#[derive(Debug)]
pub struct Writer<'g, 'v> {
    graph: &'g Graph<'v>,
    out: String,
    /// Pointer to the value being written.
    pointer: String,
    /// Containers being written and the length of the pointer to each.
    open: HashMap<*const Value, usize>,
    expanded: usize,
    expanded_bytes: usize,
    /// Total length of all pointers written.
    pointers: usize,
    /// JSON pointer to the graph's root in the document.
    root: String,
    /// Writing stops once the output is longer.
    limit: usize,
}

/// The state of writing a container.
struct Frame<'v> {
    identity: *const Value,
    pairs: std::vec::IntoIter<(Cow<'v, str>, &'v Value)>,
    is_list: bool,
    is_first: bool,
    /// Length of the pointer to the container.
    pointer_len: usize,
    /// Whether the container is written in place of a reference.
    is_expansion: bool,
}

impl<'g, 'v> Writer<'g, 'v> {
    /// A writer whose output starts empty.
    pub fn new(graph: &'g Graph<'v>) -> Self {
        let (out, pointer, root) = Default::default();
        Self {
            graph,
            out,
            pointer,
            root,
            open: HashMap::new(),
            expanded: 0,
            expanded_bytes: 0,
            pointers: 0,
            limit: usize::MAX,
        }
    }

    /// Sets the JSON pointer to the graph's root in the document.
    #[must_use]
    pub fn with_root(mut self, pointer: &str) -> Self {
        pointer.clone_into(&mut self.root);
        self
    }

    /// The text written so far.
    pub fn finish(self) -> String {
        self.out
    }

    /// Appends text without changes.
    pub fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Appends a JSON string.
    pub fn string(&mut self, text: &str) {
        write_json_string(&mut self.out, text);
    }

    /// Marks `container` as being written at `pointer`: references to it become `$ref`.
    pub fn enter(&mut self, container: &'v Value, pointer: &str) {
        pointer.clone_into(&mut self.pointer);
        self.open
            .insert(std::ptr::from_ref(container), self.pointer.len());
    }

    /// Appends a value located at `pointer` in the document.
    pub fn value_at(&mut self, value: &'v Value, pointer: &str) {
        let before = std::mem::replace(&mut self.pointer, pointer.to_owned());
        self.value(value);
        self.pointer = before;
    }

    /// Appends a value.
    pub fn value(&mut self, value: &'v Value) {
        let mut frames: Vec<Frame<'v>> = Vec::new();
        let mut next = Some(value);
        while let Some(value) = next.filter(|_| self.out.len() <= self.limit) {
            let inside_expansion = frames.last().is_some_and(|frame| frame.is_expansion);
            let is_expansion = inside_expansion || is_reference(value);
            let before = self.out.len();
            frames.extend(self.start(value, is_expansion));
            if is_expansion {
                self.expanded += 1;
                self.expanded_bytes += self.out.len() - before;
            }
            next = loop {
                let Some(frame) = frames.last_mut() else {
                    break None;
                };
                self.pointer.truncate(frame.pointer_len);
                let Some((name, value)) = frame.pairs.next() else {
                    self.out.push(if frame.is_list { ']' } else { '}' });
                    self.open.remove(&frame.identity);
                    frames.pop();
                    continue;
                };
                if !std::mem::take(&mut frame.is_first) {
                    self.out.push(',');
                }
                push_segment(&mut self.pointer, &name);
                if !frame.is_list {
                    let before = self.out.len();
                    write_json_string(&mut self.out, &name);
                    self.out.push(':');
                    if frame.is_expansion {
                        self.expanded_bytes += self.out.len() - before;
                    }
                }
                break Some(value);
            };
        }
    }

    /// Whether the limit on expanded references is reached.
    fn is_spent(&self) -> bool {
        self.expanded >= MAX_EXPANDED || self.expanded_bytes >= MAX_EXPANDED_BYTES
    }

    /// Writes a scalar, or the opening of a container, whose frame is returned.
    fn start(&mut self, value: &'v Value, is_expansion: bool) -> Option<Frame<'v>> {
        let target = self.graph.resolve(value);
        let slot = match value {
            Value::ObjectRef(slot) | Value::VarRef(slot) => Some(*slot),
            _ => None,
        };
        // An open container is an ancestor: the pointer to it is a prefix of the current one. It can also be
        // reached without a reference, inside a value to which a reference led.
        let open = self.open.get(&std::ptr::from_ref(target)).copied();
        let is_cut = slot.is_some() && (self.is_spent() || is_reference(target));
        if open.is_some() || is_cut {
            self.reference(open, slot);
            return None;
        }
        match target {
            Value::Null => self.out.push_str("null"),
            Value::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => {
                write!(self.out, "{value}").expect("writing to a string cannot fail");
            }
            Value::Float(value) => write_json_float(&mut self.out, value.get()),
            Value::String(value) => write_json_bytes(&mut self.out, value),
            Value::Enum(case) => {
                self.out.push_str("{\"$enum\":");
                write_json_string(&mut self.out, case.class.as_str());
                self.out.push_str(",\"case\":");
                write_json_bytes(&mut self.out, &case.case);
                self.out.push('}');
            }
            Value::Custom(custom) => {
                self.out.push_str("{\"$class\":");
                write_json_string(&mut self.out, custom.class.as_str());
                self.out.push_str(",\"$custom\":");
                write_json_bytes(&mut self.out, custom.body());
                self.out.push('}');
            }
            Value::Array(array) if array.pairs.is_empty() => self.out.push_str("[]"),
            Value::Array(array) => {
                let pairs = if array.is_list() {
                    array
                        .values()
                        .enumerate()
                        .map(|(i, value)| (Cow::Owned(i.to_string()), value))
                        .collect()
                } else {
                    array_members(array)
                };
                // The last of duplicate keys counts, and the remaining pairs may be a list.
                let is_list = pairs
                    .iter()
                    .enumerate()
                    .all(|(i, (name, _))| *name == i.to_string());
                self.out.push(if is_list { '[' } else { '{' });
                return Some(self.frame(target, pairs, is_list, true, is_expansion));
            }
            Value::Object(object) => return self.object(target, object, is_expansion),
            Value::ObjectRef(_) | Value::VarRef(_) => unreachable!("references were followed"),
        }
        None
    }

    /// Writes a pointer to an open container, of whose pointer `open` is the length, or to a slot.
    fn reference(&mut self, open: Option<usize>, slot: Option<u64>) {
        let pointer = match (open, slot) {
            _ if self.pointers >= MAX_EXPANDED_BYTES => None,
            (Some(len), _) => Some(self.pointer[..len].to_owned()),
            (None, slot) => slot.map(|slot| format!("{}{}", self.root, self.graph.pointer(slot))),
        };
        self.out.push_str("{\"$ref\":");
        match pointer {
            Some(pointer) => {
                self.pointers += pointer.len();
                write_json_string(&mut self.out, &pointer);
            }
            None => self.out.push_str("null"),
        }
        self.out.push('}');
    }

    fn object(
        &mut self,
        value: &'v Value,
        object: &'v Object,
        is_expansion: bool,
    ) -> Option<Frame<'v>> {
        if let Some(date) = self.date(object) {
            self.out.push_str(&date);
            return None;
        }
        self.out.push('{');
        if object.class == *MODEL_IDENTIFIER
            && let Some(pairs) = self.model(object)
        {
            return Some(self.frame(value, pairs, false, true, is_expansion));
        }
        self.out.push_str("\"$class\":");
        write_json_string(&mut self.out, object.class.as_str());
        let mut members = object_members(object);
        // A dynamic property of that name would be there twice.
        members.retain(|(name, _)| name != "$class");
        Some(self.frame(value, members, false, false, is_expansion))
    }

    fn frame(
        &mut self,
        value: &'v Value,
        pairs: Vec<(Cow<'v, str>, &'v Value)>,
        is_list: bool,
        is_first: bool,
        is_expansion: bool,
    ) -> Frame<'v> {
        let identity = std::ptr::from_ref(value);
        let pointer_len = self.pointer.len();
        self.open.insert(identity, pointer_len);
        Frame {
            identity,
            pairs: pairs.into_iter(),
            is_list,
            is_first,
            pointer_len,
            is_expansion,
        }
    }

    /// The `$model` form, or `None` if the object lacks the properties that every version writes.
    fn model(&mut self, object: &'v Object) -> Option<Vec<(Cow<'v, str>, &'v Value)>> {
        let class = object.get("class")?;
        let id = object.get("id")?;
        let mut pairs = vec![(Cow::Borrowed("$model"), class), (Cow::Borrowed("id"), id)];
        pairs.push((
            Cow::Borrowed("relations"),
            object.get("relations").unwrap_or(&EMPTY_ARRAY),
        ));
        pairs.push((
            Cow::Borrowed("connection"),
            object.get("connection").unwrap_or(&Value::Null),
        ));
        let collection_class = object
            .get("collectionClass")
            .filter(|class| !self.graph.resolve(class).is_null());
        pairs.extend(collection_class.map(|class| (Cow::Borrowed("collectionClass"), class)));
        Some(pairs)
    }

    /// The `$date` form of an object with the three pairs of PHP's date classes.
    fn date(&self, object: &'v Object) -> Option<String> {
        let date = self.graph.property(object, "date")?.as_str()?;
        let timezone_type = self.graph.property(object, "timezone_type")?.as_int()?;
        let timezone = self.graph.property(object, "timezone")?.as_str()?;
        let iso = date::iso_8601(date, timezone_type, timezone)?;
        let mut out = String::from("{\"$date\":");
        write_json_string(&mut out, &iso);
        out.push_str(",\"timezone\":");
        write_json_string(&mut out, timezone);
        out.push_str(",\"$class\":");
        write_json_string(&mut out, object.class.as_str());
        out.push('}');
        Some(out)
    }
}

fn is_reference(value: &Value) -> bool {
    matches!(value, Value::ObjectRef(_) | Value::VarRef(_))
}

static EMPTY_ARRAY: Value = Value::Array(Array { pairs: Vec::new() });

fn array_members(array: &Array) -> Vec<(Cow<'_, str>, &Value)> {
    last_of_each(
        array
            .pairs
            .iter()
            .map(|(key, value)| (array_key(key), value)),
    )
}

/// Properties of an object with their names in JSON.
pub(crate) fn object_members(object: &Object) -> Vec<(Cow<'_, str>, &Value)> {
    let mut seen = HashMap::new();
    for (key, _) in &object.properties {
        *seen.entry(property_name(key)).or_insert(0) += 1;
    }
    last_of_each(object.properties.iter().map(|(key, value)| {
        let name = property_name(key);
        match of_parent(object, key) {
            Some((class, _)) if seen[&name] > 1 => {
                (Cow::Owned(format!("{}::{name}", utf8_name(class))), value)
            }
            _ => (name, value),
        }
    }))
}

/// Class and name, if the key belongs to a property that is private to another class than the object's.
fn of_parent<'k>(object: &Object, key: &'k Key) -> Option<(&'k [u8], &'k [u8])> {
    let Key::String(key) = key else { return None };
    let property = PropertyName::parse(key);
    match property.visibility {
        Visibility::Private(class) if object.is_private_to_another(property.visibility) => {
            Some((class, property.name))
        }
        _ => None,
    }
}

/// For each name the last value, at the position of the first.
fn last_of_each<'v>(
    pairs: impl Iterator<Item = (Cow<'v, str>, &'v Value)>,
) -> Vec<(Cow<'v, str>, &'v Value)> {
    let mut members: Vec<(Cow<'v, str>, &'v Value)> = Vec::new();
    let mut places: HashMap<Cow<'v, str>, usize> = HashMap::new();
    for (name, value) in pairs {
        match places.entry(name.clone()) {
            std::collections::hash_map::Entry::Occupied(place) => members[*place.get()].1 = value,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(members.len());
                members.push((name, value));
            }
        }
    }
    members
}

/// An array key as it appears in JSON.
fn array_key(key: &Key) -> Cow<'_, str> {
    match key {
        Key::Int(key) => Cow::Owned(key.to_string()),
        Key::String(key) => utf8_name(key),
    }
}

/// A property name as it appears in JSON, without visibility marks.
pub(crate) fn property_name(key: &Key) -> Cow<'_, str> {
    match key {
        Key::Int(key) => Cow::Owned(key.to_string()),
        Key::String(key) => utf8_name(PropertyName::parse(key).name),
    }
}

fn utf8_name(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(name) => Cow::Borrowed(name),
        Err(_) => Cow::Owned(format!("$bytes:{}", BASE64.encode(name))),
    }
}

fn push_segment(pointer: &mut String, segment: &str) {
    pointer.push('/');
    for c in segment.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

pub(crate) fn write_json_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("text is always JSON"));
}

fn write_json_bytes(out: &mut String, bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        write_json_string(out, text);
    } else {
        out.push_str("{\"$bytes\":\"");
        BASE64.encode_string(bytes, out);
        out.push_str("\"}");
    }
}

fn write_json_float(out: &mut String, value: f64) {
    if value.is_finite() {
        // `{:?}` is the shortest exact text and always has a fraction or an exponent.
        write!(out, "{value:?}").expect("writing to a string cannot fail");
    } else {
        let name = if value.is_nan() {
            "NAN"
        } else if value > 0.0 {
            "INF"
        } else {
            "-INF"
        };
        write!(out, "{{\"$float\":\"{name}\"}}").expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(bytes: &[u8]) -> String {
        Value::from_bytes(bytes).unwrap().to_json()
    }

    #[test]
    fn values_take_the_forms_of_the_document() {
        #[rustfmt::skip]
        let rows: [(&[u8], &str); 15] = [
            (b"i:9223372036854775807;", "9223372036854775807"),
            (b"d:5;", "5.0"),
            (b"d:-0;", "-0.0"),
            (b"d:1.0E+25;", "1e25"),
            (b"d:-INF;", r#"{"$float":"-INF"}"#),
            (b"s:3:\"\x00\xff\xfe\";", r#"{"$bytes":"AP/+"}"#),
            (b"a:0:{}", "[]"),
            (b"a:2:{i:0;i:1;i:1;N;}", "[1,null]"),
            (b"a:2:{i:1;i:1;i:0;N;}", r#"{"1":1,"0":null}"#),
            (b"a:3:{i:0;s:1:\"a\";i:0;s:1:\"k\";i:1;R:3;}", r#"["k","k"]"#),
            (b"O:1:\"A\":2:{s:6:\"$class\";i:1;s:1:\"b\";i:2;}", r#"{"$class":"A","b":2}"#),
            (b"E:11:\"Suit:Hearts\";", r#"{"$enum":"Suit","case":"Hearts"}"#),
            (b"C:6:\"OldSer\":2:{hi}", r#"{"$class":"OldSer","$custom":"hi"}"#),
            (b"O:4:\"Node\":2:{s:4:\"next\";r:1;s:1:\"v\";i:1;}", r#"{"$class":"Node","next":{"$ref":""},"v":1}"#),
            (b"O:8:\"DateTime\":3:{s:4:\"date\";s:26:\"2024-01-02 03:04:05.123456\";s:13:\"timezone_type\";i:3;s:8:\"timezone\";s:12:\"Europe/Paris\";}",
             r#"{"$date":"2024-01-02T03:04:05.123456+01:00","timezone":"Europe/Paris","$class":"DateTime"}"#),
        ];
        for (bytes, expected) in rows {
            assert_eq!(json(bytes), expected);
        }
    }

    #[test]
    fn a_long_string_referred_to_often_ends() {
        let long = "x".repeat(1 << 20);
        let references: Vec<String> = (1..2000).map(|i| format!("i:{i};R:2;")).collect();
        let references = references.concat();
        let bytes = format!("a:2000:{{i:0;s:{}:\"{long}\";{references}}}", long.len());
        let text = json(bytes.as_bytes());
        assert!(
            text.contains("{\"$ref\":\"/0\"}") && text.len() < 40 << 20,
            "{} bytes",
            text.len()
        );
        let error = super::super::from_slice::<Vec<String>>(bytes.as_bytes()).unwrap_err();
        assert_eq!(*error.kind(), super::super::Kind::ExpansionExceeded);
    }

    #[test]
    fn pointers_do_not_outgrow_the_text() {
        let name = "n".repeat(1 << 20);
        let references: Vec<String> = (0..2000).map(|i| format!("i:{i};R:2;")).collect();
        let references = references.concat();
        let bytes = format!(
            "a:1:{{s:{}:\"{name}\";a:2000:{{{references}}}}}",
            name.len()
        );
        let text = json(bytes.as_bytes());
        assert!(
            text.ends_with(",{\"$ref\":null}]}") && text.len() < 20 << 20,
            "{} bytes",
            text.len()
        );
    }

    #[test]
    fn references_that_fan_out_end() {
        // Each level refers twice to the one before: 2^60 values if all were expanded.
        let mut bytes = b"a:60:{i:0;a:1:{i:0;i:1;}".to_vec();
        let mut slot = 2;
        for level in 1..60 {
            bytes.extend_from_slice(
                format!("i:{level};a:2:{{i:0;R:{slot};i:1;R:{slot};}}").as_bytes(),
            );
            slot += if level == 1 { 2 } else { 1 };
        }
        bytes.push(b'}');
        let text = json(&bytes);
        assert!(
            text.contains("$ref") && text.len() < 50_000_000,
            "{} bytes",
            text.len()
        );
    }

    #[test]
    fn nothing_is_expanded_beyond_a_limit() {
        let references: Vec<String> = (1..500).map(|i| format!("i:{i};R:2;")).collect();
        let text = format!("a:500:{{i:0;a:1:{{i:0;i:7;}}{}}}", references.concat());
        let value = Value::from_bytes(text.as_bytes()).unwrap();
        let whole = value.to_json();
        assert_eq!(value.to_json_within(whole.len()).as_ref(), Some(&whole));
        assert_eq!(value.to_json_within(whole.len() - 1), None);
        let graph = Graph::new(&value);
        let mut writer = Writer::new(&graph);
        writer.limit = 100;
        writer.value(&value);
        let written = writer.finish().len();
        assert!((101..110).contains(&written), "{written} bytes");
    }

    #[test]
    fn references_beyond_a_limit_are_pointers() {
        let nulls: Vec<String> = (0..1000).map(|i| format!("i:{i};N;")).collect();
        let long = "n".repeat(1 << 20);
        let rows = [
            // first value, how many references to it are followed
            (
                format!("a:1000:{{{}}}", nulls.concat()),
                MAX_EXPANDED / 1000,
            ),
            (
                format!("s:{}:\"{long}\";", long.len()),
                MAX_EXPANDED_BYTES / long.len(),
            ),
            (
                format!("a:1:{{s:{}:\"{long}\";N;}}", long.len()),
                MAX_EXPANDED_BYTES / long.len(),
            ),
        ];
        for (first, followed) in rows {
            let references: Vec<String> = (1..=300).map(|i| format!("i:{i};R:2;")).collect();
            let references = references.concat();
            let text = json(format!("a:301:{{i:0;{first}{references}}}").as_bytes());
            assert_eq!(text.matches("{\"$ref\":\"/0\"}").count(), 300 - followed);
        }
    }

    #[test]
    fn values_stand_in_a_document_of_the_caller() {
        let bytes = br#"O:1:"J":1:{s:1:"a";O:1:"K":2:{s:2:"up";r:1;s:4:"self";r:2;}}"#;
        let value = Value::from_bytes(bytes).unwrap();
        let graph = Graph::new(&value);
        let inner = graph.property(value.as_object().unwrap(), "a").unwrap();
        let mut writer = Writer::new(&graph);
        writer.raw("{");
        writer.string("\"data\"");
        writer.raw(":");
        writer.enter(&value, "/data");
        writer.value_at(inner, "/data/a");
        writer.raw("}");
        assert_eq!(
            writer.finish(),
            r#"{"\"data\"":{"$class":"K","up":{"$ref":"/data"},"self":{"$ref":"/data/a"}}}"#
        );
    }
}
