//! `weir vm`: virtual machines of this host that read feeds, as their operator sees them.

mod check;
mod domain;
mod facts;
mod list;
mod prepare;
mod virsh;

use std::path::Path;

use anyhow::{Context, Result};
use weir_client::{Connection, socket_path};

use crate::EXIT_RAN;
use crate::cli::{AttachGuestArgs, DetachGuestArgs, VmArgs, VmCommand};

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

/// A connection to the daemon.
fn daemon(socket: Option<&Path>) -> Result<Connection> {
    let path = socket_path(socket);
    Connection::open(&path).with_context(|| {
        format!(
            "no daemon answers at {}; start one with `weir serve`, or say where it listens: --socket PATH",
            path.display()
        )
    })
}

fn detach(args: &DetachGuestArgs) -> Result<u8> {
    daemon(args.socket.as_deref())?.detach_guest(&args.name, Some(args.within))?;
    eprintln!(
        "weir: {name}: its feeds are closed and nothing is plugged in; let it open feeds again with \
         `weir vm attach {name}`",
        name = args.name
    );
    Ok(EXIT_RAN)
}

fn attach(args: &AttachGuestArgs) -> Result<u8> {
    daemon(args.socket.as_deref())?.attach_guest(&args.name)?;
    eprintln!("weir: {}: it may open feeds", args.name);
    Ok(EXIT_RAN)
}
