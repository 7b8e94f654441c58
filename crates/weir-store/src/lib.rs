//! Writes frames to files and as lines of text, and reads recorded files.
//!
//! | module | what it does |
//! |---|---|
//! | [`by_link_type`] | a pcapng file for each link type |
//! | [`catalog`] | the files of a recording |
//! | [`extract`] | reads frames from recorded files, in order of time |
//! | [`file`] | a pcapng file or pipe that stays readable after any failure |
//! | [`file_error`] | errors of writing a capture file |
//! | [`index`] | which piece of a recorded file contains which addresses, ports and times |
//! | [`names`] | names of addresses, which are written to files |
//! | [`pcap_file`] | a classic pcap file |
//! | [`printer`] | prints one line per frame |
//! | [`recorder`] | writes rings to disk without change |
//! | [`rotating`] | a rotating pcapng file |
//! | [`reindex`] | rebuilds indexes, and completes files that a killed recorder left |
#![forbid(unsafe_code)]

pub mod by_link_type;
pub mod catalog;
pub mod compressed;
pub mod extract;
pub mod file;
pub mod file_error;
pub mod index;
pub mod limits;
pub mod names;
pub mod pcap_file;
pub mod printer;
pub mod recorder;
pub mod reindex;
pub mod rotating;

pub use by_link_type::FilesByLinkType;
pub use file::FileWriter;
pub use file_error::FileError;
pub use names::Names;
pub use pcap_file::PcapFile;
pub use printer::{PrintOptions, Printer};
pub use recorder::Recorder;
pub use rotating::Rotation;
