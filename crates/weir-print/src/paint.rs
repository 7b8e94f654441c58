//! Terminal colours. Source: ECMA-48, 8.3.117 (SGR).

use crate::text::Text;

/// A colour or weight. No information is given by it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Paint {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Paint {
    /// Begins text in this colour.
    pub fn begin(self, out: &mut Vec<u8>) {
        out.put(match self {
            Paint::Bold => "\x1b[1m",
            Paint::Dim => "\x1b[2m",
            Paint::Red => "\x1b[31m",
            Paint::Green => "\x1b[32m",
            Paint::Yellow => "\x1b[33m",
            Paint::Cyan => "\x1b[36m",
        });
    }
}

/// Returns to the terminal's default colour.
pub fn end(out: &mut Vec<u8>) {
    out.put("\x1b[0m");
}
