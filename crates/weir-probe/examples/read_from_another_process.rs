//! Reads a ring from another process, which has it read-only: `read_from_another_process`. No rights are needed. With
//! `endless` it writes until it is killed, which the reader notices.

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{Feed, Pumped, Setup, Source};
use weir_consumer::thread::{Finished, Plan, spawn};
use weir_consumer::{Consumer, JoinedFeed, Null, Static};
use weir_ring::memory::Trust;
use weir_ring::pass;
use weir_ring::wake::{Sleeper, Waker};

/// The other process: it trusts nobody, sleeps until it is woken, and is lapped if it is too slow.
fn read(socket: &str) -> Result<(), Box<dyn Error>> {
    let stream = UnixStream::connect(socket)?;
    let rings = pass::receive_rings(&stream, 1, Trust::Anybody)?;
    let sleeper = Sleeper::new(1)?;
    let [page, waker] = sleeper.channel()?;
    pass::send(&stream, &[page.as_fd(), waker.as_fd()])?;
    // A copy of the writer's end would hide that the writer has died.
    drop((page, waker));
    let mut feeds = JoinedFeed::in_order(vec![rings]);
    feeds[0].channel = Some(0);
    let mut consumer = Null::new();
    feeds.into_iter().try_for_each(|feed| consumer.join(feed))?;
    (&stream).write_all(b"ready")?;

    let (ended, told) = channel::<()>();
    let running = spawn(
        Box::new(consumer),
        Plan {
            waker: sleeper.waker()?,
            source: Box::new(Static::new(sleeper, Vec::new())),
            frames_max: None,
            slack: Duration::ZERO,
            progress: Box::new(|_| ()),
            ended: Box::new(move || drop(ended)),
        },
    )?;
    // Until the sender is dropped, at its end.
    let _ = told.recv();
    let Finished { consumer, failure, .. } = running.finish();
    let delivered = consumer.delivered();
    println!(
        "the reader: delivered {} + lapped {} = {}",
        delivered.frames,
        delivered.lapped,
        delivered.frames + delivered.lapped
    );
    if let Some(failure) = failure {
        println!("the reader: {failure}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    let is_endless = argument.as_deref() == Some("endless");
    if let Some(socket) = argument.filter(|_| !is_endless) {
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
    let frames = (!is_endless).then_some(1_000_000);
    let mut source = MemGen::open(GenSpec { frames, ..GenSpec::default() }, setup, false)?;
    pass::send(&stream, &[source.rings()[0].memory().as_fd()])?;
    let [page, socket]: [OwnedFd; 2] = pass::receive(&stream, 2)?.try_into().map_err(|_| "two")?;
    let waker = Waker::attach(page, socket, 1)?;
    let feed = source.control().feeds()[0].slot;
    source.control().attach(feed, waker, 0)?;
    // It counts what it missed from where it began, so it begins first.
    (&stream).read_exact(&mut [0; 5])?;
    source.start()?;
    println!("the writer: begins");
    while source.pump(Duration::from_millis(20))? == Pumped::More {}
    println!("the writer: captured {}", source.finish()?.captured);
    reader.wait()?;
    Ok(())
}
