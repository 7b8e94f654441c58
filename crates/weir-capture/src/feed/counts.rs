//! Counts of feeds, from their rings.

use weir_ring::geometry::WriterWord;
use weir_ring::{Ledger, Mapping, Ring};

/// Sets the counts of written frames from the writers' words of the feed's rings.
pub(crate) fn count_written(ledger: &mut Ledger, rings: &[Ring<Mapping>]) {
    let sum = |word| rings.iter().map(|ring| ring.writer_word(word)).sum();
    ledger.captured = sum(WriterWord::Ordinal);
    ledger.kept_bytes = sum(WriterWord::KeptBytes);
    ledger.wire_bytes = sum(WriterWord::WireBytes);
    ledger.super_frames = sum(WriterWord::SuperFrames);
}

/// Returns the sum of the ledgers of one source's feeds.
pub(crate) fn of_all_feeds(ledgers: &[Ledger]) -> Ledger {
    let mut total = Ledger::default();
    ledgers.iter().for_each(|ledger| total.add(ledger));
    // This count belongs to the source and is the same in each ledger, so it is not added up.
    total.missed_before = ledgers.first().and_then(|ledger| ledger.missed_before);
    total
}
