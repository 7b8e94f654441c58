//! Parses the output of virsh: bytes of QEMU's and of the guest's, as libvirt hands them on.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::error::VmError;
use crate::qmp::{Event, Message, parse};

/// The value of the first attribute, as ` path="/run/x"` has it.
#[must_use]
pub fn attribute(text: &str) -> Option<PathBuf> {
    let value = text.split_once("=\"")?.1.split_once('"')?.0;
    let plain = value.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    Some(plain.replace("&apos;", "'").replace("&amp;", "&").into())
}

/// `event SHUTDOWN at 1700000000.123456 for domain 'web1': {"guest":true}`, without the facts where there are none.
#[must_use]
pub fn event(line: &[u8]) -> Option<Event> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (name, rest) = text.strip_prefix("event ")?.split_once(' ')?;
    // A name has no `{`.
    let data = rest.find('{').and_then(|at| serde_json::from_str(&rest[at..]).ok());
    Some(Event { name: name.to_owned(), data: data.unwrap_or_else(|| json!({})) })
}

/// The answer of QEMU's to a command, as `virsh qemu-monitor-command` prints it.
///
/// # Errors
/// [`VmError::Refused`] where QEMU has refused it; [`VmError::Protocol`] for bytes that are not an
/// answer.
pub fn answer(command: &'static str, output: &str) -> Result<Value, VmError> {
    // Libvirt's own ids are no numbers.
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
