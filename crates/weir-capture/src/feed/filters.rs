//! The filters of all feeds in the kernel. They replace a function of the program at the hook or socket,
//! which is loaded again when they change (docs/decisions/0012-filters-in-the-program.md).

mod bound;
mod prefilter;
mod sieve;
mod splice;
mod template;

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use weir_filter::Program;
use weir_filter::ebpf::{self, EbpfInsn, Target};

use crate::feed::Feed;

pub(crate) use bound::are_constants_blinded;
pub(crate) use prefilter::Prefilter;
pub(crate) use sieve::Sieve;
use splice::{Code, Function};
pub(crate) use template::{Template, prepare};

/// Filters as eBPF code.
pub(crate) struct Filters {
    target: Target,
    code: Vec<EbpfInsn>,
}

impl Filters {
    /// Converts the feeds' filters to one function that returns one bit for each feed; `None` if they are too long.
    /// Whether the verifier accepts them is known when the whole program is loaded ([`Template::with`]) or when they
    /// are tried alone ([`Filters::are_taken`]). Filters that it rejects, for any reason, run in user space.
    pub(crate) fn of(target: Target, feeds: &[Feed]) -> Option<Filters> {
        Filters::of_each(target, feeds.iter().map(Some))
    }

    /// As [`of`](Filters::of), for places of which some have no feed. The bits of these places have no meaning.
    pub(crate) fn of_each<'a>(
        target: Target,
        feeds: impl Iterator<Item = Option<&'a Feed>>,
    ) -> Option<Filters> {
        let programs: Vec<Option<&Program>> = feeds
            .map(|feed| feed.and_then(|feed| feed.filter.as_ref()).map(|filter| &filter.program))
            .collect();
        let code = ebpf::convert_set(&programs, target).ok()?;
        Some(Filters { target, code })
    }

    /// Returns whether the verifier accepts the filters alone, without the program of which they will be a part.
    pub(crate) fn are_taken(&self) -> bool {
        let insns = ebpf::alone(&self.code, self.target);
        load_insns(self.target, c"weir_filters", insns).is_ok()
    }
}

/// Loads a program that consists only of these instructions.
pub(crate) fn load_insns(target: Target, name: &CStr, insns: Vec<EbpfInsn>) -> io::Result<OwnedFd> {
    load(target, name, &Code { insns, functions: Vec::new() }, Default::default())
}

/// Loads a program into the kernel. Memory to which `options` points must live through the call.
fn load(
    target: Target,
    name: &CStr,
    code: &Code,
    mut options: libbpf_sys::bpf_prog_load_opts,
) -> io::Result<OwnedFd> {
    let kind = match target {
        Target::Tc => libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
        Target::Socket => libbpf_sys::BPF_PROG_TYPE_SOCKET_FILTER,
        Target::Xdp | Target::XdpTag => {
            options.expected_attach_type = libbpf_sys::BPF_XDP;
            options.prog_flags |= libbpf_sys::BPF_F_XDP_HAS_FRAGS;
            libbpf_sys::BPF_PROG_TYPE_XDP
        }
        Target::User => panic!("not for the kernel"),
    };
    if !code.functions.is_empty() {
        options.func_info = code.functions.as_ptr().cast();
        options.func_info_cnt = code.functions.len() as u32;
        options.func_info_rec_size = size_of::<Function>() as u32;
    }
    options.sz = size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t;
    // SAFETY: name and license are terminated, the code lives through the call with its true length (an instruction is
    // as large as `bpf_insn`), and the options are whole and say their size.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            code.insns.as_ptr().cast(),
            code.insns.len() as libbpf_sys::size_t,
            ptr::from_mut(&mut options),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
