//! Named feeds, whose block lists other connections can change, and block list entries that expire.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use weir_client::protocol::{BlockChanged, Blocked, Ledger, NO_FEED, Open};
use weir_client::{ClientError, Connection, RemoteFeed};
use weir_filter::block::ENTRIES_MAX;
use weir_plug::PlugError;

use common::{Setup, setup, within_limit};

const MADE: &str = "[sources.made]\nsource = 'gen:rate=20kpps,flows=100'\neverybody = true\n\
                    ring_mib = 16\n[limits]\nopens_per_second = 1000\n";
/// Entries that block every packet.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

fn all() -> Vec<String> {
    ALL.map(str::to_owned).to_vec()
}

fn connect(setup: &Setup) -> Connection {
    Connection::open(&setup.path()).unwrap()
}

fn named(name: &str, part: &str) -> Open {
    Open {
        source: "made".into(),
        name: Some(name.into()),
        part: Some(part.into()),
        ..Open::default()
    }
}

fn ledger(feed: &RemoteFeed) -> Ledger {
    feed.ledger().unwrap().expect("it is told")
}

/// Waits until every frame is blocked: 100 frames were blocked since the last one that was captured.
fn all_is_blocked(feed: &RemoteFeed) {
    let mut since = ledger(feed);
    within_limit("frames are blocked, and no others come", || {
        let now = ledger(feed);
        if now.captured != since.captured {
            since = now;
            return false;
        }
        now.blocked > since.blocked + 100
    });
}

fn frames_come(feed: &RemoteFeed) {
    let before = ledger(feed).captured;
    within_limit("frames come", || ledger(feed).captured > before + 100);
}

#[track_caller]
fn code(result: Result<impl std::fmt::Debug, ClientError>) -> i32 {
    match result {
        Err(ClientError::Plug(PlugError::Refused(error))) => error.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn feeds_of_a_name_are_changed_together_by_another_connection() {
    let setup = setup(MADE);
    let (reader, other) = (connect(&setup), connect(&setup));
    let ids = ["1/2", "2/2"].map(|part| reader.open_feed(&named("ids", part)).unwrap());
    let alone = reader.open_feed(&named("alone", "1/2")).unwrap();
    assert_ne!(ids[0].opened().key, alone.opened().key, "one with a name shares no rings");
    let changed = other.block_named("ids", &all(), &[], None).unwrap();
    let keys: Vec<u64> = ids.iter().map(|feed| feed.opened().key).collect();
    assert_eq!(changed, BlockChanged { feeds: 2, changed: 2, entries: 2, keys });
    ids.iter().for_each(all_is_blocked);
    frames_come(&alone);
    let shown = other.blocked_named("ids").unwrap();
    assert_eq!(shown, Blocked { feeds: 2, blocked: all(), ..Blocked::default() });
    // A feed that was opened later has a list of its own.
    let late = reader.open_feed(&named("ids", "1/4")).unwrap();
    other.block_named("ids", &["10.9.9.9".into()], &["::/0".into()], None).unwrap();
    let shown = other.blocked_named("ids").unwrap();
    assert_eq!((shown.feeds, shown.blocked), (3, vec!["10.9.9.9".to_owned()]));
    assert_eq!(shown.partly.into_iter().collect::<Vec<_>>(), [(ALL[0].to_owned(), 2)]);
    frames_come(&late);
    other.block_named("ids", &[], &all(), None).unwrap();
    ids.iter().for_each(frames_come);
    let status = other.status().unwrap();
    let names: Vec<_> = status.clients.iter().map(|client| client.name.as_deref()).collect();
    assert_eq!(names, [Some("ids"), Some("ids"), Some("alone"), Some("ids")]);
    drop((ids, late));
    assert_eq!(code(other.block_named("ids", &all(), &[], None)), NO_FEED);
    assert_eq!(code(other.blocked_named("ids")), NO_FEED);
    assert_eq!(code(other.blocked_named("a\u{1b}[2J")), NO_FEED);
}

#[test]
fn entries_end_though_who_gave_them_has_gone() {
    let setup = setup(MADE);
    let reader = connect(&setup);
    let feed = reader.open_feed(&named("ids", "1/1")).unwrap();
    let second = Duration::from_secs(1);
    let kept = || "10.9.9.9".to_owned();
    {
        let other = connect(&setup);
        other.block_named("ids", &[kept()], &[], None).unwrap();
        other.block_named("ids", &[kept()], &[], Some(2 * second)).unwrap();
        other.block_named("ids", &all(), &[], Some(4 * second)).unwrap();
        let left = other.blocked_named("ids").unwrap().left_ms;
        assert!(left.len() == 2 && left.values().all(|left| *left <= 4000), "{left:?}");
    }
    all_is_blocked(&feed);
    frames_come(&feed);
    // The permanent entry was added again for two seconds, and still did not expire.
    let shown = Blocked { feeds: 1, blocked: vec![kept()], ..Blocked::default() };
    assert_eq!(reader.blocked_named("ids").unwrap(), shown);
    // The same for a feed without a name, which only its own connection can change.
    let own = Open { source: "made".into(), own: true, ..Open::default() };
    let own = reader.open_feed(&own).unwrap();
    own.block_for(&all(), 4 * second).unwrap();
    all_is_blocked(&own);
    frames_come(&own);
}

#[test]
fn a_time_that_makes_no_sense_is_refused() {
    let setup = setup(MADE);
    let reader = connect(&setup);
    let feed = reader.open_feed(&named("ids", "1/1")).unwrap();
    for time in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(2_592_001)] {
        let said = feed.block_for(&all(), time).unwrap_err().to_string();
        assert!(said.contains("expires_ms is 1000 to 2592000000"), "{said}");
        reader.block_named("ids", &all(), &[], Some(time)).unwrap_err();
    }
    feed.block_for(&all(), Duration::MAX).unwrap_err();
    assert!(reader.blocked_named("ids").unwrap().blocked.is_empty());
    for name in ["", "two words", "\u{1b}[2J", &"x".repeat(33)] {
        assert!(reader.open_feed(&named(name, "1/1")).is_err(), "{name}");
    }
}

#[test]
fn a_change_that_one_of_a_name_has_no_room_for_is_made_at_none() {
    let setup = setup(MADE);
    let reader = connect(&setup);
    let ids = ["1/2", "2/2"].map(|part| reader.open_feed(&named("ids", part)).unwrap());
    let many = (1..=ENTRIES_MAX as u32).map(|host| std::net::Ipv4Addr::from_bits(host).to_string());
    ids[1].block(&many.collect::<Vec<_>>(), &[]).unwrap();
    let said = reader.block_named("ids", &all(), &[], None).unwrap_err().to_string();
    assert!(said.contains("room for 65536"), "{said}");
    frames_come(&ids[0]);
    assert!(reader.blocked_named("ids").unwrap().blocked.is_empty());
    // A change that also removes an entry makes room, and is accepted.
    let (add, remove) = (vec!["10.0.0.1".to_owned()], vec!["0.0.0.1".to_owned()]);
    let changed = reader.block_named("ids", &add, &remove, None).unwrap();
    assert_eq!((changed.feeds, changed.changed, changed.entries), (2, 2, ENTRIES_MAX));
}
