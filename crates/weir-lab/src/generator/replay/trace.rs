//! Reads the frames of a file, and decides whether they can be sent unchanged.

use std::fs::File;
use std::path::{Path, PathBuf};

use weir_frame::headers::FrameView;
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::read::{Frame, FrameReader};
use weir_frame::segment::{Segmentation, Segments};

use crate::{Error, Result};

/// One pass over a file.
pub(super) struct Trace {
    path: PathBuf,
    reader: FrameReader<File>,
}

impl Trace {
    pub(super) fn open(path: &Path) -> Result<Trace> {
        let failed = |message: String| Error::Trace { path: path.to_owned(), message };
        let file =
            File::open(path).map_err(|error| failed(format!("cannot be opened: {error}")))?;
        // Opening a directory succeeds. Reading it would fail with a less helpful message.
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(failed("is a folder; name a file in it".to_owned()));
        }
        let reader = FrameReader::open(file).map_err(|error| failed(error.to_string()))?;
        Ok(Trace { path: path.to_owned(), reader })
    }

    /// Returns the next frame. An error gives the place of the damage; no frames follow it.
    pub(super) fn next(&mut self) -> std::result::Result<Option<Frame<'_>>, String> {
        let path = &self.path;
        self.reader.next().map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Frames that were not sent, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Frames longer than the MTU, an Ethernet header and a VLAN tag allow, except for TCP frames that can be
    /// segmented.
    pub too_long: u64,
    /// Frames shorter than an Ethernet header.
    pub too_short: u64,
    /// Frames that were truncated when recorded: the rest of their bytes is not in the file.
    pub cut: u64,
    /// Frames that were recorded on a link that is not Ethernet.
    pub not_ethernet: u64,
}

impl Skipped {
    /// Returns every reason with its count.
    pub fn by_name(&self) -> [(&'static str, u64); 4] {
        let Skipped { too_long, too_short, cut, not_ethernet } = *self;
        [
            ("too_long", too_long),
            ("too_short", too_short),
            ("cut", cut),
            ("not_ethernet", not_ethernet),
        ]
    }

    /// Returns the sum of all reasons.
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, count)| count).sum()
    }

    pub(super) fn add(&mut self, fate: Fate) {
        match fate {
            Fate::Sent => {}
            Fate::TooLong => self.too_long += 1,
            Fate::TooShort => self.too_short += 1,
            Fate::Cut => self.cut += 1,
            Fate::NotEthernet => self.not_ethernet += 1,
        }
    }
}

/// The treatment of a frame. If several reasons apply, the first in the order of [`Fate::of`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Sent,
    TooLong,
    TooShort,
    Cut,
    NotEthernet,
}

impl Fate {
    /// Decides on a frame. `frame_bytes_max` is the link's MTU and an Ethernet header. A VLAN tag
    /// (0x8100) is allowed in addition, as in the kernel (`packet_extra_vlan_len_allowed`).
    pub(super) fn of(frame: &Frame<'_>, frame_bytes_max: usize) -> Fate {
        let data = frame.data;
        if frame.link_type != LINKTYPE_ETHERNET {
            Fate::NotEthernet
        } else if (frame.wire_len as usize) > data.len() {
            Fate::Cut
        } else if data.len() < 14 {
            Fate::TooShort
        } else if data.len() > bytes_max(data, frame_bytes_max) {
            Fate::TooLong
        } else {
            Fate::Sent
        }
    }
}

/// Returns the most bytes of a frame with this Ethernet header.
fn bytes_max(data: &[u8], frame_bytes_max: usize) -> usize {
    frame_bytes_max + if data[12..14] == [0x81, 0] { 4 } else { 0 }
}

/// Returns the segments that replace a frame that is too long ([`Fate::TooLong`]); `None` if it cannot be segmented.
pub(super) fn segments<'a>(data: &'a [u8], frame_bytes_max: usize) -> Option<Segments<'a>> {
    let link_bytes = data.len() - FrameView::parse(data).packet().len();
    let mtu = bytes_max(data, frame_bytes_max).checked_sub(link_bytes)?;
    match Segmentation::of(data, mtu) {
        Segmentation::Segments(segments) => Some(segments),
        Segmentation::Fits | Segmentation::Impossible => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(data: &[u8], wire_len: usize, link_type: u16) -> Fate {
        let wire_len = wire_len as u32;
        let (interface, flags, queue) = (0, None, None);
        Fate::of(&Frame { ts_ns: 0, wire_len, interface, link_type, flags, queue, data }, 1514)
    }

    #[test]
    fn only_what_can_go_as_it_was_is_sent() {
        let mut frame = vec![0; 1518];
        for (bytes, expected) in
            [(13, Fate::TooShort), (14, Fate::Sent), (1514, Fate::Sent), (1515, Fate::TooLong)]
        {
            assert_eq!(fate(&frame[..bytes], bytes, 1), expected, "{bytes}");
        }
        assert_eq!(fate(&frame[..60], 61, 1), Fate::Cut);
        assert_eq!(fate(&frame[..60], 60, 101), Fate::NotEthernet);
        frame[12] = 0x81;
        assert_eq!(fate(&frame, 1518, 1), Fate::Sent);
        frame.push(0);
        assert_eq!(fate(&frame, 1519, 1), Fate::TooLong);
    }

    /// A TCP frame with `data_bytes` of data and these VLAN tags.
    fn tcp(tags: &[u8], data_bytes: usize) -> Vec<u8> {
        let mut frame = [&[2; 12], tags, &[0x08, 0, 0x45, 0]].concat();
        frame.extend(((40 + data_bytes) as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame.resize(frame.len() + data_bytes, 7);
        frame
    }

    #[test]
    fn segments_fill_the_link_and_no_more() {
        let (outer, inner) = ([0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]);
        for (tags, longest) in
            [(&[][..], 1514), (&inner[..], 1518), (&[outer, inner].concat()[..], 1514)]
        {
            let frame = tcp(tags, 9000);
            let mut segments = segments(&frame, 1514).expect("TCP");
            let (mut out, mut bytes) = (Vec::new(), Vec::new());
            while segments.next_into(&mut out) {
                assert_eq!(fate(&out, out.len(), 1), Fate::Sent);
                bytes.push(out.len());
            }
            assert_eq!(bytes[0], longest, "{tags:?}");
            let headers = 54 + tags.len();
            assert_eq!(bytes.iter().map(|bytes| bytes - headers).sum::<usize>(), 9000);
        }
        let mut udp = tcp(&[], 9000);
        udp[23] = 17;
        assert!(segments(&udp, 1514).is_none());
        assert!(segments(&vec![0; 9000], 1514).is_none());
    }

    #[test]
    fn every_reason_has_its_name_and_count() {
        let mut skipped = Skipped::default();
        for (fate, times) in
            [(Fate::TooLong, 1), (Fate::TooShort, 2), (Fate::Cut, 3), (Fate::NotEthernet, 4)]
        {
            (0..times).for_each(|_| skipped.add(fate));
        }
        skipped.add(Fate::Sent);
        assert_eq!(skipped.by_name().map(|(_, count)| count), [1, 2, 3, 4]);
        assert_eq!(skipped.total(), 10);
    }
}
