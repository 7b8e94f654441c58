//! Frames in which flow keys are found: generated ones with all headers that the parser knows, some of them damaged or
//! truncated, and real traffic.

use weir_frame::headers::protocol;
use weir_frame::read::FrameReader;

/// Pseudo-random numbers, the same in every run (xorshift64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    /// True once in `times` calls, on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

const UPPER: [u8; 12] = [6, 6, 6, 17, 17, 132, 136, 33, 1, 58, 47, 59];
const EXTENSIONS: [u8; 5] = [
    protocol::HOP_BY_HOP,
    protocol::ROUTING,
    protocol::FRAGMENT,
    protocol::AH,
    protocol::DESTINATION_OPTIONS,
];

/// Extension headers of these kinds. The last one names `upper` as the next header.
fn extensions(random: &mut Random, kinds: &[u8], upper: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let next = *kinds.get(index + 1).unwrap_or(&upper);
        let units = random.of(&[0, 0, 1, 3]);
        let start = out.len();
        match *kind {
            protocol::FRAGMENT => {
                let word: u16 = random.of(&[0, 0, 1, 1, 8, 1481]);
                out.extend([next, 0]);
                out.extend(word.to_be_bytes());
                out.resize(start + 8, 9);
            }
            protocol::AH => {
                out.extend([next, units + 1]);
                out.resize(start + (usize::from(units) + 3) * 4, 9);
            }
            _ => {
                out.extend([next, units]);
                out.resize(start + (usize::from(units) + 1) * 8, 9);
            }
        }
    }
    out
}

fn packet(random: &mut Random) -> (u16, Vec<u8>) {
    let upper = random.of(&UPPER);
    let mut body = if random.one_in(3) {
        let count = random.of(&[1, 1, 2, 3, 7, 8, 9]);
        let kinds: Vec<u8> = (0..count).map(|_| random.of(&EXTENSIONS)).collect();
        kinds_then(random, &kinds, upper)
    } else {
        (upper, Vec::new())
    };
    let payload = random.of(&[0, 2, 4, 8, 20, 40, 200]);
    body.1.extend(random.bytes(payload));
    if random.one_in(2) { v6(random, body) } else { v4(random, body) }
}

fn kinds_then(random: &mut Random, kinds: &[u8], upper: u8) -> (u8, Vec<u8>) {
    (kinds[0], extensions(random, kinds, upper))
}

/// A random address or, half of the time, one of few, so that addresses repeat.
fn address(random: &mut Random, bytes: usize) -> Vec<u8> {
    if random.one_in(2) {
        return random.bytes(bytes);
    }
    let mut address = vec![0; bytes];
    address[0] = random.of(&[10, 0x20, 0xff]);
    address[bytes - 1] = random.below(4) as u8;
    address
}

fn v4(random: &mut Random, (next, body): (u8, Vec<u8>)) -> (u16, Vec<u8>) {
    let options = if random.one_in(3) { random.below(11) } else { 0 };
    let total = match random.below(12) {
        0 => 0,
        1 => 19 + random.below(6),
        _ => 20 + 4 * options + body.len(),
    };
    let fragment: u16 = random.of(&[0, 0, 0x4000, 0x4000, 0x2000, 0x2005, 7, 0x8000]);
    let mut packet = vec![0x45 + options as u8, 0];
    packet.extend((total as u16).to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, next, 0, 0]);
    packet.extend(address(random, 4));
    packet.extend(address(random, 4));
    packet.extend(vec![1; 4 * options]);
    packet.extend(body);
    (0x0800, packet)
}

fn v6(random: &mut Random, (next, body): (u8, Vec<u8>)) -> (u16, Vec<u8>) {
    let payload = match random.below(12) {
        0 => 0,
        1 => random.below(12),
        _ => body.len(),
    };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(address(random, 16));
    packet.extend(address(random, 16));
    packet.extend(body);
    (0x86dd, packet)
}

/// A frame that may be malformed in many ways.
pub fn random(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for _ in 0..random.of(&[0, 0, 0, 1, 1, 2, 3, 4, 5]) {
        frame.extend(random.of(&[[0x81, 0], [0x88, 0xa8], [0x91, 0]]));
        frame.extend(random.bytes(2));
    }
    let (kind, packet) = packet(random);
    let kind = if random.one_in(12) { random.of(&[0x0806, 0x0800, 0x86dd, 46]) } else { kind };
    frame.extend(kind.to_be_bytes());
    let headers = frame.len() + 64.min(packet.len());
    frame.extend(packet);
    if random.one_in(4) {
        let at = 12 + random.below(headers - 12);
        frame[at] = random.next() as u8;
    }
    if random.one_in(6) {
        frame.truncate(14 + random.below(frame.len() - 13));
    } else {
        frame.resize(frame.len() + random.of(&[0, 0, 1, 6, 30, 60]), 0xee);
    }
    frame
}

/// Generated frames, real traffic, and frames that fill several pages.
pub fn all() -> Vec<Vec<u8>> {
    let mut numbers = Random(0x5eed);
    let mut frames: Vec<_> = (0..3000).map(|_| random(&mut numbers)).collect();
    let trace = include_bytes!("../../../weir/demo/trace.pcapng");
    let mut reader = FrameReader::open(&trace[..]).expect("the bundled trace");
    while let Some(frame) = reader.next().expect("the bundled trace") {
        frames.push(frame.data.to_vec());
    }
    frames.truncate(4000);
    for _ in 0..20 {
        let mut jumbo = random(&mut numbers);
        jumbo.resize(9000, 0xee);
        frames.push(jumbo);
    }
    frames
}
