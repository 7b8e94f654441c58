//! The socket's filter where eBPF is refused: classic BPF, which every process that may open a packet socket may
//! attach. It chooses, and cannot count.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_filter::insn::{EXTENSION, JEQ, JMP, LD_B_ABS, LD_IMM, RET_K};
use weir_filter::{Insn, Program, classic};

use super::socket::{Socket, attach_classic};
use crate::feed::Feed;
use crate::feed::direction::Direction;
use crate::setup::Setup;

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
    has_left_out: Arc<AtomicBool>,
    /// Why the socket does not have the one filter that there is.
    why_not: Option<String>,
}

impl Classic {
    /// For the first filter, see [`Classic::choose`]; until then the socket takes every frame of the direction.
    pub(super) fn attach(socket: &Socket, setup: &Setup) -> io::Result<Classic> {
        let head = head(setup.direction());
        let bytes_needed = setup.bytes_needed();
        let classic = Classic { head, bytes_needed, has_left_out: Arc::default(), why_not: None };
        attach_classic(socket.as_fd(), &classic.plain())?;
        Ok(classic)
    }

    /// Attaches the feeds' one filter to the socket, if they have one and the kernel accepts it; otherwise the
    /// socket accepts everything. True if that is exactly the wish of the only feed.
    ///
    /// Several filters cannot be one: a load behind the frame's end rejects, and ends them all.
    pub(super) fn choose(&mut self, socket: &Socket, feeds: &[Feed]) -> io::Result<bool> {
        self.why_not = None;
        if let Some(program) = only_program(feeds) {
            let put = |code: Vec<Insn>| self.put(socket, &code).map_err(|error| no_room(&error));
            match self.code(program).and_then(put) {
                Ok(()) => {
                    self.has_left_out.store(true, Ordering::Relaxed);
                    return Ok(feeds.len() == 1);
                }
                Err(why) => self.why_not = Some(why),
            }
        }
        attach_classic(socket.as_fd(), &self.plain())?;
        Ok(false)
    }

    /// State of the filter, if it is worth a note.
    pub(super) fn note(&self, may_change: bool) -> Option<String> {
        const UNCOUNTED: &str =
            "what the socket leaves out by a filter, nobody counts: offered is what passed it";
        match &self.why_not {
            _ if self.has_left_out.load(Ordering::Relaxed) => Some(UNCOUNTED.to_owned()),
            Some(why) => Some(format!("the filter runs in user space: {why}")),
            None if may_change => Some(format!("once there is a filter, {UNCOUNTED}")),
            None => None,
        }
    }

    /// Whether frames were left out that nobody counted.
    pub(super) fn has_left_out(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_left_out)
    }

    /// The program as one for the socket, or why there is none that the kernel takes.
    fn code(&self, program: &Program) -> Result<Vec<Insn>, String> {
        let filter = classic::convert(program, self.bytes_needed);
        let filter = filter.map_err(|error| error.to_string())?;
        let code = [&self.head[..], &filter].concat();
        // A socket has little memory for filters (net.core.optmem_max), and for a moment it has two: the next one has
        // to fit beside this one, were it only the one that takes nothing. Another socket can tell.
        let try_both = |other: UnixDatagram| {
            attach_classic(other.as_fd(), &code)?;
            attach_classic(other.as_fd(), &self.plain())
        };
        UnixDatagram::unbound().and_then(try_both).map_err(|error| no_room(&error))?;
        Ok(code)
    }

    /// The old one and the new one may be too much together: then by way of the plain one. Frames that pass it are
    /// filtered in user space.
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

/// Why a socket did not take a filter: nearly always that it is too long.
fn no_room(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "it is too long for what a socket may hold here; raise net.core.optmem_max (bytes)"
                .to_owned()
        }
        _ => format!("a socket does not take it: {error}"),
    }
}

/// Does the same as `bpf/af_packet.bpf.c` with frames of the wrong direction. Behind it A is 0
/// again.
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
