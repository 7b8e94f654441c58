//! Writes numbers, addresses and names. Hand-written, because formatting through `core::fmt` takes three times as long.

use std::io::Write;
use std::net::Ipv6Addr;

/// Methods that append to a line.
pub trait Text {
    /// Appends text unchanged. Only for constant text, never for bytes of a packet.
    fn put(&mut self, text: &str);
    /// Appends a decimal number.
    fn dec(&mut self, number: impl Into<u64>);
    /// Appends `0x` and a hexadecimal number with at least `digits` digits.
    fn hex(&mut self, number: impl Into<u64>, digits: usize);
    /// Appends two hexadecimal digits.
    fn hex_byte(&mut self, byte: u8);
    /// Appends an IPv4 address: `10.0.0.1`
    fn v4(&mut self, address: [u8; 4]);
    /// Appends an IPv6 address: `fe80::1`
    fn v6(&mut self, address: [u8; 16]);
    /// Appends a MAC address: `02:00:00:00:00:01`
    fn mac(&mut self, address: [u8; 6]);
    /// Appends bytes of a packet as a name. Backslashes, and bytes that are not printable ASCII, become octal escapes.
    fn name(&mut self, bytes: &[u8]);
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl Text for Vec<u8> {
    fn put(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }

    fn dec(&mut self, number: impl Into<u64>) {
        let mut rest = number.into();
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.extend_from_slice(&digits[at..]);
    }

    fn hex(&mut self, number: impl Into<u64>, digits: usize) {
        let number = number.into();
        let needed = (64 - number.leading_zeros() as usize).div_ceil(4).max(digits).max(1);
        self.put("0x");
        for nibble in (0..needed.min(16)).rev() {
            self.push(HEX[(number >> (4 * nibble)) as usize & 15]);
        }
    }

    fn hex_byte(&mut self, byte: u8) {
        self.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }

    fn v4(&mut self, [a, b, c, d]: [u8; 4]) {
        self.dec(a);
        for byte in [b, c, d] {
            self.push(b'.');
            self.dec(byte);
        }
    }

    fn v6(&mut self, address: [u8; 16]) {
        let _ = write!(self, "{}", Ipv6Addr::from(address));
    }

    fn mac(&mut self, address: [u8; 6]) {
        for (i, byte) in address.into_iter().enumerate() {
            if i > 0 {
                self.push(b':');
            }
            self.hex_byte(byte);
        }
    }

    fn name(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b' '..=b'~' if byte != b'\\' => self.push(byte),
                _ => self.extend_from_slice(&[
                    b'\\',
                    b'0' + (byte >> 6),
                    b'0' + (byte >> 3 & 7),
                    b'0' + (byte & 7),
                ]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(write: impl FnOnce(&mut Vec<u8>), text: &str) {
        let mut out = Vec::new();
        write(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn numbers_and_addresses_have_their_usual_form() {
        is(|out| out.dec(0u8), "0");
        is(|out| out.dec(u64::MAX), "18446744073709551615");
        is(|out| out.hex(0u8, 1), "0x0");
        is(|out| out.hex(0xabu8, 4), "0x00ab");
        is(|out| out.hex(u64::MAX, 1), "0xffffffffffffffff");
        is(|out| out.v4([10, 0, 255, 1]), "10.0.255.1");
        is(|out| out.v6(Ipv6Addr::LOCALHOST.octets()), "::1");
        is(|out| out.mac([2, 0, 0, 0xab, 0, 1]), "02:00:00:ab:00:01");
        is(|out| out.name(b"a b\x1b[2J\\\xff"), "a b\\033[2J\\134\\377");
    }
}
