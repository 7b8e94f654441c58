//! The messages of the control socket: JSON-RPC 2.0, each behind its length: four bytes, the highest first.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_capture::error::error_text;

use crate::limits::MESSAGE_BYTES_MAX;

// Source: JSON-RPC 2.0, section 5.1.
const NO_JSON: i32 = -32700;
const NO_REQUEST: i32 = -32600;
const NO_METHOD: i32 = -32601;
const NO_PARAMS: i32 = -32602;
/// Ours, of those that are a server's to define: the capture did not make the change; the message says why.
pub const REFUSED: i32 = -32000;
/// Ours: every connection that the capture serves at a time is busy.
pub const BUSY: i32 = -32001;

/// What is asked of a capture.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub enum Method {
    /// Have the feeds of a name choose by another filter from here on.
    SetFilter(SetFilter),
    /// Have the feeds of a name leave out, or not leave out any more, frames by these entries; gives the list.
    Block(Block),
    /// Give the ledgers of all feeds.
    Ledgers(Ledgers),
}

/// See [`Method::Ledgers`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledgers {}

/// See [`Method::SetFilter`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFilter {
    /// The name; empty where feeds have none.
    #[serde(default)]
    pub feed: String,
    /// The filter; empty takes every frame.
    pub filter: String,
}

/// See [`Method::Block`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The name; empty where feeds have none.
    #[serde(default)]
    pub feed: String,
    /// What to leave out from here on.
    #[serde(default)]
    pub add: Vec<String>,
    /// What not to leave out any more.
    #[serde(default)]
    pub remove: Vec<String>,
}

/// The answer to a message, once `carry_out` has done what it asks; `None` to a notification, which wants none.
pub fn answer(
    message: &[u8],
    carry_out: impl FnOnce(Method) -> anyhow::Result<Value>,
) -> Option<Value> {
    let request = match serde_json::from_slice::<Value>(message) {
        Ok(request) => request,
        Err(error) => {
            return Some(failed(Value::Null, NO_JSON, &format!("this is no JSON: {error}")));
        }
    };
    let (id, named) = match split(&request) {
        Ok(parts) => parts,
        Err(what) => {
            return Some(failed(Value::Null, NO_REQUEST, &format!("this is no request: {what}")));
        }
    };
    let answer = |id: &Value| match method(named, request.get("params")) {
        Ok(method) => match carry_out(method) {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => failed(id.clone(), REFUSED, &error_text(error.as_ref())),
        },
        Err((code, what)) => failed(id.clone(), code, &what),
    };
    match id {
        Some(id) => Some(answer(id)),
        None => {
            answer(&Value::Null);
            None
        }
    }
}

/// The id, if there is one, and the method's name.
fn split(request: &Value) -> Result<(Option<&Value>, &str), &'static str> {
    let Value::Object(members) = request else {
        return Err("write one object, {\"jsonrpc\": \"2.0\", ...}; batches are not served");
    };
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err("its member jsonrpc must be \"2.0\"");
    }
    let id = members.get("id");
    if id.is_some_and(|id| !(id.is_null() || id.is_string() || id.is_number())) {
        return Err("its id must be a number or a string");
    }
    let method = members.get("method").and_then(Value::as_str);
    Ok((id, method.ok_or("it has no method")?))
}

fn method(name: &str, params: Option<&Value>) -> Result<Method, (i32, String)> {
    let none = json!({});
    let params = params.unwrap_or(&none);
    if !params.is_object() {
        return Err((NO_PARAMS, format!("{name}: its params go by name, in an object")));
    }
    let wrong = |error: serde_json::Error| (NO_PARAMS, format!("{name}: {error}"));
    match name {
        "set_filter" => Ok(Method::SetFilter(SetFilter::deserialize(params).map_err(wrong)?)),
        "block" => Ok(Method::Block(Block::deserialize(params).map_err(wrong)?)),
        "ledgers" => Ok(Method::Ledgers(Ledgers::deserialize(params).map_err(wrong)?)),
        _ => Err((
            NO_METHOD,
            format!("there is no method '{name}'; there are: set_filter, block, ledgers"),
        )),
    }
}

/// What asks for it.
pub fn request(method: &Method) -> serde_json::Result<Value> {
    let mut request = serde_json::to_value(method)?;
    request["jsonrpc"] = json!("2.0");
    request["id"] = json!(1);
    Ok(request)
}

/// An answer that says what went wrong.
pub fn failed(id: Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

/// One message, or `None` if the other side has no more.
pub fn receive(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_be_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length as usize];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}

/// Sends one message.
pub fn send(stream: &mut impl Write, message: &Value) -> io::Result<()> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn what_is_wrong_has_the_code_of_the_standard() {
        for (message, code, id) in [
            ("{", NO_JSON, json!(null)),
            ("[]", NO_REQUEST, json!(null)),
            (r#"{"id": 1, "method": "block"}"#, NO_REQUEST, json!(null)),
            (r#"{"jsonrpc": "2.0", "id": 1}"#, NO_REQUEST, json!(null)),
            (r#"{"jsonrpc": "2.0", "id": [], "method": "block"}"#, NO_REQUEST, json!(null)),
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "stop"}"#, NO_METHOD, json!(1)),
            (r#"{"jsonrpc": "2.0", "id": "a", "method": "set_filter"}"#, NO_PARAMS, json!("a")),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "set_filter", "params": ["ip"]}"#,
                NO_PARAMS,
                json!(1),
            ),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "block", "params": {"adds": []}}"#,
                NO_PARAMS,
                json!(1),
            ),
            (r#"{"jsonrpc": "2.0", "id": 7, "method": "block"}"#, REFUSED, json!(7)),
        ] {
            let answer = answer(message.as_bytes(), |_| bail!("not today")).expect(message);
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &id), "{message}");
            assert!(answer["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
        }
    }

    #[test]
    fn what_is_asked_arrives_and_a_notification_is_not_answered() {
        let method = || Method::Block(Block { add: vec!["10.0.0.1".into()], ..Block::default() });
        let request = request(&method()).unwrap();
        let answered = answer(request.to_string().as_bytes(), |asked| {
            assert_eq!(asked, method());
            Ok(json!({ "feeds": 1 }))
        });
        assert_eq!(answered.unwrap()["result"]["feeds"], 1);
        let mut carried_out = false;
        let silent = br#"{"jsonrpc": "2.0", "method": "block"}"#;
        let answered = answer(silent, |_| {
            carried_out = true;
            Ok(json!(null))
        });
        assert!(answered.is_none() && carried_out);
    }
}
