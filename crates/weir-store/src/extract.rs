//! Frames out of recorded files: those that are wanted, in order of time.
//!
//! | module | what it does |
//! |---|---|
//! | [`query`] | which frames are wanted |
//! | [`stats`] | counts of data that was read, and of data that was skipped |
//! | `source` | one file: which pieces of it have to be read |
//! | `open` | a file is opened, and held |
//! | `walk`, `blocks` | blocks of a file, from bytes that anybody may have written |
//! | `reading` | pieces are read and chosen from, on several threads |
//! | `order` | their frames in order of time |
//! | `interfaces` | interfaces of all files, numbered anew |
//! | `names` | names of addresses in all files, each once |
//!
//! The index says of most pieces that nothing in them is wanted; the others are read by several threads, in the order
//! of their first frames. A frame goes out once no piece is left that could have an earlier one. Frames of the same
//! time are in the order of the files, and within a file in its order.

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

/// How it is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that read and choose; at least one.
    pub threads: usize,
    /// It ends after so many frames.
    pub frames_max: u64,
    /// Learns the names of addresses of the files that have pieces to read, before the first frame goes out.
    pub names: Names,
}

/// A piece that has to be read, and the file that it is in.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Number of the file.
    file: usize,
    wanted: Wanted,
}

/// Hands the wanted frames of these files to `sink`, which is not finished then, and says how it ended: with an error
/// of the sink's, or well; early, and well, once `stop` is true. Files that cannot be read are in [`Stats::notes`].
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

/// A file, and what of it has to be read; `None` if nothing has.
type Planned = Option<(Source, Vec<Wanted>)>;

/// Looks at all files, several at a time.
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
