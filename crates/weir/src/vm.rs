//! `weir vm`: manages the virtual machines of this host that read feeds.

mod check;
mod domain;
mod facts;
mod list;
mod prepare;
mod virsh;

use std::path::Path;

use anyhow::{Result, bail};
use weir_client::protocol::GuestState;
use weir_client::{Connection, socket_path};

use crate::cli::{AttachGuestArgs, DetachGuestArgs, VmArgs, VmCommand};
use crate::{EXIT_RAN, daemon};

/// Runs the command.
pub fn run(args: &VmArgs) -> Result<u8> {
    match &args.command {
        VmCommand::List(args) => list::run(args),
        VmCommand::Detach(args) => detach(args),
        VmCommand::Attach(args) => attach(args),
        VmCommand::Prepare(args) => prepare::run(args),
        VmCommand::Check(args) => check::run(args),
    }
}

/// Connects to a daemon that can have guests.
fn host_daemon(socket: Option<&Path>) -> Result<Connection> {
    let path = socket_path(socket);
    let connection = daemon::connect(&path)?;
    if is_broker(connection.server()) {
        bail!(
            "at {} listens `weir guest`, which has no guests of its own: this is a virtual machine; ask on its host",
            path.display()
        );
    }
    Ok(connection)
}

/// Returns whether a daemon with this name is a guest's broker.
fn is_broker(server: &str) -> bool {
    server.starts_with("weir guest ")
}

fn detach(args: &DetachGuestArgs) -> Result<u8> {
    host_daemon(args.socket.as_deref())?.detach_guest(&args.name, Some(args.within))?;
    eprintln!(
        "{name}: its feeds are closed and nothing is plugged in; let it open feeds again with `weir vm attach {name}`",
        name = args.name
    );
    Ok(EXIT_RAN)
}

fn attach(args: &AttachGuestArgs) -> Result<u8> {
    let daemon = host_daemon(args.socket.as_deref())?;
    let guests = daemon.guests()?;
    let state = guests.iter().find(|guest| guest.name == args.name).map(|guest| guest.state);
    daemon.attach_guest(&args.name)?;
    match state {
        // `Leaving` after a detach, or after the guest closed its last feed.
        None | Some(GuestState::Detached | GuestState::Leaving) => {
            eprintln!("{}: it may open feeds", args.name);
        }
        Some(state) => eprintln!(
            "{}: it was not detached (`weir vm list`: {}), and may open feeds as before",
            args.name,
            list::state(state)
        ),
    }
    Ok(EXIT_RAN)
}
