//! The filters of an interface's clsact or ingress qdisc, by rtnetlink.

use std::io;

use super::netlink::{HEADER_BYTES, Netlink};

/// A TC filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whether it is at egress; otherwise it is at ingress.
    pub egress: bool,
    /// `bpf`, `u32`, `flower`, `matchall`, ...
    pub kind: String,
    /// Filters with lower priorities run first.
    pub priority: u16,
    /// Id of its BPF program.
    pub program: Option<u32>,
    /// Name of a BPF filter, given by the program that attached it.
    pub name: String,
}

/// Bytes of `struct tcmsg`. Source: linux/rtnetlink.h.
const TCMSG_BYTES: usize = 20;
/// Parents of filters, with whether they are at egress: `TC_H_CLSACT` with `TC_H_MIN_INGRESS` and
/// `_EGRESS`. Source: linux/pkt_sched.h.
const PARENTS: [(bool, u32); 2] = [(false, 0xffff_fff2), (true, 0xffff_fff3)];
/// Parent of the qdisc itself (`TC_H_CLSACT`).
const CLSACT: u32 = 0xffff_fff1;
/// Attributes of a filter or a qdisc. Source: linux/rtnetlink.h, linux/pkt_cls.h.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
/// More filters than any interface has; ends the loop over an endless answer.
const MESSAGES_MAX: usize = 4096;

/// Returns the filters of the interface with this index, in the calling thread's network namespace, in the order of
/// their priorities at ingress and then at egress. Needs no privileges.
///
/// # Errors
/// The kernel's error.
pub fn filters(ifindex: u32) -> io::Result<Vec<Filter>> {
    let socket = Netlink::open()?;
    let mut filters = Vec::new();
    for (egress, parent) in PARENTS {
        let mut request = [0u8; TCMSG_BYTES];
        request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        request[12..16].copy_from_slice(&parent.to_ne_bytes());
        socket.request(libc::RTM_GETTFILTER, libc::NLM_F_DUMP, &request)?;
        let mut side = Vec::new();
        while !messages(&socket.receive()?, egress, &mut side)? {
            if side.len() > MESSAGES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        // The kernel reports a filter with several rules once for each rule.
        side.sort_by_key(|filter| filter.priority);
        side.dedup();
        filters.extend(side);
    }
    Ok(filters)
}

/// Returns the kind of the qdisc of an interface's TC hooks: `clsact`, or `ingress`. An `ingress` qdisc has no egress
/// hook: the kernel runs programs that are attached to its egress at ingress. Needs no privileges.
///
/// # Errors
/// The kernel's error; `UnexpectedEof` if the answer names no qdisc.
pub(crate) fn hooks_qdisc(ifindex: u32) -> io::Result<String> {
    let socket = Netlink::open()?;
    let mut request = [0u8; TCMSG_BYTES];
    request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    request[12..16].copy_from_slice(&CLSACT.to_ne_bytes());
    // With NLM_F_ECHO the answer is an RTM_NEWQDISC notification.
    socket.request(libc::RTM_GETQDISC, libc::NLM_F_ECHO, &request)?;
    let answer = socket.receive()?;
    if half(&answer, 4) == Some(libc::NLMSG_ERROR as u16) {
        let error = word(&answer, HEADER_BYTES).unwrap_or(0).cast_signed();
        return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
    }
    let attributes = answer.get(HEADER_BYTES + TCMSG_BYTES..).unwrap_or_default();
    let mut found = None;
    each(attributes, |kind, value| {
        if kind == TCA_KIND {
            found = Some(text(value));
        }
    });
    found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Parses the messages of a datagram; returns true if it contains the end of the dump. Attributes after a malformed one
/// are ignored.
fn messages(mut datagram: &[u8], egress: bool, filters: &mut Vec<Filter>) -> io::Result<bool> {
    if datagram.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    while let (Some(length), Some(kind)) = (word(datagram, 0), half(datagram, 4)) {
        let Some(message) = datagram.get(..length as usize).filter(|m| m.len() >= HEADER_BYTES)
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match kind {
            _ if i32::from(kind) == libc::NLMSG_DONE => return Ok(true),
            _ if i32::from(kind) == libc::NLMSG_ERROR => {
                let error = word(message, HEADER_BYTES).unwrap_or(0).cast_signed();
                return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
            }
            libc::RTM_NEWTFILTER => filters.extend(filter(message, egress)),
            _ => {}
        }
        datagram = datagram.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Parses the filter of an RTM_NEWTFILTER message. Before each filter, the kernel sends a message with handle 0, which
/// is not a filter.
fn filter(message: &[u8], egress: bool) -> Option<Filter> {
    let (handle, info) = (word(message, HEADER_BYTES + 8)?, word(message, HEADER_BYTES + 16)?);
    if handle == 0 {
        return None;
    }
    let mut filter = Filter { egress, priority: (info >> 16) as u16, ..Filter::default() };
    let attributes = message.get(HEADER_BYTES + TCMSG_BYTES..)?;
    let mut options = None;
    each(attributes, |kind, value| match kind {
        TCA_KIND => filter.kind = text(value),
        TCA_OPTIONS => options = Some(value.to_vec()),
        _ => {}
    });
    // The numbers of options depend on the kind.
    let options = options.filter(|_| filter.kind == "bpf").unwrap_or_default();
    each(&options, |kind, value| match kind {
        TCA_BPF_NAME => filter.name = text(value),
        TCA_BPF_ID => filter.program = word(value, 0),
        _ => {}
    });
    Some(filter)
}

/// Calls `call` with the kind and value of every attribute, up to the first with an invalid length.
fn each(mut attributes: &[u8], mut call: impl FnMut(u16, &[u8])) {
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let Some(value) = attributes.get(4..usize::from(length)) else { return };
        // The two highest bits are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER), which are not needed here.
        call(kind & 0x3fff, value);
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, handle: u32, attributes: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + TCMSG_BYTES + attributes.len()) as u32;
        let words = [length, u32::from(kind), 0, 0, 0, 2, handle, 0xffff_fff2, 7 << 16];
        [&words.map(u32::to_ne_bytes).concat()[..], attributes].concat()
    }

    /// The answer of Linux 6.18: a message with handle 0, the filter, and the end.
    fn answer() -> Vec<u8> {
        let options =
            [attribute(TCA_BPF_NAME, b"theirs\0"), attribute(TCA_BPF_ID, &[42, 0, 0, 0])].concat();
        let kind = attribute(TCA_KIND, b"bpf\0");
        let one = [kind.clone(), attribute(TCA_OPTIONS | 0x8000, &options)].concat();
        [
            message(libc::RTM_NEWTFILTER, 0, &kind),
            message(libc::RTM_NEWTFILTER, 1, &one),
            message(libc::NLMSG_DONE as u16, 0, &[]),
        ]
        .concat()
    }

    #[test]
    fn a_bpf_filter_has_its_name_and_program() {
        let mut filters = Vec::new();
        assert!(messages(&answer(), false, &mut filters).unwrap());
        let (kind, name, program) = ("bpf".to_owned(), "theirs".to_owned(), Some(42));
        assert_eq!(filters, [Filter { egress: false, kind, priority: 7, program, name }]);
    }

    #[test]
    fn answers_cut_or_damaged_anywhere_end_without_a_panic() {
        let whole = answer();
        for end in 0..whole.len() {
            let _ = messages(&whole[..end], true, &mut Vec::new());
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = messages(&damaged, true, &mut Vec::new());
            }
        }
        let refused = [20u32, libc::NLMSG_ERROR as u32, 0, 0, (-libc::EPERM).cast_unsigned()];
        let refused = messages(&refused.map(u32::to_ne_bytes).concat(), true, &mut Vec::new());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn the_loopback_device_can_be_asked() {
        assert!(filters(1).is_ok());
    }
}
