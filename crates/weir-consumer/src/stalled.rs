//! Error of an output whose reader stays, but reads nothing.

use std::{error, fmt, io};

/// Error of an output, inside an [`io::Error`]: its reader has read nothing for longer than the output's time limit.
#[derive(Debug)]
pub struct Stalled;

impl Stalled {
    /// Whether this is the cause of a failed write. `TimedOut` would not be enough: a network disk can also return it.
    #[must_use]
    pub fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Stalled>())
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader takes nothing")
    }
}

impl error::Error for Stalled {}

impl From<Stalled> for io::Error {
    fn from(stalled: Stalled) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, stalled)
    }
}
