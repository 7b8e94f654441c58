//! Sources opened with their engines.

use anyhow::{Result, bail};
use weir_capture::bpf::{BpfOptions, Hook};
use weir_capture::{Direction, Session, Setup, auto};
use weir_frame::pcapng::Interface;
use weir_ring::Ring;

use crate::cli::{CaptureArgs, DirectionName, EngineName, HookName};
use crate::source_name::SourceName;

/// Opens all sources of a run, in order; returns their interfaces by id.
pub fn open_all(session: &mut Session, args: &CaptureArgs) -> Result<Vec<Interface>> {
    let mut interfaces: Vec<Interface> = Vec::new();
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
            ring_bytes: args.ring_size,
            promiscuous: !args.no_promiscuous,
        };
        open_one(session, source, setup, args)?;
        // The engine knows the link type; its ring says it.
        let ring: &Ring<_> = &session.rings()[before];
        if let Some(own) = table.last_mut() {
            own.link_type = ring.identity()?.link_type;
        }
        interfaces = table;
    }
    Ok(interfaces)
}

fn open_one(
    session: &mut Session,
    source: &SourceName,
    setup: Setup,
    args: &CaptureArgs,
) -> Result<()> {
    match source {
        SourceName::Interface { netns, iface } => {
            let options = BpfOptions {
                hook: match (args.hook, args.consume) {
                    (Some(HookName::Xdp), _) | (None, true) => Hook::Xdp,
                    (Some(HookName::Tc) | None, _) => Hook::Tc,
                },
                consume: args.consume,
                record_queue: args.record_queue,
                ..BpfOptions::default()
            };
            let wish = match args.engine {
                EngineName::Auto => auto::Wish::Auto,
                EngineName::Bpf => auto::Wish::Bpf,
                EngineName::AfPacket => auto::Wish::AfPacket,
            };
            if wish == auto::Wish::AfPacket && (args.hook.is_some() || args.consume) {
                bail!("--hook and --consume are for the bpf engine; leave out --engine af_packet");
            }
            let asked = args.hook.is_some() || args.consume;
            let (iface, netns) = (iface.clone(), netns.clone());
            session.open(Box::new(move || {
                if let Some(netns) = &netns {
                    weir_capture::iface::enter_netns(netns)?;
                }
                auto::open(&iface, &setup, wish, options, asked)
            }))?;
        }
        SourceName::File(_) | SourceName::Gen(_) => bail!("not yet"),
    }
    Ok(())
}
