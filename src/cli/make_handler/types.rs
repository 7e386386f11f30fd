//! Types of values, inferred over all samples there are.
//!
//! A value has a type, two values have the type that reads both, and so on for
//! every sample of a class. Arrays of PHP are lists, maps or records; which
//! one of the last two is told only when all samples were seen
//! ([`Fields::as_map`]). Objects of one class are one type wherever they
//! stand; containers that hold anything (`stdClass`, collections) are told by
//! their place.
//!
//! Samples are untrusted: depth, width and the number of values are bounded,
//! and what leads in a circle is never followed.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::php::json::{Graph, object_members};
use crate::php::{Array, ClassName, Date, Key, Object, PropertyName, Value, Visibility};

/// Levels of nesting that become types; what is deeper is read as anything.
const MOST_LEVELS: usize = 16;
/// Levels that the codec reads into values of any kind, with some room.
const MOST_READ_LEVELS: usize = 200;
/// Fields of an object that become a struct.
const MOST_FIELDS: usize = 128;
/// Keys of an array that become a struct.
const MOST_KEYS: usize = 32;
/// Longest key of an array that becomes a field.
const LONGEST_KEY: usize = 48;
/// Classes and enums that become types.
const MOST_CLASSES: usize = 64;
/// Cases of an enum that become variants.
const MOST_CASES: usize = 200;
/// Classes of models that are named at a field.
const MOST_MODELS: usize = 4;
/// Values that are looked at in one sample.
const MOST_VALUES: usize = 200_000;

const MODEL_IDENTIFIER: &str = "Illuminate\\Contracts\\Database\\ModelIdentifier";

/// What stands in one place over all samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Slot {
    pub(super) ty: Type,
    /// Whether null was seen.
    pub(super) nullable: bool,
    /// Whether a value there leads in a circle or too deep: it can be skipped, not read as anything.
    pub(super) opaque: bool,
}

/// A type.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Type {
    /// Nothing was seen but null.
    #[default]
    Unknown,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    Date,
    /// A model or a collection of them; with some of their classes.
    Model(BTreeSet<String>),
    /// An array without elements.
    Empty,
    List(Box<Slot>),
    Map {
        /// Whether all keys are ints.
        ints: bool,
        value: Box<Slot>,
    },
    /// An array with names as keys, or an object of a class that holds anything.
    Record(Box<Fields>),
    /// An object, by its place in [`Inference::classes`].
    Object(usize),
    /// A case, by its place in [`Inference::enums`].
    Enum(usize),
    /// Values that no one type reads.
    Any,
}

/// Named values that stand together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields {
    /// The class, if it is an object.
    pub(super) class: Option<ClassName>,
    /// How often they were seen.
    pub(super) count: usize,
    /// The fields, in the order in which they were first seen.
    pub(super) list: Vec<Field>,
    /// Whether there were too many to name them.
    pub(super) is_wide: bool,
    /// Whether an empty array stood in their place.
    saw_empty: bool,
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    /// Its name as the codec shows it.
    pub(super) name: String,
    /// Who may see it in PHP.
    pub(super) mark: Mark,
    pub(super) slot: Slot,
    /// How often it was seen.
    pub(super) seen: usize,
}

/// Who may see a property in PHP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    Public,
    Protected,
    Private,
    /// Of another class than the object's, which this is.
    PrivateOf(String),
    /// It is the key of an array.
    Key,
}

/// Cases of an enum that were seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cases {
    pub(super) class: ClassName,
    pub(super) cases: Vec<String>,
}

/// The types of all samples so far.
#[derive(Debug, Default)]
pub(super) struct Inference {
    /// What is at the root of the samples.
    pub(super) root: Slot,
    pub(super) classes: Vec<Fields>,
    pub(super) enums: Vec<Cases>,
    /// Whether the samples are JSON, where an empty array is a list and nothing else.
    pub(super) is_json: bool,
    /// Properties of the root's class that say nothing of what its author wrote.
    pub(super) left_out: Option<fn(&str) -> bool>,
    /// Class of what is at the root.
    pub(super) root_class: Option<ClassName>,
    values: usize,
}

/// Where a value is: what is open around it.
struct Open<'g, 'v> {
    graph: &'g Graph<'v>,
    around: Vec<*const Value>,
}

/// Follows references; none where one leads nowhere.
fn follow<'v>(graph: &Graph<'v>, value: &'v Value) -> Option<&'v Value> {
    match graph.resolve(value) {
        Value::ObjectRef(_) | Value::VarRef(_) => None,
        value => Some(value),
    }
}

impl Inference {
    /// Adds a sample: a value of what the graph was made of.
    pub(super) fn add<'v>(&mut self, value: &'v Value, graph: &Graph<'v>) {
        if let Value::Object(object) = value {
            self.root_class.get_or_insert_with(|| object.class.clone());
        }
        self.values = 0;
        let mut open = Open {
            graph,
            around: Vec::new(),
        };
        let slot = self.slot(value, &mut open);
        let root = std::mem::take(&mut self.root);
        self.root = self.join(root, slot);
    }

    /// Adds a sample that is JSON.
    pub(super) fn add_json(&mut self, json: &serde_json::Value) {
        self.is_json = true;
        let value = of_json(json, 0);
        self.add(&value, &Graph::new(&value));
    }

    /// The place of a class among [`classes`](Self::classes), made if there is room.
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

    /// The type of a value that stands for itself, such as a default.
    pub(super) fn slot_of(&mut self, value: &Value) -> Slot {
        let graph = Graph::new(value);
        let mut open = Open {
            graph: &graph,
            around: Vec::new(),
        };
        self.slot(value, &mut open)
    }

    fn slot<'v>(&mut self, value: &'v Value, open: &mut Open<'_, 'v>) -> Slot {
        self.values += 1;
        let Some(value) = follow(open.graph, value) else {
            return Slot::opaque();
        };
        let is_around = open.around.contains(&std::ptr::from_ref(value));
        if self.values > MOST_VALUES || open.around.len() > MOST_READ_LEVELS || is_around {
            return Slot::opaque();
        }
        let is_container = matches!(value, Value::Array(_) | Value::Object(_));
        if is_container {
            open.around.push(std::ptr::from_ref(value));
        }
        let mut slot = match value {
            Value::Null => Slot {
                nullable: true,
                ..Slot::default()
            },
            Value::Bool(_) => Slot::of(Type::Bool),
            Value::Int(_) => Slot::of(Type::Int),
            Value::Float(_) => Slot::of(Type::Float),
            Value::String(text) if std::str::from_utf8(text).is_ok() => Slot::of(Type::Text),
            Value::String(_) => Slot::of(Type::Bytes),
            Value::Enum(case) => {
                let name = String::from_utf8_lossy(&case.case);
                Slot::of(self.case(&case.class, &name))
            }
            Value::Array(array) => self.array(array, open),
            Value::Object(object) => self.object(object, open),
            _ => Slot::of(Type::Any),
        };
        if is_container {
            open.around.pop();
            if open.around.len() >= MOST_LEVELS {
                slot.ty = Type::Any;
            }
        }
        slot
    }

    fn case(&mut self, class: &ClassName, case: &str) -> Type {
        let index = match self.enums.iter().position(|known| known.class == *class) {
            Some(index) => index,
            None if self.enums.len() >= MOST_CLASSES => return Type::Any,
            None => {
                self.enums.push(Cases {
                    class: class.clone(),
                    cases: Vec::new(),
                });
                self.enums.len() - 1
            }
        };
        let cases = &mut self.enums[index].cases;
        if !cases.iter().any(|known| known == case) {
            if cases.len() >= MOST_CASES {
                return Type::Any;
            }
            cases.push(case.to_owned());
        }
        Type::Enum(index)
    }

    fn array<'v>(&mut self, array: &'v Array, open: &mut Open<'_, 'v>) -> Slot {
        if array.pairs.is_empty() {
            return Slot::of(Type::Empty);
        }
        if array.is_list() {
            let (element, opaque) = self.joined(array.values(), open);
            return Slot {
                ty: Type::List(Box::new(element)),
                nullable: false,
                opaque,
            };
        }
        let names = array.pairs.iter().map(|(key, _)| match key {
            Key::String(key) => std::str::from_utf8(key).ok().map(Cow::Borrowed),
            Key::Int(_) => None,
        });
        match names.collect::<Option<Vec<_>>>() {
            Some(names) if are_fields(&names) => {
                let pairs = names.into_iter().zip(array.values());
                self.record(
                    None,
                    pairs.map(|(name, value)| (name, Mark::Key, value)),
                    open,
                )
            }
            _ => {
                let ints = array
                    .pairs
                    .iter()
                    .all(|(key, _)| matches!(key, Key::Int(_)));
                let (value, opaque) = self.joined(array.values(), open);
                let value = Box::new(value);
                Slot {
                    ty: Type::Map { ints, value },
                    nullable: false,
                    opaque,
                }
            }
        }
    }

    /// The type of all these values, and whether one of them is opaque.
    fn joined<'v>(
        &mut self,
        values: impl Iterator<Item = &'v Value>,
        open: &mut Open<'_, 'v>,
    ) -> (Slot, bool) {
        let mut joined = Slot::default();
        for value in values {
            let slot = self.slot(value, open);
            joined = self.join(joined, slot);
        }
        let opaque = joined.opaque;
        (joined, opaque)
    }

    fn record<'v>(
        &mut self,
        class: Option<ClassName>,
        members: impl Iterator<Item = (Cow<'v, str>, Mark, &'v Value)>,
        open: &mut Open<'_, 'v>,
    ) -> Slot {
        let mut fields = Fields {
            class,
            ..Fields::default()
        };
        let opaque = self.fill(&mut fields, members, open);
        Slot {
            ty: Type::Record(Box::new(fields)),
            nullable: false,
            opaque,
        }
    }

    /// Counts the members of one object, and says whether one of them is opaque.
    fn fill<'v>(
        &mut self,
        fields: &mut Fields,
        members: impl Iterator<Item = (Cow<'v, str>, Mark, &'v Value)>,
        open: &mut Open<'_, 'v>,
    ) -> bool {
        fields.count += 1;
        let mut opaque = false;
        for (name, mark, value) in members {
            let slot = self.slot(value, open);
            opaque |= slot.opaque;
            self.count(fields, &name, mark, slot, 1);
        }
        opaque
    }

    fn count(&mut self, fields: &mut Fields, name: &str, mark: Mark, slot: Slot, seen: usize) {
        if let Some(field) = fields.list.iter_mut().find(|field| field.name == name) {
            let known = std::mem::take(&mut field.slot);
            field.slot = self.join(known, slot);
            field.seen += seen;
        } else if fields.list.len() < MOST_FIELDS {
            fields.list.push(Field {
                name: name.to_owned(),
                mark,
                slot,
                seen,
            });
        } else {
            fields.is_wide = true;
        }
    }

    fn object<'v>(&mut self, object: &'v Object, open: &mut Open<'_, 'v>) -> Slot {
        if let Some(model) = model(object, open.graph) {
            return Slot::of(model);
        }
        if is_date(object, open.graph) {
            return Slot::of(Type::Date);
        }
        let is_root = self.root_class.as_ref() == Some(&object.class);
        let left_out = self.left_out.filter(|_| is_root);
        let members = object_members(object);
        // What a struct would have twice cannot be read into it; it is only skipped.
        let is_told_apart = |name: &str| {
            let same = object.properties.iter().filter(|(key, _)| match key {
                Key::String(key) => {
                    let property = PropertyName::parse(key);
                    property.name == name.as_bytes()
                        && !object.is_private_to_another(property.visibility)
                }
                Key::Int(key) => key.to_string() == name,
            });
            same.count() < 2
        };
        let members = members.into_iter().filter(|(name, _)| {
            !left_out.is_some_and(|left_out| left_out(name)) && is_told_apart(name)
        });
        let members: Vec<_> = members
            .map(|(name, value)| {
                let mark = mark(object, &name);
                (name, mark, value)
            })
            .collect();
        if !is_root && holds_anything(&object.class) {
            let names: Vec<_> = members.iter().map(|(name, _, _)| name.clone()).collect();
            if names.is_empty() || are_fields(&names) {
                return self.record(Some(object.class.clone()), members.into_iter(), open);
            }
            let (value, opaque) = self.joined(members.iter().map(|(_, _, value)| *value), open);
            let value = Box::new(value);
            return Slot {
                ty: Type::Map { ints: false, value },
                nullable: false,
                opaque,
            };
        }
        // Its place is known before its members are: one of them may be of the same class.
        let Some(index) = self.class(&object.class) else {
            let (_, opaque) = self.joined(members.iter().map(|(_, _, value)| *value), open);
            return Slot {
                ty: Type::Any,
                nullable: false,
                opaque,
            };
        };
        let mut seen = Fields::default();
        let opaque = self.fill(&mut seen, members.into_iter(), open);
        let mut known = std::mem::take(&mut self.classes[index]);
        self.merge(&mut known, seen);
        self.classes[index] = known;
        Slot {
            ty: Type::Object(index),
            nullable: false,
            opaque,
        }
    }

    /// Adds fields that were seen elsewhere.
    fn merge(&mut self, known: &mut Fields, seen: Fields) {
        known.count += seen.count;
        known.is_wide |= seen.is_wide;
        known.saw_empty |= seen.saw_empty;
        for field in seen.list {
            self.count(known, &field.name, field.mark, field.slot, field.seen);
        }
    }

    /// What reads both.
    pub(super) fn join(&mut self, left: Slot, right: Slot) -> Slot {
        Slot {
            nullable: left.nullable || right.nullable,
            opaque: left.opaque || right.opaque,
            ty: self.join_types(left.ty, right.ty),
        }
    }

    fn join_types(&mut self, left: Type, right: Type) -> Type {
        use Type::{Any, Bytes, Date, Empty, Float, Int, List, Map, Model, Record, Text, Unknown};
        match (left, right) {
            (Unknown, ty) | (ty, Unknown) => ty,
            (Int, Float) | (Float, Int) => Float,
            (Text, Bytes) | (Bytes, Text) => Bytes,
            (Date, Date) => Date,
            (Model(mut classes), Model(more)) => {
                classes.extend(more);
                while classes.len() > MOST_MODELS {
                    classes.pop_last();
                }
                Model(classes)
            }
            (List(left), List(right)) => List(Box::new(self.join(*left, *right))),
            (List(list), Empty) | (Empty, List(list)) => List(list),
            // serde_json reads `[]` as no map.
            (Map { .. }, Empty | List(_))
            | (Empty | List(_), Map { .. })
            | (Record(_), List(_))
            | (List(_), Record(_))
                if self.is_json =>
            {
                Any
            }
            (Map { ints, value }, Empty) | (Empty, Map { ints, value }) => Map { ints, value },
            (Map { ints, value }, List(list)) | (List(list), Map { ints, value }) => Map {
                ints,
                value: Box::new(self.join(*value, *list)),
            },
            (
                Map { ints, value },
                Map {
                    ints: others,
                    value: other,
                },
            ) => Map {
                ints: ints && others,
                value: Box::new(self.join(*value, *other)),
            },
            (Record(mut fields), Empty) | (Empty, Record(mut fields)) => {
                fields.count += 1;
                fields.saw_empty = true;
                Record(fields)
            }
            (Record(fields), List(value)) | (List(value), Record(fields)) => {
                let of_fields = self.as_map(*fields);
                self.join_types(of_fields, List(value))
            }
            (Record(fields), Map { ints, value }) | (Map { ints, value }, Record(fields)) => {
                let of_fields = self.as_map(*fields);
                self.join_types(of_fields, Map { ints, value })
            }
            (Record(mut left), Record(right)) => {
                if left.class != right.class {
                    left.class = None;
                }
                self.merge(&mut left, *right);
                if left.list.len() > MOST_KEYS {
                    return self.as_map(*left);
                }
                Record(left)
            }
            (left, right) if left == right => left,
            _ => Any,
        }
    }

    /// The fields as a map: of texts to whatever they all are.
    pub(super) fn as_map(&mut self, fields: Fields) -> Type {
        if self.is_json && fields.saw_empty {
            return Type::Any;
        }
        let mut value = Slot::default();
        for field in fields.list {
            value = self.join(value, field.slot);
        }
        Type::Map {
            ints: false,
            value: Box::new(value),
        }
    }
}

impl Fields {
    /// Whether they are better read as a map: all of one type, and nothing says that they always come together.
    pub(super) fn is_map(&self) -> bool {
        let always = self.count > 1 && self.list.iter().all(|field| field.seen == self.count);
        let mut slots = self.list.iter().map(|field| &field.slot.ty);
        let Some(first) = slots.next() else {
            return true;
        };
        self.class.is_none() && !always && slots.all(|ty| are_alike(first, ty))
    }
}

impl Slot {
    pub(super) fn of(ty: Type) -> Self {
        Self {
            ty,
            ..Self::default()
        }
    }

    /// Of a value that cannot be looked at.
    fn opaque() -> Self {
        Self {
            ty: Type::Any,
            nullable: false,
            opaque: true,
        }
    }
}

/// Whether one type says of both as much as each says of itself.
fn are_alike(left: &Type, right: &Type) -> bool {
    use Type::{Any, Bytes, Empty, Float, Int, List, Map, Model, Record, Text, Unknown};
    match (left, right) {
        (Any, _) | (_, Any) => false,
        (Unknown | Empty, _)
        | (_, Unknown | Empty)
        | (Int, Float)
        | (Float, Int)
        | (Text, Bytes)
        | (Bytes, Text)
        | (Model(_), Model(_)) => true,
        (List(left), List(right)) => are_alike(&left.ty, &right.ty),
        (
            Map { ints, value },
            Map {
                ints: others,
                value: other,
            },
        ) => ints == others && are_alike(&value.ty, &other.ty),
        (Record(left), Record(right)) => {
            let names = |fields: &Fields| -> BTreeSet<String> {
                fields.list.iter().map(|field| field.name.clone()).collect()
            };
            let pairs = left.list.iter().filter_map(|field| {
                let same = right.list.iter().find(|other| other.name == field.name);
                same.map(|other| (&field.slot.ty, &other.slot.ty))
            });
            names(left) == names(right) && pairs.into_iter().all(|(l, r)| are_alike(l, r))
        }
        (left, right) => left == right,
    }
}

/// Whether names can be those of a struct's fields: such as people give, and no two the same.
fn are_fields(names: &[Cow<'_, str>]) -> bool {
    let is_field = |name: &str| {
        name.len() <= LONGEST_KEY
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '-')
            && name.contains(|c: char| c.is_ascii_alphanumeric())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let different: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    names.len() <= MOST_KEYS
        && different.len() == names.len()
        && names.iter().all(|name| is_field(name))
}

/// Classes whose objects have nothing in common: what is in one says nothing of another.
fn holds_anything(class: &ClassName) -> bool {
    const CONTAINERS: [&str; 3] = ["stdClass", "ArrayObject", "ArrayIterator"];
    let name = class.as_str();
    let starts = |prefix: &str| {
        let start = name.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    CONTAINERS.iter().any(|container| *class == **container)
        || starts("Illuminate\\Support\\")
        || starts("Illuminate\\Database\\Eloquent\\Collection")
        || starts("Spl")
}

/// Who may see the property that the codec shows under this name.
fn mark(object: &Object, shown: &str) -> Mark {
    let class = object.class.as_str();
    let (of, name) = match shown.rsplit_once("::") {
        Some((of, name)) => (Some(of), name),
        None => (None, shown),
    };
    let own = |key: &Key| {
        let Key::String(key) = key else { return None };
        let property = PropertyName::parse(key);
        match property.visibility {
            Visibility::Private(declaring) if !declaring.eq_ignore_ascii_case(class.as_bytes()) => {
                let declaring = String::from_utf8_lossy(declaring).into_owned();
                let is_it = property.name == name.as_bytes()
                    && of.is_none_or(|of| of.eq_ignore_ascii_case(&declaring));
                is_it.then_some(Mark::PrivateOf(declaring))
            }
            _ if property.name != shown.as_bytes() => None,
            Visibility::Private(_) => Some(Mark::Private),
            Visibility::Protected => Some(Mark::Protected),
            Visibility::Public => Some(Mark::Public),
        }
    };
    let marks = object.properties.iter().filter_map(|(key, _)| own(key));
    let mut marks: Vec<Mark> = marks.collect();
    // The object's own property is the one that bears the plain name.
    marks.sort_by_key(|mark| matches!(mark, Mark::PrivateOf(_)) == of.is_none());
    marks.into_iter().next().unwrap_or(Mark::Public)
}

/// What stands for a model, if the object has the fields that a handler reads.
fn model<'v>(object: &'v Object, graph: &Graph<'v>) -> Option<Type> {
    if object.class != *MODEL_IDENTIFIER {
        return None;
    }
    let property = |name: &str| {
        object
            .properties
            .iter()
            .rev()
            .find(|(key, _)| *key == Key::String(name.into()))
            .map(|(_, value)| follow(graph, value))
    };
    let is_text = |value: &Value| value.as_str().is_some();
    let is_key = |value: &Value| matches!(value, Value::Null | Value::Int(_)) || is_text(value);
    let all = |array: &'v Array, fits: &dyn Fn(&Value) -> bool| {
        let mut values = array.values();
        values.all(|value| follow(graph, value).is_some_and(fits))
    };
    let fits = |name: &str, fits: &dyn Fn(&'v Value) -> bool| match property(name) {
        None => true,
        Some(value) => value.is_some_and(fits),
    };
    let is_name = |value: &Value| matches!(value, Value::Null) || is_text(value);
    let are_names = |value: &'v Value| match value {
        Value::Array(array) => all(array, &is_text),
        value => *value == Value::Null,
    };
    let are_keys = |value: &'v Value| match value {
        Value::Array(array) => all(array, &is_key),
        value => is_key(value),
    };
    let is_model = fits("class", &is_name)
        && fits("id", &are_keys)
        && fits("relations", &are_names)
        && fits("connection", &is_name)
        && fits("collectionClass", &is_name);
    let class = property("class").flatten().and_then(Value::as_str);
    is_model.then(|| Type::Model(class.map(str::to_owned).into_iter().collect()))
}

/// Whether [`Date`] reads the object.
fn is_date<'v>(object: &'v Object, graph: &Graph<'v>) -> bool {
    let property = |name: &str| {
        let mut found = object.properties.iter().filter(|(key, _)| match key {
            Key::String(key) => PropertyName::parse(key).name == name.as_bytes(),
            Key::Int(_) => false,
        });
        match (found.next(), found.next()) {
            (Some((_, value)), None) => follow(graph, value),
            _ => None,
        }
    };
    let text = |name: &str| property(name).and_then(Value::as_str).map(str::to_owned);
    let (Some(date), Some(timezone)) = (text("date"), text("timezone")) else {
        return false;
    };
    let Some(timezone_type) = property("timezone_type").and_then(Value::as_int) else {
        return false;
    };
    let date = Date {
        date,
        timezone_type,
        timezone,
    };
    date.to_iso_8601().is_some()
}

/// JSON as PHP reads it.
fn of_json(json: &serde_json::Value, depth: usize) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::String(text) => Value::String(text.as_bytes().to_vec()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(float)) => Value::Float(float.into()),
            (None, None) => Value::Null,
        },
        // Deeper than anything that becomes a type.
        _ if depth > MOST_READ_LEVELS => Value::Null,
        Json::Array(list) => {
            let values = list.iter().map(|value| of_json(value, depth + 1));
            Value::Array(values.collect())
        }
        // No array: PHP writes an empty one as a list.
        Json::Object(map) if map.is_empty() => {
            Value::Object(Object::new(ClassName::new("stdClass").expect("a name")))
        }
        Json::Object(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| (Key::String(key.clone().into()), of_json(value, depth + 1)));
            Value::Array(Array {
                pairs: pairs.collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type in few words.
    fn shown(inference: &Inference, slot: &Slot) -> String {
        let text = match &slot.ty {
            Type::Unknown => "?".to_owned(),
            Type::Model(classes) => format!("model {classes:?}"),
            Type::List(element) => format!("[{}]", shown(inference, element)),
            Type::Map { ints, value } => {
                let key = if *ints { "int" } else { "text" };
                format!("{{{key}: {}}}", shown(inference, value))
            }
            Type::Record(fields) => format!("record{}", shown_fields(inference, fields)),
            Type::Object(index) => {
                let fields = &inference.classes[*index];
                let class = fields.class.as_ref().unwrap();
                format!("{class}{}", shown_fields(inference, fields))
            }
            Type::Enum(index) => format!("{:?}", inference.enums[*index].cases),
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
            inference.add(&value, &Graph::new(&value));
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
                inference.add(&value, &Graph::new(&value));
            }
            let Type::Record(fields) = &inference.root.ty else {
                panic!("{samples:?}: {:?}", inference.root);
            };
            assert_eq!(fields.is_map(), expected, "{samples:?}");
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
            inference.add(&value, &Graph::new(&value));
            assert!(inference.root.opaque);
            assert!(inference.values <= MOST_VALUES * 3);
        }
    }
}
