//! The header at the beginning of the region and of the words.

use std::fmt;

use thiserror::Error;

use crate::limits::{LINE_BYTES, REGION_BYTES_MAX, REGION_BYTES_MIN, WORDS_BYTES};

/// The first bytes of both kinds of memory; the last byte is the version.
const MAGIC: [u8; 8] = *b"WEIR-VM\x01";

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The region, which has the rings.
    Region,
    /// The words, which the guest writes.
    Words,
}

/// A random number that the host draws for each guest, each time that it plugs the devices in. It distinguishes them
/// from devices of other programs, and from those of an earlier session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

impl std::str::FromStr for Token {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Token, NotOurs> {
        let mut bytes = [0; 16];
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotOurs::Token);
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| NotOurs::Token)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NotOurs::Token)?;
        }
        Ok(Token(bytes))
    }
}

/// The contents of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of memory.
    pub kind: Kind,
    /// The token of the session.
    pub token: Token,
    /// Length of the whole memory in bytes.
    pub bytes: u64,
}

/// Why memory does not belong to Weir, or cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotOurs {
    /// The memory begins with other bytes.
    #[error("it does not begin as memory of a Weir daemon does")]
    Magic,
    /// The header has another version.
    #[error("it has version {0}, and this program knows version {known}", known = MAGIC[7])]
    Version(u8),
    /// The memory is neither the region nor the words.
    #[error("it is of an unknown kind, {0}")]
    Kind(u8),
    /// The length in the header is not possible.
    #[error("it says that it has {0} bytes, which it cannot have")]
    Bytes(u64),
    /// The text is not a token.
    #[error("a token has 32 hexadecimal digits")]
    Token,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; LINE_BYTES as usize] {
        let mut line = [0; LINE_BYTES as usize];
        line[..8].copy_from_slice(&MAGIC);
        line[8] = match self.kind {
            Kind::Region => 1,
            Kind::Words => 2,
        };
        line[16..32].copy_from_slice(&self.token.0);
        line[32..40].copy_from_slice(&self.bytes.to_le_bytes());
        line
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`NotOurs`].
    pub fn decode(line: &[u8; LINE_BYTES as usize]) -> Result<Header, NotOurs> {
        if line[..7] != MAGIC[..7] {
            return Err(NotOurs::Magic);
        }
        if line[7] != MAGIC[7] {
            return Err(NotOurs::Version(line[7]));
        }
        let bytes = u64::from_le_bytes(line[32..40].try_into().expect("8 bytes"));
        let (kind, fits) = match line[8] {
            1 => {
                let fits = (REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes);
                (Kind::Region, fits && bytes.is_power_of_two())
            }
            2 => (Kind::Words, bytes == WORDS_BYTES),
            other => return Err(NotOurs::Kind(other)),
        };
        if !fits {
            return Err(NotOurs::Bytes(bytes));
        }
        Ok(Header { kind, token: Token(line[16..32].try_into().expect("16 bytes")), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let token = Token(*b"0123456789abcdef");
        for (kind, bytes) in [(Kind::Region, 64 << 20), (Kind::Words, 4096)] {
            let header = Header { kind, token, bytes };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        assert_eq!(token.to_string().parse(), Ok(token));
        assert_eq!("0123".parse::<Token>(), Err(NotOurs::Token));
        assert_eq!("+1".repeat(16).parse::<Token>(), Err(NotOurs::Token));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = Header { kind: Kind::Region, token: Token([7; 16]), bytes: 64 << 20 }.encode();
        let with = |at: usize, byte: u8| {
            let mut line = good;
            line[at] = byte;
            Header::decode(&line)
        };
        assert_eq!(with(0, 0), Err(NotOurs::Magic));
        assert_eq!(with(7, 9), Err(NotOurs::Version(9)));
        assert_eq!(with(8, 3), Err(NotOurs::Kind(3)));
        assert_eq!(with(8, 2), Err(NotOurs::Bytes(64 << 20)));
        assert_eq!(with(32, 1), Err(NotOurs::Bytes((64 << 20) + 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_an_error(line in prop::array::uniform32(any::<u8>())) {
            let mut whole = [0; 64];
            whole[..8].copy_from_slice(&MAGIC);
            whole[8..40].copy_from_slice(&line);
            if let Ok(header) = Header::decode(&whole) {
                prop_assert_eq!(&Header::decode(&header.encode()), &Ok(header));
            }
        }
    }
}
