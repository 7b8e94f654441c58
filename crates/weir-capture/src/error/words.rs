//! Parts of the texts of errors: names, sizes, and commands that remedy them.

use weir_ring::geometry::DATA_BLOCKS_MAX;

use crate::kernel::hooks::XdpOwner;

/// Splits `netns:NAME/IFACE` or `docker:NAME/IFACE` into the namespace and the name of the interface, which contains no
/// slash.
fn parts(iface: &str) -> (Option<&str>, &str) {
    iface.rsplit_once('/').map_or((None, iface), |(netns, name)| (Some(netns), name))
}

/// Returns the `ip` command that works in the interface's network namespace.
pub(super) fn ip(iface: &str) -> String {
    let Some(netns) = parts(iface).0 else { return "ip".to_owned() };
    match netns.strip_prefix("netns:") {
        Some(pid) if pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("nsenter -n -t {pid} ip")
        }
        Some(path) if path.starts_with('/') => format!("nsenter --net={path} ip"),
        Some(name) => format!("ip -n {name}"),
        None => "nsenter -n -t PID ip".to_owned(),
    }
}

/// Returns a size in MiB if it is a whole number of them, else in bytes.
pub(super) fn size(bytes: u64) -> String {
    match bytes >> 20 {
        mib @ 1.. if mib << 20 == bytes => format!("{mib} MiB"),
        _ => format!("{bytes} bytes"),
    }
}

pub(super) fn counted_rings(rings: u64) -> String {
    if rings == 1 { "1 ring".to_owned() } else { format!("{rings} rings") }
}

/// Returns a hint if the number of bytes would be a possible size in MiB: then the unit was probably forgotten.
pub(super) fn meant(bytes: u64, rings: u64, least_mib: u64) -> String {
    match (least_mib..=rings * DATA_BLOCKS_MAX).contains(&bytes) {
        true => format!("; did you mean {bytes}MiB?"),
        false => String::new(),
    }
}

/// Returns a hint if the name contains brackets or braces, as in a shell pattern.
pub(super) fn brackets(iface: &str) -> &'static str {
    match bare(iface).contains(['[', ']', '{', '}']) {
        true => "; a pattern has * (any characters) and ? (one character) only",
        false => "",
    }
}

pub(crate) fn bare(iface: &str) -> &str {
    parts(iface).1
}

/// Returns advice how to detach an XDP program from its interface. `ip link` does not detach a program that a BPF link
/// holds.
pub(super) fn way_out(iface: &str, program: &str, owner: &XdpOwner) -> String {
    match owner {
        XdpOwner::Process { pid, .. } if program.starts_with("weir_") => {
            format!("another Weir captures there, process {pid}; end that one")
        }
        XdpOwner::Process { pid, name, link } => {
            format!("process {pid} ({name}) holds it by BPF link {link}; end that process")
        }
        XdpOwner::Link(link) => format!(
            "BPF link {link} holds it, of no process that is seen here; `bpftool link detach id {link}` takes it off"
        ),
        XdpOwner::Netlink(mode) => {
            format!("`{} link set dev {} {} off` takes it off", ip(iface), bare(iface), mode.word())
        }
    }
}

/// Returns the capabilities to advise for a binary that lacks `needs`: all that capturing needs, and CAP_SYS_ADMIN,
/// which is nearly root, only if `needs` contains it.
pub(super) fn capabilities(needs: &str) -> String {
    let all = crate::rights::CAPTURE.map(|right| right.name.to_lowercase()).join(",");
    let more = if needs.contains("CAP_SYS_ADMIN") { ",cap_sys_admin" } else { "" };
    format!("{all}{more}")
}
