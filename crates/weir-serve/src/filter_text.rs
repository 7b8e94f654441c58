//! Filters as they are written.

/// Whether it is a program, as `tcpdump -ddd` prints it: no expression is made of numbers alone.
pub fn is_bytecode(text: &str) -> bool {
    text.split([' ', '\t', '\n', ',']).all(|word| word.bytes().all(|b| b.is_ascii_digit()))
}
