//! The filter for user space: machine code where there is a compiler for the machine, else the interpreter.

use crate::frame::Frame;
use crate::interpret;
use crate::program::Program;
#[cfg(target_arch = "x86_64")]
use jit::Jit;

#[cfg(target_arch = "x86_64")]
mod jit;

/// A program, ready to run on frames in memory. It always works: what cannot be compiled is interpreted.
#[derive(Debug)]
pub struct UserFilter {
    program: Program,
    #[cfg(target_arch = "x86_64")]
    jit: Option<Jit>,
}

impl UserFilter {
    /// Prepares the program.
    #[must_use]
    pub fn new(program: Program) -> UserFilter {
        #[cfg(target_arch = "x86_64")]
        let jit = Jit::new(&program).ok();
        UserFilter {
            program,
            #[cfg(target_arch = "x86_64")]
            jit,
        }
    }

    /// Whether it runs as machine code. Not: the machine is no x86-64, the program is too long, or the
    /// system lets nobody make executable memory.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.jit.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The verdict on a frame of which the first `bytes.len()` bytes are there, a VLAN tag among them:
    /// 0 rejects.
    #[inline]
    #[must_use]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(jit) = &self.jit {
            return jit.run(bytes, wire_len);
        }
        interpret::run(&self.program, &Frame { bytes, wire_len, tag: None })
    }
}
