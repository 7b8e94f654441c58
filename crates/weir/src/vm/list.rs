//! `weir vm list`: lists the guests of the daemon's file.

use anyhow::Result;
use serde_json::json;
use weir_client::protocol::{Guest, GuestState};

use crate::EXIT_RAN;
use crate::cli::ListArgs;
use crate::out::plain;

/// Runs the command.
pub fn run(args: &ListArgs) -> Result<u8> {
    let guests = super::host_daemon(args.socket.as_deref())?.guests()?;
    match args.json {
        true => println!("{}", json!({ "guests": guests })),
        false => print!("{}", plain(&text(&guests))),
    }
    Ok(EXIT_RAN)
}

/// Returns the state as a word for people.
pub fn state(state: GuestState) -> &'static str {
    match state {
        GuestState::Absent => "absent",
        GuestState::Ready => "ready",
        GuestState::Plugged => "plugged",
        GuestState::Leaving => "leaving",
        GuestState::Detached => "detached",
    }
}

/// Returns one row per guest, followed by the reason if something is wrong.
fn text(guests: &[Guest]) -> String {
    if guests.is_empty() {
        return "no guest: the daemon's file has no [guests.NAME]; `weir vm prepare NAME` prints one\n".to_owned();
    }
    let row = |cells: [&str; 6]| {
        let [name, state, feeds, memory, broker, qemu] = cells;
        format!("{name:<16} {state:<9} {feeds:>5} {memory:>13} {broker:<7} {qemu}\n")
    };
    let mut text = row(["guest", "state", "feeds", "MiB used", "broker", "QEMU"]);
    for guest in guests {
        text += &row([
            &guest.name,
            state(guest.state),
            &guest.feeds.to_string(),
            &format!("{} of {}", guest.used_mib, guest.region_mib),
            if guest.has_session { "yes" } else { "no" },
            guest.qemu.as_deref().unwrap_or("-"),
        ]);
        text += &guest.reason.iter().map(|reason| format!("  {reason}\n")).collect::<String>();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_a_row_and_a_fault_stands_below_it() {
        let guest = Guest {
            name: "web1".into(),
            state: GuestState::Plugged,
            reason: Some("it is paused".into()),
            qemu: Some("7.2.0".into()),
            has_session: true,
            sources: Vec::new(),
            feeds: 2,
            region_mib: 256,
            used_mib: 34,
        };
        let absent =
            Guest { name: "db".into(), state: GuestState::Absent, qemu: None, ..guest.clone() };
        let text = text(&[guest, Guest { reason: None, has_session: false, ..absent }]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["web1", "plugged", "2", "34", "of", "256", "yes", "7.2.0"]);
        assert_eq!(lines[2], ["it", "is", "paused"]);
        assert_eq!(lines[3], ["db", "absent", "2", "34", "of", "256", "no", "-"]);
        assert!(super::text(&[]).contains("weir vm prepare"));
    }
}
