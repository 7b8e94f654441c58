//! Changes to a capture that runs: a Unix socket beside it, and the commands that speak to one.
//!
//! JSON-RPC 2.0, each message behind its length: four bytes, the highest first. Who may connect is up to the
//! socket's permissions, which are its owner's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_capture::{Change, Remote};
use weir_filter::block::Entry;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use crate::cli::{BlockArgs, FilterArgs};
use crate::feeds::compile;
use crate::report::error_text;
use crate::sources::Subscribed;

/// Longest message, in bytes: a full block list, 65,536 flows of IPv6, is 7 MB of text.
const MESSAGE_MAX: u32 = 16 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections at a time.
const CLIENTS_MAX: usize = 16;
/// Entries of block lists in one message: flows of IPv6 take 100 bytes.
const ENTRIES_A_MESSAGE: usize = 4096;

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
    /// Have the feeds of this name leave out, or not leave out any more, frames by these entries; gives the list.
    Block {
        #[serde(default)]
        feed: String,
        #[serde(default)]
        add: Vec<String>,
        #[serde(default)]
        remove: Vec<String>,
    },
}

/// The socket of a capture. Dropping it takes the path away.
pub struct Control {
    path: PathBuf,
    /// Device and inode: another capture may have come to the path.
    own: (u64, u64),
}

impl Drop for Control {
    fn drop(&mut self) {
        let is_own =
            self.path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == self.own);
        if is_own {
            // Gone by now: somebody tidied up.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a capture lets others change.
struct Served {
    remote: Remote,
    /// Its feeds, with their link types.
    feeds: Vec<(Subscribed, u16)>,
    /// The block lists that were asked for, by feed's name; held while anything changes.
    lists: Mutex<BTreeMap<String, BTreeSet<Entry>>>,
}

impl Control {
    /// Listens at `path` for changes to these feeds.
    ///
    /// # Errors
    /// If there is something at the path that is not a socket left behind.
    pub fn listen(path: &Path, remote: Remote, feeds: Vec<(Subscribed, u16)>) -> Result<Control> {
        let name = || format!("--control {}", path.display());
        let listener = bind(path).with_context(name)?;
        let meta = path.symlink_metadata().with_context(name)?;
        let control = Control { path: path.to_owned(), own: (meta.dev(), meta.ino()) };
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).with_context(name)?;
        let served = Arc::new(Served { remote, feeds, lists: Mutex::default() });
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
        // Its permissions come after the socket, and whoever was quicker is in the queue.
        let is_ours =
            socket_peercred(&stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
        if !is_ours {
            continue;
        }
        if Arc::strong_count(&clients) > CLIENTS_MAX {
            let text = format!("{CLIENTS_MAX} others are connected; try again");
            let mut stream = stream;
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
            let _ = send(&mut stream, &failed(Value::Null, 1, &text));
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
    let Ok(request) = serde_json::from_slice::<Value>(message) else {
        return failed(Value::Null, -32700, "this is no JSON");
    };
    let id = request.get("id").cloned().unwrap_or_default();
    let method = match Method::deserialize(&request) {
        Ok(method) => method,
        Err(error) => return failed(id, -32600, &format!("this is no request: {error}")),
    };
    match served.carry_out(method) {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failed(id, 1, &error_text(error.as_ref())),
    }
}

/// Codes: JSON-RPC 2.0, section 5.1; 1 is ours.
fn failed(id: Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

impl Served {
    fn carry_out(&self, method: Method) -> Result<Value> {
        match method {
            Method::SetFilter { feed, filter } => self.set_filter(&feed, &filter),
            Method::Block { feed, add, remove } => {
                let own = self.named(&feed)?;
                if own.iter().any(|(_, link_type)| *link_type != LINKTYPE_ETHERNET) {
                    bail!(
                        "block lists are of Ethernet frames only, and these have another link type"
                    );
                }
                let parse = |texts: Vec<String>| -> Result<Vec<Entry>> {
                    texts.iter().map(|text| Ok(text.parse()?)).collect()
                };
                let (add, remove) = (parse(add)?, parse(remove)?);
                // One change at a time: two would not know of each other.
                let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
                if !add.is_empty() || !remove.is_empty() {
                    self.change_all(&own, |_| Change::Block {
                        remove: remove.clone(),
                        add: add.clone(),
                    })?;
                }
                let list = lists.entry(feed).or_default();
                remove.iter().for_each(|entry| _ = list.remove(entry));
                list.extend(add);
                let list: Vec<String> = list.iter().map(Entry::to_string).collect();
                Ok(json!({ "feeds": own.len(), "blocked": list }))
            }
        }
    }

    /// The feeds of this name: one of each source. None of them shares its rings with one of another name.
    fn named(&self, name: &str) -> Result<Vec<&(Subscribed, u16)>> {
        let own: Vec<_> = self.feeds.iter().filter(|(feed, _)| feed.name == name).collect();
        if own.is_empty() {
            let names: BTreeSet<_> =
                self.feeds.iter().map(|(feed, _)| feed.name.as_str()).collect();
            let names: Vec<_> = names.into_iter().collect();
            match names[..] {
                [""] => bail!(
                    "there is no feed '{name}'; the one that there is has no name, so leave --feed out"
                ),
                _ => bail!("there is no feed '{name}'; there are: {}", names.join(", ")),
            }
        }
        if let Some(other) = own.iter().find_map(|(feed, _)| self.sharing(feed)) {
            bail!(
                "feed '{name}' shares its rings with '{other}', which takes the same; give the two filters that \
                 differ at the start to change one"
            );
        }
        Ok(own)
    }

    fn set_filter(&self, name: &str, text: &str) -> Result<Value> {
        let own = self.named(name)?;
        // All of them compile before any changes.
        let filters = own.iter().map(|(_, link_type)| compile(text, *link_type));
        let filters: Vec<_> = filters.collect::<Result<_>>()?;
        let _turn = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        self.change_all(&own, |number| Change::Filter(filters[number].clone()))?;
        Ok(json!({ "feeds": own.len() }))
    }

    /// Changes each of the feeds, also behind one that refuses: then it says which did.
    fn change_all(
        &self,
        feeds: &[&(Subscribed, u16)],
        change: impl Fn(usize) -> Change,
    ) -> Result<()> {
        let change_one = |(number, (feed, _)): (usize, &&(Subscribed, u16))| {
            self.remote.change(feed.source, feed.feed, change(number)).err()
        };
        let mut refusals: Vec<_> = feeds.iter().enumerate().filter_map(change_one).collect();
        let changed = feeds.len() - refusals.len();
        match (refusals.pop(), changed) {
            (None, _) => Ok(()),
            (Some(error), 0) => Err(error.into()),
            (Some(error), changed) => Err(anyhow::Error::new(error).context(format!(
                "{changed} of {} sources have changed, and the others have not",
                feeds.len()
            ))),
        }
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

/// `weir block`: changes a block list of a capture that runs, or shows it.
pub fn block(args: &BlockArgs) -> Result<u8> {
    let mut entries = args.entries.clone();
    if let Some(path) = &args.file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--file {}: cannot be read", path.display()))?;
        // What is behind a `#` is said to people.
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        entries.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    let feed = args.feed.clone().unwrap_or_default();
    let mut blocked = Value::Null;
    // Each part of a long list is a change for itself: a source does nothing else meanwhile.
    let mut parts: Vec<&[String]> = entries.chunks(ENTRIES_A_MESSAGE).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    for part in parts {
        let (add, remove) = if args.remove { (&[][..], part) } else { (part, &[][..]) };
        let (add, remove) = (add.to_vec(), remove.to_vec());
        let method = Method::Block { feed: feed.clone(), add, remove };
        blocked = ask(&args.control, method)?["blocked"].take();
    }
    if entries.is_empty() {
        for entry in blocked.as_array().into_iter().flatten() {
            println!("{}", entry.as_str().unwrap_or_default());
        }
    }
    Ok(crate::EXIT_RAN)
}

/// Asks the capture at `path`.
fn ask(path: &Path, method: Method) -> Result<Value> {
    let name = path.display();
    let mut stream = UnixStream::connect(path).map_err(|error| {
        let text = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("{name}: the capture there is another user's; ask as that user, or as root")
            }
            _ => format!("{name}: no capture listens there; start one with --control {name}"),
        };
        anyhow::Error::new(error).context(text)
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
