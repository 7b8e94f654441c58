//! Times the walk over the headers and the flow key: `cargo bench -p weir-frame`.
//!
//! Prints nanoseconds a frame, the best and the median of 21 runs. Frames are warm in cache.

use std::hint::black_box;
use std::time::Instant;
use weir_frame::flow::FlowKey;
use weir_frame::headers::FrameView;

const RUNS: usize = 21;
const FRAMES: u32 = 1_000_000;

fn main() {
    let plain = tcp_v4(&[]);
    let tagged = tcp_v4(&[0x81, 0, 0, 100]);
    let mut v6 = plain[..12].to_vec();
    v6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
    v6.extend([1; 32]);
    v6.extend(&plain[34..54]);
    for (name, frame) in [("tcp/ipv4", &plain), ("vlan tcp/ipv4", &tagged), ("tcp/ipv6", &v6)] {
        time(&format!("{name}: FrameView::parse"), || {
            black_box(&FrameView::parse(black_box(frame)));
        });
        time(&format!("{name}: and FlowKey::of"), || {
            black_box(&FlowKey::of(&FrameView::parse(black_box(frame))));
        });
        time(&format!("{name}: and symmetric_hash"), || {
            let key = FlowKey::of(&FrameView::parse(black_box(frame)));
            black_box(key.map(|k| k.symmetric_hash()));
        });
    }
}

fn tcp_v4(tags: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(tags);
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x10, 0x92, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

fn time(name: &str, mut one: impl FnMut()) {
    let mut ns: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..FRAMES {
                one();
            }
            start.elapsed().as_nanos() as f64 / f64::from(FRAMES)
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("{name:40} best {:6.1} ns  median {:6.1} ns", ns[0], ns[RUNS / 2]);
}
