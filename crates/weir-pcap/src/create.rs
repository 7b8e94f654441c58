//! Opening and closing handles: `pcap_create`, the settings, `pcap_activate`, `pcap_open_live`, `pcap_close`.

use std::ffi::{c_char, c_int, c_uint};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

use weir_abi::Stop;
use weir_client::protocol::{Direction, Open};
use weir_client::{Address, ClientError, FeedReader, error_text};

use crate::abi::{self, Pcap};
use crate::guard::{guarded, host_name, write_error};
use crate::handles::{self, Handle, State};
use crate::real;

/// The snaplen with which libpcap keeps whole frames.
const SNAPLEN_MAX: c_int = 262_144;
/// Longest pause between two reads in immediate mode.
const IMMEDIATE: Duration = Duration::from_micros(200);

fn create(name: &str) -> Result<*mut Pcap, String> {
    let name = Address::parse(name).map_err(|error| error.to_string())?;
    let (link_type, precision) = (abi::DLT_EN10MB, abi::TSTAMP_PRECISION_MICRO as c_uint);
    // SAFETY: only numbers are passed. The result is closed by the handle, or here.
    let key =
        unsafe { real::pcap_open_dead_with_tstamp_precision(link_type, SNAPLEN_MAX, precision) };
    if key.is_null() {
        return Err("the real libpcap cannot be found, or has no memory".to_owned());
    }
    match handles::add(Handle::new(key, name)) {
        true => Ok(key),
        false => Err("too many host: names are open in this process".to_owned()),
    }
}

/// See pcap_create(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_create(name: *const c_char, errbuf: *mut c_char) -> *mut Pcap {
    // SAFETY: the name and the buffer are as libpcap demands.
    let Some(host) = (unsafe { host_name(name) }) else {
        // SAFETY: the arguments are passed on.
        return unsafe { real::pcap_create(name, errbuf) };
    };
    let created = guarded(Err("a fault in libweirpcap".to_owned()), || create(host));
    created.unwrap_or_else(|error| {
        // SAFETY: as above.
        unsafe { write_error(errbuf, &error) };
        null_mut()
    })
}

/// See pcap_open_live(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_open_live(
    name: *const c_char,
    snaplen: c_int,
    promisc: c_int,
    to_ms: c_int,
    errbuf: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the arguments are passed on, and the name is as libpcap demands.
    unsafe {
        if host_name(name).is_none() {
            return real::pcap_open_live(name, snaplen, promisc, to_ms, errbuf);
        }
        let key = pcap_create(name, errbuf);
        if key.is_null() {
            return key;
        }
        pcap_set_snaplen(key, snaplen);
        pcap_set_timeout(key, to_ms);
        if pcap_activate(key) < 0 {
            if let Some(handle) = handles::find(key) {
                // SAFETY: the text of an error is a C string.
                let text = std::ffi::CStr::from_ptr(handle.error()).to_string_lossy().into_owned();
                write_error(errbuf, &text);
            }
            pcap_close(key);
            return null_mut();
        }
        key
    }
}

/// Returns the path of the daemon's socket: from the environment, else the default.
pub fn socket() -> PathBuf {
    weir_client::socket_path(None)
}

fn activate(handle: &Handle) -> c_int {
    let mut state = handle.state();
    if state.reader.is_some() {
        return handle.fail(abi::ERROR_ACTIVATED, "it is activated");
    }
    let State { name, options, .. } = &*state;
    if options.rfmon {
        return handle.fail(abi::ERROR_RFMON_NOTSUP, "a feed of a daemon has no monitor mode");
    }
    if options.protocol != 0 {
        let text = "a feed of a daemon has all protocols; choose with a filter";
        return handle.fail(abi::ERROR, text);
    }
    // 0 or a value out of range means whole frames, as in libpcap.
    let snaplen = Some(options.snaplen).filter(|snaplen| (1..SNAPLEN_MAX).contains(snaplen));
    let open = Open {
        source: name.source.clone(),
        part: name.part.clone(),
        snaplen: snaplen.and_then(|snaplen| snaplen.try_into().ok()),
        // The name by which `weir block --feed` can find the feed.
        name: std::env::var("WEIR_FEED").ok().filter(|name| !name.is_empty()),
        ..Open::default()
    };
    let path = socket();
    let mut reader = match FeedReader::connect(&path, &open) {
        Ok(reader) => reader,
        Err(ClientError::NoSource(_)) => {
            let text = format!(
                "{name}: the daemon at {} has no such source for you: there is none (`weir status` lists them), or its \
                 `users` in the daemon's file do not include you",
                path.display()
            );
            return handle.fail(abi::ERROR_NO_SUCH_DEVICE, &text);
        }
        Err(error) => {
            let error = error_text(&error);
            let text = format!("{name}: {error}; is `weir serve` running? $WEIR_SOCKET says where");
            return handle.fail(abi::ERROR, &text);
        }
    };
    if options.immediate {
        reader.set_pause_max(IMMEDIATE);
    } else if let Ok(1..) = u64::try_from(options.timeout_ms) {
        reader.set_pause_max(Duration::from_millis(options.timeout_ms as u64));
    }
    let interrupter = match reader.interrupter() {
        Ok(interrupter) => interrupter,
        Err(error) => {
            return handle.fail(abi::ERROR, &format!("{name}: {}", error_text(&error)));
        }
    };
    let snaplen = snaplen.unwrap_or(SNAPLEN_MAX);
    let precision = if options.nanoseconds { abi::TSTAMP_PRECISION_NANO } else { 0 } as c_uint;
    // Of the link types that feeds have, only raw IP has a different number as a DLT, which programs use.
    let link_type = match c_int::from(reader.source().link_type) {
        101 => 12,
        other => other,
    };
    // SAFETY: only numbers are passed. The handle closes the result.
    let inner =
        unsafe { real::pcap_open_dead_with_tstamp_precision(link_type, snaplen, precision) };
    if inner.is_null() {
        return handle.fail(abi::ERROR, "the real libpcap has no memory");
    }
    handle.set_inner(inner);
    let _ = handle.stop.set(Stop::new(interrupter));
    state.reader = Some(reader);
    0
}

/// See pcap_activate(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_activate(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || activate(&handle)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_activate(p) },
    }
}

/// See pcap_close(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_close(p: *mut Pcap) {
    match handles::take(p) {
        // If a callback closes the handle, the call that runs the callback finds that the handle is closed.
        Some(handle) => guarded((), || drop(handle)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_close(p) },
    }
}

/// Defines functions for settings before `pcap_activate`: `$set` changes the state.
macro_rules! setters {
    ($($name:ident: $set:expr;)*) => {$(
        /// See the page of this name, section 3PCAP.
        ///
        /// # Safety
        /// As libpcap demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(p: *mut Pcap, value: c_int) -> c_int {
            let Some(handle) = handles::find(p) else {
                // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
                return unsafe { real::$name(p, value) };
            };
            let set: fn(&mut State, c_int) -> c_int = $set;
            guarded(abi::ERROR, || {
                let mut state = handle.state();
                match state.reader {
                    None => set(&mut state, value),
                    Some(_) => handle.fail(abi::ERROR_ACTIVATED, "it is activated"),
                }
            })
        }
    )*};
}

setters! {
    pcap_set_snaplen: |state, value| { state.options.snaplen = value; 0 };
    pcap_set_timeout: |state, value| { state.options.timeout_ms = value; 0 };
    pcap_set_immediate_mode: |state, value| { state.options.immediate = value != 0; 0 };
    pcap_set_rfmon: |state, value| { state.options.rfmon = value != 0; 0 };
    // The daemon's file decides about promiscuous mode and the size of rings.
    pcap_set_promisc: |_, _| 0;
    pcap_set_buffer_size: |_, _| 0;
    pcap_set_protocol_linux: |state, value| { state.options.protocol = value; 0 };
    pcap_set_tstamp_type: |_, value| match value {
        abi::TSTAMP_HOST => 0,
        _ => abi::WARNING_TSTAMP_TYPE_NOTSUP,
    };
    pcap_set_tstamp_precision: |state, value| match value {
        abi::TSTAMP_PRECISION_MICRO | abi::TSTAMP_PRECISION_NANO => {
            state.options.nanoseconds = value == abi::TSTAMP_PRECISION_NANO;
            0
        }
        _ => abi::ERROR_TSTAMP_PRECISION_NOTSUP,
    };
}

/// See pcap_can_set_rfmon(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_can_set_rfmon(p: *mut Pcap) -> c_int {
    match handles::find(p) {
        Some(_) => 0,
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_can_set_rfmon(p) },
    }
}

fn set_direction(handle: &Handle, value: c_int) -> c_int {
    let direction = match value {
        abi::D_INOUT => Direction::Both,
        abi::D_IN => Direction::In,
        abi::D_OUT => Direction::Out,
        _ => return handle.fail(abi::ERROR, "there is no such direction"),
    };
    match &mut handle.state().reader {
        None => handle.fail(abi::ERROR_NOT_ACTIVATED, "it is not activated"),
        Some(reader) if reader.is_open() => {
            handle.fail(abi::ERROR, "the direction of a feed cannot change once it is read")
        }
        Some(reader) => {
            reader.asked_mut().direction = direction;
            0
        }
    }
}

/// See pcap_setdirection(3PCAP).
///
/// # Safety
/// As libpcap demands.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_setdirection(p: *mut Pcap, value: c_int) -> c_int {
    match handles::find(p) {
        Some(handle) => guarded(abi::ERROR, || set_direction(&handle, value)),
        // SAFETY: the arguments are passed on, and the caller follows the rules of libpcap.
        None => unsafe { real::pcap_setdirection(p, value) },
    }
}
