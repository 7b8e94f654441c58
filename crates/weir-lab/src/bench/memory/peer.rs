//! Measures a ring of the same layout in C, with its own writer and reader, as a programmer who knows the layout would
//! write them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::bench::context::{Context, stopped};
use crate::bench::row::{Frames, Row};
use crate::generator::FCS_BYTES;
use crate::{Error, Result};

/// The name of the row.
pub(in crate::bench) const IN_C: &str = "in C: one reader polls";
const SOURCE: &str = include_str!("peer.c");

/// The compiled program, in a temporary folder.
pub(in crate::bench) struct Peer {
    program: PathBuf,
    _folder: TempDir,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "the ring in C".to_owned(), reason: reason.to_string() }
}

impl Peer {
    /// Compiles the program as a distribution would: optimized, for any x86-64.
    ///
    /// # Errors
    /// [`Error::Measure`] if there is no compiler, or compiling fails.
    pub(in crate::bench) fn build() -> Result<Peer> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let (source, program) = (folder.path().join("peer.c"), folder.path().join("peer"));
        std::fs::write(&source, SOURCE).map_err(failed)?;
        let mut command = Command::new("cc");
        command.args(["-O3", "-Wall", "-pthread", "-o"]).arg(&program).arg(&source);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(format!("cc (Debian package gcc): {error}")))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Peer { program, _folder: folder })
    }

    /// Runs the program's writer and reader for `seconds`, on the same CPUs as Weir's.
    ///
    /// # Errors
    /// [`Error::Measure`] with the program's message.
    pub(in crate::bench) fn run(
        &self,
        context: &Context,
        size_on_wire: u32,
        seconds: f64,
    ) -> Result<Frames> {
        let cpus = [context.cpus.generator, context.cpus.reader(0)].map(|cpu| cpu.to_string());
        let output = Command::new(&self.program)
            .args([(size_on_wire - FCS_BYTES).to_string(), seconds.to_string()])
            .args(cpus)
            .stdin(Stdio::null())
            .output()
            .map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said: Option<Vec<f64>> =
            text.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some([written, delivered, lapped, _held, seconds]) = said.as_deref() else {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
        };
        let drops = [("lapped".to_owned(), *lapped as u64)].into();
        Ok(Frames::new(*written as u64, *delivered as u64, drops, *seconds))
    }

    /// Adds a round to a row. On failure, the row gets the reason instead.
    pub(in crate::bench) fn add_round(
        peer: &Result<Peer>,
        context: &Context,
        round: u32,
        seconds: f64,
        row: &mut Row,
    ) {
        if stopped(context.stop) || row.absent.is_some() {
            return;
        }
        let neighbours = context.calm();
        let size = row.size_on_wire.unwrap_or_default();
        let frames = match peer {
            Ok(peer) => peer.run(context, size, seconds).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match frames {
            Ok(frames) => row.add_frames(round, frames, neighbours.done()),
            Err(reason) => row.absent = Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_in_c_delivers_what_it_writes() {
        let peer = Peer::build().unwrap();
        for size in ["60", "1514"] {
            let output =
                Command::new(&peer.program).args([size, "0.02", "0", "0"]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let said: Vec<f64> =
                text.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let [written, delivered, lapped, ..] = said[..] else { panic!("{text}") };
            assert!(written > 0.0 && delivered == written && lapped == 0.0, "{text}");
        }
    }
}
