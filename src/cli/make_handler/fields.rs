//! The structs of the generated file, field by field.

use heck::ToLowerCamelCase as _;
use proc_macro2::TokenStream;
use quote::quote;
use syn::Ident;

use super::names::{Names, ident, quoted, snake, type_name};
use super::render::{Writer, docs};
use super::shape::{Field, Fields, Slot, Type};
use crate::app::{Class, Property};

impl Writer<'_> {
    pub(super) fn structure(&mut self, name: &Ident, mut fields: Fields) {
        let at = self.reserve();
        let known = fields.class.as_ref().zip(self.manifest);
        let known = known.and_then(|(class, manifest)| manifest.class(class));
        if let Some(known) = known {
            self.add_declared(known, &mut fields);
        }
        let mut names = Names::default();
        let mut lines = Vec::new();
        for field in &fields.list {
            lines.push((names.take(&[snake(&field.name, "field")]), field));
        }
        let is_camel = |(name, field): &(String, &Field)| {
            *name != field.name && name.to_lower_camel_case() == field.name
        };
        let is_camel = lines.iter().any(is_camel);
        let mut tokens = TokenStream::new();
        for (own, field) in lines {
            let php = &field.name;
            let is_same = *php
                == if is_camel {
                    own.to_lower_camel_case()
                } else {
                    own.clone()
                };
            let rename = (!is_same).then(|| quote!(rename = #php));
            let own = ident(&own);
            let (docs, ty, default) = self.field(name, &fields, field, known);
            if at == 0 && ty.to_string() == "ModelIdentifier" {
                self.model.get_or_insert_with(|| own.clone());
            }
            let arguments: Vec<_> = default.into_iter().chain(rename).collect();
            let attribute = (!arguments.is_empty()).then(|| quote!(#[serde(#(#arguments),*)]));
            tokens.extend(quote!(#docs #attribute pub #own: #ty,));
        }
        let class = fields.class.as_ref().map(|class| quoted(class.as_str()));
        let doc = docs(class.as_deref().unwrap_or("An array."));
        let rename_all = is_camel.then(|| quote!(#[serde(rename_all = "camelCase")]));
        self.items[at] = quote! {
            #doc
            #[derive(Debug, Deserialize)]
            #rename_all
            pub struct #name { #tokens }
        };
    }

    /// Adds properties that no sample has but the class declares.
    fn add_declared(&self, known: &Class, fields: &mut Fields) {
        for property in &known.properties {
            let name = &property.name;
            let is_laravels = property.class.starts_with("Illuminate\\")
                || self.inference.leaves_out(fields.class.as_ref(), name);
            if !is_laravels && fields.list.iter().all(|field| field.name != *name) {
                fields.list.push(Field {
                    name: name.clone(),
                    visibility: property.visibility.clone(),
                    slot: Slot::default(),
                    seen: 0,
                });
            }
        }
    }

    /// The comment of a field, its type, and serde's default if it is absent.
    pub(super) fn field(
        &mut self,
        of: &Ident,
        fields: &Fields,
        field: &Field,
        known: Option<&Class>,
    ) -> (TokenStream, TokenStream, Option<TokenStream>) {
        let property = known.and_then(|known| property(known, &field.name));
        let mut slot = field.slot.clone();
        if let Some(text) = property.and_then(|property| property.type_name.as_deref()) {
            let mut declared = self.declared(text);
            let is_model = matches!(declared.ty, Type::Model(_));
            if is_model && !known.is_some_and(Class::serializes_models) {
                declared.ty = Type::Unknown;
            }
            let joined = self.inference.join(slot.clone(), declared);
            // If bytes and declaration differ, the bytes are right.
            let ty = if joined.ty == Type::Any {
                slot.ty
            } else {
                joined.ty
            };
            slot = Slot { ty, ..joined };
        }
        // Since 9.4 `SerializesModels` leaves out properties that equal the class's default.
        let default = property.and_then(|property| property.default.as_ref());
        let leaves_out = known.is_some_and(Class::serializes_models) && default.is_some();
        if let Some(default) = default.filter(|_| leaves_out || field.seen == 0) {
            let of_default = self.inference.slot_of(default);
            slot = self.inference.join(slot, of_default);
        }
        let mut said = describe(field, &slot);
        let value = default.and_then(|default| self.expression(default, &slot));
        let is_absent = field.seen < fields.count || leaves_out;
        if is_absent {
            slot.nullable |= value.is_none();
            said += match (default, &value) {
                (Some(_), Some(_)) => "\nAbsent, it is the class's default.",
                (Some(_), None) => "\nAbsent, it is the class's default, which is no simple value.",
                (None, _) if field.visibility.is_empty() => "\nNot in all samples.",
                (None, _) => "\nNot in all samples: absent, it is the class's default.",
            };
        }
        let hint = type_name(&format!("{of} {}", field.name), "Item");
        let ty = self.ty(&slot, &hint, false);
        let default = is_absent.then(|| {
            let Some((value, false)) = value else {
                return quote!(default);
            };
            let name = snake(&format!("default {of} {}", field.name), "default");
            let name = self.values.take(&[name]);
            let function = ident(&name);
            self.functions
                .push(quote!(fn #function() -> #ty { #value }));
            quote!(default = #name)
        });
        (docs(&said), ty, default)
    }
}

/// A description of a field.
fn describe(field: &Field, slot: &Slot) -> String {
    let name = field.name.rsplit("::").next().unwrap_or(&field.name);
    let what = if field.visibility.is_empty() {
        format!("The key {}", quoted(&field.name))
    } else {
        format!("{} ({})", quoted(&format!("${name}")), field.visibility)
    };
    let more = match &slot.ty {
        Type::Model(classes) if classes.is_empty() => ": a model or a collection",
        Type::Model(classes) => {
            let classes: Vec<String> = classes.iter().map(|class| quoted(class)).collect();
            &format!(": a model, {}", classes.join(" or "))
        }
        Type::Unknown if slot.nullable => ": only null was seen",
        Type::Unknown => ": no value was seen",
        ty if ty.is_empty() => ": only the empty array was seen",
        Type::Any if slot.opaque => ": leads in a circle or too deep, is skipped",
        Type::Any => ": values of several types",
        _ => "",
    };
    format!("{what}{more}.")
}

/// The declaration of a property, by the codec's name for it.
fn property<'c>(known: &'c Class, shown: &str) -> Option<&'c Property> {
    let (class, name) = shown.rsplit_once("::").unwrap_or(("", shown));
    let is_of = |declaring: &str| class.is_empty() || declaring.eq_ignore_ascii_case(class);
    let is_it = |property: &&Property| property.name == name && is_of(&property.class);
    // The class's own property comes after private ones of parents.
    known.properties.iter().rfind(is_it)
}
