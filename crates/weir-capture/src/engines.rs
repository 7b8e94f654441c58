//! The engines, one folder each.
//!
//! | engine | module | frames come from |
//! |---|---|---|
//! | `bpf` | [`bpf`] | TC or XDP programs that write the ring in the kernel |
//! | `af_packet` | [`af_packet`] | a TPACKET_V3 socket |
//! | `af_xdp` | [`af_xdp`] | AF_XDP sockets, one a queue |
//! | `pcap` | [`pcap`](mod@pcap) | libpcap, whatever it does here |
//! | `dpdk` | `dpdk` (a Cargo feature) | a port of DPDK's, by any of its drivers |
//! | `replay` | [`replay`] | a pcap or pcapng file |
//! | `gen` | [`generator`] | memory: made up, for everything behind the NIC |

pub mod af_packet;
pub mod af_xdp;
pub mod auto;
pub mod bpf;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod generator;
pub mod netns;
pub mod pcap;
pub mod replay;
