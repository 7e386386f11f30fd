//! Text that PHP may have written as another type.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::json::Checked;

/// Text, or a number as text; any other value counts as absent.
pub(super) struct LooseText(pub(super) Option<Box<str>>);

impl<'de> Deserialize<'de> for LooseText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LooseTextVisitor;

        impl<'de> Visitor<'de> for LooseTextVisitor {
            type Value = Option<Box<str>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Some(text.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(Some(value.to_string().into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(Some(value.to_string().into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(Some(value.to_string().into()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(None)
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(None)
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Self::Value, A::Error> {
                while seq.next_element::<Checked>()?.is_some() {}
                Ok(None)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<Checked, Checked>()?.is_some() {}
                Ok(None)
            }
        }

        deserializer.deserialize_any(LooseTextVisitor).map(Self)
    }
}
