//! A queued artisan command.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{COMMAND, Once, read};
use crate::payload::CommandLine;

/// A queued artisan command (`Artisan::queue`).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ArtisanCommand {
    /// The command's name, or its class if it was queued by class.
    pub name: String,
    /// Arguments and options in their order; options include their dashes.
    pub parameters: Vec<(String, Value)>,
    /// The text after the name, if the command was queued as one line of text.
    pub line: Option<String>,
}

impl ArtisanCommand {
    /// Finds an argument (`user`) or option (`--queue`).
    pub fn parameter(&self, name: &str) -> Option<&Value> {
        let mut parameters = self.parameters.iter();
        parameters
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// Reads the parameters into a type, by their names (`#[serde(rename = "--queue")]`).
    ///
    /// # Errors
    ///
    /// The parameters do not fit the type, or the command was queued as one line of text.
    pub fn parameters<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        use serde::de::Error;
        if self.line.is_some() {
            return Err(serde_json::Error::custom(
                "the command was queued as one line of text, which its `line` holds",
            ));
        }
        let pairs = self.parameters.iter();
        let pairs = pairs.map(|(name, value)| (name.as_str(), value.clone()));
        T::deserialize(MapDeserializer::new(pairs))
    }
}

/// The arguments of `Artisan::queue`.
struct Arguments {
    text: String,
    parameters: Parameters,
}

#[derive(Default)]
struct Parameters(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParametersVisitor;

        impl<'de> Visitor<'de> for ParametersVisitor {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the parameters of a command")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
                let mut parameters = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    parameters.push(pair);
                }
                Ok(Parameters(parameters))
            }
        }

        deserializer.deserialize_map(ParametersVisitor)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ArgumentsVisitor;

        impl<'de> Visitor<'de> for ArgumentsVisitor {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a command and its parameters")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Arguments, A::Error> {
                let text = seq.next_element()?;
                let text = text.ok_or_else(|| serde::de::Error::missing_field("name"))?;
                let parameters = seq.next_element::<Option<Parameters>>()?.flatten();
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Arguments {
                    text,
                    parameters: parameters.unwrap_or_default(),
                })
            }
        }

        deserializer.deserialize_seq(ArgumentsVisitor)
    }
}

impl<'de> Deserialize<'de> for ArtisanCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |_: IgnoredAny, Once(arguments): Once<Arguments>| {
            let parameters = arguments.parameters.0;
            let line = CommandLine::of(&arguments.text, !parameters.is_empty());
            Self {
                name: line.name.to_owned(),
                line: line.rest.map(str::to_owned),
                parameters,
            }
        };
        read(deserializer, COMMAND, make)
    }
}
