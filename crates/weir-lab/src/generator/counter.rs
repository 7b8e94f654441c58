//! Reads the link's own count of transmitted frames.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Error, Result, ethtool};

/// Counts the frames that a link has accepted since this counter was created.
pub(super) struct Counter<'a> {
    iface: &'a str,
    kind: Kind,
    before: Reading,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A veth's count of frames accepted in `ndo_xdp_xmit`. It is exact as soon as the system call returns, and does
    /// not include frames sent by the network stack.
    VethXdp,
    /// The link's transmitted packets, from all senders. Some drivers count a packet only when the NIC has sent it.
    Link,
}

/// Numbers of accepted and refused frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) taken: u64,
    pub(super) refused: u64,
    /// Bytes of the accepted frames, without FCS. Always from the link's own counter, also for frames sent by XDP.
    bytes: u64,
}

/// A link's counter is taken as final if it has not changed for this time.
const STILL: Duration = Duration::from_millis(60);
/// Longest wait for a final counter.
const SETTLE_MAX: Duration = Duration::from_secs(2);

impl<'a> Counter<'a> {
    /// Creates a counter for frames sent by XDP. With several threads, it uses the link's counter: `veth_xdp_xmit`
    /// increments the veth's own count outside the queue's lock, so threads that share a queue can lose updates. The
    /// link's counter is updated in one NAPI context.
    pub(super) fn of_xdp(iface: &'a str, threads: usize) -> Result<Counter<'a>> {
        let veth = threads == 1 && ethtool::driver(iface).is_ok_and(|driver| driver == "veth");
        Counter::new(iface, if veth { Kind::VethXdp } else { Kind::Link })
    }

    /// Creates a counter for frames sent through the network stack.
    pub(super) fn of_link(iface: &'a str) -> Result<Counter<'a>> {
        Counter::new(iface, Kind::Link)
    }

    fn new(iface: &'a str, kind: Kind) -> Result<Counter<'a>> {
        let before = kind.read(iface)?;
        Ok(Counter { iface, kind, before })
    }

    pub(super) fn is_veth_xdp(&self) -> bool {
        self.kind == Kind::VethXdp
    }

    /// Returns the text for [`super::Totals::counted_by`].
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::VethXdp => "veth tx_queue_*_xdp_xmit",
            Kind::Link => "link tx_packets (other senders on this link would count too)",
        }
    }

    /// Returns frames and bytes since the start.
    pub(super) fn now(&self) -> Result<Reading> {
        let now = self.kind.read(self.iface)?;
        Ok(Reading {
            taken: now.taken.wrapping_sub(self.before.taken),
            refused: now.refused.wrapping_sub(self.before.refused),
            bytes: now.bytes.wrapping_sub(self.before.bytes),
        })
    }

    /// Waits until the counter is final. Returns the bytes that the link has accepted since the start, without FCS.
    pub(super) fn settled_bytes(&self) -> Result<u64> {
        let start = Instant::now();
        let (mut last, mut since) = (self.now()?.bytes, start);
        while since.elapsed() < STILL && start.elapsed() < SETTLE_MAX {
            sleep(Duration::from_millis(2));
            let now = self.now()?.bytes;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    /// Waits until the counter has reached `attempted` or is final. Returns the frames since the start.
    pub(super) fn settled(&self, attempted: u64) -> Result<u64> {
        let start = Instant::now();
        let (mut last, mut since) = (self.now()?, start);
        while self.kind == Kind::Link && last.taken < attempted && start.elapsed() < SETTLE_MAX {
            if since.elapsed() > STILL {
                break;
            }
            sleep(Duration::from_millis(2));
            let now = self.now()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        // If the count is higher than the attempts, the rest is from other senders, which the counter does not
        // distinguish.
        Ok(last.taken.min(attempted))
    }
}

impl Kind {
    fn read(self, iface: &str) -> Result<Reading> {
        match self {
            Kind::VethXdp => read_veth(iface),
            Kind::Link => read_link(iface),
        }
    }
}

fn read_veth(iface: &str) -> Result<Reading> {
    // The names are read every time, because the number of queues may change during a run.
    let (names, values) = (ethtool::stat_names(iface)?, ethtool::stats(iface)?);
    let mut reading = Reading { bytes: read_link(iface)?.bytes, ..Reading::default() };
    for (name, value) in names.iter().zip(values) {
        match name.strip_prefix("tx_queue_").and_then(|rest| rest.split_once('_')) {
            Some((_, "xdp_xmit")) => reading.taken += value,
            Some((_, "xdp_xmit_errors")) => reading.refused += value,
            _ => {}
        }
    }
    Ok(reading)
}

/// The table of the calling thread's namespace. `/proc/net` would be that of the main thread.
const NET_DEV: &str = "/proc/thread-self/net/dev";

fn read_link(iface: &str) -> Result<Reading> {
    let text = fs::read_to_string(NET_DEV).map_err(|source| Error::Counters {
        iface: iface.to_owned(),
        path: NET_DEV,
        source,
    })?;
    parse_link(&text, iface).ok_or_else(|| Error::NoInterface { iface: iface.to_owned() })
}

/// Parses a line. After the name there are 8 columns for reception, then bytes, packets, errs, drop, ... for
/// transmission.
fn parse_link(text: &str, iface: &str) -> Option<Reading> {
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(iface)?.strip_prefix(':'));
    let mut columns = line?.split_whitespace().skip(8).map(str::parse);
    let mut next = || columns.next()?.ok();
    let (bytes, packets, errors, drops): (u64, u64, u64, u64) =
        (next()?, next()?, next()?, next()?);
    Some(Reading { taken: packets, refused: errors.wrapping_add(drops), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_line_and_column_are_read() {
        let text = "Inter-|   Receive |  Transmit\n face |bytes packets\n\
            wtx0.7: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n\
            \x20 wtx0:  1 2 3 4 5 6 7 8 100 42 1 2 0 0 0 0\n";
        assert_eq!(parse_link(text, "wtx0"), Some(Reading { taken: 42, refused: 3, bytes: 100 }));
        assert_eq!(parse_link(text, "wtx"), None);
    }
}
