//! Sources opened with their engines.

use anyhow::{Context, Result, bail};
use weir_capture::af_xdp::{AfXdpOptions, Mode, Queues, Stamps};
use weir_capture::bpf::{BpfOptions, Hook, TcAttach};
use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::interface::InterfaceQuery;
use weir_capture::pace::{Pace, Place};
use weir_capture::replay::{Replay, ReplayOptions};
use weir_capture::{CaptureError, Feed, Kind, Opener, Session, Setup, Source, auto};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_ring::Ring;

use crate::cli::{CaptureArgs, EngineName, HookName, TcAttachName, TimestampName, XdpModeName};
use crate::feeds::{self, Asked, Feeds};
use crate::source_name::{Part, SourceName};
use crate::{applies, mistaken, ports};

/// Bytes of a source's rings: what was asked for, or a default that every CPU has its least share of.
pub fn ring_bytes(args: &CaptureArgs) -> u64 {
    const DEFAULT: u64 = 64 << 20;
    args.ring_size.unwrap_or_else(|| DEFAULT.max(weir_capture::bpf::least_ring_bytes()))
}

/// Refuses what is no interface and looks like something else.
pub fn check_names(args: &CaptureArgs) -> Result<()> {
    let sources = &args.sources;
    for (at, source) in sources.iter().enumerate() {
        let SourceName::Interface { netns: None, iface, .. } = source else { continue };
        if !matches!(InterfaceQuery::new()?.find(iface), Err(CaptureError::NoInterface { .. })) {
            continue;
        }
        if iface == "any" {
            bail!("there is no 'any'; list several sources: weir capture eth0 eth1 lo");
        }
        if let Some(hint) = mistaken::file_hint(iface) {
            bail!("{iface}: no such interface here, but {hint}");
        }
        // An address is one of the words behind the first.
        if mistaken::is_filter_word(iface) || mistaken::is_address(iface) {
            let words = sources.iter().map(SourceName::to_string).collect::<Vec<_>>();
            let (before, filter) = (words[..at].join(" "), words[at..].join(" "));
            let before = if at == 0 { "IFACE" } else { &before };
            // Of a filter without quotes the first word came behind the flag.
            let filter = match &args.filter {
                Some(first) => format!("{first} {filter}"),
                None => filter,
            };
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
    /// The interfaces of their feeds by id: those of the first source first.
    pub interfaces: Vec<Interface>,
    /// The feeds that were asked for, source by source, and the id of what each one reads.
    pub feeds: Vec<Subscribed>,
    /// For each ring, the number of its feed among those that have rings: the id of its interface in outputs.
    pub feed_of: Vec<usize>,
    /// The consumer's places in rings whose source waits for it: ring number and place.
    pub places: Vec<(usize, Place)>,
}

/// A feed of one source.
#[derive(Clone, Debug)]
pub struct Subscribed {
    /// Number of the source.
    pub source: usize,
    /// Number of the feed whose rings it reads, among those of the source.
    pub feed: usize,
    /// The id of that one's interface in outputs of several sources: its number among the feeds of the run.
    pub interface_id: u32,
    /// Its name; empty for the only one.
    pub name: String,
    /// Which part of the source.
    pub part: Part,
    /// What it takes; the filter is the one in force when this was said.
    pub takes: Feed,
    /// How often its filter was changed by then.
    pub changes: u64,
    /// The name of the feed that it shares its rings with.
    pub shares: Option<String>,
}

/// Opens all sources of a run, in order.
pub fn open_all(session: &mut Session, args: &CaptureArgs) -> Result<Opened> {
    let mut opened = Opened {
        interfaces: Vec::new(),
        feeds: Vec::new(),
        feed_of: Vec::new(),
        places: Vec::new(),
    };
    let mut feeds = Feeds::new(args);
    for (number, (source, parts)) in by_source(args).iter().enumerate() {
        let link_type = if feeds.are_filtered() { link_type(source)? } else { LINKTYPE_ETHERNET };
        let (queues, parts) = queues_of(args, source, parts)?;
        let mut asked = Vec::new();
        for part in parts {
            asked.extend(feeds.of(link_type)?.into_iter().map(|feed| feed.of_part(part)));
        }
        feeds::share(&mut asked);
        let before = session.rings().len();
        let own = subscribe(&mut opened, number, source, &asked);
        let setup = Setup {
            feeds: own,
            ring_bytes: ring_bytes(args),
            promiscuous: !args.no_promiscuous,
            may_change: args.control.is_some(),
        };
        let count = setup.feeds.len();
        let places = open_one(session, source, setup, args, queues)?;
        opened
            .places
            .extend(places.into_iter().enumerate().map(|(at, place)| (before + at, place)));
        // The engine knows the link type; its rings say it.
        let ring: &Ring<_> = &session.rings()[before];
        let link_type = ring.identity()?.link_type;
        let all = opened.interfaces.len();
        let each = (session.rings().len() - before) / count;
        opened.feed_of.extend((all - count..all).flat_map(|feed| std::iter::repeat_n(feed, each)));
        opened.interfaces[all - count..].iter_mut().for_each(|own| own.link_type = link_type);
    }
    Ok(opened)
}

/// Each source once, with the parts of it that were named.
fn by_source(args: &CaptureArgs) -> Vec<(SourceName, Vec<Part>)> {
    let mut all: Vec<(SourceName, Vec<Part>)> = Vec::new();
    for source in &args.sources {
        let (whole, part) = source.taken_apart();
        match all.iter_mut().find(|(other, _)| *other == whole) {
            // Files and generators are read twice if they are named twice.
            Some((SourceName::Interface { .. }, parts)) => parts.push(part),
            _ => all.push((whole, vec![part])),
        }
    }
    all
}

/// Which queues an engine that has sockets or pollers for them is to take, and which parts are left to choose.
fn queues_of(
    args: &CaptureArgs,
    source: &SourceName,
    parts: &[Part],
) -> Result<(Queues, Vec<Part>)> {
    let names_queues = parts.iter().any(|part| matches!(part, Part::Queue(_)));
    if args.engine != EngineName::AfXdp || !names_queues {
        return Ok((args.queues, parts.to_vec()));
    }
    match (parts, args.queues) {
        (&[Part::Queue(queue)], Queues::All) => {
            Ok((Queues::Range(queue, queue), vec![Part::Whole]))
        }
        _ => bail!(
            "{source}: --engine af_xdp takes one range of queues: name it once, as {source}@q2 or with --queues"
        ),
    }
}

/// Gives each feed of the source that differs from the others an interface; gives these feeds.
fn subscribe(
    opened: &mut Opened,
    number: usize,
    source: &SourceName,
    asked: &[Asked],
) -> Vec<Feed> {
    // tcpdump refuses files whose interfaces differ in this.
    let snaplen = asked.iter().map(|asked| asked.feed.snaplen).max().unwrap_or_default();
    let first = opened.feeds.len();
    let mut own: Vec<Feed> = Vec::new();
    for one in asked {
        let mut feed = one.feed.clone();
        let at = match one.shares {
            Some(other) => opened.feeds[first + other].feed,
            None => {
                feed.interface = Interface {
                    name: format!("{source}{}", one.part),
                    description: (!one.name.is_empty()).then(|| format!("feed {}", one.name)),
                    filter: feed.filter.as_ref().map(|filter| filter.text.clone()),
                    link_type: LINKTYPE_ETHERNET,
                    snaplen,
                };
                opened.interfaces.push(feed.interface.clone());
                own.push(feed.clone());
                own.len() - 1
            }
        };
        opened.feeds.push(Subscribed {
            source: number,
            feed: at,
            interface_id: (opened.interfaces.len() - own.len() + at) as u32,
            name: one.name.clone(),
            part: one.part,
            takes: feed,
            changes: 0,
            shares: one.shares.map(|other| asked[other].name.clone()),
        });
    }
    own
}

/// The link type of the source's frames, which filters are compiled for.
fn link_type(source: &SourceName) -> Result<u16> {
    Ok(match source {
        SourceName::Interface { netns, iface, .. } => {
            weir_capture::interface::link_type(netns.as_deref(), iface)?
        }
        SourceName::File(path) => weir_capture::replay::link_type(path)?,
        SourceName::Gen(_) | SourceName::Dpdk(_) => LINKTYPE_ETHERNET,
    })
}

/// What a source is, as far as its memory goes.
pub fn kind(args: &CaptureArgs, source: &SourceName) -> Kind {
    match (source, wish(args, args.queues)) {
        (SourceName::File(_) | SourceName::Gen(_), _) => Kind::Offline,
        (SourceName::Interface { .. }, auto::Wish::Auto) => Kind::Live,
        (SourceName::Interface { .. }, auto::Wish::Bpf) => Kind::Bpf,
        (SourceName::Interface { netns, iface, .. }, auto::Wish::AfXdp(options)) => {
            weir_capture::af_xdp::kind(netns.as_deref(), iface, &options)
        }
        (SourceName::Interface { .. }, auto::Wish::AfPacket | auto::Wish::Pcap) => Kind::Buffered,
        (SourceName::Dpdk(device), _) => ports::kind(device, args),
    }
}

fn wish(args: &CaptureArgs, queues: Queues) -> auto::Wish {
    match args.engine {
        // `dpdk` comes with sources of its own, which do not ask here.
        EngineName::Auto | EngineName::Dpdk => auto::Wish::Auto,
        EngineName::Bpf => auto::Wish::Bpf,
        EngineName::AfPacket => auto::Wish::AfPacket,
        EngineName::Pcap => auto::Wish::Pcap,
        EngineName::AfXdp => auto::Wish::AfXdp(AfXdpOptions {
            queues,
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

/// Refuses CPUs that this process may not run on: fewer than were asked for would be a surprise.
pub fn check_cpus(args: &CaptureArgs) -> Result<()> {
    let Some(cpus) = &args.cpus else { return Ok(()) };
    let missing = cpus.not_allowed().context("--cpus: which CPUs there are")?;
    if let Some(cpu) = missing.first() {
        bail!(
            "--cpus {cpus}: there is no CPU {cpu} that this process may run on; /proc/self/status lists those that it \
             may (Cpus_allowed_list)"
        );
    }
    Ok(())
}

/// Has a source's thread, and those that it starts, run where it was asked for.
fn on_cpus(args: &CaptureArgs, open: Opener) -> Opener {
    let Some(cpus) = args.cpus.clone() else { return open };
    Box::new(move || {
        let doing = || format!("--cpus {cpus}");
        cpus.apply().map_err(|source| CaptureError::Os { doing: doing(), source })?;
        open()
    })
}

fn open_one(
    session: &mut Session,
    source: &SourceName,
    setup: Setup,
    args: &CaptureArgs,
    queues: Queues,
) -> Result<Vec<Place>> {
    match source {
        SourceName::Interface { netns, iface, .. } => {
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
            let wish = wish(args, queues);
            let asked = applies::only_bpf_will_do(args);
            let (iface, netns) = (iface.clone(), netns.clone());
            session.open(on_cpus(
                args,
                Box::new(move || {
                    let open = || auto::open(&iface, &setup, wish, options, asked);
                    match &netns {
                        Some(netns) => weir_capture::netns::open(netns, open),
                        None => open(),
                    }
                }),
            ))?;
        }
        SourceName::File(path) => {
            let waited_for = if args.no_wait { 0 } else { setup.feeds.len() };
            let wait_for = std::iter::repeat_with(Pace::new).take(waited_for).collect::<Vec<_>>();
            let places = wait_for.iter().map(|pace| pace.join(0)).collect();
            let speed = args.speed;
            let options = ReplayOptions { speed, wait_for, ..ReplayOptions::default() };
            let path = path.clone();
            session.open(on_cpus(
                args,
                Box::new(move || {
                    Ok(Box::new(Replay::open(&path, setup, options)?) as Box<dyn Source>)
                }),
            ))?;
            return Ok(places);
        }
        SourceName::Dpdk(device) => {
            session.open(on_cpus(args, ports::opener(device, setup, args)?)).map(drop)?
        }
        SourceName::Gen(spec) => {
            let spec: GenSpec = spec.parse()?;
            session.open(on_cpus(
                args,
                Box::new(move || {
                    Ok(Box::new(MemGen::open(spec, setup, Vec::new())?) as Box<dyn Source>)
                }),
            ))?;
        }
    }
    Ok(Vec::new())
}
