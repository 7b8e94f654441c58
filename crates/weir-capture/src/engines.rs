//! The engines. Each has a folder with its declaration, and an entry in the list of this file; the rest of Weir chooses
//! engines by these. The only engine that others use directly is `host`, whose link a guest's broker needs.

pub mod af_packet;
pub mod af_xdp;
pub mod auto;
pub mod bpf;
pub mod declaration;
#[cfg(feature = "dpdk")]
pub mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "engines/dpdk/absent.rs"]
mod dpdk;
pub mod generator;
pub mod host;
pub mod netns;
mod opened;
pub mod options;
mod pattern;
pub mod pcap;
pub mod replay;

use declaration::{Declaration, Takes};

/// All engines. `auto` tries those for interfaces in this order.
pub static ENGINES: [&Declaration; 8] = [
    &bpf::declaration::DECLARATION,
    &af_xdp::declaration::DECLARATION,
    &af_packet::declaration::DECLARATION,
    &pcap::declaration::DECLARATION,
    &dpdk::declaration::DECLARATION,
    &host::declaration::DECLARATION,
    &replay::declaration::DECLARATION,
    &generator::declaration::DECLARATION,
];

/// The engine of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Declaration> {
    ENGINES.into_iter().find(|engine| engine.name == name)
}

/// The engine of files.
///
/// # Panics
/// Never: there is one.
#[must_use]
pub fn of_files() -> &'static Declaration {
    ENGINES.into_iter().find(|engine| engine.takes == Takes::Files).expect("one is listed")
}

/// The engine of generated frames.
///
/// # Panics
/// Never: there is one.
#[must_use]
pub fn of_generated() -> &'static Declaration {
    ENGINES.into_iter().find(|engine| engine.takes == Takes::Generated).expect("one is listed")
}

/// The engine whose prefix the text begins with, and the device that follows the prefix.
#[must_use]
pub fn of_device(text: &str) -> Option<(&'static Declaration, &str)> {
    ENGINES.into_iter().find_map(|engine| match engine.takes {
        Takes::Devices { prefix, .. } => Some((engine, text.strip_prefix(prefix)?)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::CAPTURE;

    #[test]
    fn names_are_unique_and_the_advice_on_rights_holds_those_of_all() {
        for (at, engine) in ENGINES.iter().enumerate() {
            assert!(ENGINES[..at].iter().all(|other| other.name != engine.name));
            assert_eq!(by_name(engine.name), Some(*engine));
            assert!(engine.rights.iter().all(|right| CAPTURE.contains(right)), "{engine:?}");
        }
        let all = |right| ENGINES.iter().any(|engine| engine.rights.contains(right));
        assert!(CAPTURE.iter().all(all), "no right without an engine that takes it");
    }

    #[test]
    fn devices_name_their_engine() {
        let (engine, device) = of_device("dpdk:net_null0").expect("an engine of devices");
        assert_eq!((engine.name, device), ("dpdk", "net_null0"));
        assert!(of_device("eth0").is_none() && of_device("file:a").is_none());
    }

    /// No source file of these crates names DPDK, but for those in its folder and this one: so it would be with another
    /// engine.
    #[test]
    fn an_engine_is_named_in_its_folder_and_here_only() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates");
        let mut folders: Vec<_> =
            ["weir-capture", "weir-probe", "weir-consumer", "weir-store", "weir-doctor", "weir"]
                .map(|name| crates.join(name).join("src"))
                .to_vec();
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap_or_default().to_lowercase();
                // Tests may name it. They are at the end of a file.
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                if text.contains("dpdk") {
                    found.push(path.strip_prefix(crates).expect("inside").display().to_string());
                }
            }
        }
        found.retain(|path| !path.starts_with("weir-capture/src/engines/dpdk/"));
        assert_eq!(found, ["weir-capture/src/engines.rs"]);
    }
}
