//! QEMU's tree of objects, as its monitor shows it.

use serde_json::{Value, json};

use crate::error::VmError;
use crate::limits::QMP_COMMAND_TIME_MAX;
use crate::qmp::Monitor;

/// Carries out a command within the time that commands have.
pub(super) fn command(
    monitor: &mut dyn Monitor,
    name: &'static str,
    arguments: Value,
) -> Result<Value, VmError> {
    monitor.execute(name, arguments, QMP_COMMAND_TIME_MAX)
}

/// A property of an object; children are properties, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: String,
    /// Such as `child<pcie-root-port>`.
    pub(super) kind: String,
}

/// The properties of an object.
pub(super) fn list(monitor: &mut dyn Monitor, path: &str) -> Result<Vec<Property>, VmError> {
    let answer = command(monitor, "qom-list", json!({"path": path}))?;
    let entries = answer.as_array().ok_or(VmError::Protocol { what: "qom-list gives no list" })?;
    let text = |entry: &Value, key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let property =
        |entry| Some(Property { name: text(entry, "name")?, kind: text(entry, "type")? });
    Ok(entries.iter().filter_map(property).collect())
}

/// The value of a property; `None` where the object has none of that name.
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
