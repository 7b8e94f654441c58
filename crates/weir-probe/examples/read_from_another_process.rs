//! Reads a ring from another process, which has it read-only: `read_from_another_process`. No rights are needed.

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{Feed, Pumped, Setup, Source};
use weir_ring::memory::Trust;
use weir_ring::{Batch, Poll, Reader, Start, pass};

/// The other process: it trusts nobody, and is lapped if it is too slow.
fn read(socket: &str) -> Result<(), Box<dyn Error>> {
    let stream = UnixStream::connect(socket)?;
    let rings = pass::receive_rings(&stream, 1, Trust::Anybody)?;
    let (mut reader, mut batch) = (Reader::new(&rings[0], Start::Oldest)?, Batch::new());
    (&stream).write_all(b"ready")?;
    let (mut delivered, mut lapped) = (0, 0);
    loop {
        match reader.poll(&mut batch)? {
            Poll::Frames(frames) => delivered += u64::from(frames),
            Poll::Lapped(frames) => lapped += frames,
            Poll::Empty => std::thread::sleep(Duration::from_millis(1)),
            Poll::Closed => break,
        }
    }
    println!("the reader: delivered {delivered} + lapped {lapped} = {}", delivered + lapped);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(socket) = std::env::args().nth(1) {
        return read(&socket);
    }
    let socket = format!("{}/weir-example-{}", std::env::temp_dir().display(), std::process::id());
    let listener = UnixListener::bind(&socket)?;
    let mut reader = Command::new(std::env::current_exe()?).arg(&socket).spawn()?;
    let (stream, _) = listener.accept()?;
    std::fs::remove_file(&socket)?;

    let setup = Setup {
        feeds: vec![Feed::default()],
        ring_bytes: 16 << 20,
        promiscuous: false,
        may_change: false,
    };
    let spec = GenSpec { frames: Some(1_000_000), ..GenSpec::default() };
    let mut source = MemGen::open(spec, setup, false)?;
    pass::send(&stream, &[source.rings()[0].memory().as_fd()])?;
    // It counts what it missed from where it began, so it begins first.
    (&stream).read_exact(&mut [0; 5])?;
    source.start()?;
    while source.pump(Duration::from_millis(20))? == Pumped::More {}
    println!("the writer: captured {}", source.finish()?.captured);
    reader.wait()?;
    Ok(())
}
