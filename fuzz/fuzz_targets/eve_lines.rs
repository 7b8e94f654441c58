//! Any bytes are lines, and any line is an alert or none. The entry that an alert leads to can be printed, and its
//! texts are safe for terminals.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_alert::{Line, Lines, What, eve};

fn look(line: Line) {
    let Line::Whole(line) = line else { return };
    let Ok(alert) = eve::parse(line) else { return };
    assert!(!format!("{}{}", alert.signature, alert.category).contains(char::is_control));
    for what in [What::Flow, What::Source, What::Destination] {
        if let Some(entry) = alert.entry(what) {
            assert_eq!(entry.to_string().parse(), Ok(entry));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut lines = Lines::default();
    bytes.chunks(7).for_each(|piece| lines.push(piece, look));
    lines.end(look);
});
