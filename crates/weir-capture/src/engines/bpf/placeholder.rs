//! The program that occupies a place at a TC hook until the capture starts.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use weir_filter::ebpf::{EbpfInsn, Target};

use crate::error::CaptureError;
use crate::feed::filters::load_insns;

/// `r0 = -1` (TCX_NEXT, TC_ACT_UNSPEC: the next program decides); `exit`.
const PASS: [EbpfInsn; 2] = [insn(0xb7, -1), insn(0x95, 0)];

/// Returns an instruction without registers and offset: the code is the first byte, the immediate value the last four.
///
/// Source: the kernel's Documentation/bpf/standardization/instruction-set.rst.
const fn insn(code: u8, imm: i32) -> EbpfInsn {
    let [a, b, c, d] = imm.to_ne_bytes();
    EbpfInsn::from_ne_bytes([code, 0, 0, 0, a, b, c, d])
}

/// Its name in the kernel.
pub(super) const NAME: &CStr = c"weir_tc_wait";

/// Loads the program. It passes every frame, and counts none.
pub(super) fn load() -> Result<OwnedFd, CaptureError> {
    load_insns(Target::Tc, NAME, PASS.to_vec()).map_err(|error| {
        super::memory::refused("the program that holds a place at TC")(error.into())
    })
}
