//! Changes to a capture that runs: a Unix socket beside it, and the commands that speak to one.
//!
//! JSON-RPC 2.0, each message behind its length: four bytes, the highest first. Who may connect is up to the
//! socket's permissions, which are its owner's alone.

use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_capture::{Change, Remote};

use crate::cli::FilterArgs;
use crate::feeds::compile;
use crate::report::error_text;
use crate::sources::Subscribed;

/// Longest message, in bytes: a filter is at most 64 KiB of text.
const MESSAGE_MAX: u32 = 1 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections at a time.
const CLIENTS_MAX: usize = 16;

/// What is asked of a capture.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
enum Method {
    /// Have the feeds of this name choose by this filter from here on.
    SetFilter {
        #[serde(default)]
        feed: String,
        filter: String,
    },
}

/// The socket of a capture. Dropping it takes the path away.
pub struct Control {
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // Gone already: somebody tidied up.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a capture lets others change.
struct Served {
    remote: Remote,
    /// Its feeds, with their link types.
    feeds: Vec<(Subscribed, u16)>,
    /// One change at a time: two would not know of each other.
    turn: Mutex<()>,
}

impl Control {
    /// Listens at `path` for changes to these feeds.
    ///
    /// # Errors
    /// If there is something at the path that is not a socket left behind.
    pub fn listen(path: &Path, remote: Remote, feeds: Vec<(Subscribed, u16)>) -> Result<Control> {
        let name = || format!("--control {}", path.display());
        let listener = bind(path).with_context(name)?;
        let control = Control { path: path.to_owned() };
        // With the usual umask nobody else could write to it before, either.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).with_context(name)?;
        let served = Arc::new(Served { remote, feeds, turn: Mutex::new(()) });
        thread::Builder::new()
            .name("weir-control".into())
            .spawn(move || serve(&listener, &served))
            .context("starting a thread")?;
        Ok(control)
    }
}

/// Binds, in place of a socket that nobody listens to any more.
fn bind(path: &Path) -> Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A file that is no socket refuses connections, too.
            let is_socket = path.symlink_metadata()?.file_type().is_socket();
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if !is_socket || !UnixStream::connect(path).is_err_and(refused) {
                bail!("it is there already, and in use or no socket; name another path");
            }
            std::fs::remove_file(path)?;
            Ok(UnixListener::bind(path)?)
        }
        other => Ok(other?),
    }
}

fn serve(listener: &UnixListener, served: &Arc<Served>) {
    let clients = Arc::new(());
    for stream in listener.incoming() {
        // Out of descriptors, for a moment; or one too many.
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if Arc::strong_count(&clients) > CLIENTS_MAX {
            continue;
        }
        let (served, client) = (Arc::clone(served), Arc::clone(&clients));
        let _ = thread::Builder::new().name("weir-client".into()).spawn(move || {
            let _client = client;
            // Whoever goes in mid-sentence has said nothing.
            let _ = talk(stream, &served);
        });
    }
}

fn talk(mut stream: UnixStream, served: &Served) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    loop {
        let Some(message) = receive(&mut stream)? else { return Ok(()) };
        let answer = answer(&message, served);
        send(&mut stream, &answer)?;
    }
}

fn answer(message: &[u8], served: &Served) -> Value {
    // Codes: JSON-RPC 2.0, section 5.1.
    let failed = |id: Value, code: i32, message: String| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    let Ok(request) = serde_json::from_slice::<Value>(message) else {
        return failed(Value::Null, -32700, "this is no JSON".into());
    };
    let id = request.get("id").cloned().unwrap_or_default();
    let method = match Method::deserialize(&request) {
        Ok(method) => method,
        Err(error) => return failed(id, -32600, format!("this is no request: {error}")),
    };
    match served.carry_out(method) {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failed(id, 1, error_text(error.as_ref())),
    }
}

impl Served {
    fn carry_out(&self, method: Method) -> Result<Value> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match method {
            Method::SetFilter { feed, filter } => self.set_filter(&feed, &filter),
        }
    }

    fn set_filter(&self, name: &str, text: &str) -> Result<Value> {
        let own: Vec<_> = self.feeds.iter().filter(|(feed, _)| feed.name == name).collect();
        if own.is_empty() {
            let names: Vec<_> = self.feeds.iter().map(|(feed, _)| feed.name.as_str()).collect();
            bail!("there is no feed '{name}'; there are: {}", names.join(", "));
        }
        // All of them compile before any changes.
        let filters = own.iter().map(|(_, link_type)| compile(text, *link_type));
        let filters: Vec<_> = filters.collect::<Result<_>>()?;
        for ((feed, _), filter) in own.iter().zip(filters) {
            if let Some(other) = self.sharing(feed) {
                bail!(
                    "feed '{name}' shares its rings with '{other}', which takes the same; give the two filters that \
                     differ at the start to change one"
                );
            }
            self.remote.change(feed.source, feed.feed, Change::Filter(filter))?;
        }
        Ok(json!({ "feeds": own.len() }))
    }

    /// Another feed that reads the same rings.
    fn sharing(&self, feed: &Subscribed) -> Option<&str> {
        let is_same = |other: &Subscribed| {
            (other.source, other.feed) == (feed.source, feed.feed) && other.name != feed.name
        };
        self.feeds.iter().find(|(other, _)| is_same(other)).map(|(other, _)| other.name.as_str())
    }
}

/// One message, or `None` if the other side has no more.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_be_bytes(length);
    if length > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}

fn send(stream: &mut UnixStream, message: &Value) -> io::Result<()> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(text.as_bytes())
}

/// `weir filter`: changes the filter of a capture that runs.
pub fn set_filter(args: &FilterArgs) -> Result<u8> {
    let feed = args.feed.clone().unwrap_or_default();
    ask(&args.control, Method::SetFilter { feed, filter: args.filter.clone() })?;
    Ok(crate::EXIT_RAN)
}

/// Asks the capture at `path`.
fn ask(path: &Path, method: Method) -> Result<Value> {
    let name = path.display();
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!("{name}: no capture listens there; start one with --control {name}")
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_value(method)?;
    request["jsonrpc"] = json!("2.0");
    request["id"] = json!(1);
    let talked = send(&mut stream, &request).and_then(|()| receive(&mut stream));
    let answer = talked.with_context(|| format!("{name}: the capture does not answer"))?;
    let Some(answer) = answer else { bail!("{name}: the capture has ended") };
    let answer: Value = serde_json::from_slice(&answer)?;
    match answer.get("error") {
        Some(error) => bail!("{}", error["message"].as_str().unwrap_or("it failed")),
        None => Ok(answer["result"].clone()),
    }
}
