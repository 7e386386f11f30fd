//! Analyzes a text without building values: numbers its values for `r:` and `R:`, and finds duplicate keys.
//!
//! Both follow PHP (php-serialize.md 4 and 6). If a key occurs twice in one
//! container, the last value counts, at the position of the first. A number
//! refers to a place: the value there at the time when the reference is read.
//!
//! [`scan`] checks a text and reports whether it needs the full analysis of
//! [`Slots::of`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::error::{Error, Kind};
use super::read::{Reader, Token};
use super::text::{MAX_DEPTH, canonical_int};

/// Classes whose `unserialize` method passes the body to PHP's `unserialize`, which continues the numbering.
const NUMBERED_BODIES: [&str; 2] = [
    "Illuminate\\Queue\\SerializableClosure",
    "Opis\\Closure\\SerializableClosure",
];

/// How many levels of nested `C:` bodies are read.
const MAX_CUSTOM_NESTING: usize = 16;

/// Offset of the `serialize()` output in a `C:` body, if the class is known to write such a body.
pub(crate) fn numbered_body(class: &str, body: &[u8], nesting: usize) -> Option<usize> {
    let is_known = NUMBERED_BODIES
        .iter()
        .any(|known| known.eq_ignore_ascii_case(class));
    (is_known && nesting < MAX_CUSTOM_NESTING).then(|| signature_len(body))
}

/// Length of the `@` hash `.` at the start of a signed closure's body.
pub(crate) fn signature_len(body: &[u8]) -> usize {
    if body.first() == Some(&b'@') && body.get(45) == Some(&b'.') {
        46
    } else {
        0
    }
}

/// Refuses a container that is nested too deep; as in PHP, levels of `C:` bodies count and an empty array does
/// not.
#[inline]
pub(crate) fn check_depth(token: &Token<'_>, depth: usize, offset: usize) -> Result<(), Error> {
    if depth >= MAX_DEPTH && matches!(token, Token::Array(1..) | Token::Object(..)) {
        return Err(Error::new(Kind::DepthExceeded { limit: MAX_DEPTH }, offset));
    }
    Ok(())
}

/// Properties of a text that affect how its earlier parts are read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The text has `r:` or `R:`.
    pub(crate) references: bool,
    /// A key occurs twice in one container.
    pub(crate) duplicates: bool,
}

/// Skips one value, and checks everything but the numbers of references.
pub(crate) fn scan(reader: &mut Reader<'_>) -> Result<Seen, Error> {
    let mut walk = Walk::new(None);
    walk.value(reader, 0, 0, 0)?;
    Ok(walk.seen)
}

/// Skips one value at depth `depth`; true if it has references or `C:` bodies, whose checks need a [`scan`].
pub(crate) fn skip(reader: &mut Reader<'_>, depth: usize) -> Result<bool, Error> {
    let mut open: Vec<usize> = Vec::new();
    let mut is_unchecked = false;
    loop {
        let offset = reader.pos();
        let token = reader.token()?;
        match token {
            Token::Array(left) | Token::Object(_, left) => {
                check_depth(&token, depth + open.len(), offset)?;
                open.push(left);
            }
            Token::ObjectRef(_) | Token::VarRef(_) | Token::Custom(..) => is_unchecked = true,
            _ => {}
        }
        loop {
            let Some(left) = open.last_mut() else {
                return Ok(is_unchecked);
            };
            if *left > 0 {
                *left -= 1;
                reader.key()?;
                break;
            }
            reader.close()?;
            open.pop();
        }
    }
}

/// A key as PHP compares it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SeenKey<'de> {
    Int(i64),
    Str(Cow<'de, [u8]>),
}

impl<'de> SeenKey<'de> {
    fn of(key: &Token<'de>) -> Self {
        match key {
            Token::Int(key) => Self::Int(*key),
            Token::Str(key) => match canonical_int(key) {
                Some(key) => Self::Int(key),
                None => Self::Str(key.clone()),
            },
            _ => unreachable!("a key is an int or a string"),
        }
    }
}

/// The keys of the open containers.
#[derive(Debug, Default)]
pub(crate) struct Keys<'de> {
    /// Keys of all open containers, one container after the other.
    seen: Vec<SeenKey<'de>>,
    open: Vec<KeysOf<'de>>,
}

#[derive(Debug)]
struct KeysOf<'de> {
    /// Index of its first key in `seen`.
    first: usize,
    /// How many leading keys were 0, 1, 2 and so on; they are not stored.
    listed: i64,
    /// Whether all keys were 0, 1, 2 and so on.
    is_list: bool,
    /// All keys as a set, if there are many.
    many: Option<HashSet<SeenKey<'de>>>,
}

impl<'de> Keys<'de> {
    /// Up to this number, keys are compared one by one.
    const FEW: usize = 16;

    pub(crate) fn open(&mut self) {
        self.open.push(KeysOf {
            first: self.seen.len(),
            listed: 0,
            is_list: true,
            many: None,
        });
    }

    /// Closes the innermost container; true if its keys were those of a list.
    pub(crate) fn close(&mut self) -> bool {
        let closed = self.open.pop().expect("a container is open");
        self.seen.truncate(closed.first);
        closed.is_list
    }

    /// Adds a key to the innermost container; true if it occurred there before.
    pub(crate) fn add(&mut self, key: &Token<'de>) -> bool {
        let container = self.open.last_mut().expect("a container is open");
        if container.is_list && *key == Token::Int(container.listed) {
            container.listed += 1;
            return false;
        }
        let key = SeenKey::of(key);
        if container.is_list && key == SeenKey::Int(container.listed) {
            container.listed += 1;
            return false;
        }
        container.is_list = false;
        if matches!(key, SeenKey::Int(key) if (0..container.listed).contains(&key)) {
            return true;
        }
        if let Some(many) = &mut container.many {
            return !many.insert(key);
        }
        let few = &self.seen[container.first..];
        if few.contains(&key) {
            return true;
        }
        if few.len() == Self::FEW {
            container.many = Some(self.seen.drain(container.first..).chain([key]).collect());
        } else {
            self.seen.push(key);
        }
        false
    }
}

/// One numbered value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Offset of its token.
    pub(crate) offset: usize,
    /// Offset after its last byte; 0 while it is open.
    pub(crate) end: usize,
    /// Number of the value itself, which differs from its own number for `r:`.
    pub(crate) root: u64,
    /// True if `r:` may point to it.
    pub(crate) is_object: bool,
    /// True for an array with the keys 0, 1, 2 and so on.
    pub(crate) is_list: bool,
    /// True if an `R:` points to it.
    pub(crate) is_shared: bool,
}

/// A pair that counts: the offsets of its key and its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

/// The numbering of values for `r:` and `R:`; the first value has number 1.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    all: Vec<Slot>,
    /// How many numbers are certain, and the class whose body made the later ones uncertain.
    certain: Option<(usize, Box<str>)>,
    /// `None` in a text without duplicate keys.
    doubled: Option<Doubled>,
}

/// The effects of duplicate keys in a text.
#[derive(Debug, Default)]
struct Doubled {
    /// For each container with duplicate keys, by its offset: the pairs that count.
    members: HashMap<usize, Rc<[Member]>>,
    /// For each slot, by index: the slot that was first at its place.
    places: Vec<usize>,
    /// For each slot that was first at its place, by index: the slot there now.
    occupants: Vec<usize>,
    /// References that mean another number than the one written; by offset.
    meant: HashMap<usize, u64>,
}

impl Slots {
    /// Numbers the values of a text and checks its references.
    ///
    /// # Errors
    ///
    /// Also [`Kind::UncertainReference`]: a reference to a number after a `C:`
    /// body of an unknown class.
    pub(crate) fn of(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let start = reader.clone();
        let mut slots = Self::default();
        let mut walk = Walk::new(Some(&mut slots));
        let result = walk.value(reader, 0, 0, 0);
        let seen = walk.seen;
        if seen.duplicates {
            // References may mean other values than assumed: start again.
            *reader = start;
            slots = Self {
                doubled: Some(Doubled::default()),
                ..Self::default()
            };
            Walk::new(Some(&mut slots)).value(reader, 0, 0, 0)?;
        } else {
            result?;
        }
        Ok(slots)
    }

    pub(crate) fn get(&self, number: u64) -> Option<Slot> {
        self.index(number).map(|index| self.all[index])
    }

    fn index(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        (index < self.all.len()).then_some(index)
    }

    /// The number that the reference at this offset means.
    pub(crate) fn meant(&self, offset: usize, number: u64) -> u64 {
        let doubled = self.doubled.as_ref();
        let meant = doubled.and_then(|doubled| doubled.meant.get(&offset));
        meant.copied().unwrap_or(number)
    }

    /// The pairs that count of the container at this offset; `None` if all of them count.
    pub(crate) fn members(&self, offset: usize) -> Option<&Rc<[Member]>> {
        self.doubled.as_ref()?.members.get(&offset)
    }

    pub(crate) fn has_duplicates(&self) -> bool {
        self.doubled.is_some()
    }

    /// The value whose token starts at `offset`.
    pub(crate) fn starting_at(&self, offset: usize) -> Option<Slot> {
        self.number_at(offset).and_then(|number| self.get(number))
    }

    /// Number of the value whose token starts at `offset`; `R:` has none.
    pub(crate) fn number_at(&self, offset: usize) -> Option<u64> {
        let index = self.all.binary_search_by_key(&offset, |slot| slot.offset);
        u64::try_from(index.ok()? + 1).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    fn truncate(&mut self, len: usize) {
        self.all.truncate(len);
        if let Some(doubled) = &mut self.doubled {
            doubled.places.truncate(len);
            doubled.occupants.truncate(len);
        }
    }

    /// Adds one value, at the place of the value with index `place`; returns the index of its slot.
    fn note(
        &mut self,
        token: &Token<'_>,
        offset: usize,
        place: Option<usize>,
    ) -> Result<Option<usize>, Error> {
        let index = self.all.len();
        let own = index as u64 + 1;
        let (root, is_object) = match *token {
            Token::ObjectRef(number) => {
                let target = self.target(number, offset, place)?;
                if !self.all[target].is_object {
                    return Err(Error::new(Kind::BadReference { slot: number }, offset));
                }
                (self.all[target].root, true)
            }
            Token::VarRef(number) => {
                let target = self.target(number, offset, place)?;
                self.all[target].is_shared = true;
                if let (Some(doubled), Some(place)) = (&mut self.doubled, place) {
                    doubled.occupants[place] = target;
                }
                return Ok(None);
            }
            Token::Object(..) | Token::Custom(..) | Token::Enum(..) => (own, true),
            _ => (own, false),
        };
        self.all.push(Slot {
            offset,
            end: 0,
            root,
            is_object,
            is_list: false,
            is_shared: false,
        });
        if let Some(doubled) = &mut self.doubled {
            let place = place.unwrap_or(index);
            doubled.places.push(place);
            doubled.occupants.push(index);
            doubled.occupants[place] = index;
        }
        Ok(Some(index))
    }

    /// The target of a reference that is itself at the place `place`.
    fn target(&mut self, number: u64, offset: usize, place: Option<usize>) -> Result<usize, Error> {
        let bad = || Error::new(Kind::BadReference { slot: number }, offset);
        if let Some((certain, class)) = &self.certain
            && number > *certain as u64
        {
            let kind = Kind::UncertainReference {
                slot: number,
                class: class.clone(),
            };
            return Err(Error::new(kind, offset));
        }
        let index = self.index(number).ok_or_else(bad)?;
        let Some(doubled) = &mut self.doubled else {
            return Ok(index);
        };
        if place == Some(doubled.places[index]) {
            return Err(bad());
        }
        let target = doubled.occupants[doubled.places[index]];
        if target != index {
            doubled.meant.insert(offset, target as u64 + 1);
        }
        Ok(target)
    }
}

/// A pass over a text.
struct Walk<'s, 'de> {
    slots: Option<&'s mut Slots>,
    keys: Keys<'de>,
    seen: Seen,
}

/// A container that is being scanned.
struct Open<'de> {
    left: usize,
    slot: Option<usize>,
    is_array: bool,
    members: Option<Members<'de>>,
}

/// The pairs of a container in a text with duplicate keys.
struct Members<'de> {
    container: usize,
    pairs: Vec<(Member, Option<usize>)>,
    of_key: HashMap<SeenKey<'de>, usize>,
    /// Index of the pair that is being read.
    current: usize,
    is_doubled: bool,
}

impl<'de> Members<'de> {
    fn new(container: usize) -> Self {
        Self {
            container,
            pairs: Vec::new(),
            of_key: HashMap::new(),
            current: 0,
            is_doubled: false,
        }
    }

    fn pair(&mut self, key: &Token<'de>, member: Member) {
        let next = self.pairs.len();
        self.current = *self.of_key.entry(SeenKey::of(key)).or_insert(next);
        if self.current == next {
            self.pairs.push((member, None));
        } else {
            self.pairs[self.current].0.value = member.value;
            self.is_doubled = true;
        }
    }
}

impl<'s, 'de> Walk<'s, 'de> {
    fn new(slots: Option<&'s mut Slots>) -> Self {
        Self {
            slots,
            keys: Keys::default(),
            seen: Seen::default(),
        }
    }

    /// Skips one value at depth `depth`; `base` is the offset of the reader's bytes in the text.
    fn value(
        &mut self,
        reader: &mut Reader<'de>,
        base: usize,
        depth: usize,
        nesting: usize,
    ) -> Result<(), Error> {
        let mut open: Vec<Open<'de>> = Vec::new();
        loop {
            let offset = base + reader.pos();
            let token = reader.token()?;
            self.seen.references |= matches!(token, Token::ObjectRef(_) | Token::VarRef(_));
            let slot = self.note(&token, offset, open.last_mut())?;
            check_depth(&token, depth + open.len(), offset)?;
            match token {
                Token::Array(left) | Token::Object(_, left) => {
                    self.keys.open();
                    open.push(Open {
                        left,
                        slot,
                        is_array: matches!(token, Token::Array(_)),
                        members: self.is_close().then(|| Members::new(offset)),
                    });
                }
                Token::Custom(class, body) => {
                    let start = base + reader.pos() - 1 - body.len();
                    self.body(class, body, start, depth + open.len(), nesting)?;
                    self.end(slot, base + reader.pos());
                }
                _ => self.end(slot, base + reader.pos()),
            }
            loop {
                let Some(container) = open.last_mut() else {
                    return Ok(());
                };
                if container.left > 0 {
                    container.left -= 1;
                    let key_at = base + reader.pos();
                    let key = reader.key()?;
                    match &mut container.members {
                        Some(members) => members.pair(
                            &key,
                            Member {
                                key: key_at,
                                value: base + reader.pos(),
                            },
                        ),
                        None => self.seen.duplicates |= self.keys.add(&key),
                    }
                    break;
                }
                reader.close()?;
                let container = open.pop().expect("it was just looked at");
                let is_list = self.keys.close() && container.is_array;
                self.end(container.slot, base + reader.pos());
                let Some(slots) = self.slots.as_deref_mut() else {
                    continue;
                };
                let slot = container.slot.expect("all but `R:` have slots");
                slots.all[slot].is_list = is_list;
                if let (Some(doubled), Some(members)) = (&mut slots.doubled, container.members) {
                    slots.all[slot].is_list = container.is_array && members.is_list();
                    if members.is_doubled {
                        let pairs = members.pairs.iter().map(|(member, _)| *member).collect();
                        doubled.members.insert(members.container, pairs);
                    }
                }
            }
        }
    }

    /// True if the text has duplicate keys and the analysis must record them.
    fn is_close(&self) -> bool {
        let slots = self.slots.as_deref();
        slots.is_some_and(Slots::has_duplicates)
    }

    fn note(
        &mut self,
        token: &Token<'_>,
        offset: usize,
        container: Option<&mut Open<'de>>,
    ) -> Result<Option<usize>, Error> {
        let Some(slots) = self.slots.as_deref_mut() else {
            return Ok(None);
        };
        let members = container.and_then(|container| container.members.as_mut());
        let Some(members) = members else {
            return slots.note(token, offset, None);
        };
        let place = &mut members.pairs[members.current].1;
        let slot = slots.note(token, offset, *place)?;
        *place = place.or(slot);
        Ok(slot)
    }

    fn end(&mut self, slot: Option<usize>, end: usize) {
        if let (Some(slots), Some(slot)) = (self.slots.as_deref_mut(), slot) {
            slots.all[slot].end = end;
        }
    }

    /// Skips the body of a `C:` object if its values are part of the outer numbering.
    ///
    /// PHP continues the outer numbering inside a body that the class passes to
    /// `unserialize`, and counts nothing in any other body (php-serialize.md
    /// 6.3). Only the class knows which of the two it is.
    fn body(
        &mut self,
        class: &str,
        body: &'de [u8],
        start: usize,
        depth: usize,
        nesting: usize,
    ) -> Result<(), Error> {
        let before = self.slots.as_deref().map_or(0, Slots::len);
        let was_certain = self
            .slots
            .as_deref()
            .is_some_and(|slots| slots.certain.is_none());
        if let Some(first) = numbered_body(class, body, nesting) {
            let mut reader = Reader::at(body, first);
            let (keys, seen) = (std::mem::take(&mut self.keys), self.seen);
            let walked = self.value(&mut reader, start, depth, nesting + 1);
            self.keys = keys;
            match walked {
                Ok(()) if reader.remaining() == 0 => return Ok(()),
                Err(error) if matches!(error.kind(), Kind::DepthExceeded { .. }) => {
                    return Err(error);
                }
                // The body is not a value: ignore keys and references found in it.
                _ => self.seen = seen,
            }
        }
        if let Some(slots) = self.slots.as_deref_mut() {
            slots.truncate(before);
            if was_certain {
                slots.certain = Some((before, class.into()));
            }
        }
        Ok(())
    }
}

impl Members<'_> {
    fn is_list(&self) -> bool {
        let keys = (0..self.pairs.len()).zip(0i64..);
        let mut keys = keys.map(|(index, key)| (index, SeenKey::Int(key)));
        keys.all(|(index, key)| self.of_key.get(&key) == Some(&index))
    }
}
