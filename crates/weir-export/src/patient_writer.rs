//! A writer that tries a write again while the disk is full, so that callers need not.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::patience::Patience;

pub(crate) struct PatientWriter<W> {
    pub inner: W,
    pub patience: Arc<Patience>,
    /// How long a write is tried again.
    pub full_time: Duration,
}

impl<W: Write> Write for PatientWriter<W> {
    /// Writes as `inner` does. A write that fails has written nothing, so the same bytes can be tried again.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let PatientWriter { inner, patience, full_time } = self;
        patience.until_there_is_room(*full_time, || inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
