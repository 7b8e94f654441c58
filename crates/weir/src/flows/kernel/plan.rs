//! The plan of a run with the flow table in the kernel.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_capture::Direction;
use weir_capture::af_xdp::Queues;
use weir_capture::bpf::TcAttach;
use weir_capture::kernel::netns::Netns;
use weir_capture::replay::Speed;
use weir_container::interface::owners;
use weir_flow::{FlowConfig, Octets};
use weir_flow_kernel::{Hook, KernelConfig, KernelTable};
use weir_frame::record::CAPLEN_MAX;

use crate::cli::{
    CaptureArgs, DirectionName, EngineName, FlowsArgs, HookName, InputArgs, TcAttachName,
    TimestampName, XdpModeName,
};
use crate::plan::CapturePlan;
use crate::source_name::{Part, SourceName};

/// The plan of a run with the flow table in the kernel.
pub struct KernelPlan {
    /// Names of the interfaces, each with its owner, if it has one.
    pub interfaces: Vec<(String, Option<String>)>,
    netns: Option<Netns>,
    config: KernelConfig,
    pub duration: Option<Duration>,
    pub json: bool,
    pub fail_on_loss: bool,
    named: Vec<String>,
}

impl KernelPlan {
    /// Makes the plan for these arguments.
    pub fn new(args: &FlowsArgs) -> Result<KernelPlan> {
        let input = &args.input;
        if let Some(flag) = unheeded(input) {
            bail!(
                "{flag} is for flows of captured frames; with --in-kernel no frame is copied, so leave one of the two \
                 out"
            );
        }
        if input.sources.is_empty() {
            bail!(
                "name an interface: weir flows eth0 --in-kernel; `weir doctor` lists those that there are"
            );
        }
        let (mut ifaces, mut names) = (Vec::new(), Vec::new());
        for source in &input.sources {
            let SourceName::Interface { netns, iface, part: Part::Whole } = source else {
                bail!(
                    "{source}: --in-kernel counts the frames of whole interfaces: eth0, netns:NAME/eth0"
                );
            };
            if !names.contains(&source.to_string()) {
                names.push(source.to_string());
                ifaces.push((netns, iface));
            }
        }
        let netns = ifaces[0].0;
        if ifaces.iter().any(|(other, _)| *other != netns) {
            bail!(
                "--in-kernel: its interfaces are of one network namespace; start a monitor for each"
            );
        }
        // This returns the errors of a capture with the same arguments, such as for consuming this machine's own
        // traffic.
        CapturePlan::new(&CaptureArgs::into_flows(input, &args.flows))?;
        let netns = netns.as_ref().map(Netns::open).transpose()?;
        let ifaces: Vec<String> = ifaces.into_iter().map(|(_, iface)| iface.clone()).collect();
        let names_of = || owners(&ifaces.iter().map(String::as_str).collect::<Vec<_>>());
        let found = match &netns {
            Some(netns) => netns.ask(names_of)?,
            None => names_of(),
        };
        let owners = found.into_iter().map(|owner| owner.map(|owner| owner.to_string()));
        Ok(KernelPlan {
            config: config(args),
            interfaces: ifaces.into_iter().zip(owners).collect(),
            netns,
            duration: input.duration,
            json: input.json,
            fail_on_loss: input.fail_on_loss,
            named: names,
        })
    }

    /// Attaches the programs to the interfaces.
    pub fn open(&self) -> Result<KernelTable> {
        let names: Vec<&str> = self.interfaces.iter().map(|(name, _)| name.as_str()).collect();
        let open = || KernelTable::open_all(&names, self.config.clone());
        let opened = match &self.netns {
            Some(netns) => netns.ask(open)?,
            None => open(),
        };
        opened.context("--in-kernel")
    }

    /// Returns the interfaces, as named on the command line.
    pub fn source(&self) -> String {
        self.named.join(",")
    }

    /// Returns the name of the hook at which frames are counted.
    pub fn hook(&self) -> &'static str {
        match self.config.hook {
            Hook::Tc => "tc",
            Hook::Xdp => "xdp",
        }
    }

    /// Returns the most records of one CPU that can wait to be read.
    pub fn records_max(&self) -> u32 {
        self.config.records_max
    }
}

fn config(args: &FlowsArgs) -> KernelConfig {
    let FlowsArgs { input, flows, .. } = args;
    let timeout = |time: Duration| (!time.is_zero()).then_some(time);
    let hook = match input.hook {
        Some(HookName::Xdp) => Hook::Xdp,
        Some(HookName::Tc) => Hook::Tc,
        None if input.consume => Hook::Xdp,
        None => Hook::Tc,
    };
    let direction = match (input.direction, hook) {
        (DirectionName::In, _) => Direction::In,
        // XDP refuses this direction when the programs are attached.
        (DirectionName::Out, _) => Direction::Out,
        (DirectionName::Both, Hook::Xdp) => Direction::In,
        (DirectionName::Both, Hook::Tc) => Direction::Both,
    };
    let default = KernelConfig::default();
    KernelConfig {
        flow: FlowConfig {
            flows_max: flows.flows_max.unwrap_or(default.flow.flows_max),
            idle_timeout: timeout(flows.idle_timeout),
            active_timeout: timeout(flows.active_timeout),
            biflow: flows.biflow,
            by_vlan: flows.vlan,
            octets: Octets::Ip,
            ..FlowConfig::default()
        },
        hook,
        direction,
        consume: input.consume,
        tc_attach: match input.tc_attach {
            TcAttachName::Best => TcAttach::Best,
            TcAttachName::Clsact => TcAttach::Clsact,
        },
        ..default
    }
}

/// Returns the first given flag that has no effect with the table in the kernel.
fn unheeded(input: &InputArgs) -> Option<&'static str> {
    let given = [
        ("--filter", input.filter.is_some()),
        ("--follow", input.follow),
        ("--control", input.control.is_some()),
        ("--socket", input.socket.is_some()),
        ("--engine", input.engine != EngineName::AUTO),
        ("--queues", input.queues != Queues::All),
        ("--copiers", input.copiers != 1),
        ("--xdp-mode", input.xdp_mode != XdpModeName::Best),
        ("--timestamp", input.timestamp != TimestampName::Hook),
        ("--snaplen", input.snaplen != CAPLEN_MAX),
        ("--ring-size", input.ring_size.is_some()),
        ("--cpus", input.cpus.is_some()),
        ("--hugepages", input.hugepages),
        ("--frames", input.frames.is_some()),
        ("--merge-slack", input.merge_slack != InputArgs::MERGE_SLACK),
        ("--speed", input.speed != Speed::Top),
        ("--no-wait", input.no_wait),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
}
