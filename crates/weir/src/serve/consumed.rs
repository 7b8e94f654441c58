//! Checks for sources with `consume = true`, whose frames are taken away from the network stack.

use crate::error_words::error_text;
use crate::plan::PlannedSource;
use crate::plan::own_traffic::{Found, look};

/// The flag of `weir capture` that corresponds to `consume = true`.
pub const FLAG: &str = "--consume";

/// Refuses a source that cannot be consumed, or that carries this machine's own traffic. Called when the file is read,
/// and each time the source is opened.
pub fn check(source: &PlannedSource) -> Result<(), String> {
    let PlannedSource { name, target, request, .. } = source;
    if !name.is_of_interfaces() {
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
