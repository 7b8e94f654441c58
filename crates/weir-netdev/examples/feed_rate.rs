//! How many frames a second an interface takes: `feed_rate FRAMES BYTES SECONDS_BEFORE`.

use std::time::{Duration, Instant};

use weir_netdev::{Netdev, NetdevName};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at| std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok());
    let (frames, bytes) = (number(1).unwrap_or(5_000_000), number(2).unwrap_or(60));
    let name: NetdevName = "weir-rate0".parse()?;
    let mut netdev = Netdev::create(&name, 1500)?;
    std::thread::sleep(Duration::from_secs(number(3).unwrap_or(0)));
    let frame: Vec<u8> = (0..bytes).map(|at| if at < 12 { 2 } else { 0x42 }).collect();
    let begin = Instant::now();
    for _ in 0..frames {
        if !netdev.has_room(frame.len()) {
            netdev.flush()?;
        }
        netdev.feed(&frame)?;
    }
    netdev.flush()?;
    let mpps = frames as f64 / begin.elapsed().as_secs_f64() / 1e6;
    println!("{mpps:.3} Mpps, {:?}", netdev.counts());
    Ok(())
}
