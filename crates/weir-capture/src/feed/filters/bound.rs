//! Loads programs that are bound to a device so that the kernel does not move them.
//!
//! The kernel has two pointers to such a program: one with its descriptor, one with the device. While it
//! verifies a program it adds instructions. A program that outgrows its pages is moved, and the pointer of
//! the device is not updated. If the device is removed before the program, the kernel then reads freed
//! memory while it holds the lock of its network configuration (docs/decisions/0020-bound-programs.md). To
//! prevent this, a program gets space to grow, and is released at once if it was moved nevertheless.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use weir_filter::ebpf::{EbpfInsn, Target};

use super::load;
use super::splice::Code;

/// Instructions in front of a program that never run. The verifier removes them, which leaves space for the
/// instructions that it adds. There are at least as many as the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Number of instructions in front of the program, including the jump over them.
    ahead: usize,
    /// Pages of memory of the program including them.
    pages: usize,
    page_bytes: usize,
}

/// `r0 = 0`
const R0_IS_0: EbpfInsn = 0xb7;
/// `if r0 == 0 goto`; bits 16 to 31 have the number of instructions to skip.
const SKIP_IF_R0_IS_0: EbpfInsn = 0x15;

impl Headroom {
    /// Returns the headroom for a program with this many instructions; `None` if it is too long for the jump.
    fn of(insns: usize, page_bytes: usize) -> Option<Headroom> {
        let in_page = page_bytes / size_of::<EbpfInsn>();
        // Half a page stays free at the end for two things: the kernel's own data in front of the instructions (72
        // bytes, more on some kernels), and the loops that it inlines before it removes dead instructions
        // (`optimize_bpf_loop`, some 20 instructions for each).
        let full_pages = (2 * insns).div_ceil(in_page);
        let ahead = full_pages * in_page + in_page / 2 - insns;
        let headroom = Headroom { ahead, pages: full_pages + 1, page_bytes };
        (ahead - 2 <= i16::MAX as usize).then_some(headroom)
    }

    /// Returns the program with the headroom in front of it.
    fn before(self, code: &Code) -> Code {
        let skipped = self.ahead - 2;
        let mut ahead = vec![R0_IS_0, SKIP_IF_R0_IS_0 | (skipped as EbpfInsn) << 16];
        ahead.resize(self.ahead, R0_IS_0);
        code.with_ahead(&ahead)
    }

    /// Returns whether the program still has the number of pages with which it was loaded.
    fn is_kept_by(self, program: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(memory_bytes(program)? == (self.pages * self.page_bytes) as u64)
    }
}

/// Loads a program that is bound to the device with this index.
///
/// # Errors
/// The kernel's error; or the kernel blinds constants, the program is too long for the jump, the kernel has
/// moved it, or /proc does not show its size. Engines then keep the former program, or use one that is not
/// bound.
pub(super) fn load_bound(
    device: u32,
    target: Target,
    name: &CStr,
    code: &Code,
    mut options: libbpf_sys::bpf_prog_load_opts,
) -> io::Result<OwnedFd> {
    if are_constants_blinded()? {
        return Err(moved("the kernel blinds constants (net.core.bpf_jit_harden=2)"));
    }
    let headroom = Headroom::of(code.insns.len(), rustix::param::page_size())
        .ok_or_else(|| moved("the program is too long"))?;
    options.prog_ifindex = device;
    options.prog_flags = libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY;
    let program = load(target, name, &headroom.before(code), options)?;
    match headroom.is_kept_by(program.as_fd())? {
        true => Ok(program),
        false => Err(moved("it grew out of its pages")),
    }
}

fn moved(why: &str) -> io::Error {
    io::Error::other(format!("a program bound to a device would be moved in the kernel: {why}"))
}

/// Returns whether the kernel blinds constants in our programs: it replaces each by several instructions, in a copy of
/// the program, and kernels without the fix of CVE-2026-53094 do not update the device's pointer to that copy either.
/// This is tested with a small program that has one constant, because the sysctl `net.core.bpf_jit_harden` (2: in all
/// programs; 1: except those of CAP_BPF) is visible only in the first network namespace.
pub(crate) fn are_constants_blinded() -> io::Result<bool> {
    const CODE: [EbpfInsn; 2] = [0x0123_4567 << 32 | R0_IS_0, 0x95];
    let code = Code { insns: CODE.to_vec(), functions: Vec::new() };
    let program = load(Target::Xdp, c"weir_constant", &code, Default::default())?;
    Ok(translated_bytes(program.as_fd())? != size_of_val(&CODE))
}

/// Returns the length in bytes of a program after verification, before it was compiled to machine code.
fn translated_bytes(program: BorrowedFd<'_>) -> io::Result<usize> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: `info` and its size are ours and live through the call; with zeros in it, the kernel returns only
    // numbers.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(info.xlated_prog_len as usize)
    }
}

/// Returns the size of a program's pages in bytes. Source: `bpf_prog_show_fdinfo` (kernel/bpf/syscall.c).
fn memory_bytes(program: BorrowedFd<'_>) -> io::Result<u64> {
    let path = format!("/proc/thread-self/fdinfo/{}", program.as_raw_fd());
    let text = fs::read_to_string(&path)?;
    text.lines()
        .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other(format!("{path} has no memlock")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use weir_lab::testbed::{Testbed, require_root, skip};

    use super::*;

    const EXIT: EbpfInsn = 0x95;
    /// `r0 /= r0`: the kernel replaces it by several instructions, because the divisor may be 0.
    const DIVIDE: EbpfInsn = 0x3f;
    const PAGE_BYTES: usize = 4096;

    fn code(insns: Vec<EbpfInsn>) -> Code {
        Code { insns, functions: Vec::new() }
    }

    /// A program of somewhat more than two pages, which the kernel makes three quarters longer.
    fn growing() -> Code {
        let divisions = [DIVIDE, R0_IS_0, R0_IS_0, R0_IS_0].repeat(rustix::param::page_size() / 16);
        code([vec![R0_IS_0], divisions, vec![EXIT]].concat())
    }

    #[test]
    fn a_program_has_as_much_room_as_it_is_long_and_ends_in_the_middle_of_a_page() {
        for insns in 1..3000 {
            let headroom = Headroom::of(insns, PAGE_BYTES).expect("short enough");
            assert!(headroom.ahead >= insns, "{insns}");
            let bytes = 8 * (insns + headroom.ahead);
            assert_eq!(bytes % PAGE_BYTES, PAGE_BYTES / 2, "{insns}");
            assert_eq!(bytes.div_ceil(PAGE_BYTES), headroom.pages, "{insns}");
        }
        assert_eq!(Headroom::of(40_000, PAGE_BYTES), None);
    }

    #[test]
    fn the_jump_ends_at_the_program() {
        let headroom = Headroom::of(2, PAGE_BYTES).expect("short enough");
        let before = headroom.before(&code(vec![R0_IS_0, EXIT]));
        let distance = (before.insns[1] >> 16) as u16;
        assert_eq!(2 + usize::from(distance), headroom.ahead);
        assert_eq!(before.insns[headroom.ahead..], [R0_IS_0, EXIT]);
    }

    #[test]
    fn root_a_program_with_room_stays_where_it_is() {
        if !require_root("root_a_program_with_room_stays_where_it_is") {
            return;
        }
        let page_bytes = rustix::param::page_size();
        let code = growing();
        let headroom = Headroom::of(code.insns.len(), page_bytes).expect("short enough");
        let with_room = headroom.before(&code);
        let program = load(Target::Xdp, c"weir_room", &with_room, Default::default());
        let program = program.expect("the kernel takes it");
        assert!(headroom.is_kept_by(program.as_fd()).expect("/proc tells"));
        let translated = translated_bytes(program.as_fd()).expect("the kernel tells");
        assert!(translated > 8 * code.insns.len() && translated < 8 * with_room.insns.len());
    }

    #[test]
    fn root_a_program_that_was_moved_is_told_apart() {
        if !require_root("root_a_program_that_was_moved_is_told_apart") {
            return;
        }
        let page_bytes = rustix::param::page_size();
        // This one is not bound to a device, so the kernel may move it.
        let code = growing();
        let program = load(Target::Xdp, c"weir_no_room", &code, Default::default());
        let program = program.expect("the kernel takes it");
        let loaded = Headroom { ahead: 0, pages: 3, page_bytes };
        assert!(!loaded.is_kept_by(program.as_fd()).expect("/proc tells"));
    }

    #[test]
    fn root_a_device_may_go_before_the_program_that_is_bound_to_it() {
        let test = "root_a_device_may_go_before_the_program_that_is_bound_to_it";
        if !require_root(test) {
            return;
        }
        let bed = Testbed::builder().build().expect("a testbed");
        let device = bed.rx.ifindex;
        let passes = code(vec![R0_IS_0 | 2 << 32, EXIT]);
        let program = bed.rx.run(|| {
            let bound = libbpf_sys::bpf_prog_load_opts {
                prog_ifindex: device,
                prog_flags: libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY,
                ..Default::default()
            };
            load(Target::XdpTag, c"weir_small", &passes, bound).ok()?;
            let growing = growing();
            Some(load_bound(device, Target::XdpTag, c"weir_bound", &growing, Default::default()))
        });
        let Some(program) = program.expect("its namespace") else {
            return skip(
                test,
                "needs Linux 6.7, since which bound programs take frames in several parts",
            );
        };
        let program = program.expect("the kernel takes it");
        // If the program had been moved, this would not return: the kernel would hang while it holds the lock that all
        // changes of interfaces need.
        let ip = ["-n", &bed.rx.netns, "link", "del", &bed.rx.iface];
        assert!(Command::new("ip").args(ip).status().expect("ip is there").success());
        drop(program);
        Testbed::builder().build().expect("another testbed");
    }
}
