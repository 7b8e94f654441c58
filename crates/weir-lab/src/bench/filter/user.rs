//! Measures the time of one verdict in user space: of machine code, of the same condition in Rust, of libpcap's
//! interpreter, and of Weir's interpreter.

use weir_filter::{Frame, Program, UserFilter, interpret};

use super::super::bar::{Bar, Side};
use super::super::context::{Context, stopped};
use super::super::row::{Row, conclude, find};
use crate::generator::affinity::Pinned;
use crate::verdict::{frames, has_port, has_syn, libpcap, time};
use crate::{Error, Result};

const CODE: &str = "machine code";
const NATIVE: &str = "native Rust";
const LIBPCAP: &str = "libpcap's interpreter";
const OURS: &str = "weir's interpreter";

/// Passes over all frames in a round: 5 million verdicts, which take some tens of milliseconds.
const TURNS: u32 = 20_000;
/// Passes over all frames for the interpreters, which are five to fifteen times slower.
const TURNS_INTERPRETED: u32 = TURNS / 5;

/// A filter expression in all compared forms.
struct Case {
    section: &'static str,
    /// Output of `tcpdump -ddd -y EN10MB -s 262144` (tcpdump 4.99.3 with libpcap 1.10.3).
    bytecode: &'static str,
    native: fn(&[u8]) -> bool,
}

const CASES: [Case; 3] = [
    Case {
        section: "filter, user space: tcp port 80",
        bytecode: "20,40 0 0 12,21 0 6 34525,48 0 0 20,21 0 15 6,40 0 0 54,21 12 0 80,40 0 0 56,\
                   21 10 11 80,21 0 10 2048,48 0 0 23,21 0 8 6,40 0 0 20,69 6 0 8191,177 0 0 14,\
                   72 0 0 14,21 2 0 80,72 0 0 16,21 0 1 80,6 0 0 262144,6 0 0 0",
        native: |bytes| has_port(bytes, 6, 80),
    },
    Case {
        section: "filter, user space: udp port 53 or tcp port 443",
        bytecode: "33,40 0 0 12,21 0 11 34525,48 0 0 20,21 0 4 17,40 0 0 54,21 25 0 53,40 0 0 56,\
                   21 23 24 53,21 0 23 6,40 0 0 54,21 20 0 443,40 0 0 56,21 18 19 443,21 0 18 2048,\
                   48 0 0 23,21 0 7 17,40 0 0 20,69 14 0 8191,177 0 0 14,72 0 0 14,21 10 0 53,\
                   72 0 0 16,21 8 9 53,21 0 8 6,40 0 0 20,69 6 0 8191,177 0 0 14,72 0 0 14,\
                   21 2 0 443,72 0 0 16,21 0 1 443,6 0 0 262144,6 0 0 0",
        native: |bytes| has_port(bytes, 17, 53) || has_port(bytes, 6, 443),
    },
    Case {
        section: "filter, user space: tcp[tcpflags] & tcp-syn != 0",
        bytecode: "11,40 0 0 12,21 0 8 2048,48 0 0 23,21 0 6 6,40 0 0 20,69 4 0 8191,177 0 0 14,\
                   80 0 0 27,69 0 1 2,6 0 0 262144,6 0 0 0",
        native: has_syn,
    },
];

/// Measures each expression in all its forms, in turn.
///
/// # Errors
/// [`Error::Measure`] if the forms accept different numbers of frames.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let _pinned = Pinned::to(context.cpus.tool)?;
    let frames = frames();
    let mut all = Vec::new();
    for case in &CASES {
        let program = Program::parse(case.bytecode).map_err(|error| failed(case, &error))?;
        let filter = UserFilter::new(program.clone());
        let mut rows = [CODE, NATIVE, LIBPCAP, OURS].map(|what| Row::new(case.section, what, "ns"));
        if !filter.is_compiled() {
            rows[0].absent = Some("no machine code for this processor".to_owned());
        }
        for round in 0..context.rounds {
            let mut takes = Vec::new();
            for row in &mut rows {
                if stopped(context.stop) || row.absent.is_some() {
                    continue;
                }
                let neighbours = context.calm();
                let (ns, taken) = match row.what.as_str() {
                    CODE => time(&frames, TURNS, |bytes| filter.run(bytes, wire_len(bytes)) > 0),
                    NATIVE => time(&frames, TURNS, case.native),
                    LIBPCAP => {
                        time(&frames, TURNS_INTERPRETED, |bytes| by_libpcap(&program, bytes))
                    }
                    _ => time(&frames, TURNS_INTERPRETED, |bytes| interpreted(&program, bytes)),
                };
                row.add(round, ns, neighbours.done());
                takes.push(taken);
            }
            if takes.windows(2).any(|two| two[0] != two[1]) {
                return Err(failed(case, &format!("frames taken differ: {takes:?}")));
            }
        }
        context.say(case.section);
        conclude(&mut rows, NATIVE);
        all.extend(rows);
    }
    Ok(all)
}

fn wire_len(bytes: &[u8]) -> u32 {
    bytes.len() as u32
}

fn by_libpcap(program: &Program, bytes: &[u8]) -> bool {
    libpcap(program, bytes, wire_len(bytes)) > 0
}

fn interpreted(program: &Program, bytes: &[u8]) -> bool {
    interpret::run(program, &Frame::whole(bytes)) > 0
}

fn failed(case: &Case, reason: &dyn std::fmt::Display) -> Error {
    Error::Measure { what: case.section.to_owned(), reason: reason.to_string() }
}

/// Returns targets for machine code, for each expression.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for Case { section, .. } in CASES {
        let row = |what| find(rows, section, what, None);
        let over = |above: Option<&Row>, below: Option<&Row>| above?.over(below?);
        let native = over(row(CODE), row(NATIVE));
        let what = format!("{section}: time, {CODE} / {NATIVE}");
        bars.push(Bar::new(what, native, Side::AtMost, 2.0));
        let interpreter = over(row(LIBPCAP), row(CODE));
        let what = format!("{section}: time, {LIBPCAP} / {CODE}");
        bars.push(Bar::new(what, interpreter, Side::AtLeast, 5.0));
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::FRAMES;

    #[test]
    fn all_forms_take_the_same_frames_and_not_all_of_them() {
        let frames = frames();
        for case in &CASES {
            let program = Program::parse(case.bytecode).unwrap();
            let filter = UserFilter::new(program.clone());
            let mut taken = 0;
            for bytes in &frames {
                let verdict = (case.native)(bytes);
                let others = [
                    filter.run(bytes, wire_len(bytes)) > 0,
                    by_libpcap(&program, bytes),
                    interpreted(&program, bytes),
                ];
                assert_eq!(others, [verdict; 3], "{}: {bytes:?}", case.section);
                taken += usize::from(verdict);
            }
            assert!((8..FRAMES - 8).contains(&taken), "{}: {taken}", case.section);
        }
    }
}
