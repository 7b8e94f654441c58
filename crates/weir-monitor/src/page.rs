//! A web page that shows the latest view, and metrics for Prometheus.
//!
//! | path | contents |
//! |---|---|
//! | `/` | the page; it loads scripts and data only from this server |
//! | `/view.json` | the latest view, in the format of [`json`] |
//! | `/history.json` | rates of the last five minutes |
//! | `/metrics` | metrics for Prometheus, from [`metrics`] |

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

use crate::latest::Latest;

mod history;
pub mod http;
pub mod json;
pub mod metrics;

use history::History;
use http::{Answer, Server, Site};

/// The server of the page. It has no access control: everyone who can connect to it sees the whole view. Dropping this
/// value stops the server.
pub struct Page {
    _server: Server,
    address: SocketAddr,
}

/// The reason why the page cannot be served.
#[derive(Debug, Error)]
#[error(
    "--http {address}: cannot listen there; is it an address of this machine, and its port free?"
)]
pub struct PageError {
    /// The address on which the server should listen.
    pub address: SocketAddr,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl Page {
    /// Serves the latest view at this address. For port 0 the kernel chooses a port: see [`Page::address`].
    ///
    /// # Errors
    /// [`PageError`].
    pub fn serve(address: SocketAddr, latest: Latest) -> Result<Page, PageError> {
        let failed = |source| PageError { address, source };
        let site = Shown { latest, history: History::default(), made: None };
        let server = Server::serve(address, "weir-page", site).map_err(failed)?;
        let address = server.address().map_err(failed)?;
        Ok(Page { _server: server, address })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const JSON: &str = "application/json";

/// The files of the page.
const FILES: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("page/assets/index.html")),
    ("/style.css", CSS, include_str!("page/assets/style.css")),
    ("/icon.svg", SVG, include_str!("page/assets/icon.svg")),
    ("/app.js", SCRIPT, include_str!("page/assets/app.js")),
    ("/units.js", SCRIPT, include_str!("page/assets/units.js")),
    ("/chart.js", SCRIPT, include_str!("page/assets/chart.js")),
    ("/picture.js", SCRIPT, include_str!("page/assets/picture.js")),
    ("/panels.js", SCRIPT, include_str!("page/assets/panels.js")),
    ("/flows.js", SCRIPT, include_str!("page/assets/flows.js")),
];

/// The contents that the server serves.
struct Shown {
    latest: Latest,
    history: History,
    made: Option<Made>,
}

/// The latest view as JSON, made once for all clients.
struct Made {
    number: u64,
    is_over: bool,
    body: Arc<[u8]>,
}

impl Shown {
    fn view(&mut self) -> Arc<[u8]> {
        let (view, is_over) = (self.latest.get(), self.latest.is_over());
        match &self.made {
            Some(made) if made.number == view.number && made.is_over == is_over => {
                Arc::clone(&made.body)
            }
            _ => {
                let body: Arc<[u8]> = json::text(&view, is_over).into_bytes().into();
                self.made = Some(Made { number: view.number, is_over, body: Arc::clone(&body) });
                body
            }
        }
    }
}

impl Site for Shown {
    fn answer(&mut self, path: &str) -> Option<Answer> {
        let made = |kind, text: String| Answer { kind, body: text.into_bytes().into() };
        Some(match path {
            "/view.json" => Answer { kind: JSON, body: self.view() },
            "/history.json" => made(JSON, self.history.text()),
            "/metrics" => made(metrics::TEXT_FORMAT, metrics::text(&self.latest.get())),
            _ => {
                let (_, kind, text) = FILES.iter().find(|(name, ..)| *name == path)?;
                Answer { kind, body: Arc::from(text.as_bytes()) }
            }
        })
    }

    fn tick(&mut self) {
        self.history.see(&self.latest.get());
    }
}
