//! Filters. The real libpcap compiles them, and the daemon runs them.

use std::ffi::{c_char, c_int};
use std::fmt::Write;

use weir_abi::cancel;
use weir_client::error_text;

use crate::abi::{self, Insn, Pcap, Program};
use crate::frames::set_readable;
use crate::guard::guarded;
use crate::handles::{self, Handle};
use crate::real;

/// Most instructions of a BPF program, as in the daemon and in the kernel.
const INSNS_MAX: usize = 4096;

/// Returns a BPF program in the form of `tcpdump -ddd`, which a daemon accepts as a filter.
fn text(insns: &[Insn]) -> String {
    let mut text = insns.len().to_string();
    for Insn { code, jt, jf, k } in insns {
        let _ = write!(text, "\n{code} {jt} {jf} {k}");
    }
    text
}

/// Returns the instructions of a BPF program if libpcap finds them valid.
///
/// # Safety
/// As for libpcap: `program` is null, or points to a program with `len` instructions.
unsafe fn validated(program: *const Program) -> Option<Vec<Insn>> {
    // SAFETY: as the caller promises.
    unsafe {
        let Program { len, insns } = program.as_ref()?;
        let len = usize::try_from(*len).ok().filter(|len| (1..=INSNS_MAX).contains(len))?;
        let is_valid = !insns.is_null() && real::bpf_validate(*insns, len as c_int) != 0;
        is_valid.then(|| std::slice::from_raw_parts(*insns, len).to_vec())
    }
}

fn set_filter(handle: &Handle, insns: Option<Vec<Insn>>) -> c_int {
    let Some(insns) = insns else {
        let text = format!("no BPF program: 1 to {INSNS_MAX} valid instructions are one");
        return handle.fail(abi::ERROR, &text);
    };
    let mut state = handle.state();
    let Some(reader) = &mut state.reader else {
        return handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
    };
    let was_open = reader.is_open();
    if let Err(error) = reader.set_filter(&text(&insns)) {
        return handle.fail(abi::ERROR, &format!("{}: {}", state.name, error_text(&error)));
    }
    // Frames that were captured before the change will still be read, so this library filters them.
    if was_open {
        handle.set_filter(&mut state, Some(insns.into()));
    }
    drop(state);
    // The feed may have moved to other rings. Their writers do not know yet that they must wake this program.
    if was_open { set_readable(handle, false).err().unwrap_or(0) } else { 0 }
}

/// See pcap_setfilter(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_setfilter(p: *mut Pcap, program: *mut Program) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_setfilter(p, program) };
    };
    guarded(abi::ERROR, || {
        // SAFETY: the program passes a pointer that is valid as libpcap demands.
        let insns = unsafe { validated(program) };
        set_filter(&handle, insns)
    })
}

/// See pcap_compile(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_compile(
    p: *mut Pcap,
    program: *mut Program,
    text: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    let Some(handle) = handles::find(p) else {
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        return unsafe { real::pcap_compile(p, program, text, optimize, netmask) };
    };
    let Some(inner) = handle.inner() else {
        return handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated");
    };
    // Compiling may resolve names, which is a cancellation point.
    let status = cancel::disabled(|| {
        // SAFETY: the arguments are passed on, with the inner handle, which has the feed's link type.
        unsafe { real::pcap_compile(inner, program, text, optimize, netmask) }
    });
    if status < 0 {
        handle.fail_inner();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_travels_as_tcpdump_prints_it() {
        let insns =
            [Insn { code: 40, jt: 0, jf: 0, k: 12 }, Insn { code: 6, jt: 0, jf: 0, k: 262_144 }];
        assert_eq!(text(&insns), "2\n40 0 0 12\n6 0 0 262144");
    }

    #[test]
    fn programs_that_cannot_be_carried_out_are_refused() {
        let of = |insns: &mut [Insn], len: usize| {
            let program = Program { len: len as u32, insns: insns.as_mut_ptr() };
            // SAFETY: `len` is that of the slice, or refused before anything is read.
            unsafe { validated(&program) }.map(|insns| insns.len())
        };
        let mut takes_all = [Insn { code: 6, jt: 0, jf: 0, k: 1 }];
        assert_eq!(of(&mut takes_all, 1), Some(1));
        assert_eq!(of(&mut takes_all, 0), None);
        assert_eq!(of(&mut takes_all, INSNS_MAX + 1), None);
        // A program without a final return.
        assert_eq!(of(&mut [Insn { code: 40, jt: 0, jf: 0, k: 12 }], 1), None);
        // SAFETY: null is allowed.
        assert!(unsafe { validated(std::ptr::null()) }.is_none());
    }
}
