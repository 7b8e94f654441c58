//! Filters that are programs already.

/// Whether a filter is a program, as `tcpdump -ddd` prints it, and nothing to compile: no expression is made of numbers
/// alone.
#[must_use]
pub fn is_bytecode(text: &str) -> bool {
    text.split([' ', '\t', '\n', ',']).all(|word| word.bytes().all(|b| b.is_ascii_digit()))
}
