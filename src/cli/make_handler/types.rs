//! Types of values, inferred from all samples.
//!
//! A value has a type, two values have the type that reads both, and so on for
//! every sample of a class. PHP arrays are lists, maps or records; the choice
//! between the last two needs all samples
//! ([`Inference::map_of`]). Objects of one class have one type in all
//! places; general containers (`stdClass`, collections) have a type for
//! each place.
//!
//! Samples are untrusted: depth, width and the number of values are limited,
//! and circular references are never followed.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::names::quoted;
use super::shape::{Field, Fields, Slot, Type};
use super::target::is_laravels;
use crate::handler::ModelIdentifier;
use crate::payload::Kind;
use crate::php::json::{Graph, object_members, property_name};
use crate::php::{
    self, Array, ClassName, Date, Key, MODEL_IDENTIFIER, Object, PropertyName, Value, Visibility,
};

/// Levels of nesting that become types; deeper values are read as any value.
const MOST_LEVELS: usize = 16;
/// Levels that the codec reads into untyped values, with some reserve.
const MOST_READ_LEVELS: usize = 200;
/// Most properties of a class that become fields, and most cases of an enum that become variants.
const MOST_NAMED: usize = 200;
/// Most keys of an array that becomes a struct.
const MOST_KEYS: usize = 32;
/// Longest key of an array that becomes a field.
const LONGEST_KEY: usize = 48;
/// Most classes and enums that become types.
const MOST_CLASSES: usize = 64;
/// Most classes of models that are listed at a field.
const MOST_MODELS: usize = 4;
/// Most values that are read in one sample.
const MOST_VALUES: usize = 200_000;

/// The types of all samples so far.
#[derive(Debug, Default)]
pub(super) struct Inference {
    /// Kind of the samples.
    pub(super) kind: Option<Kind>,
    /// The values at the root of the samples.
    pub(super) root: Slot,
    /// Class of the objects at the root.
    pub(super) root_class: Option<ClassName>,
    pub(super) classes: Vec<Fields>,
    /// Enums with the cases that occurred.
    pub(super) enums: Vec<(ClassName, Vec<String>)>,
}

/// A look at one value.
struct Walk<'i, 'g, 'v> {
    inference: &'i mut Inference,
    graph: &'g Graph<'v>,
    /// The containers around the value.
    around: Vec<&'v Value>,
    /// How many more values may be read.
    left: usize,
    /// Whether any value so far was opaque.
    is_opaque: bool,
}

impl Inference {
    /// Adds a sample.
    pub(super) fn add(&mut self, value: &Value) {
        if let Value::Object(object) = value {
            self.root_class.get_or_insert_with(|| object.class.clone());
        }
        let slot = self.slot_of(value);
        let root = std::mem::take(&mut self.root);
        self.root = self.join(root, slot);
    }

    /// The type of a value that is not a reference.
    pub(super) fn slot_of(&mut self, value: &Value) -> Slot {
        let graph = Graph::new(value);
        let mut walk = Walk {
            inference: self,
            graph: &graph,
            around: Vec::new(),
            left: MOST_VALUES,
            is_opaque: false,
        };
        walk.slot(value)
    }

    /// The place of a class in [`classes`](Self::classes), added if there is room.
    pub(super) fn class(&mut self, class: &ClassName) -> Option<usize> {
        let found = |known: &Fields| known.class.as_ref() == Some(class);
        if let Some(index) = self.classes.iter().position(found) {
            return Some(index);
        }
        (self.classes.len() < MOST_CLASSES).then(|| {
            self.classes.push(Fields {
                class: Some(class.clone()),
                ..Fields::default()
            });
            self.classes.len() - 1
        })
    }

    /// Whether a property of the root's class is not one that its author wrote.
    pub(super) fn leaves_out(&self, class: Option<&ClassName>, name: &str) -> bool {
        let is_root = self.root_class.as_ref() == class;
        is_root && self.kind.is_some_and(|kind| is_laravels(kind, name))
    }

    /// Whether `serde_json` reads the samples.
    fn is_json(&self) -> bool {
        matches!(self.kind, Some(Kind::Command | Kind::String))
    }

    fn case(&mut self, class: &ClassName, case: &str) -> Type {
        let found = self.enums.iter().position(|(known, _)| known == class);
        let index = found.unwrap_or(self.enums.len());
        if found.is_none() && index < MOST_CLASSES {
            self.enums.push((class.clone(), Vec::new()));
        }
        let Some((_, cases)) = self.enums.get_mut(index) else {
            return Type::Any;
        };
        let is_known = cases.iter().any(|known| known == case);
        if !is_known && cases.len() == MOST_NAMED {
            return Type::Any;
        }
        if !is_known {
            cases.push(case.to_owned());
        }
        Type::Enum(index)
    }

    /// Adds fields from another place.
    fn merge(&self, known: &mut Fields, seen: Fields) {
        known.count += seen.count;
        known.saw_empty |= seen.saw_empty;
        for field in seen.list {
            let is_it = |known: &&mut Field| known.name == field.name;
            if let Some(known) = known.list.iter_mut().find(is_it) {
                let slot = std::mem::take(&mut known.slot);
                known.slot = self.join(slot, field.slot);
                known.seen += field.seen;
            } else if known.list.len() < MOST_NAMED {
                known.list.push(field);
            }
        }
    }

    /// The type that reads both.
    pub(super) fn join(&self, left: Slot, right: Slot) -> Slot {
        Slot {
            nullable: left.nullable || right.nullable,
            opaque: left.opaque || right.opaque,
            ty: self.join_types(left.ty, right.ty),
        }
    }

    fn join_types(&self, left: Type, right: Type) -> Type {
        use Type::{Any, Bytes, Float, Int, List, Map, Model, Record, Text, Unknown};
        match (left, right) {
            (Unknown, ty) | (ty, Unknown) => ty,
            (Int, Float) | (Float, Int) => Float,
            (Text, Bytes) | (Bytes, Text) => Bytes,
            (Model(left), Model(right)) => {
                Model(left.into_iter().chain(right).take(MOST_MODELS).collect())
            }
            (List(left), List(right)) => List(Box::new(self.join(*left, *right))),
            (Record(mut fields), list) | (list, Record(mut fields)) if list.is_empty() => {
                fields.count += 1;
                fields.saw_empty = true;
                Record(fields)
            }
            (Record(mut left), Record(right)) => {
                if left.class != right.class {
                    left.class = None;
                }
                self.merge(&mut left, right);
                if left.list.len() > MOST_KEYS {
                    return self.map(Record(left));
                }
                Record(left)
            }
            // It does not read `[]` as a map.
            (List(_), _) | (_, List(_)) if self.is_json() => Any,
            (left @ (List(_) | Map(..) | Record(_)), right) => {
                match (self.map(left), self.map(right)) {
                    (Map(ints, value), Map(others, other)) => {
                        Map(ints && others, Box::new(self.join(*value, *other)))
                    }
                    _ => Any,
                }
            }
            (left, right) if left == right => left,
            _ => Any,
        }
    }

    /// An array of any kind as a map.
    fn map(&self, ty: Type) -> Type {
        match ty {
            Type::List(value) => Type::Map(true, value),
            Type::Record(fields) if self.is_json() && fields.saw_empty => Type::Any,
            Type::Record(fields) => {
                let slots = fields.list.into_iter().map(|field| field.slot);
                let value = slots.fold(Slot::default(), |all, slot| self.join(all, slot));
                Type::Map(false, Box::new(value))
            }
            ty => ty,
        }
    }

    /// The fields as a map, if that fits better: all have one type, and do not always occur together.
    pub(super) fn map_of(&self, fields: &Fields) -> Option<Type> {
        let always = fields.count > 1 && fields.list.iter().all(|field| field.seen == fields.count);
        if !fields.list.is_empty() && (fields.class.is_some() || always) {
            return None;
        }
        let map = self.map(Type::Record(fields.clone()));
        (!map.is_vague()).then_some(map)
    }
}

impl<'v> Walk<'_, '_, 'v> {
    fn slot(&mut self, value: &'v Value) -> Slot {
        let value = self.graph.resolve(value);
        let is_around = self.around.iter().any(|open| std::ptr::eq(*open, value));
        let is_lost = matches!(value, Value::ObjectRef(_) | Value::VarRef(_));
        if is_around || is_lost || self.around.len() > MOST_READ_LEVELS || self.left == 0 {
            self.is_opaque = true;
            return Slot {
                ty: Type::Any,
                nullable: false,
                opaque: true,
            };
        }
        self.left -= 1;
        let was_opaque = std::mem::take(&mut self.is_opaque);
        self.around.push(value);
        let ty = match value {
            Value::Null => Type::Unknown,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Float(_) => Type::Float,
            Value::String(_) if value.as_str().is_some() => Type::Text,
            Value::String(_) => Type::Bytes,
            Value::Array(array) => self.array(array),
            // They have the forms of the job document, which have no types.
            Value::Enum(_) | Value::Object(_) if self.inference.is_json() => Type::Any,
            Value::Enum(case) => {
                let name = String::from_utf8_lossy(&case.case);
                self.inference.case(&case.class, &name)
            }
            Value::Object(object) => self.object(value, object),
            _ => Type::Any,
        };
        self.around.pop();
        let is_deep = self.around.len() > MOST_LEVELS;
        let opaque = self.is_opaque;
        self.is_opaque |= was_opaque;
        Slot {
            ty: if is_deep { Type::Any } else { ty },
            nullable: value.is_null(),
            opaque,
        }
    }

    fn array(&mut self, array: &'v Array) -> Type {
        if array.is_list() {
            return Type::List(Box::new(self.joined(array.values())));
        }
        let name = |(key, _): &'v (Key, Value)| match key {
            Key::String(key) => Some(std::str::from_utf8(key).ok()?.to_owned()),
            Key::Int(_) => None,
        };
        let names: Option<Vec<String>> = array.pairs.iter().map(name).collect();
        if let Some(names) = names.filter(|names| are_fields(names)) {
            let members = names.into_iter().zip(array.values());
            let members = members.map(|(name, value)| (name, String::new(), value));
            return Type::Record(self.fields(None, members));
        }
        let is_int = |(key, _): &(Key, Value)| matches!(key, Key::Int(_));
        let value = Box::new(self.joined(array.values()));
        Type::Map(array.pairs.iter().all(is_int), value)
    }

    /// The type of all these values.
    fn joined(&mut self, values: impl Iterator<Item = &'v Value>) -> Slot {
        let mut joined = Slot::default();
        for value in values {
            let slot = self.slot(value);
            joined = self.inference.join(joined, slot);
        }
        joined
    }

    fn fields(
        &mut self,
        class: Option<ClassName>,
        members: impl Iterator<Item = (String, String, &'v Value)>,
    ) -> Fields {
        let field = |(name, visibility, value)| Field {
            name,
            visibility,
            slot: self.slot(value),
            seen: 1,
        };
        Fields {
            class,
            count: 1,
            list: members.map(field).collect(),
            saw_empty: false,
        }
    }

    fn object(&mut self, value: &'v Value, object: &'v Object) -> Type {
        let class = &object.class;
        if *class == *MODEL_IDENTIFIER
            && let Some(model) = self.read::<ModelIdentifier>(value)
        {
            return Type::Model(model.class.into_iter().collect());
        }
        let date = object.get("timezone_type").and_then(|_| self.read(value));
        if date.is_some_and(|date: Date| date.to_iso_8601().is_some()) {
            return Type::Date;
        }
        let mut members = members(object);
        members.retain(|(name, ..)| !self.inference.leaves_out(Some(class), name));
        if self.inference.root_class.as_ref() != Some(class) && holds_anything(class) {
            let names: Vec<_> = members.iter().map(|(name, ..)| name.clone()).collect();
            if are_fields(&names) {
                return Type::Record(self.fields(Some(class.clone()), members.into_iter()));
            }
            let value = self.joined(members.into_iter().map(|(_, _, value)| value));
            return Type::Map(false, Box::new(value));
        }
        let seen = self.fields(None, members.into_iter());
        let Some(index) = self.inference.class(class) else {
            return Type::Any;
        };
        let mut known = std::mem::take(&mut self.inference.classes[index]);
        self.inference.merge(&mut known, seen);
        self.inference.classes[index] = known;
        Type::Object(index)
    }

    /// The value as a handler reads it.
    fn read<T: DeserializeOwned>(&self, value: &'v Value) -> Option<T> {
        let bytes = self.graph.detached(value).ok()?.to_bytes();
        php::from_slice(&bytes).ok()
    }
}

/// Whether names can be fields of a struct: plain identifiers, and all different.
fn are_fields(names: &[String]) -> bool {
    let is_field = |name: &String| {
        let mut bytes = name.bytes();
        name.len() <= LONGEST_KEY
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.contains(|c: char| c.is_ascii_alphanumeric())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let different: BTreeSet<&String> = names.iter().collect();
    names.len() <= MOST_KEYS && different.len() == names.len() && names.iter().all(is_field)
}

/// General container classes: the contents of one object tell nothing about another.
fn holds_anything(class: &ClassName) -> bool {
    let name = class.as_str().to_ascii_lowercase();
    matches!(&*name, "stdclass" | "arrayobject" | "arrayiterator")
        || name.starts_with("illuminate\\support\\")
        || name.starts_with("illuminate\\database\\eloquent\\collection")
        || name.starts_with("spl")
}

/// Properties by the codec's names, each with its visibility.
fn members(object: &Object) -> Vec<(String, String, &Value)> {
    let visibility = |key| match key {
        &Key::Int(_) => Visibility::Public,
        Key::String(key) => PropertyName::parse(key).visibility,
    };
    let is_own = |key| !object.is_private_to_another(visibility(key));
    let mut members = Vec::new();
    for (name, value) in object_members(object).into_iter().take(MOST_NAMED) {
        let mut same = 0;
        let mut words = String::new();
        for (key, own) in &object.properties {
            same += usize::from(is_own(key) && property_name(key) == name);
            if std::ptr::eq(own, value) {
                words = match visibility(key) {
                    Visibility::Public => "public".to_owned(),
                    Visibility::Protected => "protected".to_owned(),
                    Visibility::Private(_) if is_own(key) => "private".to_owned(),
                    Visibility::Private(class) => {
                        format!("private of {}", quoted(&String::from_utf8_lossy(class)))
                    }
                };
            }
        }
        // A struct cannot read a property that occurs twice; serde only skips it.
        if same < 2 {
            members.push((name.into_owned(), words, value));
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type in few words.
    fn shown(inference: &Inference, slot: &Slot) -> String {
        let text = match &slot.ty {
            Type::Unknown => "?".to_owned(),
            ty if ty.is_empty() => "empty".to_owned(),
            Type::Model(classes) => format!("model {classes:?}"),
            Type::List(element) => format!("[{}]", shown(inference, element)),
            Type::Map(ints, value) => {
                let key = if *ints { "int" } else { "text" };
                format!("{{{key}: {}}}", shown(inference, value))
            }
            Type::Record(fields) => format!("record{}", shown_fields(inference, fields)),
            Type::Object(index) => {
                let fields = &inference.classes[*index];
                let class = fields.class.as_ref().unwrap();
                format!("{class}{}", shown_fields(inference, fields))
            }
            Type::Enum(index) => format!("{:?}", inference.enums[*index].1),
            ty => format!("{ty:?}").to_lowercase(),
        };
        let null = if slot.nullable { "?" } else { "" };
        let opaque = if slot.opaque { "!" } else { "" };
        format!("{text}{null}{opaque}")
    }

    fn shown_fields(inference: &Inference, fields: &Fields) -> String {
        let field = |field: &Field| {
            let missing = if field.seen < fields.count { "-" } else { "" };
            format!("{}{missing}: {}", field.name, shown(inference, &field.slot))
        };
        let fields: Vec<String> = fields.list.iter().map(field).collect();
        format!("({})", fields.join(", "))
    }

    fn inferred(samples: &[&str]) -> String {
        let mut inference = Inference::default();
        for sample in samples {
            let value = Value::from_bytes(sample.as_bytes()).unwrap();
            inference.add(&value);
        }
        shown(&inference, &inference.root)
    }

    #[test]
    fn a_type_reads_all_samples() {
        #[rustfmt::skip]
        let rows: [(&[&str], &str); 25] = [
            (&["i:1;"], "int"),
            (&["i:1;", "d:0.5;"], "float"),
            (&["i:1;", "N;"], "int?"),
            (&["N;"], "??"),
            (&["i:1;", "s:1:\"x\";"], "any"),
            (&["b:1;", "i:1;"], "any"),
            (&["s:1:\"x\";"], "text"),
            (&["a:0:{}"], "empty"),
            (&["a:0:{}", "a:1:{i:0;i:1;}"], "[int]"),
            (&["a:2:{i:0;i:1;i:1;N;}"], "[int?]"),
            (&["a:1:{i:3;i:1;}"], "{int: int}"),
            (&["a:1:{i:3;i:1;}", "a:1:{s:3:\"a b\";d:1;}"], "{text: float}"),
            (&["a:1:{i:3;i:1;}", "a:1:{i:0;i:1;}"], "{int: int}"),
            (&["a:2:{s:1:\"a\";i:1;s:1:\"b\";b:1;}"], "record(a: int, b: bool)"),
            (&["a:1:{s:1:\"a\";i:1;}", "a:1:{s:1:\"b\";b:1;}"], "record(a-: int, b-: bool)"),
            (&["a:1:{s:1:\"a\";i:1;}", "a:0:{}"], "record(a-: int)"),
            (&["a:1:{s:1:\"a\";i:1;}", "a:1:{i:0;i:1;}"], "{text: int}"),
            (&["O:1:\"P\":1:{s:1:\"x\";i:1;}", "O:1:\"p\":1:{s:4:\"\0*\0y\";i:1;}"], "P(x-: int, y-: int)"),
            (&["O:1:\"P\":0:{}", "O:1:\"Q\":0:{}"], "any"),
            (&["O:1:\"P\":1:{s:4:\"self\";r:1;}"], "P(self: any!)!"),
            (&["E:3:\"S:A\";", "E:3:\"S:B\";", "E:3:\"S:A\";"], "[\"A\", \"B\"]"),
            (&["C:1:\"P\":1:{x}"], "any"),
            (&["a:2:{i:0;O:8:\"stdClass\":1:{s:1:\"a\";i:1;}i:1;O:8:\"stdClass\":1:{s:1:\"b\";i:1;}}"], "[record(a-: int, b-: int)]"),
            (&["O:45:\"Illuminate\\Contracts\\Database\\ModelIdentifier\":2:{s:5:\"class\";s:1:\"U\";s:2:\"id\";i:1;}"], "model {\"U\"}"),
            (&["O:8:\"DateTime\":3:{s:4:\"date\";s:26:\"2024-01-02 03:04:05.123456\";s:13:\"timezone_type\";i:3;s:8:\"timezone\";s:3:\"UTC\";}"], "date"),
        ];
        for (samples, expected) in rows {
            assert_eq!(inferred(samples), expected, "{samples:?}");
            let backwards: Vec<&str> = samples.iter().rev().copied().collect();
            let same = |text: String| {
                let mut parts: Vec<char> = text.chars().collect();
                parts.sort_unstable();
                parts
            };
            assert_eq!(
                same(inferred(&backwards).to_lowercase()),
                same(expected.to_lowercase()),
                "{backwards:?}"
            );
        }
    }

    #[test]
    fn an_array_with_names_is_a_map_if_all_is_alike_and_names_come_and_go() {
        #[rustfmt::skip]
        let rows: [(&[&str], bool); 5] = [
            (&["a:2:{s:1:\"a\";i:1;s:1:\"b\";d:2;}"], true),
            (&["a:2:{s:1:\"a\";i:1;s:1:\"b\";b:1;}"], false),
            (&["a:1:{s:1:\"a\";i:1;}", "a:1:{s:1:\"b\";i:1;}"], true),
            (&["a:1:{s:1:\"a\";i:1;}", "a:1:{s:1:\"a\";i:1;}"], false),
            (&["a:2:{s:1:\"a\";a:1:{i:0;i:1;}s:1:\"b\";a:1:{i:0;b:1;}}"], false),
        ];
        for (samples, expected) in rows {
            let mut inference = Inference::default();
            for sample in samples {
                let value = Value::from_bytes(sample.as_bytes()).unwrap();
                inference.add(&value);
            }
            let Type::Record(fields) = &inference.root.ty else {
                panic!("{samples:?}: {:?}", inference.root);
            };
            let map = inference.map_of(fields);
            assert_eq!(map.is_some(), expected, "{samples:?}");
        }
    }

    #[test]
    fn references_that_fan_out_and_depth_come_to_an_end() {
        let mut bytes = b"a:60:{i:0;a:1:{i:0;i:1;}".to_vec();
        let mut slot = 2;
        for level in 1..60 {
            let pair = format!("i:{level};a:2:{{i:0;R:{slot};i:1;R:{slot};}}");
            bytes.extend_from_slice(pair.as_bytes());
            slot += if level == 1 { 2 } else { 1 };
        }
        bytes.push(b'}');
        let deep = "a:1:{i:0;".repeat(4000) + "i:1;" + &"}".repeat(4000);
        for bytes in [bytes, deep.into_bytes()] {
            let value = Value::from_bytes(&bytes).unwrap();
            let mut inference = Inference::default();
            inference.add(&value);
            assert!(inference.root.opaque);
        }
    }
}
