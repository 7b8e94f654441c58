//! Helpers that check and time a filter's verdicts: the same conditions in plain Rust, libpcap's interpreter, frames
//! that stay in the cache, and the CPU clock of the thread.

use std::ffi::{c_uchar, c_uint};
use std::hint::black_box;

use pcap as _; // links libpcap
use weir_filter::{Insn, Program};

unsafe extern "C" {
    /// From pcap/bpf.h; an [`Insn`] is a `struct bpf_insn`.
    fn bpf_filter(
        insns: *const Insn,
        bytes: *const c_uchar,
        wire_len: c_uint,
        caplen: c_uint,
    ) -> c_uint;
}

/// Returns the verdict of libpcap's interpreter on a frame whose captured bytes are `bytes`; 0 rejects the frame.
pub fn libpcap(program: &Program, bytes: &[u8], wire_len: u32) -> u32 {
    // SAFETY: the instructions are a verified program: every path ends in a return, and jumps and
    // memory words are in bounds, which bpf_filter does not check. It reads at most `bytes.len()`
    // bytes of the frame.
    unsafe { bpf_filter(program.insns().as_ptr(), bytes.as_ptr(), wire_len, bytes.len() as c_uint) }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..at + 2)?.first_chunk()?))
}

/// Returns the offset of the layer above IPv4, if the packet is a first fragment of this protocol.
fn ipv4(bytes: &[u8], protocol: u8) -> Option<usize> {
    let found = u16_at(bytes, 12)? == 0x800
        && *bytes.get(23)? == protocol
        && u16_at(bytes, 20)? & 0x1fff == 0;
    found.then_some(14 + 4 * usize::from(*bytes.get(14)? & 0xf))
}

/// Evaluates the filter `tcp port N` (`protocol` 6) or `udp port N` (17) as libpcap does: false if the ports are cut
/// off.
pub fn has_port(bytes: &[u8], protocol: u8, port: u16) -> bool {
    let found = || {
        let at = match u16_at(bytes, 12)? {
            0x86dd if *bytes.get(20)? == protocol => 54,
            0x800 => ipv4(bytes, protocol)?,
            _ => return None,
        };
        Some(u16_at(bytes, at)? == port || u16_at(bytes, at + 2)? == port)
    };
    found().unwrap_or(false)
}

/// Evaluates the filter `tcp[tcpflags] & tcp-syn != 0`.
pub fn has_syn(bytes: &[u8]) -> bool {
    let flags = ipv4(bytes, 6).and_then(|at| bytes.get(at + 13));
    flags.is_some_and(|flags| flags & 2 != 0)
}

/// Number of [`frames`].
pub const FRAMES: usize = 256;

/// Returns the frames: IPv4 and IPv6, TCP and UDP, the ports 80, 53, 443, 40000 and 2049, 60 to 1514 bytes.
pub fn frames() -> Vec<Vec<u8>> {
    const PORTS: [u16; 5] = [80, 53, 443, 40_000, 2049];
    let one = |n: usize| {
        let mut bytes = vec![0u8; [60, 64, 128, 590, 1514][n % 5]];
        let protocol = if n.is_multiple_of(3) { 17 } else { 6 };
        let port = PORTS[n % 7 % 5].to_be_bytes();
        if n.is_multiple_of(4) {
            bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            bytes[20] = protocol;
            bytes[56..58].copy_from_slice(&port);
        } else {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[23] = protocol;
            bytes[36..38].copy_from_slice(&port);
            bytes[47] = (n % 11) as u8; // TCP's flags
        }
        bytes
    };
    (0..FRAMES).map(one).collect()
}

/// Returns the CPU time of this thread in nanoseconds. Time spent waiting for a CPU does not count.
pub fn thread_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to `time`, which outlives it.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every thread has this clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Judges all frames `turns` times. Returns nanoseconds per frame, and the sum of the verdicts of one turn: for
/// yes-or-no verdicts, the number of accepted frames.
pub fn time<T: Into<u64>>(
    frames: &[Vec<u8>],
    turns: u32,
    answer: impl Fn(&[u8]) -> T,
) -> (f64, u64) {
    let begin = thread_ns();
    let mut sum = 0;
    for _ in 0..turns {
        for frame in frames {
            sum += answer(black_box(frame)).into();
        }
    }
    let verdicts = f64::from(turns) * frames.len() as f64;
    ((thread_ns() - begin) / verdicts, sum / u64::from(turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_takes_time_and_frames_are_counted_once() {
        let frames = frames();
        let (ns, taken) = time(&frames, 3, |bytes| bytes.len() == 60);
        assert!(ns > 0.0);
        assert_eq!(taken, FRAMES.div_ceil(5) as u64);
    }
}
