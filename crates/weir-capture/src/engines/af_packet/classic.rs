//! The socket's filter for the case that the kernel refuses eBPF: classic BPF, which every process with a packet socket
//! may attach. A classic filter selects frames, but cannot count them.

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
    /// Instructions that reject frames of the wrong direction. For other frames, the instructions after them run.
    head: Vec<Insn>,
    bytes_needed: u32,
    /// Whether a filter was attached that may have rejected frames without counting them.
    has_left_out: Arc<AtomicBool>,
    /// Why the feeds' filter is not attached to the socket.
    why_not: Option<String>,
}

impl Classic {
    /// Attaches a filter that accepts every frame of the direction. [`Classic::choose`] then attaches the feeds'
    /// filter.
    pub(super) fn attach(socket: &Socket, setup: &Setup) -> io::Result<Classic> {
        let head = head(setup.direction());
        let bytes_needed = setup.bytes_needed();
        let classic = Classic { head, bytes_needed, has_left_out: Arc::default(), why_not: None };
        attach_classic(socket.as_fd(), &classic.plain())?;
        Ok(classic)
    }

    /// Attaches the feeds' filter to the socket, if all feeds have the same filter and the kernel accepts it; otherwise
    /// the socket accepts all frames of its direction. Returns true if there is only one feed and the socket accepts
    /// exactly the frames that this feed wants.
    ///
    /// Several filters cannot be combined into one program: if one of them loads bytes beyond the frame's end, the
    /// kernel rejects the frame for all.
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

    /// Returns a note for the user about the filter; `None` if there is nothing to report.
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

    /// Returns the flag that is set once a filter may have rejected frames that are not counted.
    pub(super) fn has_left_out(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_left_out)
    }

    /// Converts the program to one for the socket. The error is the reason why that is impossible or why the kernel
    /// refuses it.
    fn code(&self, program: &Program) -> Result<Vec<Insn>, String> {
        let filter = classic::convert(program, self.bytes_needed);
        let filter = filter.map_err(|error| error.to_string())?;
        let code = [&self.head[..], &filter].concat();
        // The memory of a socket for filters is limited (net.core.optmem_max), and while a filter is replaced, the
        // socket holds the old and the new one. So there must be memory for this filter and at least the plain one.
        // This is tested on a second socket.
        let try_both = |other: UnixDatagram| {
            attach_classic(other.as_fd(), &code)?;
            attach_classic(other.as_fd(), &self.plain())
        };
        UnixDatagram::unbound().and_then(try_both).map_err(|error| no_room(&error))?;
        Ok(code)
    }

    /// Replaces the filter. If there is not enough memory for the old and the new filter together, attaches the plain
    /// filter in between; the frames that the plain filter accepts meanwhile are filtered in user space.
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

/// Describes why a socket refused a filter; nearly always the filter is too long.
fn no_room(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "it is too long for what a socket may hold here; raise net.core.optmem_max (bytes)"
                .to_owned()
        }
        _ => format!("a socket does not take it: {error}"),
    }
}

/// Returns instructions that reject frames of the wrong direction, as `bpf/af_packet.bpf.c` does. They leave 0 in the
/// accumulator.
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

/// Returns the feeds' filter program, if all feeds have the same.
fn only_program(feeds: &[Feed]) -> Option<&Program> {
    let mut programs = feeds.iter().map(|feed| feed.filter.as_ref().map(|filter| &filter.program));
    let first = programs.next()??;
    programs.all(|program| program == Some(first)).then_some(first)
}
