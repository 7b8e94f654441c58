//! Addresses of an IP packet.

use weir_frame::checksum::word_sum;

use crate::line::Line;
use crate::text::Text;

/// Source and destination address.
#[derive(Clone, Copy, Debug)]
pub enum Hosts<'a> {
    V4 { src: &'a [u8; 4], dst: &'a [u8; 4] },
    V6 { src: &'a [u8; 16], dst: &'a [u8; 16] },
}

impl Hosts<'_> {
    /// Writes both addresses: `10.0.0.1 > 10.0.0.2: `
    pub fn write(&self, line: &mut Line<'_>) {
        self.src(line.out);
        line.out.put(" > ");
        self.dst(line.out);
        line.out.put(": ");
    }

    /// Writes both addresses with ports: `10.0.0.1.4242 > 10.0.0.2.80: `
    pub fn write_with_ports(&self, line: &mut Line<'_>, src: u16, dst: u16) {
        self.src(line.out);
        line.out.put(".");
        line.out.dec(src);
        line.out.put(" > ");
        self.dst(line.out);
        line.out.put(".");
        line.out.dec(dst);
        line.out.put(": ");
    }

    fn src(&self, out: &mut Vec<u8>) {
        match self {
            Hosts::V4 { src, .. } => out.v4(**src),
            Hosts::V6 { src, .. } => out.v6(**src),
        }
    }

    fn dst(&self, out: &mut Vec<u8>) {
        match self {
            Hosts::V4 { dst, .. } => out.v4(**dst),
            Hosts::V6 { dst, .. } => out.v6(**dst),
        }
    }

    /// Returns the sum of the addresses' 16-bit words, for the checksums of TCP and UDP. Source: RFC 9293, 3.1; RFC
    /// 8200, 8.1.
    pub fn sum(&self) -> u64 {
        match self {
            Hosts::V4 { src, dst } => word_sum(*src) + word_sum(*dst),
            Hosts::V6 { src, dst } => word_sum(*src) + word_sum(*dst),
        }
    }
}
