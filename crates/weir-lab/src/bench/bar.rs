//! Targets of a result.

use serde::Serialize;

use super::table::figure;

/// A target for a measured value.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// The target, in words.
    pub what: String,
    /// The measured median; `None` if it was not measured.
    pub value: Option<f64>,
    /// The limit.
    pub limit: f64,
    /// The side of the limit on which the value must be.
    pub side: Side,
    /// Whether the target is met; `None` if the value was not measured.
    pub met: Option<bool>,
}

/// A side of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The value must be the limit or more.
    AtLeast,
    /// The value must be less than the limit.
    Below,
    /// The value must be the limit or less.
    AtMost,
}

impl Bar {
    /// Compares a value with a limit.
    #[must_use]
    pub fn new(what: impl Into<String>, value: Option<f64>, side: Side, limit: f64) -> Bar {
        let met = value.map(|value| match side {
            Side::AtLeast => value >= limit,
            Side::Below => value < limit,
            Side::AtMost => value <= limit,
        });
        Bar { what: what.into(), value, limit, side, met }
    }

    /// Returns the cells of a table row: target, value, limit, verdict.
    pub(super) fn cells(&self) -> [String; 4] {
        let sign = match self.side {
            Side::AtLeast => ">=",
            Side::Below => "<",
            Side::AtMost => "<=",
        };
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "FALLS SHORT",
            None => "not measured",
        };
        let value = self.value.map_or_else(|| "-".to_owned(), figure);
        [self.what.clone(), value, format!("{sign} {}", figure(self.limit)), verdict.to_owned()]
    }
}
