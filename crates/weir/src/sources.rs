//! Source names, and the engines they are opened with.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use weir_capture::bpf::{BpfOptions, Hook};
use weir_capture::{Direction, Session, Setup, auto};
use weir_frame::pcapng::Interface;
use weir_ring::Ring;

use crate::cli::{CaptureArgs, DirectionName, EngineName, HookName};

/// A source as it is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// An interface, in a network namespace by name or in this one.
    Interface {
        /// `ip netns` name.
        netns: Option<String>,
        /// Interface name.
        iface: String,
    },
    /// A capture file.
    File(PathBuf),
    /// Frames made in memory: the text behind `gen:`.
    Gen(String),
}

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceName, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(SourceName::File(path.into()));
        }
        if let Some(spec) = text.strip_prefix("gen:") {
            return Ok(SourceName::Gen(spec.to_owned()));
        }
        for later in ["vm:", "docker:", "host:"] {
            if text.starts_with(later) {
                return Err(format!("{later} sources are not in this release; name the interface"));
            }
        }
        let (netns, iface) = match text.strip_prefix("netns:") {
            None => (None, text),
            Some(rest) => match rest.split_once('/') {
                Some((netns, iface)) if !netns.is_empty() => (Some(netns.to_owned()), iface),
                _ => return Err(format!("'{text}': write netns:NAME/IFACE")),
            },
        };
        if iface.contains('@') {
            return Err("queues and shards (@q2, @2/4) are not in this release".into());
        }
        // IFNAMSIZ is 16 with the terminating zero; the kernel forbids slashes and white space.
        let valid = (1..16).contains(&iface.len())
            && !iface.contains(|c: char| c == '/' || c.is_whitespace());
        if !valid {
            return Err(format!(
                "'{iface}' cannot be an interface name (1 to 15 characters, no '/'); \
                 a capture file is file:PATH"
            ));
        }
        Ok(SourceName::Interface { netns, iface: iface.to_owned() })
    }
}

impl std::fmt::Display for SourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SourceName::Interface { netns: None, iface } => f.write_str(iface),
            SourceName::Interface { netns: Some(netns), iface } => {
                write!(f, "netns:{netns}/{iface}")
            }
            SourceName::File(path) => write!(f, "file:{}", path.display()),
            SourceName::Gen(spec) => write!(f, "gen:{spec}"),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        let iface = |netns: Option<&str>, iface: &str| SourceName::Interface {
            netns: netns.map(str::to_owned),
            iface: iface.to_owned(),
        };
        assert_eq!("eth0".parse(), Ok(iface(None, "eth0")));
        assert_eq!("netns:blue/eth0".parse(), Ok(iface(Some("blue"), "eth0")));
        assert_eq!("file:a/b.pcap".parse(), Ok(SourceName::File("a/b.pcap".into())));
        assert_eq!("gen:size=64".parse(), Ok(SourceName::Gen("size=64".into())));
    }

    #[test]
    fn wrong_names_say_the_way_out() {
        for bad in ["", "a/b.pcap", "netns:eth0", "netns:/eth0", "host:eth0", "eth0@q2"] {
            assert!(bad.parse::<SourceName>().is_err(), "{bad}");
        }
        assert!("trace/a.pcap".parse::<SourceName>().unwrap_err().contains("file:"));
    }
}
