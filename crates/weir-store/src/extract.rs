//! Extracts the wanted frames from recorded files, in order of time.
//!
//! | module | contents |
//! |---|---|
//! | [`query`] | the description of the wanted frames |
//! | [`stats`] | counts of data that was read, and of data that was skipped |
//! | `source` | a file: finds the pieces that have to be read |
//! | `open` | opens a file, and protects it against deletion |
//! | `walk`, `blocks` | reads the blocks of a file, whose bytes are not trusted |
//! | `reading` | reads pieces and selects frames, on several threads |
//! | `order` | puts the frames in order of time |
//! | `interfaces` | numbers the interfaces of all files |
//! | `names` | names of addresses in all files, each once |
//!
//! The index shows for most pieces that they have no wanted frame. The other pieces are read by several threads, in the
//! order of their first frames. A frame is written once no unread piece can have an earlier one. Frames with the same
//! time are in the order of the files, and in each file in the order of the file.

pub(crate) mod blocks;
mod interfaces;
mod names;
pub(crate) mod open;
mod order;
pub mod query;
mod reading;
pub(crate) mod source;
pub mod stats;
pub(crate) mod walk;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use weir_consumer::{ConsumerError, Sink};

use crate::catalog::Catalog;
use crate::names::Names;
use interfaces::Interfaces;
use names::FoundNames;
pub use query::{Compile, Flow, FlowTest, Query};
use source::{Context, Source, Wanted};
pub use stats::{Note, Pieces, Stats};

/// Options of [`extract`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that read pieces and select frames; at least one.
    pub threads: usize,
    /// The most frames that are extracted.
    pub frames_max: u64,
    /// Receives the names of addresses from the files with pieces to read, before the first frame is written.
    pub names: Names,
}

/// A piece that has to be read, and the file that it is in.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Number of the file.
    file: usize,
    wanted: Wanted,
}

/// Passes the wanted frames of these files to `sink`. It does not call [`Sink::finish`].
///
/// The result is an error only if the sink returned one. Once `stop` returns true, extraction ends early with `Ok`.
/// Files that cannot be read are in [`Stats::notes`].
pub fn extract(
    catalog: &Catalog,
    query: &Query,
    options: &Options,
    sink: &mut dyn Sink,
    stop: &(dyn Fn() -> bool + Sync),
) -> (Stats, Result<(), ConsumerError>) {
    let (interfaces, names) = (Interfaces::default(), FoundNames::default());
    let context = Context { query, interfaces: &interfaces, names: &names, stop };
    let (sources, mut stats) = plan(catalog, &context, options, stop);
    options.names.learn(names.in_order());
    let mut jobs: Vec<Job> = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        let Some((_, wanted)) = source else { continue };
        jobs.extend(wanted.iter().map(|wanted| Job { file, wanted: *wanted }));
    }
    jobs.sort_by_key(|job| (job.wanted.first_ns, job.file, job.wanted.at));
    let files: Vec<Option<&Source>> =
        sources.iter().map(|source| source.as_ref().map(|(source, _)| source)).collect();
    let result = order::run(&files, &jobs, &context, options, sink, stop, &mut stats);
    (stats, result)
}

/// A file with the pieces that have to be read; `None` if no piece has to be read.
type Planned = Option<(Source, Vec<Wanted>)>;

/// Plans all files, several at a time. The result has the order of the catalog.
fn plan(
    catalog: &Catalog,
    context: &Context<'_>,
    options: &Options,
    stop: &(dyn Fn() -> bool + Sync),
) -> (Vec<Planned>, Stats) {
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Vec::new(), Stats::default()));
    thread::scope(|scope| {
        for _ in 0..options.threads.max(1).min(catalog.files.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(listed) = catalog.files.get(at).filter(|_| !stop()) else { break };
                    let mut stats = Stats::default();
                    let source = Source::plan(at, listed, context, &mut stats);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.0.push((at, source));
                    found.1 += stats;
                }
            });
        }
    });
    let (mut sources, stats) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    sources.sort_by_key(|(at, _)| *at);
    (sources.into_iter().map(|(_, source)| source).collect(), stats)
}
