//! Parses the output of virsh: text of QEMU and of the guest, which libvirt passes on.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::error::VmError;
use crate::qmp::{Event, Message, parse};

/// Returns the value of the first attribute, for example of ` path="/run/x"`.
#[must_use]
pub fn attribute(text: &str) -> Option<PathBuf> {
    let value = text.split_once("=\"")?.1.split_once('"')?.0;
    let plain = value.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    Some(plain.replace("&apos;", "'").replace("&amp;", "&").into())
}

/// Parses a line such as `event SHUTDOWN at 1700000000.123456 for domain 'web1': {"guest":true}`. The data at the end
/// may be missing.
#[must_use]
pub fn event(line: &[u8]) -> Option<Event> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (name, rest) = text.strip_prefix("event ")?.split_once(' ')?;
    // The text before the data, which has the domain's name, contains no `{`.
    let data = rest.find('{').and_then(|at| serde_json::from_str(&rest[at..]).ok());
    Some(Event { name: name.to_owned(), data: data.unwrap_or_else(|| json!({})) })
}

/// Parses QEMU's answer to a command, as `virsh qemu-monitor-command` prints it.
///
/// # Errors
/// [`VmError::Refused`] if QEMU has refused the command; [`VmError::Protocol`] for bytes that are not an answer.
pub fn answer(command: &'static str, output: &str) -> Result<Value, VmError> {
    // Libvirt's own ids are not numbers, so the id is replaced.
    let mut answer: Value = serde_json::from_str(output)
        .map_err(|_| VmError::Protocol { what: "virsh gives no JSON" })?;
    let Some(fields) = answer.as_object_mut() else {
        return Err(VmError::Protocol { what: "virsh gives no answer of QEMU's" });
    };
    fields.insert("id".to_owned(), 0.into());
    match parse(answer.to_string().as_bytes()) {
        Ok(Message::Return { value, .. }) => Ok(value),
        Ok(Message::Error { class, text, .. }) => Err(VmError::Refused { command, class, text }),
        _ => Err(VmError::Protocol { what: "an answer to no command" }),
    }
}
