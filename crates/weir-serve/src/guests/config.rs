//! Virtual machines in the daemon's configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use weir_region::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN, UNIT_BYTES};
use weir_ring::limits::DATA_BLOCKS_MIN;
use weir_vm::Pages;

/// A virtual machine that may have feeds, and the way to reach it: by the sockets `port` (or
/// `vsock`) and `qmp`, or as a libvirt domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// The socket of the guest's port: QEMU's `-chardev socket,path=PORT,server=on,wait=off`.
    pub port: Option<PathBuf>,
    /// Instead of a port: the `uds-path` of the guest's `vhost-device-vsock`.
    pub vsock: Option<PathBuf>,
    /// The socket of the guest's monitor: QEMU's `-qmp unix:QMP,server=on,wait=off`.
    pub qmp: Option<PathBuf>,
    /// The guest's name, UUID or id in libvirt, which knows its port and its monitor.
    pub libvirt: Option<String>,
    /// The libvirt to which to connect; default: the system's (`qemu:///system`).
    pub libvirt_uri: Option<String>,
    /// Size of the shared memory in MiB: a power of two. It holds the rings of all feeds of the guest.
    #[serde(default = "region_mib")]
    pub region_mib: u64,
    /// Whether to use reserved huge pages (`vm.nr_hugepages`) for that memory.
    #[serde(default)]
    pub hugepages: bool,
}

/// Checks that a name can be used unchanged in paths, options of QEMU and commands.
///
/// # Errors
/// The rule for names, as a text.
pub fn check_guest_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits) {
        return Ok(());
    }
    Err("a guest's name has letters, digits, '-', '_' and '.', and begins with a letter or a digit"
        .into())
}

/// Default size of a guest's region in MiB: enough for the rings of three feeds of the default size.
fn region_mib() -> u64 {
    weir_region::limits::REGION_MIB_DEFAULT
}

impl GuestConfig {
    /// Checks the entry. Returns its first error.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mib, min, max) =
            (self.region_mib, REGION_BYTES_MIN / UNIT_BYTES, REGION_BYTES_MAX / UNIT_BYTES);
        if !mib.is_power_of_two() || !(min..=max).contains(&mib) {
            return Err(format!("region_mib = {mib}: use a power of two from {min} to {max}"));
        }
        if let Some((key, path)) = self.sockets().find(|(_, path)| !path.is_absolute()) {
            return Err(format!("{key} = {path:?}: write the whole path, from / on"));
        }
        if self.port.is_some() && self.vsock.is_some() {
            return Err("it has both a port and a vsock; leave out one".into());
        }
        match (self.port.as_ref().or(self.vsock.as_ref()), &self.qmp, &self.libvirt) {
            (Some(_), Some(_), None) if self.libvirt_uri.is_some() => {
                Err("libvirt_uri goes with libvirt = \"DOMAIN\"".into())
            }
            (Some(_), Some(_), None) => Ok(()),
            (None, None, Some(domain)) => {
                let is_name = |text: &str| {
                    !text.is_empty()
                        && !text.starts_with('-')
                        && !text.chars().any(char::is_control)
                };
                let uri = self.libvirt_uri.as_deref().unwrap_or(weir_vm::libvirt::SYSTEM_URI);
                if is_name(domain) && is_name(uri) {
                    Ok(())
                } else {
                    Err("libvirt and libvirt_uri are names without control characters, and no '-' in front".into())
                }
            }
            _ => {
                Err("say how it is reached: port (or vsock) and qmp, the sockets of its QEMU, or \
                      libvirt = \"DOMAIN\""
                    .into())
            }
        }
    }

    /// Returns the sockets of the guest's QEMU, with the keys that name them.
    fn sockets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [("port", &self.port), ("vsock", &self.vsock), ("qmp", &self.qmp)];
        all.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }

    /// Checks that no two guests have the same socket or the same domain.
    pub(crate) fn check_all(guests: &BTreeMap<String, GuestConfig>) -> Result<(), String> {
        let (mut sockets, mut domains) = (BTreeMap::new(), BTreeMap::new());
        for (name, guest) in guests {
            for (key, path) in guest.sockets() {
                if let Some(other) = sockets.insert(path.components().collect::<PathBuf>(), name) {
                    let who = if other == name { "it".into() } else { format!("guests.{other}") };
                    return Err(format!(
                        "guests.{name}: {key} = {path:?}: {who} has this socket already"
                    ));
                }
            }
            let Some(domain) = &guest.libvirt else { continue };
            if let Some(other) = domains.insert((domain, &guest.libvirt_uri), name) {
                return Err(format!(
                    "guests.{name}: guests.{other} is the domain {domain:?} already"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the region is large enough for at least one feed with rings of this size.
    pub(crate) fn check_room(&self, ring_mib: u64) -> Result<(), String> {
        // The size of a copy: a power of two of blocks, and one block for the ring's header. The region itself also has
        // a header.
        let ring = 1 + (1 << ring_mib.max(DATA_BLOCKS_MIN).ilog2());
        let (region, needed) = (self.region_mib, ring + 1);
        if needed <= region {
            return Ok(());
        }
        Err(format!(
            "region_mib = {region} has no place for a feed, which takes {ring} MiB of it (ring_mib = {ring_mib}) \
             beside its header of 1 MiB: use region_mib = {} or a smaller ring_mib",
            needed.next_power_of_two()
        ))
    }

    /// Returns the kind of pages for the guest's memory.
    pub(crate) fn pages(&self) -> Pages {
        if self.hugepages { Pages::Reserved } else { Pages::Now }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn refused(text: &str) -> String {
        Config::parse(text).expect_err(text)
    }

    #[test]
    fn guests_that_could_never_be_served_are_refused() {
        let guest = |name: &str, port: &str, more: &str| {
            format!("[guests.{name:?}]\nport = \"{port}\"\nqmp = \"/q/{name}\"\n{more}\n")
        };
        for (text, words) in [
            (
                guest("a", "/p", "region_mib = 300"),
                "region_mib = 300: use a power of two from 8 to 65536",
            ),
            (guest("a", "/p", "region_mib = 4"), "use a power of two from 8 to 65536"),
            (guest("a", "p", ""), "port = \"p\": write the whole path"),
            (guest("a", "/q/a", ""), "it has this socket already"),
            (
                guest("a", "/p", "") + &guest("b", "//p/", ""),
                "guests.b: port = \"//p/\": guests.a has this socket",
            ),
            (guest("a b", "/p", ""), "a guest's name has letters"),
            (guest("../x", "/p", ""), "a guest's name has letters"),
            (guest("", "/p", ""), "a guest's name has letters"),
            (
                "[guests.a]\nlibvirt = \"d\"\n[guests.b]\nlibvirt = \"d\"".into(),
                "guests.a is the domain \"d\" already",
            ),
        ] {
            assert!(refused(&text).contains(words), "{text}: {}", refused(&text));
        }
        let fine = guest("web-1.b_c", "/p", "") + &guest("b", "/p2", "");
        Config::parse(&fine).expect("names and sockets of their own");
    }

    #[test]
    fn a_region_without_a_place_for_a_feed_is_refused_with_numbers() {
        let file = |ring: u64, region: u64| {
            format!(
                "[sources.lan]\nring_mib = {ring}\nguests = [\"a\"]\n\
                 [guests.a]\nport = \"/p\"\nqmp = \"/q\"\nregion_mib = {region}"
            )
        };
        let said = refused(&file(64, 64));
        assert!(said.starts_with("sources.lan: guests.a: region_mib = 64"), "{said}");
        assert!(said.contains("takes 65 MiB") && said.contains("use region_mib = 128"), "{said}");
        // The copy's rings are the next smaller power of two.
        for (ring, region) in [(64, 128), (127, 128), (63, 64), (4, 8)] {
            Config::parse(&file(ring, region)).expect("there is place");
        }
        refused(&file(128, 128));
    }
}
