//! How much of a container engine's answers is read.

use std::time::Duration;

/// Longest answer of a container engine, in bytes. A container's description has some 10 KB, a list of 1,000
/// containers some 2 MB.
pub const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// How long an engine may take for an answer. A busy Docker takes a second.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Names of running containers in an error.
pub const NAMES_IN_ERROR_MAX: usize = 10;
/// How long the owners of interfaces are looked for, whatever the number of processes: opening a source waits for it.
/// 1,100 processes of 21 descriptors took 6 ms for a veth, and 26 to 118 for a tap that nobody holds.
pub const FIND_TIME_MAX: Duration = Duration::from_millis(250);
/// How long a container engine may take to say the name of a container that is known by its id.
pub const NAME_TIME_MAX: Duration = Duration::from_millis(250);
/// Descriptors of a process that are looked at for taps. A VM has hundreds.
pub const DESCRIPTORS_MAX: usize = 4096;
/// Bytes that are read of a file in /proc. Command lines of VMs have some 10 KB.
pub const PROC_BYTES_MAX: u64 = 64 << 10;
/// Characters of an owner's name. It goes into every ring and file, beside those of up to 1,024 other interfaces.
pub const OWNER_NAME_MAX: usize = 64;
