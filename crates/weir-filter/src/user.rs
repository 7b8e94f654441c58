//! Filters for user space: machine code if there is a compiler for the processor, else the
//! interpreter.

use crate::ebpf::{Target, convert, convert_set};
use crate::frame::Frame;
use crate::interpret;
use crate::program::Program;
use crate::set::Distinct;

#[cfg(target_arch = "x86_64")]
mod jit;
#[cfg(not(target_arch = "x86_64"))]
#[path = "user/no_jit.rs"]
mod jit;
#[cfg(target_arch = "x86_64")]
mod x86;

use jit::Jit;

/// A program, ready to run on frames in memory. It always works: a program that cannot be compiled is
/// interpreted.
#[derive(Debug)]
pub struct UserFilter {
    program: Program,
    jit: Option<Jit>,
}

impl UserFilter {
    /// Prepares the program: compiles it, if possible.
    #[must_use]
    pub fn new(program: Program) -> UserFilter {
        let code = convert(&program, Target::User).ok();
        UserFilter { jit: code.and_then(|code| Jit::new(&code).ok()), program }
    }

    /// Returns whether the program runs as machine code. It does not if the processor is not an x86-64, the program is
    /// too long, or the system allows no executable memory.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.jit.is_some()
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the verdict on a frame whose captured bytes are `bytes`, a VLAN tag included: 0 rejects.
    #[inline]
    #[must_use]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match &self.jit {
            Some(jit) => jit.run(bytes, wire_len),
            None => interpret::run(&self.program, &Frame { bytes, wire_len, tag: None }),
        }
    }
}

/// Several filters, ready to run together on frames in memory. It always works, as [`UserFilter`] does.
#[derive(Debug)]
pub struct UserFilterSet {
    /// The bits of filters that take every frame.
    always: u32,
    code: SetCode,
}

/// The code of the other filters.
#[derive(Debug)]
enum SetCode {
    /// One piece of code that returns the answer of the whole set.
    Whole(Jit),
    /// Each program with its bits, if the set cannot be compiled as one piece of code.
    Each(Box<[(UserFilter, u32)]>),
}

impl UserFilterSet {
    /// Prepares the filters; `None` takes every frame.
    ///
    /// # Panics
    /// With more than [`SET_MAX`](crate::SET_MAX) of them.
    #[must_use]
    pub fn new(set: &[Option<&Program>]) -> UserFilterSet {
        let Distinct { always, members } = Distinct::of(set);
        // An empty set needs no code.
        let code = if members.is_empty() { None } else { convert_set(set, Target::User).ok() };
        let code = match code.and_then(|code| Jit::new(&code).ok()) {
            Some(jit) => SetCode::Whole(jit),
            None => SetCode::Each(
                members.iter().map(|m| (UserFilter::new(m.program.clone()), m.bits)).collect(),
            ),
        };
        UserFilterSet { always, code }
    }

    /// Returns whether all filters run as machine code; see [`UserFilter::is_compiled`].
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        match &self.code {
            SetCode::Whole(_) => true,
            SetCode::Each(filters) => filters.iter().all(|(filter, _)| filter.is_compiled()),
        }
    }

    /// Returns the mask of the filters that take the frame: bit `i` is that of filter `i`. `bytes` are the captured
    /// bytes, a VLAN tag included.
    #[inline]
    #[must_use]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> u32 {
        match &self.code {
            SetCode::Whole(jit) => jit.run(bytes, wire_len),
            SetCode::Each(filters) => filters.iter().fold(self.always, |mask, (filter, bits)| {
                if filter.run(bytes, wire_len) > 0 { mask | bits } else { mask }
            }),
        }
    }
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;
