//! Reads the names of addresses from a Name Resolution Block. The bytes are not trusted.
//!
//! Source: draft-ietf-opsawg-pcapng, section 4.5.

use std::net::IpAddr;

use super::write::{NAME_MAX_BYTES, NRB_RECORD_END, NRB_RECORD_IPV4, NRB_RECORD_IPV6};
use super::{AddressName, NRB_TYPE};

/// Returns the names in a whole block of a little-endian section, in their order; none, if it is a block of another
/// type.
///
/// Names that [`write::names`](super::write::names) never writes are skipped: empty ones, those longer than 255 bytes
/// or not UTF-8, and names of anything but IP addresses. Reading stops at a record that is longer than the rest of
/// its block.
#[must_use]
pub fn read(block: &[u8]) -> Vec<AddressName> {
    let mut names = Vec::new();
    let Some((head, rest)) = block.split_first_chunk::<8>() else { return names };
    if head[..4] != NRB_TYPE.to_le_bytes() {
        return names;
    }
    // After the records come options, and the repeated length of the block.
    let mut rest = &rest[..rest.len().saturating_sub(4)];
    while let Some(([a, b, c, d], behind)) = rest.split_first_chunk::<4>() {
        let (kind, length) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]).into());
        let Some(value) = behind.get(..length).filter(|_| kind != NRB_RECORD_END) else { break };
        if let Some((address, texts)) = address(kind, value) {
            let texts = texts.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
            let texts = texts.filter(|text| (1..=NAME_MAX_BYTES).contains(&text.len()));
            names.extend(texts.map(|text| AddressName { address, name: text.to_owned() }));
        }
        rest = behind.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    names
}

/// Returns the address of a record, and the texts after it.
fn address(kind: u16, value: &[u8]) -> Option<(IpAddr, &[u8])> {
    match kind {
        NRB_RECORD_IPV4 => {
            value.split_first_chunk::<4>().map(|(address, texts)| ((*address).into(), texts))
        }
        NRB_RECORD_IPV6 => {
            value.split_first_chunk::<16>().map(|(address, texts)| ((*address).into(), texts))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::write;
    use super::*;

    fn name(address: [u8; 4], name: &str) -> AddressName {
        AddressName { address: address.into(), name: name.into() }
    }

    /// A block with these records.
    fn block(records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, value) in records {
            body.extend_from_slice(&kind.to_le_bytes());
            body.extend_from_slice(&(value.len() as u16).to_le_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&NRB_TYPE.to_le_bytes()[..], &length, &body, &length].concat()
    }

    #[test]
    fn several_names_of_an_address_are_read_and_what_weir_never_writes_is_left_out() {
        let records: [(u16, &[u8]); 8] = [
            (1, b"\x0a\0\0\x01one\0two\0"),
            (3, b"\x02\0\0\0\0\x01mac\0"),
            (1, b"\x0a\0\0"),
            (1, b"\x0a\0\0\x02\0"),
            (1, b"\x0a\0\0\x03\xff\0three\0"),
            (1, &[&[10, 0, 0, 4][..], &[b'n'; 256]].concat()),
            (0, b""),
            (1, b"\x0a\0\0\x05behind\0"),
        ];
        let wanted =
            [name([10, 0, 0, 1], "one"), name([10, 0, 0, 1], "two"), name([10, 0, 0, 3], "three")];
        assert_eq!(read(&block(&records)), wanted);
        let mut other = block(&records);
        other[0] = 5;
        assert_eq!(read(&other), []);
    }

    proptest! {
        #[test]
        fn names_are_read_as_they_were_written(
            all in proptest::collection::vec((any::<IpAddr>(), "[^\\x00]{1,60}"), 0..100),
        ) {
            let wanted: Vec<AddressName> =
                all.into_iter().map(|(address, name)| AddressName { address, name }).collect();
            let mut block = Vec::new();
            write::names(&mut block, &wanted);
            prop_assert_eq!(read(&block), wanted);
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut block = NRB_TYPE.to_le_bytes().to_vec();
            block.extend_from_slice(&bytes);
            prop_assert!(read(&block).len() <= bytes.len());
            (0..block.len()).for_each(|length| drop(read(&block[..length])));
        }
    }
}
