//! Interfaces that sources of the daemon's file name and that cannot be captured now.

use weir_capture::CaptureError;
use weir_capture::engines::declaration::Target;
use weir_capture::interface::link_type;

/// Why nobody could open this source now: its interface, network namespace or container is not there, or the interface
/// is down. It may be there later, so this is no mistake of the file. `None` also where that cannot be asked.
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
    is_missing.then(|| format!("{error}; nobody can open it until then"))
}

#[cfg(test)]
mod tests {
    use weir_capture::kernel::netns::NetnsName;

    use super::*;

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
