//! `weir lab disk`: the capacity of a disk, and refused arguments. The measured figures are not checked, since other
//! tests run at the same time.

use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::testbed::Running;

/// A folder in the build directory, because `/tmp` may be in memory.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build may write there")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["lab", "disk"]).args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("it runs")
}

fn entries(folder: &TempDir) -> usize {
    folder.path().read_dir().expect("it is there").count()
}

#[test]
fn a_round_measures_each_part_and_leaves_nothing_behind() {
    let (folder, results) = (folder(), folder());
    let json = results.path().join("disk.json");
    let [path, json_arg] = [folder.path(), &json].map(|path| path.to_str().unwrap());
    let args = [path, "--rounds", "1", "--duration", "0.2s", "--block-sizes", "1MiB"];
    let output = run(&[&args[..], &["--drives", "2,4", "--json", json_arg]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(entries(&folder), 0);

    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["disk only", "capture only", "both", "in a guest", "computed", "not measured"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    let sizing: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = sizing["rows"].as_array().unwrap();
    let rounds = |section: &str, what: &str| {
        let of = |row: &&Value| {
            row["section"] == section && row["what"].as_str().unwrap().starts_with(what)
        };
        let found: Vec<_> = rows.iter().filter(of).collect();
        found.iter().map(|row| row["rounds"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    assert_eq!(rounds("disk only", "weir-disk, 1024 KiB"), [1], "{sizing}");
    assert_eq!(rounds("both", "weir capture"), [1, 1, 1], "{sizing}");
    for row in rows.iter().filter(|row| row["section"] == "both") {
        assert_eq!(row["rounds"][0]["frames"]["unaccounted"], 0, "{row}");
    }
    // Three frame sizes, each with three links and two numbers of drives. On a busy machine a size may have no result.
    assert!(sizing["computed_needs"].as_array().unwrap().len() <= 9, "{sizing}");
    assert_eq!(sizing["computed_links"].as_array().unwrap().len(), 6, "{sizing}");
    assert_eq!(sizing["interrupted"], false);
}

/// The kernel that tests/guest/kernel.sh unpacks.
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/guest/debian-6.1");

#[test]
fn vm_the_same_on_virtio_blk_stands_beside_the_bare_rows() {
    const TEST: &str = "vm_the_same_on_virtio_blk_stands_beside_the_bare_rows";
    for tool in ["qemu-system-x86_64", "busybox", "mkfs.ext4"] {
        if !weir_lab::testbed::require_tool(TEST, tool) {
            return;
        }
    }
    if !std::path::Path::new(KERNEL).join("vmlinuz").is_file() {
        return weir_lab::testbed::skip(TEST, "no kernel is unpacked (tests/guest/kernel.sh)");
    }
    let folder = folder();
    let args = [folder.path().to_str().unwrap(), "--rounds", "1", "--duration", "0.1s"];
    let more = ["--block-sizes", "256KiB,1MiB", "--guest-kernel", KERNEL, "--json", "-"];
    let output = run(&[&args[..], &more].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(entries(&folder), 0);
    let sizing: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(sizing["guest"].as_str().unwrap().contains("ext4 on /dev/vda at /disk"), "{sizing}");
    let rows = sizing["rows"].as_array().unwrap();
    let in_guest: Vec<_> = rows.iter().filter(|row| row["section"] == "in a guest").collect();
    for what in ["disk only: weir-disk, 256 KiB", "disk only: weir-disk, 1024 KiB", "both: weir"] {
        let is_it = |row: &&&Value| row["what"].as_str().unwrap().starts_with(what);
        let row = in_guest.iter().find(is_it).unwrap_or_else(|| panic!("{what}: {sizing}"));
        assert_eq!(row["rounds"].as_array().unwrap().len(), 1, "{row}");
        assert!(row["value"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["ratio"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["absent"].is_null(), "{row}");
    }
}

#[test]
fn a_guest_that_cannot_be_booted_is_a_row_that_says_why() {
    let (folder, kernel) = (folder(), folder());
    let args = [folder.path().to_str().unwrap(), "--rounds", "1", "--duration", "0.1s"];
    let more = ["--block-sizes", "1MiB", "--guest-kernel", kernel.path().to_str().unwrap()];
    let output = run(&[&args[..], &more].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no kernel is there") || text.contains("busybox"), "{text}");
    assert_eq!(entries(&folder), 0);
}

#[test]
fn a_directory_that_is_none_or_in_memory_is_refused() {
    let folder = folder();
    let missing = folder.path().join("missing");
    let refused = |path: &str, words: &[&str]| {
        let output = run(&[path, "--duration", "0.1s"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        for word in words {
            assert!(said.contains(word), "'{word}' is not in: {said}");
        }
    };
    refused(missing.to_str().unwrap(), &["No such file", "existing directory on a disk"]);
    refused("/dev/shm", &["in memory", "existing directory on a disk"]);
}

#[test]
fn sizes_and_times_that_cannot_be_are_refused() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    for (flag, value) in [
        ("--rounds", "0"),
        ("--duration", "1ms"),
        ("--duration", "1h"),
        ("--block-sizes", "1000"),
        ("--block-sizes", "128MiB"),
        ("--drives", "0"),
    ] {
        let output = run(&[path, flag, value]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}: {output:?}");
    }
    assert_eq!(entries(&folder), 0);
}

#[test]
fn interrupted_it_ends_and_leaves_nothing_behind() {
    let folder = folder();
    let mut command = command(&[folder.path().to_str().unwrap(), "--duration", "0.2s"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running::from(command.spawn().expect("it starts"));
    while entries(&folder) == 0 {
        assert!(!running.wait_for(Duration::ZERO), "it ended by itself");
        sleep(Duration::from_millis(5));
    }
    running.signal(libc::SIGINT);
    assert!(running.wait_for(Duration::from_secs(120)), "it does not end");
    assert_eq!(entries(&folder), 0);
}
