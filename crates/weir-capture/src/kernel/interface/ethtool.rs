//! Facts that a driver reports, and its settings that matter for capture.
//!
//! Source of all numbers and layouts: linux/ethtool.h. Every struct here is handled as an array of 32-bit
//! words.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::{fs, io};

use super::{InterfaceQuery, named, zeroed};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const ETH_RXFH_INDIR_NO_CHANGE: u32 = 0xffff_ffff;
/// The bit of the Toeplitz hash function.
const ETH_RSS_HASH_TOP: u8 = 1;
/// Longest key that is accepted. NICs have keys of 40 to a few hundred bytes.
const RSS_KEY_MAX: usize = 1024;
const ETH_SS_FEATURES: u32 = 4;
const STRING_BYTES: usize = 32;
/// Most features that are accepted. Kernels have about sixty.
const FEATURES_MAX: usize = 512;

/// A driver's name, and its device on the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// `veth`, `virtio_net`, `ice`, ...
    pub name: String,
    /// The device's address on the bus, such as `0000:3b:00.0`; empty for a device without a bus.
    pub bus: String,
}

impl Driver {
    /// Returns the device's NUMA node, if it is on a PCI bus and the firmware reports the node.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        // The device is looked up by its bus address, because /sys/class/net shows only the network namespace in which
        // it was mounted.
        let file = Path::new("/sys/bus/pci/devices").join(&self.bus).join("numa_node");
        // The file contains -1 if the node is not known.
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }
}

/// Size of the NIC's RX descriptor ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRing {
    /// Present number of descriptors.
    pub now: u32,
    /// Largest number of descriptors.
    pub most: u32,
}

/// Queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Present number of RX queues.
    pub rx: u32,
    /// Largest number of RX queues.
    pub most: u32,
    /// Whether each queue number is an RX and a TX queue (`combined` of `ethtool -L`).
    pub combined: bool,
}

/// Receive side scaling: how the NIC spreads received frames over queues by a hash of addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Whether the hash function is Toeplitz.
    pub toeplitz: bool,
    /// Whether the NIC hashes a symmetric combination of source and destination (Linux 6.8, some drivers).
    pub sorted: bool,
    /// The key; empty if the driver does not show it.
    pub key: Vec<u8>,
}

impl Rss {
    /// Returns whether both directions of a connection come to the same queue.
    ///
    /// A Toeplitz key with a period of 16 bits gives the same hash if source and destination are exchanged:
    /// addresses have 32 or 128 bits and ports 16, so each bit is hashed with the same part of the key in
    /// either position. Source: Woo and Park, "Scalable TCP Session Monitoring with Symmetric Receive-side
    /// Scaling", KAIST 2012.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        let repeats =
            self.key.len() > 2 && self.key.iter().zip(&self.key[2..]).all(|(a, b)| a == b);
        self.sorted || self.toeplitz && repeats
    }

    /// Returns the symmetric key of Woo and Park's paper, `bytes` long: `6d:5a` repeated.
    #[must_use]
    pub fn symmetric_key(bytes: usize) -> Vec<u8> {
        [0x6d, 0x5a].into_iter().cycle().take(bytes).collect()
    }
}

/// A feature of the driver or of the network stack, with the kernel's name for it, as in `ethtool -k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// `rx-gro`, `rx-vlan-hw-parse`, ...
    pub name: String,
    /// Whether it can be changed.
    pub available: bool,
    /// The last requested value.
    pub requested: bool,
    /// The actual value.
    pub active: bool,
}

impl InterfaceQuery {
    /// Returns the driver of the interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn driver(&self, iface: &str) -> io::Result<Driver> {
        // cmd, then driver, version, fw_version and bus_info of 32 bytes each, and 68 bytes more.
        let mut words = [0u32; 196 / 4];
        words[0] = ETHTOOL_GDRVINFO;
        self.ethtool(iface, &mut words)?;
        Ok(Driver { name: text(&words[1..9]), bus: text(&words[25..33]) })
    }

    /// Returns the size of the RX ring.
    ///
    /// # Errors
    /// The kernel's error: EOPNOTSUPP for drivers without rings.
    pub fn rx_ring(&self, iface: &str) -> io::Result<RxRing> {
        let words = self.ring_words(iface)?;
        Ok(RxRing { now: words[5], most: words[1] })
    }

    /// Sets the number of descriptors of the RX ring. Most drivers lose frames while they change it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_rx_ring(&self, iface: &str, slots: u32) -> io::Result<()> {
        let mut words = self.ring_words(iface)?;
        words[0] = ETHTOOL_SRINGPARAM;
        words[5] = slots;
        self.ethtool(iface, &mut words)
    }

    /// Returns `struct ethtool_ringparam`: cmd, maxima of rx, rx_mini, rx_jumbo and tx, then their present values.
    fn ring_words(&self, iface: &str) -> io::Result<[u32; 9]> {
        let mut words = [0u32; 9];
        words[0] = ETHTOOL_GRINGPARAM;
        self.ethtool(iface, &mut words)?;
        Ok(words)
    }

    /// Returns the number of RX queues, including the combined ones.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn channels(&self, iface: &str) -> io::Result<Channels> {
        // cmd, maxima of rx, tx, other and combined, then their present values.
        let mut words = [0u32; 9];
        words[0] = ETHTOOL_GCHANNELS;
        self.ethtool(iface, &mut words)?;
        Ok(Channels { rx: words[5] + words[8], most: words[1] + words[4], combined: words[4] > 0 })
    }

    /// Returns the settings of receive side scaling.
    ///
    /// # Errors
    /// The kernel's error: EOPNOTSUPP for drivers without RSS, or that do not report its settings.
    pub fn rss(&self, iface: &str) -> io::Result<Rss> {
        let words = self.rss_words(iface)?;
        let [function, transformed, ..] = words[4].to_ne_bytes();
        let key = words[6..].iter().flat_map(|word| word.to_ne_bytes()).take(words[3] as usize);
        Ok(Rss {
            toeplitz: function & ETH_RSS_HASH_TOP != 0,
            // RXH_XFRM_SYM_XOR, RXH_XFRM_SYM_OR_XOR.
            sorted: transformed & 3 != 0,
            key: key.collect(),
        })
    }

    /// Sets another hash key, of the same length as the present one.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidInput`] for a key of another length.
    pub fn set_rss_key(&self, iface: &str, key: &[u8]) -> io::Result<()> {
        let mut words = self.rss_words(iface)?;
        if key.is_empty() || key.len() != words[3] as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        words[..3].copy_from_slice(&[ETHTOOL_SRSSH, 0, ETH_RXFH_INDIR_NO_CHANGE]);
        // 0 leaves the hash function unchanged; the transformation of its input is written back as it was
        // read.
        let [_, transformed, ..] = words[4].to_ne_bytes();
        words[4] = u32::from_ne_bytes([0, transformed, 0, 0]);
        words[5] = 0;
        for (word, bytes) in words[6..].iter_mut().zip(key.chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_ne_bytes(whole);
        }
        self.ethtool(iface, &mut words)
    }

    /// Returns `struct ethtool_rxfh` and the key after it: cmd, context, sizes of table and key, hfunc and input_xfrm
    /// in bytes, reserved; then the key. The indirection table is not requested.
    fn rss_words(&self, iface: &str) -> io::Result<Vec<u32>> {
        let mut sizes = [0u32; 6];
        sizes[0] = ETHTOOL_GRSSH;
        self.ethtool(iface, &mut sizes)?;
        let key_bytes = sizes[3] as usize;
        if key_bytes > RSS_KEY_MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut words = vec![0u32; 6 + key_bytes.div_ceil(4)];
        (words[0], words[3]) = (ETHTOOL_GRSSH, sizes[3]);
        // If both sizes are 0, the request would only return the sizes again.
        if key_bytes > 0 {
            self.ethtool(iface, &mut words)?;
        } else {
            words.copy_from_slice(&sizes);
        }
        Ok(words)
    }

    /// Returns whether the NIC can stamp received frames; `None` if the driver does not report it.
    #[must_use]
    pub fn hardware_stamps(&self, iface: &str) -> Option<bool> {
        let mut words = [0u32; 11];
        words[0] = ETHTOOL_GET_TS_INFO;
        self.ethtool(iface, &mut words).ok()?;
        // SOF_TIMESTAMPING_RX_HARDWARE, and a filter other than HWTSTAMP_FILTER_NONE.
        Some(words[1] & 1 << 2 != 0 && words[7] & !1 != 0)
    }

    /// Returns all features.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn features(&self, iface: &str) -> io::Result<Vec<Feature>> {
        let names = self.feature_names(iface)?;
        let blocks = names.len().div_ceil(32);
        // cmd and number of blocks, then four words for each block: available, requested, active, never
        // changed.
        let mut words = vec![0u32; 2 + 4 * blocks];
        words[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks as u32]);
        self.ethtool(iface, &mut words)?;
        let bit = |at: usize, word: usize| words[2 + at / 32 * 4 + word] >> (at % 32) & 1 != 0;
        let of = |(at, name)| Feature {
            name,
            available: bit(at, 0),
            requested: bit(at, 1),
            active: bit(at, 2),
        };
        Ok(names.into_iter().enumerate().map(of).collect())
    }

    /// Requests that a feature be on or off.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::NotFound`] if the kernel has no feature of this name.
    pub fn set_feature(&self, iface: &str, name: &str, on: bool) -> io::Result<()> {
        let names = self.feature_names(iface)?;
        let at = names.iter().position(|have| have == name).ok_or(io::ErrorKind::NotFound)?;
        let blocks = names.len().div_ceil(32);
        // cmd and number of blocks, then the mask of bits and their new values.
        let mut words = vec![0u32; 2 + 2 * blocks];
        words[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
        words[2 + at / 32 * 2] = 1 << (at % 32);
        words[2 + at / 32 * 2 + 1] = u32::from(on) << (at % 32);
        self.ethtool(iface, &mut words)
    }

    fn feature_names(&self, iface: &str) -> io::Result<Vec<String>> {
        // cmd, reserved, mask of 64 bits, and a count for its one bit.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.ethtool(iface, &mut info)?;
        let count = info[4] as usize;
        if info[2] == 0 || count > FEATURES_MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut words = vec![0u32; 3 + count * STRING_BYTES / 4];
        words[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        self.ethtool(iface, &mut words)?;
        Ok(words[3..].chunks_exact(STRING_BYTES / 4).map(text).collect())
    }

    /// Returns the interface's link-layer address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn address(&self, iface: &str) -> io::Result<[u8; 6]> {
        let answer = self.ask(libc::SIOCGIFHWADDR, iface)?;
        // SAFETY: SIOCGIFHWADDR fills `ifru_hwaddr`.
        let data = unsafe { answer.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(std::array::from_fn(|at| data[at] as u8))
    }

    /// Makes one request. `words` must be as long as the struct of its command, including the lists at its end. All
    /// callers are in this file and ensure this.
    fn ethtool(&self, iface: &str, words: &mut [u32]) -> io::Result<()> {
        let mut ifreq = zeroed();
        named(&mut ifreq, iface)?;
        ifreq.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the request names the interface and points to the whole struct of its command, whose
        // lists have the lengths that it states, and the number of features is constant in a running
        // kernel; all is borrowed mutably for the call and aligned for `u32`.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &mut ifreq)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns the text up to the first zero byte.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_has_features_by_name_and_no_ring() {
        let query = InterfaceQuery::new().unwrap();
        let features = query.features("lo").unwrap();
        let gro = features.iter().find(|feature| feature.name == "rx-gro").expect("rx-gro");
        assert!(gro.available, "{gro:?}");
        let fixed = features
            .iter()
            .find(|feature| feature.name == "netns-local" || feature.name == "loopback");
        assert!(fixed.is_some_and(|feature| !feature.available && feature.active), "{fixed:?}");
        assert!(query.rx_ring("lo").is_err() && query.rss("lo").is_err());
        assert!(query.set_rss_key("lo", &[1; 40]).is_err());
        assert_eq!(query.address("lo").unwrap(), [0; 6]);
    }

    /// The Toeplitz hash as NICs compute it, to check `is_symmetric` against.
    fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 != 0;
        let window = |at| (at..at + 32).fold(0u32, |word, at| word << 1 | u32::from(bit(key, at)));
        (0..input.len() * 8).filter(|&at| bit(input, at)).fold(0, |hash, at| hash ^ window(at))
    }

    #[test]
    fn a_key_is_called_symmetric_if_both_ways_of_a_connection_hash_alike() {
        let there = [198, 51, 100, 10, 203, 0, 113, 99, 0x9c, 0x42, 0x01, 0xbb];
        let back = [203, 0, 113, 99, 198, 51, 100, 10, 0x01, 0xbb, 0x9c, 0x42];
        let rss = |key| Rss { toeplitz: true, sorted: false, key };
        let usual: Vec<u8> = (0..40u8).map(|at| at.wrapping_mul(37) ^ 0x6d).collect();
        for (key, symmetric) in [(Rss::symmetric_key(40), true), (usual, false)] {
            assert_eq!(toeplitz(&key, &there) == toeplitz(&key, &back), symmetric);
            assert_eq!(rss(key).is_symmetric(), symmetric);
        }
        assert!(!rss(Vec::new()).is_symmetric());
        assert!(Rss { sorted: true, ..rss(Vec::new()) }.is_symmetric());
        assert!(!Rss { toeplitz: false, ..rss(Rss::symmetric_key(40)) }.is_symmetric());
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let query = InterfaceQuery::new().unwrap();
        assert!(query.driver("no-such0").is_err() && query.features("").is_err());
    }
}
