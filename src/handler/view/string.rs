//! A string job.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::{Once, STRING, read};

/// A string job (`Queue::push('Class@method', $data)`).
///
/// `D` reads the data. If the handler succeeds, the job is deleted; in PHP the
/// class has to delete it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StringJob<D> {
    /// The part before `@`.
    pub class: String,
    /// The part after `@`; `fire` if there is none.
    pub method: String,
    /// The data; `""` if none was given.
    pub data: D,
}

#[derive(Deserialize)]
struct Wrapper {
    class: String,
    method: String,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for StringJob<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |wrapper: Wrapper, Once(data): Once<T>| Self {
            class: wrapper.class,
            method: wrapper.method,
            data,
        };
        read(deserializer, STRING, make)
    }
}
