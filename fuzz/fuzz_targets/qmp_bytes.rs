//! Any bytes from QEMU's monitor are answers, events or an error, in bounded time and memory.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use weir_vm::{Monitor, Qmp, VmError, find_plugged};

/// The first output of QEMU, up to the answer to the first command.
const BEGIN: &[u8] =
    br#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": []}}
{"return": {}, "id": 1}
"#;
/// A time limit that is never reached, because the stream ends before.
const LIMIT: Duration = Duration::from_secs(1);

fuzz_target!(|bytes: &[u8]| {
    let [how, bytes @ ..] = bytes else { return };
    // A socket buffers this much without a reader.
    let bytes = &bytes[..bytes.len().min(32 << 10)];
    let (host, mut qemu) = UnixStream::pair().unwrap();
    if how & 1 == 0 {
        qemu.write_all(BEGIN).unwrap();
    }
    qemu.write_all(bytes).unwrap();
    qemu.shutdown(Shutdown::Write).unwrap();
    let Ok(mut qmp) = Qmp::negotiate(host.into(), LIMIT) else { return };
    if how & 2 == 0 {
        let _ = find_plugged(&mut qmp);
    }
    let mut events = 0;
    loop {
        while let Ok(Some(event)) = qmp.next_event(Duration::ZERO) {
            let _ = event.text("device");
            events += 1;
        }
        match qmp.execute("query-status", json!({}), LIMIT) {
            Ok(_) | Err(VmError::Refused { .. }) => {}
            Err(error) => {
                // The text of the error is shown to users.
                assert!(error.to_string().len() < 4096, "{error}");
                break;
            }
        }
    }
    assert!(events <= bytes.len() && qmp.lost_events() <= bytes.len() as u64);
});
