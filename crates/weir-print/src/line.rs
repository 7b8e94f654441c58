//! A line that is being written.

use weir_frame::record::Flags;

use crate::options::Options;
use crate::paint::{self, Paint};
use crate::text::Text;

/// The text so far, and state that one header leaves for later ones.
pub struct Line<'a> {
    pub out: &'a mut Vec<u8>,
    pub options: Options,
    /// Offload state of the frame.
    pub flags: Flags,
    /// Whether the previous header has already written the name of the next protocol.
    is_named: bool,
    /// Whether the frame has the first fragment of a packet, so that its payload continues in other frames.
    pub has_first_fragment: bool,
    /// Whether an IP header has length 0, because the NIC will segment the packet and set the lengths.
    pub has_ip_length_0: bool,
}

impl<'a> Line<'a> {
    /// Creates a line that is appended to `out`.
    pub fn new(out: &'a mut Vec<u8>, options: Options, flags: Flags) -> Line<'a> {
        let (is_named, has_first_fragment, has_ip_length_0) = (false, false, false);
        Line { out, options, flags, is_named, has_first_fragment, has_ip_length_0 }
    }

    /// Declares that the ethertype was written, so that the next header leaves out its name.
    pub fn named(&mut self) {
        self.is_named = true;
    }

    /// Writes the name of a protocol, unless the previous header has written it.
    ///
    /// Returns whether the name was written.
    pub fn begin(&mut self, name: &str) -> bool {
        if std::mem::take(&mut self.is_named) || name.is_empty() {
            return false;
        }
        self.begin_paint(Some(Paint::Bold));
        self.out.put(name);
        self.end_paint(Some(Paint::Bold));
        true
    }

    /// Writes that the captured bytes end within this header.
    pub fn cut_off(&mut self, name: &str) {
        self.is_named = false;
        self.begin_paint(Some(Paint::Yellow));
        self.out.put("[|");
        self.out.put(name);
        self.out.put("]");
        self.end_paint(Some(Paint::Yellow));
    }

    /// Begins a colour, if lines are coloured.
    pub fn begin_paint(&mut self, paint: Option<Paint>) {
        if let Some(paint) = paint.filter(|_| self.options.color) {
            paint.begin(self.out);
        }
    }

    /// Ends the colour that [`begin_paint`](Self::begin_paint) began.
    pub fn end_paint(&mut self, paint: Option<Paint>) {
        if paint.is_some() && self.options.color {
            paint::end(self.out);
        }
    }

    /// Writes the length: `, length N`
    pub fn length(&mut self, len: usize) {
        self.out.put(", length ");
        self.out.dec(len as u64);
    }
}
