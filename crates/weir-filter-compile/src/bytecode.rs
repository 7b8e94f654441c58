//! Filters that are given as bytecode.

/// Returns whether a filter is a program, as `tcpdump -ddd` prints it, which needs no compiling. No expression consists
/// of numbers alone.
#[must_use]
pub fn is_bytecode(text: &str) -> bool {
    text.split([' ', '\t', '\n', ',']).all(|word| word.bytes().all(|b| b.is_ascii_digit()))
}
