//! eBPF to machine code, by rbpf's compiler, into memory of our own: as large as needed, and never writable
//! and executable at once.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::ebpf::{EbpfInsn, UserContext};

/// The most that rbpf makes of one instruction is a division: some 60 bytes.
const BYTES_OF_INSN: usize = 80;
/// What it puts before and behind the program is less than this.
const BYTES_AROUND: usize = 256;

/// rbpf numbers some instructions (those that divide) with 16 bits.
const INSNS_MAX: usize = u16::MAX as usize;

/// Compiled code. What rbpf's code takes: context, its length, then a frame and offsets that we do not use.
type Code =
    unsafe extern "sysv64" fn(*const UserContext, usize, *mut u8, usize, usize, usize) -> u64;

/// A compiled program.
#[derive(Debug)]
pub(super) struct Jit {
    memory: Memory,
}

impl Jit {
    /// Compiles what was converted for [`Target::User`](crate::ebpf::Target::User).
    pub(super) fn new(insns: &[EbpfInsn]) -> io::Result<Jit> {
        if insns.len() > INSNS_MAX {
            return Err(io::Error::other(format!("{} instructions are too many", insns.len())));
        }
        let code: Vec<u8> = insns.iter().flat_map(|insn| insn.to_le_bytes()).collect();
        let mut memory = Memory::new(BYTES_AROUND + insns.len() * BYTES_OF_INSN)?;
        let failed = |error| io::Error::other(format!("{error:?}"));
        let mut vm = rbpf::EbpfVmMbuff::new(Some(&code)).map_err(failed)?;
        vm.set_jit_exec_memory(memory.bytes()).map_err(failed)?;
        vm.jit_compile().map_err(failed)?;
        drop(vm);
        memory.make_executable()?;
        Ok(Jit { memory })
    }

    #[inline]
    pub(super) fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        let context = UserContext {
            bytes: bytes.as_ptr(),
            caplen: bytes.len() as u64,
            wire_len: u64::from(wire_len),
        };
        // SAFETY: the memory holds what rbpf compiled from verified programs as we converted them, and is
        // executable since `new`. That code follows the System V convention (rbpf's JIT is written for
        // it). It reads the context, which lives through the call, the frame within `caplen`, which the
        // converter checks before each load, and its own stack. It writes nothing but that stack, so
        // null and zero do for the arguments that it is not told of, and it ends: no jump goes back.
        let verdict = unsafe {
            let code: Code = std::mem::transmute::<NonNull<c_void>, Code>(self.memory.at);
            code(&raw const context, size_of::<UserContext>(), ptr::null_mut(), 0, 0, 0)
        };
        verdict as u32
    }
}

/// Pages of our own.
#[derive(Debug)]
struct Memory {
    at: NonNull<c_void>,
    len: usize,
}

// SAFETY: nobody else has the pages. They are written through `&mut` before they are shared, and only run
// and unmapped after that.
unsafe impl Send for Memory {}
// SAFETY: as above; running code that writes to no shared memory can go on in any number of threads.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        let len = len.next_multiple_of(4096);
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address, the kernel chooses one that is free.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, writable, MapFlags::PRIVATE)? };
        Ok(Memory { at: NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// All of it; before it is executable.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes at `at` are mapped, writable and zeroed as long as `self` lives, and the
        // exclusive borrow of `self` is that of the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }

    fn make_executable(&mut self) -> io::Result<()> {
        // SAFETY: these are our own pages, and no reference to their bytes lives any more.
        unsafe {
            mprotect(self.at.as_ptr(), self.len, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no code runs in it: whoever runs it borrows `self`.
        // An error would mean that it is not mapped; there is nothing to be done about that here.
        let _ = unsafe { munmap(self.at.as_ptr(), self.len) };
    }
}
