//! A set of header fields: what occurs in a piece, perhaps.

use weir_filter::possible::{Facts, Kind};

/// The fields that occur in some frames, perhaps.
///
/// The default is the empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    words: Vec<u64>,
}

impl Set {
    /// The set that may have anything.
    #[must_use]
    pub fn everything() -> Set {
        Set { words: vec![u64::MAX; 8] }
    }
}

impl Facts for Set {
    fn may_have(&self, _kind: Kind, _value: u32) -> bool {
        !self.words.is_empty()
    }
}
