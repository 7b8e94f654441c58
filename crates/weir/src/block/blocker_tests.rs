//! Alerts in, entries out.

use super::*;

const TIME: Duration = Duration::from_secs(600);

struct Bench {
    blocker: Blocker,
    start: Instant,
    clock: SystemTime,
}

impl Bench {
    fn new(what: What) -> Bench {
        let rules = Rules { severity_max: Some(2), ..Rules::default() };
        // Two minutes after the time of `alert`.
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_534_000 + 120);
        Bench { blocker: Blocker::new(rules, what, TIME), start: Instant::now(), clock }
    }

    fn take(&mut self, line: &str, is_old: bool, after: u64) {
        let now = self.start + Duration::from_secs(after);
        self.blocker.take(Line::Whole(line.as_bytes()), is_old, now, self.clock);
    }

    /// Sends the pending entries, and returns them: the seconds and the entry, with a `*` if it is reported.
    fn send(&mut self, after: u64) -> Vec<(u64, String)> {
        let now = self.start + Duration::from_secs(after);
        let mut all = Vec::new();
        while let Some((time, entries)) = self.blocker.batch(now, 2) {
            let news = self.blocker.blocked(&entries, time, now);
            let told = |entry: &Entry| news.iter().any(|(other, _)| other == entry);
            let mark = |entry: &Entry| if told(entry) { "*" } else { "" };
            let texts = entries.iter().map(|entry| format!("{entry}{}", mark(entry)));
            all.extend(texts.map(|text| (time.as_secs(), text)));
        }
        all
    }
}

fn alert(port: u16, proto: &str, severity: u8) -> String {
    format!(
        r#"{{"timestamp":"2026-11-24T15:26:40.000000+0000","event_type":"alert","src_ip":"10.0.0.1",
        "src_port":{port},"dest_ip":"10.0.0.2","dest_port":80,"proto":"{proto}",
        "alert":{{"severity":{severity},"signature_id":7,"signature":"bad"}}}}"#
    )
}

fn flow(port: u16, mark: &str) -> String {
    format!("tcp 10.0.0.1:{port} 10.0.0.2:80{mark}")
}

#[test]
fn every_line_is_counted_once_under_its_name() {
    let mut bench = Bench::new(What::Flow);
    for line in [
        alert(1, "TCP", 2),
        alert(1, "TCP", 1),
        alert(2, "TCP", 3),
        alert(3, "ICMP", 1),
        r#"{"event_type":"dns"}"#.into(),
        "no event".into(),
        "  ".into(),
    ] {
        bench.take(&line, false, 0);
    }
    bench.blocker.take(Line::TooLong, false, bench.start, bench.clock);
    assert_eq!(bench.send(0), [(600, flow(1, "*"))]);
    bench.take(&alert(1, "TCP", 2), false, 1);
    bench.take(&alert(4, "TCP", 2), false, 1);
    bench.blocker.end();
    let expected = Counts {
        lines: 9,
        other_events: 1,
        not_understood: 1,
        too_long: 1,
        alerts: 6,
        left_out: 1,
        without_ports: 1,
        too_old: 0,
        repeated: 2,
        blocked: 1,
        blocked_again: 0,
        refused: 0,
        not_sent: 1,
    };
    assert_eq!(bench.blocker.counts(), &expected);
}

#[test]
fn a_flow_that_goes_on_raising_alerts_stays_blocked_and_is_told_once() {
    let mut bench = Bench::new(What::Flow);
    let mut sent = Vec::new();
    for second in 0..1000 {
        bench.take(&alert(1, "TCP", 1), false, second);
        sent.extend(bench.send(second).into_iter().map(|one| (second, one)));
    }
    let expected = [
        (0, (600, flow(1, "*"))),
        (301, (600, flow(1, ""))),
        (602, (600, flow(1, ""))),
        (903, (600, flow(1, ""))),
    ];
    assert_eq!(sent, expected);
    // After the entry has expired, the next alert adds a new entry, which is reported.
    bench.take(&alert(1, "TCP", 1), false, 3000);
    assert_eq!(bench.send(3000), [(600, flow(1, "*"))]);
}

#[test]
fn what_stood_there_before_counts_from_its_own_time() {
    let mut bench = Bench::new(What::Flow);
    bench.take(&alert(1, "TCP", 1), true, 0);
    bench.take(&alert(2, "TCP", 1), false, 0);
    bench.take(&alert(3, "TCP", 1).replace("15:26:40", "15:18:40"), true, 0);
    bench.take(&alert(4, "TCP", 1).replace("15:26:40", "15:18:41"), true, 0);
    bench.take(&alert(5, "TCP", 1).replace("15:26:40", "19:00:00"), true, 0);
    bench.take(&alert(6, "TCP", 1).replace("15:26:40", "no time"), true, 0);
    let expected = [
        (600, flow(2, "*")),
        (600, flow(5, "*")),
        (600, flow(6, "*")),
        (480, flow(1, "*")),
        // One second is left, rounded up to a tenth of the block time.
        (60, flow(4, "*")),
    ];
    assert_eq!(bench.send(0), expected);
    assert_eq!(bench.blocker.counts().too_old, 1);
}

#[test]
fn lists_that_were_lost_get_what_has_time_left() {
    let mut bench = Bench::new(What::Source);
    bench.take(&alert(1, "ICMP", 1), false, 0);
    assert_eq!(bench.send(0), [(600, "10.0.0.1*".to_owned())]);
    bench.blocker.lost(bench.start + Duration::from_secs(400));
    assert_eq!(bench.send(400), [(240, "10.0.0.1".to_owned())]);
    // An entry whose time is extended is not reported and not counted as a new one.
    bench.take(&alert(1, "ICMP", 1), false, 500);
    assert_eq!(bench.send(500), [(600, "10.0.0.1".to_owned())]);
    let counts = bench.blocker.counts();
    assert_eq!((counts.blocked, counts.blocked_again), (1, 1));
    bench.blocker.lost(bench.start + Duration::from_secs(1100));
    assert_eq!(bench.send(1100), []);
    assert!(!bench.blocker.has_pending());
}

#[test]
fn more_than_a_list_has_room_for_is_refused_and_places_come_free() {
    let mut bench = Bench::new(What::Source);
    let line = |number: usize| {
        let source = std::net::Ipv4Addr::from_bits(number as u32).to_string();
        alert(1, "TCP", 1).replace("10.0.0.1", &source)
    };
    for number in 0..ENTRIES_MAX + 10 {
        bench.take(&line(number), false, 0);
    }
    assert_eq!(bench.blocker.counts().refused, 10);
    let (time, entries) = bench.blocker.batch(bench.start, usize::MAX).unwrap();
    assert_eq!(entries.len(), ENTRIES_MAX);
    bench.blocker.blocked(&entries, time, bench.start);
    bench.take(&line(ENTRIES_MAX), false, 599);
    assert_eq!(bench.blocker.counts().refused, 11);
    bench.take(&line(ENTRIES_MAX), false, 600);
    assert!(bench.blocker.has_pending());
    // The daemon or the capture refuses the entry: another alert requests it again.
    let (_, entries) = bench.blocker.batch(bench.start + TIME, 9).unwrap();
    bench.blocker.refused(&entries);
    assert!(!bench.blocker.has_pending() && bench.blocker.counts().refused == 12);
    bench.take(&line(ENTRIES_MAX), false, 600);
    assert!(bench.blocker.has_pending());
}
