//! Answer of the child to the parent: a word and a line break; behind `ok` the program as `tcpdump -ddd`
//! prints it; behind `error` libpcap's message on a line, then the position on another, if it was found.

/// The child's name, as its first argument: its task.
pub(crate) const CHILD_NAME: &str = "weir-filter-compiler";
pub(crate) const OK: &str = "ok\n";
pub(crate) const ERROR: &str = "error\n";
