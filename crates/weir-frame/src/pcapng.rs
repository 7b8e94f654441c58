//! The pcapng blocks around the records: their contents and their type numbers.
//!
//! A ring's meta block and a file begin with the same bytes: one section header, then one interface description for
//! each interface id that the records use. [`mod@write`] appends blocks to a `Vec<u8>`; [`names`] reads the blocks
//! with names of addresses.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 (section), 4.2 (interface), 4.5 (name resolution), 4.6
//! (statistics).

pub mod names;
pub mod write;

use std::net::IpAddr;

/// Section Header Block. The number is a palindrome, so that it is recognised before the byte order is known.
pub const SHB_TYPE: u32 = 0x0a0d_0d0a;
/// Interface Description Block.
pub const IDB_TYPE: u32 = 1;
/// Packet Block: obsolete, read but never written.
pub const PB_TYPE: u32 = 2;
/// Simple Packet Block: read but never written.
pub const SPB_TYPE: u32 = 3;
/// Name Resolution Block: written, and skipped by readers of frames ([`names`] reads it).
pub const NRB_TYPE: u32 = 4;
/// Interface Statistics Block.
pub const ISB_TYPE: u32 = 5;
/// Weir's padding: a local-use type (top bit set), which other tools skip.
///
/// The draft would allow a Custom Block instead, but Wireshark shows Custom Blocks as rows among the frames.
pub const PADDING_TYPE: u32 = 0x8000_5745;
/// The number from which a reader determines a section's byte order.
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The shortest possible block: type, total length, no body, total length.
pub const BLOCK_MIN_BYTES: u32 = 12;
/// Link type of Ethernet. Source: draft-ietf-opsawg-pcaplinktype.
pub const LINKTYPE_ETHERNET: u16 = 1;
/// Link type of IPv4 and IPv6 packets without a link layer: `tun`, WireGuard.
pub const LINKTYPE_RAW: u16 = 101;
/// Link type of Linux cooked headers, which other tools write for a capture on `any`.
pub const LINKTYPE_LINUX_SLL: u16 = 113;
/// Link type of the second version of Linux cooked headers.
pub const LINKTYPE_LINUX_SLL2: u16 = 276;
/// Link type of IPv4 packets without a link layer.
pub const LINKTYPE_IPV4: u16 = 228;
/// Link type of IPv6 packets without a link layer.
pub const LINKTYPE_IPV6: u16 = 229;

/// Option codes, by the block that they belong to. Source: the sections of the draft that the module names.
pub(crate) mod option {
    pub const END: u16 = 0;
    pub const SHB_HARDWARE: u16 = 2;
    pub const SHB_OS: u16 = 3;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_DESCRIPTION: u16 = 3;
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_FILTER: u16 = 11;
    pub const IF_TSOFFSET: u16 = 14;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_QUEUE: u16 = 6;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
    pub const ISB_FILTERACCEPT: u16 = 6;
    pub const ISB_OSDROP: u16 = 7;
    pub const ISB_USRDELIV: u16 = 8;
}

/// The system and program that recorded a section. For `None`, no option is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SectionInfo {
    /// The machine, such as its CPU model.
    pub hardware: Option<String>,
    /// The operating system and its release.
    pub os: Option<String>,
    /// The program that wrote the section, with its version.
    pub userappl: Option<String>,
}

/// An interface on which frames of a section were captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, such as `eth0`. Empty: no name is written, or none was read.
    pub name: String,
    /// A description for people.
    pub description: Option<String>,
    /// Capture filter, in the pcap filter language.
    pub filter: Option<String>,
    /// LINKTYPE number, such as [`LINKTYPE_ETHERNET`]. tcpdump reads only files with a single link type.
    pub link_type: u16,
    /// Most bytes captured of a frame, 0 for no limit. tcpdump refuses files whose interfaces have different values.
    pub snaplen: u32,
}

/// The name of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressName {
    /// The address.
    pub address: IpAddr,
    /// The name. An empty name is not written.
    pub name: String,
}

/// Counters of one interface. For `None`, no option is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Index of the interface in the section.
    pub interface_id: u32,
    /// Time of the counters, in nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// Begin of the capture, in nanoseconds since the Unix epoch.
    pub start_ns: Option<u64>,
    /// End of the capture, in nanoseconds since the Unix epoch.
    pub end_ns: Option<u64>,
    /// Frames that the interface received (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Frames that the interface dropped because it had no buffer (`isb_ifdrop`).
    pub interface_drops: Option<u64>,
    /// Frames that the filter accepted (`isb_filteraccept`).
    pub filter_accepted: Option<u64>,
    /// Frames that the kernel or the ring dropped after the filter (`isb_osdrop`).
    pub os_drops: Option<u64>,
    /// Frames that reached the writer of this file (`isb_usrdeliv`).
    pub delivered: Option<u64>,
}
