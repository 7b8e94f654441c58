//! A verified program, and its text.

use std::fmt;

use crate::insn::{Insn, RET_K};
use crate::reach::reach;
use crate::verify::{INSNS_MAX, VerifyError, verify};

/// A program that [`verify`] has accepted.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Program {
    insns: Box<[Insn]>,
    asks_for_tag: bool,
}

/// The reason why a text is not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text does not have the form that `tcpdump -ddd` prints.
    #[error(
        "filter bytecode, line {line}: {what}; it should be as tcpdump -ddd prints it: the number of instructions, \
         then four numbers each"
    )]
    Form {
        /// Line of the text, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// The form is right, but the program is not valid.
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

impl Program {
    /// Verifies instructions, and creates the program.
    ///
    /// # Errors
    /// The fault of the program.
    pub fn new(insns: impl Into<Box<[Insn]>>) -> Result<Program, VerifyError> {
        let insns = insns.into();
        verify(&insns)?;
        let asks_for_tag = insns.iter().any(|insn| insn.is_extension());
        Ok(Program { insns, asks_for_tag })
    }

    /// Parses the output of `tcpdump -ddd`: the number of instructions, then a line `code jt jf k` for each, all
    /// decimal. Commas may replace line breaks, as iptables and tc write it.
    ///
    /// # Errors
    /// The line that does not have this form, or the fault of the program.
    pub fn parse(text: &str) -> Result<Program, ParseError> {
        let mut lines =
            (1..).zip(text.split(['\n', ',']).map(str::trim)).filter(|l| !l.1.is_empty());
        let form = |line: usize, what: String| ParseError::Form { line, what };
        let (line, count) = lines.next().ok_or_else(|| form(1, "it is empty".into()))?;
        let count: usize =
            count.parse().map_err(|_| form(line, format!("'{}' is no number", shown(count))))?;
        let mut insns = Vec::with_capacity(count.min(INSNS_MAX));
        for (line, text) in lines {
            let insn = insn(text).ok_or_else(|| {
                form(line, format!("'{}' is not four numbers in range", shown(text)))
            })?;
            // Stop here, so that a long text does not take more memory than a program can.
            if insns.len() == INSNS_MAX {
                return Err(VerifyError::TooLong { insns: count.max(INSNS_MAX + 1) }.into());
            }
            insns.push(insn);
        }
        if insns.len() != count {
            return Err(form(
                1,
                format!("it says {count} instructions, and {} follow", insns.len()),
            ));
        }
        Ok(Program::new(insns)?)
    }

    /// Returns the instructions: 1 to 4096.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns the number of a frame's first bytes, tag included, on which the verdict depends: a frame that is cut
    /// after them gets the same verdict. `u32::MAX` if it cannot be determined.
    #[must_use]
    pub fn reach(&self) -> u32 {
        reach(&self.insns, self.asks_for_tag)
    }

    /// Returns whether the first instruction accepts every frame, as libpcap compiles the empty expression.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.insns.first().is_some_and(|insn| insn.code == RET_K && insn.k != 0)
    }

    /// Returns whether the program reads the VLAN tag beside the bytes. Then it expects frames in the form in which the
    /// kernel's sockets have them (see [`crate::frame`]).
    #[must_use]
    pub fn asks_for_tag(&self) -> bool {
        self.asks_for_tag
    }
}

fn insn(text: &str) -> Option<Insn> {
    let mut numbers = text.split_whitespace();
    let insn = Insn {
        code: numbers.next()?.parse().ok()?,
        jt: numbers.next()?.parse().ok()?,
        jf: numbers.next()?.parse().ok()?,
        k: numbers.next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(insn)
}

/// Returns the beginning of a text, escaped, for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

/// Writes the text that [`Program::parse`] reads.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.insns.len())?;
        for Insn { code, jt, jf, k } in &self.insns {
            writeln!(f, "{code} {jt} {jf} {k}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({self})")
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
