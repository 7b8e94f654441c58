//! QEMU's object tree (QOM), as its monitor shows it.

use serde_json::{Value, json};

use crate::error::VmError;
use crate::limits::QMP_COMMAND_TIME_MAX;
use crate::qmp::Monitor;

/// Carries out a command within the usual time limit.
pub(super) fn command(
    monitor: &mut dyn Monitor,
    name: &'static str,
    arguments: Value,
) -> Result<Value, VmError> {
    monitor.execute(name, arguments, QMP_COMMAND_TIME_MAX)
}

/// A property of an object. Children are properties, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: String,
    /// The type, such as `child<pcie-root-port>`.
    pub(super) kind: String,
}

/// Returns the properties of an object.
pub(super) fn list(monitor: &mut dyn Monitor, path: &str) -> Result<Vec<Property>, VmError> {
    let answer = command(monitor, "qom-list", json!({"path": path}))?;
    let entries = answer.as_array().ok_or(VmError::Protocol { what: "qom-list gives no list" })?;
    let text = |entry: &Value, key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let property =
        |entry| Some(Property { name: text(entry, "name")?, kind: text(entry, "type")? });
    Ok(entries.iter().filter_map(property).collect())
}

/// Returns the value of a property; `None` if the object has no such property.
pub(super) fn get(
    monitor: &mut dyn Monitor,
    path: &str,
    property: &str,
) -> Result<Option<Value>, VmError> {
    match command(monitor, "qom-get", json!({"path": path, "property": property})) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_refusal() => Ok(None),
        Err(error) => Err(error),
    }
}
