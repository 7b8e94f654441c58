//! What is on an interface's XDP hook, and what its driver can do there.

use std::io;

use crate::error::CaptureError;
use crate::iface::Interface;

/// Why a program could not be attached: most often because another is there, which is then named.
pub(crate) fn attach_error(interface: &Interface, source: io::Error) -> CaptureError {
    let iface = interface.name.clone();
    // EEXIST: the other is in the other mode, native or generic.
    if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
        && let Some(query) = query(interface.index)
    {
        let id = [query.prog_id, query.drv_prog_id, query.skb_prog_id, query.hw_prog_id];
        let Some(id) = id.into_iter().find(|&id| id != 0) else {
            return refused(iface, source);
        };
        let name = libbpf_rs::query::ProgInfoIter::default().find(|program| program.id == id);
        let program = name.map_or_else(|| "unnamed".into(), |p| p.name.to_string_lossy().into());
        return CaptureError::XdpBusy { iface, program, id };
    }
    if matches!(source.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EPERM)) {
        return CaptureError::Os { doing: format!("attaching to XDP of {iface}"), source };
    }
    refused(iface, source)
}

fn refused(iface: String, source: io::Error) -> CaptureError {
    let try_first = way_out(&iface, &source);
    CaptureError::XdpRefused { iface, try_first, source }
}

/// What most often stands in a driver's way. It says more in the kernel's log than in its error number.
fn way_out(iface: &str, source: &io::Error) -> String {
    match source.raw_os_error() {
        // virtio_net, veth and others: a frame must fit a page, or the driver must know fragments.
        Some(libc::EINVAL | libc::ERANGE | libc::E2BIG) => {
            format!("a smaller MTU (`ip link set {iface} mtu 1500`; of a veth, its peer's)")
        }
        Some(libc::EOPNOTSUPP) => format!(
            "`ethtool -K {iface} lro off rx-gro-hw off`, a smaller MTU (`ip link set {iface} mtu 1500`)"
        ),
        // Native XDP takes queues for itself, or one for every CPU.
        Some(libc::ENOSPC | libc::ENOMEM | libc::EBUSY) => {
            format!(
                "other queues (`ethtool -L {iface}`; of a veth, no fewer than its peer sends on)"
            )
        }
        Some(libc::EEXIST) => {
            "taking the XDP program off the device above it (a bond, a bridge), which has one"
                .to_owned()
        }
        _ => "the kernel's log (`dmesg`), where drivers say more".to_owned(),
    }
}

pub(super) fn query(ifindex: u32) -> Option<libbpf_sys::bpf_xdp_query_opts> {
    let mut query = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `query` is whole, says its size, and lives through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &raw mut query) };
    (result == 0).then_some(query)
}

/// Whether the XDP program of this interface runs in the kernel's generic hook.
pub(crate) fn is_generic(ifindex: u32) -> bool {
    // XDP_ATTACHED_SKB, linux/if_link.h.
    query(ifindex).is_some_and(|query| query.attach_mode == 2)
}

/// Whether it is worth trying to bind an XDP program to the device: native XDP is there (a feature bit
/// that kernels before 6.3 do not report).
pub(crate) fn metadata_possible(interface: &Interface) -> bool {
    query(interface.index).is_some_and(|query| query.feature_flags & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_of_a_driver_names_a_way_out() {
        let interface = Interface { name: "eth7".into(), index: u32::MAX, link_type: 1, mtu: 9000 };
        for (errno, word) in [
            (libc::EOPNOTSUPP, "lro off"),
            (libc::EINVAL, "mtu 1500"),
            (libc::ERANGE, "mtu 1500"),
            (libc::ENOSPC, "ethtool -L eth7"),
            (libc::EIO, "dmesg"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let text = attach_error(&interface, source).to_string();
            for word in ["eth7", "--hook tc", word] {
                assert!(text.contains(word), "'{word}' is not in: {text}");
            }
        }
    }
}
