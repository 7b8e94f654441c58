//! The answer of the child to the parent: a word and a line break. After `ok` comes the program, as `tcpdump -ddd`
//! prints it. After `error` comes libpcap's message on a line, then the position on another line, if it was found.

/// The name under which the child is started (`argv[0]`). By this name, the program knows that it is the child.
pub(crate) const CHILD_NAME: &str = "weir-filter-compiler";
pub(crate) const OK: &str = "ok\n";
pub(crate) const ERROR: &str = "error\n";
