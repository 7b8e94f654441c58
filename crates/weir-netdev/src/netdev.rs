//! An interface into which frames are fed.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::time::Instant;

use crate::backlog::Backlog;
use crate::error::NetdevError;
use crate::link;
use crate::name::NetdevName;
use crate::pending::Pending;
use crate::programs::Programs;
use crate::staged::Staged;
use crate::tap::Tap;

/// Fewer frames than this are written one by one, because a run of the program takes some microseconds for any number
/// of frames.
const FEW: usize = 16;

/// Counts of frames since the interface was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that the interface received: packet sockets have seen them.
    pub received: u64,
    /// Frames that the interface did not receive: it was down, there was no memory, they were too short or too long, or
    /// the backlog of the CPU to which they were steered was full.
    pub refused: u64,
    /// Frames that were sent into the interface and have not been seen yet: another CPU may still receive them.
    /// [`settle`](Netdev::settle) decides.
    pub pending: u64,
    /// Frames that other programs sent into the interface. All of them were dropped.
    pub sent_into: u64,
}

/// An interface that shows frames to packet sockets. Removed when dropped, or when the process ends.
///
/// Frames are collected, and received together: [`feed`](Self::feed) adds a frame, [`flush`](Self::flush) makes the
/// interface receive the collected frames. A frame that is too long for this is written into the tap on its own, in its
/// place in the order.
pub struct Netdev {
    // The fields are dropped in this order: the programs stay until no frame can come any more.
    tap: Tap,
    staged: Staged,
    programs: Programs,
    /// Whether the kernel supports runs of the program.
    has_runs: bool,
    counts: Counts,
    pending: Pending,
    /// Last value of the counter of received frames.
    seen: u64,
    backlog: Backlog,
    /// /proc/net/packet of the network namespace in which the interface was made.
    sockets: File,
}

/// Returns whether /proc/net/packet has a socket for all protocols (ETH_P_ALL) that is bound to this interface. A
/// socket that is not set up yet has protocol 0.
fn listens(sockets: &str, index: u32) -> bool {
    sockets.lines().any(|line| {
        // Columns: sk, RefCnt, Type, Proto, Iface, R, Rmem, User, Inode
        let mut words = line.split_whitespace().skip(3);
        words.next() == Some("0003")
            && words.next().and_then(|word| word.parse().ok()) == Some(index)
    })
}

impl Netdev {
    /// Makes an interface in the calling thread's network namespace. Frames must be fed from this namespace, too.
    ///
    /// # Errors
    /// [`NetdevError`]; then there is no new interface.
    pub fn create(name: &NetdevName, mtu: u32) -> Result<Netdev, NetdevError> {
        let sockets = File::open("/proc/thread-self/net/packet").map_err(|source| {
            let what = "looking at packet sockets needs /proc, mounted";
            NetdevError::Os { name: name.clone(), what, source }
        })?;
        let tap = Tap::create(name)?;
        let (programs, staged) = Programs::put(&tap)?;
        // The interface is brought up only now, so that no frame bypasses the programs.
        link::set_up(tap.index, mtu).map_err(|source| NetdevError::Os {
            name: name.clone(),
            what: "bringing the interface up",
            source,
        })?;
        let has_runs = programs.runs;
        Ok(Netdev {
            tap,
            staged,
            programs,
            has_runs,
            counts: Counts::default(),
            pending: Pending::new(Instant::now()),
            seen: 0,
            backlog: Backlog::open(),
            sockets,
        })
    }

    /// Returns whether a frame of this length can be fed before [`flush`](Self::flush) is called.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.staged.has_room(bytes) || self.staged.len() == 0
    }

    /// Adds a frame, which [has room](Self::has_room).
    ///
    /// # Errors
    /// [`NetdevError::Gone`].
    pub fn feed(&mut self, frame: &[u8]) -> Result<(), NetdevError> {
        if self.staged.has_room(frame.len()) {
            self.staged.push(frame);
            return Ok(());
        }
        self.expect(1);
        let result = self.tap.write(frame);
        let result = self.written(result);
        self.count(result)
    }

    /// Makes the interface receive the collected frames.
    ///
    /// # Errors
    /// [`NetdevError::Gone`].
    pub fn flush(&mut self) -> Result<(), NetdevError> {
        let frames = self.staged.len();
        self.expect(frames as u64);
        let result = self.let_out(frames);
        self.staged.clear();
        self.count(result)
    }

    /// Waits for pending frames, and counts those that do not come as refused.
    pub fn settle(&mut self) {
        let Netdev { backlog, staged, counts, pending, seen, .. } = self;
        backlog.wait(|| {
            look(staged, counts, pending, seen);
            pending.frames() == 0
        });
        look(staged, counts, pending, seen);
        counts.refused += pending.decide(u64::MAX);
    }

    fn let_out(&mut self, frames: usize) -> Result<(), NetdevError> {
        let mut taken = 0;
        // In a run, the kernel receives frames even on an interface that is down. A write fails then.
        if frames >= FEW && self.has_runs && self.tap.is_up() {
            let largest = self.staged.begin_run();
            let run = self.run(frames, largest);
            self.staged.end_run();
            taken = run?;
        }
        // The other frames are written: there was no memory for pages, or they are few.
        (taken..frames).try_for_each(|number| {
            let result = self.tap.write(self.staged.frame(number));
            self.written(result)
        })
    }

    /// Runs the program; returns how many frames it took.
    fn run(&mut self, frames: usize, largest: usize) -> Result<usize, NetdevError> {
        loop {
            let taken = self.staged.taken();
            if taken == frames {
                return Ok(taken);
            }
            match self.programs.run(self.tap.index, frames - taken, largest) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENODEV) => return Err(self.gone()),
                    Some(libc::ENOMEM) => return Ok(self.staged.taken()),
                    // The kernel does not support runs: all frames are written.
                    _ => {
                        self.has_runs = false;
                        return Ok(self.staged.taken());
                    }
                },
            }
        }
    }

    /// Counts the result of writing one frame.
    fn written(&mut self, written: io::Result<()>) -> Result<(), NetdevError> {
        match written {
            Ok(()) => {}
            // The interface was removed, so the descriptor has none any more.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => return Err(self.gone()),
            Err(_) => self.counts.refused += self.pending.decide(1),
        }
        Ok(())
    }

    fn gone(&self) -> NetdevError {
        NetdevError::Gone { name: self.tap.name().clone() }
    }

    /// Prepares the counts for frames that are sent next.
    fn expect(&mut self, frames: u64) {
        self.counts.refused += self.pending.overdue(Instant::now());
        // Frames that another program made the interface receive meanwhile do not count.
        if self.pending.frames() == 0 {
            self.seen = self.staged.received();
        }
        self.pending.let_out(frames);
    }

    /// Counts the frames that have been received. If there is no interface any more, counts all others as refused.
    fn count(&mut self, result: Result<(), NetdevError>) -> Result<(), NetdevError> {
        look(&self.staged, &mut self.counts, &mut self.pending, &mut self.seen);
        if result.is_err() {
            self.settle();
        }
        result
    }

    /// Returns whether a packet socket listens on the interface, for frames of every protocol.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has_reader(&mut self) -> io::Result<bool> {
        let mut text = String::new();
        self.sockets.rewind()?;
        self.sockets.read_to_string(&mut text)?;
        Ok(listens(&text, self.tap.index))
    }

    /// Returns the counts of frames.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (sent_into, pending) = (self.staged.sent_into(), self.pending.frames());
        Counts { sent_into, pending, ..self.counts }
    }
}

/// Counts frames that packet sockets have seen since the last call.
fn look(staged: &Staged, counts: &mut Counts, pending: &mut Pending, seen: &mut u64) {
    let received = staged.received();
    counts.received += pending.decide(received - std::mem::replace(seen, received));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_a_socket_for_all_protocols_on_the_interface() {
        let text = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    ffff888003e4d000 3      3    0003   7     1 0      0      16821\n\
                    ffff888003e4d800 3      3    0000   8     1 0      0      16822\n";
        assert!(listens(text, 7));
        assert!(!listens(text, 8) && !listens(text, 3), "one that is not set up, and a type");
    }
}
