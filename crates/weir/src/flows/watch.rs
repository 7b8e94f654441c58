//! Messages of a running command to its viewers.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use weir_monitor::{Reporter, SourceReporter, Sources};

/// The viewers: the live table in the terminal, and the web page. Clones share them.
#[derive(Clone)]
pub struct Watch {
    sources: SourceReporter,
    reporter: Arc<Mutex<Option<Reporter>>>,
    /// The live table uses the terminal, so nothing else may be written to it.
    has_screen: bool,
}

impl Watch {
    pub fn new(sources: SourceReporter, reporter: Reporter, has_screen: bool) -> Watch {
        Watch { sources, reporter: Arc::new(Mutex::new(Some(reporter))), has_screen }
    }

    /// Takes the reporter of flows, which only one consumer can have.
    pub fn take_reporter(&self) -> Option<Reporter> {
        self.reporter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns whether the live table uses the terminal.
    pub fn has_screen(&self) -> bool {
        self.has_screen
    }

    /// Reports the state of the sources to the viewers.
    pub fn tell(&self, sources: Sources) {
        self.sources.tell(sources);
    }

    /// Ends the displays. The terminal is restored soon after, however long the end of the run takes.
    pub fn end(&self) {
        self.sources.end();
    }

    /// Shows a message to the user: in the viewers, and also on standard error unless the live table uses the terminal.
    pub fn say(&self, line: &str) {
        if !self.has_screen {
            eprintln!("weir: {line}");
        }
        self.sources.say(line.to_owned());
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("has_screen", &self.has_screen).finish_non_exhaustive()
    }
}

/// Shows a message to the user: in the viewers if there are any, else on standard error.
pub fn say(watch: Option<&Watch>, line: &str) {
    match watch {
        Some(watch) => watch.say(line),
        None => eprintln!("weir: {line}"),
    }
}
