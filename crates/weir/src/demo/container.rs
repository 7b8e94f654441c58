//! The last part of the demo, if Docker is installed: a container that has only the daemon's socket reads what this
//! machine captures. No image is pulled: the image has this program and the libraries that it needs.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::generator::{self, GenOptions, Rate};
use weir_lab::testbed::pack_image;

use crate::units::grouped;

/// The name of the image, which is removed at the end.
const IMAGE: &str = "weir-demo";
/// The user id of `nobody`, who has no privileges.
const NOBODY: u32 = 65_534;
const FRAMES: u64 = 50_000;
const RATE_PPS: f64 = 50_000.0;

/// Runs this part, or prints that no Docker daemon answers. Returns `false` if the container missed frames.
pub fn run(bed: &Testbed) -> Result<bool> {
    let answers = quiet(Command::new("docker").arg("version"));
    println!();
    if !answers {
        println!("No Docker daemon answers here, so no container is shown reading host:demo.");
        return Ok(true);
    }
    let dir = TempDir::new().context("making a folder among the temporary files")?;
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let _image = Image::new(dir.path())?;
    // A separate directory, because the container can access all of it.
    let shared = dir.path().join("run");
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, Permissions::from_mode(0o755))?;
    let config = dir.path().join("weir.toml");
    let iface = &bed.rx.iface;
    fs::write(&config, format!("[sources.demo]\nsource = \"{iface}\"\nusers = [{NOBODY}]\n"))?;
    println!(
        "A daemon captures {iface} for user {NOBODY}, and a container without network or rights reads it:"
    );
    println!("$ weir serve --config weir.toml");
    let mut serve = Command::new(std::env::current_exe()?);
    serve.arg("serve").arg("--config").arg(&config).arg("--socket").arg(shared.join("weir.sock"));
    let mut daemon = bed.rx.spawn(quietly(serve))?;
    wait_for_line(&mut daemon, "serving")?;
    let read = read_in_container(bed, &shared);
    daemon.signal(libc::SIGTERM);
    let _ = daemon.wait();
    read
}

/// Sends frames while a container counts them.
fn read_in_container(bed: &Testbed, shared: &Path) -> Result<bool> {
    let volume = format!("{}:/run/weir", shared.display());
    let (user, frames) = (NOBODY.to_string(), FRAMES.to_string());
    let rights = ["--rm", "--network=none", "--read-only", "--cap-drop=ALL"];
    let weir =
        ["/weir", "capture", "host:demo", "--frames", &frames, "--duration", "20s", "--json"];
    println!(
        "$ docker run {} --user {user} --volume DIR:/run/weir {IMAGE} {}",
        rights.join(" "),
        weir.join(" ")
    );
    let mut docker = Command::new("docker");
    docker.arg("run").args(rights).args(["--user", &user, "--volume", &volume, IMAGE]).args(weir);
    let mut container = quietly(docker).spawn().context("starting docker")?;
    wait_for_line(&mut container, "read from the daemon")?;
    let options =
        GenOptions { rate: Rate::Pps(RATE_PPS), frames: Some(FRAMES), ..GenOptions::default() };
    let never = AtomicBool::new(false);
    let sent = bed.tx.run(|| generator::run(&bed.tx.iface, &options, &never))??.sent;
    let output = container.wait_with_output().context("waiting for docker")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = text
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .context("the container gave no report")?;
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    let is_whole = count("delivered") == sent && count("lapped") == 0;
    println!("  the generator sent        {:>9}", grouped(sent));
    println!(
        "  the container counted     {:>9}: {}",
        grouped(count("delivered")),
        if is_whole { "the same, to the frame" } else { "NOT THE SAME" }
    );
    Ok(is_whole)
}

/// An image of this program. Dropping it removes the image.
struct Image;

impl Image {
    fn new(dir: &Path) -> Result<Image> {
        let tar = pack_image(&std::env::current_exe()?, "weir", dir).context("packing an image")?;
        if !quiet(Command::new("docker").arg("import").arg(&tar).arg(IMAGE)) {
            bail!("docker import: the image could not be made");
        }
        Ok(Image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        quiet(Command::new("docker").args(["rmi", "--force", IMAGE]));
    }
}

/// Runs a command without output, and returns whether it succeeded.
fn quiet(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn quietly(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits until a child prints `wanted` on standard error. Another thread then reads the rest.
fn wait_for_line(child: &mut Child, wanted: &str) -> Result<()> {
    let talk = child.stderr.take().context("it has standard error")?;
    let mut lines = BufReader::new(talk).lines();
    let mut last = String::new();
    for line in lines.by_ref() {
        last = line?;
        if last.contains(wanted) {
            // If the pipe were closed, a later write of the child would fail.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(());
        }
    }
    bail!("it ended, and said: {last}")
}
