//! A line while it is written.

use weir_frame::record::Flags;

use crate::options::Options;
use crate::paint::{self, Paint};
use crate::text::Text;

/// The text so far, and facts from the headers so far that concern others.
pub struct Line<'a> {
    pub out: &'a mut Vec<u8>,
    pub options: Options,
    /// Offload state of the frame.
    pub flags: Flags,
    /// The header before has said which protocol follows.
    is_named: bool,
    /// The packet goes on in other fragments.
    pub has_first_fragment: bool,
    /// An IP header leaves its length to the NIC that will segment the packet.
    pub has_ip_length_0: bool,
}

impl<'a> Line<'a> {
    /// Continues the text in `out`.
    pub fn new(out: &'a mut Vec<u8>, options: Options, flags: Flags) -> Line<'a> {
        let (is_named, has_first_fragment, has_ip_length_0) = (false, false, false);
        Line { out, options, flags, is_named, has_first_fragment, has_ip_length_0 }
    }

    /// The ethertype was written: the next header leaves out its name.
    pub fn named(&mut self) {
        self.is_named = true;
    }

    /// Begins the words of a protocol, unless the header before has named it.
    ///
    /// Whether it was written now.
    pub fn begin(&mut self, name: &str) -> bool {
        if std::mem::take(&mut self.is_named) || name.is_empty() {
            return false;
        }
        self.begin_paint(Some(Paint::Bold));
        self.out.put(name);
        self.end_paint(Some(Paint::Bold));
        true
    }

    /// The bytes that were kept end inside this header.
    pub fn cut_off(&mut self, name: &str) {
        self.is_named = false;
        self.begin_paint(Some(Paint::Yellow));
        self.out.put("[|");
        self.out.put(name);
        self.out.put("]");
        self.end_paint(Some(Paint::Yellow));
    }

    /// The following text is in this colour, if lines are coloured.
    pub fn begin_paint(&mut self, paint: Option<Paint>) {
        if let Some(paint) = paint.filter(|_| self.options.color) {
            paint.begin(self.out);
        }
    }

    /// Ends what [`begin_paint`](Self::begin_paint) began.
    pub fn end_paint(&mut self, paint: Option<Paint>) {
        if paint.is_some() && self.options.color {
            paint::end(self.out);
        }
    }

    /// `, length N`
    pub fn length(&mut self, len: usize) {
        self.out.put(", length ");
        self.out.dec(len as u64);
    }
}
