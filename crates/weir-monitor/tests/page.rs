//! Responses of the page's server: the view as JSON, and metrics that Prometheus' own checker accepts; and a Grafana
//! dashboard that uses these metrics.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use weir_export::Origin;
use weir_monitor::page::{json as view_json, metrics};
use weir_monitor::{Latest, Page, View};

#[path = "common/made_up.rs"]
mod made_up;
#[path = "common/programs.rs"]
mod programs;

use made_up::Network;
use programs::has;

/// A view with everything in it.
fn full() -> View {
    let mut network = Network::new(1_700_000_000_000_000_000, true);
    (0..39).for_each(|_| drop(network.next()));
    let mut view = network.next();
    view.exports[0].disk_full = 3;
    view
}

/// The head and the body of an answer.
fn get(page: &Page, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(page.address()).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", page.address()).expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn every_file_of_the_page_is_there_and_names_no_other_place() {
    let page = Page::serve(([127, 0, 0, 1], 0).into(), Latest::default()).expect("a port");
    let (head, html) = get(&page, "/");
    assert!(head.contains("Content-Type: text/html; charset=utf-8"), "{head}");
    let mut wanted: Vec<String> = quoted_paths(&html);
    let mut seen = BTreeSet::new();
    while let Some(path) = wanted.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let (head, body) = get(&page, &path);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{path}: {head}");
        if path.ends_with(".js") {
            let imports = body.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
            wanted.extend(imports.map(|name| format!("/{name}")));
        }
        let own = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains("http://") && !own.contains("https://"), "{path}");
        assert!(!own.contains("innerHTML") && !own.contains("insertAdjacentHTML"), "{path}");
    }
    for path in ["/app.js", "/style.css", "/view.json", "/metrics", "/picture.js", "/units.js"] {
        assert!(seen.contains(path), "{path}: {seen:?}");
    }
    assert!(get(&page, "/page/assets/app.js").0.starts_with("HTTP/1.1 404"));
}

/// Paths in the attributes of a page.
fn quoted_paths(html: &str) -> Vec<String> {
    let paths = html.split("=\"/").skip(1).filter_map(|rest| rest.split('"').next());
    paths.map(|path| format!("/{path}")).collect()
}

#[test]
fn the_view_as_json_has_every_number() {
    let latest = Latest::default();
    let page = Page::serve(([127, 0, 0, 1], 0).into(), latest.clone()).expect("a port");
    let shown = || -> Value { serde_json::from_str(&get(&page, "/view.json").1).expect("JSON") };
    let before = shown();
    assert_eq!(
        (&before["number"], &before["flows"], &before["is_over"]),
        (&json!(0), &json!([]), &json!(false))
    );
    let view = full();
    latest.publish(view.clone());
    let now = shown();
    assert_eq!(now["number"], 40);
    assert_eq!(now["at_ms"], 1_700_000_040_000_u64);
    assert_eq!(now["delivered"]["packets"], view.delivered.packets);
    let source = &now["sources"][0];
    assert_eq!((&source["name"], &source["engine"]), (&json!("host:eth0"), &json!("bpf")));
    assert_eq!(source["drops"]["nic_drops"], view.sources[0].drops["nic_drops"]);
    assert_eq!(
        (&source["missed_before"], &now["sources"][1]["missed_before"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(now["table"]["evicted"], view.counters.evicted);
    assert_eq!(now["table"]["not_flows"]["arp"], 120);
    assert_eq!(
        now["exports"][0],
        json!({
            "name": "ipfix://collector:4739", "sent": 205 * 40, "unsent": 40, "disk_full": 3,
            "has_failed": false,
        })
    );
    assert_eq!(now["protocols"][0]["name"], "tcp");
    let flow = &now["flows"][0];
    let record = &view.flows[0].record;
    assert_eq!((&flow["src_ip"], &flow["dst_port"]), (&json!("10.20.0.11"), &json!(443)));
    assert_eq!(flow["bytes"], record.forward.bytes);
    assert_eq!(flow["reverse"]["packets"], record.reverse.packets);
    let ping = now["flows"].as_array().expect("flows").iter().find(|flow| flow["proto"] == 1);
    assert_eq!(ping.expect("a ping")["src_port"], Value::Null);
    assert_eq!(now["talkers"][0]["address"], view.talkers[0].address.to_string());
    latest.end();
    assert_eq!(shown()["is_over"], true);
}

#[test]
fn more_flows_than_are_shown_are_counted() {
    let view = full();
    let flows: Vec<_> = view.flows.iter().cycle().take(250).copied().collect();
    let talkers = view.talkers.iter().cycle().take(90).copied().collect();
    let many = View { flows: Arc::new(flows), flows_left_out: 7, talkers, ..view };
    let now: Value = serde_json::from_str(&view_json::text(&many, false)).expect("JSON");
    assert_eq!(now["flows"].as_array().map(Vec::len), Some(200));
    assert_eq!(now["flows_left_out"], 57);
    assert_eq!(now["talkers"].as_array().map(Vec::len), Some(50));
}

/// A name that would end a label, a line, a string or a script if it were written without escapes.
const HOSTILE: &str = "a\"} 1\nweir_flows_fake 7\r\n\\</script><script>alert(1)</script>\u{2028}\0";

#[test]
fn hostile_names_stay_names() {
    let mut view = full();
    view.sources[0].name = HOSTILE.into();
    view.sources[0].drops = [(HOSTILE.to_owned(), 3)].into();
    view.exports[0].name = HOSTILE.into();
    view.origins = Arc::new(vec![Origin { interface: HOSTILE.into(), owner: None }]);
    view.rates.bits = f64::INFINITY;
    let now: Value = serde_json::from_str(&view_json::text(&view, false)).expect("JSON");
    assert_eq!(now["sources"][0]["name"], HOSTILE);
    assert_eq!(now["rates"]["bits"], 0.0);
    let interfaces = now["flows"].as_array().expect("flows").iter().map(|flow| &flow["interface"]);
    assert!(
        interfaces.clone().any(|name| name == HOSTILE) && interfaces.clone().any(Value::is_null)
    );
    let text = metrics::text(&view);
    assert!(!text.lines().any(|line| line.starts_with("weir_flows_fake")), "{text}");
    assert!(text.contains("place=\"a\\\"} 1\\nweir_flows_fake 7"), "{text}");
    check_with_promtool("hostile_names_stay_names", &text);
}

#[test]
fn metrics_have_every_count_and_prometheus_takes_them() {
    let view = full();
    let text = metrics::text(&view);
    let has = |line: &str| assert!(text.lines().any(|one| one == line), "{line}: {text}");
    let lost = view.sources[0].drops["nic_drops"];
    assert!(lost > 0);
    has(&format!(
        "weir_flows_source_dropped_frames_total{{source=\"host:eth0\",place=\"nic_drops\"}} {lost}"
    ));
    has("weir_flows_source_dropped_frames_total{source=\"vnet*\",place=\"nic_drops\"} 0");
    has("weir_flows_source_missed_before_frames_total{source=\"host:eth0\"} 0");
    assert!(!text.contains("missed_before_frames_total{source=\"vnet*\"}"), "{text}");
    has(&format!("weir_flows_delivered_frames_total {}", view.delivered.packets));
    has("weir_flows_lapped_frames_total 0");
    has("weir_flows_table_capacity_flows 65536");
    has("weir_flows_evicted_total 80");
    has("weir_flows_frames_without_flow_total{reason=\"arp\"} 120");
    has("weir_flows_fragments_total{ports=\"known\"} 40");
    has("weir_flows_clock_steps_total{direction=\"ahead\"} 0");
    has("weir_flows_records_total 8200");
    has("weir_flows_export_unsent_records_total{export=\"ipfix://collector:4739\"} 40");
    has("weir_flows_export_disk_full_total{export=\"ipfix://collector:4739\"} 3");
    has("weir_flows_export_disk_full_total{export=\"flows.parquet\"} 0");
    check_with_promtool("metrics_have_every_count_and_prometheus_takes_them", &text);
    check_with_promtool(
        "metrics_have_every_count_and_prometheus_takes_them",
        &metrics::text(&View::default()),
    );
}

#[test]
fn two_sources_of_one_name_are_one_metric() {
    let mut view = full();
    let [first, second] = [view.sources[0].captured, view.sources[1].captured];
    let name = view.sources[0].name.clone();
    view.sources[1].name = name;
    let text = metrics::text(&view);
    let line = format!(
        "weir_flows_source_captured_frames_total{{source=\"host:eth0\"}} {}",
        first + second
    );
    assert_eq!(
        text.lines()
            .filter(|one| one.starts_with("weir_flows_source_captured"))
            .collect::<Vec<_>>(),
        [line]
    );
}

/// Checks the metrics with Prometheus' own checker, if it is installed.
fn check_with_promtool(test: &str, text: &str) {
    if !has(test, &["promtool"]) {
        return;
    }
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

/// Source: Grafana's manual, "Dashboard JSON model"; schema version 39 is that of Grafana 11, which later ones migrate.
#[test]
fn the_board_of_grafana_asks_for_what_there_is() {
    let board = include_str!("../../../packaging/grafana/weir-flows.json");
    let board: Value = serde_json::from_str(board).expect("JSON");
    assert_eq!((&board["schemaVersion"], &board["uid"]), (&json!(39), &json!("weir-flows")));
    let mut view = full();
    view.sources[0].blocked = 1;
    let text = metrics::text(&view);
    let known: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let panels = board["panels"].as_array().expect("panels");
    let (mut ids, mut places, mut asked) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        assert!(at("x") + at("w") <= 24, "{panel}");
        for (x, y) in (at("x")..at("x") + at("w"))
            .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(places.insert((x, y)), "panels overlap: {panel}");
        }
        assert!(panel["title"].is_string() && panel["type"].is_string(), "{panel}");
        for target in panel["targets"].as_array().expect("targets") {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            asked.extend(names(target["expr"].as_str().expect("an expression")));
        }
    }
    let variables = board["templating"]["list"].as_array().expect("variables");
    asked.extend(
        variables
            .iter()
            .flat_map(|variable| names(variable["definition"].as_str().unwrap_or_default())),
    );
    assert!(asked.len() > 15, "{asked:?}");
    let unknown: Vec<_> = asked.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // Every metric must be used: those that no panel shows are listed here.
    let elsewhere = ["weir_flows_source_info", "weir_flows_source_blocked_frames_total"];
    let elsewhere = [
        &elsewhere[..],
        &[
            "weir_flows_source_sampled_frames_total",
            "weir_flows_protocol_packets_total",
            "weir_flows_table_frames_total",
            "weir_flows_fragments_forgotten_total",
        ],
    ]
    .concat();
    let unused: Vec<_> =
        known.iter().filter(|name| !asked.contains(**name) && !elsewhere.contains(name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

/// Names of our metrics in an expression.
fn names(expression: &str) -> Vec<String> {
    let parts = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    parts.filter(|part| part.starts_with("weir_")).map(str::to_owned).collect()
}

#[test]
fn the_board_of_grafana_has_expressions_that_prometheus_takes() {
    let test = "the_board_of_grafana_has_expressions_that_prometheus_takes";
    if !has(test, &["promtool"]) {
        return;
    }
    let board = include_str!("../../../packaging/grafana/weir-flows.json");
    let board: Value = serde_json::from_str(board).expect("JSON");
    let targets = board["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .flat_map(|panel| panel["targets"].as_array());
    let expressions = targets.flatten().map(|target| {
        // Fill in the variables, as Grafana does.
        let text = target["expr"].as_str().expect("an expression");
        text.replace("$__rate_interval", "1m").replace("$instance", ".*")
    });
    let rules: Vec<_> = expressions
        .enumerate()
        .map(|(index, expr)| json!({"record": format!("weir:{index}"), "expr": expr}))
        .collect();
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("rules.yml");
    // JSON is YAML.
    let groups = json!({"groups": [{"name": "board", "rules": rules}]});
    std::fs::write(&file, groups.to_string()).expect("a file");
    let output =
        Command::new("promtool").args(["check", "rules"]).arg(&file).output().expect("promtool");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
