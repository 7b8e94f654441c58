//! The command line of `weir gen`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use weir_capture::replay::Speed;
use weir_frame::datagram::typed::{Mac, PayloadBytes, SourceIp, Vlans};
use weir_lab::generator::sizes::Sizes;

use crate::source_name::SourceName;
use crate::units::{self, Cpus, FrameRate};

/// `weir gen`.
#[derive(Args, Debug)]
#[command(
    after_help = "Captures of IFACE itself do not see these frames, neither Weir's nor tcpdump's: they go to the \
    driver directly, past the TC hook and the packet sockets. Capture at the receiving end."
)]
pub struct GenArgs {
    /// The interface to send from: eth0, netns:NAME/eth0, netns:PID/eth0 or netns:/proc/PID/ns/net/eth0
    #[arg(value_name = "IFACE")]
    pub iface: SourceName,
    /// Bytes of a frame on the wire, with its FCS (64 is 60 bytes in memory); or a mix: 64:7,594:4,1518:1,
    /// which is also called imix [default: 64, or as many as headers and payload need]
    #[arg(long, value_name = "BYTES", value_parser = units::sizes)]
    pub size: Option<Sizes>,
    #[command(flatten)]
    pub addresses: AddressArgs,
    /// 5-tuples: single, multi (every frame its own), or a number
    #[arg(long, default_value = "single", value_parser = units::flows)]
    pub flows: weir_lab::generator::Flows,
    /// max, 1Mpps, or 1Gbps (frames with FCS, without preamble and gap); of all threads together. With a file, in
    /// place of its stamps
    #[arg(long, default_value = "max", value_parser = units::frame_rate)]
    pub rate: FrameRate,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// Number of sending threads, which share rate and frame numbers [default: one for each CPU of --cpu, else 1]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub threads: Option<usize>,
    /// CPUs to send on, one for each thread: 0, or 0,2-3
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    pub cpu: Option<Cpus>,
    /// Write the time of sending into every frame
    #[arg(long)]
    pub stamp: bool,
    /// Send through AF_PACKET even where the kernel generator works
    #[arg(long)]
    pub af_packet: bool,
    /// Send the frames of a pcap or pcapng file instead, in order and byte for byte, through
    /// AF_PACKET: some 0.5 million frames a second on one busy core
    #[arg(
        long,
        value_name = "TRACE",
        conflicts_with_all = [
            "size", "flows", "stamp", "af_packet", "src_mac", "dst_mac", "src_ip", "dst_ip", "src_port", "dst_port",
            "vlan", "payload"
        ]
    )]
    pub file: Option<PathBuf>,
    /// How fast the file is sent by its stamps: max, real, or a factor such as 2x; --rate replaces this
    #[arg(
        long,
        value_name = "SPEED",
        default_value = "max",
        value_parser = units::speed,
        requires = "file",
        conflicts_with = "rate"
    )]
    pub speed: Speed,
    /// How often the file is sent
    #[arg(
        long = "loop",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "file"
    )]
    pub loops: u32,
    /// Print one JSON object at the end, on standard output
    #[arg(long)]
    pub json: bool,
}

/// Addresses and contents of frames. Without any of these: addresses that are reserved for tests.
#[derive(Args, Clone, Debug, Default)]
pub struct AddressArgs {
    /// Source MAC address [default: with --dst-ip or --dst-mac the interface's]
    #[arg(long, value_name = "MAC")]
    pub src_mac: Option<Mac>,
    /// Destination MAC address [default: with --dst-ip that of the address or of the gateway to it, by ARP or
    /// neighbour discovery]
    #[arg(long, value_name = "MAC")]
    pub dst_mac: Option<Mac>,
    /// Source address, IPv4 or IPv6; flow: one in 198.18.0.0/15 or 2001:2::/48 for each flow [default: with --dst-ip
    /// the interface's, else flow]
    #[arg(long, value_name = "IP")]
    pub src_ip: Option<SourceIp>,
    /// Destination address, IPv4 or IPv6 [default: 192.0.2.1, which is reserved for documentation]
    #[arg(long, value_name = "IP")]
    pub dst_ip: Option<IpAddr>,
    /// UDP source port [default: the flow's, 32768 to 65535]
    #[arg(long, value_name = "PORT")]
    pub src_port: Option<u16>,
    /// UDP destination port [default: 9, discard]
    #[arg(long, value_name = "PORT")]
    pub dst_port: Option<u16>,
    /// VLAN tag; with two IDs, the outer one first, two tags (802.1ad)
    #[arg(long, value_name = "ID[,ID]")]
    pub vlan: Option<Vlans>,
    /// Bytes of each datagram in place of the frame number: 0a0b0c in hex, or text:hello. With --size zeros follow, up
    /// to the size
    #[arg(long, value_name = "HEX", conflicts_with = "stamp")]
    pub payload: Option<PayloadBytes>,
}

impl AddressArgs {
    /// Returns whether no flag was given.
    pub fn is_empty(&self) -> bool {
        let AddressArgs { src_mac, dst_mac, src_ip, dst_ip, src_port, dst_port, vlan, payload } =
            self;
        let macs = src_mac.is_none() && dst_mac.is_none();
        let ips = src_ip.is_none() && dst_ip.is_none();
        macs && ips
            && src_port.is_none()
            && dst_port.is_none()
            && vlan.is_none()
            && payload.is_none()
    }
}
