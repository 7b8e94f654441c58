//! `weir serve`: the daemon, which captures once and offers feeds to other processes.

mod consumed;
pub mod systemd;

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::by_name;
use weir_capture::engines::options::EngineOptions;
use weir_client::SOCKET;
use weir_container::interface::owner_finder;
use weir_plug::{Server, ServerLimits, Serving, socket};
use weir_serve::config::SourceConfig;
use weir_serve::{Capture, Config, Daemon, Resolved, metrics, private, rights};

use systemd::Manager;

use crate::cli::ServeArgs;
use crate::error_words::words;
use crate::metrics::Metrics;
use crate::plan::PlannedSource;
use crate::plan::sources::{engine_of, target};
use crate::source_name::{Part, SourceName};
use crate::units::counted;
use crate::{EXIT_RAN, capture, signals};

/// Permissions of the socket. Everybody who can reach it may connect. The daemon's file determines who may open which
/// source.
pub const SOCKET_MODE: u32 = 0o666;
/// Permissions of a directory that is created for the socket.
const FOLDER_MODE: u32 = 0o755;

/// Advice for a user without the permissions to run the daemon.
const WAY_OUT: &str = "this user may not; run it as root, or by its unit (`systemctl start weir`), or with a socket \
                       and a file in folders of your own: --socket PATH --config PATH";

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<u8> {
    let (stop, reload) = signals::daemon_flags()?;
    capture::raise_descriptor_limit();
    let manager = Manager::new();
    private::check(&args.config)?;
    // Everybody may use the socket, but no other user may be able to replace the socket.
    let folder = socket::folder_of(&args.socket);
    make_folder(folder).map_err(denied)?;
    private::check(folder)?;
    let config = Config::read(&args.config).map_err(|error| denied(error.into()))?;
    let wrong = |what: String| anyhow!("{}: {what}", args.config.display());
    let daemon =
        Arc::new(Daemon::new(config, resolve, |line| eprintln!("weir: {line}")).map_err(wrong)?);
    let listening = || format!("--socket {}", args.socket.display());
    let bound = socket::bind(&args.socket, SOCKET_MODE).with_context(listening);
    let (listener, _file) = bound.map_err(denied)?;
    let name = concat!("weir ", env!("CARGO_PKG_VERSION"));
    let server = Server::new(name, ServerLimits::default());
    let server = server.with(Arc::new(Capture::new(Arc::clone(&daemon))));
    let server = server.managed_by(rights::manages_as);
    let serving = Arc::new(server.serve(listener)?);
    daemon.serve_guests(&serving)?;
    let endpoint = match args.metrics {
        Some(address) => {
            let (daemon, serving) = (Arc::clone(&daemon), Arc::clone(&serving));
            Some(Metrics::serve(address, move || metrics_text(&daemon, &serving))?)
        }
        None => None,
    };
    let served = format!("serving {} at {}", sources_of(&daemon), args.socket.display());
    eprintln!("weir: {served}");
    manager.ready(&served);
    while !signals::is_set(&stop) {
        if take(&reload) {
            manager.reloading();
            read_again(args, &daemon);
            manager.ready(&format!("serving {}", sources_of(&daemon)));
        }
        let due = daemon.close_unclaimed();
        if manager.alive_every().is_some() && daemon.is_alive() {
            manager.alive();
        }
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        match manager.alive_every().into_iter().chain(left).min() {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
    }
    manager.stopping();
    // Clients are notified, and their feeds are closed, before the sources stop.
    drop(endpoint);
    serving.end();
    daemon.end_guests();
    drop(serving);
    Ok(EXIT_RAN)
}

/// Returns the text for Prometheus. It includes the names of all sources and the user ids of all clients.
fn metrics_text(daemon: &Daemon, serving: &Serving) -> String {
    let status = daemon.status(&daemon.config().sources, |_| true);
    let counters = serving.counters();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counts = metrics::Counts {
        connections: serving.connections() as u64,
        connected: count(&counters.connections),
        connections_refused: count(&counters.refused),
        malformed: count(&counters.malformed),
        delayed: count(&counters.delayed),
        feeds_refused: daemon.refusals(),
    };
    metrics::text(&status, &counts)
}

/// Creates the directory of the default socket if it is missing, because without a service manager nothing else
/// creates /run/weir.
///
/// # Errors
/// A directory other than that of the default socket is missing. It is not created: the path may be misspelt, and then
/// no client would find the daemon.
pub fn make_folder(folder: &Path) -> Result<()> {
    if Some(folder) != Path::new(SOCKET).parent() {
        let missing = folder.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let name = folder.display();
        return match missing {
            true => bail!(
                "--socket: there is no folder {name}; make it (`install -d -m 755 {name}`), or choose another path"
            ),
            false => Ok(()),
        };
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("--socket: making its folder {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Adds advice to an error if missing permissions have caused it.
pub fn with_way_out(error: anyhow::Error, way: &'static str) -> anyhow::Error {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    if !error.chain().any(is_denied) {
        return error;
    }
    error.context(way)
}

fn denied(error: anyhow::Error) -> anyhow::Error {
    with_way_out(error, WAY_OUT)
}

/// Reads the daemon's file again. If the file is invalid, nothing changes.
fn read_again(args: &ServeArgs, daemon: &Daemon) {
    let read = || -> Result<usize> {
        private::check(&args.config)?;
        let config = Config::read(&args.config)?;
        daemon.reload(config).map_err(|what| anyhow!("{}: {what}", args.config.display()))
    };
    match read() {
        Ok(closed) => eprintln!(
            "weir: {} is in force again: {}; closed {}",
            args.config.display(),
            sources_of(daemon),
            counted(closed as u64, "feed")
        ),
        Err(error) => eprintln!("weir: {}; what was in force stays in force", words(&error)),
    }
}

fn take(flag: &AtomicBool) -> bool {
    flag.swap(false, Ordering::AcqRel)
}

fn sources_of(daemon: &Daemon) -> String {
    let config = daemon.config();
    let names: Vec<&str> = config.sources.keys().map(String::as_str).collect();
    if names.is_empty() { "no source".to_owned() } else { names.join(", ") }
}

/// Converts a source of the daemon's file to a target of engines.
fn resolve(name: &str, source: &SourceConfig) -> Result<Resolved, String> {
    let text = source.text(name);
    let (whole, part) = text.parse::<SourceName>()?.taken_apart();
    if part != Part::Whole {
        return Err(format!(
            "'{text}': name the whole of it; clients choose parts: host:{name}{part}"
        ));
    }
    if whole.is_of_daemon() {
        return Err(format!(
            "'{text}' is a feed of a daemon; name what this daemon captures itself"
        ));
    }
    let asked = source.engine.as_deref().map(|engine| {
        by_name(engine).filter(|engine| engine.is_live()).ok_or_else(|| {
            format!(
                "there is no engine '{engine}' for interfaces; `weir capture --help` names them"
            )
        })
    });
    let engine = engine_of(&whole, asked.transpose()?);
    let options = EngineOptions { consume: source.consume, ..EngineOptions::default() };
    let flags = if source.consume { vec![consumed::FLAG] } else { Vec::new() };
    let request = EngineRequest { engine, options, flags };
    let target = target(&whole);
    let planned = PlannedSource { name: whole, parts: Vec::new(), target, request };
    match source.consume {
        true => consumed::check(&planned)?,
        false => consumed::check_not_meant(&planned)?,
    }
    let PlannedSource { target, request, .. } = planned;
    Ok(Resolved { target, request, owner_finder: Some(owner_finder()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_takes_frames_away_needs_consume_in_the_file() {
        let resolved = |engine: &str, consume| {
            let source =
                SourceConfig { engine: Some(engine.into()), consume, ..SourceConfig::default() };
            resolve("weir-none0", &source).map(drop)
        };
        let refused = resolved("af_xdp", false).unwrap_err();
        for part in ["engine = \"af_xdp\"", "consume = true"] {
            assert!(refused.contains(part), "'{part}' is not in: {refused}");
        }
        assert_eq!(resolved("af_xdp", true), Ok(()));
        assert_eq!(resolved("bpf", false), Ok(()));
        assert_eq!(resolved("bpf", true), Ok(()));
    }

    #[test]
    fn a_feed_of_a_daemon_is_no_source_of_one() {
        let source = SourceConfig { source: Some("host:lan".into()), ..SourceConfig::default() };
        let refused = resolve("again", &source).unwrap_err();
        assert!(refused.contains("'host:lan' is a feed of a daemon"), "{refused}");
    }
}
