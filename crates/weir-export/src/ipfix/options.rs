//! Encodes options records: names of interfaces, and the number of exported flows.
//!
//! Source: RFC 7011 section 3.4.2.2 (options templates), 4.3 (statistics about flows that were not sent).

use std::process;

use super::element::{self, Element};
use super::flow::interface_number;
use crate::export::{Counts, Origin};
use crate::limits::TEXT_BYTES_MAX;

/// Template ids, above those of the templates for flows.
pub(super) const INTERFACES: u16 = 512;
pub(super) const STATISTICS: u16 = 513;

/// An options template: its id, its scope fields, and its other fields.
struct Template(u16, &'static [Element], &'static [Element]);

const TEMPLATES: [Template; 2] = [
    Template(
        INTERFACES,
        &[element::INGRESS_INTERFACE],
        &[element::INTERFACE_NAME, element::INTERFACE_DESCRIPTION],
    ),
    Template(
        STATISTICS,
        &[element::EXPORTING_PROCESS],
        &[element::EXPORTED_MESSAGES, element::EXPORTED_FLOWS, element::UNSENT_FLOWS],
    ),
];

/// Returns the template records of all options templates.
pub(super) fn templates() -> impl Iterator<Item = Vec<u8>> {
    TEMPLATES.iter().map(|Template(id, scope, fields)| {
        let mut out = Vec::new();
        for number in [usize::from(*id), scope.len() + fields.len(), scope.len()] {
            out.extend((number as u16).to_be_bytes());
        }
        scope.iter().chain(*fields).for_each(|element| element.put(&mut out));
        out
    })
}

/// Appends a record of [`INTERFACES`]: the name, and as description the owner, such as `vm web`. Without an owner the
/// description is the name again.
///
/// It is never empty, because some readers skip a record with an empty text.
pub(super) fn put_interface(interface: u32, origin: &Origin, out: &mut Vec<u8>) {
    out.extend(interface_number(interface).to_be_bytes());
    put_text(&origin.interface, out);
    let owner = origin.owner.as_ref().map(|owner| format!("{} {}", owner.kind, owner.name));
    put_text(owner.as_deref().unwrap_or(&origin.interface), out);
}

/// Appends a record of [`STATISTICS`].
pub(super) fn put_statistics(messages: u64, counts: Counts, out: &mut Vec<u8>) {
    out.extend(process::id().to_be_bytes());
    out.extend([messages, counts.sent, counts.unsent].into_iter().flat_map(u64::to_be_bytes));
}

/// Appends a text after its length. A text that is too long is cut. Source: RFC 7011 section 7.
fn put_text(text: &str, out: &mut Vec<u8>) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        let mut out = Vec::new();
        put_text(&"é".repeat(200), &mut out);
        assert_eq!((out[0], out.len()), (254, 255));
        out.clear();
        put_text(&format!("x{}", "é".repeat(200)), &mut out);
        assert_eq!((out[0], std::str::from_utf8(&out[1..]).unwrap().chars().count()), (253, 127));
    }
}
