//! Reasons why a source of the daemon's file cannot be opened now: missing interfaces, and missing
//! rights of the daemon.

use rustix::thread::{CapabilitySet, capabilities};
use weir_capture::CaptureError;
use weir_capture::engines::declaration::Target;
use weir_capture::interface::link_type;

/// Returns the reason why nobody could open this source now: its interface, network namespace or container does not
/// exist, or the interface is down. That may change, so it is not an error of the file. `None` also if it cannot be
/// determined.
pub(crate) fn missing(target: &Target) -> Option<String> {
    let Target::Interface { netns, iface } = target else { return None };
    let error = link_type(netns.as_ref(), iface).err()?;
    let is_missing = matches!(
        error,
        CaptureError::NoInterface { .. }
            | CaptureError::InterfaceDown { .. }
            | CaptureError::NoNetns { .. }
            | CaptureError::NoOwner { .. }
    );
    is_missing.then(|| error.to_string())
}

/// Returns the capability that this process lacks to capture from such a source: without it, no engine can open an
/// interface. `None` also if the kernel does not tell the process's capabilities.
pub(crate) fn lacks(target: &Target) -> Option<&'static str> {
    let of_interfaces = matches!(target, Target::Interface { .. } | Target::Pattern { .. });
    let own = capabilities(None).ok().filter(|_| of_interfaces)?;
    needed(own.effective)
}

/// Returns the missing capability. Every engine for interfaces except `bpf` opens an AF_PACKET or AF_XDP socket, which
/// needs CAP_NET_RAW. `bpf` needs more than is checked here, so a warning may be missing, but no warning is wrong.
fn needed(own: CapabilitySet) -> Option<&'static str> {
    let bpf = CapabilitySet::BPF | CapabilitySet::SYS_ADMIN;
    let is_enough = own.contains(CapabilitySet::NET_RAW) || own.intersects(bpf);
    (!is_enough).then_some("CAP_NET_RAW")
}

/// The remedy for a source that the file lets nobody open.
pub(crate) const WHO_MAY: &str = "add users, groups or everybody = true";

/// The remedy in a message about a missing right.
pub(crate) const RIGHTS_FROM: &str =
    "run the daemon as root or by its unit (`systemctl start weir`)";

#[cfg(test)]
mod tests {
    use weir_capture::kernel::netns::NetnsName;

    use super::*;

    #[test]
    fn a_process_with_some_right_to_capture_is_not_warned_of() {
        assert_eq!(needed(CapabilitySet::empty()), Some("CAP_NET_RAW"));
        assert_eq!(needed(CapabilitySet::NET_ADMIN), Some("CAP_NET_RAW"));
        assert_eq!(needed(CapabilitySet::NET_RAW), None);
        assert_eq!(needed(CapabilitySet::BPF | CapabilitySet::NET_ADMIN), None);
        assert_eq!(lacks(&Target::Text("rate=1".to_owned())), None);
    }

    #[test]
    fn an_interface_or_namespace_that_is_not_there_is_told() {
        let interface = |netns, iface: &str| Target::Interface { netns, iface: iface.to_owned() };
        let told = missing(&interface(None, "weir-none0")).expect("it is not there");
        assert!(told.contains("weir-none0: no such interface"), "{told}");
        let netns = Some(NetnsName::named("weir-none"));
        let told = missing(&interface(netns, "lo")).expect("it is not there");
        assert!(told.contains("weir-none: no such network namespace"), "{told}");
        assert_eq!(missing(&Target::Text("rate=1".to_owned())), None);
    }
}
