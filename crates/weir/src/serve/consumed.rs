//! Checks for sources whose frames are taken away from the network stack: the file must have `consume = true`.

use weir_capture::engines::declaration::Declaration;
use weir_capture::engines::options::EngineOptions;

use crate::error_words::error_text;
use crate::plan::PlannedSource;
use crate::plan::own_traffic::{Found, look};

/// The flag of `weir capture` that corresponds to `consume = true`.
pub const FLAG: &str = "--consume";

/// Refuses an engine that takes frames away from the network stack, for a source without `consume = true`.
pub fn check_not_meant(source: &PlannedSource) -> Result<(), String> {
    let PlannedSource { name, request, .. } = source;
    let Some(engine) = request.engine.filter(|engine| always_takes(engine, source)) else {
        return Ok(());
    };
    let (what, out) = match name.is_of_interfaces() {
        true => (format!("engine = \"{}\"", engine.name), "engine"),
        false => (format!("source = \"{name}\""), "the source"),
    };
    Err(format!(
        "{what} takes frames away from the stack: add consume = true if that is meant, or leave {out} out"
    ))
}

/// Returns whether the engine takes the frames of this source away in any case: it refuses the source without
/// `consume`, and only then.
fn always_takes(engine: &Declaration, source: &PlannedSource) -> bool {
    let PlannedSource { target, request, .. } = source;
    let accepts = |consume| {
        let options = EngineOptions { consume, ..request.options.clone() };
        (engine.check)(target, &options).is_ok()
    };
    !accepts(false) && accepts(true)
}

/// Refuses a source that cannot be consumed, or that carries this machine's own traffic. Called when the file is read,
/// and each time the source is opened.
pub fn check(source: &PlannedSource) -> Result<(), String> {
    let PlannedSource { name, target, request, .. } = source;
    let is_taken = request.engine.is_some_and(|engine| always_takes(engine, source));
    if !name.is_of_interfaces() && !is_taken {
        return Err("consume is for interfaces; leave it out".to_owned());
    }
    if let Some(engine) = request.engine {
        if !engine.heeds(FLAG) {
            return Err(format!(
                "consume is not for engine = \"{}\"; leave one of them out",
                engine.name
            ));
        }
        (engine.check)(target, &request.options).map_err(|error| error_text(&error))?;
    }
    match look(source).map_err(|error| format!("{error:#}"))? {
        Found::Needed(reason) => Err(format!(
            "{name} {reason}: consume takes its frames away from the stack, which cuts this machine off; leave it out"
        )),
        _ => Ok(()),
    }
}
