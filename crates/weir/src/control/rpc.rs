//! The messages of the control socket: JSON-RPC 2.0, each preceded by its length.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_plug::framing;
use weir_plug::limits::MESSAGE_BYTES_MAX;
use weir_plug::message::{Message, NO_METHOD, NO_PARAMS, NO_REQUEST, REFUSED, RpcError};

use crate::error_words::error_text;

/// A request to a capture.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub enum Method {
    /// Changes the filter of the feeds with a name.
    SetFilter(SetFilter),
    /// Adds and removes entries of the block list of the feeds with a name, and returns the list.
    Block(Block),
    /// Returns the ledgers of all feeds.
    Ledgers(Ledgers),
    /// Returns the JSON object of `--json-every`.
    Status(Status),
    /// Triggers the recorder.
    Trigger(Trigger),
}

/// See [`Method::Trigger`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trigger {}

/// See [`Method::Ledgers`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledgers {}

/// See [`Method::Status`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {}

/// See [`Method::SetFilter`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFilter {
    /// Name of the feeds; empty if they have none.
    #[serde(default)]
    pub feed: String,
    /// The filter; if empty, all frames pass.
    pub filter: String,
}

/// See [`Method::Block`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Name of the feeds; empty if they have none.
    #[serde(default)]
    pub feed: String,
    /// Entries to block.
    #[serde(default)]
    pub add: Vec<String>,
    /// Entries to unblock.
    #[serde(default)]
    pub remove: Vec<String>,
    /// Time after which the entries of `add` expire, in milliseconds; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// Parses a message, executes it with `carry_out`, and returns the response; `None` for a notification.
pub fn answer(
    message: &[u8],
    carry_out: impl FnOnce(Method) -> anyhow::Result<Value>,
) -> Option<Value> {
    let (id, named, params) = match Message::parse(message) {
        Ok((Message::Request { id, method, params }, _)) => (Some(id), method, params),
        Ok((Message::Notification { method, params }, _)) => (None, method, params),
        Ok((Message::Response { .. }, _)) => {
            return Some(failed(Value::Null, NO_REQUEST, "this is no request: it has no method"));
        }
        Err(RpcError { code, message }) => return Some(failed(Value::Null, code, &message)),
    };
    let outcome = method(&named, params.as_ref()).and_then(|method| {
        carry_out(method).map_err(|error| (REFUSED, error_text(error.as_ref())))
    });
    let id = id?;
    let outcome = outcome.map_err(|(code, message)| RpcError { code, message });
    Some(Message::response(id, outcome).to_value(0))
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
        "status" => Ok(Method::Status(Status::deserialize(params).map_err(wrong)?)),
        "trigger" => Ok(Method::Trigger(Trigger::deserialize(params).map_err(wrong)?)),
        _ => Err((
            NO_METHOD,
            format!(
                "there is no method '{name}'; there are: set_filter, block, ledgers, status, trigger"
            ),
        )),
    }
}

/// Returns the JSON-RPC request for a method.
pub fn request(method: &Method) -> serde_json::Result<Value> {
    let mut request = serde_json::to_value(method)?;
    request["jsonrpc"] = json!("2.0");
    request["id"] = json!(1);
    Ok(request)
}

/// Returns an error response.
pub fn failed(id: Value, code: i32, message: &str) -> Value {
    Message::response(id, Err(RpcError::new(code, message))).to_value(0)
}

/// Receives one message. Returns `None` at the end of the stream.
pub fn receive(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    framing::receive(stream, MESSAGE_BYTES_MAX)
}

/// Sends one message.
pub fn send(stream: &mut impl Write, message: &Value) -> io::Result<()> {
    framing::send(stream, message.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use weir_plug::message::NO_JSON;

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
