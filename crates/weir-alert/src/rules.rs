//! Rules that select alerts.

use crate::eve::Alert;

/// Selects alerts. An alert must match every kind of rule; a kind without rules matches all alerts.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The alert's severity is at most this number. Lower numbers are more severe.
    pub severity_max: Option<u64>,
    /// The alert matches one of these rules for signatures.
    pub signatures: Vec<Signature>,
    /// The alert's category contains one of these texts; case is ignored.
    pub categories: Vec<String>,
}

/// A rule for signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// The signature has this id.
    Id(u64),
    /// The signature's text contains this text; case is ignored.
    Text(String),
}

impl From<&str> for Signature {
    /// Creates a rule from text: digits are an id; any other text is searched for in the signature.
    fn from(text: &str) -> Signature {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_number => Signature::Id(number),
            _ => Signature::Text(text.to_owned()),
        }
    }
}

impl Rules {
    /// Returns whether the rules select this alert. An alert that lacks the field of a rule does not match the rule.
    #[must_use]
    pub fn take(&self, alert: &Alert) -> bool {
        let of_signature = |rule: &Signature| match rule {
            Signature::Id(id) => alert.signature_id == Some(*id),
            Signature::Text(text) => has(&alert.signature, text),
        };
        let is_bad_enough = |max: u64| alert.severity.is_some_and(|severity| severity <= max);
        let of_category = |text: &String| has(&alert.category, text);
        self.severity_max.is_none_or(is_bad_enough)
            && (self.signatures.is_empty() || self.signatures.iter().any(of_signature))
            && (self.categories.is_empty() || self.categories.iter().any(of_category))
    }
}

fn has(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eve::parse;

    #[test]
    fn every_kind_of_rule_that_is_there_must_take_an_alert() {
        let alert = |severity: &str| {
            let line = format!(
                r#"{{"event_type":"alert","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","alert":{{{severity}
                "signature_id":2001219,"signature":"ET SCAN Potential SSH Scan","category":"Leak"}}}}"#
            );
            parse(line.as_bytes()).unwrap()
        };
        let (two, none) = (alert(r#""severity":2,"#), alert(""));
        let rules = |severity_max, signatures: &[&str], categories: &[&str]| Rules {
            severity_max,
            signatures: signatures.iter().map(|text| Signature::from(*text)).collect(),
            categories: categories.iter().map(|text| (*text).to_owned()).collect(),
        };
        for (rules, takes_two, takes_none) in [
            (rules(None, &[], &[]), true, true),
            (rules(Some(2), &[], &[]), true, false),
            (rules(Some(1), &[], &[]), false, false),
            (rules(None, &["2001219"], &[]), true, true),
            (rules(None, &["200121"], &[]), false, false),
            (rules(None, &["no", "ssh scan"], &[]), true, true),
            (rules(None, &["no"], &[]), false, false),
            (rules(None, &[], &["LEAK"]), true, true),
            (rules(Some(3), &["2001219"], &["trojan"]), false, false),
            (rules(Some(3), &["2001219"], &["trojan", "leak"]), true, false),
        ] {
            assert_eq!((rules.take(&two), rules.take(&none)), (takes_two, takes_none), "{rules:?}");
        }
        // Too large for a number.
        assert_eq!(Signature::from("99999999999999999999"), Signature::Text("9".repeat(20)));
    }
}
