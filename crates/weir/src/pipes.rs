//! Waits for sources that can be read only once: standard input, named pipes, devices.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use weir_capture::replay;

use crate::cli::InputArgs;
use crate::signals;
use crate::source_name::SourceName;

/// Time after which a message tells the user that nothing has arrived yet.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Waits until every source that is a pipe has delivered the beginning of a capture file, up to its link type. Bytes
/// that do not begin a capture file also end the wait: opening the source reports them.
///
/// # Errors
/// A pipe cannot be opened; or `stop` was set, or the duration of the run was over, before all pipes had delivered
/// their beginning.
pub fn wait_for(input: &InputArgs, stop: &AtomicBool) -> Result<()> {
    let begin = Instant::now();
    for source in &input.sources {
        let SourceName::File(path) = source else { continue };
        if !replay::is_pipe(path) {
            continue;
        }
        let name = match path == Path::new("-") {
            true => "standard input".to_owned(),
            false => path.display().to_string(),
        };
        let mut is_said = input.quiet;
        let is_over = || input.duration.is_some_and(|limit| begin.elapsed() >= limit);
        let goes_on = || {
            if begin.elapsed() >= SILENT_WAIT && !is_said {
                eprintln!("weir: {name}: waiting for the first frame (Ctrl-C ends it)");
                is_said = true;
            }
            !signals::is_set(stop) && !is_over()
        };
        if replay::wait_for(path, goes_on)? {
            continue;
        }
        match signals::is_set(stop) {
            true => bail!("{name}: stopped before a capture file began there"),
            false => bail!("{name}: no capture file began there in the time of --duration"),
        }
    }
    Ok(())
}
