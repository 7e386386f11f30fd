//! The file: a struct, a handler, and how to put them to use.
//!
//! The text is what rustfmt makes of it, so that the first change to the file
//! shows no other. Nothing in it is taken over from a payload as it is; see
//! [`names`](super::names).

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;

use super::names::{Names, camel, literal, quoted, raw, snake, toml_pattern, type_name};
use super::types::{Cases, Field, Fields, Inference, Mark, Slot, Type};
use crate::app::{Class, Manifest, Property};
use crate::payload::Kind;
use crate::php::{ClassName, Value};

/// Longest line that rustfmt leaves alone.
const WIDTH: usize = 100;
/// Longest arguments of an attribute that rustfmt leaves on one line.
const ATTRIBUTE_WIDTH: usize = 70;

/// Longest arguments of a call that rustfmt leaves on one line.
const CALL_WIDTH: usize = 60;

/// What the file is about.
#[derive(Debug)]
pub(super) struct About {
    /// What is handled.
    pub(super) kind: Kind,
    /// Its name, as mappings match it.
    pub(super) name: String,
    /// The method of a listener or string job.
    pub(super) method: Option<String>,
    /// Channels of a notification that were seen.
    pub(super) channels: BTreeSet<String>,
    /// What the types were inferred from, in words.
    pub(super) sources: String,
    /// What else is to be said.
    pub(super) notes: Vec<String>,
}

/// How jobs of a kind are mapped, and how a handler takes them.
struct Form {
    /// Key of the mapping.
    key: &'static str,
    /// Type around the handler's own, if there is one.
    view: Option<&'static str>,
    /// What the handler's own type is, where its class does not name it.
    suffix: &'static str,
}

fn form(kind: Kind) -> Form {
    let (key, view, suffix) = match kind {
        Kind::Job | Kind::Closure | Kind::Batch => ("job", None, "Job"),
        Kind::Listener => ("listener", Some("Listener"), "Event"),
        Kind::Notification => ("notification", Some("Notification"), "Notification"),
        Kind::Mailable => ("mailable", Some("Mailable"), "Mailable"),
        Kind::Broadcast => ("broadcast", Some("Broadcast"), "Event"),
        Kind::Command => ("command", Some("ArtisanCommand"), "Parameters"),
        Kind::String => ("string", Some("StringJob"), "Data"),
    };
    Form { key, view, suffix }
}

/// What the handler is for, in words.
fn purpose(about: &About) -> String {
    let name = quoted(&about.name);
    match about.kind {
        Kind::Job | Kind::Closure | Kind::Batch => format!("Does what `handle()` of {name} does"),
        Kind::Listener | Kind::String => {
            let method = about.method.as_deref().unwrap_or("handle");
            format!("Does what the method {} of {name} does", quoted(method))
        }
        Kind::Notification => format!("Sends the notification {name} as its channels do"),
        Kind::Mailable => format!("Sends the mailable {name} as the mailer does"),
        Kind::Broadcast => format!("Broadcasts the event {name} as the broadcaster does"),
        Kind::Command => format!("Does what the artisan command {name} does"),
    }
}

/// Writes the file.
pub(super) fn render(about: &About, inference: Inference, manifest: Option<&Manifest>) -> String {
    let mut writer = Writer {
        inference,
        manifest,
        types: Names::of_types(),
        values: Names::default(),
        class_names: HashMap::new(),
        enum_names: HashMap::new(),
        pending: VecDeque::new(),
        items: String::new(),
        uses_map: false,
        uses_model: false,
        uses_serde: false,
        root: String::new(),
        model_field: None,
        crates: BTreeSet::new(),
    };
    writer.values.take(&["register".to_owned()]);
    writer.file(about)
}

enum Item {
    Class(usize),
    Record {
        name: String,
        fields: Box<Fields>,
        owner: Option<usize>,
    },
    Enum(usize),
}

struct Writer<'a> {
    inference: Inference,
    manifest: Option<&'a Manifest>,
    types: Names,
    values: Names,
    class_names: HashMap<usize, String>,
    enum_names: HashMap<usize, String>,
    pending: VecDeque<Item>,
    items: String,
    uses_map: bool,
    uses_model: bool,
    uses_serde: bool,
    /// Name of the handler's own type.
    root: String,
    /// The first field of the handler's own type that is a model and always there.
    model_field: Option<String>,
    /// Other crates that the file needs.
    crates: BTreeSet<&'static str>,
}

/// A field as it is written.
struct Line {
    docs: Vec<String>,
    /// What serde reads it from.
    php: String,
    name: String,
    ty: String,
    default: Option<String>,
    is_model: bool,
}

impl Writer<'_> {
    fn file(mut self, about: &About) -> String {
        let form = form(about.kind);
        let base = about.name.rsplit('\\').next().unwrap_or(&about.name);
        let root = self.root(base, &form);
        self.root.clone_from(&root);
        let method = about.method.as_deref().filter(|method| {
            !matches!(*method, "handle" | "fire" | "__invoke") && about.kind != Kind::Job
        });
        let function = match method {
            Some(method) => snake(&format!("{base} {method}"), "handle"),
            None => snake(base, "handle"),
        };
        let function = self.values.take(&[function]);
        while let Some(item) = self.pending.pop_front() {
            self.item(item);
        }
        let handler = self.handler(about, &form, &root, &function);
        let mut out = self.header(about, &form, &function);
        out.push('\n');
        if self.uses_map {
            out.push_str("use std::collections::BTreeMap;\n\n");
        }
        let mut names = vec!["BoxError", "JobContext"];
        if self.uses_model {
            names.push("ModelIdentifier");
        }
        names.push("Registry");
        names.sort_unstable();
        if let Some(view) = form.view {
            let _ = writeln!(out, "use artisand::handler::view::{view};");
        }
        let _ = writeln!(
            out,
            "use artisand::handler::{{self, {}}};",
            names.join(", ")
        );
        if self.uses_serde {
            out.push_str("use serde::Deserialize;\n");
        }
        out.push_str(&handler);
        out.push_str(&self.items);
        out
    }

    /// The handler's own type.
    fn root(&mut self, base: &str, form: &Form) -> String {
        let slot = std::mem::take(&mut self.inference.root);
        let name = match &slot.ty {
            Type::Object(index) if !slot.nullable => return self.class_name(*index),
            Type::Any if !slot.opaque && !slot.nullable => {
                self.crates.insert("serde_json");
                return "serde_json::Value".to_owned();
            }
            _ => {
                let name = type_name(base, "");
                self.types
                    .take(&[type_name(&format!("{name}{}", form.suffix), form.suffix)])
            }
        };
        if let Slot {
            ty: Type::Record(fields),
            nullable: false,
            ..
        } = slot
        {
            self.pending.push_back(Item::Record {
                name: name.clone(),
                fields,
                owner: None,
            });
            return name;
        }
        let inner = self.type_text(&slot, &name, None);
        self.uses_serde = true;
        let line = format!("pub struct {name}(pub {inner});");
        let skip = if line.len() > WIDTH {
            "#[rustfmt::skip]\n"
        } else {
            ""
        };
        let _ = write!(
            self.items,
            "\n/// What PHP gave the job.\n#[derive(Debug, Deserialize)]\n{skip}{line}\n"
        );
        name
    }

    fn header(&self, about: &About, form: &Form, function: &str) -> String {
        let mut out = format!(
            "//! Handler of the {} {}, made by `artisand make:handler`.\n//!\n",
            match about.kind {
                Kind::Broadcast => "broadcast event".to_owned(),
                Kind::Command => "artisan command".to_owned(),
                Kind::String => "string job".to_owned(),
                kind => kind.to_string(),
            },
            quoted(&about.name)
        );
        let mut line = |text: &str| {
            let _ = writeln!(out, "//! {text}");
        };
        line(&format!("Types are those of {}.", about.sources));
        for note in &about.notes {
            line(note);
        }
        let _ = writeln!(out, "//!\n//! In `artisand.toml`:\n//!\n//! ```toml");
        let target = match (about.kind, &about.method) {
            (Kind::Listener | Kind::String, Some(method)) => format!("{}@{method}", about.name),
            _ => about.name.clone(),
        };
        let _ = writeln!(out, "//! [[map]]");
        let _ = writeln!(out, "//! {} = {}", form.key, toml_pattern(&target));
        if let (1, Some(channel)) = (about.channels.len(), about.channels.first()) {
            let _ = writeln!(out, "//! channel = {}", toml_pattern(channel));
        }
        let _ = writeln!(out, "//! handler = \"{function}\"\n//! ```");
        if about.channels.len() > 1 {
            let channels: Vec<String> = about.channels.iter().map(|name| quoted(name)).collect();
            let _ = writeln!(
                out,
                "//!\n//! Channels seen: {}; `channel = ..` in the mapping chooses one.",
                channels.join(", ")
            );
        }
        let mut crates = vec!["artisand"];
        if self.uses_serde {
            crates.push("serde (with its feature `derive`)");
        }
        let more = self
            .crates
            .iter()
            .filter(|name| **name != "serde" || !self.uses_serde);
        crates.extend(more);
        let _ = writeln!(
            out,
            "//!\n//! Give `register` the worker's registry. Needs the crates {}.",
            crates.join(", ")
        );
        out
    }

    fn handler(&self, about: &About, form: &Form, root: &str, function: &str) -> String {
        let argument = match form.view {
            // Its parameters are read when they are asked for.
            Some(view) if about.kind == Kind::Command => view.to_owned(),
            Some(view) => format!("{view}<{root}>"),
            None => root.to_owned(),
        };
        let name = raw(function);
        let one_line = format!(
            "pub async fn {name}(job: {argument}, context: JobContext) -> Result<(), BoxError> {{"
        );
        let signature = if one_line.len() <= WIDTH {
            one_line
        } else {
            format!(
                "pub async fn {name}(\n    job: {argument},\n    context: JobContext,\n) -> Result<(), BoxError> {{"
            )
        };
        let mut body = String::new();
        if about.kind == Kind::Command {
            let _ = writeln!(body, "    let parameters: {root} = job.parameters()?;");
        }
        if let (Some(field), None) = (&self.model_field, form.view) {
            let _ = writeln!(
                body,
                "    // The row of a model: `let row: YourRow = context.model(&job.{field}).await?;`"
            );
        }
        let taken = if about.kind == Kind::Command {
            "parameters"
        } else {
            "job"
        };
        let mut out = format!(
            "\n/// {} in PHP.\n///\n/// # Errors\n///\n/// An error is what an exception is in PHP: the job is tried again, or fails.\n{signature}\n{body}",
            purpose(about)
        );
        let _ = writeln!(
            out,
            "    // As long as nothing is written here the job must not count as done.\n    let _ = {taken};\n    Err(format!(\"no code yet, attempt {{}}\", context.attempts()).into())\n}}"
        );
        let arguments = format!("\"{function}\", handler::function({name})");
        let with = if arguments.len() <= CALL_WIDTH {
            format!("    registry.with({arguments})\n")
        } else {
            format!(
                "    registry.with(\n        \"{function}\",\n        handler::function({name}),\n    )\n"
            )
        };
        let _ = write!(
            out,
            "\n/// Adds the handler to those of a worker.\npub fn register(registry: Registry) -> Registry {{\n{with}}}\n"
        );
        out
    }

    fn class_name(&mut self, index: usize) -> String {
        if let Some(name) = self.class_names.get(&index) {
            return name.clone();
        }
        let class = self.inference.classes[index].class.as_ref();
        let name = self.types.take(&candidates(class, "Object"));
        self.class_names.insert(index, name.clone());
        self.pending.push_back(Item::Class(index));
        name
    }

    fn enum_name(&mut self, index: usize) -> String {
        if let Some(name) = self.enum_names.get(&index) {
            return name.clone();
        }
        let class = &self.inference.enums[index].class;
        let name = self.types.take(&candidates(Some(class), "Enum"));
        self.enum_names.insert(index, name.clone());
        self.pending.push_back(Item::Enum(index));
        name
    }

    fn item(&mut self, item: Item) {
        match item {
            Item::Class(index) => {
                let fields = self.inference.classes[index].clone();
                let name = self.class_names[&index].clone();
                self.structure(&name, fields, Some(index));
            }
            Item::Record {
                name,
                fields,
                owner,
            } => self.structure(&name, *fields, owner),
            Item::Enum(index) => self.enumeration(index),
        }
    }

    fn enumeration(&mut self, index: usize) {
        let Cases { class, cases } = self.inference.enums[index].clone();
        let name = self.enum_names[&index].clone();
        self.uses_serde = true;
        let _ = write!(
            self.items,
            "\n/// Cases of {} that were seen; add the others of the PHP enum.\n#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]\npub enum {name} {{\n",
            quoted(class.as_str())
        );
        for (variant, case) in variants(&cases) {
            let _ = writeln!(self.items, "    /// `case` {}", quoted(&case));
            if variant != case {
                let arguments = [format!("rename = {}", literal(&case))];
                self.items.push_str(&attribute(&arguments));
            }
            let _ = writeln!(self.items, "    {variant},");
        }
        self.items.push_str("}\n");
    }

    fn structure(&mut self, name: &str, mut fields: Fields, owner: Option<usize>) {
        self.uses_serde = true;
        let manifest = self.manifest;
        let known = fields.class.as_ref().zip(manifest);
        let known = known.and_then(|(class, manifest)| manifest.class(class));
        if let Some(known) = known {
            self.add_declared(known, &mut fields);
        }
        let doc = match &fields.class {
            Some(class) => quoted(class.as_str()),
            None => "An array.".to_owned(),
        };
        let mut names = Names::default();
        let mut defaults = String::new();
        let mut lines = Vec::new();
        for field in fields.list.clone() {
            let property = known.and_then(|known| property(known, &field));
            let line = self.line(name, &fields, field, property, known, owner, &mut defaults);
            let ident = names.take(&[snake(&line.php, "field")]);
            lines.push(Line {
                name: ident,
                ..line
            });
        }
        let is_camel = lines
            .iter()
            .any(|line| line.name != line.php && camel(&line.name) == line.php);
        if self.root == name {
            let model = lines.iter().find(|line| line.is_model);
            self.model_field = model.map(|line| raw(&line.name));
        }
        let _ = write!(self.items, "\n/// {doc}\n#[derive(Debug, Deserialize)]\n");
        if is_camel {
            self.items
                .push_str("#[serde(rename_all = \"camelCase\")]\n");
        }
        if lines.is_empty() {
            let _ = writeln!(self.items, "pub struct {name} {{}}");
        } else {
            let _ = writeln!(self.items, "pub struct {name} {{");
            for line in &lines {
                self.field(line, is_camel);
            }
            self.items.push_str("}\n");
        }
        self.items.push_str(&defaults);
    }

    fn field(&mut self, line: &Line, is_camel: bool) {
        for doc in &line.docs {
            let _ = writeln!(self.items, "    /// {doc}.");
        }
        let read_from = if is_camel {
            camel(&line.name)
        } else {
            line.name.clone()
        };
        let mut arguments = Vec::new();
        arguments.extend(line.default.clone());
        if read_from != line.php {
            arguments.push(format!("rename = {}", literal(&line.php)));
        }
        if !arguments.is_empty() {
            self.items.push_str(&attribute(&arguments));
        }
        let ident = raw(&line.name);
        let ty = &line.ty;
        if ident.len() + ty.len() + 11 > WIDTH {
            self.items.push_str("    #[rustfmt::skip]\n");
        }
        let _ = writeln!(self.items, "    pub {ident}: {ty},");
    }

    /// Adds what no sample has, but the class declares.
    fn add_declared(&mut self, known: &Class, fields: &mut Fields) {
        let left_out = self.inference.left_out;
        let is_root = fields.class == self.inference.root_class;
        for property in &known.properties {
            let is_laravels = property.class.starts_with("Illuminate\\");
            let is_left_out = is_root && left_out.is_some_and(|left_out| left_out(&property.name));
            let is_there = fields.list.iter().any(|field| field.name == property.name);
            if is_laravels || is_left_out || is_there {
                continue;
            }
            fields.list.push(Field {
                name: property.name.clone(),
                mark: match &*property.visibility {
                    "protected" => Mark::Protected,
                    "private" => Mark::Private,
                    _ => Mark::Public,
                },
                slot: Slot::default(),
                seen: 0,
            });
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one struct")]
    fn line(
        &mut self,
        of: &str,
        fields: &Fields,
        field: Field,
        property: Option<&Property>,
        known: Option<&Class>,
        owner: Option<usize>,
        defaults: &mut String,
    ) -> Line {
        let Field {
            name,
            mark,
            mut slot,
            seen,
        } = field;
        let declared = property.and_then(|property| property.type_name.as_deref());
        if let Some(declared) = declared.map(|text| self.declared(text)) {
            slot.nullable |= declared.nullable;
            let is_scalar = matches!(
                declared.ty,
                Type::Bool | Type::Int | Type::Float | Type::Text
            );
            if seen == 0 || (is_scalar && slot.ty != Type::Any) {
                slot = self.inference.join(slot, declared);
            }
        }
        // Since 9.4 `SerializesModels` leaves out what is equal to the class's default.
        let default = property.and_then(|property| property.default.as_ref());
        let leaves_out = known.is_some_and(Class::serializes_models) && default.is_some();
        let is_missing = seen < fields.count;
        if let Some(default) = default.filter(|_| leaves_out || seen == 0) {
            let of_default = self.inference.slot_of(default);
            slot = self.inference.join(slot, of_default);
        }
        let mut docs = vec![describe(&name, &mark, &slot)];
        let absent = (is_missing || leaves_out).then(|| {
            let (said, absent) = self.absent(&mut slot, default, &mark);
            docs.push(said.to_owned());
            absent
        });
        let hint = type_name(&format!("{of} {name}"), "Item");
        let is_model = matches!(slot.ty, Type::Model(_)) && !slot.nullable;
        let mut ty = self.type_text(&slot, &hint, owner);
        if let (Type::Object(inner), Some(owner)) = (&slot.ty, owner)
            && !self.inference.classes[*inner].is_wide
            && self.reaches(*inner, owner)
        {
            ty = match ty.strip_prefix("Option<") {
                Some(rest) => format!("Option<Box<{}>>", &rest[..rest.len() - 1]),
                None => format!("Box<{ty}>"),
            };
        }
        let default = absent.map(|absent| match absent {
            None => "default".to_owned(),
            Some(value) => {
                let function = snake(&format!("default {of} {name}"), "default");
                let function = self.values.take(&[function]);
                let _ = write!(defaults, "\nfn {function}() -> {ty} {{\n    {value}\n}}\n");
                format!("default = \"{function}\"")
            }
        });
        Line {
            docs,
            php: name,
            name: String::new(),
            ty,
            default,
            is_model,
        }
    }

    /// What is said of a field that may be absent, and its value then, unless it is the type's own default.
    fn absent(
        &mut self,
        slot: &mut Slot,
        default: Option<&Value>,
        mark: &Mark,
    ) -> (&'static str, Option<String>) {
        let Some(value) = default else {
            slot.nullable = true;
            let said = if *mark == Mark::Key {
                "Not in all samples"
            } else {
                "Not in all samples: absent, it is the class's default"
            };
            return (said, None);
        };
        if let Some((text, is_rusts)) = self.expression(value, slot) {
            let text = (!is_rusts).then_some(text);
            return ("Absent, it is the class's default", text);
        }
        slot.nullable = true;
        let said = "Absent, it is the class's default, which is no simple value";
        (said, None)
    }

    /// A value as Rust writes it, and whether it is the type's own default.
    fn expression(&mut self, value: &Value, slot: &Slot) -> Option<(String, bool)> {
        if *value == Value::Null {
            return slot.nullable.then(|| ("None".to_owned(), true));
        }
        let (text, is_rusts) = match (value, &slot.ty) {
            (Value::Bool(value), Type::Bool) => (value.to_string(), !value),
            (Value::Int(value), Type::Int) => (value.to_string(), *value == 0),
            (Value::Int(value), Type::Float) => (format!("{value}.0"), *value == 0),
            (Value::Float(value), Type::Float) if value.get().is_finite() => {
                let value = value.get();
                (format!("{value:?}"), value.to_bits() == 0)
            }
            (Value::String(_), Type::Text) => {
                let text = value.as_str()?;
                let literal = literal(text);
                if literal.len() > 60 {
                    return None;
                }
                (format!("String::from({literal})"), text.is_empty())
            }
            (Value::Array(array), Type::List(_) | Type::Map { .. }) if array.pairs.is_empty() => {
                let ty = if matches!(slot.ty, Type::List(_)) {
                    "Vec"
                } else {
                    "BTreeMap"
                };
                (format!("{ty}::new()"), true)
            }
            (Value::Array(array), Type::Empty) if array.pairs.is_empty() => {
                ("serde_json::Value::Array(Vec::new())".to_owned(), false)
            }
            (Value::Enum(case), Type::Enum(index)) => {
                let name = self.enum_name(*index);
                let cases = variants(&self.inference.enums[*index].cases);
                let (variant, _) = cases
                    .into_iter()
                    .find(|(_, known)| known.as_bytes() == &*case.case)?;
                (format!("{name}::{variant}"), false)
            }
            _ => return None,
        };
        Some(if slot.nullable {
            (format!("Some({text})"), false)
        } else {
            (text, is_rusts)
        })
    }

    /// What PHP's declaration says of a type; of else it says nothing.
    fn declared(&mut self, text: &str) -> Slot {
        const DATES: [&str; 7] = [
            "DateTime",
            "DateTimeImmutable",
            "DateTimeInterface",
            "Carbon\\Carbon",
            "Carbon\\CarbonImmutable",
            "Carbon\\CarbonInterface",
            "Illuminate\\Support\\Carbon",
        ];
        let (nullable, text) = match text.strip_prefix('?') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let mut slot = Slot {
            nullable,
            ..Slot::default()
        };
        let mut is_unknown = false;
        for part in text.split('|') {
            let ty = match part {
                "null" => {
                    slot.nullable = true;
                    continue;
                }
                "int" => Type::Int,
                "float" => Type::Float,
                "string" => Type::Text,
                "bool" | "true" | "false" => Type::Bool,
                "mixed" => {
                    slot.nullable = true;
                    Type::Any
                }
                part => {
                    let class = ClassName::new(part);
                    let is = |name: &str| class.as_ref().is_some_and(|class| *class == *name);
                    let models = self.manifest.map(|manifest| &manifest.models);
                    let is_model = models.is_some_and(|models| models.keys().any(|name| is(name)));
                    if DATES.iter().any(|date| is(date)) {
                        Type::Date
                    } else if is_model {
                        Type::Model([part.to_owned()].into())
                    } else {
                        is_unknown = true;
                        continue;
                    }
                }
            };
            slot = self.inference.join(slot, Slot::of(ty));
        }
        if is_unknown {
            slot.ty = Type::Unknown;
        }
        slot
    }

    fn type_text(&mut self, slot: &Slot, path: &str, owner: Option<usize>) -> String {
        let text = self.bare_type_text(slot, path, owner);
        if slot.nullable {
            format!("Option<{text}>")
        } else {
            text
        }
    }

    fn bare_type_text(&mut self, slot: &Slot, path: &str, owner: Option<usize>) -> String {
        match &slot.ty {
            Type::Bool => "bool".to_owned(),
            Type::Int => "i64".to_owned(),
            Type::Float => "f64".to_owned(),
            Type::Text => "String".to_owned(),
            Type::Bytes => {
                self.crates.insert("serde_bytes");
                "serde_bytes::ByteBuf".to_owned()
            }
            Type::Date => "artisand::php::Date".to_owned(),
            Type::Model(_) => {
                self.uses_model = true;
                "ModelIdentifier".to_owned()
            }
            Type::List(element) => format!("Vec<{}>", self.type_text(element, path, owner)),
            Type::Map { ints, value } => {
                self.uses_map = true;
                let key = if *ints { "i64" } else { "String" };
                format!("BTreeMap<{key}, {}>", self.type_text(value, path, owner))
            }
            Type::Record(fields) if fields.is_wide || fields.is_map() => {
                let ty = self.inference.as_map((**fields).clone());
                let slot = Slot {
                    ty,
                    nullable: false,
                    opaque: slot.opaque,
                };
                self.bare_type_text(&slot, path, owner)
            }
            Type::Record(fields) => {
                let name = self.types.take(&[type_name(path, "Item")]);
                self.pending.push_back(Item::Record {
                    name: name.clone(),
                    fields: fields.clone(),
                    owner,
                });
                name
            }
            Type::Object(index) if !self.inference.classes[*index].is_wide => {
                self.class_name(*index)
            }
            Type::Enum(index) => self.enum_name(*index),
            Type::Unknown | Type::Empty | Type::Any | Type::Object(_) => {
                if slot.opaque {
                    self.crates.insert("serde");
                    "serde::de::IgnoredAny".to_owned()
                } else {
                    self.crates.insert("serde_json");
                    "serde_json::Value".to_owned()
                }
            }
        }
    }

    /// Whether a struct holds another, or itself, without a list or map between.
    fn reaches(&self, from: usize, target: usize) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![from];
        while let Some(index) = open.pop() {
            if index == target {
                return true;
            }
            if seen.insert(index) {
                held(&self.inference.classes[index], &mut open);
            }
        }
        false
    }
}

/// The structs that fields hold as they are.
fn held(fields: &Fields, into: &mut Vec<usize>) {
    for field in &fields.list {
        match &field.slot.ty {
            Type::Object(index) => into.push(*index),
            Type::Record(fields) => held(fields, into),
            _ => {}
        }
    }
}

/// An attribute on a field or variant.
fn attribute(arguments: &[String]) -> String {
    let one_line = arguments.join(", ");
    if one_line.len() <= ATTRIBUTE_WIDTH {
        format!("    #[serde({one_line})]\n")
    } else {
        let lines = arguments.join(",\n        ");
        format!("    #[serde(\n        {lines}\n    )]\n")
    }
}

/// What a field is, in words.
fn describe(name: &str, mark: &Mark, slot: &Slot) -> String {
    let property = || quoted(&format!("${}", name.rsplit("::").next().unwrap_or(name)));
    let mut text = match mark {
        Mark::Public => format!("{} (public)", property()),
        Mark::Protected => format!("{} (protected)", property()),
        Mark::Private => format!("{} (private)", property()),
        Mark::PrivateOf(class) => format!("{} (private of {})", property(), quoted(class)),
        Mark::Key => format!("The key {}", quoted(name)),
    };
    match &slot.ty {
        Type::Model(classes) if classes.is_empty() => text.push_str(": a model or a collection"),
        Type::Model(classes) => {
            let classes: Vec<String> = classes.iter().map(|class| quoted(class)).collect();
            let _ = write!(text, ": a model, {}", classes.join(" or "));
        }
        Type::Unknown if slot.nullable => text.push_str(": only null was seen"),
        Type::Unknown => text.push_str(": no value was seen"),
        Type::Empty => text.push_str(": only the empty array was seen"),
        Type::Any if slot.opaque => text.push_str(": leads in a circle or too deep, is skipped"),
        Type::Any => text.push_str(": values of several types"),
        _ => {}
    }
    text
}

/// The declaration of a property.
fn property<'c>(known: &'c Class, field: &Field) -> Option<&'c Property> {
    let is_it = |property: &&Property| match &field.mark {
        Mark::PrivateOf(class) => {
            property.class.eq_ignore_ascii_case(class)
                && field.name.rsplit("::").next() == Some(&property.name)
        }
        Mark::Key => false,
        _ => property.name == field.name,
    };
    // The class's own comes behind those that parents keep to themselves.
    known.properties.iter().rfind(is_it)
}

/// Names for the type of a class: its own, then with the namespaces around it.
fn candidates(class: Option<&ClassName>, or: &str) -> Vec<String> {
    let name = class.map_or("", ClassName::as_str);
    let parts: Vec<&str> = name.split('\\').collect();
    let from = |start: usize| type_name(&parts[start..].join(" "), or);
    (0..parts.len()).rev().map(from).collect()
}

/// Variants for the cases of an enum.
fn variants(cases: &[String]) -> Vec<(String, String)> {
    let mut names = Names::default();
    // `Self` is the one name that no variant can have.
    names.take(&["Self".to_owned()]);
    let variant = |case: &String| {
        // `IN_PROGRESS`
        let text = if case.bytes().any(|byte| byte.is_ascii_lowercase()) {
            case.clone()
        } else {
            case.to_lowercase().replace('_', " ")
        };
        (names.take(&[type_name(&text, "Case")]), case.clone())
    };
    cases.iter().map(variant).collect()
}
