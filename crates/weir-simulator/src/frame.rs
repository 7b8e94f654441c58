//! Frames whose bytes are determined by their number and length, so that torn, stale and repeated frames are
//! recognised.

use std::sync::LazyLock;

use weir_frame::record::{CAPLEN_MAX, Meta};

/// Number of hosts that send frames.
pub const HOSTS: u64 = 8;
/// Bytes at the start of a frame that contain its number. Every snaplen keeps them.
pub const NUMBER_BYTES: usize = 8;
/// Shortest frame with headers; shorter frames end before the address that filters read.
const HEADED_BYTES: u32 = 60;
/// Offset of the last byte of the source address.
pub const HOST_AT: u32 = 29;

/// A frame that is offered to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number, unique in the run; later frames have higher numbers.
    pub number: u64,
    /// Timestamp.
    pub ts_ns: u64,
    /// Length of the frame in bytes.
    pub bytes: u32,
    /// Length on the wire.
    pub wire_len: u32,
    /// The host of 10.0.0.0/24 that sent the frame.
    pub host: u8,
}

impl Frame {
    /// Returns whether the frame is long enough to have an address.
    #[must_use]
    pub fn has_headers(&self) -> bool {
        self.bytes >= HEADED_BYTES
    }

    /// Returns the metadata with which an engine pushes the frame.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta { ts_ns: self.ts_ns, wire_len: self.wire_len, ..Meta::default() }
    }

    /// Returns the bytes of the frame.
    #[must_use]
    pub fn make(&self) -> Vec<u8> {
        let mut frame = self.body(self.bytes as usize).to_vec();
        let head = self.head();
        let known = head.len().min(frame.len());
        frame[..known].copy_from_slice(&head[..known]);
        frame
    }

    /// Returns whether `kept` is the beginning of the frame.
    #[must_use]
    pub fn begins_with(&self, kept: &[u8]) -> bool {
        let head = self.head();
        let known = head.len().min(kept.len());
        kept[..known] == head[..known] && kept[known..] == self.body(kept.len())[known..]
    }

    /// Returns the headers: UDP over IPv4 if the frame is long enough, otherwise only the number.
    fn head(&self) -> Vec<u8> {
        let mut head = vec![0; if self.has_headers() { 34 } else { NUMBER_BYTES }];
        head[..NUMBER_BYTES].copy_from_slice(&self.number.to_be_bytes());
        if self.has_headers() {
            head[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
            head[16..18].copy_from_slice(&46u16.to_be_bytes());
            head[23] = 17;
            head[26..30].copy_from_slice(&[10, 0, 0, self.host]);
            head[30..34].copy_from_slice(&[192, 0, 2, 1]);
        }
        head
    }

    fn body(&self, bytes: usize) -> &'static [u8] {
        static BODIES: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let word = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            (1..=u64::from(CAPLEN_MAX) / 8 + 64).flat_map(word).collect()
        });
        let from = (self.number % 256) as usize;
        &BODIES[from..from + bytes]
    }
}

/// Returns the number in a frame's bytes.
#[must_use]
pub fn number_of(kept: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*kept.first_chunk::<NUMBER_BYTES>()?))
}
