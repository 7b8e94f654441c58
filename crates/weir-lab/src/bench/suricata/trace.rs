//! Generates the trace: HTTP over TCP connections with handshake and end, many at the same time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use etherparse::{PacketBuilder, TcpHeader};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET, SectionInfo, write};
use weir_frame::record::{self, Meta};

use crate::generator::template::{DESTINATION_MAC, SOURCE_MAC};

/// Number of connections that are open at the same time.
const OPEN: usize = 64;
/// Most full segments of a response; the smallest number is one.
pub(super) const SEGMENTS: u64 = 16;
/// Payload of a segment in a full frame.
const SEGMENT_BYTES: usize = 1460;
/// One in this many connections requests the path that a rule looks for.
pub(super) const EVIL_EVERY: u64 = 1000;
/// The shortest Ethernet frame, without its FCS.
const SHORTEST: usize = 60;
const TEXT: &[u8] = b"The quick brown fox jumps over the lazy dog while <b>nobody</b> watches. ";

/// The end of a connection that sends a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

/// One connection, and the state of both ends.
struct Connection {
    number: u64,
    step: u64,
    /// Next sequence numbers of client and server.
    client: u32,
    server: u32,
}

impl Connection {
    fn new(number: u64) -> Connection {
        let (client, server) = (number as u32 * 7919 + 1, number as u32 * 104_729 + 1);
        Connection { number, step: 0, client, server }
    }

    /// Returns the number of full segments of the response. All numbers up to [`SEGMENTS`] occur equally often.
    fn segments(&self) -> u64 {
        1 + self.number * 7 % SEGMENTS
    }

    fn request(&self) -> Vec<u8> {
        let path = if self.number.is_multiple_of(EVIL_EVERY) { "evil" } else { "page" };
        let (number, cookie) = (self.number, "c".repeat(20 + (self.number * 13 % 300) as usize));
        format!(
            "GET /{path}/{number}?ref=list HTTP/1.1\r\nHost: www.example.org\r\n\
             User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,*/*\r\nCookie: id={cookie}\r\n\r\n"
        )
        .into_bytes()
    }

    /// Returns full segment number `at` of the response.
    fn answer(&self, at: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
        if at == 0 {
            // The header, and a body that fills the last segment.
            let fields =
                "HTTP/1.1 200 OK\r\nServer: example\r\nContent-Type: text/html\r\nContent-Length: ";
            let head_bytes = fields.len() + 5 + 4;
            let body_bytes = self.segments() as usize * SEGMENT_BYTES - head_bytes;
            bytes.extend_from_slice(format!("{fields}{body_bytes:05}\r\n\r\n").as_bytes());
        }
        let skip = (self.number + at) as usize % TEXT.len();
        let text = TEXT.iter().cycle().skip(skip).take(SEGMENT_BYTES - bytes.len());
        bytes.extend(text);
        bytes
    }

    /// Returns the next frame; `None` after the last one.
    fn next(&mut self) -> Option<Vec<u8>> {
        let step = self.step;
        self.step += 1;
        // After every two full segments, the client acknowledges both.
        let answer = self.segments() + self.segments().div_ceil(2);
        let mut flags = TcpHeader { ack: true, ..TcpHeader::default() };
        let (from, payload) = match step {
            0 => {
                (flags.syn, flags.ack) = (true, false);
                (From::Client, Vec::new())
            }
            1 => {
                flags.syn = true;
                (From::Server, Vec::new())
            }
            2 => (From::Client, Vec::new()),
            3 => {
                flags.psh = true;
                (From::Client, self.request())
            }
            4 => (From::Server, Vec::new()),
            _ if step - 5 < answer => {
                let (pair, within) = ((step - 5) / 3, (step - 5) % 3);
                let at = 2 * pair + within;
                if within < 2 && at < self.segments() {
                    (From::Server, self.answer(at))
                } else {
                    (From::Client, Vec::new())
                }
            }
            _ => {
                flags.fin = step - 5 - answer < 2;
                let from = match step - 5 - answer {
                    0 | 2 => From::Client,
                    1 => From::Server,
                    _ => return None,
                };
                (from, Vec::new())
            }
        };
        Some(self.frame(from, &flags, &payload))
    }

    fn frame(&mut self, from: From, flags: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        // Client ports count up from 1024, then the address changes, so no two connections have the same address and
        // port.
        let (host, port) = (self.number / 60_000, 1024 + (self.number % 60_000) as u16);
        let (client, server) = ([10, 1, (host >> 8) as u8, host as u8], [10, 2, 0, 1]);
        let (sequence, seen) = match from {
            From::Client => (self.client, self.server),
            From::Server => (self.server, self.client),
        };
        let mut tcp = flags.clone();
        (tcp.source_port, tcp.destination_port) =
            if from == From::Client { (port, 80) } else { (80, port) };
        tcp.sequence_number = sequence;
        tcp.acknowledgment_number = if tcp.ack { seen } else { 0 };
        tcp.window_size = u16::MAX;
        let (macs, ips) = match from {
            From::Client => ((SOURCE_MAC, DESTINATION_MAC), (client, server)),
            From::Server => ((DESTINATION_MAC, SOURCE_MAC), (server, client)),
        };
        let builder = PacketBuilder::ethernet2(macs.0, macs.1).ipv4(ips.0, ips.1, 64);
        let mut bytes = Vec::with_capacity(1514);
        let written = builder.tcp_header(tcp).write(&mut bytes, payload);
        written.expect("memory takes all, and no segment is longer than a frame");
        bytes.resize(bytes.len().max(SHORTEST), 0);
        let more = payload.len() as u32 + u32::from(flags.syn || flags.fin);
        match from {
            From::Client => self.client = self.client.wrapping_add(more),
            From::Server => self.server = self.server.wrapping_add(more),
        }
        bytes
    }
}

/// Contents of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) frames: u64,
    /// Bytes of all frames, without FCS.
    pub(super) bytes: u64,
    pub(super) connections: u64,
}

impl Trace {
    /// Returns the mean length of a frame, without FCS.
    pub(super) fn mean_bytes(&self) -> u64 {
        self.bytes / self.frames.max(1)
    }
}

/// Writes a trace of `frames` frames. Connections that are open at the end of the trace stay open.
///
/// # Errors
/// The errors of writing a file, mostly for lack of space.
pub(super) fn write(path: &Path, frames: u64) -> io::Result<Trace> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut block = Vec::new();
    write::section_header(&mut block, &SectionInfo::default());
    let link = Interface { link_type: LINKTYPE_ETHERNET, ..Interface::default() };
    write::interface(&mut block, &link);
    file.write_all(&block)?;
    let mut trace = Trace::default();
    let mut open: Vec<Connection> = (0..OPEN as u64).map(Connection::new).collect();
    trace.connections = OPEN as u64;
    for at in (0..OPEN).cycle() {
        if trace.frames == frames {
            break;
        }
        let frame = open[at].next().unwrap_or_else(|| {
            open[at] = Connection::new(trace.connections);
            trace.connections += 1;
            open[at].next().expect("a connection has frames")
        });
        let ts_ns = 1_700_000_000_000_000_000 + trace.frames * 1000;
        let meta = Meta { ts_ns, wire_len: frame.len() as u32, ..Meta::default() };
        block.clear();
        record::append(&mut block, &meta, &frame);
        file.write_all(&block)?;
        trace.frames += 1;
        trace.bytes += frame.len() as u64;
    }
    file.flush()?;
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use etherparse::{SlicedPacket, TransportSlice};

    use super::*;

    #[test]
    fn a_connection_has_a_handshake_all_of_its_answer_and_an_end() {
        for number in 0..SEGMENTS {
            let mut connection = Connection::new(number);
            let (mut answered, mut fins, mut next) = (Vec::new(), 0, BTreeSet::new());
            while let Some(frame) = connection.next() {
                let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
                let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP") };
                let ip = sliced.ip_payload().unwrap();
                let bytes = ip.payload.len() - tcp.header_len();
                if tcp.source_port() == 80 {
                    answered.extend_from_slice(tcp.payload());
                }
                fins += u32::from(tcp.fin());
                next.insert((tcp.source_port(), tcp.sequence_number() + bytes as u32));
            }
            assert_eq!((answered.len(), fins), (connection.segments() as usize * SEGMENT_BYTES, 2));
            let text = String::from_utf8(answered).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let (_, length) = head.rsplit_once(' ').unwrap();
            assert_eq!(length.parse(), Ok(body.len()));
        }
    }

    #[test]
    fn checksums_are_right() {
        let mut connection = Connection::new(1);
        while let Some(frame) = connection.next() {
            let headers = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let (Some(etherparse::NetHeaders::Ipv4(ip, _)), Some(transport)) =
                (headers.net, headers.transport)
            else {
                panic!("no TCP over IPv4")
            };
            let tcp = transport.tcp().unwrap();
            let payload = headers.payload.slice();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, payload).unwrap());
        }
    }

    #[test]
    fn a_trace_has_the_frames_that_were_asked_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let trace = write(file.path(), 20_000).unwrap();
        let mut reader =
            weir_frame::read::FrameReader::open(File::open(file.path()).unwrap()).unwrap();
        while reader.next().unwrap().is_some() {}
        assert_eq!((reader.frames(), trace.frames), (20_000, 20_000));
        assert!((500..700).contains(&trace.mean_bytes()), "{trace:?}");
        assert!(trace.connections > 800, "{trace:?}");
    }
}
