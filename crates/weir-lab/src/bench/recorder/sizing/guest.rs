//! Makes the same measurements with virtio-blk: `weir lab disk` runs in a guest whose disk is a file in the measured
//! directory.
//!
//! The file is fully written first, so that the guest writes to allocated blocks, as on a disk of its own. QEMU
//! bypasses the host's page cache. The guest measures one round after each round on the host.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;
use tempfile::TempDir;

use super::super::place::Place;
use super::report::{BOTH, CAPTURE, DISK, GUEST};
use super::{Options, raw};
use crate::bench::context::stopped;
use crate::bench::row::{MPPS, Round, Row};
use crate::guests::{Accelerator, Guest, Hardware, Image, Sockets};
use crate::{Error, Result};

const GBPS: &str = "GB/s";
/// Size of the guest's disk beyond one and a half times the longest file: journal and inodes.
const MORE_BYTES: u64 = 512 << 20;
/// Memory of the guest, for the system and the rings of two sources. The buffers of [`WRITES`] writes are added.
const MEMORY_MIB: u64 = 2048;
const WRITES: u64 = 16;
/// Time limit of a short command in the guest.
const ASKING: Duration = Duration::from_secs(60);
/// Time limit of a round in an emulated guest, in addition to its measurements.
const ROUND_LIMIT: Duration = Duration::from_secs(600);
/// Most measurements of a round, without those of each block size.
const MEASUREMENTS: f64 = 24.0;

/// The rows of the guest, and the reason why the measurement ended, if it failed.
pub(super) struct InGuest {
    machine: Option<Machine>,
    accelerator: Option<Accelerator>,
    /// Description of the guest.
    pub(super) about: Option<String>,
    rows: Vec<GuestRow>,
    absent: Option<String>,
}

/// A booted guest with the disk. The files live as long as this value.
struct Machine {
    guest: Guest,
    _image: Image,
    _sockets: TempDir,
    _disk: TempDir,
}

/// A row of the guest, with section and name of the host's row that it is compared with.
struct GuestRow {
    row: Row,
    section: String,
    what: String,
}

/// The fields of `weir lab disk --json` that are used here.
#[derive(Deserialize)]
struct GuestResult {
    file_system: String,
    rows: Vec<ToldRow>,
}

#[derive(Deserialize)]
struct ToldRow {
    section: String,
    what: String,
    size_on_wire: Option<u32>,
    unit: String,
    rounds: Vec<Round>,
    note: String,
}

impl InGuest {
    /// Boots a guest if a kernel was named. A failure is kept as the reason, for a row without values.
    pub(super) fn start(
        options: &Options,
        place: &Place,
        file_bytes: u64,
        cores: usize,
        stop: &AtomicBool,
    ) -> InGuest {
        let mut all = InGuest {
            machine: None,
            accelerator: None,
            about: None,
            rows: Vec::new(),
            absent: None,
        };
        let Some(kernel) = &options.guest_kernel else {
            all.absent = Some(
                "not measured; --guest-kernel DIR boots a guest with a virtio-blk disk in this directory".to_owned(),
            );
            return all;
        };
        match boot(options, kernel, place, (file_bytes, cores), stop) {
            Ok((machine, accelerator, about)) => {
                all.machine = Some(machine);
                all.accelerator = Some(accelerator);
                all.about = Some(about);
            }
            Err(error) => all.absent = Some(error.to_string()),
        }
        all
    }

    /// Measures a round in the guest. After a failure there are no more rounds.
    pub(super) fn round(&mut self, options: &Options, round: u32, stop: &AtomicBool) {
        let Some(machine) = &mut self.machine else { return };
        match machine.round(options, stop) {
            Ok(result) => self.take(round, result),
            Err(_) if stopped(stop) => {}
            Err(error) => {
                self.absent = Some(error.to_string());
                self.machine = None;
            }
        }
    }

    fn take(&mut self, number: u32, result: GuestResult) {
        if number == 0
            && let Some(about) = &mut self.about
        {
            *about = format!("{about}, {}", result.file_system);
        }
        for ToldRow { section, what, size_on_wire, unit, rounds, note } in result.rows {
            if rounds.is_empty() || ![DISK, CAPTURE, BOTH].contains(&section.as_str()) {
                continue;
            }
            let is_own = |own: &GuestRow| {
                (&own.section, &own.what, own.row.size_on_wire) == (&section, &what, size_on_wire)
            };
            let at = self.rows.iter().position(is_own).unwrap_or_else(|| {
                let unit = if unit == MPPS { MPPS } else { GBPS };
                let mut row = Row::new(GUEST, format!("{section}: {what}"), unit);
                row.size_on_wire = size_on_wire;
                self.rows.push(GuestRow { row, section, what });
                self.rows.len() - 1
            });
            let own = &mut self.rows[at].row;
            own.note = note;
            own.rounds.extend(rounds.into_iter().map(|result| Round { round: number, ..result }));
        }
    }

    /// Returns the guest's rows, compared with those of the host. If there are none, returns one row with the reason.
    pub(super) fn rows(self, bare: &[Row]) -> Vec<Row> {
        if self.rows.is_empty() {
            let mut row = Row::new(GUEST, "the same on virtio-blk", GBPS);
            row.absent = Some(self.absent.unwrap_or_else(|| "no round".to_owned()));
            return vec![row];
        }
        let (accelerator, absent) = (self.accelerator, self.absent);
        let finish = |GuestRow { mut row, section, what }: GuestRow| {
            let base = bare.iter().find(|bare| {
                (bare.section, &bare.what, bare.size_on_wire)
                    == (section.as_str(), &what, row.size_on_wire)
            });
            if let Some(base) = base {
                row.compare(base);
            }
            let ratio = row.ratio.map(|ratio| format!("{:.2} x of the bare one", ratio.median));
            let emulated = (accelerator == Some(Accelerator::Tcg)).then(|| EMULATED.to_owned());
            let parts = [ratio, emulated, Some(row.note).filter(|note| !note.is_empty())];
            row.note = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
            row.absent.clone_from(&absent);
            row
        };
        self.rows.into_iter().map(finish).collect()
    }
}

/// Remark in every row of a guest that is emulated.
const EMULATED: &str = "by emulation (no KVM here), slower than a guest on KVM";

impl Machine {
    fn round(&mut self, options: &Options, stop: &AtomicBool) -> Result<GuestResult> {
        let measurements = MEASUREMENTS + options.block_bytes.len() as f64;
        let limit = ROUND_LIMIT + Duration::from_secs_f64(measurements * options.seconds);
        parse(&self.guest.run_unless("sh /round", limit, &|| stopped(stop))?)
    }
}

/// Returns the command of a round, which is stored as a script in the guest.
fn command(options: &Options) -> String {
    let blocks: Vec<String> =
        options.block_bytes.iter().map(|bytes| format!("{}KiB", bytes >> 10)).collect();
    format!(
        "weir lab disk /disk --rounds 1 --duration {}ms --block-sizes {} --json - 2>/tmp/err || {{ tail -n 1 /tmp/err; \
         false; }}",
        (options.seconds * 1e3).round(),
        blocks.join(",")
    )
}

fn failed(reason: String) -> Error {
    Error::Measure { what: "a guest with a disk".to_owned(), reason }
}

/// Parses the JSON object in the output of the guest and QEMU.
fn parse(said: &str) -> Result<GuestResult> {
    let object = said.find('{').zip(said.rfind('}')).map(|(begin, end)| &said[begin..=end]);
    let object = object.ok_or_else(|| failed(format!("the guest said: {said}")))?;
    serde_json::from_str(object).map_err(|error| failed(format!("what the guest said: {error}")))
}

fn boot(
    options: &Options,
    kernel: &Path,
    place: &Place,
    (file_bytes, cores): (u64, usize),
    stop: &AtomicBool,
) -> Result<(Machine, Accelerator, String)> {
    let image = Image::new(kernel, &options.weir)?;
    let io_failed = |error: std::io::Error| failed(error.to_string());
    let sockets_folder = tempfile::tempdir().map_err(io_failed)?;
    let accelerator = Accelerator::find(&image, None, sockets_folder.path());
    let disk_mib = (file_bytes / 2 * 3 + MORE_BYTES) >> 20;
    place.needs((disk_mib << 20) + file_bytes)?;
    let folder = place.folder()?;
    let disk = folder.path().join("disk.img");
    raw::fill(&disk, disk_mib, stop)?;
    make_file_system(&disk)?;
    let writes_mib = (options.block_bytes.iter().max().copied().unwrap_or(0) * WRITES) >> 20;
    let memory_mib = MEMORY_MIB + writes_mib;
    let hardware = Hardware { vcpus: cores, memory_mib, disk: Some(&disk), ..Hardware::default() };
    let sockets = Sockets::new(sockets_folder.path(), "disk");
    let mut guest = Guest::start(&image, accelerator, None, &sockets, hardware)?;
    guest.wait_for_boot()?;
    guest.run("mkdir /disk && mount -t ext4 /dev/vda /disk", ASKING)?;
    guest.run(&format!("echo '{}' >/round", command(options)), ASKING)?;
    let release = guest.run("uname -r", ASKING)?;
    let about = format!(
        "{}, {cores} vCPUs, {memory_mib} MiB, Linux {}, virtio-blk (cache=none, aio=native, one iothread)",
        accelerator.name(),
        release.trim()
    );
    let machine = Machine { guest, _image: image, _sockets: sockets_folder, _disk: folder };
    Ok((machine, accelerator, about))
}

/// Creates the file system on the whole file. It is initialized now, and no blocks are discarded.
fn make_file_system(disk: &Path) -> Result<()> {
    // Users other than root have no sbin directories on their PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-E", options])
        .arg(disk)
        .env("PATH", path)
        .output();
    match made {
        Ok(made) if made.status.success() => Ok(()),
        Ok(made) => {
            Err(failed(format!("mkfs.ext4: {}", String::from_utf8_lossy(&made.stderr).trim())))
        }
        Err(error) => Err(failed(format!("mkfs.ext4 cannot be run (Debian: e2fsprogs): {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"qemu-system-x86_64: warning: something
{
  "file_system": "ext4 on /dev/vda at /disk (rw)", "duration_s": 0.1,
  "rows": [
    {"section": "disk only", "what": "weir-disk, 1024 KiB a write", "size_on_wire": null, "unit": "GB/s",
     "rounds": [{"round": 0, "value": 1.0, "disturbance": {"others_percent": 0.0, "waited_percent": 0.0},
                 "frames": null, "latency": null}], "note": "last round: 0.1 CPU s/GB"},
    {"section": "disk only", "what": "fio", "size_on_wire": null, "unit": "GB/s", "rounds": [], "note": ""},
    {"section": "in a guest", "what": "the same", "size_on_wire": null, "unit": "GB/s", "rounds": [], "note": ""}
  ]
}
"#;

    fn in_guest(accelerator: Accelerator) -> InGuest {
        InGuest {
            machine: None,
            accelerator: Some(accelerator),
            about: Some("tcg".to_owned()),
            rows: Vec::new(),
            absent: None,
        }
    }

    #[test]
    fn rounds_of_the_guest_stand_beside_the_bare_ones_of_the_same_number() {
        let mut guest = in_guest(Accelerator::Tcg);
        guest.take(0, parse(SAID).unwrap());
        guest.take(2, parse(SAID).unwrap());
        assert_eq!(guest.about.as_deref(), Some("tcg, ext4 on /dev/vda at /disk (rw)"));
        let mut bare = Row::new(DISK, "weir-disk, 1024 KiB a write", GBPS);
        for (round, value) in [(0, 4.0), (1, 1.0), (2, 4.0)] {
            bare.add(round, value, Default::default());
        }
        let rows = guest.rows(&[bare]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(rows[0].what, "disk only: weir-disk, 1024 KiB a write");
        assert_eq!(rows[0].rounds.iter().map(|round| round.round).collect::<Vec<_>>(), [0, 2]);
        assert!(
            rows[0].note.starts_with("0.25 x of the bare one; by emulation"),
            "{}",
            rows[0].note
        );
    }

    #[test]
    fn without_a_round_the_reason_is_a_row() {
        let mut guest = in_guest(Accelerator::Kvm);
        guest.absent = Some("no kernel".to_owned());
        let rows = guest.rows(&[]);
        assert_eq!(rows[0].absent.as_deref(), Some("no kernel"));
        assert!(parse("weir: error: no room").is_err());
    }
}
