//! What the NIC or its driver lost before any hook: `rx_missed_errors` and `rx_fifo_errors`, asked over
//! rtnetlink, because /proc/net/dev adds to the former what the stack dropped later.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of `struct ifinfomsg` and of the headers around it. Source: linux/rtnetlink.h.
const NLMSG_BYTES: usize = 16;
const IFINFO_BYTES: usize = 16;
const IFLA_STATS64: u16 = 23;
/// Offsets of the two counters in `struct rtnl_link_stats64`. Source: linux/if_link.h.
const RX_FIFO_ERRORS_AT: usize = 8 * 14;
const RX_MISSED_ERRORS_AT: usize = 8 * 15;

/// How old an answer may be while a capture runs. The kernel takes a lock for each, and some drivers ask
/// their NIC; who asks is the thread that captures.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What an interface says it lost since a capture of it began.
#[derive(Debug)]
pub struct Missed {
    index: u32,
    at_start: Option<u64>,
    last: Option<u64>,
    asked: Instant,
}

impl Missed {
    /// Of the interface of this index; asks nothing yet.
    #[must_use]
    pub fn new(index: u32) -> Missed {
        Missed { index, at_start: None, last: None, asked: Instant::now() }
    }

    /// The capture begins now.
    pub fn begin(&mut self) {
        self.ask();
        self.at_start = self.last;
    }

    /// Asks now, whatever was asked before: at the end of a capture.
    pub fn ask(&mut self) {
        self.last = missed(self.index);
        self.asked = Instant::now();
    }

    /// Frames lost since the beginning, as of a second ago at most; `None` if nobody can tell.
    pub fn frames(&mut self) -> Option<u64> {
        if self.asked.elapsed() >= KEPT_FOR {
            self.ask();
        }
        Some(self.last?.saturating_sub(self.at_start?))
    }
}

/// Frames that the interface of this index says it lost; `None` if it cannot be asked.
fn missed(ifindex: u32) -> Option<u64> {
    let answer = ask(ifindex).ok()?;
    counters(&answer)
}

fn ask(ifindex: u32) -> io::Result<Vec<u8>> {
    // SAFETY: no pointers are passed; a descriptor or -1 comes back.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = [0u8; NLMSG_BYTES + IFINFO_BYTES];
    request[0..4].copy_from_slice(&((NLMSG_BYTES + IFINFO_BYTES) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[NLMSG_BYTES + 4..NLMSG_BYTES + 8].copy_from_slice(&ifindex.to_ne_bytes());
    // SAFETY: the buffer is borrowed for the call and its true length is passed; an unconnected
    // netlink socket sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0u8; 16 * 1024];
    // SAFETY: as above; the kernel writes at most `answer.len()` bytes.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(got as usize);
    Ok(answer)
}

/// Finds the two counters in an RTM_NEWLINK message.
fn counters(message: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    if half(4)? != libc::RTM_NEWLINK {
        return None;
    }
    let mut at = NLMSG_BYTES + IFINFO_BYTES;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        let value = message.get(at + 4..at + length.max(4))?;
        if kind == IFLA_STATS64 {
            let word =
                |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
            return Some(word(RX_FIFO_ERRORS_AT)? + word(RX_MISSED_ERRORS_AT)?);
        }
        // A length below its own header would stand still.
        at += length.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_can_be_asked() {
        assert!(missed(1).is_some());
        assert_eq!(missed(u32::MAX), None);
    }

    #[test]
    fn an_answer_is_kept_for_a_second_unless_it_must_be_exact() {
        let mut lost = Missed::new(1);
        assert_eq!(lost.frames(), None, "nothing has begun");
        lost.begin();
        assert_eq!(lost.frames(), Some(0));
        // Asked now, it would say that there is no such interface. A second that lies ahead is not over.
        lost.index = u32::MAX;
        lost.asked = Instant::now() + Duration::from_secs(3600);
        assert_eq!(lost.frames(), Some(0));
        lost.asked = Instant::now().checked_sub(KEPT_FOR).expect("this machine is up for a second");
        assert_eq!(lost.frames(), None);
        lost.index = 1;
        lost.ask();
        assert_eq!(lost.frames(), Some(0));
    }

    #[test]
    fn hostile_lengths_end_the_search() {
        let mut message = vec![0u8; 64];
        message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        assert_eq!(counters(&message), None);
        message[32..34].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert_eq!(counters(&message), None);
        assert_eq!(counters(&[]), None);
    }
}
