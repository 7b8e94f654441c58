//! The headers of a frame are described whatever its bytes are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_frame::flow::FlowKey;
use weir_frame::headers::{FrameView, VLANS_MAX};

fuzz_target!(|frame: &[u8]| {
    let view = FrameView::parse(frame);
    assert!(view.vlans().len() <= VLANS_MAX);
    assert!(view.packet().len() <= frame.len());
    assert!(view.upper().len() <= view.packet().len());
    assert!(view.tcp_flags().is_none() || view.upper().len() >= 14);
    if let Some(ip) = view.ip() {
        assert!(ip.upper_at as usize <= frame.len());
    }
    if let Some(key) = FlowKey::of(&view) {
        assert_eq!(key.symmetric_hash(), key.reversed().symmetric_hash());
    }
});
