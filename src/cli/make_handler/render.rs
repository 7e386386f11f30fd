//! The generated file: a struct, a handler, and how to use them.
//!
//! It is built from tokens and printed by `prettyplease`. Contents of payloads become
//! identifiers, literals or doc comments, and never code; see
//! [`names`](super::names).

use std::collections::{BTreeSet, HashMap};

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Ident, Item};

use super::names::{Names, ident, quoted, snake, toml_pattern, type_name};
use super::shape::Type;
use super::target::{method, whole_name};
use super::types::Inference;
use crate::app::Manifest;
use crate::payload::{Kind, Target};
use crate::php::ClassName;

/// The contents of the file.
#[derive(Debug)]
pub(super) struct FileHeader {
    /// The target of the handler.
    pub(super) target: Target,
    /// Further lines of the mapping.
    pub(super) mapping: String,
    /// The sources of the types, in words.
    pub(super) sources: String,
    /// What else PHP does around the class's jobs, as lines of a list.
    pub(super) notes: String,
}

/// Writes the file.
pub(super) fn render(
    about: &FileHeader,
    inference: Inference,
    manifest: Option<&Manifest>,
) -> syn::Result<String> {
    let mut writer = Writer {
        inference,
        manifest,
        types: Names::of_types(),
        ..Writer::default()
    };
    writer.values.take(&["register".to_owned()]);
    writer.crates.insert("artisand");
    writer.uses.insert("artisand::handler::BoxError");
    writer
        .uses
        .insert("artisand::{JobContext, Registry, handler}");
    let mut file: syn::File = syn::parse2(writer.file(about)?)?;
    let is_use = |item: &Item| matches!(item, Item::Use(_));
    let (uses, items): (Vec<Item>, Vec<Item>) = file.items.drain(..).partition(is_use);
    let mut text = prettyplease::unparse(&file);
    file.attrs.clear();
    // An empty line between items, but none between `use` lines.
    for part in std::iter::once(uses).chain(items.into_iter().map(|item| vec![item])) {
        file.items = part;
        text.push('\n');
        text.push_str(&prettyplease::unparse(&file));
    }
    Ok(text)
}

#[derive(Default)]
pub(super) struct Writer<'a> {
    pub(super) inference: Inference,
    pub(super) manifest: Option<&'a Manifest>,
    pub(super) types: Names,
    pub(super) values: Names,
    pub(super) class_names: HashMap<usize, Ident>,
    pub(super) enum_names: HashMap<usize, Ident>,
    /// Classes whose structs are being written, outermost first.
    pub(super) open: Vec<usize>,
    /// Types, the handler's own first.
    pub(super) items: Vec<TokenStream>,
    /// Functions that return defaults.
    pub(super) functions: Vec<TokenStream>,
    /// Imports of the file.
    pub(super) uses: BTreeSet<&'static str>,
    /// Crates that the file needs.
    pub(super) crates: BTreeSet<&'static str>,
    /// The first field of the handler's own type that is a model and always present.
    pub(super) model: Option<Ident>,
}

/// What the file says of a kind of job.
struct Wording {
    /// The key of the mapping.
    key: &'static str,
    /// The kind in words.
    words: &'static str,
    /// The view around the handler's own type.
    view: &'static str,
    /// The suffix of that type's name if its class does not give one.
    suffix: &'static str,
    /// The handler's purpose.
    does: &'static str,
}

impl Wording {
    fn of(kind: Kind) -> Self {
        #[rustfmt::skip]
        let (key, words, view, suffix, does) = match kind {
            Kind::Job | Kind::Closure | Kind::Batch => ("job", "job", "", "Job", "Does what `handle()` of {name} does"),
            Kind::Listener => ("listener", "listener", "artisand::handler::view::Listener", "Event", "Does what the method {method} of {name} does"),
            Kind::Notification => ("notification", "notification", "artisand::handler::view::Notification", "Notification", "Sends the notification {name} as its channels do"),
            Kind::Mailable => ("mailable", "mailable", "artisand::handler::view::Mailable", "Mailable", "Sends the mailable {name} as the mailer does"),
            Kind::Broadcast => ("broadcast", "broadcast event", "artisand::handler::view::Broadcast", "Event", "Broadcasts the event {name} as the broadcaster does"),
            Kind::Command => ("command", "artisan command", "artisand::handler::view::ArtisanCommand", "Parameters", "Does what the artisan command {name} does"),
            Kind::String => ("string", "string job", "artisand::handler::view::StringJob", "Data", "Does what the method {method} of {name} does"),
        };
        Self {
            key,
            words,
            view,
            suffix,
            does,
        }
    }
}

impl Writer<'_> {
    fn file(&mut self, about: &FileHeader) -> syn::Result<TokenStream> {
        let (kind, target) = (about.target.kind(), about.target.name());
        let wording = Wording::of(kind);
        let base = target.rsplit('\\').next().unwrap_or(target);
        let root = self.root(base, wording.suffix);
        let method = method(&about.target).unwrap_or("handle");
        let is_usual = matches!(method, "handle" | "fire" | "__invoke");
        let name = format!("{base} {}", if is_usual { "" } else { method });
        let name = self.values.take(&[snake(&name, "handle")]);
        let function = ident(&name);
        let does = wording.does.replace("{method}", &quoted(method));
        let does = does.replace("{name}", &quoted(target));
        let (argument, body) = self.argument(kind, wording.view, root);
        let row = match &self.model {
            Some(model) if wording.view.is_empty() => format!(
                "The row of a model: `let row: YourRow = context.model(&job.{model}).await?;`\n\n"
            ),
            _ => String::new(),
        };
        let handler_docs = docs(&format!(
            "{does} in PHP.\n\n{row}# Errors\n\n\
             An error is what an exception is in PHP: the job is tried again, or fails. Until the\n\
             handler is written there always is one, so that no job counts as done."
        ));
        let imports = self.uses.iter().map(|path| syn::parse_str(path));
        let imports: Vec<syn::UseTree> = imports.collect::<syn::Result<_>>()?;
        let head = self.head(about, &wording, &name);
        let head = lines(&head);
        let (items, functions) = (&self.items, &self.functions);
        Ok(quote! {
            #(#![doc = #head])*
            #(use #imports;)*

            #handler_docs
            pub async fn #function(job: #argument, context: JobContext) -> Result<(), BoxError> {
                #body
                Err(format!("no code yet, attempt {}", context.attempts()).into())
            }

            /// Adds the handler to those of a worker.
            pub fn register(registry: Registry) -> Registry {
                let handler = handler::function(#function);
                registry.with(#name, handler)
            }

            #(#items)*
            #(#functions)*
        })
    }

    /// The type of the handler's first argument, and the first line of the handler.
    fn argument(
        &mut self,
        kind: Kind,
        view: &'static str,
        root: TokenStream,
    ) -> (TokenStream, TokenStream) {
        let unused = quote!(let _ = job;);
        let Some((_, own)) = view.rsplit_once("::") else {
            return (root, unused);
        };
        self.uses.insert(view);
        let own = ident(own);
        // Handlers read the parameters of a command on access.
        if kind == Kind::Command {
            let read = quote!(let parameters: #root = job.parameters()?; let _ = parameters;);
            return (quote!(#own), read);
        }
        (quote!(#own<#root>), unused)
    }

    /// The docs of the file: where it comes from, and how to use it.
    fn head(&self, about: &FileHeader, wording: &Wording, name: &str) -> String {
        let crates: Vec<&str> = self.crates.iter().copied().collect();
        let crates = crates.join(", ");
        let whole = toml_pattern(&whole_name(&about.target));
        let notes = if about.notes.is_empty() {
            String::new()
        } else {
            format!("The PHP class also has:\n\n{}\n", about.notes)
        };
        let Wording { key, words, .. } = wording;
        format!(
            "Handler of the {words} {}, made by `artisand make:handler`.\n\n\
             Types are those of {}.\n\n\
             In `artisand.toml`:\n\n\
             ```toml\n[[map]]\n{key} = {whole}\n{}handler = \"{name}\"\n```\n\n\
             {notes}Give `register` the worker's registry. Needs the crates {crates}.",
            quoted(about.target.name()),
            about.sources,
            about.mapping
        )
    }

    /// The handler's own type.
    pub(super) fn root(&mut self, base: &str, suffix: &str) -> TokenStream {
        let slot = std::mem::take(&mut self.inference.root);
        if matches!(slot.ty, Type::Object(_) | Type::Any) && !slot.nullable {
            return self.ty(&slot, base, true);
        }
        let hint = type_name(&format!("{} {suffix}", type_name(base, "")), suffix);
        let name = ident(&self.types.take(std::slice::from_ref(&hint)));
        match slot.ty {
            Type::Record(fields) if !slot.nullable => self.structure(&name, fields),
            _ => {
                let at = self.reserve();
                let inner = self.ty(&slot, &hint, true);
                self.items[at] = quote! {
                    /// What PHP gave the job.
                    #[derive(Debug, Deserialize)]
                    pub struct #name(pub #inner);
                };
            }
        }
        quote!(#name)
    }

    /// A place in the list of types; the types inside a type come after it.
    pub(super) fn reserve(&mut self) -> usize {
        self.uses.insert("serde::Deserialize");
        self.crates.insert("serde (with its feature `derive`)");
        self.items.push(TokenStream::new());
        self.items.len() - 1
    }

    pub(super) fn class_name(&mut self, index: usize) -> Ident {
        if let Some(name) = self.class_names.get(&index) {
            return name.clone();
        }
        let fields = self.inference.classes[index].clone();
        let names = candidates(fields.class.as_ref(), "Object");
        let name = ident(&self.types.take(&names));
        self.class_names.insert(index, name.clone());
        self.open.push(index);
        self.structure(&name, fields);
        self.open.pop();
        name
    }

    pub(super) fn enum_name(&mut self, index: usize) -> Ident {
        if let Some(name) = self.enum_names.get(&index) {
            return name.clone();
        }
        let (class, cases) = &self.inference.enums[index];
        let name = ident(&self.types.take(&candidates(Some(class), "Enum")));
        self.enum_names.insert(index, name.clone());
        let doc = docs(&format!(
            "Cases of {} that were seen; add the others of the PHP enum.",
            quoted(class.as_str())
        ));
        let variants = variants(cases).into_iter().map(|(variant, case)| {
            let rename = (variant != *case).then(|| quote!(#[serde(rename = #case)]));
            let (doc, variant) = (docs(&format!("`case` {}", quoted(case))), ident(&variant));
            quote!(#doc #rename #variant,)
        });
        let tokens = quote! {
            #doc
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
            pub enum #name { #(#variants)* }
        };
        let at = self.reserve();
        self.items[at] = tokens;
        name
    }
}

/// Lines as doc comments.
fn lines(text: &str) -> impl Iterator<Item = String> {
    let space = |line: &str| if line.is_empty() { "" } else { " " };
    text.lines()
        .map(move |line| format!("{}{line}", space(line)))
}

pub(super) fn docs(text: &str) -> TokenStream {
    let lines = lines(text);
    quote!(#(#[doc = #lines])*)
}

/// Names for the type of a class: its short name, then longer ones with its namespaces.
fn candidates(class: Option<&ClassName>, or: &str) -> Vec<String> {
    let name = class.map_or("", ClassName::as_str);
    let parts: Vec<&str> = name.split('\\').collect();
    let from = |start: usize| type_name(&parts[start..].join(" "), or);
    (0..parts.len()).rev().map(from).collect()
}

/// Variants for the cases of an enum.
pub(super) fn variants(cases: &[String]) -> Vec<(String, &String)> {
    let mut names = Names::default();
    // `Self` is the only name that no variant can have.
    names.take(&["Self".to_owned()]);
    let cases = cases.iter();
    cases
        .map(|case| (names.take(&[type_name(case, "Case")]), case))
        .collect()
}
