//! Programs with a place for filters.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{AsRawLibbpf, OpenObject, OpenProgram};
use weir_filter::ebpf::{EbpfInsn, Target};

use super::bound::load_bound;
use super::splice::{Code, Function};
use super::{Filters, load};

/// Has libbpf make the object's maps and relocate its programs, so that templates can be taken; to load it is what is
/// left to do.
pub(crate) fn prepare(object: &OpenObject) -> Result<(), libbpf_rs::Error> {
    // SAFETY: the object is open and not loaded yet, and nobody else uses it meanwhile: it is not `Sync`.
    let result = unsafe { libbpf_sys::bpf_object__prepare(object.as_libbpf_object().as_ptr()) };
    if result < 0 { Err(libbpf_rs::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// A program as it would be loaded, with a function that filters come in the place of.
pub(crate) struct Template {
    name: CString,
    target: Target,
    code: Code,
    /// BTF type of that function.
    judge: u32,
    btf: OwnedFd,
    /// The device that it is bound to, by its number; 0: none.
    device: u32,
    /// Objects to which the code refers by number; each with the object's number for it.
    maps: Vec<(i32, OwnedFd)>,
}

impl Template {
    /// Takes a program of a prepared object. `judge` is its function that filters come in the place of; `device` the
    /// interface that it is to be bound to, if any.
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

    /// The program as it is, which takes every frame.
    pub(crate) fn plain(&self) -> io::Result<OwnedFd> {
        self.load(&self.code)
    }

    /// The program with these filters.
    pub(crate) fn with(&self, filters: &Filters) -> io::Result<OwnedFd> {
        let code = self.code.with_body(self.judge, &filters.code).expect("it has the function");
        self.load(&code)
    }

    /// The same with another map in the place of that which the object knew as `named`.
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

/// # Safety
/// There are `count` of them at `first`, or `count` is 0.
unsafe fn records<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    // SAFETY: the caller's; the records may be less aligned than ours.
    (0..count).map(|number| unsafe { first.add(number).read_unaligned() }).collect()
}

/// The maps that the code names by their descriptors, which are the object's: from here on by these.
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

/// The descriptor of a map, if an instruction names one.
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

/// A descriptor of ours for one of libbpf's.
fn own(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the object that the descriptor is of lives, and is not closed during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}
