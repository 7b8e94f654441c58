//! The daemon: a probe, the sources of its file, and what its clients have.

use std::sync::Arc;

use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::{CaptureError, Feed, Filter, Setup};
use weir_filter::Program;
use weir_filter_compile::Compiler;
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_plug::Credentials;
use weir_probe::{Probe, ProbeError, SourceSpec};

use crate::board::Board;
use crate::config::{Config, SourceConfig};
use crate::slots::Slots;
use crate::usage::Usage;

/// What a source of the file is to engines.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What is opened.
    pub target: Target,
    /// Which engine, and what is asked of it.
    pub request: EngineRequest,
}

impl Resolved {
    fn link_type(&self) -> Result<u16, CaptureError> {
        let engine = self.request.candidates(&self.target).next();
        engine.map_or(Ok(LINKTYPE_ETHERNET), |engine| (engine.link_type)(&self.target))
    }
}

/// What a source's text means.
pub type Resolver = dyn Fn(&str) -> Result<Resolved, String> + Send + Sync;

/// The daemon. Dropping it stops every source.
pub struct Daemon {
    pub(crate) probe: Probe,
    pub(crate) board: Arc<Board>,
    pub(crate) slots: Slots,
    pub(crate) usage: Usage,
    config: Config,
    resolve: Box<Resolver>,
}

impl Daemon {
    /// A daemon whose sources are all closed. `resolve` says what the text of a source means.
    ///
    /// # Errors
    /// A source whose text means nothing; no thread is left.
    pub fn new(
        config: Config,
        resolve: impl Fn(&str) -> Result<Resolved, String> + Send + Sync + 'static,
    ) -> Result<Daemon, String> {
        for (name, source) in &config.sources {
            let text = source.source.as_deref().unwrap_or(name);
            resolve(text).map_err(|what| format!("sources.{name}: {what}"))?;
        }
        let board = Arc::new(Board::default());
        let told = Arc::clone(&board);
        let probe = Probe::with_listener(move |event| told.note(event));
        let slots = Slots::new(config.sources.keys().cloned());
        let usage = Usage::new(config.limits.clone());
        let probe = probe.map_err(|error| error.to_string())?;
        Ok(Daemon { probe, board, slots, usage, config, resolve: Box::new(resolve) })
    }

    /// The sources that this client may open. Others do not exist for it.
    pub fn sources(&self, who: Credentials) -> impl Iterator<Item = (&str, &SourceConfig)> {
        let all = self.config.sources.iter();
        all.filter(move |(_, source)| source.allows(who))
            .map(|(name, source)| (name.as_str(), source))
    }

    /// How a source of this name is opened.
    pub(crate) fn spec(&self, name: &str, source: &SourceConfig) -> Result<SourceSpec, ProbeError> {
        let Resolved { target, request } = self.resolved(name, source)?;
        let (ring_bytes, promiscuous) = (source.ring_mib << 20, source.promiscuous);
        Ok(SourceSpec::new(name, move |feeds| {
            let setup =
                Setup { feeds, ring_bytes, promiscuous, may_change: true, ..Setup::default() };
            request.open(&target, &setup)
        }))
    }

    /// A feed of this source, which takes what passes the filter.
    pub(crate) fn feed(
        &self,
        name: &str,
        source: &SourceConfig,
        filter: &str,
    ) -> Result<Feed, ProbeError> {
        let filter = self.filter(name, source, filter)?;
        let interface = Interface {
            name: name.to_owned(),
            filter: filter.as_ref().map(|filter| filter.text.clone()),
            link_type: LINKTYPE_ETHERNET,
            snaplen: source.snaplen,
            ..Interface::default()
        };
        Ok(Feed { filter, interface, snaplen: source.snaplen, ..Feed::default() })
    }

    /// What this text means for frames of this source; the empty one takes all.
    pub(crate) fn filter(
        &self,
        name: &str,
        source: &SourceConfig,
        text: &str,
    ) -> Result<Option<Arc<Filter>>, ProbeError> {
        let wrong = |what: String| CaptureError::Options(format!("the filter: {what}"));
        if text.trim().is_empty() {
            return Ok(None);
        }
        let link_type = self.resolved(name, source)?.link_type()?;
        // No expression is made of numbers alone: it is what tcpdump -ddd prints.
        let is_bytecode =
            text.split([' ', '\t', '\n', ',']).all(|word| word.bytes().all(|b| b.is_ascii_digit()));
        let program = match is_bytecode {
            true => Program::parse(text).map_err(|error| wrong(error.to_string()))?,
            false => Compiler::default()
                .with_link_type(link_type)
                .compile(text)
                .map_err(|error| wrong(error.to_string()))?,
        };
        Ok(Some(Arc::new(Filter { text: text.to_owned(), link_type, program })))
    }

    fn resolved(&self, name: &str, source: &SourceConfig) -> Result<Resolved, ProbeError> {
        let text = source.source.as_deref().unwrap_or(name);
        (self.resolve)(text).map_err(|what| CaptureError::Options(what).into())
    }
}
