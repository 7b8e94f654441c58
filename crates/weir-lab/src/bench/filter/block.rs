//! Block lists of ten thousand entries for a running capture.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::super::tool::Tool;
use crate::{Error, Result};

/// Number of entries of a list.
const ENTRIES: u32 = 10_000;
/// Entries of [`Met::Some`] that match frames: this prefix, and this number of addresses.
const MET_PREFIX: &str = "198.18.0.0/18";
const MET_ADDRESSES: u32 = 2000;

/// The frames that the entries of a list match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// No frame of the generator, so that only the cost of the lookup is measured.
    None,
    /// A seventh of the frames: an eighth by one prefix, the rest by single addresses.
    Some,
}

/// Contents of the block list of a row's only feed.
#[derive(Debug, Clone, Copy)]
pub(super) enum List {
    /// No entries, but the list exists.
    Empty,
    /// Ten thousand entries.
    Full(Met),
}

/// The control socket of a running capture, and the list to send to it.
pub(super) struct Control {
    dir: TempDir,
    list: List,
}

impl Control {
    /// Creates the control socket's directory, and writes the list to a file.
    ///
    /// # Errors
    /// [`Error::Measure`] if the list cannot be written to a file.
    pub(super) fn new(list: List) -> Result<Control> {
        let dir = TempDir::with_prefix("weir-bench").map_err(|error| failed(&error))?;
        let control = Control { dir, list };
        if let List::Full(met) = list {
            let text = entries(met).join("\n");
            fs::write(control.path("entries"), text).map_err(|error| failed(&error))?;
        }
        Ok(control)
    }

    /// Returns the tool with the control socket as an argument.
    pub(super) fn heard_by(&self, tool: &Tool) -> Tool {
        tool.with(&["--control", &self.path("socket")])
    }

    /// Adds the entries with `weir block`. They are in effect when this function returns.
    ///
    /// # Errors
    /// [`Error::Measure`] with the message of `weir block`.
    pub(super) fn send(&self, weir: &Path, feed: &str) -> Result<()> {
        if let List::Empty = self.list {
            return Ok(());
        }
        let mut command = Command::new(weir);
        command.args(["block", "--file", &self.path("entries"), "--control", &self.path("socket")]);
        let output = command.args(["--feed", feed]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(&error))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(&String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }
}

fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::Measure { what: "weir block".to_owned(), reason: reason.to_string() }
}

/// Returns the entries of a list. Of every ten, four are flows, four addresses and two prefixes; one of each kind is
/// IPv6.
fn entries(met: Met) -> Vec<String> {
    let met_addresses = (0..MET_ADDRESSES).map(|n| format!("198.19.{}", low_half(spread(n))));
    let wanted = match met {
        Met::None => Vec::new(),
        Met::Some => [MET_PREFIX.to_owned()].into_iter().chain(met_addresses).collect(),
    };
    let rest = (wanted.len() as u32..ENTRIES).map(strange);
    wanted.into_iter().chain(rest).collect()
}

/// Returns entry `n` of those that match no frame. Each `n` gives a different entry.
fn strange(n: u32) -> String {
    let number = spread(n);
    let six = format!("2001:db8::{:x}:{:x}", number >> 16, number & 0xffff);
    match n % 10 {
        0 => six,
        1..4 => format!("10.{}.{}", number >> 16 & 0xff, low_half(number)),
        4 => format!("tcp [{six}]:443 [2001:db8:ffff::1]:50000"),
        5..8 => format!("udp 100.64.{}:{} 10.1.2.3:53", low_half(number), 1024 + n),
        8 => format!("2001:db8:{:x}::/48", n + 1),
        _ => format!("172.{}.{}.0/24", 16 + n / 2560, n / 10 % 256),
    }
}

/// Scatters consecutive numbers. The function is a bijection, also when only the lower 16 or 24 bits are used.
fn spread(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b1)
}

/// Formats the lower 16 bits as the last two numbers of an IPv4 address.
fn low_half(number: u32) -> String {
    format!("{}.{}", number >> 8 & 0xff, number & 0xff)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use weir_filter::BlockList;
    use weir_frame::flow::FlowKey;
    use weir_frame::headers::Addresses;

    use super::*;
    use crate::generator::template::{DESTINATION, DESTINATION_PORT, flow_of};

    fn list(met: Met) -> BlockList {
        let mut list = BlockList::default();
        for text in entries(met) {
            assert!(list.add(text.parse().unwrap()).unwrap(), "{text} is there twice");
        }
        assert_eq!(list.len(), ENTRIES as usize);
        list
    }

    /// Number of blocked frames in a thousand, of a million frames of the generator.
    fn blocked(list: &BlockList) -> u64 {
        let blocked = (0..1_000_000).filter(|&number| {
            let (src, src_port) = flow_of(number, 0);
            let (src, dst) = (Ipv4Addr::from_bits(src), DESTINATION.into());
            let addresses = Addresses::V4 { src, dst };
            let dst_port = DESTINATION_PORT;
            list.contains(&FlowKey { addresses, protocol: 17, src_port, dst_port })
        });
        blocked.count() as u64 / 1000
    }

    #[test]
    fn no_frame_meets_one_list_and_a_seventh_of_them_the_other() {
        assert_eq!(blocked(&list(Met::None)), 0);
        let met = blocked(&list(Met::Some));
        assert!((137..=143).contains(&met), "{met} of 1000");
    }

    #[test]
    fn lists_are_mixed() {
        let texts = entries(Met::None);
        let count = |is: fn(&str) -> bool| texts.iter().filter(|text| is(text)).count();
        assert_eq!(count(|text| text.contains('/')), 2000);
        assert_eq!(count(|text| text.contains("p ")), 4000);
        assert_eq!(count(|text| text.contains("::")), 3000);
    }
}
