//! PCI devices in sysfs, where each has a folder (Linux, Documentation/PCI/sysfs-pci.rst).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use weir_ring::memory::Access;

use crate::error::DeviceError;
use crate::limits::DEVICES_MAX;

/// Vendor ID of Red Hat, and device ID of `ivshmem` (QEMU, docs/specs/ivshmem-spec).
const VENDOR: u64 = 0x1af4;
const DEVICE: u64 = 0x1110;
/// The file of BAR 2, in which an `ivshmem` device has its memory.
pub(super) const BAR: &str = "resource2";
const BAR_NUMBER: usize = 2;

/// An `ivshmem` device.
#[derive(Debug)]
pub(super) struct Device {
    folder: PathBuf,
    /// The PCI address, such as `0000:00:05.0`.
    pub(super) address: String,
}

/// Returns the `ivshmem` devices, sorted by address; at most [`DEVICES_MAX`].
pub(super) fn ivshmem_devices(pci: &Path) -> io::Result<Vec<Device>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir(pci)? {
        let folder = entry?.path();
        let is = |file: &str, number| {
            fs::read_to_string(folder.join(file)).is_ok_and(|text| number_of(&text) == Some(number))
        };
        if is("vendor", VENDOR) && is("device", DEVICE) {
            let address = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            devices.push(Device { folder, address });
        }
        if devices.len() == DEVICES_MAX {
            break;
        }
    }
    devices.sort_unstable_by(|a, b| a.address.cmp(&b.address));
    Ok(devices)
}

impl Device {
    /// Enables the device, so that it answers reads of its memory. The kernel counts how often a device was enabled, so
    /// this writes only if nobody has enabled it.
    pub(super) fn enable(&self) -> Result<(), DeviceError> {
        if self.read("enable")?.trim() == "0" {
            let written = fs::write(self.folder.join("enable"), "1");
            return written.map_err(|source| DeviceError::File {
                doing: "writing",
                file: "enable",
                source,
            });
        }
        Ok(())
    }

    /// Returns the size of BAR 2 in bytes. It has one once the kernel has assigned an address.
    pub(super) fn bar_bytes(&self) -> Result<u64, DeviceError> {
        bar_bytes(&self.read("resource")?).ok_or(DeviceError::NoBar)
    }

    /// Opens the file of BAR 2, for mapping.
    pub(super) fn open_bar(&self, access: Access) -> Result<OwnedFd, DeviceError> {
        let is_written = access == Access::Write;
        let file = OpenOptions::new().read(true).write(is_written).open(self.folder.join(BAR));
        Ok(file.map_err(|error| self.error("opening", error))?.into())
    }

    /// Returns an error of the file of BAR 2.
    pub(super) fn error(&self, doing: &'static str, source: impl Into<io::Error>) -> DeviceError {
        DeviceError::File { doing, file: BAR, source: source.into() }
    }

    fn read(&self, file: &'static str) -> Result<String, DeviceError> {
        fs::read_to_string(self.folder.join(file)).map_err(|source| DeviceError::File {
            doing: "reading",
            file,
            source,
        })
    }
}

/// Parses a hexadecimal number in the format of sysfs.
fn number_of(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Returns the size of BAR 2 from the contents of a device's file `resource`: a line for each BAR, with its first
/// address, its last address, and flags. `None` while the BAR has no address.
fn bar_bytes(resource: &str) -> Option<u64> {
    let mut numbers = resource.lines().nth(BAR_NUMBER)?.split_ascii_whitespace().map(number_of);
    let (first, last) = (numbers.next()??, numbers.next()??);
    if first == 0 {
        return None;
    }
    last.checked_sub(first)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_size_of_a_bar_is_between_its_addresses() {
        let lines = |bar: &str| {
            format!("0x00000000febf0000 0x00000000febf00ff 0x00040200\n0x0 0x0 0x0\n{bar}\n")
        };
        let of = |bar: &str| bar_bytes(&lines(bar));
        assert_eq!(of("0x00000000fe000000 0x00000000fe3fffff 0x000000000014220c"), Some(4 << 20));
        assert_eq!(of("0x0000004000000000 0x0000004003ffffff 0x000000000014220c"), Some(64 << 20));
        assert_eq!(of("0x0000000000000000 0x0000000000000000 0x0000000000000000"), None);
        assert_eq!(
            of("0x0000000000000000 0x0000000003ffffff 0x000000002014220c"),
            None,
            "not assigned"
        );
        assert_eq!(of("0x0000000000000002 0x0000000000000000 0x0"), None);
        assert_eq!(bar_bytes("0x0 0x0 0x0\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_none(text in "(0x[0-9a-f]{0,17}[ \n]?|.|\n){0,40}") {
            let _ = bar_bytes(&text);
            let _ = number_of(&text);
        }
    }
}
