//! Messages of a run to viewers while it goes on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use weir_monitor::{Reporter, SourceReporter, Sources};

/// Those who look on: a table in the terminal, a page. Clones are the same.
#[derive(Clone)]
pub struct Watch {
    sources: SourceReporter,
    reporter: Arc<Mutex<Option<Reporter>>>,
    /// The terminal is theirs: nothing else may be written there.
    has_screen: bool,
}

impl Watch {
    pub fn new(sources: SourceReporter, reporter: Reporter, has_screen: bool) -> Watch {
        Watch { sources, reporter: Arc::new(Mutex::new(Some(reporter))), has_screen }
    }

    /// The reporter by which the monitor reports its flows; there is one monitor.
    pub fn take_reporter(&self) -> Option<Reporter> {
        self.reporter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether lines that are not for it would spoil a screen.
    pub fn has_screen(&self) -> bool {
        self.has_screen
    }

    /// How the sources are.
    pub fn tell(&self, sources: Sources) {
        self.sources.tell(sources);
    }

    /// Nothing more is to be seen: the terminal is as it was a moment later, however long the run takes to end.
    pub fn end(&self) {
        self.sources.end();
    }

    /// Says a line that a person should see.
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

/// Says a line that a person should see, where they are.
pub fn say(watch: Option<&Watch>, line: &str) {
    match watch {
        Some(watch) => watch.say(line),
        None => eprintln!("weir: {line}"),
    }
}
