//! Edits a serialized object, and changes only the bytes that must change.
//!
//! [`ObjectText`] splits the text of an object at its properties. Properties can
//! be replaced, or added at the end. All other bytes are copied, except the
//! numbers of back references (`r:`, `R:`) after a value that takes up more or
//! fewer numbers than the one it replaces (php-serialize.md 6). A reference into
//! a removed value is replaced by the value itself, and so is a reference that
//! leads out of a property taken from its object.
//!
//! Duplicate keys are written once, as PHP reads them.
//!
//! Three edits are impossible in text, and are errors:
//!
//! * a property that shares a PHP reference (`&`) with another value: in PHP an
//!   assignment changes both, or only one if the class has `__unserialize`;
//! * a changed number inside a signed `C:` body, whose signature would break;
//! * a changed number inside or after a `C:` body that only its class can read.

use std::borrow::Cow;

use super::class::ClassName;
use super::error::{Error, Kind};
use super::read::{Reader, Token};
use super::slots::{Member as Pair, Slots, numbered_body, signature_len};
use super::text::{MAX_DEPTH, write_array_head, write_object_head, write_string};

/// The text of an object, split at its properties.
#[derive(Debug)]
pub struct ObjectText<'a> {
    bytes: Cow<'a, [u8]>,
    class: ClassName,
    /// Offset of the first property.
    body: usize,
    members: Vec<Member>,
    slots: Slots,
}

/// A property: its name, and the offsets of the name and of the value.
#[derive(Debug)]
struct Member {
    name: Vec<u8>,
    key: usize,
    value: usize,
}

/// An error from editing an object's text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// A text is not a serialized value, or not an object.
    #[error("the text is no serialized object")]
    Text(#[source] Error),
    /// A property shares a PHP reference with another value.
    #[error("`{property}` shares a PHP reference with another value")]
    Shared {
        /// Name of the property.
        property: Box<str>,
    },
    /// The number of a reference inside a signed body would have to change.
    #[error("a signed `{class}` refers to a value by its number, which would change")]
    Signed {
        /// Class of the signed object.
        class: ClassName,
    },
    /// The number of a reference inside or after a `C:` body that only its class can read would have to change.
    #[error(
        "a `{class}` that wrote itself (`C:`) may hold values with numbers, which would change"
    )]
    Uncertain {
        /// Class of the object.
        class: ClassName,
    },
    /// The result would be nested deeper than PHP reads.
    #[error("the result would be nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

impl From<Error> for EditError {
    fn from(error: Error) -> Self {
        Self::Text(error)
    }
}

impl<'a> ObjectText<'a> {
    /// Splits an object's text; the bytes must contain nothing else.
    ///
    /// # Errors
    ///
    /// The text is not a serialized value, or not an `O:` object.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut bytes = Cow::Borrowed(bytes);
        let mut slots = number(&bytes)?;
        if slots.has_duplicates() {
            bytes = Cow::Owned(without_duplicates(&bytes)?);
            slots = number(&bytes)?;
        }
        let mut reader = Reader::new(&bytes);
        let Token::Object(class, count) = reader.token()? else {
            return Err(Error::mismatch("an object", "another value"));
        };
        let class = class_name(class);
        let body = reader.pos();
        let mut members = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            let key = reader.pos();
            let name = match reader.key()? {
                Token::Str(name) => name.into_owned(),
                // No property has a name like that, so no lookup finds it.
                _ => Vec::new(),
            };
            let value = reader.pos();
            reader = Reader::at(&bytes, end_of(&bytes, &slots, value)?);
            members.push(Member { name, key, value });
        }
        Ok(Self {
            bytes,
            class,
            body,
            members,
            slots,
        })
    }

    /// Class of the object.
    pub fn class(&self) -> &ClassName {
        &self.class
    }

    /// Text of a public property's value, without references to values outside of it; `None` if there is no such
    /// property.
    ///
    /// # Errors
    ///
    /// [`EditError::Signed`] and [`EditError::Depth`].
    pub fn get(&self, property: &str) -> Result<Option<Vec<u8>>, EditError> {
        let Some(index) = self.find(property) else {
            return Ok(None);
        };
        let mut out = Out::new(0, &[]);
        let mut source = Source::new(&self.bytes, &self.slots);
        out.by_value(&mut source, self.members[index].value)?;
        Ok(Some(out.bytes))
    }

    /// The object's text with these public properties replaced, or added at the end in this order.
    ///
    /// Each value is serialized independently of the others. A protected or
    /// private property of the same name stays unchanged.
    ///
    /// # Errors
    ///
    /// See [`EditError`].
    pub fn with(&self, edits: &[(&str, &[u8])]) -> Result<Vec<u8>, EditError> {
        let places: Vec<Option<usize>> = edits.iter().map(|(name, _)| self.find(name)).collect();
        let mut replaced: Vec<Option<&[u8]>> = vec![None; self.members.len()];
        let mut gone = Vec::new();
        for (place, (property, value)) in places.iter().zip(edits) {
            let Some(place) = *place else { continue };
            // `R:` takes no number: its value belongs to another place, too.
            let Some(slot) = self.slots.number_at(self.members[place].value) else {
                return Err(EditError::Shared {
                    property: (*property).into(),
                });
            };
            replaced[place] = Some(value);
            gone.push((slot, *property));
        }
        let added = || {
            edits
                .iter()
                .zip(&places)
                .filter(|(_, place)| place.is_none())
        };
        let mut out = Out::new(1, &gone);
        let count = self.members.len() + added().count();
        if count == self.members.len() {
            out.bytes.extend_from_slice(&self.bytes[..self.body]);
        } else {
            write_object_head(&mut out.bytes, self.class.as_str(), count);
        }
        let mut source = Source::new(&self.bytes, &self.slots);
        source.place(1, out.take_number());
        for (member, value) in self.members.iter().zip(replaced) {
            out.bytes
                .extend_from_slice(&self.bytes[member.key..member.value]);
            match value {
                Some(value) => {
                    out.has_moved = true;
                    out.text(value)?;
                }
                None => out.value(&mut source, member.value)?,
            }
        }
        for ((property, value), _) in added() {
            write_string(&mut out.bytes, property.as_bytes());
            out.text(value)?;
        }
        out.bytes.push(b'}');
        Ok(out.bytes)
    }

    fn find(&self, property: &str) -> Option<usize> {
        self.members
            .iter()
            .rposition(|member| member.name == property.as_bytes())
    }
}

fn class_name(name: &str) -> ClassName {
    ClassName::new(name).expect("the reader checked the name")
}

/// Numbers the values of a text that contains exactly one value.
fn number(bytes: &[u8]) -> Result<Slots, Error> {
    let mut reader = Reader::new(bytes);
    let slots = Slots::of(&mut reader)?;
    if reader.remaining() > 0 {
        return Err(reader.error(Kind::TrailingData));
    }
    Ok(slots)
}

/// The text of one value as PHP would write it after reading, which removes duplicate keys.
pub(super) fn without_duplicates(text: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Out::new(0, &[]);
    match out.text(text) {
        Ok(()) => Ok(out.bytes),
        Err(EditError::Text(error)) => Err(error),
        Err(error) => Err(Error::without_offset(Kind::Message(
            error.to_string().into(),
        ))),
    }
}

/// Offset after the last byte of the value at this offset.
fn end_of(bytes: &[u8], slots: &Slots, offset: usize) -> Result<usize, Error> {
    if let Some(slot) = slots.starting_at(offset) {
        return Ok(slot.end);
    }
    let mut reader = Reader::at(bytes, offset);
    reader.token()?;
    Ok(reader.pos())
}

/// The text from which values are copied, and the new number of each.
struct Source<'a> {
    bytes: &'a [u8],
    slots: &'a Slots,
    copied: Vec<Copied>,
}

/// The new numbers of a copied value; 0 for none.
#[derive(Clone, Copy, Default)]
struct Copied {
    /// Number of its place, the target of `R:`.
    place: u64,
    /// Number of the object, wherever it was written, the target of `r:`.
    object: u64,
}

impl<'a> Source<'a> {
    fn new(bytes: &'a [u8], slots: &'a Slots) -> Self {
        Self {
            bytes,
            slots,
            copied: vec![Copied::default(); slots.len()],
        }
    }

    fn copied(&mut self, number: u64) -> &mut Copied {
        // All numbers were checked when the text was scanned.
        let index = usize::try_from(number).expect("a number of a value that was read") - 1;
        &mut self.copied[index]
    }

    fn place(&mut self, number: u64, new: u64) {
        *self.copied(number) = Copied {
            place: new,
            object: new,
        };
    }

    fn is_object(&self, number: u64) -> bool {
        self.slots.get(number).is_some_and(|slot| slot.is_object)
    }

    fn is_shared(&self, number: u64) -> bool {
        self.slots.get(number).is_some_and(|slot| slot.is_shared)
    }

    fn offset_of(&self, number: u64) -> usize {
        let slot = self.slots.get(number);
        slot.expect("references were checked").offset
    }

    /// Number of the object itself: an `r:` to an `r:` leads to the object if that `r:` was not copied.
    fn object_behind(&mut self, number: u64) -> u64 {
        if self.copied(number).object != 0 {
            return number;
        }
        self.slots.get(number).map_or(number, |slot| slot.root)
    }
}

/// A container, or a `C:` body, that is being written.
enum Open {
    Pairs {
        /// Next key in the source.
        pos: usize,
        left: usize,
        /// The remaining pairs, last first, if the container has duplicate keys.
        members: Option<Vec<Pair>>,
    },
    Body {
        /// Class, offsets of the token and its body in the source, and the end of the body.
        class: ClassName,
        token: usize,
        body: usize,
        end: usize,
        /// Offset of the body in the output.
        start: usize,
    },
}

/// A text being written.
struct Out<'g> {
    bytes: Vec<u8>,
    /// How many numbers are in use.
    numbers: u64,
    /// Number of containers around the current value.
    depth: usize,
    /// Source numbers of the values that are replaced, with their properties.
    gone: &'g [(u64, &'g str)],
    /// Numbers up to this one are certain; the class is the one whose body makes the others uncertain.
    certain: Option<(u64, ClassName)>,
    /// Whether any value has another number than in the source, or is not written.
    has_moved: bool,
}

impl<'g> Out<'g> {
    fn new(depth: usize, gone: &'g [(u64, &'g str)]) -> Self {
        Self {
            bytes: Vec::new(),
            numbers: 0,
            depth,
            gone,
            certain: None,
            has_moved: false,
        }
    }

    fn take_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn reference(&mut self, letter: char, number: u64) -> Result<(), EditError> {
        if let Some((certain, class)) = &self.certain
            && number > *certain
        {
            let class = class.clone();
            return Err(EditError::Uncertain { class });
        }
        self.bytes
            .extend_from_slice(format!("{letter}:{number};").as_bytes());
        Ok(())
    }

    /// Writes a value from another text.
    fn text(&mut self, text: &[u8]) -> Result<(), EditError> {
        let slots = number(text)?;
        let gone = std::mem::take(&mut self.gone);
        let result = self.value(&mut Source::new(text, &slots), 0);
        self.gone = gone;
        result
    }

    /// Copies the value at this offset as an assignment does: its content, not its place.
    fn by_value(&mut self, source: &mut Source<'_>, offset: usize) -> Result<(), EditError> {
        let mut offset = offset;
        if let Token::VarRef(target) = Reader::at(source.bytes, offset).token()? {
            offset = source.offset_of(source.slots.meant(offset, target));
        }
        let number = source.slots.number_at(offset);
        let number = source.object_behind(number.expect("all but `R:` have numbers"));
        let new = self.take_number();
        self.has_moved |= number != new;
        if source.is_object(number) {
            source.copied(number).object = new;
        }
        let mut open = Vec::new();
        self.head(source, source.offset_of(number), &mut open)?;
        self.rest(source, open, None)
    }

    /// Copies the value at this offset.
    fn value(&mut self, source: &mut Source<'_>, offset: usize) -> Result<(), EditError> {
        self.rest(source, Vec::new(), Some(offset))
    }

    /// Copies the next value, and the rest of all open containers.
    fn rest(
        &mut self,
        source: &mut Source<'_>,
        mut open: Vec<Open>,
        mut next: Option<usize>,
    ) -> Result<(), EditError> {
        loop {
            if let Some(offset) = next.take() {
                self.token(source, offset, &mut open)?;
                if self.depth + open.len() > MAX_DEPTH {
                    return Err(EditError::Depth);
                }
            }
            match open.last_mut() {
                None => return Ok(()),
                Some(Open::Pairs { left: 0, .. }) => {
                    self.bytes.push(b'}');
                    open.pop();
                }
                Some(Open::Pairs { pos, left, members }) => {
                    let pair = members.as_mut().and_then(Vec::pop);
                    *pos = pair.map_or(*pos, |pair| pair.key);
                    let mut reader = Reader::at(source.bytes, *pos);
                    reader.key()?;
                    self.bytes
                        .extend_from_slice(&source.bytes[*pos..reader.pos()]);
                    let value = pair.map_or(reader.pos(), |pair| pair.value);
                    *pos = end_of(source.bytes, source.slots, value)?;
                    *left -= 1;
                    next = Some(value);
                }
                Some(Open::Body { body, start, .. }) if self.bytes.len() == *start => {
                    let signature = signature_len(&source.bytes[*body..]);
                    let value = *body + signature;
                    self.bytes.extend_from_slice(&source.bytes[*body..value]);
                    next = Some(value);
                }
                Some(Open::Body { .. }) => {
                    let Some(Open::Body {
                        class,
                        token,
                        body,
                        end,
                        start,
                    }) = open.pop()
                    else {
                        unreachable!("it was just looked at");
                    };
                    self.close_body(source, class, token, &(body..end), start)?;
                }
            }
        }
    }

    /// Writes a scalar, a reference, or the head of a container, which is then open.
    fn token(
        &mut self,
        source: &mut Source<'_>,
        offset: usize,
        open: &mut Vec<Open>,
    ) -> Result<(), EditError> {
        let mut reader = Reader::at(source.bytes, offset);
        let token = reader.token()?;
        let own = source.slots.number_at(offset);
        if let Token::VarRef(target) = token {
            return self.var_ref(source, source.slots.meant(offset, target), open);
        }
        let own = own.expect("all but `R:` have numbers");
        if self.refer_to_copy(source, own)? {
            return Ok(());
        }
        let new = self.take_number();
        source.place(own, new);
        self.has_moved |= own != new;
        let Token::ObjectRef(target) = token else {
            self.head(source, offset, open)?;
            return Ok(());
        };
        let target = source.object_behind(source.slots.meant(offset, target));
        let copied = source.copied(target);
        if copied.object == 0 {
            // The object was not written at its own place: write it here.
            copied.object = new;
            let offset = source.offset_of(target);
            return self.head(source, offset, open);
        }
        let object = copied.object;
        self.reference('r', object)
    }

    /// Writes `R:`, or the value if it was not written yet.
    fn var_ref(
        &mut self,
        source: &mut Source<'_>,
        target: u64,
        open: &mut Vec<Open>,
    ) -> Result<(), EditError> {
        if let Some((_, property)) = self.gone.iter().find(|(slot, _)| *slot == target) {
            return Err(EditError::Shared {
                property: (*property).into(),
            });
        }
        if self.refer_to_copy(source, target)? {
            return Ok(());
        }
        let offset = source.offset_of(target);
        self.token(source, offset, open)
    }

    /// Writes a reference to a value that is written already; false if it is not.
    fn refer_to_copy(&mut self, source: &mut Source<'_>, number: u64) -> Result<bool, EditError> {
        let copied = *source.copied(number);
        // An equal copy of the value that was taken out may follow it, and is written again.
        if copied.place != 0 && source.is_shared(number) {
            self.reference('R', copied.place)?;
        } else if copied.object != 0 && source.is_object(number) {
            self.reference('r', copied.object)?;
            source.copied(number).place = self.take_number();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Writes the value at this offset, which is not a reference and has its number already.
    fn head(
        &mut self,
        source: &Source<'_>,
        offset: usize,
        open: &mut Vec<Open>,
    ) -> Result<(), EditError> {
        let mut reader = Reader::at(source.bytes, offset);
        let token = reader.token()?;
        if let Token::Custom(class, body) = token {
            let start = reader.pos() - 1 - body.len();
            let first = start + signature_len(body);
            // Nested bodies were counted when the numbers were given.
            let is_numbered = numbered_body(class, body, 0).is_some();
            if is_numbered && source.slots.number_at(first).is_some() {
                open.push(Open::Body {
                    class: class_name(class),
                    token: offset,
                    body: start,
                    end: start + body.len(),
                    start: self.bytes.len(),
                });
                return Ok(());
            }
            self.opaque(class_name(class), body)?;
        }
        let (Token::Array(left) | Token::Object(_, left)) = token else {
            self.bytes
                .extend_from_slice(&source.bytes[offset..reader.pos()]);
            return Ok(());
        };
        let members = source.slots.members(offset);
        let members: Option<Vec<Pair>> =
            members.map(|members| members.iter().rev().copied().collect());
        let left = members.as_ref().map_or(left, Vec::len);
        self.has_moved |= members.is_some();
        match token {
            Token::Object(class, _) if members.is_some() => {
                write_object_head(&mut self.bytes, class, left);
            }
            _ if members.is_some() => write_array_head(&mut self.bytes, left),
            _ => self
                .bytes
                .extend_from_slice(&source.bytes[offset..reader.pos()]),
        }
        open.push(Open::Pairs {
            pos: reader.pos(),
            left,
            members,
        });
        Ok(())
    }

    /// Records a body that only its class can read; it can be copied only if numbers in it stay valid.
    fn opaque(&mut self, class: ClassName, body: &[u8]) -> Result<(), EditError> {
        let may_refer = ["r:", "R:"]
            .iter()
            .any(|letter| memchr::memmem::find(body, letter.as_bytes()).is_some());
        if may_refer && self.has_moved {
            return Err(EditError::Uncertain { class });
        }
        self.certain.get_or_insert((self.numbers, class));
        Ok(())
    }

    /// Inserts the head of a `C:` object before its body, and adds the `}` after it.
    fn close_body(
        &mut self,
        source: &Source<'_>,
        class: ClassName,
        token: usize,
        old: &std::ops::Range<usize>,
        start: usize,
    ) -> Result<(), EditError> {
        let body = self.bytes.split_off(start);
        let old_body = &source.bytes[old.clone()];
        if body == old_body {
            self.bytes
                .extend_from_slice(&source.bytes[token..old.start]);
        } else if signature_len(old_body) > 0 {
            return Err(EditError::Signed { class });
        } else {
            let head = format!("C:{}:\"{class}\":{}:{{", class.as_str().len(), body.len());
            self.bytes.extend_from_slice(head.as_bytes());
        }
        self.bytes.extend_from_slice(&body);
        self.bytes.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::php::Value;
    use crate::php::{Key, PropertyName};

    /// A class whose `C:` body continues the numbering of the whole.
    const CLOSURE: &str = r#"32:"Opis\Closure\SerializableClosure""#;

    type Edits<'a> = &'a [(&'a str, &'a str)];

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn edited(object: &str, edits: Edits<'_>) -> String {
        let object = ObjectText::parse(object.as_bytes()).unwrap();
        let edits: Vec<_> = edits
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        match object.with(&edits) {
            Ok(bytes) => text(&bytes),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn properties_are_replaced_in_place_and_added_at_the_end() {
        #[rustfmt::skip]
        let rows: [(&str, Edits<'_>, &str); 16] = [
            (r#"O:1:"A":0:{}"#, &[], r#"O:1:"A":0:{}"#),
            (r#"O:1:"A":0:{}"#, &[("q", "N;"), ("c", "i:1;")], r#"O:1:"A":2:{s:1:"q";N;s:1:"c";i:1;}"#),
            (r#"O:1:"A":2:{s:1:"q";N;s:1:"n";d:1.50;}"#, &[("q", r#"s:1:"x";"#)], r#"O:1:"A":2:{s:1:"q";s:1:"x";s:1:"n";d:1.50;}"#),
            // One value less and one more before a reference.
            (r#"O:1:"A":3:{s:1:"q";a:1:{i:0;i:1;}s:1:"a";O:1:"B":0:{}s:1:"b";r:4;}"#, &[("q", "N;")],
             r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":0:{}s:1:"b";r:3;}"#),
            (r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":0:{}s:1:"b";r:3;}"#, &[("q", "a:1:{i:0;i:1;}")],
             r#"O:1:"A":3:{s:1:"q";a:1:{i:0;i:1;}s:1:"a";O:1:"B":0:{}s:1:"b";r:4;}"#),
            // References inside the new value.
            (r#"O:1:"A":1:{s:1:"n";i:1;}"#, &[("q", r#"a:2:{i:0;O:1:"B":0:{}i:1;r:2;}"#)],
             r#"O:1:"A":2:{s:1:"n";i:1;s:1:"q";a:2:{i:0;O:1:"B":0:{}i:1;r:4;}}"#),
            // References into the removed value: it is written where it was referred to first.
            (r#"O:1:"A":3:{s:1:"q";a:1:{i:0;O:1:"B":1:{s:1:"x";i:5;}}s:1:"a";r:3;s:1:"b";r:3;}"#, &[("q", "N;")],
             r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":1:{s:1:"x";i:5;}s:1:"b";r:3;}"#),
            (r#"O:1:"A":3:{s:1:"q";a:1:{i:0;i:7;}s:1:"a";R:3;s:1:"b";R:3;}"#, &[("q", "N;")],
             r#"O:1:"A":3:{s:1:"q";N;s:1:"a";i:7;s:1:"b";R:3;}"#),
            // Both ends of a cycle are removed, and only one is referred to.
            (r#"O:1:"A":2:{s:1:"q";O:1:"B":1:{s:1:"c";O:1:"C":1:{s:1:"b";r:2;}}s:1:"a";r:3;}"#, &[("q", "N;")],
             r#"O:1:"A":2:{s:1:"q";N;s:1:"a";O:1:"C":1:{s:1:"b";O:1:"B":1:{s:1:"c";r:3;}}}"#),
            // Other visibilities are other properties; of two with one name the last counts.
            ("O:1:\"A\":2:{s:4:\"\0*\0q\";i:1;s:4:\"\0A\0q\";i:2;}", &[("q", "N;")],
             "O:1:\"A\":3:{s:4:\"\0*\0q\";i:1;s:4:\"\0A\0q\";i:2;s:1:\"q\";N;}"),
            (r#"O:1:"A":2:{s:1:"q";i:1;s:1:"q";i:2;}"#, &[("q", "N;")], r#"O:1:"A":1:{s:1:"q";N;}"#),
            (r#"O:1:"A":3:{s:1:"q";O:1:"B":0:{}s:1:"b";r:2;s:1:"q";i:2;}"#, &[("x", "N;")], r#"O:1:"A":3:{s:1:"q";i:2;s:1:"b";O:1:"B":0:{}s:1:"x";N;}"#),
            // Other spellings that PHP reads are copied.
            (r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":+0:{}s:1:"b";O:1:"B"::{}}"#, &[("q", "i:1;")],
             r#"O:1:"A":3:{s:1:"q";i:1;s:1:"a";O:1:"B":+0:{}s:1:"b";O:1:"B"::{}}"#),
            // So is the body of a closure that is not a value, though it begins like one.
            (r#"O:1:"A":2:{s:1:"q";N;s:1:"c";C:32:"Opis\Closure\SerializableClosure":11:{a:1:{i:0;x}}}"#, &[("q", "i:1;")],
             r#"O:1:"A":2:{s:1:"q";i:1;s:1:"c";C:32:"Opis\Closure\SerializableClosure":11:{a:1:{i:0;x}}}"#),
            // An object that wrote itself has a certain number, unlike the values in it.
            (r#"O:1:"A":3:{s:1:"q";N;s:1:"a";C:1:"S":4:{i:3;}s:1:"b";r:3;}"#, &[("q", "a:1:{i:0;i:1;}")],
             r#"O:1:"A":3:{s:1:"q";a:1:{i:0;i:1;}s:1:"a";C:1:"S":4:{i:3;}s:1:"b";r:4;}"#),
            // Numbers in the `C:` body of a closure.
            (r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":0:{}s:1:"c";C:32:"Opis\Closure\SerializableClosure":4:{r:3;}}"#, &[("q", "a:7:{i:0;N;i:1;N;i:2;N;i:3;N;i:4;N;i:5;N;i:6;N;}")],
             r#"O:1:"A":3:{s:1:"q";a:7:{i:0;N;i:1;N;i:2;N;i:3;N;i:4;N;i:5;N;i:6;N;}s:1:"a";O:1:"B":0:{}s:1:"c";C:32:"Opis\Closure\SerializableClosure":5:{r:10;}}"#),
        ];
        for (object, edits, expected) in rows {
            assert_eq!(edited(object, edits), expected, "{object} {edits:?}");
        }
    }

    #[test]
    fn what_text_cannot_say_is_an_error() {
        let signed = |body: &str| {
            let body = format!("@{}.{body}", "h".repeat(44));
            format!(
                r#"O:1:"A":3:{{s:1:"q";N;s:1:"a";O:1:"B":0:{{}}s:1:"c";C:{CLOSURE}:{}:{{{body}}}}}"#,
                body.len()
            )
        };
        let uncertain =
            "a `S` that wrote itself (`C:`) may hold values with numbers, which would change";
        let shared = "`q` shares a PHP reference with another value";
        #[rustfmt::skip]
        let rows = [
            (r#"O:1:"A":2:{s:1:"a";i:1;s:1:"q";R:2;}"#.to_owned(), shared),
            (r#"O:1:"A":2:{s:1:"q";i:1;s:1:"a";R:2;}"#.to_owned(), shared),
            (signed("a:1:{i:0;r:3;}"), "a signed `Opis\\Closure\\SerializableClosure` refers to a value by its number, which would change"),
            // Only the class knows whether its body contains a number, and how many values it adds to the
            // numbering.
            (r#"O:1:"A":3:{s:1:"q";N;s:1:"a";O:1:"B":0:{}s:1:"c";C:1:"S":4:{r:3;}}"#.to_owned(), uncertain),
            (r#"O:1:"A":2:{s:1:"a";C:1:"S":4:{i:3;}s:1:"q";O:1:"B":0:{}}"#.to_owned(), r#"O:1:"A":2:{s:1:"a";C:1:"S":4:{i:3;}s:1:"q";a:1:{i:0;N;}}"#),
        ];
        for (object, expected) in rows {
            assert_eq!(
                edited(&object, &[("q", "a:1:{i:0;N;}")]),
                expected,
                "{object}"
            );
        }
        let referring = r#"a:2:{i:0;O:1:"B":0:{}i:1;r:2;}"#;
        let behind = r#"O:1:"A":1:{s:1:"a";C:1:"S":4:{i:3;}}"#;
        assert_eq!(edited(behind, &[("q", referring)]), uncertain);
        let may_refer = r#"C:1:"S":4:{r:1;}"#;
        assert_eq!(edited(r#"O:1:"A":0:{}"#, &[("q", may_refer)]), uncertain);
        let holder = format!(r#"O:1:"A":1:{{s:1:"q";{may_refer}}}"#);
        let found = ObjectText::parse(holder.as_bytes()).unwrap().get("q");
        assert_eq!(found.unwrap_err().to_string(), uncertain);
        let unmoved = signed("a:1:{i:0;r:3;}");
        assert_eq!(
            edited(&unmoved, &[("q", "i:9;")]),
            unmoved.replace("q\";N;", "q\";i:9;")
        );
        let without_numbers = signed("a:1:{i:0;i:3;}");
        let longer = without_numbers.replace("q\";N;", "q\";a:1:{i:0;N;}");
        assert_eq!(edited(&without_numbers, &[("q", "a:1:{i:0;N;}")]), longer);

        for bad in ["", "i:1;", "a:0:{}", r#"O:1:"A":1:{}"#, r#"O:1:"A":0:{}x"#] {
            assert!(ObjectText::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let object = ObjectText::parse(br#"O:1:"A":0:{}"#).unwrap();
        assert!(object.with(&[("q", b"r:1;")]).is_err());
        assert!(object.with(&[("q", b"N;N;")]).is_err());
        let deep = |levels| "a:1:{i:0;".repeat(levels) + "N;" + &"}".repeat(levels);
        let with = |levels| object.with(&[("q", deep(levels).as_bytes())]);
        assert!(Value::from_bytes(&with(MAX_DEPTH - 1).unwrap()).is_ok());
        assert!(matches!(with(MAX_DEPTH), Err(EditError::Depth)));
    }

    #[test]
    fn a_value_taken_out_refers_to_nothing_outside() {
        #[rustfmt::skip]
        let rows = [
            (r#"O:1:"A":2:{s:1:"a";O:1:"B":0:{}s:1:"q";a:2:{i:0;r:2;i:1;r:2;}}"#, r#"a:2:{i:0;O:1:"B":0:{}i:1;r:2;}"#),
            (r#"O:1:"A":2:{s:1:"a";a:1:{i:0;i:5;}s:1:"q";R:2;}"#, "a:1:{i:0;i:5;}"),
            (r#"O:1:"A":2:{s:1:"a";O:1:"B":0:{}s:1:"q";r:2;}"#, r#"O:1:"B":0:{}"#),
            (r#"O:1:"A":2:{s:1:"n";i:1;s:1:"q";a:1:{i:0;r:1;}}"#, r#"a:1:{i:0;O:1:"A":2:{s:1:"n";i:1;s:1:"q";a:1:{i:0;r:2;}}}"#),
            // The value contains its own object, and so its own property and a value that shares a PHP reference
            // with it.
            (r#"O:1:"A":2:{s:1:"q";a:2:{i:0;i:5;i:1;r:1;}s:1:"n";R:3;}"#,
             r#"a:2:{i:0;i:5;i:1;O:1:"A":2:{s:1:"q";a:2:{i:0;R:2;i:1;r:3;}s:1:"n";R:2;}}"#),
            (r#"O:1:"A":1:{s:1:"q";C:1:"S":17:{a:1:{i:0;i:7700;}}}"#, r#"C:1:"S":17:{a:1:{i:0;i:7700;}}"#),
        ];
        for (object, expected) in rows {
            let parsed = ObjectText::parse(object.as_bytes()).unwrap();
            assert_eq!(
                text(&parsed.get("q").unwrap().unwrap()),
                expected,
                "{object}"
            );
            assert_eq!(parsed.get("x").unwrap(), None);
        }
    }

    /// Writes a random value; `objects` records for each number whether `r:` may refer to it.
    fn random(rng: &mut fastrand::Rng, depth: u32, objects: &mut Vec<bool>, out: &mut String) {
        let pick = if depth == 0 {
            rng.u8(0..5)
        } else {
            rng.u8(0..10)
        };
        let any_object = || {
            let known = objects
                .iter()
                .enumerate()
                .filter(|(_, is_object)| **is_object);
            known.map(|(index, _)| index + 1).collect::<Vec<_>>()
        };
        match pick {
            0 if !objects.is_empty() => {
                let target = rng.usize(1..=objects.len());
                write!(out, "R:{target};").unwrap();
            }
            1 if !any_object().is_empty() => {
                let known = any_object();
                let target = known[rng.usize(0..known.len())];
                write!(out, "r:{target};").unwrap();
                objects.push(true);
            }
            0..=2 => {
                objects.push(false);
                write!(out, "i:{};", rng.u8(..)).unwrap();
            }
            3 => {
                objects.push(false);
                out.push_str("s:3:\"r:1\";");
            }
            4 => {
                objects.push(false);
                out.push_str("N;");
            }
            5 if depth > 1 => {
                objects.push(true);
                let mut body = String::new();
                // A body that consists of a reference alone is not numbered by any class.
                body.push_str("a:1:{i:0;");
                objects.push(false);
                random(rng, depth - 1, objects, &mut body);
                body.push('}');
                write!(out, "C:{CLOSURE}:{}:{{{body}}}", body.len()).unwrap();
            }
            5..=7 => {
                objects.push(false);
                pairs(rng, depth - 1, objects, out, "a", "i:", ";");
            }
            _ => {
                objects.push(true);
                pairs(rng, depth - 1, objects, out, "O:1:\"B\"", "s:1:\"", "\";");
            }
        }
    }

    fn pairs(
        rng: &mut fastrand::Rng,
        depth: u32,
        objects: &mut Vec<bool>,
        out: &mut String,
        head: &str,
        before: &str,
        after: &str,
    ) {
        let count = rng.usize(0..4);
        write!(out, "{head}:{count}:{{").unwrap();
        for key in 0..count {
            write!(out, "{before}{key}{after}").unwrap();
            random(rng, depth, objects, out);
        }
        out.push('}');
    }

    /// A description of an object's graph without some of its properties, independent of reference numbers.
    struct Shape<'v> {
        values: Vec<&'v Value>,
        places: Vec<u64>,
        objects: Vec<u64>,
        out: String,
    }

    impl<'v> Shape<'v> {
        fn of(root: &'v Value, without: &[&str]) -> String {
            let mut shape = Self {
                values: Vec::new(),
                places: vec![1],
                objects: vec![1],
                out: String::new(),
            };
            shape.number(root);
            let Value::Object(object) = root else {
                panic!()
            };
            for (key, value) in &object.properties {
                let Key::String(name) = key else { panic!() };
                let name = text(PropertyName::parse(name).name);
                if !without.contains(&&*name) {
                    write!(shape.out, "{name}=").unwrap();
                    shape.place(value);
                }
            }
            shape.out
        }

        fn number(&mut self, value: &'v Value) {
            if matches!(value, Value::VarRef(_)) {
                return;
            }
            self.values.push(value);
            match value {
                Value::Array(array) => array.values().for_each(|value| self.number(value)),
                Value::Object(object) => object
                    .properties
                    .iter()
                    .for_each(|(_, value)| self.number(value)),
                Value::Custom(custom) => custom
                    .inner()
                    .into_iter()
                    .for_each(|value| self.number(value)),
                _ => {}
            }
        }

        fn number_of(&self, value: &Value) -> u64 {
            let index = self
                .values
                .iter()
                .position(|known| std::ptr::eq(*known, value));
            index.unwrap() as u64 + 1
        }

        fn value(&self, number: u64) -> &'v Value {
            self.values[usize::try_from(number).unwrap() - 1]
        }

        fn place(&mut self, value: &'v Value) {
            let number = match value {
                Value::VarRef(number) => *number,
                value => self.number_of(value),
            };
            if let Some(known) = self.places.iter().position(|place| *place == number) {
                write!(self.out, "the place {known};").unwrap();
                return;
            }
            self.places.push(number);
            let mut number = number;
            while let Value::ObjectRef(target) = self.value(number) {
                number = *target;
            }
            let value = self.value(number);
            if matches!(value, Value::Object(_) | Value::Custom(_)) {
                if let Some(known) = self.objects.iter().position(|object| *object == number) {
                    write!(self.out, "the object {known};").unwrap();
                    return;
                }
                self.objects.push(number);
            }
            match value {
                Value::Array(array) => {
                    self.out.push('[');
                    array.pairs.iter().for_each(|(key, value)| {
                        write!(self.out, "{key:?}=").unwrap();
                        self.place(value);
                    });
                    self.out.push(']');
                }
                Value::Object(object) => {
                    self.out.push('{');
                    object.properties.iter().for_each(|(key, value)| {
                        write!(self.out, "{key:?}=").unwrap();
                        self.place(value);
                    });
                    self.out.push('}');
                }
                Value::Custom(custom) => {
                    self.out.push('(');
                    custom
                        .inner()
                        .into_iter()
                        .for_each(|value| self.place(value));
                    self.out.push(')');
                }
                scalar => write!(self.out, "{scalar:?};").unwrap(),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn an_edit_leaves_the_graph_of_all_else_as_it_was(seed: u64) {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let count = rng.usize(0..6);
            let mut object = format!("O:1:\"A\":{count}:{{");
            let mut objects = vec![true];
            for index in 0..count {
                write!(object, "s:1:\"{index}\";").unwrap();
                random(rng, 4, &mut objects, &mut object);
            }
            object.push('}');
            let mut new = String::new();
            random(rng, 3, &mut Vec::new(), &mut new);
            let names = ["0", "3", "x"];
            let edits: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, new.as_bytes())).collect();

            let parsed = ObjectText::parse(object.as_bytes()).unwrap();
            prop_assert_eq!(text(&parsed.with(&[]).unwrap()), object.clone());
            let result = match parsed.with(&edits) {
                Err(EditError::Shared { .. }) => return Ok(()),
                result => result.unwrap(),
            };
            let before = Value::from_bytes(object.as_bytes()).unwrap();
            let after = Value::from_bytes(&result).unwrap();
            prop_assert_eq!(after.to_bytes(), result.clone());
            prop_assert_eq!(Shape::of(&before, &names), Shape::of(&after, &names), "{} {}", object, text(&result));
            for (index, (name, _)) in edits.iter().enumerate() {
                let found = ObjectText::parse(&result).unwrap().get(name).unwrap().unwrap();
                // A value that shares a reference with itself is written without it: an assignment copies the
                // value.
                let expected = if new.contains("R:1;") { text(&found) } else { new.clone() };
                prop_assert_eq!(text(&found), expected, "{} {}", index, text(&result));
            }
        }
    }
}
