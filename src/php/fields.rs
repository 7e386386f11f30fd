//! The class and the fields of a struct, before there is a value of it.

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// What a type's `Deserialize` asks for first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields {
    /// The type's serde name, which is the PHP class.
    pub(crate) class: &'static str,
    pub(crate) fields: &'static [&'static str],
}

impl Fields {
    /// The class and fields of a struct; `None` of a type that is no struct.
    pub(crate) fn of<'de, T: Deserialize<'de>>() -> Option<Self> {
        let mut found = None;
        // It always fails: there is no value.
        let _ = T::deserialize(Probe(&mut found));
        found
    }
}

/// The name of a Rust type without its path.
pub(crate) fn short_name<T: ?Sized>() -> &'static str {
    let name = std::any::type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

/// Notes what it is asked for, and stops.
struct Probe<'a>(&'a mut Option<Fields>);

#[derive(Debug, thiserror::Error)]
#[error("there is no value")]
struct Stop;

impl de::Error for Stop {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        class: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Stop> {
        *self.0 = Some(Fields { class, fields });
        Err(Stop)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
