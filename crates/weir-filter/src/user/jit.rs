//! Machine code in separate pages, which are never writable and executable at the same time.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::x86;
use crate::ebpf::EbpfInsn;

/// Compiled code. Its arguments are the frame's first byte, the number of captured bytes, and the
/// length on the wire.
type Code = unsafe extern "sysv64" fn(*const u8, usize, u32) -> u32;

/// A compiled program.
#[derive(Debug)]
pub(super) struct Jit {
    memory: Memory,
}

impl Jit {
    /// Compiles code that was converted for [`Target::User`](crate::ebpf::Target::User).
    pub(super) fn new(insns: &[EbpfInsn]) -> io::Result<Jit> {
        let code = x86::compile(insns).ok_or(io::ErrorKind::Unsupported)?;
        let mut memory = Memory::new(code.len())?;
        memory.bytes()[..code.len()].copy_from_slice(&code);
        memory.make_executable()?;
        Ok(Jit { memory })
    }

    #[inline]
    pub(super) fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        // SAFETY: the memory holds the code that `x86::compile` made of verified programs in their
        // converted form, and is executable since `new`. The code follows the System V convention:
        // it takes its arguments as the type says, and preserves all callee-saved registers. It
        // reads the frame within `bytes.len()`, which the converter checks before each load, and
        // reads and writes the red zone, which `compile` checks. It ends, because no jump goes
        // back.
        unsafe {
            let code: Code = std::mem::transmute::<NonNull<c_void>, Code>(self.memory.at);
            code(bytes.as_ptr(), bytes.len(), wire_len)
        }
    }
}

/// Pages that hold code.
#[derive(Debug)]
struct Memory {
    at: NonNull<c_void>,
    len: usize,
}

// SAFETY: nothing else refers to the pages. They are written through `&mut` before they are shared,
// and afterwards are only run and unmapped.
unsafe impl Send for Memory {}
// SAFETY: as above. The code writes to no shared memory, so any number of threads can run it.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        let len = len.next_multiple_of(4096);
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address, the kernel chooses a free range.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, writable, MapFlags::PRIVATE)? };
        Ok(Memory { at: NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Returns all bytes, before they become executable.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes at `at` are mapped, writable and zeroed as long as `self` lives, and
        // the exclusive borrow of `self` makes this the only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }

    fn make_executable(&mut self) -> io::Result<()> {
        // SAFETY: the pages belong to `self`, and no reference to their bytes is alive.
        unsafe {
            mprotect(self.at.as_ptr(), self.len, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and no code runs in it: a thread that runs it
        // borrows `self`. An error would mean that it is not mapped, and could not be handled here.
        let _ = unsafe { munmap(self.at.as_ptr(), self.len) };
    }
}
