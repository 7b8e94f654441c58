//! The socket's filter if eBPF is refused: classic BPF, which every process that may open a packet socket may
//! attach. It selects frames, but cannot count.

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

/// Offset from which a load reads `skb->pkt_type` (`SKF_AD_PKTTYPE`).
const PKTTYPE: u32 = EXTENSION + 4;
/// A filter that rejects all frames.
pub(super) const REJECT_ALL: [Insn; 1] = [Insn::new(RET_K, 0)];

/// The classic filter of a socket.
pub(super) struct Classic {
    /// Instructions that reject frames of the wrong direction. Other frames continue after them.
    head: Vec<Insn>,
    bytes_needed: u32,
    /// Whether a filter was attached, which may have rejected frames that are not counted.
    has_left_out: Arc<AtomicBool>,
    /// Why the feeds' filter is not attached to the socket.
    why_not: Option<String>,
}

impl Classic {
    /// Attaches a filter that takes every frame of the direction. [`Classic::choose`] then attaches the feeds' filter.
    pub(super) fn attach(socket: &Socket, setup: &Setup) -> io::Result<Classic> {
        let head = head(setup.direction());
        let bytes_needed = setup.bytes_needed();
        let classic = Classic { head, bytes_needed, has_left_out: Arc::default(), why_not: None };
        attach_classic(socket.as_fd(), &classic.plain())?;
        Ok(classic)
    }

    /// Attaches the feeds' one filter to the socket, if they have one and the kernel accepts it; otherwise the
    /// socket takes everything. True if the socket then takes exactly what the only feed wants.
    ///
    /// Several filters cannot be combined: if one loads beyond the frame's end, the frame is rejected for all.
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

    /// A note for the user about the filter, if there is something to say.
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

    /// Set once a filter may have rejected frames that are not counted.
    pub(super) fn has_left_out(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_left_out)
    }

    /// Converts the program to one for the socket, or says why the kernel would not take it.
    fn code(&self, program: &Program) -> Result<Vec<Insn>, String> {
        let filter = classic::convert(program, self.bytes_needed);
        let filter = filter.map_err(|error| error.to_string())?;
        let code = [&self.head[..], &filter].concat();
        // A socket has little memory for filters (net.core.optmem_max), and while a filter is replaced it has two.
        // So at least the plain filter must fit in addition to this one. A second socket is used to test that.
        let try_both = |other: UnixDatagram| {
            attach_classic(other.as_fd(), &code)?;
            attach_classic(other.as_fd(), &self.plain())
        };
        UnixDatagram::unbound().and_then(try_both).map_err(|error| no_room(&error))?;
        Ok(code)
    }

    /// Replaces the filter. If the old and the new one together are too large, attaches the plain one in between;
    /// frames that pass it are filtered in user space.
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

/// The reason why a socket refused a filter, which is nearly always that it is too long.
fn no_room(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "it is too long for what a socket may hold here; raise net.core.optmem_max (bytes)"
                .to_owned()
        }
        _ => format!("a socket does not take it: {error}"),
    }
}

/// Rejects frames of the wrong direction, as `bpf/af_packet.bpf.c` does. After these instructions, A is 0 again.
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

/// The filter program of these feeds, if all have the same.
fn only_program(feeds: &[Feed]) -> Option<&Program> {
    let mut programs = feeds.iter().map(|feed| feed.filter.as_ref().map(|filter| &filter.program));
    let first = programs.next()??;
    programs.all(|program| program == Some(first)).then_some(first)
}
