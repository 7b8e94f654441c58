//! Sources that are pipes: standard input, or a named one.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::out;
use crate::signals;
use crate::source_name::SourceName;

/// How often the stop is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// After so long it is said that nothing has come.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// Named pipes that were waited for. They stay open until the run has opened them: what was written would be lost.
pub struct Pipes {
    _named: Vec<File>,
}

/// Waits until every source that is a pipe has brought its first bytes, which tell what its frames are.
///
/// # Errors
/// `stop` was set before.
pub fn wait_for(sources: &[SourceName], stop: &AtomicBool) -> Result<Pipes> {
    let mut named = Vec::new();
    for source in sources {
        let SourceName::File(path) = source else { continue };
        if path == Path::new("-") {
            wait(std::io::stdin().as_fd(), "standard input", stop)?;
        } else if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
            let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
            let pipe = open.with_context(|| path.display().to_string())?;
            wait(pipe.as_fd(), &path.display().to_string(), stop)?;
            named.push(pipe);
        }
    }
    Ok(Pipes { _named: named })
}

fn wait(pipe: BorrowedFd<'_>, name: &str, stop: &AtomicBool) -> Result<()> {
    let begin = Instant::now();
    let mut is_said = false;
    loop {
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).with_context(|| name.to_owned()),
        }
        if signals::is_set(stop) {
            bail!("{name}: stopped before a byte came");
        }
        if begin.elapsed() >= SILENT_WAIT && !is_said {
            out::talk(&format!("weir: {name}: waiting for the first frame (Ctrl-C ends it)\n"));
            is_said = true;
        }
    }
}
