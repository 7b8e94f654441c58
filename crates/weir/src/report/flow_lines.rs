//! Lines about the flows of a run and the exports of their records.

use std::fmt::Write;

use crate::flows::exports::ExportReport;
use crate::flows::report::{FlowsReport, NotFlowsReport};
use crate::units::{counted, grouped};

/// Returns lines about the flows, and about frames that belong to no flow.
pub fn of_flows(flows: &FlowsReport) -> Vec<String> {
    let NotFlowsReport { arp, other_protocol, cut_off, malformed, too_many_vlans, other_link_type } =
        flows.not_flows;
    let mut text =
        format!("  {}, {}", counted(flows.began, "flow"), counted(flows.records, "record"));
    for (count, what) in [
        (flows.evicted, "flow ended early for lack of room (--flows-max)"),
        (arp, "frame of ARP"),
        (other_protocol, "frame without IP"),
        (cut_off, "frame cut off before the addresses"),
        (malformed, "frame malformed"),
        (too_many_vlans, "frame with too many VLAN tags"),
        (other_link_type, "frame of another link type than Ethernet or raw IP"),
        (flows.fragments_unattributed, "fragment without its first, in flows without ports"),
        (flows.clock_steps_ahead + flows.clock_steps_back, "time the frames' clock was set"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {}", counted(count, what));
        }
    }
    let exports = flows.exports.iter().map(of_export);
    let table = flows.table.lines().map(str::to_owned);
    [text].into_iter().chain(exports).chain([String::new()]).chain(table).collect()
}

/// Returns a line about an export of flows.
fn of_export(export: &ExportReport) -> String {
    let mut text = format!("  {}: {} sent", export.name, counted(export.sent, "record"));
    let why = export.error.as_deref();
    if export.unsent > 0 {
        let why = why.unwrap_or("the other end is too slow, or not there");
        let _ = write!(text, ", {} not: {why}", grouped(export.unsent));
    } else if let Some(why) = why {
        let _ = write!(text, "; {why}");
    }
    if export.disk_full > 0 {
        let _ = write!(
            text,
            "; its disk was full, and tried again, {}",
            counted(export.disk_full, "time")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_failed_says_its_error() {
        let mut export = ExportReport { name: "json:a".to_owned(), sent: 12, ..Default::default() };
        assert_eq!(of_export(&export), "  json:a: 12 records sent");
        export.error = Some("No space left on device".to_owned());
        assert_eq!(of_export(&export), "  json:a: 12 records sent; No space left on device");
        export.unsent = 5;
        assert_eq!(of_export(&export), "  json:a: 12 records sent, 5 not: No space left on device");
        export.error = None;
        let slow = "  json:a: 12 records sent, 5 not: the other end is too slow, or not there";
        assert_eq!(of_export(&export), slow);
        export.disk_full = 3;
        let full = format!("{slow}; its disk was full, and tried again, 3 times");
        assert_eq!(of_export(&export), full);
    }
}
