//! Parses addresses and payloads of datagrams from text that a user typed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let bad = || format!("'{text}' is no MAC address; write it like 02:00:5e:10:00:01");
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let is_byte = |part: &&str| part.len() == 2 && !part.starts_with('+');
            let part = parts.next().filter(is_byte).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(mac)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The source addresses of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceIp {
    /// An address for each flow, made from the flow's number.
    Flow,
    /// The same address for all datagrams.
    One(IpAddr),
}

impl FromStr for SourceIp {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceIp, String> {
        if text == "flow" {
            return Ok(SourceIp::Flow);
        }
        let bad =
            |_| format!("'{text}' is no IP address; write one, or flow for one for each flow");
        text.parse().map(SourceIp::One).map_err(bad)
    }
}

/// At most two VLAN IDs, the outer one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans(pub Vec<u16>);

impl FromStr for Vlans {
    type Err = String;

    fn from_str(text: &str) -> Result<Vlans, String> {
        let ids: Result<Vec<u16>, _> = text.split(',').map(str::parse).collect();
        match ids {
            Ok(ids) if ids.len() <= 2 && ids.iter().all(|id| *id < 4095) => Ok(Vlans(ids)),
            _ => Err(format!(
                "'{text}': write a VLAN ID, 0 to 4094, or two: the outer one first, 5,42"
            )),
        }
    }
}

/// The bytes of a payload, typed in hexadecimal, or as text after `text:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadBytes(pub Vec<u8>);

impl FromStr for PayloadBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<PayloadBytes, String> {
        if let Some(text) = text.strip_prefix("text:") {
            return Ok(PayloadBytes(text.as_bytes().to_vec()));
        }
        let digits: Vec<u8> = text.bytes().filter(|byte| !b": ".contains(byte)).collect();
        let byte = |pair: &[u8; 2]| {
            let digit = |of: u8| char::from(of).to_digit(16);
            Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
        };
        let (pairs, rest) = digits.as_chunks::<2>();
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(PayloadBytes(bytes)),
            _ => Err(format!("'{text}': write bytes in hex, 0a0b0c, or text:hello")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn macs_vlans_and_payloads_are_read() {
        for text in ["02:00:5e:10:00:0f", "02-00-5E-10-00-0f"] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(mac.to_string(), "02:00:5e:10:00:0f");
        }
        for bad in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:0f:1",
            "2:0:5e:10:0:f",
            "02:00:5e:10:00:+f",
            "02:00:5e:10:00:0g",
        ] {
            assert!(bad.parse::<Mac>().unwrap_err().contains("02:00"), "{bad}");
        }
        assert_eq!("5".parse(), Ok(Vlans(vec![5])));
        assert_eq!("5,4094".parse(), Ok(Vlans(vec![5, 4094])));
        for bad in ["", "4095", "1,2,3", "1,", "-1", "blue"] {
            assert!(bad.parse::<Vlans>().unwrap_err().contains("0 to 4094"), "{bad}");
        }
        assert_eq!("text:a b".parse(), Ok(PayloadBytes(b"a b".to_vec())));
        assert_eq!("text:".parse(), Ok(PayloadBytes(vec![])));
        assert_eq!("0a0B ff:00".parse(), Ok(PayloadBytes(vec![10, 11, 255, 0])));
        for bad in ["0", "abc", "hello", "0x0a"] {
            assert!(bad.parse::<PayloadBytes>().unwrap_err().contains("text:hello"), "{bad}");
        }
        assert_eq!("flow".parse(), Ok(SourceIp::Flow));
        assert_eq!("::1".parse(), Ok(SourceIp::One(Ipv6Addr::LOCALHOST.into())));
        assert!("eth0".parse::<SourceIp>().unwrap_err().contains("flow"));
    }
}
