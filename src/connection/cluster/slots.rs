//! Slots: where the keys of a cluster lie.

use std::collections::BTreeMap;

use redis::Value;

use crate::connection::address::Address;

/// Number of slots of every cluster.
const SLOTS: u16 = 16_384;

/// The table of CRC-16/XMODEM, by which keys are spread.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The part of a key by which its slot is found, if it is not the whole key: between the first `{` and the first `}`
/// behind it, unless that is empty.
pub(crate) fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = &key[open + 1..];
    let close = rest.iter().position(|byte| *byte == b'}')?;
    (close > 0).then(|| &rest[..close])
}

/// The slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let hashed = tag(key).unwrap_or(key);
    let crc = hashed.iter().fold(0_u16, |crc, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(*byte))]
    });
    crc % SLOTS
}

/// Which master serves which slot, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotMap {
    /// First and last slot of a range, and its master; by the first slot.
    ranges: BTreeMap<u16, (u16, Address)>,
    /// Slots that were moved since the ranges were read.
    moved: BTreeMap<u16, Address>,
}

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS`, which `asked` has given; `None` if it is something else.
    ///
    /// A range is left out if the reply does not say the address of its master.
    pub(super) fn read(reply: Value, asked: &Address) -> Option<Self> {
        type Node = (Option<String>, u16);
        let Value::Array(rows) = reply else {
            return None;
        };
        let mut map = Self::default();
        for row in rows {
            let Value::Array(row) = row else {
                return None;
            };
            let mut row = row.into_iter();
            let first: u16 = redis::from_redis_value(row.next()?).ok()?;
            let last: u16 = redis::from_redis_value(row.next()?).ok()?;
            // The master is the first node; behind host and port stand its id and more names.
            let Some(Value::Array(node)) = row.next() else {
                continue;
            };
            let node: Vec<Value> = node.into_iter().take(2).collect();
            let (host, port): Node = redis::from_redis_value(Value::Array(node)).ok()?;
            if let Some(address) = asked.beside(host.as_deref().unwrap_or_default(), port) {
                map.ranges.insert(first, (last, address));
            }
        }
        Some(map)
    }

    /// The master of a slot.
    pub(super) fn master(&self, slot: u16) -> Option<&Address> {
        if let Some(moved) = self.moved.get(&slot) {
            return Some(moved);
        }
        let (_, (last, master)) = self.ranges.range(..=slot).next_back()?;
        (*last >= slot).then_some(master)
    }

    /// All masters, each once.
    pub(super) fn masters(&self) -> Vec<&Address> {
        let of_ranges = self.ranges.values().map(|(_, master)| master);
        let mut masters: Vec<_> = of_ranges.chain(self.moved.values()).collect();
        masters.sort();
        masters.dedup();
        masters
    }

    /// Notes that another node serves a slot.
    pub(super) fn note_move(&mut self, slot: u16, to: Address) {
        self.moved.insert(slot, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        // As `CLUSTER KEYSLOT` of Redis 7.0.15 says.
        #[rustfmt::skip]
        let rows: [(&str, u16); 8] = [
            ("", 0), ("123456789", 12739), ("foo", 12182), ("{foo}bar", 12182), ("a{foo}b{bar}", 12182),
            ("foo{}{bar}", 8363), ("foo{{bar}}zap", 4015), ("foo{bar", 15278),
        ];
        for (key, expected) in rows {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(tag(b"foo{bar"), None);
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::Nil])
    }

    #[test]
    fn the_map_says_who_serves_a_slot_as_far_as_nodes_know() {
        let text = |text: &str| Value::BulkString(text.into());
        let rows = [
            (0, 99, text("10.0.0.1"), 1),
            // The address that was asked.
            (100, 199, text(""), 2),
            (200, 299, Value::Nil, 3),
            (300, 399, text("?"), 4),
            (500, 599, text("redis-5.example"), 5),
        ];
        let rows = rows.map(|(first, last, host, port)| {
            let replica = node(text("10.9.9.9"), 9);
            let (first, last) = (Value::Int(first), Value::Int(last));
            Value::Array(vec![first, last, node(host, port), replica])
        });
        let asked = Address::new("seed", 7);
        let mut map = SlotMap::read(Value::Array(rows.into()), &asked).unwrap();
        let mut expected = vec![
            (0, Some(Address::new("10.0.0.1", 1))),
            (99, Some(Address::new("10.0.0.1", 1))),
            (150, Some(Address::new("seed", 2))),
            (200, Some(Address::new("seed", 3))),
            (300, None),
            (450, None),
            (599, Some(Address::new("redis-5.example", 5))),
            (600, None),
        ];
        let check = |map: &SlotMap, expected: &[(u16, Option<Address>)]| {
            for (slot, master) in expected {
                assert_eq!(map.master(*slot), master.as_ref(), "{slot}");
            }
        };
        check(&map, &expected);
        assert_eq!(map.masters().len(), 4);
        map.note_move(150, Address::new("10.0.0.1", 1));
        expected[2].1 = Some(Address::new("10.0.0.1", 1));
        expected.push((151, Some(Address::new("seed", 2))));
        check(&map, &expected);
        assert!(SlotMap::read(Value::Okay, &asked).is_none());
    }
}
