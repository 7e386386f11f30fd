//! Writes Rust values as PHP's `serialize` does.
//!
//! | Rust | PHP |
//! | --- | --- |
//! | `()`, `None`, unit struct | null |
//! | `Some(x)`, newtype struct | x |
//! | integers | int; beyond `i64` an error |
//! | `str`, `char`, bytes | string |
//! | sequence, tuple | list |
//! | map | array; a key that is a decimal int becomes one, as in PHP |
//! | struct | array with the field names as keys |
//! | struct whose serde name has a backslash (`#[serde(rename = "App\\Jobs\\X")]`) | object of that class |
//! | unit variant | its name as a string; a case (`E:`) if the enum's serde name has a backslash |
//! | other variant | array of one pair: name and content |
//!
//! A class of the global namespace is written with a leading backslash
//! (`"\\stdClass"`). A field of an object is public unless its serde name has
//! PHP's marks: `#[serde(rename(serialize = "\0*\0level"))]` is protected,
//! `"\0App\\Jobs\\X\0secret"` private. For anything beyond these rules, build a
//! [`Value`](super::Value).

use serde::ser::{self, Serialize};

use super::error::{Error, Kind};
use super::text::{
    canonical_int, write_array_head, write_float, write_int, write_object_head, write_string,
};

/// Writes a value as PHP's `serialize` does; the table in the source of this module lists the rules.
///
/// # Errors
///
/// An integer beyond `i64`, a map key that is neither text nor a number, or an
/// error of the value's `Serialize` implementation.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let mut serializer = Serializer {
        out: Vec::with_capacity(128),
    };
    value.serialize(&mut serializer)?;
    Ok(serializer.out)
}

#[derive(Debug)]
struct Serializer {
    out: Vec<u8>,
}

fn unsupported(what: &'static str) -> Error {
    Error::without_offset(Kind::Unsupported(what))
}

/// The class for a serde name; `None` if the name is not a class.
fn class_of(name: &'static str) -> Option<&'static str> {
    name.contains('\\')
        .then(|| name.strip_prefix('\\').unwrap_or(name))
}

/// Methods that serialize numbers as wider ones.
macro_rules! widened {
    ($($method:ident($type:ty) to $wide:ident;)*) => {
        $(fn $method(self, value: $type) -> Result<(), Error> {
            self.$wide(value.into())
        })*
    };
}

impl<'a> ser::Serializer for &'a mut Serializer {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.out
            .extend_from_slice(if value { b"b:1;" } else { b"b:0;" });
        Ok(())
    }

    widened! {
        serialize_i8(i8) to serialize_i64;
        serialize_i16(i16) to serialize_i64;
        serialize_i32(i32) to serialize_i64;
        serialize_u8(u8) to serialize_i64;
        serialize_u16(u16) to serialize_i64;
        serialize_u32(u32) to serialize_i64;
        serialize_f32(f32) to serialize_f64;
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        write_int(&mut self.out, value);
        Ok(())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        let value = i64::try_from(value).map_err(|_| unsupported("an integer above 2^63 - 1"))?;
        self.serialize_i64(value)
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        write_float(&mut self.out, value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        write_string(&mut self.out, value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.out.extend_from_slice(b"N;");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        let Some(class) = class_of(name) else {
            return self.serialize_str(variant);
        };
        let len = class.len() + 1 + variant.len();
        self.out
            .extend_from_slice(format!("E:{len}:\"{class}:{variant}\";").as_bytes());
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        write_array_head(&mut self.out, 1);
        write_string(&mut self.out, variant.as_bytes());
        value.serialize(&mut *self)?;
        self.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Compound<'a>, Error> {
        Ok(Compound::array(self, len, Closing::Close))
    }

    fn serialize_tuple(self, len: usize) -> Result<Compound<'a>, Error> {
        self.serialize_seq(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Compound<'a>, Error> {
        self.serialize_seq(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Compound<'a>, Error> {
        write_array_head(&mut self.out, 1);
        write_string(&mut self.out, variant.as_bytes());
        Ok(Compound::array(self, Some(len), Closing::CloseTwice))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Compound<'a>, Error> {
        Ok(Compound::array(self, len, Closing::Close))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Compound<'a>, Error> {
        // The length announced by serde includes fields that `skip_field` leaves out: count the fields here.
        let class = class_of(name);
        Ok(Compound {
            class,
            ..Compound::array(self, None, Closing::Close)
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Error> {
        write_array_head(&mut self.out, 1);
        write_string(&mut self.out, variant.as_bytes());
        Ok(Compound::array(self, None, Closing::CloseTwice))
    }
}

#[derive(Debug, Clone, Copy)]
enum Closing {
    Close,
    /// Closes a variant's content and the pair around it.
    CloseTwice,
}

/// A container being written.
#[derive(Debug)]
struct Compound<'a> {
    serializer: &'a mut Serializer,
    class: Option<&'static str>,
    /// The count in the head that was already written; if `None`, the head is inserted at the end.
    announced: Option<usize>,
    /// The output before the container, while its head is not known yet.
    before: Vec<u8>,
    written: usize,
    closing: Closing,
}

impl<'a> Compound<'a> {
    fn array(serializer: &'a mut Serializer, len: Option<usize>, closing: Closing) -> Self {
        let mut before = Vec::new();
        match len {
            Some(len) => write_array_head(&mut serializer.out, len),
            None => before = std::mem::take(&mut serializer.out),
        }
        Self {
            serializer,
            class: None,
            announced: len,
            before,
            written: 0,
            closing,
        }
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let index = i64::try_from(self.written).map_err(|_| unsupported("a sequence this long"))?;
        write_int(&mut self.serializer.out, index);
        self.written += 1;
        value.serialize(&mut *self.serializer)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        if self.class.is_some() {
            write_string(&mut self.serializer.out, name.as_bytes());
        } else {
            write_array_key(&mut self.serializer.out, name);
        }
        self.written += 1;
        value.serialize(&mut *self.serializer)
    }

    fn finish(self) -> Result<(), Error> {
        match self.announced {
            Some(announced) if announced != self.written => {
                return Err(ser::Error::custom(format!(
                    "announced {announced} elements and wrote {}",
                    self.written
                )));
            }
            Some(_) => {}
            None => {
                let body = std::mem::replace(&mut self.serializer.out, self.before);
                let out = &mut self.serializer.out;
                match self.class {
                    Some(class) => write_object_head(out, class, self.written),
                    None => write_array_head(out, self.written),
                }
                out.extend_from_slice(&body);
            }
        }
        let closing: &[u8] = match self.closing {
            Closing::Close => b"}",
            Closing::CloseTwice => b"}}",
        };
        self.serializer.out.extend_from_slice(closing);
        Ok(())
    }
}

fn write_array_key(out: &mut Vec<u8>, key: &str) {
    match canonical_int(key.as_bytes()) {
        Some(int) => write_int(out, int),
        None => write_string(out, key.as_bytes()),
    }
}

/// Implements traits for compounds whose parts are elements, or fields with a name.
macro_rules! compound {
    ($($trait:ident::$method:ident($($name:ident)?) by $write:ident;)*) => {
        $(impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<(), Error> {
                self.$write($($name,)? value)
            }

            fn end(self) -> Result<(), Error> {
                self.finish()
            }
        })*
    };
}

compound! {
    SerializeSeq::serialize_element() by element;
    SerializeTuple::serialize_element() by element;
    SerializeTupleStruct::serialize_field() by element;
    SerializeTupleVariant::serialize_field() by element;
    SerializeStruct::serialize_field(name) by field;
    SerializeStructVariant::serialize_field(name) by field;
}

impl ser::SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.written += 1;
        let mut text = Serializer { out: Vec::new() };
        key.serialize(&mut text)?;
        match super::read::Reader::new(&text.out).token() {
            Ok(super::read::Token::Int(key)) => write_int(&mut self.serializer.out, key),
            Ok(super::read::Token::Bool(key)) => write_int(&mut self.serializer.out, key.into()),
            Ok(super::read::Token::Str(key)) => match canonical_int(&key) {
                Some(int) => write_int(&mut self.serializer.out, int),
                None => write_string(&mut self.serializer.out, &key),
            },
            _ => return Err(unsupported("a map key that is neither text nor an integer")),
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.serializer)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    #[serde(rename = "App\\Suit")]
    enum Suit {
        Hearts,
    }

    #[derive(Serialize)]
    #[serde(rename = "App\\Jobs\\X")]
    struct Job {
        a: i64,
        #[serde(rename(serialize = "\0*\0level"))]
        level: f64,
        #[serde(rename(serialize = "\0App\\Jobs\\X\0secret"))]
        secret: Option<&'static str>,
        suit: Suit,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<u8>,
        list: Vec<u8>,
        map: BTreeMap<&'static str, bool>,
        pair: (i8, char),
    }

    #[test]
    fn structs_named_like_classes_become_objects_with_visibility() {
        let job = Job {
            a: 1,
            level: 2.0,
            secret: None,
            suit: Suit::Hearts,
            left_out: None,
            list: vec![7],
            map: BTreeMap::from([("7", true), ("07", false)]),
            pair: (-1, 'é'),
        };
        let expected = "O:10:\"App\\Jobs\\X\":7:{s:1:\"a\";i:1;s:8:\"\0*\0level\";d:2;\
            s:18:\"\0App\\Jobs\\X\0secret\";N;s:4:\"suit\";E:15:\"App\\Suit:Hearts\";\
            s:4:\"list\";a:1:{i:0;i:7;}s:3:\"map\";a:2:{s:2:\"07\";b:0;i:7;b:1;}\
            s:4:\"pair\";a:2:{i:0;i:-1;i:1;s:2:\"é\";}}";
        assert_eq!(String::from_utf8(to_vec(&job).unwrap()).unwrap(), expected);
    }

    #[test]
    fn what_php_cannot_hold_is_refused() {
        /// Announces another length than it has.
        struct Wrong;
        impl Serialize for Wrong {
            fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                ser::SerializeSeq::end(serializer.serialize_seq(Some(2))?)
            }
        }
        assert!(to_vec(&u64::MAX).is_err());
        assert!(to_vec(&BTreeMap::from([((1, 2), 3)])).is_err());
        let error = to_vec(&Wrong).unwrap_err();
        assert_eq!(error.to_string(), "announced 2 elements and wrote 0");
    }

    #[test]
    fn what_is_not_named_like_a_class_becomes_an_array_or_a_scalar() {
        #[derive(Serialize)]
        struct Unit;
        #[derive(Serialize)]
        struct Wrapped(i64);
        #[derive(Serialize)]
        struct Pair(i64, bool);
        #[derive(Serialize)]
        struct Plain {
            #[serde(rename = "7")]
            seven: (),
            b: Pair,
        }
        #[derive(Serialize)]
        enum Plan {
            Free,
            Paid(i64),
            Range(i64, i64),
            Custom { a: i64 },
        }
        fn php<T: Serialize>(value: T) -> String {
            String::from_utf8(to_vec(&value).unwrap()).unwrap()
        }
        let plain = Plain {
            seven: (),
            b: Pair(1, true),
        };
        #[rustfmt::skip]
        let rows = [
            (php(Some(5)), "i:5;"),
            (php(None::<i64>), "N;"),
            (php(Unit), "N;"),
            (php(Wrapped(5)), "i:5;"),
            (php(plain), "a:2:{i:7;N;s:1:\"b\";a:2:{i:0;i:1;i:1;b:1;}}"),
            (php(Plan::Free), "s:4:\"Free\";"),
            (php(Plan::Paid(5)), "a:1:{s:4:\"Paid\";i:5;}"),
            (php(Plan::Range(1, 2)), "a:1:{s:5:\"Range\";a:2:{i:0;i:1;i:1;i:2;}}"),
            (php(Plan::Custom { a: 5 }), "a:1:{s:6:\"Custom\";a:1:{s:1:\"a\";i:5;}}"),
            (php(BTreeMap::from([(-5, 5)])), "a:1:{i:-5;i:5;}"),
            (php(BTreeMap::from([(true, 5)])), "a:1:{i:1;i:5;}"),
            (php(BTreeMap::from([('c', 5)])), "a:1:{s:1:\"c\";i:5;}"),
        ];
        for (found, expected) in rows {
            assert_eq!(found, expected);
        }
    }
}
