//! Counts of feeds, out of their rings.

use weir_ring::geometry::WriterWord;
use weir_ring::{Ledger, Mapping, Ring};

/// Takes over the counts that the writers of a feed's rings keep: what went in.
pub(crate) fn count_written(ledger: &mut Ledger, rings: &[Ring<Mapping>]) {
    let sum = |word| rings.iter().map(|ring| ring.writer_word(word)).sum();
    ledger.captured = sum(WriterWord::Ordinal);
    ledger.kept_bytes = sum(WriterWord::KeptBytes);
    ledger.wire_bytes = sum(WriterWord::WireBytes);
    ledger.super_frames = sum(WriterWord::SuperFrames);
}

/// The feeds of one source together.
pub(crate) fn of_all_feeds(ledgers: &[Ledger]) -> Ledger {
    let mut total = Ledger::default();
    ledgers.iter().for_each(|ledger| total.add(ledger));
    // Of the source, and told to each of them.
    total.missed_before = ledgers.first().and_then(|ledger| ledger.missed_before);
    total
}
