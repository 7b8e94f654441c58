//! Devices as users write them: `net_af_packet0,iface=eth0`, `0000:03:00.0`.

use std::path::Path;

/// A device and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device(String);

/// Parts of the names of devices that take frames away from the stack: those of `net_af_xdp`, and mlx5's sub-functions.
const TAKERS: [&str; 2] = ["net_af_xdp", "mlx5_core.sf"];

impl Device {
    /// Accepts any text that has the form of a device; DPDK interprets it later.
    ///
    /// # Errors
    /// A description of the form of a device, if this cannot be one.
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

    /// Returns the whole text, for DPDK.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the device without its arguments.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split(',').next().unwrap_or_default()
    }

    /// Returns the value of the first argument with one of these names.
    fn argument(&self, names: &[&str]) -> Option<&str> {
        let arguments = self.0.split(',').skip(1).filter_map(|argument| argument.split_once('='));
        arguments.into_iter().find_map(|(name, value)| names.contains(&name).then_some(value))
    }

    /// Returns the interface from which a virtual device takes frames.
    #[must_use]
    pub fn iface(&self) -> Option<&str> {
        self.argument(&["iface", "rx_iface", "rx_iface_in"])
    }

    /// Returns the frame size of `net_af_packet`; a frame of this size must fit into an mbuf.
    pub(super) fn frame_bytes(&self) -> Option<u32> {
        self.argument(&["framesz"])?.parse().ok()
    }

    /// Returns the number of queues of a virtual device, if its arguments contain the number.
    pub(super) fn queues(&self) -> Option<u32> {
        self.argument(&["qpairs", "queue_count"])?.parse().ok()
    }

    /// Returns true if it is a PCI device.
    pub(super) fn is_pci(&self) -> bool {
        self.addresses().next().is_some()
    }

    /// Returns the PCI addresses in the text, in the form of sysfs. DPDK accepts `0000:3b:00.0`, `3B:00.0`,
    /// `pci:3b:0.0`, `bus=pci,addr=3b:00.0`, and lists of devices in brackets.
    fn addresses(&self) -> impl Iterator<Item = String> {
        self.0.split([',', '/', '=', '(', ')']).filter_map(address)
    }

    /// Returns true if the kernel's network stack loses the captured frames: for `net_af_xdp`, and for a NIC whose
    /// kernel driver stays bound beside DPDK's driver, as with mlx5. Searches the whole text for them, since DPDK
    /// accepts many spellings. A false positive only requires an unnecessary `--consume`.
    #[must_use]
    pub fn takes_from_stack(&self) -> bool {
        let kept = |address| Path::new("/sys/bus/pci/devices").join(address).join("net").is_dir();
        TAKERS.iter().any(|taker| self.0.contains(taker)) || self.addresses().any(kept)
    }
}

/// Converts a PCI address, with or without the prefix of its bus (`pci:`), to the form of sysfs.
fn address(text: &str) -> Option<String> {
    // DPDK skips one character after the bus, whatever it is.
    let text = text.strip_prefix("pci").map_or(Some(text), |rest| rest.get(1..))?;
    let (place, function) = text.rsplit_once('.')?;
    let mut fields = place.rsplit(':');
    let hex = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (device, bus) = (hex(fields.next()?)?, hex(fields.next()?)?);
    let domain = fields.next().map_or(Some(0), hex)?;
    if fields.next().is_some() {
        return None;
    }
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{:x}", hex(function)?))
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
        assert_eq!(packet.queues(), Some(2));
    }

    #[test]
    fn what_the_stack_goes_without_is_known_in_every_spelling() {
        let device = |text| Device::new(text).expect(text);
        for taker in [
            "net_af_xdp7,iface=x",
            "vdev:net_af_xdp0,iface=eth0",
            "bus=vdev,name=net_af_xdp0,iface=eth0",
            "net_failsafe0,dev(net_af_xdp0,iface=eth0)",
            "auxiliary:mlx5_core.sf.3",
        ] {
            assert!(device(taker).takes_from_stack(), "{taker}");
        }
        for other in ["net_af_packet0,iface=eth0", "vdev:net_null0", "0000:ff:1f.7"] {
            assert!(!device(other).takes_from_stack(), "{other}");
        }
        let spellings =
            ["0000:3B:00.0", "0000:3b:00.0", "3B:00.0", "pci:0000:3B:00.0", "pci:3b:0.0"];
        for spelling in [&spellings[..], &["bus=pci,addr=3B:00.0", "0000:3B:00.0,mac=1"]].concat() {
            let addresses: Vec<_> = device(spelling).addresses().collect();
            assert_eq!(addresses, ["0000:3b:00.0"], "{spelling}");
        }
        for other in ["vdev:net_null0", "net_pcap0,rx_pcap=a.b", "net_pcap0,rx_pcap=/a:b.pcap"] {
            assert!(!device(other).is_pci(), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_a_device_says_what_is_one() {
        for bad in ["", ",iface=eth0", "-a", "net_null0 --huge", "a\0b"] {
            assert!(Device::new(bad).unwrap_err().contains("0000:03:00.0"), "{bad}");
        }
    }
}
