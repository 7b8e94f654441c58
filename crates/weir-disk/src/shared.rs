//! State that all writes of a disk share, on all threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_ring::Mapping;

use crate::buffer::Buffer;
use crate::spare::Spare;

/// State that all writes of a disk share.
#[derive(Default)]
pub struct Shared {
    /// Mappings whose memory the kernel cannot read for direct writes.
    refused: Mutex<Vec<Weak<Mapping>>>,
    spare: Mutex<Spare>,
    notes: Mutex<Vec<String>>,
}

impl Shared {
    /// Whether the kernel has refused to write from this mapping.
    pub fn is_refused(&self, mapping: &Arc<Mapping>) -> bool {
        lock(&self.refused).iter().any(|refused| refused.as_ptr() == Arc::as_ptr(mapping))
    }

    /// Makes writes copy the bytes of this mapping first, from now on.
    pub fn refuse(&self, mapping: &Arc<Mapping>) {
        self.say("the kernel does not write from this ring's memory, so it is copied first");
        if !self.is_refused(mapping) {
            let mut refused = lock(&self.refused);
            // A `Weak` keeps the allocation of its dropped object, so those are removed.
            refused.retain(|mapping| mapping.strong_count() > 0);
            refused.push(Arc::downgrade(mapping));
        }
    }

    /// Returns a buffer for at least `bytes` bytes.
    pub fn take_buffer(&self, bytes: usize) -> Buffer {
        lock(&self.spare).take(bytes)
    }

    /// Takes a used buffer for reuse.
    pub fn give_buffer(&self, buffer: Buffer) {
        lock(&self.spare).give(buffer);
    }

    /// Adds a note for the user, unless it was added before.
    pub fn say(&self, note: &str) {
        let mut notes = lock(&self.notes);
        if !notes.iter().any(|said| said == note) {
            notes.push(note.to_owned());
        }
    }

    /// Updates a disk's copy of the notes.
    pub fn refresh(&self, note: &mut Notes) {
        let notes = lock(&self.notes);
        if notes.len() != note.count {
            *note = Notes { count: notes.len(), text: notes.join("; ") };
        }
    }
}

/// Notes of a disk so far.
#[derive(Default)]
pub struct Notes {
    count: usize,
    text: String,
}

impl Notes {
    /// Returns the text of all notes, if there are any.
    pub fn text(&self) -> Option<&str> {
        (self.count > 0).then_some(&self.text)
    }
}

/// Locks a mutex. The data is valid even if a thread panicked while it held the lock, because each change is made in
/// one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
