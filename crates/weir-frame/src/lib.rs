//! Definition of a frame: link-layer headers, the flow key, and the pcapng blocks that Weir's rings
//! and files are made of.
//!
//! No I/O of its own beyond `std::io::{Read, Write}` traits, no unsafe code, no panics on outside
//! bytes. A *frame* is the link-layer bytes as received, without the FCS.
//!
//! | module | contents |
//! |---|---|
//! | [`headers`] | MAC, VLAN, IP and ports of a frame, parsed once |
//! | [`flow`] | the flow key: the fields that decide which frames belong to the same flow |
//! | [`shard`] | the part of a link's flows that a reader takes |
//! | [`record`] | one frame as a pcapng Enhanced Packet Block, as it is stored in a ring |
//! | [`pcapng`] | the other blocks around records: section, interface, statistics, padding |
//! | [`read`] | a reader of pcap and pcapng files |
//! | [`schedule`] | the times at which the frames of a recording are replayed |
//! | [`segment`] | splitting of TCP super-frames into segments |
//! | [`datagram`] | generation of UDP datagrams to chosen addresses |
//! | [`checksum`] | the checksum of IP, TCP and UDP |
#![forbid(unsafe_code)]

// Ring words and pcapng records are written in the host's byte order and declared little-endian.
#[cfg(target_endian = "big")]
compile_error!(
    "Weir's ring and record formats are little-endian; big-endian hosts are not supported"
);

pub mod checksum;
pub mod datagram;
pub mod flow;
pub mod headers;
pub mod limits;
pub mod pcapng;
pub mod read;
pub mod record;
pub mod schedule;
pub mod segment;
pub mod shard;
