//! Error texts for users: each cause once, before the remedy, without error numbers.

use std::error::Error;
use std::io;

/// Returns the text of an error and of its causes. A remedy comes last: `a: cannot be read (No such file or directory);
/// name a directory that ...`.
pub fn words(error: &anyhow::Error) -> String {
    error_text(error.as_ref())
}

/// Returns the text that [`words`] returns, for reports and for the `error` fields of JSON.
pub fn error_text(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<&dyn Error> =
        std::iter::successors(Some(error), |cause| <dyn Error>::source(*cause)).collect();
    let mut texts: Vec<_> = chain.iter().map(|cause| without_number(&cause.to_string())).collect();
    let is_of_kernel = chain.last().is_some_and(|last| last.is::<io::Error>());
    if let [.., before, last] = &mut texts[..]
        && is_of_kernel
        && before.contains("; ")
    {
        *before = before.replacen("; ", &format!(" ({last}); "), 1);
        texts.pop();
    }
    texts.join(": ")
}

/// Removes error numbers: `No such file or directory (os error 2)` becomes `No such file or directory`.
pub fn without_number(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        plain += before;
        match behind.split_once(')') {
            Some((number, behind)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                rest = behind;
            }
            _ => {
                plain += " (os error ";
                rest = behind;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_cause_comes_once_and_the_remedy_last() {
        let missing = || Err::<(), _>(io::Error::from_raw_os_error(libc::ENOENT));
        let told = |text: &'static str| words(&missing().context(text).unwrap_err());
        let reason = "No such file or directory";
        assert_eq!(told("a: cannot be read"), format!("a: cannot be read: {reason}"));
        let expected = format!("a: cannot be read ({reason}); name another; or none");
        assert_eq!(told("a: cannot be read; name another; or none"), expected);
        // The remedy of an outer error is about its own subject.
        let outer = missing().context("opening a").context("no b; make one").unwrap_err();
        assert_eq!(words(&outer), format!("no b; make one: opening a: {reason}"));
        assert_eq!(words(&anyhow::anyhow!("no b; make one")), "no b; make one");
    }

    #[test]
    fn texts_of_reports_have_no_numbers() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(error_text(&missing), "No such file or directory");
    }

    #[test]
    fn only_numbers_of_errors_are_left_out() {
        assert_eq!(without_number("x (os error 2)"), "x");
        assert_eq!(without_number("x (os error 2) at y (os error 13)!"), "x at y!");
        for other in ["x (os error two)", "x (os error ", "os error 2", ""] {
            assert_eq!(without_number(other), other);
        }
    }
}
