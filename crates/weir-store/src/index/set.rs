//! A set that says of a thing that it is not in it, or that it may be.

/// What occurs in some frames, perhaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {}
