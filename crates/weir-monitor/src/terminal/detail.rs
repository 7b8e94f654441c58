//! Formats all fields of a flow.

use weir_flow::{FlowRecord, Totals, community_id};
use weir_frame::headers::protocol;

use super::text;
use crate::view::{FlowView, View};

/// Returns names and values of the fields, in the order of docs/flows.md.
pub fn fields(flow: &FlowView, view: &View) -> Vec<(&'static str, String)> {
    let FlowRecord { key, vlan, interface, first_ns, last_ns, forward, reverse, icmp, .. } =
        &flow.record;
    let [source, destination] = text::addresses(key);
    let mut fields = vec![("source", source), ("destination", destination)];
    if key.has_known_ports() {
        fields.push(("source port", key.src_port.to_string()));
        fields.push(("destination port", key.dst_port.to_string()));
    }
    let name = match text::protocol(key.protocol) {
        name if name.parse::<u8>().is_ok() => name,
        name => format!("{name} ({})", key.protocol),
    };
    fields.push(("protocol", name));
    if let Some((kind, code)) = icmp {
        fields.push(("ICMP type, code", format!("{kind}, {code}")));
    }
    let origin = view.origins.get(*interface as usize);
    let name = origin.map_or("unknown".to_owned(), |origin| text::escaped(&origin.interface));
    fields.push(("interface", name));
    if let Some(vlan) = vlan {
        fields.push(("VLAN", vlan.to_string()));
    }
    if let Some(owner) = origin.and_then(|origin| origin.owner.as_ref()) {
        let id = owner.id.as_ref().map_or(String::new(), |id| format!(" ({id})"));
        fields.push(("owner", text::escaped(&format!("{} {}{id}", owner.kind, owner.name))));
    }
    fields.push(("first frame", text::date(*first_ns)));
    fields.push(("last frame", text::date(*last_ns)));
    fields.push(("duration", text::span(last_ns.saturating_sub(*first_ns))));
    let rates = flow.rates;
    let now = format!("{}, {}", text::bit_rate(rates.bits), text::packet_rate(rates.packets));
    fields.push(("rate now", now));
    fields.push(("sent", totals(forward)));
    let is_tcp = key.protocol == protocol::TCP;
    if is_tcp {
        fields.push(("flags sent", text::tcp_flags(forward.tcp_flags)));
    }
    if *reverse != Totals::default() {
        fields.push(("answered", totals(reverse)));
        if is_tcp {
            fields.push(("flags answered", text::tcp_flags(reverse.tcp_flags)));
        }
    }
    fields.push(("Community ID", community_id(key, *icmp)));
    fields
}

fn totals(totals: &Totals) -> String {
    let (packets, bytes) = (text::grouped(totals.packets), text::grouped(totals.bytes));
    format!("{packets} packets, {bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::{flow, flow_v6, view};

    fn shown(flow: &FlowView) -> Vec<String> {
        fields(flow, &view(1, 1)).iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn a_flow_has_all_its_fields() {
        let mut tagged = flow(3);
        tagged.record.vlan = Some(7);
        let id = community_id(&tagged.record.key, None);
        let wanted = [
            "source: 10.0.0.3",
            "destination: 192.0.2.3",
            "source port: 40003",
            "destination port: 443",
            "protocol: tcp (6)",
            "interface: eth0",
            "VLAN: 7",
            "owner: container web (5f3a)",
            "first frame: 2017-07-14 02:39:57.000000000 UTC",
            "last frame: 2017-07-14 02:40:00.000000000 UTC",
            "duration: 3.0s",
            "rate now: 3.00 Mb/s, 30.0 pps",
            "sent: 300 packets, 300,000 bytes",
            "flags sent: AS",
            "answered: 3 packets, 180 bytes",
            "flags answered: A",
        ];
        let shown = shown(&tagged);
        assert_eq!(shown[..wanted.len()], wanted);
        assert_eq!(shown[wanted.len()..], [format!("Community ID: {id}")]);
    }

    #[test]
    fn a_flow_has_nothing_else() {
        let mut ping = flow_v6(3);
        (ping.record.key.protocol, ping.record.icmp) = (58, Some((128, 0)));
        (ping.record.key.src_port, ping.record.key.dst_port) = (0, 0);
        ping.record.reverse = Totals::default();
        let shown = shown(&ping);
        assert!(shown.iter().any(|line| line == "ICMP type, code: 128, 0"), "{shown:?}");
        assert!(shown.iter().any(|line| line == "interface: eth1\\u{1b}[2J"), "{shown:?}");
        let absent = ["port", "flags", "VLAN", "owner", "answered"];
        assert!(
            !shown.iter().any(|line| absent.iter().any(|name| line.contains(name))),
            "{shown:?}"
        );
        ping.record.interface = u32::MAX;
        assert!(fields(&ping, &view(1, 1)).contains(&("interface", "unknown".to_owned())));
    }
}
