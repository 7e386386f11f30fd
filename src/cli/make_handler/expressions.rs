//! Types of fields, and their defaults, as Rust.

use proc_macro2::TokenStream;
use quote::quote;

use super::names::ident;
use super::render::{Writer, variants};
use super::shape::{Fields, Slot, Type};
use crate::php::Value;

/// Longest text that becomes a default in the file.
const LONGEST_DEFAULT: usize = 60;

/// PHP's date types.
const DATES: &str = "DateTime DateTimeImmutable DateTimeInterface Carbon\\Carbon \
    Carbon\\CarbonImmutable Carbon\\CarbonInterface Illuminate\\Support\\Carbon";

impl Writer<'_> {
    /// A value as Rust source, and whether it is the type's own default.
    pub(super) fn expression(&mut self, value: &Value, slot: &Slot) -> Option<(TokenStream, bool)> {
        let (text, is_rusts) = match (value, &slot.ty) {
            (Value::Null, _) => return slot.nullable.then(|| (quote!(None), true)),
            (Value::Bool(value), Type::Bool) => (value.to_string(), !value),
            (Value::Int(value), Type::Int) => (value.to_string(), *value == 0),
            (Value::Float(value), Type::Float) if value.get().is_finite() => {
                (format!("{:?}", value.get()), value.get().to_bits() == 0)
            }
            (Value::String(_), Type::Text) => {
                let text = value
                    .as_str()
                    .filter(|text| text.len() <= LONGEST_DEFAULT)?;
                (format!("String::from({text:?})"), text.is_empty())
            }
            (Value::Array(array), ty) if array.pairs.is_empty() => match ty {
                ty if ty.is_empty() => ("serde_json::Value::Array(Vec::new())".to_owned(), false),
                Type::List(_) => ("Vec::new()".to_owned(), true),
                Type::Map(..) => ("BTreeMap::new()".to_owned(), true),
                _ => return None,
            },
            (Value::Enum(case), Type::Enum(index)) => {
                let name = self.enum_name(*index);
                let mut variants = variants(&self.inference.enums[*index].1).into_iter();
                let (variant, _) = variants.find(|(_, known)| known.as_bytes() == &*case.case)?;
                (format!("{name}::{variant}"), false)
            }
            _ => return None,
        };
        if slot.nullable {
            return Some((format!("Some({text})").parse().ok()?, false));
        }
        Some((text.parse().ok()?, is_rusts))
    }

    /// The type that PHP's declaration gives.
    pub(super) fn declared(&self, text: &str) -> Slot {
        let models = self
            .manifest
            .into_iter()
            .flat_map(|manifest| manifest.models.keys());
        let models: Vec<&str> = models.map(String::as_str).collect();
        let mut slot = Slot {
            nullable: text.starts_with('?') || text == "mixed",
            ..Slot::default()
        };
        for part in text.trim_start_matches('?').split('|') {
            let is = |name: &str| part.eq_ignore_ascii_case(name);
            let ty = match part {
                "int" => Type::Int,
                "float" => Type::Float,
                "string" => Type::Text,
                "bool" | "true" | "false" => Type::Bool,
                "null" => Type::Unknown,
                _ if DATES.split(' ').any(is) => Type::Date,
                _ if models.iter().copied().any(is) => Type::Model([part.to_owned()].into()),
                _ => Type::Any,
            };
            let nullable = part == "null";
            slot = self.inference.join(
                slot,
                Slot {
                    ty,
                    nullable,
                    opaque: false,
                },
            );
        }
        // Other types give no information.
        if slot.ty == Type::Any {
            slot.ty = Type::Unknown;
        }
        slot
    }

    /// A type; a type that is not on the heap must not contain itself.
    pub(super) fn ty(&mut self, slot: &Slot, hint: &str, is_on_heap: bool) -> TokenStream {
        let mut of_crate = |name, ty| {
            self.crates.insert(name);
            ty
        };
        let ty = match &slot.ty {
            Type::Bool => quote!(bool),
            Type::Int => quote!(i64),
            Type::Float => quote!(f64),
            Type::Text => quote!(String),
            Type::Bytes => of_crate("serde_bytes", quote!(serde_bytes::ByteBuf)),
            Type::Date => quote!(artisand::php::Date),
            Type::Model(_) => {
                self.uses.insert("artisand::handler::ModelIdentifier");
                quote!(ModelIdentifier)
            }
            Type::List(element) if !slot.ty.is_empty() => {
                let element = self.ty(element, hint, true);
                quote!(Vec<#element>)
            }
            Type::Map(ints, value) => {
                self.uses.insert("std::collections::BTreeMap");
                let key = ident(if *ints { "i64" } else { "String" });
                let value = self.ty(value, hint, true);
                quote!(BTreeMap<#key, #value>)
            }
            Type::Record(fields) => self.record(fields, slot.opaque, hint),
            Type::Object(index) => {
                let is_inside = self.open.contains(index);
                let name = self.class_name(*index);
                if is_inside && !is_on_heap {
                    quote!(Box<#name>)
                } else {
                    quote!(#name)
                }
            }
            Type::Enum(index) => {
                let name = self.enum_name(*index);
                quote!(#name)
            }
            Type::Unknown | Type::List(_) | Type::Any if slot.opaque => of_crate(
                "serde (with its feature `derive`)",
                quote!(serde::de::IgnoredAny),
            ),
            Type::Unknown | Type::List(_) | Type::Any => {
                of_crate("serde_json", quote!(serde_json::Value))
            }
        };
        if slot.nullable {
            quote!(Option<#ty>)
        } else {
            ty
        }
    }

    fn record(&mut self, fields: &Fields, opaque: bool, hint: &str) -> TokenStream {
        let Some(ty) = self.inference.map_of(fields) else {
            let name = ident(&self.types.take(&[hint.to_owned()]));
            self.structure(&name, fields.clone());
            return quote!(#name);
        };
        let map = Slot {
            ty,
            nullable: false,
            opaque,
        };
        self.ty(&map, hint, true)
    }
}
