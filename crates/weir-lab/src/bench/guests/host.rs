//! Starts a daemon, guests that may read its source, and a bridge for virtio-net.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_client::Connection;
use weir_client::status::Status;

use crate::bench::child::{Child, pinned};
use crate::bench::context::Context;
use crate::bench::serve::READY;
use crate::guests::{Accelerator, Guest, Hardware, Image, Sockets};
use crate::testbed::{End, Testbed, ip};
use crate::{Error, Result};

/// Number of guests.
pub(super) const GUESTS: usize = 4;
/// Time limit of a short command in a guest.
pub(super) const ASKING: Duration = Duration::from_secs(30);
const BRIDGE: &str = "wbr0";
const TAP: &str = "wtap0";
/// Names that guests use for the captured interface: as passive source, and as source whose frames are consumed at XDP.
pub(super) const SOURCE: &str = "lan";
pub(super) const CONSUMED_SOURCE: &str = "port";
/// Room for two feeds of 64 MiB at a time, with their headers.
const REGION_MIB: u32 = 256;
/// Longer than the 5 s for which devices stay plugged after the last feed.
const UNPLUGGED_WITHIN: Duration = Duration::from_secs(20);

/// A daemon in the receiver's namespace, and the guests, which have booted.
pub(super) struct Host {
    /// Declared first, so that the guests are dropped before the daemon.
    pub(super) guests: Vec<Guest>,
    pub(super) daemon: Child,
    pub(super) accelerator: Accelerator,
    rx: End,
    folder: tempfile::TempDir,
    _image: Image,
}

pub(super) fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "guests".to_owned(), reason: reason.to_string() }
}

/// Returns the daemon's configuration file.
fn config(iface: &str, sockets: &[Sockets]) -> String {
    let names: Vec<String> = (0..sockets.len()).map(|index| format!("\"g{index}\"")).collect();
    let names = names.join(", ");
    let source = |name: &str, more: &str| {
        format!(
            "[sources.{name}]\nsource = \"{iface}\"\neverybody = true\nguests = [{names}]\n{more}"
        )
    };
    let mut text = source(SOURCE, "") + &source(CONSUMED_SOURCE, "consume = true\n");
    text += "[limits]\nfeeds = 200\nmemory_mib = 20000\nopens_per_second = 1000\n";
    for (index, Sockets { port, qmp, .. }) in sockets.iter().enumerate() {
        text += &format!(
            "[guests.g{index}]\nport = \"{}\"\nqmp = \"{}\"\nregion_mib = {REGION_MIB}\n",
            port.display(),
            qmp.display()
        );
    }
    text
}

impl Host {
    /// Starts all programs, and waits until the broker of every guest serves the source.
    ///
    /// # Errors
    /// [`Error::Measure`] that names the part that is missing or has failed.
    pub(super) fn start(context: &Context, bed: &Testbed) -> Result<Host> {
        let kernel = context.options.guest_kernel.as_ref();
        let kernel = kernel.ok_or_else(|| {
            failed("no kernel to boot: --guest-kernel DIR (tests/guest/kernel.sh prints one)")
        })?;
        let image = Image::new(kernel, &context.options.weir)?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let accelerator = Accelerator::find(&image, Some(&bed.rx), folder.path());
        let rx = &bed.rx;
        for args in [
            ["tuntap", "add", "dev", TAP, "mode", "tap"].as_slice(),
            &["link", "add", BRIDGE, "type", "bridge"],
            &["link", "set", TAP, "master", BRIDGE],
            &["link", "set", BRIDGE, "up"],
            &["link", "set", TAP, "up"],
        ] {
            ip(&[["-n", &rx.netns].as_slice(), args].concat())?;
        }
        let sockets: Vec<Sockets> =
            (0..GUESTS).map(|index| Sockets::new(folder.path(), &format!("g{index}"))).collect();
        let start = |(index, sockets): (usize, &Sockets)| {
            let tap = (index == 0).then_some(TAP);
            let host_cpu = Some(context.cpus.reader(index));
            let hardware = Hardware { host_cpu, tap, ..Hardware::default() };
            Guest::start(&image, accelerator, Some(rx), sockets, hardware)
        };
        let mut guests = sockets.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let file = folder.path().join("weir.toml");
        fs::write(&file, config(&rx.iface, &sockets)).map_err(failed)?;
        let socket = folder.path().join("s");
        let words =
            ["serve", "--config", &file.to_string_lossy(), "--socket", &socket.to_string_lossy()]
                .map(str::to_owned);
        // The daemon shares no CPU with the generator, as in `serve`.
        let command = pinned(context.cpus.tool, &context.options.weir.to_string_lossy(), &words);
        let mut daemon = Child::start("weir serve", rx, command)?;
        daemon.wait_for_line(READY, |line| line.starts_with("weir: serving "))?;
        for guest in &mut guests {
            guest.wait_for_boot()?;
        }
        for guest in &mut guests {
            until(guest, "grep -q 'serving lan' /tmp/guest.err", READY)?;
        }
        let rx = rx.clone();
        Ok(Host { guests, daemon, accelerator, rx, folder, _image: image })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Requests the status of the daemon.
    ///
    /// # Errors
    /// [`Error::Measure`] if the daemon does not answer.
    pub(super) fn status(&self) -> Result<Status> {
        let refused = |error: weir_client::ClientError| failed(weir_client::error_text(&error));
        Connection::open(&self.socket()).map_err(refused)?.status().map_err(refused)
    }

    /// Waits until the consumers in guests have read all captured frames, at most for `limit`.
    /// Frames that they have not read by then count as lost.
    ///
    /// # Errors
    /// [`Error::Measure`] if the daemon does not answer.
    pub(super) fn wait_until_read(&self, sent: u64, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            let clients = self.status()?.clients;
            let mut of_guests =
                clients.iter().filter(|client| client.guest.is_some() && !client.is_closed);
            let is_done = of_guests.all(|client| {
                client.lag == Some(0)
                    && client.ledger.as_ref().is_some_and(|ledger| ledger.offered >= sent)
            });
            if is_done {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until the guests have `count` open feeds.
    ///
    /// # Errors
    /// [`Error::Measure`] if there are fewer feeds after [`READY`].
    pub(super) fn wait_for_feeds(&self, count: usize) -> Result<()> {
        let begin = Instant::now();
        loop {
            let clients = self.status()?.clients;
            let feeds = clients.iter().filter(|client| client.guest.is_some() && !client.is_closed);
            match feeds.count() {
                found if found >= count => return Ok(()),
                found if begin.elapsed() > READY => {
                    return Err(failed(format!("{found} of {count} feeds were opened")));
                }
                _ => sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Kills all programs in guests except the brokers, after a failure. If this fails, the next row fails.
    pub(super) fn clear(&mut self) {
        for guest in &mut self.guests {
            let _ = guest
                .run("for file in /tmp/[0-9]*.pid; do kill -KILL $(cat $file); done; true", ASKING);
        }
    }

    /// Waits until the first guest no longer has a shared-memory device of the host.
    ///
    /// # Errors
    /// [`Error::Measure`] if the devices stay.
    pub(super) fn wait_until_unplugged(&mut self) -> Result<()> {
        let gone = "! grep -q 0x1110 /sys/bus/pci/devices/*/device";
        until(&mut self.guests[0], gone, UNPLUGGED_WITHIN)
    }

    /// Adds the captured interface to the bridge of the first guest's tap, or removes it.
    ///
    /// # Errors
    /// The error of `ip`.
    pub(super) fn set_bridged(&self, is_bridged: bool) -> Result<()> {
        let words: &[&str] = if is_bridged { &["master", BRIDGE] } else { &["nomaster"] };
        ip(&[["-n", &self.rx.netns, "link", "set", &self.rx.iface].as_slice(), words].concat())
    }
}

/// Waits until a command succeeds in a guest.
///
/// # Errors
/// [`Error::Measure`] if it does not succeed within `limit`.
pub(super) fn until(guest: &mut Guest, command: &str, limit: Duration) -> Result<()> {
    let begin = Instant::now();
    while let Err(error) = guest.run(command, ASKING) {
        if begin.elapsed() > limit {
            return Err(error);
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_guest_is_in_the_daemons_file() {
        let sockets = ["g0", "g1"].map(|name| Sockets::new(Path::new("/x"), name));
        let text = config("eth0", &sockets);
        assert!(text.contains("guests = [\"g0\", \"g1\"]"), "{text}");
        assert!(
            text.contains("[guests.g1]\nport = \"/x/g1.port\"\nqmp = \"/x/g1.qmp\"\n"),
            "{text}"
        );
    }
}
