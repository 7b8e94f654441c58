//! `weir filter` and `weir trigger`: requests to a running capture at its control socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_plug::message::{REFUSED, RpcError};

use crate::cli::{FilterArgs, TriggerArgs};
use crate::control::MESSAGE_TIMEOUT;
use crate::control::rpc::{self, Method, SetFilter, Trigger};

/// Runs `weir filter`, which changes the filter of a running capture.
pub fn set_filter(args: &FilterArgs) -> Result<u8> {
    let feed = args.feed.clone().unwrap_or_default();
    let filter = args.filter.join(" ");
    let method = Method::SetFilter(SetFilter { feed: feed.clone(), filter: filter.clone() });
    let result = ask(&args.control, &method)?;
    if args.json {
        println!("{result}");
        return Ok(crate::EXIT_RAN);
    }
    let what = match filter.trim() {
        "" => "every frame is taken".to_owned(),
        text => format!("'{text}' is in force"),
    };
    let sources = match result["feeds"].as_u64() {
        Some(count @ 2..) => format!(" at {count} sources"),
        _ => String::new(),
    };
    println!("{}{what}{sources}", prefix(&feed));
    Ok(crate::EXIT_RAN)
}

/// Runs `weir trigger`, which makes a running capture record the frames around this moment.
pub fn trigger(args: &TriggerArgs) -> Result<u8> {
    let result = ask(&args.control, &Method::Trigger(Trigger {}))?;
    if args.json {
        println!("{result}");
    } else {
        println!("the recorder is told");
    }
    Ok(crate::EXIT_RAN)
}

/// Returns the prefix of a message about a feed; empty for a feed without a name.
pub fn prefix(feed: &str) -> String {
    if feed.is_empty() { String::new() } else { format!("{feed}: ") }
}

/// Sends a request to the capture at `path`, and returns its result. A refusal is an [`RpcError`].
pub fn ask(path: &Path, method: &Method) -> Result<Value> {
    let name = path.display();
    let mut stream = UnixStream::connect(path).map_err(|error| {
        let text = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("{name}: the capture there is another user's; ask as that user, or as root")
            }
            io::ErrorKind::NotFound => {
                format!("{name}: no capture listens there; start one with --control {name}")
            }
            _ => format!(
                "{name}: no capture listens there: it is no socket, or was left by a capture that has ended; give what \
                 a capture that runs was given as --control"
            ),
        };
        anyhow::Error::new(error).context(text)
    })?;
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let request = rpc::request(method)?;
    let talked = rpc::send(&mut stream, &request).and_then(|()| rpc::receive(&mut stream));
    let answer = talked.with_context(|| format!("{name}: the capture does not answer"))?;
    let Some(answer) = answer else { bail!("{name}: the capture has ended") };
    let answer: Value = serde_json::from_slice(&answer)?;
    match answer.get("error") {
        Some(error) => {
            let message = error["message"].as_str().unwrap_or("it failed");
            let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok());
            Err(RpcError::new(code.unwrap_or(REFUSED), message).into())
        }
        None => Ok(answer["result"].clone()),
    }
}
