//! Looks for a property in serialized text, to save parsing text that does not have it.
//!
//! A positive answer may be wrong: the name may stand in an object inside, in a text, or at the end of another name. A
//! negative one is reliable for all text that PHP writes, as long as no reference (`R:`) stands in place of the value
//! that is asked for.

use std::sync::OnceLock;

use memchr::memmem::Finder;

/// A property to look for, by its name; belongs in a `static`.
#[derive(Debug)]
pub(crate) struct PropertyScan {
    name: &'static str,
    /// What stands right before the name.
    before: &'static str,
    // Made once: making a searcher takes longer than searching a job.
    plain: OnceLock<Finder<'static>>,
    escaped: OnceLock<Finder<'static>>,
}

impl PropertyScan {
    /// Looks for public properties.
    pub(crate) const fn public(name: &'static str) -> Self {
        Self::new(name, "\"")
    }

    /// Looks for public, protected and private properties.
    pub(crate) const fn of_any_visibility(name: &'static str) -> Self {
        Self::new(name, "")
    }

    const fn new(name: &'static str, before: &'static str) -> Self {
        Self {
            name,
            before,
            plain: OnceLock::new(),
            escaped: OnceLock::new(),
        }
    }

    /// Whether there may be such a property, with any value.
    pub(crate) fn may_exist(&self, serialized: &[u8]) -> bool {
        self.any(serialized, |_| true)
    }

    /// Whether one may be something else than null, an empty array or an empty string.
    pub(crate) fn may_hold_something(&self, serialized: &[u8]) -> bool {
        let nothing: [&[u8]; 3] = [b"N;", b"a:0:", b"s:0:"];
        self.any(serialized, |value| {
            !nothing.iter().any(|nothing| value.starts_with(nothing))
        })
    }

    /// Whether one may be an array.
    pub(crate) fn may_be_array(&self, serialized: &[u8]) -> bool {
        self.any(serialized, |value| value.starts_with(b"a:"))
    }

    /// Whether one may be a string.
    pub(crate) fn may_be_string(&self, serialized: &[u8]) -> bool {
        self.any(serialized, |value| value.starts_with(b"s:"))
    }

    /// Whether one may be `true`.
    pub(crate) fn may_be_true(&self, serialized: &[u8]) -> bool {
        self.any(serialized, |value| value.starts_with(b"b:1;"))
    }

    /// Whether there may be a public one whose name is escaped, which PHP reads and never writes; the other looks do
    /// not see it.
    pub(crate) fn may_be_escaped(&self, serialized: &[u8]) -> bool {
        let finder = || Finder::new(&format!("S:{}:", self.name.len())).into_owned();
        let escaped = self.escaped.get_or_init(finder);
        escaped.find(serialized).is_some()
    }

    /// Whether something holds for the text behind one of the names, where the value begins.
    fn any(&self, serialized: &[u8], holds: impl Fn(&[u8]) -> bool) -> bool {
        let finder = || Finder::new(&format!("{}{}\";", self.before, self.name)).into_owned();
        let plain = self.plain.get_or_init(finder);
        let len = plain.needle().len();
        let mut found = plain.find_iter(serialized);
        found.any(|at| holds(&serialized[at + len..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_tells_what_a_property_may_be_by_where_its_value_begins() {
        let scan = PropertyScan::public("job");
        #[rustfmt::skip]
        let rows = [
            // properties => exists, holds something, is an array, a string, `true`
            ("",                               [false, false, false, false, false]),
            ("s:3:\"job\";N;",                 [true,  false, false, false, false]),
            ("s:3:\"job\";a:0:{}",             [true,  false, true,  false, false]),
            ("s:3:\"job\";s:0:\"\";",          [true,  false, false, true,  false]),
            ("s:3:\"job\";a:1:{i:0;N;}",       [true,  true,  true,  false, false]),
            ("s:3:\"job\";s:1:\"x\";",         [true,  true,  false, true,  false]),
            ("s:3:\"job\";b:1;",               [true,  true,  false, false, true]),
            ("s:3:\"job\";b:0;",               [true,  true,  false, false, false]),
            ("s:3:\"job\";i:10;",              [true,  true,  false, false, false]),
            ("s:3:\"job\";R:2;",               [true,  true,  false, false, false]),
            // An empty one outside does not speak for the one inside.
            ("s:3:\"job\";N;s:1:\"x\";O:1:\"X\":1:{s:3:\"job\";b:1;}", [true, true, false, false, true]),
            // Other names, and text that ends with the name.
            ("s:4:\"jobs\";b:1;s:4:\"ajob\";b:1;s:5:\"{job}\";b:1;", [false; 5]),
            ("s:3:\"job\"",                    [false; 5]),
            ("s:3:\"job\";",                   [true,  true,  false, false, false]),
        ];
        for (text, expected) in rows {
            let text = format!("O:1:\"A\":1:{{{text}");
            let looks = [
                PropertyScan::may_exist,
                PropertyScan::may_hold_something,
                PropertyScan::may_be_array,
                PropertyScan::may_be_string,
                PropertyScan::may_be_true,
            ];
            let found = looks.map(|look| look(&scan, text.as_bytes()));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_look_at_any_visibility_sees_marked_names_and_another_one_sees_escaped_names() {
        let public = PropertyScan::public("job");
        let any = PropertyScan::of_any_visibility("job");
        #[rustfmt::skip]
        let rows = [
            // property => is a public one, one of any visibility, an escaped one
            ("s:3:\"job\";N;",           [true,  true,  false]),
            ("s:6:\"\0*\0job\";N;",      [false, true,  false]),
            ("s:6:\"\0A\0job\";N;",      [false, true,  false]),
            ("S:3:\"\\6aob\";N;",        [false, false, true]),
            ("S:4:\"\\6aobs\";N;",       [false, false, false]),
        ];
        for (text, expected) in rows {
            let text = text.as_bytes();
            let found = [
                public.may_exist(text),
                any.may_exist(text),
                any.may_be_escaped(text),
            ];
            assert_eq!(found, expected, "{}", text.escape_ascii());
        }
    }
}
