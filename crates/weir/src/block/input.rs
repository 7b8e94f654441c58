//! The input of alerts: a file, which may be followed, or standard input.

use std::io::{self, Read, Stdin};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_alert::{FollowedFile, Line, Lines};

use crate::readiness::has_come;

/// Pause after a read that found nothing new. Signals wake the thread.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes that are read from standard input at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The input of alerts.
pub enum Input {
    File { file: FollowedFile, follows: bool },
    Standard { stdin: Stdin, lines: Lines, buffer: Vec<u8> },
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Lines were read, and there may be more.
    More,
    /// There is nothing new yet.
    Nothing,
    /// The input has ended.
    End,
}

impl Input {
    pub fn open(path: &Path, follows: bool) -> Result<Input> {
        if path == Path::new("-") {
            let (lines, buffer) = (Lines::default(), vec![0; PIECE_BYTES]);
            return Ok(Input::Standard { stdin: io::stdin(), lines, buffer });
        }
        let name = path.display();
        let file = FollowedFile::new(path).with_context(|| {
            format!("--from {name}: cannot be read; what is no file goes to standard input: --from - < {name}")
        })?;
        if !follows && !file.is_there() {
            bail!("--from {name}: there is no such file; --follow waits for it");
        }
        Ok(Input::File { file, follows })
    }

    /// Passes new lines to `take`, each with a flag that is set if the line was in a followed file at the start. If
    /// there is nothing new, waits for `PAUSE`.
    pub fn read(&mut self, mut take: impl FnMut(Line, bool)) -> io::Result<Found> {
        match self {
            Input::File { file, follows } => {
                if file.read(|line, is_old| take(line, is_old && *follows))? {
                    return Ok(Found::More);
                }
                if !*follows {
                    file.end(|line, _| take(line, false));
                    return Ok(Found::End);
                }
                thread::park_timeout(PAUSE);
                Ok(Found::Nothing)
            }
            Input::Standard { stdin, lines, buffer } => {
                if !has_come(stdin, PAUSE)? {
                    return Ok(Found::Nothing);
                }
                match stdin.lock().read(buffer) {
                    Ok(0) => {
                        lines.end(|line| take(line, false));
                        Ok(Found::End)
                    }
                    Ok(count) => {
                        lines.push(&buffer[..count], |line| take(line, false));
                        Ok(Found::More)
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Found::Nothing),
                    Err(error) => Err(error),
                }
            }
        }
    }
}
