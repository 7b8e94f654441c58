//! Any output of virsh is an event, an answer, a path, or an error whose text can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_vm::libvirt::output::{answer, attribute, event};

fuzz_target!(|bytes: &[u8]| {
    if let Some(event) = event(bytes) {
        assert!(!event.name.contains(' ') && event.name.len() <= bytes.len());
        let _ = event.text("device");
    }
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = answer("query-status", &text) {
        assert!(error.to_string().len() < 4096, "{error}");
    }
    // Escape sequences become shorter when they are decoded.
    assert!(attribute(&text).is_none_or(|path| path.as_os_str().len() <= text.len()));
});
