//! Refuses to consume frames of interfaces that carry this machine's own traffic: the machine would lose its network.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use weir_capture::CaptureError;
use weir_capture::engines::declaration::Target;
use weir_capture::interface::{InterfaceQuery, OwnTraffic, own_traffic};
use weir_capture::kernel::netns::ask_in;

use super::PlannedSource;
use crate::cli::CaptureArgs;

/// Refuses `--consume` on an interface that has an address or carries the default route, unless `--yes` is given.
pub(super) fn check(args: &CaptureArgs, sources: &[PlannedSource]) -> Result<()> {
    if args.input.yes && !args.input.consume {
        bail!(
            "--yes is for --consume, which takes frames away; this run does not, so leave it out"
        );
    }
    if !args.input.consume || args.input.yes {
        return Ok(());
    }
    for source in sources {
        use CaptureError::{NoInterface, NoNetns, NoOwner};
        if let Found::Unknown(NoInterface { .. } | NoNetns { .. } | NoOwner { .. }) =
            check_one(source)?
            && args.input.follow
        {
            let name = &source.name;
            bail!(
                "{name} is not there yet, so nobody knows whether this machine's own traffic will come in there, \
                 which --consume takes away; start when it is there, or add --yes"
            );
        }
    }
    Ok(())
}

/// The answer to the question whether this machine's own traffic depends on the interface of a source.
#[derive(Debug)]
pub enum Found {
    /// No: frames are taken from no interface, or from one that has no address and no default route.
    Harmless,
    /// Yes, with the reason.
    Needed(String),
    /// Unknown: the interface or its network namespace is missing or cannot be queried.
    Unknown(CaptureError),
}

/// Refuses a source that carries this machine's own traffic.
///
/// # Errors
/// This machine's own traffic depends on the source, or the kernel's answer cannot be read.
pub fn check_one(source: &PlannedSource) -> Result<Found> {
    let name = &source.name;
    match look(source).with_context(|| format!("{name}; --yes consumes it without asking"))? {
        Found::Needed(reason) => bail!(
            "{name} {reason}: --consume takes its frames away from the stack, which cuts this machine off; watch it \
             without --consume, or add --yes if that is what you want"
        ),
        found => Ok(found),
    }
}

/// Determines whether this machine's own traffic depends on a source.
///
/// # Errors
/// The addresses or routes cannot be read from the kernel.
pub fn look(source: &PlannedSource) -> Result<Found> {
    let PlannedSource { target, request, .. } = source;
    let iface = request.candidates(target).find_map(|engine| (engine.taken_from)(target));
    let Some(iface) = iface else { return Ok(Found::Harmless) };
    let netns = match target {
        Target::Interface { netns, .. } => netns.as_ref(),
        _ => None,
    };
    let query = || InterfaceQuery::new()?.find(iface).map(|found| own_traffic(found.index));
    let own = match ask_in(netns, query).and_then(|found| found) {
        Ok(own) => own,
        Err(error) => return Ok(Found::Unknown(error)),
    };
    let own = own.context("asking whether this machine's own traffic comes in there")?;
    let ssh = std::env::var("SSH_CONNECTION").ok();
    Ok(reason(&own, ssh.as_deref().and_then(ssh_address)).map_or(Found::Harmless, Found::Needed))
}

/// Returns the server address of an SSH connection, from the value of SSH_CONNECTION.
///
/// Source: ssh(1), SSH_CONNECTION: client address, client port, server address, server port.
fn ssh_address(connection: &str) -> Option<IpAddr> {
    let address = connection.split_whitespace().nth(2)?;
    // A link-local address is followed by `%` and its interface.
    address.split('%').next()?.parse().ok()
}

/// Returns the reasons why this machine depends on the interface, the default route first; `None` if it does not.
fn reason(own: &OwnTraffic, ssh: Option<IpAddr>) -> Option<String> {
    let by_ssh = own.addresses.iter().find(|(_, address)| Some(*address) == ssh);
    let address = by_ssh.or(own.addresses.first()).map(|(name, address)| {
        let more = own.addresses.len() - 1;
        let ssh = if by_ssh.is_some() { ", which your SSH connection comes in by" } else { "" };
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("has address {address} ({name}){ssh}{more}")
    });
    let route =
        own.default_route.as_ref().map(|name| format!("carries the default route ({name})"));
    let reasons: Vec<String> = route.into_iter().chain(address).collect();
    (!reasons.is_empty()).then(|| reasons.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_the_connection_that_would_be_lost() {
        let [first, second] =
            ["10.0.0.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let addresses = vec![("eth0".to_owned(), first), ("br0".to_owned(), second)];
        let own = OwnTraffic { default_route: Some("br0".to_owned()), addresses };
        let text = reason(&own, ssh_address("192.0.2.9 50000 2001:db8::1 22")).unwrap();
        for part in ["default route (br0)", "2001:db8::1 (br0)", "SSH", "1 more"] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
        let text = reason(&own, ssh_address("192.0.2.9 50000 192.0.2.1 22")).unwrap();
        assert!(text.contains("10.0.0.1") && !text.contains("SSH"), "{text}");
        assert_eq!(reason(&OwnTraffic::default(), Some(first)), None);
    }

    #[test]
    fn what_sshd_says_is_read() {
        let v6 = "fe80::1%eth0".split('%').next().unwrap().parse().ok();
        assert_eq!(ssh_address("fe80::2%eth0 1 fe80::1%eth0 22"), v6);
        for bad in ["", "1.2.3.4 1", "a b c d"] {
            assert_eq!(ssh_address(bad), None, "{bad}");
        }
    }
}
