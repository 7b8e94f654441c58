//! The socket's filter where eBPF is refused: classic BPF, which whoever may open a packet socket may attach. It chooses,
//! and cannot count.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use weir_filter::insn::{EXTENSION, JEQ, JMP, LD_B_ABS, LD_IMM, RET_K};
use weir_filter::{Insn, Program, classic};

use super::socket::{Socket, attach_classic};
use crate::feed::Feed;
use crate::source::{Direction, Setup};

/// Where a load finds `skb->pkt_type` (`SKF_AD_PKTTYPE`).
const PKTTYPE: u32 = EXTENSION + 4;
/// Takes nothing.
pub(super) const REJECT_ALL: [Insn; 1] = [Insn::new(RET_K, 0)];

/// What decides.
pub(super) struct Classic {
    /// Leaves out what goes the wrong way, and goes on behind its end.
    head: Vec<Insn>,
    bytes_needed: u32,
    /// Frames were left out that nobody counted.
    has_left_out: bool,
}

impl Classic {
    /// For the first filter, see [`Classic::choose`]; until then the socket takes every frame of the direction.
    pub(super) fn attach(socket: &Socket, setup: &Setup) -> io::Result<Classic> {
        let head = head(setup.direction());
        let classic = Classic { head, bytes_needed: setup.bytes_needed(), has_left_out: false };
        attach_classic(socket.as_fd(), &classic.plain())?;
        Ok(classic)
    }

    /// Has the socket take what the feeds' one filter takes, if they have one and the kernel takes it; otherwise everything.
    /// True if that is just what the only feed wants.
    ///
    /// Several filters cannot be one: a load behind the frame's end rejects, and ends them all.
    pub(super) fn choose(&mut self, socket: &Socket, feeds: &[Feed]) -> io::Result<bool> {
        let chosen = only_program(feeds).and_then(|program| self.code(program));
        if let Some(code) = chosen
            && self.put(socket, &code).is_ok()
        {
            self.has_left_out = true;
            return Ok(feeds.len() == 1);
        }
        attach_classic(socket.as_fd(), &self.plain())?;
        Ok(false)
    }

    /// Whether frames were left out that nobody counted.
    pub(super) fn has_left_out(&self) -> bool {
        self.has_left_out
    }

    /// The program as one for the socket, if there is one that the kernel takes.
    fn code(&self, program: &Program) -> Option<Vec<Insn>> {
        let filter = classic::convert(program, self.bytes_needed).ok()?;
        let code = [&self.head[..], &filter].concat();
        // A socket has little memory for filters (net.core.optmem_max), and for a moment it has two: the next one has to fit
        // beside this one, were it only the one that takes nothing. Another socket can tell.
        let other = UnixDatagram::unbound().ok()?;
        attach_classic(other.as_fd(), &code).ok()?;
        attach_classic(other.as_fd(), &self.plain()).ok()?;
        Some(code)
    }

    /// The old one and the new one may be too much together: then by way of the plain one. What passes that is judged
    /// in user space.
    fn put(&self, socket: &Socket, code: &[Insn]) -> io::Result<()> {
        attach_classic(socket.as_fd(), code).or_else(|_| {
            attach_classic(socket.as_fd(), &self.plain())?;
            attach_classic(socket.as_fd(), code)
        })
    }

    fn plain(&self) -> Vec<Insn> {
        [&self.head[..], &[Insn::new(RET_K, self.bytes_needed)]].concat()
    }
}

/// What `bpf/count.bpf.c` does with frames that go the wrong way. Behind it A is 0 again.
fn head(direction: Direction) -> Vec<Insn> {
    let (takes_in, takes_out) = (direction.takes_in(), direction.takes_out());
    if takes_in && takes_out {
        return Vec::new();
    }
    vec![
        Insn::new(LD_B_ABS, PKTTYPE),
        Insn::jump(JMP | JEQ, u32::from(libc::PACKET_OUTGOING), takes_out.into(), takes_in.into()),
        Insn::new(RET_K, 0),
        Insn::new(LD_IMM, 0),
    ]
}

/// The program of all these feeds' filters, if they have the same.
fn only_program(feeds: &[Feed]) -> Option<&Program> {
    let mut programs = feeds.iter().map(|feed| feed.filter.as_ref().map(|filter| &filter.program));
    let first = programs.next()??;
    programs.all(|program| program == Some(first)).then_some(first)
}
