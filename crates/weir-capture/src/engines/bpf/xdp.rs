//! Errors and features of an interface's XDP hook.

use std::io;

use crate::error::CaptureError;
use crate::feed::filters::are_constants_blinded;
use crate::kernel::hooks::{XdpMode, attached_at_xdp, query};
use crate::kernel::interface::Interface;

/// Returns the error for a program that could not be attached. If another program is attached, the error names it.
pub(crate) fn attach_error(interface: &Interface, source: io::Error) -> CaptureError {
    let iface = interface.name.clone();
    // EEXIST: another program is attached in the other mode, native or generic.
    if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
        && let Some((id, _)) = query(interface.index).and_then(|query| attached_at_xdp(&query))
    {
        let found = libbpf_rs::query::ProgInfoIter::default().find(|program| program.id == id);
        let name = found.map(|program| program.name.to_string_lossy().into_owned());
        // The program may have no name. Without CAP_SYS_ADMIN, the list of programs appears to be empty.
        let program = name.filter(|name| !name.is_empty()).unwrap_or_else(|| "name unknown".into());
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

/// Returns a remedy for the most frequent reason of each error number. Drivers often write details to the kernel's log.
fn way_out(iface: &str, source: &io::Error) -> String {
    match source.raw_os_error() {
        // virtio_net, veth and others: a frame must fit into a page, or the driver must support fragments.
        Some(libc::EINVAL | libc::ERANGE | libc::E2BIG) => {
            format!("a smaller MTU (`ip link set {iface} mtu 1500`; of a veth, its peer's)")
        }
        Some(libc::EOPNOTSUPP) => format!(
            "`ethtool -K {iface} lro off rx-gro-hw off`, a smaller MTU (`ip link set {iface} mtu 1500`)"
        ),
        // Native XDP needs additional queues, in some drivers one for each CPU.
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

/// Returns true if the XDP program of this interface runs in the kernel's generic hook.
pub(crate) fn is_generic(ifindex: u32) -> bool {
    query(ifindex)
        .and_then(|query| attached_at_xdp(&query))
        .is_some_and(|(_, mode)| mode == XdpMode::Generic)
}

/// Returns true if it may be possible to bind an XDP program to the device: the driver supports native XDP. Returns
/// false on kernels before 6.3, which report no feature flags.
pub(crate) fn metadata_possible(interface: &Interface) -> bool {
    // NETDEV_XDP_ACT_BASIC, linux/netdev.h.
    query(interface.index).is_some_and(|query| query.feature_flags & 1 != 0)
}

/// Returns a note that XDP does not see the VLAN tags that the driver removes. `instead`: the flags of a capture that
/// keeps the tags.
pub(crate) fn tags_note(interface: &Interface, instead: &str) -> String {
    format!(
        "VLAN tags that the driver takes off do not reach XDP here; to keep them: `ethtool -K {} rxvlan off`, or \
         {instead}",
        interface.name
    )
}

/// Returns the same note for a program that is not bound to the device. If a kernel setting prevents the binding, the
/// note also names the setting.
pub(crate) fn unbound_note(interface: &Interface, instead: &str) -> String {
    let note = tags_note(interface, instead);
    match metadata_possible(interface) && are_constants_blinded().unwrap_or(false) {
        true => format!(
            "{note} (net.core.bpf_jit_harden=2 keeps Weir from asking the driver: decision 0020)"
        ),
        false => note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_program_in_the_nic_the_other_is_in_the_way() {
        let all = libbpf_sys::bpf_xdp_query_opts {
            attach_mode: libbpf_sys::XDP_ATTACHED_MULTI as u8,
            skb_prog_id: 7,
            hw_prog_id: 9,
            ..Default::default()
        };
        assert_eq!(attached_at_xdp(&all), Some((7, XdpMode::Generic)));
        assert_eq!(attached_at_xdp(&Default::default()), None);
    }

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
