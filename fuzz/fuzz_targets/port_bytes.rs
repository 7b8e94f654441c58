//! Any bytes from a guest's port are sessions, bytes of messages and doorbells, or an error; the host answers each
//! session once.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weir_plug::Transport;
use weir_plug::port::Port;

fuzz_target!(|bytes: &[u8]| {
    // A socket buffers this much without a reader.
    let bytes = &bytes[..bytes.len().min(32 << 10)];
    let (host, mut guest) = UnixStream::pair().unwrap();
    guest.write_all(bytes).unwrap();
    // Close it, so that no read waits.
    guest.shutdown(Shutdown::Write).unwrap();
    let port = Port::new(host.into(), || ()).unwrap();
    let mut read = 0;
    while let Ok(Some(session)) = port.accept(Duration::from_secs(1)) {
        let mut some = [0; 4096];
        while session.wait(Some(Duration::ZERO)).unwrap_or(false) {
            match session.read(&mut some) {
                Ok(count @ 1..) => read += count,
                _ => break,
            }
        }
    }
    assert!(read <= bytes.len());
});
