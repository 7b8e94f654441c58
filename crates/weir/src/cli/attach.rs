//! The command line of `weir attach`.

use clap::{Args, ValueEnum};

use weir_capture::kernel::netns::NetnsName;
use weir_netdev::NetdevName;

use super::input::InputArgs;
use crate::source_name;

/// The MTUs that a tap interface accepts. Source: ETH_MIN_MTU of linux/if_ether.h, `tun_set_iff`.
const MTUS: std::ops::RangeInclusive<i64> = 68..=65_521;

/// The handling of super-frames, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SuperFramesName {
    /// They are fed unchanged
    Keep,
    /// TCP is segmented to the MTU, as a NIC would have done
    Segment,
}

/// `weir attach`.
#[derive(Args, Debug)]
#[command(override_usage = "weir attach [OPTIONS] --netdev <NAME> <SOURCE>... [FILTER]")]
pub struct AttachArgs {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub netdev: NetdevArgs,
}

/// An interface that is fed.
#[derive(Args, Clone, Debug)]
pub struct NetdevArgs {
    /// The interface that is made, and removed at the end
    #[arg(long = "netdev", value_name = "NAME")]
    pub name: NetdevName,
    /// Make it in another network namespace: netns:NAME (as `ip netns` names it, or the number of a process there),
    /// netns:/proc/PID/ns/net, docker:NAME, pod:NAMESPACE/NAME
    #[arg(long, value_name = "NETNS", value_parser = source_name::netns_name)]
    pub into: Option<NetnsName>,
    /// Begin when a packet socket reads the interface, so that a tool that is started now sees every frame
    #[arg(long)]
    pub wait_for_reader: bool,
    /// What to do with frames longer than the MTU that a NIC or the kernel has merged from several (GRO, TSO)
    #[arg(long, value_enum, default_value = "keep")]
    pub super_frames: SuperFramesName,
    /// MTU of the interface, and of segments; longer frames are fed all the same
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(MTUS))]
    pub mtu: u32,
}
