//! Any bytes are a pcap or pcapng file, or an error that names the offset. Frames that were read can be written,
//! and are the same when they are read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_frame::pcapng::{SectionInfo, write};
use weir_frame::read::FrameReader;
use weir_frame::record::{CAPLEN_MAX, Meta};

fuzz_target!(|file: &[u8]| {
    let mut reader = match FrameReader::open(file) {
        Ok(reader) => reader,
        Err(e) => return assert!(e.offset <= file.len() as u64 && e.frames == 0),
    };
    let mut frames: Vec<(Meta, Vec<u8>)> = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(frame)) => {
                assert!(frame.wire_len as usize >= frame.data.len());
                frames.push((frame.meta(), frame.data.to_vec()));
            }
            Ok(None) => break,
            Err(e) => {
                assert!(e.offset <= file.len() as u64 && e.frames == frames.len() as u64);
                assert!(!e.to_string().is_empty());
                break;
            }
        }
    }
    assert!(reader.next().is_ok_and(|end| end.is_none()));

    let mut written = Vec::new();
    write::section_header(&mut written, &SectionInfo::default());
    for interface in reader.interfaces() {
        write::interface(&mut written, interface);
    }
    for (meta, data) in &frames {
        write::frame(&mut written, meta, data);
    }
    let mut again = FrameReader::open(&written[..]).expect("our own file opens");
    for (meta, data) in &frames {
        let frame = again.next().expect("our own file is whole").expect("as many frames");
        assert_eq!(frame.meta(), *meta);
        assert_eq!(frame.data, &data[..data.len().min(CAPLEN_MAX as usize)]);
    }
});
