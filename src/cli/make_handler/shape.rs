//! What a value looks like: the types that are inferred.

use std::collections::BTreeSet;

use crate::php::ClassName;

/// The values in one place over all samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Slot {
    pub(super) ty: Type,
    /// Whether one of them is null.
    pub(super) nullable: bool,
    /// Whether a value is circular or too deep: serde can skip it, but not read it.
    pub(super) opaque: bool,
}

/// A type.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Type {
    /// Only null occurred.
    #[default]
    Unknown,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    Date,
    /// A model or a collection of models, with some of their classes.
    Model(BTreeSet<String>),
    /// An array with the keys 0, 1 and so on, or without elements.
    List(Box<Slot>),
    /// An array with other keys, and whether all of them are ints.
    Map(bool, Box<Slot>),
    /// An array with names as keys, or an object of a general container class.
    Record(Fields),
    /// An object, by its place in [`Inference::classes`].
    Object(usize),
    /// A case, by its place in [`Inference::enums`].
    Enum(usize),
    /// Values that no single type reads.
    Any,
}

/// The named values of an object or an array.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fields {
    /// The class, if it is an object.
    pub(super) class: Option<ClassName>,
    /// How often the object or array occurred.
    pub(super) count: usize,
    /// The fields, in the order of their first occurrence.
    pub(super) list: Vec<Field>,
    /// Whether an empty array occurred in its place.
    pub(super) saw_empty: bool,
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    /// The codec's name for it.
    pub(super) name: String,
    /// Its visibility in PHP, in words; empty for the key of an array.
    pub(super) visibility: String,
    pub(super) slot: Slot,
    /// How often it occurred.
    pub(super) seen: usize,
}

impl Type {
    /// Whether it is the type of an empty array, which may be of any kind.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::List(element) if **element == Slot::default())
    }

    /// Whether it describes values less precisely than specific types would.
    pub(super) fn is_vague(&self) -> bool {
        match self {
            Self::Any => true,
            Self::List(value) | Self::Map(_, value) => value.ty.is_vague(),
            Self::Record(fields) => {
                let mut list = fields.list.iter();
                list.any(|field| field.seen < fields.count || field.slot.ty.is_vague())
            }
            _ => false,
        }
    }
}
