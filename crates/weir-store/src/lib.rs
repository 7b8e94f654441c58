//! Frames to files and to lines of text.
//!
//! | module | what it does |
//! |---|---|
//! | [`by_link_type`] | several of them, where frames have several link types |
//! | [`catalog`] | the files of a recording |
//! | [`extract`] | frames out of them, in order of time |
//! | [`file`] | a pcapng file or pipe that stays readable whatever happens |
//! | [`file_error`] | why it cannot be written |
//! | [`index`] | what stands where in a recorded file |
//! | [`names`] | names of addresses, for files |
//! | [`pcap_file`] | a classic pcap file |
//! | [`printer`] | one line a frame |
//! | [`recorder`] | contents of the rings to disk, unchanged |
//! | [`rotating`] | a pcapng file that is followed by others |
//! | [`reindex`] | indexes made anew, and files that a killed recorder left |
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
