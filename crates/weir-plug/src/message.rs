//! JSON-RPC 2.0: requests, responses and notifications, in both directions, without batches.
//!
//! A message has two headers. The envelope belongs to the framework: version, id, number of descriptors, and the name
//! of the application at the beginning of the method (`capture.open`). The rest belongs to the application: the rest of
//! the method's name, and the params.

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::limits::{ERROR_CHARS_MAX, REPEATED_BYTES_MAX};

// Source: JSON-RPC 2.0, section 5.1.
/// The message is not JSON.
pub const NO_JSON: i32 = -32700;
/// The message is not a request.
pub const NO_REQUEST: i32 = -32600;
/// There is no such method.
pub const NO_METHOD: i32 = -32601;
/// The params do not fit the method.
pub const NO_PARAMS: i32 = -32602;
/// One of the codes that a server may define: the request failed, for the reason in the message.
pub const REFUSED: i32 = -32000;
/// There are too many connections or other objects at the moment; try again.
pub const BUSY: i32 = -32001;
/// The client has not sent `plug.hello`, or this names no version that the server supports.
pub const NO_HELLO: i32 = -32002;

/// The other side's answer if it does not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of the codes of this module.
    pub code: i32,
    /// The error as a text for people.
    pub message: String,
}

impl RpcError {
    /// Creates an error with this code.
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> RpcError {
        RpcError { code, message: message.into() }
    }

    /// Creates an error with the code [`REFUSED`].
    #[must_use]
    pub fn refused(message: impl Into<String>) -> RpcError {
        RpcError::new(REFUSED, message)
    }

    /// Creates an error with the code [`NO_PARAMS`].
    #[must_use]
    pub fn params(message: impl Into<String>) -> RpcError {
        RpcError::new(NO_PARAMS, message)
    }

    /// Creates an error with the code [`NO_METHOD`]. Its text lists the existing methods.
    #[must_use]
    pub fn no_method(name: &str, methods: &[&str]) -> RpcError {
        let (name, methods) = (repeated(name), methods.join(", "));
        RpcError::new(NO_METHOD, format!("there is no method '{name}'; there are: {methods}"))
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A request, which needs an answer.
    Request {
        /// A number, a string, or null; the answer has the same id.
        id: Value,
        /// The full name of the method.
        method: String,
        /// The params: an object, an array, or none.
        params: Option<Value>,
    },
    /// A notification, which gets no answer.
    Notification {
        /// The full name of the method.
        method: String,
        /// The params: an object, an array, or none.
        params: Option<Value>,
    },
    /// The answer to a request.
    Response {
        /// The id of the request; null if the id could not be read.
        id: Value,
        /// The result, or an error.
        outcome: Result<Value, RpcError>,
    },
}

impl Message {
    /// Parses a message. Also returns the number of its descriptors.
    ///
    /// # Errors
    /// [`NO_JSON`] or [`NO_REQUEST`]; the text says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<(Message, usize), RpcError> {
        let value = serde_json::from_slice::<Value>(bytes)
            .map_err(|error| RpcError::new(NO_JSON, format!("this is no JSON: {error}")))?;
        Message::of(value)
            .map_err(|what| RpcError::new(NO_REQUEST, format!("this is no request: {what}")))
    }

    fn of(value: Value) -> Result<(Message, usize), &'static str> {
        let Value::Object(mut members) = value else {
            return Err("write one object, {\"jsonrpc\": \"2.0\", ...}; batches are not served");
        };
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err("its member jsonrpc must be \"2.0\"");
        }
        let id = members.remove("id");
        if id.as_ref().is_some_and(|id| !(id.is_null() || id.is_string() || id.is_number())) {
            return Err("its id must be a number, a string or null");
        }
        if id.as_ref().and_then(Value::as_str).is_some_and(|id| id.len() > REPEATED_BYTES_MAX) {
            return Err("its id must have 64 bytes at most");
        }
        let descriptors = match members.get("descriptors") {
            None => 0,
            Some(count) => count
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .ok_or("its member descriptors must be a number")?,
        };
        let params = members.remove("params");
        let message = match (members.remove("method"), id) {
            (Some(Value::String(method)), Some(id)) => Message::Request { id, method, params },
            (Some(Value::String(method)), None) => Message::Notification { method, params },
            (Some(_), _) => return Err("its method must be a string"),
            (None, id) => {
                let outcome = outcome(&mut members).ok_or("it has no method")?;
                Message::Response { id: id.unwrap_or_default(), outcome }
            }
        };
        Ok((message, descriptors))
    }

    /// Returns the message in the form in which it is sent, with the number of its descriptors.
    #[must_use]
    pub fn to_value(&self, descriptors: usize) -> Value {
        let mut value = json!({ "jsonrpc": "2.0" });
        match self {
            Message::Request { id, method, params } => {
                value["id"] = id.clone();
                value["method"] = json!(method);
                params.iter().for_each(|params| value["params"] = params.clone());
            }
            Message::Notification { method, params } => {
                value["method"] = json!(method);
                params.iter().for_each(|params| value["params"] = params.clone());
            }
            Message::Response { id, outcome } => {
                value["id"] = id.clone();
                match outcome {
                    Ok(result) => value["result"] = result.clone(),
                    Err(RpcError { code, message }) => {
                        value["error"] = json!({ "code": code, "message": message });
                    }
                }
            }
        }
        if descriptors > 0 {
            value["descriptors"] = json!(descriptors);
        }
        value
    }

    /// Creates the answer to the request with this id. Only the beginning of an error's text is kept, because the text
    /// may repeat the request.
    #[must_use]
    pub fn response(id: Value, outcome: Result<Value, RpcError>) -> Message {
        let short = |error: RpcError| RpcError {
            message: error.message.chars().take(ERROR_CHARS_MAX).collect(),
            ..error
        };
        Message::Response { id, outcome: outcome.map_err(short) }
    }
}

/// Returns the first characters of a name that a peer has sent, for a text that repeats it.
fn repeated(name: &str) -> String {
    name.chars().take(REPEATED_BYTES_MAX).collect()
}

/// Returns the result or the error of a response.
fn outcome(members: &mut Map<String, Value>) -> Option<Result<Value, RpcError>> {
    match (members.remove("result"), members.remove("error")) {
        (Some(result), None) => Some(Ok(result)),
        (None, Some(error)) => {
            let code = error.get("code")?.as_i64()?;
            let message = error.get("message")?.as_str()?;
            Some(Err(RpcError::new(i32::try_from(code).ok()?, message)))
        }
        _ => None,
    }
}

/// Splits a method's full name into the application and the rest.
#[must_use]
pub fn split_method(whole: &str) -> Option<(&str, &str)> {
    whole
        .split_once('.')
        .filter(|(application, method)| !application.is_empty() && !method.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(text: &str) -> i32 {
        Message::parse(text.as_bytes()).expect_err(text).code
    }

    #[test]
    fn what_is_wrong_has_the_code_of_the_standard() {
        for text in ["", "{", "\u{1}", "nul", r#"{"jsonrpc": "2.0",}"#] {
            assert_eq!(code(text), NO_JSON, "{text}");
        }
        assert_eq!(code(&"[".repeat(100_000)), NO_JSON);
        for text in [
            "[]",
            "1",
            r#"{"id": 1, "method": "a.b"}"#,
            r#"{"jsonrpc": 2.0, "id": 1, "method": "a.b"}"#,
            r#"{"jsonrpc": "2.0", "id": 1}"#,
            r#"{"jsonrpc": "2.0", "id": [], "method": "a.b"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a.b", "descriptors": -1}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a.b", "descriptors": "2"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1, "message": ""}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": "1", "message": ""}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 4294967296, "message": ""}}"#,
        ] {
            assert_eq!(code(text), NO_REQUEST, "{text}");
        }
    }

    #[test]
    fn answers_repeat_little_of_what_was_asked() {
        let id = "x".repeat(65);
        let text = format!(r#"{{"jsonrpc": "2.0", "id": "{id}", "method": "a.b"}}"#);
        assert_eq!(code(&text), NO_REQUEST);
        let error = RpcError::no_method(&"ä".repeat(1000), &["one"]);
        assert!(error.message.len() < 250, "{}", error.message);
        let error = RpcError::refused("ä".repeat(1 << 20));
        let Message::Response { outcome: Err(error), .. } = Message::response(json!(1), Err(error))
        else {
            panic!("an error stays one")
        };
        assert_eq!(error.message.chars().count(), ERROR_CHARS_MAX);
    }

    #[test]
    fn names_have_an_application_and_a_method() {
        assert_eq!(split_method("capture.open"), Some(("capture", "open")));
        assert_eq!(split_method("a.b.c"), Some(("a", "b.c")));
        for none in ["", "open", ".open", "capture."] {
            assert_eq!(split_method(none), None, "{none}");
        }
    }

    fn id() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<u64>().prop_map(Value::from),
            ".{0,16}".prop_map(Value::from)
        ]
    }

    fn params() -> impl Strategy<Value = Option<Value>> {
        let value = prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)];
        prop::option::of(prop::collection::vec(value, 0..4).prop_map(Value::from))
    }

    proptest! {
        #[test]
        fn a_message_is_itself_after_its_way(
            id in id(), method in ".*", params in params(), code in any::<i32>(), said in ".*",
            descriptors in 0usize..1000,
        ) {
            let error = RpcError::new(code, said);
            for message in [
                Message::Request { id: id.clone(), method: method.clone(), params: params.clone() },
                Message::Notification { method: method.clone(), params: params.clone() },
                Message::response(id.clone(), Ok(params.clone().unwrap_or_default())),
                Message::response(id.clone(), Err(error)),
            ] {
                let bytes = message.to_value(descriptors).to_string();
                prop_assert_eq!(Message::parse(bytes.as_bytes()), Ok((message, descriptors)));
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Message::parse(&bytes);
        }
    }
}
