//! Finds the position of a syntax error, which libpcap does not report.
//!
//! libpcap's scanner rejects a number that is too large, with a message of its own, when the parser asks for the next
//! word. So if such a number follows a part of the text that the parser can follow, this message comes. If it follows a
//! word that does not fit, the parser has given up before.

use std::ffi::CString;

use crate::libpcap::Dead;

const PROBE: &str = " 99999999999";

/// Returns the byte range of the word at which the parser gave up, or the end of the text if the parser expected more.
/// `None`: this libpcap does not reveal it.
pub(crate) fn of_syntax_error(handle: &Dead, text: &str) -> Option<(usize, usize)> {
    let fits = |end: usize| {
        let probe = CString::new(format!("{}{PROBE}", &text[..end])).ok();
        let error = probe.and_then(|probe| handle.compile(&probe).err());
        error.is_some_and(|error| error.contains("overflow"))
    };
    if !fits(0) {
        return None;
    }
    let words = words(text);
    let first = words.partition_point(|&(_, end)| fits(end));
    Some(words.get(first).copied().unwrap_or((text.len(), text.len())))
}

/// Returns the byte ranges of the texts that the scanner may take for one word each.
fn words(text: &str) -> Vec<(usize, usize)> {
    let in_word = |c: char| c.is_alphanumeric() || "._-:/\\".contains(c);
    let mut words: Vec<(usize, usize)> = Vec::new();
    let mut before = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match words.last_mut() {
            Some(word) if before && in_word(c) => word.1 = end,
            _ if c.is_whitespace() => {}
            _ => words.push((at, end)),
        }
        before = in_word(c);
    }
    words
}
