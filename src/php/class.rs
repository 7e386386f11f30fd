//! PHP class names, and the visibility marks on property names.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The class that stands for a model in a serialized job.
pub(crate) const MODEL_IDENTIFIER: &str = "Illuminate\\Contracts\\Database\\ModelIdentifier";

/// Name of a PHP class, without a leading backslash.
///
/// `==` and the hash ignore ASCII case, as PHP does; the spelling is kept.
#[derive(Clone)]
pub struct ClassName(Arc<str>);

impl ClassName {
    /// Accepts a name that PHP's `unserialize` would accept.
    ///
    /// Returns `None` for the empty name, a name that starts with a backslash,
    /// and a name with a byte that class names cannot contain.
    pub fn new(name: impl Into<Arc<str>>) -> Option<Self> {
        let name = name.into();
        is_class_name(name.as_bytes()).then_some(Self(name))
    }

    /// The class that PHP code names so, in a string: a leading backslash does not count there.
    ///
    /// Returns `None` as [`new`](Self::new) does.
    pub fn in_code(name: &str) -> Option<Self> {
        Self::new(name.trim_start_matches('\\'))
    }

    /// Takes a name that the codec's reader has accepted.
    pub(crate) fn accepted(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name as it was spelled.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part after the last backslash.
    pub fn base_name(&self) -> &str {
        self.0.rsplit('\\').next().unwrap_or(&self.0)
    }
}

/// True if PHP's `unserialize` (8.1 or later) would look for a class of this name.
pub(crate) fn is_class_name(name: &[u8]) -> bool {
    const ALLOWED: [bool; 256] = {
        let mut allowed = [false; 256];
        let mut byte = 0_u8;
        loop {
            allowed[byte as usize] =
                byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'\\' | 0x80..);
            if byte == u8::MAX {
                break allowed;
            }
            byte += 1;
        }
    };
    !name.is_empty() && name[0] != b'\\' && name.iter().all(|&byte| ALLOWED[usize::from(byte)])
}

impl PartialEq for ClassName {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for ClassName {}

impl PartialEq<str> for ClassName {
    fn eq(&self, other: &str) -> bool {
        self.0.eq_ignore_ascii_case(other)
    }
}

impl Hash for ClassName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for byte in self.0.bytes() {
            state.write_u8(byte.to_ascii_lowercase());
        }
        state.write_u8(0xff);
    }
}

impl fmt::Display for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The visibility of a property, encoded in its serialized name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Visibility<'a> {
    /// `name`: public, or dynamic.
    Public,
    /// NUL `*` NUL `name`.
    Protected,
    /// NUL `Class` NUL `name`, with the class that declares the property.
    Private(&'a [u8]),
}

/// A property name split into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PropertyName<'a> {
    /// Public, protected, or private to a class.
    pub visibility: Visibility<'a>,
    /// The name as written in PHP source.
    pub name: &'a [u8],
}

impl<'a> PropertyName<'a> {
    /// Splits serialized name bytes; bytes without a well-formed mark are a public name.
    pub fn parse(bytes: &'a [u8]) -> Self {
        if let Some(rest) = bytes.strip_prefix(b"\0")
            && let Some(end) = memchr::memchr(0, rest)
            && end > 0
        {
            let (mark, name) = (&rest[..end], &rest[end + 1..]);
            let visibility = if mark == b"*" {
                Visibility::Protected
            } else {
                Visibility::Private(mark)
            };
            return Self { visibility, name };
        }
        Self {
            visibility: Visibility::Public,
            name: bytes,
        }
    }

    /// The serialized name, including its marks.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self.visibility {
            Visibility::Public => self.name.to_vec(),
            Visibility::Protected => [b"\0*\0", self.name].concat(),
            Visibility::Private(class) => [b"\0", class, b"\0", self.name].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn property_names_keep_their_marks_through_parse_and_back() {
        let rows: [(&[u8], Visibility<'_>, &[u8]); 6] = [
            (b"pub", Visibility::Public, b"pub"),
            (b"\0*\0pro", Visibility::Protected, b"pro"),
            (b"\0App\\P\0pri", Visibility::Private(b"App\\P"), b"pri"),
            (b"", Visibility::Public, b""),
            (b"\0", Visibility::Public, b"\0"),
            (b"\0\0x", Visibility::Public, b"\0\0x"),
        ];
        for (bytes, visibility, name) in rows {
            let parsed = PropertyName::parse(bytes);
            assert_eq!(parsed, PropertyName { visibility, name }, "{bytes:?}");
            assert_eq!(parsed.to_bytes(), bytes);
        }
    }

    #[test]
    fn class_names_differ_by_more_than_case_only() {
        let name = ClassName::new("App\\Jobs\\X").unwrap();
        let (same, other) = ("app\\JOBS\\x", "App\\Jobs\\Y");
        assert_eq!(name, ClassName::new(same).unwrap());
        assert_eq!(name, *same);
        assert_ne!(name, ClassName::new(other).unwrap());
        assert_ne!(name, *other);
        let names = [&*name.0, same, other].map(|name| ClassName::new(name).unwrap());
        assert_eq!(HashSet::from(names).len(), 2);
        assert_eq!(format!("{name:?}"), format!("{:?}", "App\\Jobs\\X"));
        assert_eq!(name.base_name(), "X");
        for bad in ["", "\\App", "a b", "a\0b", "a:b"] {
            assert!(ClassName::new(bad).is_none(), "{bad:?}");
        }
    }
}
