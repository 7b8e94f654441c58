//! Programs with a function that filters replace.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{AsRawLibbpf, OpenObject, OpenProgram};
use weir_filter::ebpf::{EbpfInsn, Target};

use super::bound::load_bound;
use super::splice::{Code, Function};
use super::{Filters, load};

/// Makes libbpf create the object's maps and relocate its programs, so that templates can be taken. After
/// this, the object can be loaded.
pub(crate) fn prepare(object: &OpenObject) -> Result<(), libbpf_rs::Error> {
    // SAFETY: the object is open and not loaded yet, and nobody else uses it meanwhile: it is not `Sync`.
    let result = unsafe { libbpf_sys::bpf_object__prepare(object.as_libbpf_object().as_ptr()) };
    if result < 0 { Err(libbpf_rs::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// A program ready for loading, with a function that filters replace.
pub(crate) struct Template {
    name: CString,
    target: Target,
    code: Code,
    /// BTF type of the function that filters replace.
    judge: u32,
    btf: OwnedFd,
    /// Index of the device that it is bound to; 0: none.
    device: u32,
    /// The maps that the code refers to by descriptor, each with the BPF object's own descriptor for it.
    maps: Vec<(i32, OwnedFd)>,
}

impl Template {
    /// Takes a program from a prepared object. `judge` is the function that filters replace. `device` is
    /// the index of the interface to bind the program to, if any.
    pub(crate) fn take(
        object: &OpenObject,
        program: &OpenProgram<'_>,
        target: Target,
        judge: &CStr,
        device: Option<u32>,
    ) -> io::Result<Template> {
        let (object, program) =
            (object.as_libbpf_object().as_ptr(), program.as_libbpf_object().as_ptr());
        // SAFETY: libbpf gives instructions, and one record of 8 bytes for each function, with their true counts; they
        // live as long as the object and do not change meanwhile. A function's record is two words.
        let (name, insns, functions) = unsafe {
            let insns = libbpf_sys::bpf_program__insns(program).cast::<EbpfInsn>();
            let functions = libbpf_sys::bpf_program__func_info(program).cast::<Function>();
            (
                CStr::from_ptr(libbpf_sys::bpf_program__name(program)).to_owned(),
                records(insns, libbpf_sys::bpf_program__insn_cnt(program) as usize),
                records(functions, libbpf_sys::bpf_program__func_info_cnt(program) as usize),
            )
        };
        // SAFETY: the object and its BTF live through the calls, and the name is terminated.
        let (judge, btf) = unsafe {
            let btf = libbpf_sys::bpf_object__btf(object);
            let kind = libbpf_sys::BTF_KIND_FUNC;
            let judge = libbpf_sys::btf__find_by_name_kind(btf, judge.as_ptr(), kind);
            (judge, libbpf_sys::bpf_object__btf_fd(object))
        };
        let mut code = Code { insns, functions };
        let is_whole = code.functions.iter().any(|function| function.type_id == judge as u32);
        if judge < 0 || btf < 0 || !is_whole {
            return Err(io::Error::other("the object has no place for filters"));
        }
        let maps = own_maps(&mut code.insns)?;
        Ok(Template {
            name,
            target,
            code,
            judge: judge as u32,
            btf: own(btf)?,
            device: device.unwrap_or(0),
            maps,
        })
    }

    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// Loads the program without filters. It takes every frame.
    pub(crate) fn plain(&self) -> io::Result<OwnedFd> {
        self.load(&self.code)
    }

    /// Loads the program with these filters.
    pub(crate) fn with(&self, filters: &Filters) -> io::Result<OwnedFd> {
        let code = self.code.with_body(self.judge, &filters.code).expect("it has the function");
        self.load(&code)
    }

    /// As [`with`](Template::with), with `map` in the place of the map whose descriptor in the object was
    /// `named`.
    pub(crate) fn with_map(
        &self,
        filters: &Filters,
        named: i32,
        map: BorrowedFd<'_>,
    ) -> io::Result<OwnedFd> {
        let mut code = self.code.with_body(self.judge, &filters.code).expect("it has the function");
        if let Some((_, before)) = self.maps.iter().find(|(fd, _)| *fd == named) {
            for insn in
                code.insns.iter_mut().filter(|insn| map_of(**insn) == Some(before.as_raw_fd()))
            {
                *insn = with_map(*insn, map);
            }
        }
        self.load(&code)
    }

    fn load(&self, code: &Code) -> io::Result<OwnedFd> {
        let options = libbpf_sys::bpf_prog_load_opts {
            prog_btf_fd: self.btf.as_raw_fd() as u32,
            ..Default::default()
        };
        match self.device {
            0 => load(self.target, &self.name, code, options),
            device => load_bound(device, self.target, &self.name, code, options),
        }
    }
}

/// Copies `count` records.
///
/// # Safety
/// There are `count` records at `first`, or `count` is 0.
unsafe fn records<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    // SAFETY: in bounds by the caller's promise; the records may have less alignment than `T`, so the read
    // is unaligned.
    (0..count).map(|number| unsafe { first.add(number).read_unaligned() }).collect()
}

/// Replaces the object's map descriptors in the code by duplicates, and returns both.
fn own_maps(insns: &mut [EbpfInsn]) -> io::Result<Vec<(i32, OwnedFd)>> {
    let mut owned: Vec<(i32, OwnedFd)> = Vec::new();
    for insn in insns {
        let Some(named) = map_of(*insn) else { continue };
        let known = owned.iter().position(|(fd, _)| *fd == named);
        let at = match known {
            Some(at) => at,
            None => {
                owned.push((named, own(named)?));
                owned.len() - 1
            }
        };
        *insn = with_map(*insn, owned[at].1.as_fd());
    }
    Ok(owned)
}

/// Returns the map descriptor in an instruction, if there is one.
fn map_of(insn: EbpfInsn) -> Option<i32> {
    const LOAD_64: u8 = 0x18;
    const MAP_FD: u8 = 1;
    const MAP_VALUE: u8 = 2;
    let (code, src) = (insn as u8, (insn >> 12) as u8 & 0xf);
    (code == LOAD_64 && matches!(src, MAP_FD | MAP_VALUE)).then_some((insn >> 32) as i32)
}

fn with_map(insn: EbpfInsn, map: BorrowedFd<'_>) -> EbpfInsn {
    insn & 0xffff_ffff | (map.as_raw_fd() as u64) << 32
}

/// Duplicates a descriptor of libbpf.
fn own(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the object that owns the descriptor lives, and does not close it during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}
