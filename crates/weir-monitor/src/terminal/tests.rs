//! The screen, as lines of text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use weir_export::Origin;

use super::samples::{flow, flow_v6, origins, view, view_with_losses};
use super::{Look, Outcome, State, draw};
use crate::view::{FlowView, Rates, View};

fn screen(state: &State, view: &View, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, view)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(state: &State, view: &View, width: u16, height: u16) -> Vec<String> {
    let buffer = screen(state, view, width, height);
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn pressed(view: &View, keys: &str) -> State {
    let mut state = State::default();
    state.resize(24);
    state.advance(view);
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            letter => KeyCode::Char(letter),
        };
        assert_eq!(state.press(KeyEvent::from(code), view), Outcome::Draw);
    }
    state
}

#[test]
#[rustfmt::skip]
fn flows_stand_below_what_was_lost() {
    let view = view(1, 3);
    let shown = lines(&pressed(&view, ""), &view, 100, 14);
    let wanted = [
        "weir flows  eth0 (af_xdp)                                                                      up 1s",
        "1.23 Mpps  4.56 Gb/s  12,345 flows of 1,048,576  1,234/s began",
        "lost 0/s, 0 in all",
    ];
    assert_eq!(shown[..3], wanted);
    assert!(shown[3].starts_with("peak 4.56 Gb/s ") && shown[3].ends_with('█'), "{shown:#?}");
    let wanted = [
        " 1 Flows  2 Talkers  3 Protocols  4 Losses",
        "    rate▼  packets/s    bytes  lasted  proto     source               destination          on",
        "3.00 Mb/s   30.0 pps   300 kB    3.0s  tcp       10.0.0.3:40003       192.0.2.3:443        eth0 web",
        "2.00 Mb/s   20.0 pps   200 kB    2.0s  tcp       10.0.0.2:40002       192.0.2.2:443        eth0 web",
        "1.00 Mb/s   10.0 pps   100 kB    1.0s  tcp       10.0.0.1:40001       192.0.2.1:443        eth0 web",
        "", "", "", "",
        "1-3 of 3; 12,342 slower ones left out  ? help  q quit  / search  s sort  Enter flow",
    ];
    assert_eq!(shown[4..], wanted);
}

#[test]
fn every_column_has_room_on_a_wide_screen_and_the_sorted_one_on_any() {
    let mut view = view(1, 1);
    Arc::make_mut(&mut view.flows).push(flow_v6(2));
    let heads = |keys: &str, width| {
        let line = lines(&pressed(&view, keys), &view, width, 14)[5].clone();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let all = "rate▼ packets/s bytes packets start lasted proto source destination on";
    assert_eq!(heads("", 160), all);
    assert_eq!(heads("", 55), "rate▼ source destination");
    assert_eq!(heads("", 30), "rate▼ source dest…ion");
    assert_eq!(heads("ssss", 65), "rate start▼ source destination");
    assert_eq!(heads("sssssr", 65), "rate lasted▲ source destination");
    let shown = lines(&pressed(&view, ""), &view, 160, 14);
    let end = "[2001:db8::a2]:40002  [2001:db8::b2]:443   eth1\\u{1b}[2J";
    assert!(shown[6].ends_with(end), "{shown:#?}");
    let shown = lines(&pressed(&view, ""), &view, 50, 14);
    assert!(shown[6].ends_with("  [2001:db8…a2]:40002  [2001:db8::b2]:443"), "{shown:#?}");
}

#[test]
fn what_was_lost_is_named_and_stands_out() {
    let view = view_with_losses(1);
    let shown = lines(&pressed(&view, ""), &view, 120, 14);
    let wanted = "lost 12/s, 12,345 in all: kernel 12,000, lapped 345; missed before the hook 17; \
        records unsent 7; exports failed 1";
    assert_eq!(shown[2], wanted);
    let colours = |look| {
        let mut state = State::new(look);
        state.advance(&view);
        let buffer = screen(&state, &view, 120, 14);
        let cells = buffer.content.iter();
        assert!(cells.clone().all(|cell| cell.bg == Color::Reset), "the terminal's own");
        let mut colours: Vec<Color> = cells.map(|cell| cell.fg).collect();
        colours.sort_by_key(Color::to_string);
        colours.dedup();
        (buffer[(0, 2)].fg, buffer[(119, 3)].fg, colours)
    };
    let (line, bar, all) = colours(Look::default());
    assert_eq!((line, bar), (Color::Red, Color::Red));
    assert_eq!(all, [Color::Red, Color::Reset]);
    let (_, _, all) = colours(Look { has_colors: false, is_unicode: true });
    assert_eq!(all, [Color::Reset]);
}

#[test]
fn without_unicode_the_screen_is_ascii() {
    let view = view_with_losses(1);
    for keys in ["1", "2", "3", "4", "?", "\n"] {
        let mut state = pressed(&view, keys);
        state.look.is_unicode = false;
        let shown = lines(&state, &view, 90, 24);
        assert!(shown.iter().all(|line| line.is_ascii()), "{shown:#?}");
    }
}

#[test]
fn a_search_says_what_it_left_out() {
    let view = view(1, 20);
    let shown = lines(&pressed(&view, "/=10.0.0.2"), &view, 100, 24);
    assert_eq!(shown[6], " 1 Flows  2 Talkers  3 Protocols  4 Losses   /=10.0.0.2_");
    assert!(shown[8].contains("  10.0.0.2:40002  ") && shown[9].is_empty(), "{shown:#?}");
    let foot =
        "1-1 of 1 that match (20 in all); 12,325 slower ones left out  Enter keep  Esc clear";
    assert_eq!(shown[23], foot);
    let shown = lines(&pressed(&view, "/nobody\np"), &view, 100, 24);
    let tabs = " 1 Flows  2 Talkers  3 Protocols  4 Losses   paused (p goes on)  /nobody";
    assert_eq!(shown[6], tabs);
    assert!(shown[23].starts_with("none that match (20 in all); 12,325 slower"), "{shown:#?}");
}

#[test]
fn a_source_without_an_engine_has_its_name_alone() {
    let mut view = view(1, 3);
    view.sources[0].engine.clear();
    let shown = lines(&pressed(&view, "4"), &view, 100, 24);
    assert!(shown[0].starts_with("weir flows  eth0   "), "{shown:#?}");
    assert_eq!(shown[7], "source eth0");
}

#[test]
fn what_was_said_last_stands_beside_the_tabs() {
    let mut view = view(1, 3);
    view.news = vec!["eth1 has gone".into(), "eth1 is back\x1b[2J".into()];
    let tabs = lines(&pressed(&view, "/udp\n"), &view, 100, 24)[6].clone();
    assert!(tabs.ends_with("  4 Losses   /udp  eth1 is back\\u{1b}[2J"), "{tabs}");
    let shown = lines(&pressed(&view, "4"), &view, 100, 60);
    let at = shown.iter().position(|line| line == "what happened").unwrap();
    assert_eq!(shown[at + 1..at + 3], ["eth1 is back\\u{1b}[2J", "eth1 has gone"]);
}

#[test]
fn talkers_and_protocols_have_their_tables() {
    let view = view(1, 3);
    let shown = lines(&pressed(&view, "2"), &view, 100, 12);
    let wanted = [
        "address               sends   packets/s    receives   packets/s       flows",
        "10.0.0.1          1.00 Mb/s    10.0 pps   1.00 kb/s    1.00 pps           1",
        "10.0.0.2          1.00 Mb/s    10.0 pps   1.00 kb/s    1.00 pps           2",
    ];
    assert_eq!(shown[5..8], wanted);
    let shown = lines(&pressed(&view, "3"), &view, 100, 12);
    let wanted = [
        "protocol       rate  packets/s     bytes    packets   share  of the rate".to_owned(),
        format!("tcp       3.42 Gb/s   922 kpps   1.00 MB      1,000  75.0 %  {}", "█".repeat(23)),
        format!("udp       1.14 Gb/s   308 kpps   1.00 MB      1,000  25.0 %  {}", "█".repeat(8)),
    ];
    assert_eq!(shown[5..8], wanted);
}

#[test]
fn losses_scroll_and_stop_at_the_last_line() {
    let view = view_with_losses(1);
    let mut state = pressed(&view, "4");
    state.resize(13);
    let shown = lines(&state, &view, 60, 13);
    assert_eq!(shown[5], "source eth0 (af_xdp)");
    assert_eq!(shown[10], "  kernel                           12,000");
    for _ in 0..50 {
        state.press(KeyEvent::from(KeyCode::PageDown), &view);
    }
    let shown = lines(&state, &view, 60, 13);
    assert_eq!(shown[11], "records unsent                          7");
    state.press(KeyEvent::from(KeyCode::PageUp), &view);
    assert_ne!(lines(&state, &view, 60, 13), shown, "at once, not after fifty");
}

#[test]
fn a_flow_and_the_help_take_the_pane() {
    let view = view(1, 3);
    let shown = lines(&pressed(&view, "\n"), &view, 100, 30);
    let wanted = ["flow", "source            10.0.0.3", "destination       192.0.2.3"];
    assert_eq!(shown[7..10], wanted);
    let mut state = pressed(&view, "?");
    let shown = lines(&state, &view, 100, 30);
    assert!(shown.iter().any(|line| line.ends_with("  end the run")), "{shown:#?}");
    assert_eq!(shown[29], "Esc close  q quit");
    // If it does not fit, it scrolls down to its last line, and the first key upwards scrolls back.
    state.resize(12);
    assert_eq!(lines(&state, &view, 100, 12)[5], "keys");
    for _ in 0..50 {
        state.press(KeyEvent::from(KeyCode::Down), &view);
    }
    let shown = lines(&state, &view, 100, 12);
    assert!(shown[10].ends_with("  end the run"), "{shown:#?}");
    state.press(KeyEvent::from(KeyCode::Up), &view);
    assert_ne!(lines(&state, &view, 100, 12), shown);
}

#[test]
fn a_pause_holds_the_sparkline_too() {
    let first = view(1, 3);
    let mut state = pressed(&first, "p");
    let before = lines(&state, &first, 80, 24);
    let mut faster = view(2, 3);
    faster.rates.bits *= 10.0;
    state.remember(&faster);
    assert_eq!(lines(&state, &first, 80, 24), before);
    assert!(lines(&state, &faster, 80, 24)[3].starts_with("peak 45.6 Gb/s"));
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    use KeyCode::*;
    let others = vec![
        Up, Down, Left, Right, PageUp, PageDown, Home, End, Enter, Esc, Tab, BackTab, Backspace,
        Delete, Null,
    ];
    let code = prop_oneof![
        4 => prop::char::range(' ', '~').prop_map(Char),
        1 => any::<char>().prop_map(Char),
        4 => prop::sample::select(others),
        3 => prop::sample::select("/1234?srp".chars().map(Char).collect::<Vec<_>>()),
    ];
    let modifiers = prop_oneof![9 => Just(KeyModifiers::NONE), 1 => Just(KeyModifiers::CONTROL)];
    (code, modifiers).prop_map(|(code, modifiers)| KeyEvent::new(code, modifiers))
}

fn any_rates() -> impl Strategy<Value = Rates> {
    any::<[f64; 2]>().prop_map(|[packets, bits]| Rates { packets, bits })
}

fn any_flow() -> impl Strategy<Value = FlowView> {
    let counts = (any::<[u32; 4]>(), any::<[u64; 2]>(), any_rates());
    let key = (any::<u8>(), any::<bool>(), any::<u8>(), any::<[u16; 2]>());
    let rest = (any::<Option<u16>>(), 0..6u32, any::<Option<(u8, u8)>>());
    (counts, key, rest).prop_map(|((totals, times, rates), key, (vlan, interface, icmp))| {
        let (n, is_v6, protocol, ports) = key;
        let mut flow = if is_v6 { flow_v6(n) } else { flow(n) };
        flow.rates = rates;
        let record = &mut flow.record;
        (record.vlan, record.interface, record.icmp) = (vlan, interface, icmp);
        [record.key.src_port, record.key.dst_port] = ports;
        record.key.protocol = protocol;
        [record.first_ns, record.last_ns] = times;
        let [packets, bytes, packets_back, bytes_back] = totals.map(u64::from);
        (record.forward.packets, record.forward.bytes) = (packets, bytes);
        (record.reverse.packets, record.reverse.bytes) = (packets_back, bytes_back);
        flow
    })
}

fn any_view() -> impl Strategy<Value = View> {
    let flows = prop::collection::vec(any_flow(), 0..40);
    let names = prop::collection::vec(any::<String>(), 3);
    let numbers = (any::<[u64; 8]>(), any::<[f64; 2]>(), any_rates());
    (any::<u64>(), flows, names, numbers, any::<bool>()).prop_map(
        |(number, flows, names, (counts, lost_and_began, rates), is_empty)| {
            let mut view = if is_empty { View::default() } else { view_with_losses(1) };
            (view.number, view.flows, view.flows_left_out) = (number, Arc::new(flows), counts[0]);
            view.uptime = Duration::from_secs(counts[1]);
            let origin = |name: &String| Origin { interface: name.clone(), owner: None };
            view.origins = Arc::new(names.iter().map(origin).chain(origins()).collect());
            for source in &mut view.sources {
                source.name.clone_from(&names[0]);
                let drops = [(names[1].clone(), counts[2]), (names[2].clone(), counts[3])];
                source.drops = BTreeMap::from(drops);
                source.missed_before = Some(counts[4]);
            }
            [view.capacity, view.counters.began, view.lapped] = [counts[5], counts[6], counts[7]];
            [view.lost_per_second, view.began_per_second] = lost_and_began;
            view.rates = rates;
            view.news.clone_from(&names);
            for protocol in &mut view.protocols {
                protocol.rates = rates;
            }
            view
        },
    )
}

proptest! {
    #[test]
    fn no_key_no_view_and_no_size_breaks_it(
        views in prop::collection::vec(any_view(), 1..4),
        keys in prop::collection::vec(any_key(), 0..60),
        sizes in prop::collection::vec((0..150u16, 0..60u16), 4),
    ) {
        let mut state = State::default();
        for (place, key) in keys.iter().enumerate() {
            let view = &views[place * views.len() / keys.len()];
            if !state.is_paused() {
                state.advance(view);
            }
            let (width, height) = sizes[place % sizes.len()];
            state.resize(height);
            state.press(*key, view);
            if place % 8 == 0 {
                screen(&state, view, width, height);
            }
        }
        for view in &views {
            for &(width, height) in sizes.iter().chain([&(20, 5), &(1, 1), &(100, 40)]) {
                screen(&state, view, width, height);
            }
        }
    }
}
