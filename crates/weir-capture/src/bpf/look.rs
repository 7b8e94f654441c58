//! What is on an interface's hooks and what its driver has, without touching either.

use super::xdp;

/// The hooks of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Id of the XDP program that is there.
    pub xdp_program: Option<u32>,
    /// Whether the driver has native XDP, and AF_XDP without a copy; `None` before Linux 6.3.
    pub native: Option<(bool, bool)>,
    /// tcx programs at ingress and egress; `None` before Linux 6.6 and without CAP_NET_ADMIN.
    pub tcx: Option<(u32, u32)>,
}

/// Looks at the interface of this index.
#[must_use]
pub fn hooks(ifindex: u32) -> Hooks {
    let xdp = xdp::query(ifindex);
    let ids = xdp.map(|xdp| [xdp.prog_id, xdp.drv_prog_id, xdp.skb_prog_id, xdp.hw_prog_id]);
    // NETDEV_XDP_ACT_BASIC and _XSK_ZEROCOPY, linux/netdev.h. A kernel that does not say leaves 0, and so
    // does a driver without XDP: from 6.6 on, which has tcx, 0 is an answer.
    let tcx =
        count(ifindex, libbpf_sys::BPF_TCX_INGRESS).zip(count(ifindex, libbpf_sys::BPF_TCX_EGRESS));
    let flags = xdp.map(|xdp| xdp.feature_flags).filter(|&flags| flags != 0 || tcx.is_some());
    Hooks {
        xdp_program: ids.and_then(|ids| ids.into_iter().find(|&id| id != 0)),
        native: flags.map(|flags| (flags & 1 != 0, flags & 8 != 0)),
        tcx,
    }
}

fn count(ifindex: u32, hook: libbpf_sys::bpf_attach_type) -> Option<u32> {
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` is whole, says its size, and lives through the call; it asks for no list.
    let result = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex as i32, hook, &raw mut options) };
    // SAFETY: every bit pattern of the union's members is a value of this one.
    let programs = unsafe { options.__bindgen_anon_1.count };
    (result == 0).then_some(programs)
}
