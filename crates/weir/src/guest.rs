//! `weir guest`: offers the sources of the host's daemon to programs in this virtual machine, at the usual socket of a
//! daemon.
//!
//! The command is a daemon whose sources are those of the host. Rings are not copied: clients map them from a PCI
//! device that the host plugs in.

mod link;
mod region;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::by_name;
use weir_capture::engines::declaration::Target;
use weir_capture::engines::options::EngineOptions;
use weir_client::{ClientError, protocol};
use weir_plug::{Server, ServerLimits, socket};
use weir_serve::config::SourceConfig;
use weir_serve::{Capture, Config, Daemon, Resolved, private, rights};

use link::Link;
use weir_capture::engines::host::HostLink;

use crate::cli::GuestArgs;
use crate::serve::systemd::Manager;
use crate::serve::{SOCKET_MODE, make_folder, with_way_out};
use crate::{EXIT_RAN, capture, signals};

/// Interval of retries while the host does not answer, of requests over a channel that does not report the end of the
/// host's daemon, and of checks whether readers still use the host's memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of retries while the next session waits only for readers in this machine.
const READERS_LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the command.
pub fn run(args: &GuestArgs) -> Result<u8> {
    let (stop, _reload) = signals::daemon_flags()?;
    capture::raise_descriptor_limit();
    let folder = socket::folder_of(&args.socket);
    make_folder(folder).map_err(denied)?;
    private::check(folder)?;
    let link = Arc::new(match args.vsock {
        Some(port) => Link::by_vsock(port),
        None => Link::open(args.port.as_deref()).map_err(denied)?,
    });
    let manager = Manager::new();
    // The sources are requested before clients can connect: a client of an earlier broker must find its source.
    let first = link.sources().unwrap_or_default();
    let mut offered = None;
    let mut was_there = true;
    let daemon = {
        let (link, log) = (Arc::clone(&link), |line: &str| eprintln!("weir: {line}"));
        let resolve = move |_: &str, source: &SourceConfig| resolve(&link, source);
        Arc::new(Daemon::new(config(args, &first)?, resolve, log).map_err(|what| anyhow!(what))?)
    };
    let bound = socket::bind(&args.socket, SOCKET_MODE)
        .with_context(|| format!("--socket {}", args.socket.display()));
    let (listener, _file) = bound.map_err(denied)?;
    let name = concat!("weir guest ", env!("CARGO_PKG_VERSION"));
    let server = Server::new(name, ServerLimits::default());
    let server = server.with(Arc::new(Capture::new(Arc::clone(&daemon))));
    let serving = server.managed_by(rights::manages_as).serve(listener)?;
    // The service is ready even if the host does not answer yet, because clients can connect.
    manager.ready("the host's daemon is looked for");
    let mut look_at = Some(Instant::now());
    while !signals::is_set(&stop) {
        let is_due = link.take_notification() || look_at.is_some_and(|at| at <= Instant::now());
        match is_due.then(|| link.sources()) {
            None => {}
            Some(Ok(sources)) => {
                look_at = (!link.tells_of_end()).then(|| Instant::now() + LOOK_EVERY);
                let is_back = !std::mem::replace(&mut was_there, true);
                if is_back || offered.as_ref() != Some(&sources) {
                    let config = config(args, &sources)?;
                    daemon.reload(config).map_err(|what| anyhow!(what))?;
                    let names: Vec<&str> = sources.keys().map(String::as_str).collect();
                    let names =
                        if names.is_empty() { "no source".into() } else { names.join(", ") };
                    let served =
                        format!("serving {names} of the host at {}", args.socket.display());
                    eprintln!("weir: {served}");
                    manager.ready(&served);
                    offered = Some(sources);
                }
            }
            Some(Err(error)) => {
                let pause = if link.waits_for_readers() { READERS_LOOK_EVERY } else { LOOK_EVERY };
                look_at = Some(Instant::now() + pause);
                if std::mem::replace(&mut was_there, false) {
                    let said = no_host(&link.path(), &error);
                    eprintln!("weir: {said}");
                    manager.ready(&said);
                }
            }
        }
        let unclaimed = daemon.close_unclaimed();
        let unread = link.let_go_of_unread().then(|| Instant::now() + LOOK_EVERY);
        if manager.alive_every().is_some() && daemon.is_alive() {
            manager.alive();
        }
        let due = [look_at, unclaimed, unread].into_iter().flatten();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        match manager.alive_every().into_iter().chain(left).min() {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
    }
    manager.stopping();
    // Clients are told, and their feeds are closed at the host, before the session ends.
    serving.end();
    drop(serving);
    Ok(EXIT_RAN)
}

fn denied(error: anyhow::Error) -> anyhow::Error {
    with_way_out(
        error,
        "this user may not; run it as root, or by its unit (`systemctl start weir-guest`); the port to the host is \
         root's, and the socket can be in a folder of yours: --socket PATH",
    )
}

fn no_host(port: &Path, error: &ClientError) -> String {
    format!(
        "{}: the host does not answer ({}); it is looked for. Does its daemon name this machine in [guests]?",
        port.display(),
        weir_client::error_text(error)
    )
}

/// Returns the configuration of a daemon with these sources.
fn config(args: &GuestArgs, sources: &BTreeMap<String, protocol::Source>) -> Result<Config> {
    let quoted = |names: &[String]| {
        let names = names.iter().map(|name| match name.parse::<u32>() {
            Ok(id) => id.to_string(),
            Err(_) => format!("{name:?}"),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let users: Vec<String> = ["0".to_owned()].into_iter().chain(args.users.clone()).collect();
    let mut text = String::new();
    for (name, source) in sources {
        text += &format!(
            "[sources.{name:?}]\nsource = {:?}\nsnaplen = {}\nusers = [{}]\ngroups = [{}]\n\
             everybody = {}\nring_mib = 4\n",
            format!("host:{name}"),
            source.snaplen,
            quoted(&users),
            quoted(&args.groups),
            args.everybody
        );
    }
    Config::parse(&text).map_err(|what| anyhow!("{what}"))
}

/// Converts a source of the host to a target of engines.
fn resolve(link: &Arc<Link>, source: &SourceConfig) -> Result<Resolved, String> {
    let named = source.source.as_deref().and_then(|source| source.strip_prefix("host:"));
    let options = EngineOptions { link: Some(Arc::clone(link) as _), ..EngineOptions::default() };
    let request = EngineRequest { engine: by_name("host"), options, flags: Vec::new() };
    let target = Target::Text(named.unwrap_or_default().to_owned());
    Ok(Resolved { target, request, owner_finder: None })
}
