//! Plans the sources of a run, each once, with its engine.

use anyhow::{Result, bail};
use weir_capture::af_xdp::Queues;
use weir_capture::engines::auto::{EngineRequest, takes_one_range};
use weir_capture::engines::declaration::{Declaration, Target};
use weir_capture::engines::{of_files, of_generated};

use super::{PlannedSource, engine_options};
use crate::cli::CaptureArgs;
use crate::source_name::{Part, SourceName};

/// Returns the planned sources. `flags` are the given flags that only some engines support.
pub(super) fn of(args: &CaptureArgs, flags: &[&'static str]) -> Result<Vec<PlannedSource>> {
    by_source(&args.input.sources)
        .into_iter()
        .map(|(name, parts)| plan(args, flags, name, &parts))
        .collect()
}

fn plan(
    args: &CaptureArgs,
    flags: &[&'static str],
    name: SourceName,
    parts: &[Part],
) -> Result<PlannedSource> {
    let engine = engine(&name, args);
    let mut options = engine_options(args);
    options.waits = matches!(name, SourceName::File(_)) && !args.input.no_wait;
    let mut parts = parts.to_vec();
    if let SourceName::Interface { .. } = name {
        (options.queues, parts) = queues_of(engine, args.input.queues, &name, parts)?;
    }
    Ok(PlannedSource {
        target: target(&name),
        parts,
        request: EngineRequest { engine, options, flags: flags.to_vec() },
        name,
    })
}

/// Returns the engine of a source; `None` if `auto` chooses. `asked` is the engine that was requested for interfaces.
pub fn engine_of(
    name: &SourceName,
    asked: Option<&'static Declaration>,
) -> Option<&'static Declaration> {
    match name {
        SourceName::Interface { .. } | SourceName::Pattern { .. } => asked,
        SourceName::File(_) => Some(of_files()),
        SourceName::Gen(_) => Some(of_generated()),
        SourceName::Device { engine, .. } => Some(engine),
    }
}

/// Returns the engine of a source, with the engine for interfaces from the command line.
pub(super) fn engine(name: &SourceName, args: &CaptureArgs) -> Option<&'static Declaration> {
    engine_of(name, args.input.engine.0)
}

/// Returns the target for an engine.
pub fn target(name: &SourceName) -> Target {
    match name {
        SourceName::Interface { netns, iface, .. } => {
            Target::Interface { netns: netns.clone(), iface: iface.clone() }
        }
        SourceName::Pattern { netns, pattern, .. } => {
            Target::Pattern { netns: netns.clone(), pattern: pattern.clone() }
        }
        SourceName::File(path) => Target::File(path.clone()),
        SourceName::Gen(text) | SourceName::Device { device: text, .. } => {
            Target::Text(text.clone())
        }
    }
}

/// Returns each source once, with its named parts.
fn by_source(sources: &[SourceName]) -> Vec<(SourceName, Vec<Part>)> {
    let mut all: Vec<(SourceName, Vec<Part>)> = Vec::new();
    for source in sources {
        let (whole, part) = source.taken_apart();
        match all.iter_mut().find(|(other, _)| *other == whole) {
            // A file or generator that is named twice is read twice.
            Some((other, parts)) if other.is_of_interfaces() => parts.push(part),
            _ => all.push((whole, vec![part])),
        }
    }
    all
}

/// Returns the queues from which the engine captures, and the parts that feeds still have to select.
///
/// Some engines can capture from one range of queues only. A single named queue is then passed to the engine.
fn queues_of(
    engine: Option<&'static Declaration>,
    queues: Queues,
    source: &SourceName,
    parts: Vec<Part>,
) -> Result<(Queues, Vec<Part>)> {
    let names_queues = parts.iter().any(|part| matches!(part, Part::Queue(_)));
    let Some(engine) = engine.filter(|engine| names_queues && takes_one_range(Some(engine))) else {
        return Ok((queues, parts));
    };
    match (&parts[..], queues) {
        (&[Part::Queue(queue)], Queues::All) => {
            Ok((Queues::Range(queue, queue), vec![Part::Whole]))
        }
        _ => bail!(
            "{source}: --engine {} takes one range of queues: name it once, as {source}@q2 or with --queues",
            engine.name
        ),
    }
}
