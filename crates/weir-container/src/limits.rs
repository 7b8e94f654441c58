//! Limits of searches for owners, and of the answers of container engines.

use std::time::Duration;

/// Longest answer of a container engine, in bytes. A container's description has some 10 KB, a list of 1,000
/// containers some 2 MB.
pub const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Longest time in which a container engine must answer. A busy Docker takes a second.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Most names of running containers in an error.
pub const NAMES_IN_ERROR_MAX: usize = 10;
/// Most CPU time of a search for the owners of interfaces, whatever the number of processes: opening a source waits for
/// the search. With 1,100 processes of 21 descriptors each, it took 6 ms for a veth, and 26 to 118 ms for a tap that no
/// process holds.
pub const FIND_TIME_MAX: Duration = Duration::from_millis(250);
/// Longest such search on a machine that has no CPU for it, or where a file in /proc keeps it waiting.
pub const FIND_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest time in which a container engine must return the name of a container with a known id.
pub const NAME_TIME_MAX: Duration = Duration::from_millis(250);
/// Most descriptors of a process that are searched for taps. A VM has hundreds.
pub const DESCRIPTORS_MAX: usize = 4096;
/// Most bytes that are read from a file in /proc. Command lines of VMs have some 10 KB.
pub const PROC_BYTES_MAX: u64 = 64 << 10;
/// Most characters of an owner's name. The name goes into every ring and file, beside the names of up to 1,024 other
/// interfaces.
pub const OWNER_NAME_MAX: usize = 64;
