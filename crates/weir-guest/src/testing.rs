//! Stands in for the host in the unit tests: a folder that looks like `/sys/bus/pci/devices`, with plain files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_region::limits::WORDS_BYTES;
use weir_region::words::{position_at, threshold_at};
use weir_region::{Header, Kind, Place, Token};
use weir_ring::memory::Access;
use weir_ring::{Clock, Mapping, Ring, RingSpec, Words as _, Writer, WriterKind, header};

use super::Devices;

pub const MIB: u64 = 1 << 20;
pub const REGION_BYTES: u64 = 16 * MIB;
pub const TOKEN: Token = Token([7; 16]);

pub fn spec() -> RingSpec {
    let interface = Interface { link_type: 1, snaplen: 65535, ..Interface::default() };
    RingSpec {
        data_blocks: 4,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    }
}

pub fn meta(ordinal: u64) -> Meta {
    Meta { interface_id: 0, ts_ns: ordinal, wire_len: 60, flags: None, queue: None }
}

/// The folder of one device.
pub struct FakeDevice(PathBuf);

impl FakeDevice {
    /// Makes a device with a BAR of this number of bytes.
    pub fn new(pci: &Path, address: &str, bytes: u64) -> FakeDevice {
        let device = FakeDevice(pci.join(address));
        fs::create_dir(&device.0).unwrap();
        device.write("vendor", "0x1af4\n");
        device.write("device", "0x1110\n");
        device.write("enable", "0\n");
        device.set_bar(bytes);
        File::create(device.0.join("resource2")).unwrap().set_len(bytes).unwrap();
        device
    }

    pub fn with_header(
        pci: &Path,
        address: &str,
        kind: Kind,
        token: Token,
        bytes: u64,
    ) -> FakeDevice {
        let device = FakeDevice::new(pci, address, bytes);
        device.bar().write_all_at(&Header { kind, token, bytes }.encode(), 0).unwrap();
        device
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }

    /// Writes the address range of the BAR in the kernel's format. With 0 bytes, the BAR has no address yet.
    pub fn set_bar(&self, bytes: u64) {
        let first: u64 = if bytes == 0 { 0 } else { 0xfe00_0000 };
        let last = (first + bytes).saturating_sub(1);
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        self.write(
            "resource",
            &format!("{none}{none}{first:#018x} {last:#018x} 0x000000000014220c\n"),
        );
    }

    pub fn bar(&self) -> File {
        File::options().read(true).write(true).open(self.0.join("resource2")).unwrap()
    }

    pub fn map(&self, offset: u64, bytes: u64) -> Mapping {
        // SAFETY: the file has these bytes, and nobody makes it shorter. They are reached as `Words`.
        unsafe { Mapping::map_part(self.bar().into(), offset, bytes, Access::Write) }.unwrap()
    }
}

/// A host with both devices.
pub struct Host {
    pub pci: tempfile::TempDir,
    pub region: FakeDevice,
    pub words: FakeDevice,
    page: Mapping,
}

impl Host {
    pub fn new() -> Host {
        let pci = tempfile::tempdir().unwrap();
        let (path, bytes) = (pci.path(), REGION_BYTES);
        let region = FakeDevice::with_header(path, "0000:00:05.0", Kind::Region, TOKEN, bytes);
        let words = FakeDevice::with_header(path, "0000:00:06.0", Kind::Words, TOKEN, WORDS_BYTES);
        let page = words.map(0, WORDS_BYTES);
        Host { pci, region, words, page }
    }

    pub fn find(&self) -> Devices {
        Devices::find(self.pci.path(), TOKEN, Duration::ZERO).unwrap()
    }

    /// Makes a new ring in the region. Its place has exactly the size of the ring.
    pub fn writer(&self, slot: u32, offset: u64) -> (Place, Writer<Mapping>) {
        let place = Place { offset, bytes: 5 * MIB, slot };
        let mapping = self.region.map(place.offset, place.bytes);
        let words = mapping.words();
        // Clear the words of a ring that was there before.
        if words[0].load(Ordering::Relaxed) != 0 {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        header::format(words, &spec()).unwrap();
        (place, Writer::new(Ring::open(Arc::new(mapping)).unwrap()))
    }

    pub fn threshold(&self, slot: u32) -> u64 {
        self.page.words()[threshold_at(slot) as usize / 8].load(Ordering::Relaxed)
    }

    pub fn position(&self, slot: u32) -> u64 {
        self.page.words()[position_at(slot) as usize / 8].load(Ordering::Relaxed)
    }
}

pub fn push(writer: &mut Writer<Mapping>, frames: u64) -> u64 {
    for _ in 0..frames {
        writer.push(&meta(writer.frames()), &writer.frames().to_le_bytes());
    }
    writer.publish();
    writer.frames()
}
