//! Marks in a byte stream: a mark begins with the byte `ff`, and the data byte `ff` becomes two bytes.
//!
//! | bytes | meaning |
//! |---|---|
//! | `ff 00` | the byte `ff` |
//! | `ff 01` and 16 hexadecimal digits | a reset with this number |
//! | `ff 02` | a bell |
//! | `ff` and any other byte | nothing: the `ff` was the last byte of an item that broke off |

use std::collections::VecDeque;

const MARK: u8 = 0xff;
const DATA: u8 = 0;
const RESET: u8 = 1;
const BELL: u8 = 2;
/// Number of digits of a reset's number.
const DIGITS: usize = 16;

/// An item of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Byte(u8),
    Bell,
    Reset(u64),
}

/// Appends data.
pub(super) fn data(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        out.push(byte);
        if byte == MARK {
            out.push(DATA);
        }
    }
}

/// Appends a reset.
pub(super) fn reset(out: &mut Vec<u8>, number: u64) {
    out.extend([MARK, RESET]);
    out.extend(format!("{number:016x}").bytes());
}

/// Appends a bell.
pub(super) fn bell(out: &mut Vec<u8>) {
    out.extend([MARK, BELL]);
}

/// Decodes a stream byte by byte.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    state: State,
    digits: VecDeque<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Data,
    /// After the first byte of a mark.
    Mark,
    /// In the number of a reset.
    Number,
}

impl Decoder {
    /// Takes the next byte. Returns the item that this byte completes.
    pub(super) fn take(&mut self, byte: u8) -> Option<Item> {
        // This byte always begins a mark: it is not a digit, and no mark has it as the second byte.
        if byte == MARK {
            self.state = State::Mark;
            return None;
        }
        match self.state {
            State::Data => Some(Item::Byte(byte)),
            State::Mark => {
                self.state = State::Data;
                match byte {
                    DATA => Some(Item::Byte(MARK)),
                    BELL => Some(Item::Bell),
                    RESET => {
                        self.digits.clear();
                        self.state = State::Number;
                        None
                    }
                    _ => None,
                }
            }
            State::Number => {
                if !byte.is_ascii_hexdigit() {
                    self.state = State::Data;
                    return None;
                }
                self.digits.push_back(byte);
                if self.digits.len() < DIGITS {
                    return None;
                }
                self.state = State::Data;
                let digits = std::str::from_utf8(self.digits.make_contiguous()).ok()?;
                u64::from_str_radix(digits, 16).ok().map(Item::Reset)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Vec<Item> {
        let mut decoder = Decoder::default();
        bytes.iter().filter_map(|byte| decoder.take(*byte)).collect()
    }

    fn encode(items: &[Item]) -> Vec<u8> {
        let mut out = Vec::new();
        for item in items {
            match item {
                Item::Byte(byte) => data(&mut out, &[*byte]),
                Item::Bell => bell(&mut out),
                Item::Reset(number) => reset(&mut out, *number),
            }
        }
        out
    }

    fn item() -> impl Strategy<Value = Item> {
        prop_oneof![
            8 => any::<u8>().prop_map(Item::Byte),
            2 => Just(Item::Byte(MARK)),
            1 => Just(Item::Bell),
            1 => any::<u64>().prop_map(Item::Reset),
        ]
    }

    proptest! {
        #[test]
        fn everything_comes_out_as_it_went_in(items in prop::collection::vec(item(), 0..200)) {
            prop_assert_eq!(decode(&encode(&items)), items);
        }

        #[test]
        fn a_reset_is_found_behind_anything(
            before in prop::collection::vec(any::<u8>(), 0..60),
            items in prop::collection::vec(item(), 0..60),
            cut in any::<prop::sample::Index>(),
            number: u64,
        ) {
            let mut bytes = before;
            let broken = encode(&items);
            bytes.extend(&broken[..cut.index(broken.len() + 1)]);
            reset(&mut bytes, number);
            data(&mut bytes, b"hello");
            let found = decode(&bytes);
            let hello: Vec<Item> = b"hello".iter().map(|byte| Item::Byte(*byte)).collect();
            prop_assert!(found.ends_with(&[&[Item::Reset(number)], &hello[..]].concat()), "{:?}", found);
        }
    }
}
