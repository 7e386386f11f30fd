//! PHP's `serialize()` format as a serde data format, independent of queues.
//!
//! Three ways to read and write the same bytes:
//!
//! * typed: [`from_slice`] and [`to_vec`], for structs that derive serde's traits;
//! * lossless: [`Value`], which writes back the bytes it was read from;
//! * JSON: [`Value::to_json`] and the `json` module, for people and other programs.
//!
//! The bytes are untrusted. Nesting is bounded, nothing is allocated from a
//! declared length, time grows with the length of the input and no input
//! overflows the stack. The format itself is described in
//! `docs/protocol/php-serialize.md`.
//!
//! ```
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct SendReceipt {
//!     #[serde(rename = "orderId")]
//!     order_id: i64,
//!     copies: Option<u32>,
//! }
//!
//! let bytes = b"O:20:\"App\\Jobs\\SendReceipt\":2:{s:7:\"orderId\";i:42;s:9:\"\0*\0copies\";N;}";
//! let job: SendReceipt = artisand::php::from_slice(bytes)?;
//! assert_eq!((job.order_id, job.copies), (42, None));
//! # Ok::<(), artisand::php::Error>(())
//! ```

mod class;
mod date;
mod de;
mod detach;
mod edit;
mod error;
mod fields;
mod int;
#[cfg(not(feature = "internals"))]
pub(crate) mod json;
#[cfg(feature = "internals")]
pub mod json;
pub mod loose;
mod read;
mod scan;
mod ser;
mod slots;
mod text;
mod value;

pub(crate) use class::MODEL_IDENTIFIER;
pub use class::{ClassName, PropertyName, Visibility};
pub use date::Date;
pub use de::from_slice;
pub use error::Error;
pub(crate) use fields::{Fields, short_name};
#[cfg(not(feature = "internals"))]
pub(crate) use inside::*;
#[cfg(feature = "internals")]
pub use inside::*;
pub(crate) use int::int_of;
pub(crate) use scan::PropertyScan;
pub use ser::to_vec;
pub use text::MAX_DEPTH;
pub use value::{Array, Custom, EnumCase, Float, Key, Object, Value};

/// What the rest of the crate uses, and users do not need.
mod inside {
    pub use super::de::Deserializer;
    pub use super::edit::{EditError, ObjectText};
    pub use super::error::{Category, Kind, Segment};
}

/// The text of null.
pub(crate) const NULL: &[u8] = b"N;";

/// What the text of an object begins with, unless its class serializes itself or is an enum.
pub(crate) const OBJECT: &str = "O:";

/// Reads the class name that a serialized object begins with, and nothing more.
pub(crate) fn leading_class(bytes: &[u8]) -> Result<&str, Error> {
    match read::Reader::new(bytes).token()? {
        read::Token::Object(class, _) => Ok(class),
        _ => Err(Error::mismatch("an object", "another value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_an_object_is_read_without_its_properties() {
        assert_eq!(leading_class(b"O:5:\"App\\J\":2:{s:").unwrap(), "App\\J");
        for other in [b"a:1:{i:0;N;}".as_slice(), b"C:1:\"A\":0:{}", b"N;", b"O:1"] {
            assert!(leading_class(other).is_err());
        }
    }
}
