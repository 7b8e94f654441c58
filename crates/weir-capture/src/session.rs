//! Sources on threads.
