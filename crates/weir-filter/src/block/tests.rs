use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn entry(text: &str) -> Entry {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The key of a flow such as `tcp 10.0.0.1:80 10.0.0.2:4711`, in the direction from the first end to the second.
fn key(text: &str) -> FlowKey {
    let Entry::Flow(flow) = entry(text) else { panic!("'{text}' is no flow") };
    flow.key()
}

fn list(texts: &[&str]) -> BlockList {
    let mut list = BlockList::default();
    for text in texts {
        assert_eq!(list.add(entry(text)), Ok(true), "'{text}'");
    }
    list
}

#[test]
fn text_comes_back_as_it_went() {
    for text in [
        "10.0.0.1",
        "2001:db8::1",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "2001:db8::/32",
        "::/0",
        "tcp 10.0.0.1:80 10.0.0.2:4711",
        "udp [2001:db8::1]:53 [2001:db8::2]:4444",
        "icmp 10.0.0.1 10.0.0.2",
        "99 ::1 ::2",
    ] {
        assert_eq!(entry(text).to_string(), text);
    }
}

#[test]
fn what_means_the_same_is_the_same() {
    assert_eq!(entry("10.0.0.1/32"), entry("10.0.0.1"));
    assert_eq!(entry("2001:0db8:0::1/128"), entry("2001:db8::1"));
    assert_eq!(entry(" tcp 10.0.0.2:4711  10.0.0.1:80 "), entry("6 10.0.0.1:80 10.0.0.2:4711"));
    assert_eq!(entry("tcp 10.0.0.1:80 10.0.0.1:79"), entry("tcp 10.0.0.1:79 10.0.0.1:80"));
    assert_ne!(entry("::ffff:10.0.0.1"), entry("10.0.0.1"));
}

#[test]
fn every_error_says_what_is_right() {
    let form = ["10.0.0.1", "2001:db8::/32", "tcp 10.0.0.1:80 10.0.0.2:4711"];
    let cases: [(&str, &[&str]); 20] = [
        ("", &form),
        ("tcp", &form),
        ("10.0.0.1 10.0.0.2", &form),
        ("10.0.0", &form),
        ("fe80::1%eth0", &form),
        ("10.0.0.0/", &form),
        ("10.0.0.0/+8", &form),
        ("tcp 10.0.0.1:80 10.0.0.2:1 10.0.0.3:1", &form),
        ("10.0.0.0/33", &["0 to 32"]),
        ("2001:db8::/129", &["0 to 128"]),
        ("10.0.0.1/8", &["10.0.0.0/8", "10.0.0.1 alone"]),
        ("2001:db8::1/32", &["2001:db8::/32", "2001:db8::1 alone"]),
        ("tpc 10.0.0.1:80 10.0.0.2:4711", &["'tpc'", "tcp, udp"]),
        ("256 10.0.0.1 10.0.0.2", &["'256'", "up to 255"]),
        ("tcp 10.0.0.1 10.0.0.2:4711", &["'10.0.0.1'", "10.0.0.1:80", "[2001:db8::1]:80"]),
        ("tcp 10.0.0.1:65536 10.0.0.2:4711", &["10.0.0.1:80"]),
        ("udp 2001:db8::1:53 [2001:db8::2]:4444", &["[2001:db8::1]:80"]),
        ("icmp 10.0.0.1:1 10.0.0.2", &["icmp flow", "no ports"]),
        ("tcp 10.0.0.1:80 [2001:db8::2]:4444", &["both are IPv4 or both are IPv6"]),
        ("\u{1b}[2J", &["'\\u{1b}[2J'"]),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Entry>().expect_err(text).to_string();
        for part in expected {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
    let long = "x".repeat(100_000).parse::<Entry>().unwrap_err().to_string();
    assert!(long.len() < 400 && long.contains("xxx..."));
}

#[test]
fn each_kind_blocks_both_directions_and_no_more() {
    let flow = key("tcp 10.0.0.1:80 10.0.0.2:4711");
    for (texts, blocked) in [
        (&["10.0.0.1"] as &[&str], true),
        (&["10.0.0.2"], true),
        (&["10.0.0.3", "::ffff:10.0.0.1"], false),
        (&["10.0.0.2/31"], true),
        (&["10.0.0.0/31"], true),
        (&["10.0.0.4/30", "11.0.0.0/8", "::/0", "::/96"], false),
        (&["0.0.0.0/0"], true),
        (&["tcp 10.0.0.2:4711 10.0.0.1:80"], true),
        (&["tcp 10.0.0.1:4711 10.0.0.2:80", "udp 10.0.0.1:80 10.0.0.2:4711"], false),
    ] {
        let list = list(texts);
        assert_eq!(list.contains(&flow), blocked, "{texts:?}");
        assert_eq!(list.contains(&flow.reversed()), blocked, "{texts:?}, reversed");
    }
}

#[test]
fn prefixes_at_both_ends_of_the_space_block() {
    let flow = key("udp [ffff:ffff::1]:53 [ffff:fffe::1]:53");
    let low = key("udp [::1]:53 [::2]:53");
    for (text, blocked) in [
        ("ffff:ffff::/32", true),
        ("ffff:ffff::/33", true),
        ("ffff:ff00::/24", true),
        ("ffff:fffe::/31", true),
        ("ffff::/16", true),
        ("8000::/1", true),
        ("ffff:fffd::/32", false),
        ("ffff:fe00::/24", false),
    ] {
        let mut list = list(&[text]);
        assert_eq!(list.contains(&flow), blocked, "{text}");
        assert!(!list.contains(&low), "{text}");
        assert!(list.remove(&entry(text)) && !list.contains(&flow), "{text}");
        assert!(list.front_words().iter().all(|&word| word == 0), "{text}");
    }
    for text in ["::/32", "::/24", "::/127"] {
        assert!(list(&[text]).contains(&low) && !list(&[text]).contains(&flow), "{text}");
    }
    let highest = key("udp 255.255.255.255:53 255.255.255.254:53");
    for text in ["255.255.255.255/32", "255.255.255.254/31", "255.255.240.0/20", "128.0.0.0/1"] {
        assert!(list(&[text]).contains(&highest), "{text}");
    }
}

#[test]
fn only_lengths_that_occur_are_looked_up() {
    let (v4, v6) = ("10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let lengths = |list: &BlockList, address| list.lengths.of(address).collect::<Vec<u8>>();
    let mut list = list(&["10.0.0.0/8", "11.0.0.0/8", "10.0.0.0/31", "2001:db8::/32", "10.0.0.1"]);
    assert_eq!((lengths(&list, v4), lengths(&list, v6)), (vec![8, 31], vec![32]));
    for (text, left) in
        [("10.0.0.0/31", &[8][..]), ("10.0.0.1", &[8]), ("10.0.0.0/8", &[8]), ("11.0.0.0/8", &[])]
    {
        assert!(list.remove(&entry(text)));
        assert_eq!(lengths(&list, v4), left, "without {text}");
    }
    assert!(list.remove(&entry("2001:db8::/32")));
    assert_eq!(lengths(&list, v6), []);
}

#[test]
fn entries_are_counted_once_and_come_out_again() {
    let mut list = list(&["10.0.0.1", "10.0.0.0/8"]);
    assert_eq!(list.add(entry("10.0.0.1")), Ok(false));
    assert_eq!(list.len(), 2);
    let flow = key("icmp 10.0.0.1 10.0.0.2");
    assert!(list.remove(&entry("10.0.0.1")) && !list.remove(&entry("10.0.0.1")));
    assert!(list.contains(&flow) && !list.has(&entry("10.0.0.1")));
    assert!(list.remove(&entry("10.0.0.0/8")));
    assert!(!list.contains(&flow) && list.is_empty());
    assert!(list.front_words().iter().all(|&word| word == 0));
}

#[test]
fn a_full_list_says_so_and_stays_as_it_is() {
    let mut list = BlockList::default();
    let address = |n: u32| Entry::Address(Ipv4Addr::from_bits(n).into());
    for n in 0..ENTRIES_MAX as u32 {
        assert_eq!(list.add(address(n)), Ok(true));
    }
    assert_eq!(list.add(address(u32::MAX)), Err(Full));
    assert_eq!(list.add(address(7)), Ok(false));
    assert_eq!((list.len(), list.iter().count()), (ENTRIES_MAX, ENTRIES_MAX));
    assert!(list.remove(&address(7)));
    assert_eq!(list.add(address(u32::MAX)), Ok(true));
    for word in ["65536", "10.0.0.0/24"] {
        assert!(Full.to_string().contains(word));
    }
}

/// Addresses from a small set, so that entries and keys often match.
fn address(six: bool) -> impl Strategy<Value = IpAddr> {
    let byte = || prop_oneof![3 => 0u8..3, 1 => any::<u8>()];
    (byte(), byte(), byte(), byte()).prop_map(move |(a, b, c, d)| {
        if six {
            Ipv6Addr::from([0x20, a, b, 0, 0, 0, 0, 0, c, 0, 0, 0, 0, 0, 0, d]).into()
        } else {
            Ipv4Addr::new(a, b, c, d).into()
        }
    })
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    any::<bool>().prop_flat_map(|six| {
        (address(six), address(six), 0u16..3, 0u16..3, prop_oneof![Just(6u8), Just(17)]).prop_map(
            |(src, dst, src_port, dst_port, protocol)| {
                let addresses = match (src, dst) {
                    (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
                    (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
                    _ => unreachable!("of one kind"),
                };
                FlowKey { addresses, src_port, dst_port, protocol }
            },
        )
    })
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let prefix = (any::<bool>(), any::<u8>()).prop_flat_map(|(six, bits)| {
        address(six).prop_map(move |address| {
            let bits = bits % (entry::width(address) + 1);
            Entry::around(address, bits).expect("not too many bits")
        })
    });
    prop_oneof![
        any::<bool>().prop_flat_map(address).prop_map(Entry::Address),
        prefix,
        any_key().prop_map(|key| Entry::Flow(Flow::new(key))),
    ]
}

/// The documented rule for when an entry blocks frames with this key, for one entry.
fn blocks(entry: &Entry, key: &FlowKey) -> bool {
    let (src, dst) = ends(key.addresses);
    match *entry {
        Entry::Address(address) => src == address || dst == address,
        Entry::Prefix(prefix) => [src, dst].iter().any(|&end| {
            end.is_ipv4() == prefix.base().is_ipv4()
                && entry::masked(end, prefix.bits()) == prefix.base()
        }),
        Entry::Flow(flow) => *key == flow.key() || key.reversed() == flow.key(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_list_blocks_what_its_entries_block(
        changes in vec((any_entry(), any::<bool>()), 0..60),
        keys in vec(any_key(), 1..60),
    ) {
        let (mut list, mut naive) = (BlockList::default(), Vec::new());
        for (entry, add) in changes {
            // Half of the changes first remove an entry that was added before.
            let gone = naive.get(naive.len() / 3).copied();
            if let (false, Some(gone)) = (add, gone) {
                naive.retain(|entry| *entry != gone);
                prop_assert!(list.remove(&gone));
            }
            prop_assert_eq!(list.add(entry), Ok(!naive.contains(&entry)));
            if !naive.contains(&entry) {
                naive.push(entry);
            }
        }
        prop_assert_eq!(list.len(), naive.len());
        for key in keys {
            let expected = naive.iter().any(|entry| blocks(entry, &key));
            prop_assert_eq!(list.contains(&key), expected, "{} by {:?}", key, naive);
        }
        // A new list with the same entries must have the same bits in its front.
        let mut fresh = BlockList::default();
        for entry in &naive {
            fresh.add(*entry).expect("few");
            for word in touched_words(entry) {
                prop_assert!(list.front_words()[word] != 0);
            }
        }
        if !naive.is_empty() {
            prop_assert_eq!(list.front_words(), fresh.front_words());
        }
    }

    #[test]
    fn every_entry_is_what_its_text_says(entry in any_entry()) {
        prop_assert_eq!(entry.to_string().parse::<Entry>(), Ok(entry));
    }
}
