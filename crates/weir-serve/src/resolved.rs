//! A source of the file in the form that engines need, and its filter.

use weir_capture::CaptureError;
use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::kernel::netns::OwnerFinder;
use weir_filter::Program;
use weir_filter::program::ParseError;
use weir_filter_compile::{CompileError, Compiler, is_bytecode};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::config::SourceConfig;

/// A source of the file, in the form that engines need.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The interface, file or generator that is opened.
    pub target: Target,
    /// The engine, and its options.
    pub request: EngineRequest,
    /// Finds the owners of the frames of interfaces of this host.
    pub owner_finder: Option<OwnerFinder>,
}

impl Resolved {
    pub(crate) fn link_type(&self) -> Result<u16, CaptureError> {
        if let Some(link) = &self.request.options.link {
            return Ok(link.link_type(self.target.text()));
        }
        let engine = self.request.candidates(&self.target).next();
        engine.map_or(Ok(LINKTYPE_ETHERNET), |engine| (engine.link_type)(&self.target))
    }

    pub(crate) fn may_fill_bpf_arrays(&self) -> bool {
        self.request.candidates(&self.target).any(|engine| engine.fills_bpf_arrays)
    }
}

/// Converts a source of the file to the form that engines need.
pub type Resolver = dyn Fn(&str, &SourceConfig) -> Result<Resolved, String> + Send + Sync;

/// Compiles the text of a filter for frames with this link type.
pub(crate) fn compiled(text: &str, link_type: u16) -> Result<Program, FilterError> {
    if is_bytecode(text) {
        return Ok(Program::parse(text)?);
    }
    Ok(Compiler::default().with_link_type(link_type).compile(text)?)
}

/// The reason why a filter cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    #[error(transparent)]
    Bytecode(#[from] ParseError),
    #[error(transparent)]
    Expression(#[from] CompileError),
}
