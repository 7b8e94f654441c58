//! Sources opened with their engines.

use anyhow::{Result, bail};
use weir_capture::af_xdp::{AfXdpOptions, Mode, Stamps};
use weir_capture::bpf::{BpfOptions, Hook, TcAttach};
use weir_capture::iface::Asker;
use weir_capture::memgen::{GenSpec, MemGen};
use weir_capture::pace::{Pace, Place};
use weir_capture::replay::{Replay, ReplayOptions};
use weir_capture::{CaptureError, Direction, Kind, Session, Setup, Source, auto};
use weir_frame::pcapng::Interface;
use weir_ring::Ring;

use crate::cli::{
    CaptureArgs, DirectionName, EngineName, HookName, TcAttachName, TimestampName, XdpModeName,
};
use crate::source_name::SourceName;
use crate::{applies, mistaken, ports};

/// Bytes of a source's rings: what was asked for, or a default that every CPU has its least share of.
pub fn ring_bytes(args: &CaptureArgs) -> u64 {
    const DEFAULT: u64 = 64 << 20;
    args.ring_size.unwrap_or_else(|| DEFAULT.max(weir_capture::bpf::least_ring_bytes()))
}

/// Refuses what is no interface and looks like something else.
pub fn check_names(sources: &[SourceName]) -> Result<()> {
    for (at, source) in sources.iter().enumerate() {
        let SourceName::Interface { netns: None, iface } = source else { continue };
        if !matches!(Asker::new()?.find(iface), Err(CaptureError::NoInterface { .. })) {
            continue;
        }
        if iface == "any" {
            bail!("there is no 'any'; list several sources: weir capture eth0 eth1 lo");
        }
        if let Some(hint) = mistaken::file_hint(iface) {
            bail!("{iface}: no such interface here, but {hint}");
        }
        if mistaken::is_filter_word(iface) {
            let words = sources.iter().map(SourceName::to_string).collect::<Vec<_>>();
            let (before, filter) = (words[..at].join(" "), words[at..].join(" "));
            let before = if at == 0 { "IFACE" } else { &before };
            bail!(
                "{iface}: no such interface here; {}",
                mistaken::filter_hint_for(before, &filter)
            );
        }
    }
    Ok(())
}

/// The sources of a run, open.
pub struct Opened {
    /// Their interfaces by id.
    pub interfaces: Vec<Interface>,
    /// The consumer's places in rings whose source waits for it: ring number and place.
    pub places: Vec<(usize, Place)>,
}

/// Opens all sources of a run, in order.
pub fn open_all(session: &mut Session, args: &CaptureArgs) -> Result<Opened> {
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut places = Vec::new();
    for source in &args.sources {
        let before = session.rings().len();
        let mut table = interfaces.clone();
        table.push(Interface {
            name: source.to_string(),
            link_type: 1,
            snaplen: args.snaplen,
            ..Interface::default()
        });
        let setup = Setup {
            interfaces: table.clone(),
            snaplen: args.snaplen,
            direction: match args.direction {
                DirectionName::In => Direction::In,
                DirectionName::Out => Direction::Out,
                DirectionName::Both => Direction::Both,
            },
            ring_bytes: ring_bytes(args),
            promiscuous: !args.no_promiscuous,
        };
        if let Some(place) = open_one(session, source, setup, args)? {
            places.push((before, place));
        }
        // The engine knows the link type; its ring says it.
        let ring: &Ring<_> = &session.rings()[before];
        if let Some(own) = table.last_mut() {
            own.link_type = ring.identity()?.link_type;
        }
        interfaces = table;
    }
    Ok(Opened { interfaces, places })
}

/// What a source is, as far as its memory goes.
pub fn kind(args: &CaptureArgs, source: &SourceName) -> Kind {
    match (source, wish(args)) {
        (SourceName::File(_) | SourceName::Gen(_), _) => Kind::Offline,
        (SourceName::Interface { .. }, auto::Wish::Auto) => Kind::Live,
        (SourceName::Interface { .. }, auto::Wish::Bpf) => Kind::Bpf,
        (SourceName::Interface { netns, iface }, auto::Wish::AfXdp(options)) => {
            weir_capture::af_xdp::kind(netns.as_deref(), iface, &options)
        }
        (SourceName::Interface { .. }, auto::Wish::AfPacket | auto::Wish::Pcap) => Kind::Buffered,
        (SourceName::Dpdk(device), _) => ports::kind(device, args),
    }
}

fn wish(args: &CaptureArgs) -> auto::Wish {
    match args.engine {
        // `dpdk` comes with sources of its own, which do not ask here.
        EngineName::Auto | EngineName::Dpdk => auto::Wish::Auto,
        EngineName::Bpf => auto::Wish::Bpf,
        EngineName::AfPacket => auto::Wish::AfPacket,
        EngineName::Pcap => auto::Wish::Pcap,
        EngineName::AfXdp => auto::Wish::AfXdp(AfXdpOptions {
            queues: args.queues,
            copiers: args.copiers,
            mode: match args.xdp_mode {
                XdpModeName::Best => Mode::Best,
                XdpModeName::Copy => Mode::Copy,
                XdpModeName::ZeroCopy => Mode::ZeroCopy,
            },
            stamps: match args.timestamp {
                // What `applies` lets through: `nic` is not for this engine.
                TimestampName::Hook | TimestampName::Nic => Stamps::Hook,
                TimestampName::Copy => Stamps::Copier,
            },
            record_queue: args.record_queue,
        }),
    }
}

fn open_one(
    session: &mut Session,
    source: &SourceName,
    setup: Setup,
    args: &CaptureArgs,
) -> Result<Option<Place>> {
    match source {
        SourceName::Interface { netns, iface } => {
            let options = BpfOptions {
                hook: match (args.hook, args.consume) {
                    (Some(HookName::Xdp), _) | (None, true) => Hook::Xdp,
                    (Some(HookName::Tc) | None, _) => Hook::Tc,
                },
                consume: args.consume,
                record_queue: args.record_queue,
                tc_attach: match args.tc_attach {
                    TcAttachName::Best => TcAttach::Best,
                    TcAttachName::Clsact => TcAttach::Clsact,
                },
            };
            let wish = wish(args);
            let asked = applies::only_bpf_will_do(args);
            let (iface, netns) = (iface.clone(), netns.clone());
            session.open(Box::new(move || {
                let open = || auto::open(&iface, &setup, wish, options, asked);
                match &netns {
                    Some(netns) => weir_capture::netns::open(netns, open),
                    None => open(),
                }
            }))?;
        }
        SourceName::File(path) => {
            let pace = (!args.no_wait).then(Pace::new);
            let place = pace.as_ref().map(|pace| pace.join(0));
            let speed = args.speed;
            let options = ReplayOptions { speed, wait_for: pace, ..ReplayOptions::default() };
            let path = path.clone();
            session.open(Box::new(move || {
                Ok(Box::new(Replay::open(&path, setup, options)?) as Box<dyn Source>)
            }))?;
            return Ok(place);
        }
        SourceName::Dpdk(device) => session.open(ports::opener(device, setup, args)?).map(drop)?,
        SourceName::Gen(spec) => {
            let spec: GenSpec = spec.parse()?;
            session.open(Box::new(move || {
                Ok(Box::new(MemGen::open(spec, setup, None)?) as Box<dyn Source>)
            }))?;
        }
    }
    Ok(None)
}
