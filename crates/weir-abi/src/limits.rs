//! Limits of the libraries.

use std::time::Duration;

/// Longest wait without a look at the program's requests: a thread that waits and is cancelled ends as much later at
/// most. Four looks a second cost an idle program nothing that can be measured.
pub const WAIT_SLICE_MAX: Duration = Duration::from_millis(250);
