//! Options of the engine `af_xdp`, and checks whether the interface supports them.

use std::io;
use std::ops::Range;

use super::segments;
use super::socket::{self, Mode, Shape};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::direction::Direction;
use crate::kernel::interface::{Interface, InterfaceQuery, members};
use crate::kernel::netns::{NetnsName, ask_in};
use crate::limits::COPIERS_MAX;
use crate::memory::Memory;
use crate::setup::{Setup, refuse_queue};

/// Most and fewest chunks of one socket, and most bytes of all sockets of a source together. A source with so many
/// queues that even the fewest chunks for each take more bytes may exceed the last limit.
const CHUNKS_MAX: u32 = 8192;
const CHUNKS_MIN: u32 = 128;
const MEMORY_MAX: u32 = 32 << 20;

/// Selection of RX queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// All queues of the interface.
    #[default]
    All,
    /// The queues from the first number to the last one, inclusive.
    Range(u32, u32),
}

/// The place where frames get their time stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// In the program at the XDP hook, when the frame comes.
    #[default]
    Hook,
    /// In the copier, when it copies the frame.
    Copier,
}

/// Options of the engine `af_xdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfXdpOptions {
    /// RX queues to take frames from.
    pub queues: Queues,
    /// Copiers (threads) for each queue.
    pub copiers: u32,
    /// Zero-copy or copy mode.
    pub mode: Mode,
    /// The place where frames get their time stamps.
    pub stamps: Stamps,
    /// Whether to record the queue of every frame as an option.
    pub record_queue: bool,
}

impl Default for AfXdpOptions {
    fn default() -> Self {
        let (queues, mode, stamps) = (Queues::All, Mode::Best, Stamps::Hook);
        AfXdpOptions { queues, copiers: 1, mode, stamps, record_queue: false }
    }
}

pub(super) fn check(
    iface: &str,
    setup: &Setup,
    options: &AfXdpOptions,
) -> Result<(), CaptureError> {
    let wrong = |text: String| Err(CaptureError::Options(text));
    setup.check()?;
    setup.feeds.iter().try_for_each(|feed| admit(iface, &mut feed.clone()))?;
    if !(1..=COPIERS_MAX).contains(&options.copiers) {
        return wrong(format!("--copiers {}: 1 to {COPIERS_MAX}", options.copiers));
    }
    Ok(())
}

/// Checks a feed, and sets its direction to `Both`, since this engine sees received frames only.
pub(super) fn admit(iface: &str, feed: &mut Feed) -> Result<(), CaptureError> {
    refuse_queue(feed, "a socket or poller")?;
    if feed.direction == Direction::Out {
        return Err(CaptureError::Options(format!(
            "{iface}: AF_XDP sees received frames only; for --direction out use --engine bpf"
        )));
    }
    feed.direction = Direction::Both;
    Ok(())
}

/// Returns the memory that a source with these options needs. If the number of queues is unknown, assumes one queue.
pub(super) fn memory(netns: Option<&NetnsName>, iface: &str, options: &AfXdpOptions) -> Memory {
    // Errors are ignored here; `open` reports them.
    let have = ask_in(netns, || InterfaceQuery::new().ok()?.rx_queues(iface)).ok().flatten();
    let queues = wanted_queues(iface, have, options.queues).map_or(1, |wanted| wanted.len() as u32);
    Memory {
        rings: u64::from(queues) * u64::from(options.copiers),
        buffer_bytes: buffer_bytes_max(queues),
    }
}

/// Returns the most bytes of chunks that the sockets of this many queues have together.
fn buffer_bytes_max(queues: u32) -> u64 {
    let least = u64::from(queues) * u64::from(CHUNKS_MIN) * u64::from(socket::CHUNK_LARGE);
    u64::from(MEMORY_MAX).max(least)
}

/// Refuses bonds and teams. They have no queues: frames come to the queues of their members, and AF_XDP cannot redirect
/// these frames to a socket of the bond or team.
pub(super) fn refuse_masters(
    query: &InterfaceQuery,
    interface: &Interface,
) -> Result<(), CaptureError> {
    let driver = query.driver(&interface.name).map(|driver| driver.name).unwrap_or_default();
    let what = match driver.as_str() {
        "bonding" => "a bond",
        "team" => "a team",
        _ => return Ok(()),
    };
    let iface = &interface.name;
    let advice = members_advice(iface, members(interface.index));
    Err(CaptureError::Options(format!(
        "{iface} is {what}, and AF_XDP takes frames off the queues of real devices; {advice}, or use --engine \
         bpf"
    )))
}

/// Returns the text that advises the user to capture the members instead of the master.
fn members_advice(master: &str, members: io::Result<Vec<String>>) -> String {
    match members {
        Ok(members) if members.is_empty() => "it has no members now".to_owned(),
        Ok(members) => format!("capture its members: {}", members.join(" ")),
        Err(error) => format!(
            "capture its members, which the kernel refused to list here ({error}; `ip link show master {master}` may)"
        ),
    }
}

pub(super) fn wanted_queues(
    iface: &str,
    have: Option<u32>,
    queues: Queues,
) -> Result<Range<u32>, CaptureError> {
    // A driver that does not report its number of queues is assumed to have one.
    let have = have.unwrap_or(1);
    let Queues::Range(first, last) = queues else { return Ok(0..have) };
    if first > last || last >= have {
        return Err(CaptureError::Options(format!(
            "--queues {first}-{last}: {iface} has queues 0 to {} (`ethtool -l {iface}`)",
            have - 1
        )));
    }
    Ok(first..last + 1)
}

pub(super) fn shape_of(
    interface: &Interface,
    queues: u32,
    copiers: u32,
) -> Result<Shape, CaptureError> {
    let mut shape = Shape::of(interface, CHUNKS_MAX);
    let share = MEMORY_MAX / shape.chunk_bytes / queues;
    shape.chunks = (1 << share.max(1).ilog2()).clamp(CHUNKS_MIN, CHUNKS_MAX);
    if shape.multi && copiers > 1 {
        return Err(CaptureError::Options(format!(
            "--copiers {copiers}: frames of MTU {} lie in several chunks, which one copier alone can put \
             together; leave --copiers out, or lower the MTU of {}",
            interface.mtu, interface.name
        )));
    }
    let most = segments::copiers_max(shape.chunks);
    if copiers > most {
        return Err(CaptureError::Options(format!(
            "--copiers {copiers}: with {queues} queues each has {} slots, enough for {most} copiers; take \
             fewer of either",
            shape.chunks
        )));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_cannot_be_listed_are_not_none() {
        let of = |members| members_advice("bond0", members);
        assert_eq!(of(Ok(Vec::new())), "it has no members now");
        let two = vec!["eth0".to_owned(), "eth1".to_owned()];
        assert_eq!(of(Ok(two)), "capture its members: eth0 eth1");
        let refused = of(Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
        for words in ["refused to list", "No buffer space", "`ip link show master bond0`"] {
            assert!(refused.contains(words), "'{words}' is not in: {refused}");
        }
    }
}
