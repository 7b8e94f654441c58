//! Another process reads a feed of a probe, its rings read-only, without rights: `read_from_another_process`.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use weir_capture::{Feed, Setup, generator};
use weir_consumer::{Consumer, Null, Static, thread};
use weir_probe::{Probe, SourceSpec, core::Event};
use weir_ring::{memory::Trust, pass};

/// The other process: it trusts nobody, and is lapped if it is too slow. If the writer is killed, it says so.
fn read(socket: &str) -> Result<(), Box<dyn Error>> {
    let stream = UnixStream::connect(socket)?;
    let mut source = Static::receive(&stream, 1, Trust::Anybody)?;
    let mut consumer = Null::new();
    thread::take_changes(&mut source, &mut consumer)?;
    (&stream).write_all(b"r")?;
    let running = thread::spawn(Box::new(consumer), thread::Plan::new(Box::new(source))?)?;
    let thread::Finished { consumer, failure, .. } = running.wait();
    let (frames, lapped) = (consumer.delivered().frames, consumer.delivered().lapped);
    println!("the reader: delivered {frames} + lapped {lapped} = {}", frames + lapped);
    failure.iter().for_each(|failure| println!("the reader: {failure}"));
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

    let probe = Probe::with_listener(|event| {
        if let Event::FeedClosed(_, _, Some(ledger)) = event {
            println!("the writer: captured {}", ledger.captured);
        }
    })?;
    let spec = SourceSpec::new("gen:", |feeds| {
        let setup = Setup { feeds, ring_bytes: 16 << 20, ..Setup::default() };
        let spec = generator::GenSpec { frames: Some(1_000_000), ..Default::default() };
        Ok(Box::new(generator::MemGen::open(spec, setup, false)?))
    });
    let (source, own) = probe.open(spec, vec![Feed::default().into()])?;
    let remote = probe.add_remote_consumer(1)?;
    remote.give_channel(pass::receive_waker(&stream, 1)?)?;
    probe.attach(remote.id, own[0])?;
    let feed = remote.wait_for_feed(std::time::Duration::ZERO).expect("it has joined");
    pass::send_rings(&stream, &feed.rings)?;
    // It counts missed frames from the point where it began, so it begins first.
    (&stream).read_exact(&mut [0])?;
    probe.start(source)?;
    reader.wait()?;
    Ok(())
}
