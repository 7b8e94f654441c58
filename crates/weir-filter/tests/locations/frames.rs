//! Frames of every kind that filters distinguish, and malformed frames that no host sends.

use weir_filter::Tag;
use weir_frame::read::FrameReader;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[..], &kind.to_be_bytes(), payload].concat()
}

fn vlan(kind: u16, tci: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &kind.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
}

fn ipv4(protocol: u8, options: usize, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let total = (20 + options + payload.len()) as u16;
    let mut header =
        vec![0x45 + (options / 4) as u8, 0, 0, 0, 0x12, 0x34, 0, 0, 64, protocol, 0, 0];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header.extend([10, 0, 0, 1, 192, 168, 1, 2]);
    header.extend(vec![1; options]);
    header.extend(payload);
    header
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    header.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    header.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    header.extend(payload);
    header
}

fn ports(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes()].concat()
}

fn tcp(from: u16, to: u16, flags: u8, data: usize) -> Vec<u8> {
    let mut bytes = ports(from, to);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}

fn udp(from: u16, to: u16, data: usize) -> Vec<u8> {
    let mut bytes = ports(from, to);
    bytes.extend([((8 + data) >> 8) as u8, (8 + data) as u8, 0, 0]);
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}

/// One frame of each kind.
fn kinds() -> Vec<Vec<u8>> {
    let web = ethernet(0x800, &ipv4(6, 0, 0x4000, &tcp(40000, 80, 0x18, 100)));
    let web6 = ethernet(0x86dd, &ipv6(6, &tcp(40000, 80, 0x02, 30)));
    let dns = ethernet(0x800, &ipv4(17, 0, 0, &udp(53, 5353, 64)));
    let dns6 = ethernet(0x86dd, &ipv6(17, &udp(53, 5353, 64)));
    let mut group = web.clone();
    group[0] = 0x01;
    let mut everyone = dns.clone();
    everyone[..6].fill(0xff);
    let arp =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 192, 168, 1, 2];
    let options = ethernet(0x800, &ipv4(6, 40, 0, &tcp(22, 40001, 0x10, 10)));
    let first = ethernet(0x800, &ipv4(17, 0, 0x2000, &udp(53, 53, 200)));
    let later = ethernet(0x800, &ipv4(17, 0, 0x0019, &[0xab; 200]));
    // Hop-by-hop, then fragment, then UDP.
    let hops = [&[44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 9][..], &udp(67, 68, 10)].concat();
    let mpls = [&[0, 0x06, 0x41, 64][..], &ipv4(6, 0, 0, &tcp(1, 80, 2, 0))].concat();
    let pppoe =
        [&[0x11, 0, 0x12, 0x34, 0, 60, 0, 0x21][..], &ipv4(17, 0, 0, &udp(53, 1, 4))].concat();
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &web].concat();
    let geneve = [&[0, 0, 0x65, 0x58, 0, 0, 7, 0][..], &web].concat();
    let mut tunnel = udp(1000, 4789, 0);
    tunnel.extend(&vxlan);
    let mut tunnel2 = udp(1000, 6081, 0);
    tunnel2.extend(&geneve);
    let llc = |payload: &[u8]| ethernet(payload.len() as u16, payload);
    vec![
        vlan(0x8100, 100, &web),
        vlan(0x88a8, 200, &vlan(0x8100, 100, &web)),
        vlan(0x9100, 300, &vlan(0x8100, 100, &dns6)),
        vlan(0x8100, 0xf000, &web6),
        vlan(0x8100, 100, &ethernet(0x806, &arp)),
        web,
        web6,
        dns,
        dns6,
        group,
        everyone,
        options,
        first,
        later,
        ethernet(0x806, &arp),
        ethernet(0x8035, &arp),
        ethernet(0x800, &ipv4(1, 0, 0, &[8, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4])),
        ethernet(0x86dd, &ipv6(58, &[135, 0, 0, 0, 0, 0, 0, 0])),
        ethernet(0x86dd, &ipv6(0, &hops)),
        ethernet(0x800, &ipv4(132, 0, 0, &[&ports(80, 9999)[..], &[0; 20]].concat())),
        ethernet(0x800, &ipv4(2, 4, 0, &[0x16; 8])),
        ethernet(0x800, &ipv4(51, 0, 0, &[6, 4, 0, 0, 1, 2, 3, 4])),
        ethernet(0x800, &ipv4(41, 0, 0, &ipv6(6, &tcp(80, 81, 2, 0)))),
        ethernet(0x800, &ipv4(17, 0, 0, &tunnel)),
        ethernet(0x800, &ipv4(17, 0, 0, &tunnel2)),
        ethernet(0x8847, &mpls),
        ethernet(0x8864, &pppoe),
        ethernet(0x8863, &[0x11, 9, 0, 0, 0, 4, 1, 1, 0, 0]),
        llc(&[0x42, 0x42, 3, 0, 0, 0, 0, 0]),
        llc(&[0xfe, 0xfe, 3, 0x83, 0, 0, 0]),
        llc(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0, 0x45, 0]),
        llc(&[0xff, 0xff, 0, 30]),
        llc(&[0xe0, 0xe0, 3, 0xff, 0xff]),
        ethernet(0x80f3, &[0; 30]),
        ethernet(0x6003, &[0x81, 2, 1, 0, 0, 4]),
        ethernet(0x88cc, &[2, 7, 4, 1]),
        // A jumbo frame, and a shorter one. Neither fits in a page together with XDP's headroom and tailroom.
        ethernet(0x800, &ipv4(6, 0, 0, &tcp(443, 50000, 0x10, 8946))),
        ethernet(0x800, &ipv4(17, 0, 0, &udp(2049, 2049, 3700))),
    ]
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(len)
    .collect()
}

/// One frame of each kind, frames of real traffic, truncated frames, and random bytes.
pub fn all() -> Vec<Vec<u8>> {
    let mut frames = kinds();
    let cut: Vec<_> = frames
        .iter()
        .flat_map(|frame| {
            [0, 1, 11, 12, 13, 14, 15, 16, 18, 23, 24, 34, 35, 37, 38, 54].map(|n| (frame, n))
        })
        .filter(|(frame, n)| *n < frame.len())
        .step_by(5) // each frame at some lengths, each length of some frames
        .map(|(frame, n)| frame[..n].to_vec())
        .collect();
    frames.extend(cut);
    let trace = include_bytes!("../../../weir/demo/trace.pcapng");
    let mut reader = FrameReader::open(&trace[..]).expect("the bundled trace");
    let mut number = 0;
    while let Some(frame) = reader.next().expect("the bundled trace") {
        if number % 50 == 0 {
            frames.push(frame.data.to_vec());
        }
        number += 1;
    }
    for seed in 0..20 {
        let mut frame = random(seed, 20 + 9 * seed as usize);
        // Half of them have a known EtherType.
        if let (0, Some(kind)) = (seed % 2, frame.get_mut(12..14)) {
            let kinds = [[8, 0], [0x86, 0xdd], [0x81, 0], [8, 6]];
            kind.copy_from_slice(&kinds[seed as usize / 2 % 4]);
        }
        frames.push(frame);
    }
    frames
}

/// Frames that XDP and TC can receive: those with a whole Ethernet header.
pub fn for_the_kernel() -> Vec<Vec<u8>> {
    all().into_iter().filter(|frame| frame.len() >= 14).collect()
}

/// Whether `BPF_PROG_TEST_RUN` accepts the frame at TC: it must contain a whole IP header and fit in one page.
pub fn for_tc(frame: &[u8]) -> bool {
    (14 + 40..3000).contains(&frame.len())
}

/// The frame as it is on the wire, for a frame with this tag beside its bytes.
pub fn tagged(frame: &[u8], tag: Tag) -> Vec<u8> {
    vlan(tag.protocol, tag.tci, frame)
}
