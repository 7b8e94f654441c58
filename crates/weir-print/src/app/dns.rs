//! Prints DNS and multicast DNS: header, questions and answers. Source: RFC 1035, 6762, 6891.
//!
//! Messages are parsed by `simple-dns`. Compressed names, which point at other names, are a common source of errors in
//! DNS parsers.

use simple_dns::rdata::RData;
use simple_dns::{Name, Packet, QTYPE, Question, ResourceRecord, TYPE};

use crate::bytes::Bytes;
use crate::limits::RECORDS_MAX;
use crate::line::Line;
use crate::text::Text;

pub const PORT: u16 = 53;
pub const MULTICAST_PORT: u16 = 5353;
pub const HEADER_BYTES: usize = 12;

const RESPONSE: u16 = 0x8000;
const AUTHORITATIVE: u16 = 0x0400;
const TRUNCATED: u16 = 0x0200;
const RECURSION_WANTED: u16 = 0x0100;
const RECURSION_OFFERED: u16 = 0x0080;
const AUTHENTIC: u16 = 0x0020;
const CHECKING_DISABLED: u16 = 0x0010;

/// Writes a message: `4660+ A? example.com. (29)` or `4660 1/0/0 A 10.0.0.1 (45)`.
///
/// With `is_multicast`, the top bit of the class is a flag, as in multicast DNS. With `is_part`, the rest of the
/// message is in other fragments.
pub fn write(line: &mut Line<'_>, message: Bytes<'_>, is_multicast: bool, is_part: bool) {
    let Some(head) = message.head::<HEADER_BYTES>() else { return line.cut_off("domain") };
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let flags = be16(2);
    line.out.dec(be16(0));
    write_operation(line.out, flags);
    let parsed = Packet::parse(message.kept());
    if flags & RESPONSE == 0 {
        write_counts(line.out, [be16(4), be16(6), be16(8), be16(10)]);
        if let Ok(packet) = &parsed {
            write_questions(line.out, &packet.questions, is_multicast);
        }
    } else {
        write_outcome(line.out, flags);
        if be16(4) != 1 {
            line.out.put(" [");
            line.out.dec(be16(4));
            line.out.put("q]");
        }
        for (separator, at) in [(" ", 6), ("/", 8), ("/", 10)] {
            line.out.put(separator);
            line.out.dec(be16(at));
        }
        if let Ok(packet) = &parsed {
            write_answers(line.out, &packet.answers);
        }
    }
    if parsed.is_err() {
        line.out.put(if message.is_whole() && !is_part {
            " [malformed domain]"
        } else {
            " [|domain]"
        });
    }
    line.out.put(" (");
    line.out.dec(message.len() as u64);
    line.out.put(")");
}

/// Writes the questions: ` A? example.com.`. With multicast DNS also whether a unicast (QU) or a multicast answer (QM)
/// is wanted.
fn write_questions(out: &mut Vec<u8>, questions: &[Question<'_>], is_multicast: bool) {
    for question in questions.iter().take(RECORDS_MAX) {
        out.put(" ");
        write_question_type(out, question.qtype);
        match (is_multicast, question.unicast_response) {
            (true, true) => out.put(" (QU)"),
            (true, false) => out.put(" (QM)"),
            (false, _) => {}
        }
        out.put("? ");
        write_name(out, &question.qname);
    }
    write_more(out, questions.len());
}

fn write_answers(out: &mut Vec<u8>, answers: &[ResourceRecord<'_>]) {
    let mut separator = " ";
    for record in answers.iter().take(RECORDS_MAX) {
        out.put(separator);
        separator = ", ";
        write_record(out, record);
    }
    write_more(out, answers.len());
}

fn write_more(out: &mut Vec<u8>, count: usize) {
    if count > RECORDS_MAX {
        out.put(", ...");
    }
}

fn write_operation(out: &mut Vec<u8>, flags: u16) {
    match flags >> 11 & 15 {
        0 => {}
        1 => out.put(" inv_q"),
        2 => out.put(" stat"),
        4 => out.put(" notify"),
        5 => out.put(" update"),
        other => {
            out.put(" op");
            out.dec(other);
        }
    }
    if flags & RESPONSE == 0 {
        out.put(if flags & RECURSION_WANTED != 0 { "+" } else { "" });
        out.put(if flags & CHECKING_DISABLED != 0 { "%" } else { "" });
    }
}

/// Writes counts of sections that a query does not usually have: `[1au]`.
fn write_counts(out: &mut Vec<u8>, counts: [u16; 4]) {
    for (count, usual, name) in
        [(counts[1], 0, "a"), (counts[0], 1, "q"), (counts[2], 0, "n"), (counts[3], 0, "au")]
    {
        if count != usual {
            out.put(" [");
            out.dec(count);
            out.put(name);
            out.put("]");
        }
    }
}

/// Writes response code and flags of an answer: `NXDomain*-`.
fn write_outcome(out: &mut Vec<u8>, flags: u16) {
    const CODES: [&str; 11] = [
        "",
        " FormErr",
        " ServFail",
        " NXDomain",
        " NotImp",
        " Refused",
        " YXDomain",
        " YXRRSet",
        " NXRRSet",
        " NotAuth",
        " NotZone",
    ];
    let code = flags & 15;
    match CODES.get(usize::from(code)) {
        Some(name) => out.put(name),
        None => {
            out.put(" Resp");
            out.dec(code);
        }
    }
    out.put(if flags & AUTHORITATIVE != 0 { "*" } else { "" });
    out.put(if flags & RECURSION_OFFERED == 0 { "-" } else { "" });
    out.put(if flags & TRUNCATED != 0 { "|" } else { "" });
    out.put(if flags & AUTHENTIC != 0 { "$" } else { "" });
}

fn write_name(out: &mut Vec<u8>, name: &Name<'_>) {
    let mut has_labels = false;
    for label in name.as_bytes() {
        out.name(label);
        out.put(".");
        has_labels = true;
    }
    out.put(if has_labels { "" } else { "." });
}

fn write_question_type(out: &mut Vec<u8>, kind: QTYPE) {
    match kind {
        QTYPE::ANY => out.put("ANY"),
        QTYPE::AXFR => out.put("AXFR"),
        QTYPE::IXFR => out.put("IXFR"),
        QTYPE::MAILA => out.put("MAILA"),
        QTYPE::MAILB => out.put("MAILB"),
        QTYPE::TYPE(kind) => write_type(out, kind),
    }
}

fn write_type(out: &mut Vec<u8>, kind: TYPE) {
    match kind {
        TYPE::Unknown(10) => out.put("NULL"),
        TYPE::Unknown(number) => {
            out.put("Type");
            out.dec(number);
        }
        known => {
            use std::io::Write;
            let _ = write!(out, "{known:?}");
        }
    }
}

/// Writes a record: `A 10.0.0.1`, `CNAME example.com.`, `MX mail.example.com. 10`.
fn write_record(out: &mut Vec<u8>, record: &ResourceRecord<'_>) {
    if record.cache_flush {
        out.put("(Cache flush) ");
    }
    write_type(out, record.rdata.type_code());
    let mut name = |name: &Name<'_>| {
        out.put(" ");
        write_name(out, name);
    };
    match &record.rdata {
        RData::NS(other) => name(other),
        RData::CNAME(other) => name(other),
        RData::PTR(other) => name(other),
        RData::A(a) => {
            out.put(" ");
            out.v4(a.address.to_be_bytes());
        }
        RData::AAAA(a) => {
            out.put(" ");
            out.v6(a.address.to_be_bytes());
        }
        RData::MX(mx) => {
            name(&mx.exchange);
            out.put(" ");
            out.dec(mx.preference);
        }
        RData::SRV(srv) => {
            name(&srv.target);
            out.put(":");
            out.dec(srv.port);
            out.put(" ");
            out.dec(srv.priority);
            out.put(" ");
            out.dec(srv.weight);
        }
        RData::TXT(txt) => {
            if txt.iter_raw().next().is_none() {
                out.put(" \"\"");
            }
            for (key, value) in txt.iter_raw() {
                out.put(" \"");
                out.name(key);
                if let Some(value) = value {
                    out.put("=");
                    out.name(value);
                }
                out.put("\"");
            }
        }
        _ => {}
    }
}
