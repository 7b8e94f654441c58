//! Any bytes are a record or an error. The frame and the block of a record lie within the bytes, and the file reader
//! finds the same frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_frame::pcapng::{Interface, SectionInfo, write};
use weir_frame::read::FrameReader;
use weir_frame::record::{self, Record};

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = Record::parse(bytes) else { return };
    assert!(found.block.len() <= bytes.len() && found.block.len() % 4 == 0);
    assert!(found.frame.len() + 32 <= found.block.len());

    let mut again = Vec::new();
    record::append(&mut again, &found.meta, found.frame);
    let copy = Record::parse(&again).expect("our own record");
    assert_eq!((copy.meta, copy.frame), (found.meta, found.frame));

    if found.meta.interface_id != 0 {
        return;
    }
    let mut file = Vec::new();
    write::section_header(&mut file, &SectionInfo::default());
    write::interface(&mut file, &Interface { link_type: 1, ..Interface::default() });
    file.extend_from_slice(found.block);
    let mut reader = FrameReader::open(&file[..]).expect("our own header");
    let frame = reader.next().expect("a record is a block").expect("of a frame");
    assert_eq!((frame.ts_ns, frame.data), (found.meta.ts_ns, found.frame));
    assert_eq!((frame.flags, frame.queue), (found.meta.flags, found.meta.queue));
});
