//! The library exports libpcap's functions, and nothing else.

use std::path::PathBuf;
use std::process::Command;

/// The library that this test was built with.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a program has a file");
    own.with_file_name("libweirpcap.so")
}

fn defined(path: &str) -> Vec<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", path]).output().expect("nm starts");
    assert!(output.status.success(), "nm {path}");
    let text = String::from_utf8(output.stdout).expect("nm prints text");
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// Functions that take no handle and no device name. Those of the real libpcap suffice.
const OF_NO_HANDLE: [&str; 37] = [
    "pcap_compile_nopcap",
    "pcap_datalink_name_to_val",
    "pcap_datalink_val_to_description",
    "pcap_datalink_val_to_description_or_dlt",
    "pcap_datalink_val_to_name",
    "pcap_dump",
    "pcap_dump_close",
    "pcap_dump_file",
    "pcap_dump_flush",
    "pcap_dump_ftell",
    "pcap_dump_ftell64",
    "pcap_ether_aton",
    "pcap_ether_hostton",
    "pcap_fopen_offline",
    "pcap_fopen_offline_with_tstamp_precision",
    "pcap_free_datalinks",
    "pcap_free_tstamp_types",
    "pcap_freealldevs",
    "pcap_freecode",
    "pcap_init",
    "pcap_lib_version",
    "pcap_lookupdev",
    "pcap_nametoaddr",
    "pcap_nametoaddrinfo",
    "pcap_nametoeproto",
    "pcap_nametollc",
    "pcap_nametonetaddr",
    "pcap_nametoport",
    "pcap_nametoportrange",
    "pcap_nametoproto",
    "pcap_next_etherent",
    "pcap_offline_filter",
    "pcap_open_dead",
    "pcap_open_dead_with_tstamp_precision",
    "pcap_open_offline",
    "pcap_open_offline_with_tstamp_precision",
    "pcap_statustostr",
];

#[test]
fn every_function_of_libpcap_that_takes_a_handle_is_there_and_nothing_else() {
    let own = defined(library().to_str().expect("a plain path"));
    let strangers: Vec<_> = own.iter().filter(|name| !name.starts_with("pcap_")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    let folder = Command::new("pkg-config").args(["--variable=libdir", "libpcap"]).output();
    let folder = String::from_utf8(folder.expect("pkg-config starts").stdout).expect("text");
    let libpcap = defined(&format!("{}/libpcap.so", folder.trim()));
    let mut wanted: Vec<_> = libpcap.iter().filter(|name| name.starts_with("pcap_")).collect();
    wanted.retain(|name| !OF_NO_HANDLE.contains(&name.as_str()));
    let rest = ["pcap_strerror", "pcap_version"];
    wanted.retain(|name| !rest.contains(&name.as_str()) && !name.contains("tstamp_type_"));
    let missing: Vec<_> = wanted.iter().filter(|name| !own.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = own.iter().filter(|name| !libpcap.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
