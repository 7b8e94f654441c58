//! Devices as they are typed: `net_af_packet0,iface=eth0`, `0000:03:00.0`.

use std::path::Path;

/// A device and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device(String);

/// The driver whose frames the stack goes without.
const AF_XDP: &str = "net_af_xdp";

impl Device {
    /// Takes any text; DPDK has the say on what it means.
    ///
    /// # Errors
    /// Says what a device looks like if this cannot be one.
    pub fn new(text: &str) -> Result<Device, String> {
        let device = Device(text.to_owned());
        let name = device.name();
        let bad = name.is_empty()
            || name.starts_with('-')
            || text.contains(|c: char| c.is_control() || c.is_whitespace());
        if bad {
            return Err(format!(
                "'dpdk:{text}' names no device; write dpdk:net_af_packet0,iface=eth0, or a PCI address as \
                 dpdk:0000:03:00.0 (docs/dpdk.md)"
            ));
        }
        Ok(device)
    }

    /// All of it, for DPDK.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Without its arguments.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split(',').next().unwrap_or_default()
    }

    /// The first argument of one of these names.
    fn argument(&self, names: &[&str]) -> Option<&str> {
        let arguments = self.0.split(',').skip(1).filter_map(|argument| argument.split_once('='));
        arguments.into_iter().find_map(|(name, value)| names.contains(&name).then_some(value))
    }

    /// The interface that a virtual device takes its frames from.
    #[must_use]
    pub fn iface(&self) -> Option<&str> {
        self.argument(&["iface", "rx_iface", "rx_iface_in"])
    }

    /// Bytes of a frame of `net_af_packet`, which an mbuf must have room for.
    pub(super) fn frame_bytes(&self) -> Option<u32> {
        self.argument(&["framesz"])?.parse().ok()
    }

    /// Whether frames that are taken are lost for the kernel's stack: those of `net_af_xdp`, and those of
    /// a NIC that the kernel's driver keeps beside DPDK's, as mlx5 does.
    #[must_use]
    pub fn takes_from_stack(&self) -> bool {
        if self.name().starts_with(AF_XDP) {
            return true;
        }
        let name = self.name().trim_start_matches("pci:");
        let full =
            if name.matches(':').count() == 1 { format!("0000:{name}") } else { name.into() };
        !full.contains('/') && Path::new("/sys/bus/pci/devices").join(full).join("net").is_dir()
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_tells_its_name_and_its_interface() {
        let device = |text| Device::new(text).expect(text);
        let packet = device("net_af_packet0,qpairs=2,iface=eth0");
        assert_eq!((packet.name(), packet.iface()), ("net_af_packet0", Some("eth0")));
        assert_eq!(device("net_pcap1,rx_iface=lo").iface(), Some("lo"));
        assert_eq!(device("0000:03:00.0").iface(), None);
        assert_eq!(device("net_af_packet0,framesz=4096").frame_bytes(), Some(4096));
        assert!(device("net_af_xdp7,iface=x").takes_from_stack());
        assert!(!packet.takes_from_stack());
        assert!(!device("0000:ff:1f.7").takes_from_stack());
    }

    #[test]
    fn what_cannot_be_a_device_says_what_is_one() {
        for bad in ["", ",iface=eth0", "-a", "net_null0 --huge", "a\0b"] {
            assert!(Device::new(bad).unwrap_err().contains("0000:03:00.0"), "{bad}");
        }
    }
}
