//! The reader of a pipe that stays and reads nothing.

use std::{error, fmt, io};

/// Error of an output, inside an [`io::Error`], if its reader took nothing for longer than the
/// output was to wait.
#[derive(Debug)]
pub struct Stalled;

impl Stalled {
    /// Whether that is why a write failed. Not the same as `TimedOut`: a network disk can say that.
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
