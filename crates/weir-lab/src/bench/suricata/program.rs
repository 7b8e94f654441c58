//! Starts Suricata from a folder with a root file system, waits until it captures, and ends it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::counts::{self, Counts};
use crate::bench::child::{Child, pinned};
use crate::bench::context::Context;
use crate::testbed::End;
use crate::{Error, Result};

const NAME: &str = "Suricata";
/// Path of the program below the root.
const PROGRAM: &str = "usr/bin/suricata";
/// The file of libweirpcap, in the folder of the program `weir`.
const LIBRARY: &str = "libweirpcap.so";
/// Mount point of the folder of a run: a directory that every system has (FHS, 3.12).
const SEEN_AT: &str = "/mnt";
const READY: Duration = Duration::from_secs(60);
/// Time for Suricata to read its buffer of at most 100,000 frames, and for its next interval of
/// statistics to begin.
pub(in crate::bench) const GRACE: Duration = Duration::from_millis(2500);
/// Time to receive the last frame: a socket delivers a partly filled block after at most half a
/// second.
pub(in crate::bench) const COUNTED: Duration = Duration::from_millis(1000);

const CONFIG: &str = include_str!("suricata.yaml");
/// The line of [`CONFIG`] after which further outputs are inserted.
const OUTPUTS: &str = "outputs:\n";

/// Without this line, Suricata switches off GRO permanently, and a veth without GRO drops frames that are sent by XDP.
const KEEP_OFFLOADS: &str = "capture: { disable-offloading: no }\n";

/// Suricata's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Task {
    /// Ten rules. No alert is written.
    Alerts,
    /// No rules. For each flow, a line of JSON is written to /dev/null.
    FlowLog,
}

impl Task {
    /// Returns the rules of the task.
    fn rules(self) -> &'static str {
        match self {
            Task::Alerts => include_str!("weir.rules"),
            Task::FlowLog => "",
        }
    }

    /// Returns the configuration of the outputs: for statistics, and for the task.
    fn config(self) -> String {
        match self {
            Task::Alerts => CONFIG.to_owned(),
            Task::FlowLog => {
                let log = "  - eve-log: { enabled: yes, filetype: regular, filename: /dev/null, types: [flow] }\n";
                CONFIG.replacen(OUTPUTS, &format!("{OUTPUTS}{log}"), 1) + KEEP_OFFLOADS
            }
        }
    }
}

/// Script that changes to the root file system. It runs in a separate mount namespace, so its mounts end with Suricata.
const ENTER: &str = r#"
set -e
root=$1 folder=$2
shift 2
if [ "$root" != / ]; then
    for each in proc dev sys; do mount --rbind "/$each" "$root/$each"; done
fi
mount --bind "$folder" "$root/mnt"
exec chroot "$root" env "$@"
"#;

/// The input of Suricata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bench) enum Input {
    /// An `AF_PACKET` socket on an interface.
    AfPacket(String),
    /// libpcap on an interface.
    Libpcap(String),
    /// libweirpcap, preloaded before libpcap; `socket` is the daemon's socket.
    Preloaded { source: String, socket: PathBuf },
}

impl Input {
    fn flag(&self) -> String {
        match self {
            Input::AfPacket(iface) => format!("--af-packet={iface}"),
            Input::Libpcap(device) | Input::Preloaded { source: device, .. } => {
                format!("--pcap={device}")
            }
        }
    }
}

/// Paths of Suricata and of libweirpcap.
#[derive(Debug, Clone)]
pub(in crate::bench) struct Installed {
    root: PathBuf,
    library: PathBuf,
}

/// A running Suricata.
pub(in crate::bench) struct Running {
    pub(in crate::bench) child: Child,
    folder: TempDir,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: NAME.to_owned(), reason: reason.to_string() }
}

impl Installed {
    /// Finds Suricata and libweirpcap.
    ///
    /// # Errors
    /// [`Error::Measure`] that names the missing part.
    pub(in crate::bench) fn find(context: &Context) -> Result<Installed> {
        let Some(root) = &context.options.suricata else {
            return Err(failed(
                "not installed: --suricata DIR names a folder with a root file system that has Suricata 7, or /",
            ));
        };
        let program = root.join(PROGRAM);
        if !program.is_file() {
            return Err(failed(format!(
                "not installed: --suricata {}: there is no {}",
                root.display(),
                program.display()
            )));
        }
        let root = fs::canonicalize(root)
            .map_err(|error| failed(format!("--suricata {}: {error}", root.display())))?;
        let library = context.options.weir.with_file_name(LIBRARY);
        Ok(Installed { root, library })
    }

    /// Starts Suricata at `end`, on the CPU for tools, and waits until it captures.
    ///
    /// # Errors
    /// [`Error::Measure`] with Suricata's message.
    pub(in crate::bench) fn start(
        &self,
        context: &Context,
        end: &End,
        input: &Input,
        task: Task,
    ) -> Result<Running> {
        let folder = self.fill_folder(input, task).map_err(|error| {
            failed(format!("its folder cannot be filled with {LIBRARY} and its files: {error}"))
        })?;
        let mut words: Vec<String> =
            ["--mount", "--", "sh", "-c", ENTER, "sh"].map(str::to_owned).into();
        words.extend([&self.root, folder.path()].map(|path: &Path| path.display().to_string()));
        if let Input::Preloaded { .. } = input {
            words.push(format!("LD_PRELOAD={SEEN_AT}/{LIBRARY}"));
            words.push(format!("WEIR_SOCKET={SEEN_AT}/socket"));
        }
        let files = [("-c", "suricata.yaml"), ("-S", "weir.rules"), ("-l", "log")];
        words.push("suricata".to_owned());
        words.extend(
            files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), format!("{SEEN_AT}/{file}")]),
        );
        words.extend(["--runmode".to_owned(), "single".to_owned(), input.flag()]);
        let command = pinned(context.cpus.tool, "unshare", &words);
        let mut child = Child::start(NAME, end, command)?;
        child.wait_for_line(READY, |line| line.contains("Engine started"))?;
        Ok(Running { child, folder })
    }

    /// Creates the folder with the input files. Suricata writes its logs to this folder.
    fn fill_folder(&self, input: &Input, task: Task) -> io::Result<TempDir> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("suricata.yaml"), task.config())?;
        fs::write(folder.path().join("weir.rules"), task.rules())?;
        fs::create_dir(folder.path().join("log"))?;
        if let Input::Preloaded { socket, .. } = input {
            fs::copy(&self.library, folder.path().join(LIBRARY))?;
            // A hard link makes the daemon's socket visible inside the folder.
            fs::hard_link(socket, folder.path().join("socket"))?;
        }
        Ok(folder)
    }
}

impl Running {
    /// Interrupts Suricata, and reads its counts.
    ///
    /// # Errors
    /// [`Error::Measure`] if Suricata does not end, or has written no counts.
    pub(in crate::bench) fn finish(self) -> Result<Counts> {
        let lines = self.child.interrupt()?;
        let eve = fs::read_to_string(self.folder.path().join("log/eve.json")).unwrap_or_default();
        counts::last(&eve).ok_or_else(|| {
            let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
            failed(format!("no counts in eve.json: {}", last.map_or("", |line| line.text.trim())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_log_has_no_rules_and_an_output_of_its_own() {
        let outputs = |task: Task| task.config().matches("eve-log:").count();
        assert_eq!((outputs(Task::Alerts), outputs(Task::FlowLog)), (1, 2));
        assert!(Task::FlowLog.config().contains("types: [flow]"), "{}", Task::FlowLog.config());
        assert!(Task::FlowLog.rules().is_empty() && !Task::Alerts.rules().is_empty());
    }
}
