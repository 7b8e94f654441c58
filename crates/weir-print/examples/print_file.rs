//! Prints a capture file, as a bench of the lines alone: cargo run --release -p weir-print --example print_file FILE
use std::io::Write;

use weir_frame::read::FrameReader;
use weir_print::{Frame, Options, write_line};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a capture file")?;
    let options = Options { verbose: std::env::args().nth(2).is_some(), ..Options::default() };
    let mut reader = FrameReader::open(std::fs::File::open(path)?)?;
    let (mut lines, mut out) = (Vec::new(), std::io::stdout().lock());
    while let Some(frame) = reader.next()? {
        let frame = Frame {
            link_type: frame.link_type,
            data: frame.data,
            wire_len: frame.wire_len,
            flags: None,
        };
        write_line(&mut lines, &frame, &options);
        lines.push(b'\n');
        if lines.len() > 1 << 16 {
            out.write_all(&lines)?;
            lines.clear();
        }
    }
    Ok(out.write_all(&lines)?)
}
