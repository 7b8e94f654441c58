//! The endpoint for Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use tiny_http::{Header, Request, Response, Server};
use weir_plug::Serving;
use weir_serve::{Daemon, metrics};

/// The endpoint. Dropping it closes it.
pub struct Metrics {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Serves the daemon's metrics at this address. Whoever can connect there sees the names of all sources and the
    /// user ids of all clients.
    pub fn serve(
        address: SocketAddr,
        daemon: &Arc<Daemon>,
        serving: &Arc<Serving>,
    ) -> Result<Metrics> {
        let listening = || format!("--metrics {address}");
        let server =
            Server::http(address).map_err(|error| anyhow!(error)).with_context(listening)?;
        let server = Arc::new(server);
        let (own, daemon, serving) = (Arc::clone(&server), Arc::clone(daemon), Arc::clone(serving));
        let thread = thread::Builder::new()
            .name("weir-metrics".into())
            .spawn(move || {
                for request in own.incoming_requests() {
                    // Whoever has gone needs no answer.
                    let _ = answer(request, &daemon, &serving);
                }
            })
            .context("starting a thread")?;
        Ok(Metrics { server, thread: Some(thread) })
    }
}

fn answer(request: Request, daemon: &Daemon, serving: &Serving) -> std::io::Result<()> {
    if request.url() != "/metrics" {
        return request.respond(Response::from_string("see /metrics\n").with_status_code(404));
    }
    let status = daemon.status(&daemon.config().sources, |_| true);
    let text = metrics::text(&status, serving.connections() as u64);
    let header = Header::from_bytes("Content-Type", metrics::TEXT_FORMAT).expect("plain text");
    request.respond(Response::from_string(text).with_header(header))
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
