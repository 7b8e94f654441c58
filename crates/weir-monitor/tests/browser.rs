//! The page in a real browser: in both themes, on a phone and on a desktop.
//!
//! With `WEIR_PICTURES=FOLDER` the tests save screenshots of the page in this folder. The ignored test takes those of
//! docs/flows.md: it opens the running page at `WEIR_PICTURES_OF=URL`, such as that of `--example page`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_monitor::{ExportView, Latest, Page, Protocol, Rates, View};

#[path = "common/made_up.rs"]
mod made_up;
#[path = "common/programs.rs"]
mod programs;
#[path = "common/webdriver.rs"]
mod webdriver;

use made_up::Network;
use programs::has;
use webdriver::Browser;

const PROGRAMS: [&str; 2] = ["chromium", "chromedriver"];
const THEMES: [&str; 2] = ["light", "dark"];
/// Name, width, height, device pixels, whether it is a phone.
type Screen = (&'static str, u32, u32, f64, bool);
const SCREENS: [Screen; 2] = [("desk", 1440, 900, 1.0, false), ("phone", 360, 740, 2.0, true)];
/// The screen of the pictures in docs/.
const DOCS: Screen = ("docs", 1180, 1088, 1.0, false);

/// A monitor of a network that is made up, and its page.
struct Shown {
    network: Network,
    latest: Latest,
    page: Page,
}

impl Shown {
    fn new(is_lossy: bool) -> Shown {
        let latest = Latest::default();
        let page = Page::serve(([127, 0, 0, 1], 0).into(), latest.clone()).expect("a port");
        let mut shown =
            Shown { network: Network::new(1_700_000_000_000_000_000, is_lossy), latest, page };
        shown.publish(34);
        for count in 1..=6 {
            shown.publish(1);
            shown.until_remembered(count);
        }
        shown
    }

    /// Waits until the page's server has seen this number of views.
    fn until_remembered(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while get(self.page.address(), "/history.json").matches("at_ms").count() < count {
            assert!(Instant::now() < end, "{count} views");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Publishes this number of further views, one for each second.
    fn publish(&mut self, seconds: usize) {
        for _ in 0..seconds {
            self.latest.publish(self.network.next());
        }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.page.address())
    }
}

/// The HTTP response for a path, with its headers.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    text
}

fn look_as(browser: &Browser, theme: &str, screen: &str, reduced: bool) {
    let (_, width, height, ratio, is_mobile) =
        SCREENS.into_iter().chain([DOCS]).find(|(name, ..)| *name == screen).expect("a screen");
    let size =
        json!({"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": is_mobile});
    browser.devtools("Emulation.setDeviceMetricsOverride", &size);
    let motion = if reduced { "reduce" } else { "no-preference" };
    let features = json!([
        {"name": "prefers-color-scheme", "value": theme},
        {"name": "prefers-reduced-motion", "value": motion},
    ]);
    browser.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
}

fn opened(browser: &Browser, shown: &Shown) {
    browser.open(&shown.url());
    browser.until("document.body.dataset.state === 'live'");
    browser.until("document.querySelectorAll('#flows tr').length === 66");
}

fn text(browser: &Browser, id: &str) -> String {
    let text = browser.value(&format!("document.getElementById('{id}').textContent"));
    text.as_str().expect("text").to_owned()
}

fn rows(browser: &Browser, column: usize) -> Vec<String> {
    let cells = browser.value(&format!(
        "[...document.querySelectorAll('#flows tr')].map(tr => tr.children[{column}].textContent)"
    ));
    serde_json::from_value(cells).expect("texts")
}

/// Checks that the console has no errors, and that nothing was requested from another machine.
fn is_clean(browser: &Browser, shown: &Shown) {
    let errors = browser.log("browser");
    assert!(errors.is_empty(), "{errors:#?}");
    let mut asked = 0;
    for line in browser.log("performance") {
        let event: Value =
            serde_json::from_str(line["message"].as_str().expect("text")).expect("JSON");
        let event = &event["message"];
        if event["method"] != "Network.requestWillBeSent" {
            continue;
        }
        let url = event["params"]["request"]["url"].as_str().expect("a URL");
        // The browser's first tab has such URLs. They cause no request to another machine.
        if ["chrome:", "data:", "about:"].iter().any(|scheme| url.starts_with(scheme)) {
            continue;
        }
        assert!(url.starts_with(&shown.url()), "{url}");
        asked += 1;
    }
    assert!(asked > 5, "{asked}");
}

/// Elements that make the whole page scroll sideways.
fn too_wide(browser: &Browser) -> Value {
    browser.value(
        "(() => { const root = document.documentElement; \
         const out = (element) => element.getBoundingClientRect().right > root.clientWidth + 1; \
         const scrolls = (element) => element.parentElement.closest('.scroll') !== null; \
         return root.scrollWidth <= root.clientWidth && root.clientWidth === innerWidth ? [] : [`${root.scrollWidth} of ${root.clientWidth}`, \
                 ...[...document.querySelectorAll('body *')].filter((element) => out(element) && !scrolls(element)) \
                     .map((element) => `${element.tagName} ${element.id} ${element.className}`)]; })()",
    )
}

/// Saves a screenshot if `WEIR_PICTURES` is set: of the whole page, or only of its visible part.
fn picture(browser: &Browser, name: &str, is_whole: bool) {
    let Some(folder) = std::env::var_os("WEIR_PICTURES") else { return };
    let shot = json!({"format": "png", "captureBeyondViewport": is_whole});
    let shot = browser.devtools("Page.captureScreenshot", &shot);
    let bytes = from_base64(shot["data"].as_str().expect("base64"));
    fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).expect("a folder");
}

fn from_base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// Number of coloured pixels of a canvas: lines and areas, not texts and axes, which are grey.
fn pixels(browser: &Browser, id: &str) -> u64 {
    let count = browser.value(&format!(
        "(() => {{ const canvas = document.getElementById('{id}'); \
         const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); \
         let count = 0; for (let at = 3; at < data.length; at += 4) {{ \
         const [r, g, b, a] = data.slice(at - 3, at + 1); \
         count += a > 0 && Math.max(r, g, b) - Math.min(r, g, b) > 48; }} return count; }})()"
    ));
    count.as_u64().expect("a number")
}

#[test]
fn both_themes_fit_a_phone_and_a_desk_and_show_the_view() {
    if !has("both_themes_fit_a_phone_and_a_desk_and_show_the_view", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(true), Browser::start());
    let view = shown.latest.get();
    for (screen, width, ..) in SCREENS {
        for theme in THEMES {
            look_as(&browser, theme, screen, false);
            opened(&browser, &shown);
            assert_eq!(browser.value("innerWidth"), json!(width), "{screen}");
            assert_eq!(too_wide(&browser), json!([]), "{screen}");
            let ground = browser.value("getComputedStyle(document.body).backgroundColor");
            assert_eq!(ground == "rgb(12, 16, 21)", theme == "dark", "{ground}");
            for canvas in ["chart-bits", "chart-packets", "chart-protocols", "picture"] {
                let count = pixels(&browser, canvas);
                assert!(count > 100, "{canvas} on a {screen}: {count}");
            }
            let bits = view.rates.bits;
            assert!((1e8..9.99e8).contains(&bits), "{bits}");
            assert_eq!(text(&browser, "now-bits"), format!("{:.0} Mbit/s", bits / 1e6));
            let packets = thousands(view.rates.packets.round() as u64);
            assert_eq!(text(&browser, "now-packets"), format!("{packets} /s"));
            assert_eq!(text(&browser, "now-flows"), thousands(view.counters.flows));
            let lost: u64 = view.sources.iter().flat_map(|source| source.drops.values()).sum();
            assert!(lost > 0);
            let verdict = text(&browser, "verdict");
            assert!(verdict.starts_with(&format!("{} frames lost", thousands(lost))), "{verdict}");
            for talker in &view.talkers[..3] {
                assert!(text(&browser, "talkers").contains(&talker.address.to_string()));
            }
            // Names come from outside, so the page must show them as text and not as HTML.
            assert!(rows(&browser, 8).contains(&"<b id=\"hostile\">eth</b>".to_owned()));
            assert_eq!(browser.value("document.getElementById('hostile')"), Value::Null);
            picture(&browser, &format!("{screen}-{theme}"), true);
        }
    }
    is_clean(&browser, &shown);
}

/// The number with commas between groups of three digits, as the page writes it.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[test]
fn an_empty_view_and_an_overfull_one_fit_a_phone() {
    if !has("an_empty_view_and_an_overfull_one_fit_a_phone", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(true), Browser::start());
    look_as(&browser, "light", "phone", false);
    opened(&browser, &shown);
    let fits = |number: u64| {
        browser.until(&format!("performance.getEntriesByName('shown-{number}').length > 0"));
        assert_eq!(too_wide(&browser), json!([]), "{number}");
        assert_eq!(browser.value("document.body.dataset.state"), json!("live"), "{number}");
    };
    let mut view = View::clone(&shown.latest.get());
    view.number += 1;
    let name = "an-interface-with-a-name-that-does-not-end".repeat(6);
    for number in 0..60 {
        let mut source = view.sources[0].clone();
        source.name = format!("{number}{name}");
        source.drops = [("nic_drops".into(), u64::MAX), (name.clone(), 1 << 60)].into();
        (source.offered, source.missed_before) = (u64::MAX, Some(u64::MAX));
        view.sources.push(source);
        view.exports.push(ExportView { name: name.clone(), ..view.exports[0].clone() });
    }
    view.protocols = (0..=255).map(|number| Protocol { number, ..view.protocols[0] }).collect();
    view.rates = Rates { packets: 1e15, bits: 1e18 };
    shown.latest.publish(view.clone());
    fits(view.number);
    picture(&browser, "phone-overfull", true);
    let empty = View { number: view.number + 1, at_ns: view.at_ns + 1, ..View::default() };
    shown.latest.publish(empty.clone());
    fits(empty.number);
    assert_eq!(text(&browser, "verdict"), "No frame lost");
    assert_eq!(rows(&browser, 0), Vec::<String>::new());
    picture(&browser, "phone-empty", true);
    // Frames that were missed before the hook are shown apart from lost ones, as in the terminal.
    let mut source = view.sources[0].clone();
    (source.drops, source.missed_before) = ([("kernel".into(), 0)].into(), Some(17));
    let missed = View { number: empty.number + 1, sources: vec![source], ..empty };
    shown.latest.publish(missed.clone());
    fits(missed.number);
    assert_eq!(text(&browser, "verdict"), "No frame lost");
    assert_eq!(text(&browser, "all-lost"), "17 missed before the hook");
    assert!(text(&browser, "missed").contains("missed 17 frames before the hook"));
    let good = "document.getElementById('verdict').classList.contains('is-good')";
    assert_eq!(browser.value(good), json!(false));
    is_clean(&browser, &shown);
}

#[test]
fn contrast_is_enough_in_both_themes() {
    if !has("contrast_is_enough_in_both_themes", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(true), Browser::start());
    // Source: WCAG 2.2, "contrast ratio" and "relative luminance". The background is that of the nearest element
    // around the text that has one.
    let script = "(() => { \
        const parse = (text) => text.match(/[\\d.]+/g).map(Number); \
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255) \
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)) \
            .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0); \
        const ground = (element) => { for (let at = element; at; at = at.parentElement) { \
            const colour = parse(getComputedStyle(at).backgroundColor); \
            if (colour.length === 3 || colour[3] > 0) return colour; } return [255, 255, 255]; }; \
        const poor = []; \
        for (const element of document.querySelectorAll('body *')) { \
            const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()); \
            if (!own || element.checkVisibility() === false || element.tagName === 'NOSCRIPT') continue; \
            const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))]; \
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); \
            if (ratio < 4.5) poor.push(`${element.tagName} ${element.id} ${element.textContent}: ${ratio}`); } \
        return poor; })()";
    for theme in THEMES {
        look_as(&browser, theme, "desk", false);
        opened(&browser, &shown);
        assert_eq!(browser.value(script), json!([]), "{theme}");
    }
}

#[test]
fn dots_move_unless_paused_or_motion_is_not_wanted() {
    if !has("dots_move_unless_paused_or_motion_is_not_wanted", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(false), Browser::start());
    let frame = "document.getElementById('picture').toDataURL()";
    look_as(&browser, "light", "desk", false);
    opened(&browser, &shown);
    let see_picture = || {
        browser.value("document.getElementById('picture').scrollIntoView({ block: 'center' })");
        thread::sleep(Duration::from_millis(700));
    };
    see_picture();
    browser.value(&format!("(window.frame = {frame}, true)"));
    browser.until(&format!("window.frame !== {frame}"));
    browser.value("document.getElementById('pause').click()");
    browser.until("document.body.dataset.state === 'paused'");
    let still = |what: &str| {
        browser.value(&format!("(window.frame = {frame}, true)"));
        thread::sleep(Duration::from_millis(500));
        assert_eq!(browser.value(&format!("window.frame === {frame}")), json!(true), "{what}");
    };
    still("paused");
    look_as(&browser, "light", "desk", true);
    opened(&browser, &shown);
    see_picture();
    still("no motion");
    assert!(pixels(&browser, "picture") > 1000);
}

#[test]
fn flows_are_sorted_and_found() {
    if !has("flows_are_sorted_and_found", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(false), Browser::start());
    look_as(&browser, "light", "desk", false);
    opened(&browser, &shown);
    let click = |title: &str| {
        browser.value(&format!(
            "[...document.querySelectorAll('#flows-head button')] \
             .find((button) => button.textContent.startsWith('{title}')).click()"
        ));
        let sorted = browser
            .value("document.querySelector('#flows-head [aria-sort]').getAttribute('aria-sort')");
        sorted.as_str().expect("text").to_owned()
    };
    assert_eq!(click("Protocol"), "ascending");
    let names = rows(&browser, 0);
    assert!(names.is_sorted() && names[0] == "gre" && names[65] == "udp", "{names:?}");
    assert_eq!(click("Protocol"), "descending");
    assert_eq!(rows(&browser, 0)[0], "udp");
    assert_eq!(click("Packets/s"), "descending");
    let first: f64 = rows(&browser, 4)[0].replace(',', "").parse().expect("a number");
    let most = shown.latest.get().flows.iter().map(|flow| flow.rates.packets).fold(0.0, f64::max);
    assert_eq!(first, most.round());
    let search = |words: &str| {
        browser.value(&format!(
            "(() => {{ const box = document.getElementById('search'); box.value = '{words}'; \
             box.dispatchEvent(new Event('input')); }})()"
        ));
        rows(&browser, 2)
    };
    let found = search("UDP 10.20.4.53:53");
    assert!(found.len() == 9 && found.iter().all(|to| to == "10.20.4.53:53"), "{found:?}");
    assert!(text(&browser, "flows-count").starts_with("9 of 66 match"));
    assert_eq!(search("<b id=").len(), 22);
    assert_eq!(search("nothing").len(), 0);
    assert_eq!(search("").len(), 66);
    is_clean(&browser, &shown);
}

#[test]
fn what_is_pointed_at_is_told() {
    if !has("what_is_pointed_at_is_told", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(false), Browser::start());
    look_as(&browser, "dark", "desk", true);
    opened(&browser, &shown);
    let point_at = |element: &str, x: f64, y: f64| {
        let at = browser.value(&format!(
            "(() => {{ const element = {element}; element.scrollIntoView({{ block: 'center' }}); \
             const box = element.getBoundingClientRect(); \
             return [box.left + box.width * {x}, box.top + box.height * {y}]; }})()"
        ));
        browser.devtools(
            "Input.dispatchMouseEvent",
            &json!({"type": "mouseMoved", "x": at[0], "y": at[1]}),
        );
    };
    let chart = "document.getElementById('chart-bits')";
    browser.value(&format!("(window.frame = {chart}.toDataURL(), true)"));
    point_at(chart, 0.99, 0.5);
    browser.until(&format!("window.frame !== {chart}.toDataURL()"));
    picture(&browser, "pointed", false);
    // The caption describes the flow whose row is pointed at, and returns to its summary afterwards.
    let caption = "document.getElementById('picture-caption').textContent";
    point_at("document.querySelector('#flows tr:nth-child(3)')", 0.1, 0.5);
    let from = rows(&browser, 1)[2].clone();
    browser.until(&format!("{caption}.includes('{from}') && {caption}.includes('bit/s back')"));
    browser.devtools("Input.dispatchMouseEvent", &json!({"type": "mouseMoved", "x": 5, "y": 5}));
    browser.until(&format!("{caption}.startsWith('The 18 busiest of 4,876 flows.')"));
}

#[test]
fn a_monitor_that_ends_or_cannot_be_reached_is_told_and_found_again() {
    if !has("a_monitor_that_ends_or_cannot_be_reached_is_told_and_found_again", &PROGRAMS) {
        return;
    }
    let (shown, browser) = (Shown::new(false), Browser::start());
    look_as(&browser, "dark", "phone", false);
    opened(&browser, &shown);
    assert_eq!(text(&browser, "verdict"), "No frame lost");
    shown.latest.end();
    browser.until("document.body.dataset.state === 'ended'");
    assert_eq!(text(&browser, "state"), "The monitor has ended");
    let address = shown.page.address();
    drop(shown.page);
    browser.until("document.body.dataset.state === 'lost'");
    assert_eq!(text(&browser, "state"), "Not reachable, trying again");
    let latest = Latest::default();
    let _page = Page::serve(address, latest.clone()).expect("the same port");
    latest.publish(Network::new(1_800_000_000_000_000_000, false).next());
    browser.until("document.body.dataset.state === 'live'");
}

#[test]
#[ignore = "makes the pictures of docs/flows.md"]
fn pictures_of_a_page_that_is_there() {
    let url = std::env::var("WEIR_PICTURES_OF").expect("where the page is");
    let browser = Browser::start();
    for theme in THEMES {
        look_as(&browser, theme, "docs", false);
        browser.open(&url);
        browser.until("document.body.dataset.state === 'live'");
        // Wait until the hosts have moved to their places.
        thread::sleep(Duration::from_secs(5));
        picture(&browser, &format!("page-{theme}"), false);
    }
}
