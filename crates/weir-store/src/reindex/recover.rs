//! A file that a killed recorder left gets its final name.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

use super::build::{Trouble, check_start};
use super::{Event, Options, Report};
use crate::catalog::{LOCK_NAME, Listed, State};
use crate::extract::blocks::Kind;
use crate::extract::source::open;
use crate::extract::walk::{Walk, Walked};
use crate::recorder::RecorderError;
use crate::recorder::volume::{is_recorded, lock};

/// What is to be done about such a file.
pub(super) enum Recovered {
    /// Cut to so many bytes and named.
    Whole { end: u64, cut_bytes: u64 },
    /// It has no frame.
    Empty,
}

/// Completes what a recorder left in one directory, and adds it to the files that need an index.
pub(super) fn directory(
    directory: &Path,
    left: &[Listed],
    options: &Options,
    stop: &dyn Fn() -> bool,
    report: &mut Report,
    files: &mut Vec<Listed>,
) {
    let is_recording = |listed: &Listed| listed.state == State::Open { recording: true };
    // Held until all are done: no recorder begins meanwhile.
    let held = match left.iter().any(is_recording) {
        true => Err(Event::LeftAlone { path: directory.into(), why: "a recorder writes there" }),
        false if options.check => Ok(None),
        false => hold(directory).map(Some),
    };
    let _held = match held {
        Ok(held) => held,
        Err(event) => return report.events.push(event),
    };
    for listed in left {
        if stop() {
            return;
        }
        match file(listed, options, stop, report) {
            Ok(event) => {
                if let Event::Completed { path, .. } = &event
                    && !options.check
                {
                    report.files -= 1;
                    let state = State::Complete;
                    files.push(Listed { path: path.clone(), state, named: listed.named });
                }
                report.events.push(event);
            }
            Err(Trouble::Stopped) => return,
            Err(Trouble::Foreign(why)) => {
                report.events.push(Event::LeftAlone { path: listed.path.clone(), why });
            }
            Err(Trouble::Io(error)) => report
                .events
                .push(Event::Failed { path: listed.path.clone(), why: error.to_string() }),
        }
    }
    // The names, too, outlast a power cut.
    if !options.check
        && let Err(error) = File::open(directory).and_then(|directory| directory.sync_all())
    {
        report.events.push(Event::Failed { path: directory.into(), why: error.to_string() });
    }
}

/// Takes the lock of a recorder.
fn hold(directory: &Path) -> Result<File, Event> {
    let path = directory.to_owned();
    let failed = |error: io::Error| Event::Failed { path: path.clone(), why: error.to_string() };
    let is_new = !directory.join(LOCK_NAME).exists();
    let held = lock(directory).map_err(|error| match error {
        RecorderError::Taken { .. } => {
            Event::LeftAlone { path: path.clone(), why: "a recorder writes there" }
        }
        error => {
            let text = std::error::Error::source(&error).map(ToString::to_string);
            Event::Failed { path: path.clone(), why: text.unwrap_or_else(|| error.to_string()) }
        }
    })?;
    if is_new {
        // A recorder with fewer rights is to be able to lock it.
        let meta = directory.metadata().map_err(failed)?;
        let _ = fchown(&held, Some(meta.uid()), Some(meta.gid()));
    }
    Ok(held)
}

fn file(
    listed: &Listed,
    options: &Options,
    stop: &dyn Fn() -> bool,
    report: &mut Report,
) -> Result<Event, Trouble> {
    let (path, complete) = (&listed.path, listed.complete_path());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_recorded(&name) {
        return Err(Trouble::Foreign("no recorder gives such a name"));
    }
    if fs::symlink_metadata(&complete).is_ok() {
        return Err(Trouble::Foreign("there is a complete file of that name"));
    }
    // Not through a link, though it was named itself.
    let unnamed = Listed { named: false, state: State::Complete, ..listed.clone() };
    let Some(file) = open(&unnamed)? else {
        return Err(Trouble::Foreign("it is not there any more"));
    };
    let recovered = look(&file, stop, report)?;
    let event = match recovered {
        Recovered::Empty => Event::Deleted { path: path.clone() },
        Recovered::Whole { cut_bytes, .. } => {
            Event::Completed { path: complete.clone(), cut_bytes }
        }
    };
    if options.check {
        return Ok(event);
    }
    match recovered {
        Recovered::Empty => {
            fs::remove_file(path)?;
            let _ = fs::remove_file(listed.index_path());
        }
        Recovered::Whole { end, .. } => {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let out = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
            let out = File::from(out);
            let (own, seen) = (out.metadata()?, file.metadata()?);
            if (own.dev(), own.ino()) != (seen.dev(), seen.ino()) {
                return Err(Trouble::Foreign("another file has its name now"));
            }
            if end < own.len() {
                out.set_len(end)?;
            }
            out.sync_all()?;
            rustix::fs::renameat_with(CWD, path, CWD, &complete, RenameFlags::NOREPLACE)
                .map_err(io::Error::from)?;
        }
    }
    Ok(event)
}

/// Where the last block ends that says something.
fn look(file: &File, stop: &dyn Fn() -> bool, report: &mut Report) -> Result<Recovered, Trouble> {
    let length = file.metadata()?.len();
    let (mut end, mut frames) = (0, 0_u64);
    let mut walk = Walk::frames(file, 0, length);
    while let Some(Walked::Block { kind, at, length, .. }) = walk.next()? {
        if stop() {
            return Err(Trouble::Stopped);
        }
        match kind {
            Kind::Padding => continue,
            Kind::Section if at > 0 => return Err(Trouble::Foreign("it has several sections")),
            Kind::ForeignFrame => {
                return Err(Trouble::Foreign("it has frames in blocks that Weir does not write"));
            }
            Kind::Frame => frames += 1,
            Kind::Section | Kind::Interface | Kind::Other => {}
        }
        end = at + length as u64;
    }
    report.bytes_read += walk.bytes_read();
    if frames > 0 {
        check_start(file)?;
        return Ok(Recovered::Whole { end, cut_bytes: length - end });
    }
    // What begins with zeros was never confirmed.
    let mut start = [0; 16];
    let is_zero = length >= 16 && {
        std::os::unix::fs::FileExt::read_exact_at(file, &mut start, 0)?;
        start == [0; 16]
    };
    if !is_zero {
        check_start(file)?;
    }
    Ok(Recovered::Empty)
}
