//! What is on an interface's XDP hook, and what its driver can do there.

use std::io;

use crate::error::CaptureError;
use crate::iface::Interface;

/// Why a program could not be attached: most often because another is there, which is then named.
pub(super) fn attach_error(interface: &Interface, source: io::Error) -> CaptureError {
    let iface = interface.name.clone();
    // EEXIST: the other is in the other mode, native or generic.
    if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
        && let Some(query) = query(interface.index)
    {
        let id = [query.prog_id, query.drv_prog_id, query.skb_prog_id, query.hw_prog_id];
        let id = id.into_iter().find(|&id| id != 0).unwrap_or(0);
        let name = libbpf_rs::query::ProgInfoIter::default().find(|program| program.id == id);
        let program = name.map_or_else(|| "unnamed".into(), |p| p.name.to_string_lossy().into());
        return CaptureError::XdpBusy { iface, program, id };
    }
    CaptureError::Os { doing: format!("attaching to XDP of {iface}"), source }
}

fn query(ifindex: u32) -> Option<libbpf_sys::bpf_xdp_query_opts> {
    let mut query = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `query` is whole, says its size, and lives through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &raw mut query) };
    (result == 0).then_some(query)
}

/// Whether the XDP program of this interface runs in the kernel's generic hook.
pub(super) fn is_generic(ifindex: u32) -> bool {
    // XDP_ATTACHED_SKB, linux/if_link.h.
    query(ifindex).is_some_and(|query| query.attach_mode == 2)
}

/// Whether it is worth trying to bind an XDP program to the device: native XDP is there (a feature bit
/// that kernels before 6.3 do not report).
pub(super) fn metadata_possible(interface: &Interface) -> bool {
    query(interface.index).is_some_and(|query| query.feature_flags & 1 != 0)
}
