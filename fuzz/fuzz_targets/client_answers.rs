//! A client whose daemon sends any bytes: calls end with an answer or an error, and feeds end.
#![no_main]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weir_client::Connection;
use weir_client::protocol::Open;
use weir_plug::Transport;

/// How long the daemon waits for a request before it ends.
const SILENCE: Duration = Duration::from_millis(2);

/// A daemon that answers each request with the next of these pieces, and ends after the last.
struct Said {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    answers: VecDeque<Vec<u8>>,
    readable: VecDeque<u8>,
    /// Bytes of the request that have not come yet; a request begins with its length.
    left: usize,
    is_over: bool,
}

impl Transport for Said {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock().expect("nobody panics");
        let count = bytes.len().min(state.readable.len());
        for (byte, said) in bytes.iter_mut().zip(state.readable.drain(..count)) {
            *byte = said;
        }
        Ok(count)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock().expect("nobody panics");
        if state.left == 0 && bytes.len() >= 4 {
            state.left = 4 + u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        }
        state.left = state.left.saturating_sub(bytes.len());
        if state.left == 0 {
            match state.answers.pop_front() {
                Some(answer) => state.readable.extend(answer),
                None => state.is_over = true,
            }
        }
        self.changed.notify_all();
        Ok(bytes.len())
    }

    fn wait(&self, _: Option<Duration>) -> io::Result<bool> {
        let state = self.state.lock().expect("nobody panics");
        let waits = |state: &mut State| state.readable.is_empty() && !state.is_over;
        let waited = self.changed.wait_timeout_while(state, SILENCE, waits);
        let (mut state, timeout) = waited.expect("nobody panics");
        // The piece was not an answer, so the client would wait until its time limit.
        state.is_over |= timeout.timed_out();
        Ok(true)
    }

    fn hang_up(&self) {
        self.state.lock().expect("nobody panics").is_over = true;
        self.changed.notify_all();
    }
}

fuzz_target!(|bytes: &[u8]| {
    let framed = |body: &[u8]| [&(body.len() as u32).to_be_bytes()[..], body].concat();
    // A hello, so that the next piece is the answer to a request of `capture`. Lengths are added here, because the
    // fuzzer would spend its time on finding them; the last piece is sent unchanged.
    let hello: &[u8] =
        br#"{"jsonrpc": "2.0", "id": 1, "result": {"version": 1, "applications": ["capture"]}}"#;
    let mut pieces = bytes.split(|byte| *byte == 0).peekable();
    let mut answers = VecDeque::from([framed(hello)]);
    while let Some(piece) = pieces.next() {
        answers.push_back(if pieces.peek().is_some() { framed(piece) } else { piece.to_vec() });
    }
    let said =
        Said { state: Mutex::new(State { answers, ..State::default() }), changed: Condvar::new() };
    let Ok(connection) = Connection::over(Arc::new(said)) else { return };
    let _ = connection.sources();
    let _ = connection.status();
    if let Ok(feed) = connection.open_feed(&Open::default()) {
        let _ = feed.ledger();
        let _ = feed.close();
    }
});
