//! Other programs on an interface's hooks, and their meaning for a capture.

use super::Findings;
use crate::facts::{Hooked, Machine, Nic};

pub(super) fn hooked(findings: &mut Findings, nic: &Nic, machine: &Machine) {
    let list = nic.hooked.as_deref().unwrap_or_default();
    if let Some(id) = nic.xdp_program {
        xdp(findings, &nic.name, id, list.iter().find(|one| one.hook.starts_with("xdp")));
    }
    for one in list.iter().filter(|one| one.hook.starts_with("tcx")) {
        if one.name.starts_with("weir_") {
            let text = format!("{} is a capture by Weir: each gets every frame", who(one));
            findings.ok("tcx hook", text);
            continue;
        }
        let text =
            format!("{}: Weir goes before it, and both see every frame that comes here", who(one));
        findings.note("tcx hook", text, Some(format!("bpftool net show dev {}", nic.name)));
    }
    for one in list.iter().filter(|one| one.hook.starts_with("clsact")) {
        let show = format!("tc filter show dev {} {}", nic.name, &one.hook["clsact ".len()..]);
        if one.name.starts_with("weir_") {
            findings.ok("clsact filter", format!("{} is a capture by Weir", who(one)));
        } else if machine.kernel_version >= (6, 6) {
            let text = format!("{}: it comes after tcx, where Weir is, and goes on", who(one));
            findings.note("clsact filter", text, Some(show));
        } else if one.priority.unwrap_or(0) <= weir_priority(list, one.hook) {
            let text = format!(
                "{}: it comes before Weir, which does not see what it drops or sends elsewhere",
                who(one)
            );
            findings.note("clsact filter", text, Some(show));
        } else {
            let text = format!("{}: Weir goes before it, and it goes on", who(one));
            findings.note("clsact filter", text, Some(show));
        }
    }
}

fn xdp(findings: &mut Findings, name: &str, id: u32, one: Option<&Hooked>) {
    let who = one.map_or_else(|| format!("program {id}"), who);
    let text = format!(
        "{who} has it: engine af_xdp and --consume cannot run, TC can, but not on what that drops or \
         sends elsewhere"
    );
    // A program that a link holds can only be detached by the holder of the link, or by a process
    // that may break links.
    let remedy = match one.and_then(|one| one.link) {
        Some(link) => format!("bpftool link detach id {link}"),
        // The command names the mode: if the driver has native XDP, `xdp off` does not detach a generic program.
        None => format!("ip link set {name} {} off", one.map_or("xdp", |one| one.hook)),
    };
    findings.no("xdp hook", text, remedy);
}

/// Returns the priority that Weir's own filter gets before Linux 6.6: the first of 16 that no filter of another kind
/// has.
fn weir_priority(list: &[Hooked], hook: &str) -> u16 {
    let other_kind = |priority: u16| {
        let mut there =
            list.iter().filter(|one| one.hook == hook && one.priority == Some(priority));
        there.any(|one| one.kind != "bpf")
    };
    (1..=16).find(|&priority| !other_kind(priority)).unwrap_or(u16::MAX)
}

/// Describes a program or a filter: `ingress: program 42 (cilium_from_net)`, `egress: flower filter of priority 7`.
fn who(one: &Hooked) -> String {
    let side = match one.hook.split_once(' ') {
        Some((_, side)) => format!("{side}: "),
        None => match one.hook.strip_prefix("xdp") {
            Some(mode) if !mode.is_empty() => format!("{mode}: "),
            _ => String::new(),
        },
    };
    let name = if one.name.is_empty() { String::new() } else { format!(" ({})", one.name) };
    let thing = match (one.program, one.priority) {
        (Some(program), None) => format!("program {program}{name}"),
        (Some(program), Some(priority)) => {
            format!("filter of priority {priority}, program {program}{name}")
        }
        (None, priority) => {
            format!("{} filter of priority {}{name}", one.kind, priority.unwrap_or(0))
        }
    };
    side + &thing
}
