//! QEMU's messages.

use serde_json::{Map, Value};

use crate::limits::QMP_TEXT_CHARS_MAX;

/// An event in QEMU or the guest, such as `DEVICE_DELETED` or `VSERPORT_CHANGE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// QEMU's name of the event.
    pub name: String,
    /// The data of the event, which depend on its name; an empty object if there are none.
    pub data: Value,
}

impl Event {
    /// Returns a text in the data.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.data.get(key)?.as_str()
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Greeting {
        version: String,
    },
    Return {
        id: u64,
        value: Value,
    },
    /// The id is missing if QEMU could not parse the command.
    Error {
        id: Option<u64>,
        class: String,
        text: String,
    },
    Event(Event),
}

impl Message {
    /// Returns the id of the command that the message answers.
    pub(crate) fn id(&self) -> Option<u64> {
        match self {
            Message::Return { id, .. } => Some(*id),
            Message::Error { id, .. } => *id,
            Message::Greeting { .. } | Message::Event(_) => None,
        }
    }
}

/// Parses one line; the error describes the fault. serde_json limits the nesting.
pub(crate) fn parse(line: &[u8]) -> Result<Message, &'static str> {
    let value: Value = serde_json::from_slice(line).map_err(|_| "a line that is no JSON")?;
    let Value::Object(mut object) = value else { return Err("a line that is no JSON object") };
    if let Some(greeting) = object.get("QMP") {
        return Ok(Message::Greeting { version: version_of(greeting) });
    }
    if let Some(name) = object.get("event") {
        let name = name.as_str().ok_or("an event without a name")?.to_owned();
        let data = object.remove("data").unwrap_or_else(|| Value::Object(Map::new()));
        return Ok(Message::Event(Event { name, data }));
    }
    let id = object.get("id").map(|id| id.as_u64().ok_or("an id that no command had"));
    let id = id.transpose()?;
    if let Some(value) = object.remove("return") {
        return Ok(Message::Return { id: id.ok_or("an answer without an id")?, value });
    }
    let error = object.get("error").ok_or("a message of an unknown kind")?;
    let text_of = |key| error.get(key).and_then(Value::as_str).unwrap_or_default();
    Ok(Message::Error { id, class: printable(text_of("class")), text: printable(text_of("desc")) })
}

fn version_of(greeting: &Value) -> String {
    let number = |key| greeting.pointer(&format!("/version/qemu/{key}")).and_then(Value::as_u64);
    match (number("major"), number("minor"), number("micro")) {
        (Some(major), Some(minor), Some(micro)) => format!("{major}.{minor}.{micro}"),
        _ => "unknown".to_owned(),
    }
}

/// Returns the text in the form in which an error may repeat it: on one line, without control characters, and not too
/// long.
pub(crate) fn printable(text: &str) -> String {
    let kept = text.chars().take(QMP_TEXT_CHARS_MAX);
    kept.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn messages_of_a_real_qemu_are_read() {
        let read = |text: &str| parse(text.as_bytes()).unwrap();
        let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7},
            "package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}"#;
        assert_eq!(read(greeting), Message::Greeting { version: "7.2.22".to_owned() });
        assert_eq!(read(r#"{"return": {}, "id": 7}"#), Message::Return { id: 7, value: json!({}) });
        let error =
            r#"{"id": 3, "error": {"class": "GenericError", "desc": "Duplicate\u001b[2J"}}"#;
        let (class, text) = ("GenericError".to_owned(), "Duplicate [2J".to_owned());
        assert_eq!(read(error), Message::Error { id: Some(3), class, text });
        let event = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "DEVICE_DELETED",
            "data": {"device": "weir-region-1", "path": "/machine/peripheral/weir-region-1"}}"#;
        let Message::Event(event) = read(event) else { panic!("{event}") };
        assert_eq!((&*event.name, event.text("device")), ("DEVICE_DELETED", Some("weir-region-1")));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let deep = "[".repeat(100_000);
        for text in
            ["", "1", "{}", "{", "[]", "\"", "\u{0}", r#"{"return": {}}"#, r#"{"event": 1}"#, &deep]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text:.20}");
        }
        assert!(parse(br#"{"return": {}, "id": "1"}"#).is_err());
        assert!(parse(br#"{"return": {}, "id": -1}"#).is_err());
        assert!(parse(b"{\"event\": \"\xff\"}").is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        let keys = prop::sample::select(vec![
            "QMP", "return", "error", "event", "data", "id", "class", "desc", "version", "qemu",
            "major",
        ]);
        leaf.prop_recursive(3, 30, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(keys.clone(), inner, 0..6).prop_map(|map| {
                    map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_a_message_or_an_error(value in any_json()) {
            let _ = parse(value.to_string().as_bytes());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
