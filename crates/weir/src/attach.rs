//! `weir attach`: a capture whose consumer is a network interface.

use anyhow::{Result, bail};

use crate::capture;
use crate::cli::{AttachArgs, CaptureArgs};
use crate::source_name::SourceName;

/// Runs the command.
pub fn run(args: &AttachArgs) -> Result<u8> {
    check_no_circle(args)?;
    capture::run(&CaptureArgs::into_netdev(&args.input, &args.netdev))
}

/// Refuses a source that is or includes the interface that is fed: each frame would be captured and fed again,
/// endlessly.
fn check_no_circle(args: &AttachArgs) -> Result<()> {
    let name = args.netdev.name.as_str();
    for source in &args.input.sources {
        let is_circle = match source {
            SourceName::Interface { iface, .. } => iface == name,
            SourceName::Pattern { pattern, .. } => pattern.matches(name),
            _ => false,
        };
        if is_circle && source.netns() == args.netdev.into.as_ref() {
            bail!(
                "{source} takes the frames of {name}, too, so each would be fed into it again for ever; name the \
                 interfaces to capture, or choose a --netdev that is none of them"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn checked(line: &str) -> Result<()> {
        let words = ["weir", "attach"].into_iter().chain(line.split(' '));
        let Command::Attach(args) = Cli::of(words).expect(line).command else {
            unreachable!("the words say attach")
        };
        check_no_circle(&args)
    }

    #[test]
    fn an_interface_is_not_fed_with_its_own_frames() {
        for circle in [
            "weir0 --netdev weir0",
            "any --netdev weir0",
            "weir* --netdev weir0",
            "netns:blue/any --netdev weir0 --into netns:blue",
        ] {
            let error = checked(circle).expect_err(circle).to_string();
            assert!(error.contains("weir0"), "{circle}: {error}");
        }
        for fine in [
            "eth0 --netdev weir0",
            "eth* --netdev weir0",
            "any --netdev weir0 --into netns:blue",
            "netns:blue/any --netdev weir0",
            "host:eth0 --netdev weir0",
        ] {
            checked(fine).expect(fine);
        }
    }
}
