//! Reads a ring from another process, which has it read-only: `read_from_another_process`. No rights are needed.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{Feed, Pumped, Setup, Source};
use weir_consumer::thread::{Finished, Plan, spawn, take_changes};
use weir_consumer::{Consumer, Null, Static};
use weir_ring::{memory::Trust, pass};

/// The other process: it trusts nobody, sleeps until it is woken, and is lapped if it is too slow. If the writer is
/// killed, it reads what is there and says so.
fn read(socket: &str) -> Result<(), Box<dyn Error>> {
    let stream = UnixStream::connect(socket)?;
    let mut source = Static::receive(&stream, 1, Trust::Anybody)?;
    let mut consumer = Null::new();
    take_changes(&mut source, &mut consumer)?;
    (&stream).write_all(b"r")?;

    let running = spawn(Box::new(consumer), Plan::new(Box::new(source))?)?;
    let Finished { consumer, failure, .. } = running.wait();
    let (frames, lapped) = (consumer.delivered().frames, consumer.delivered().lapped);
    println!("the reader: delivered {frames} + lapped {lapped} = {}", frames + lapped);
    if let Some(failure) = failure {
        println!("the reader: {failure}");
    }
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

    let feeds = vec![Feed::default()];
    let setup = Setup { feeds, ring_bytes: 16 << 20, promiscuous: false, may_change: false };
    let spec = GenSpec { frames: Some(1_000_000), ..GenSpec::default() };
    let mut source = MemGen::open(spec, setup, false)?;
    let control = source.control();
    let feed = control.feeds().remove(0);
    control.attach(feed.slot, pass::send_feed(&stream, &feed.rings)?, 0)?;
    // It counts what it missed from where it began, so it begins first.
    (&stream).read_exact(&mut [0])?;
    source.start()?;
    while source.pump(Duration::from_millis(20))? == Pumped::More {}
    println!("the writer: captured {}", source.finish()?.captured);
    reader.wait()?;
    Ok(())
}
