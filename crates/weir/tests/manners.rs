//! All commands behave alike: their JSON uses the same names for the same things, with units, and a command that cannot
//! run ends with status 2 and a reason on standard error. Only the test of root's commands needs rights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value};
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::{End, in_netns, require_root};

/// Names that must not be used in JSON, and the name to use instead.
const SYNONYMS: [(&str, &str); 27] = [
    ("dev", "interface"),
    ("device", "interface"),
    ("dropped", "drops"),
    ("dur", "duration_s"),
    ("duration", "duration_s"),
    ("duration_ms", "duration_s"),
    ("elapsed", "duration_s"),
    ("elapsed_s", "duration_s"),
    ("err", "error"),
    ("failure", "error"),
    ("frame_count", "frames"),
    ("iface", "interface"),
    ("ifname", "interface"),
    ("is_ended", "ended"),
    ("lag", "waiting"),
    ("len", "bytes"),
    ("lost", "drops, by place, or lapped"),
    ("message", "error"),
    ("msg", "error"),
    ("nic", "interface"),
    ("octets", "bytes"),
    ("overwritten", "lapped"),
    ("pps", "mpps, or captured_pps and its like"),
    ("seconds", "duration_s"),
    ("secs", "duration_s"),
    ("time", "a name with its unit"),
    ("wire_bytes", "bytes"),
];

/// Names in the daemon's protocol. They cannot change, because clients of other versions and the C library read them;
/// `weir status` prints them as they are.
const OF_PROTOCOL: [&str; 3] = ["lag", "seconds", "wire_bytes"];

/// Objects whose keys are not Weir's names: features of `ethtool`, page sizes, blocked entries.
const NAMED_BY_OTHERS: [&str; 3] = ["features", "hugepages_free", "left_ms"];

/// Numbers in the lab's results whose unit is another field of the same row, or part of the target's text.
const UNIT_BESIDE: [&str; 5] = ["limit", "max", "median", "min", "value"];

/// Keys whose values have several JSON types, and the reason.
const KINDS: [(&str, &str); 12] = [
    ("blocked", "a ledger: frames; weir block: the list"),
    ("cores", "doctor: each of them; of the lab's machine how many"),
    ("frames", "how many; of a round of the lab the account of them"),
    ("gbps", "a rate; of a row of the lab a summary"),
    ("kernel", "drops: frames that it lost; of the lab's machine its release"),
    ("netdev", "drops: frames that it refused; weir attach: its own counts"),
    ("rounds", "of a row of the lab each of them; of a summary how many"),
    ("consumers", "a report: each of them; of a daemon's client how many"),
    ("cpus", "doctor: of the machine a list; of an interrupt text, as the kernel writes it"),
    ("feeds", "a report: each of them; in answers about them how many"),
    ("monitoring_port", "doctor: whether settings are for one, and the command line for one"),
    ("value", "doctor: a setting's, as text; lab: of a round a number, of a row a summary"),
];

/// Runs commands with one daemon, one capture and one recording, and collects their JSON.
struct Bench {
    dir: TempDir,
    /// The end in whose network namespace the commands run; `None`: in that of the test.
    end: Option<End>,
    children: Vec<Child>,
    objects: Vec<(String, Value)>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Bench {
    fn command(&self, line: &str) -> Command {
        let dir = self.dir.path().display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.replace("DIR", &dir).split(' ')).stdin(Stdio::null());
        command.env("LC_ALL", "C").env_remove("WEIR_SOCKET");
        command
    }

    /// Runs a command and keeps the JSON objects that it prints. There must be at least one, and no other output.
    fn run(&mut self, line: &str) {
        let mut command = self.command(line);
        let output = match &self.end {
            Some(end) => in_netns(&end.netns, || command.output()).expect("the namespace"),
            None => command.output(),
        };
        let output = output.expect("weir");
        let stdout = String::from_utf8(output.stdout).expect("text");
        let before = self.objects.len();
        for object in Deserializer::from_str(&stdout).into_iter() {
            let object = object.unwrap_or_else(|why| panic!("{line}: {why}: {stdout}"));
            self.objects.push((line.to_owned(), object));
        }
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(self.objects.len() > before, "{line}: {:?}: {says}", output.status);
    }

    /// Passes if all objects follow the rules for names, and a key has the same type everywhere.
    fn judge(&self, names_min: usize) {
        let mut kinds: BTreeMap<String, BTreeMap<&str, &str>> = BTreeMap::new();
        let mut found = BTreeSet::new();
        for (line, object) in &self.objects {
            walk(object, "", &mut |within, key, value| {
                for fault in faults(line.starts_with("status --socket"), within, key, value) {
                    found.insert(format!("{line}: {within}.{key} {fault}"));
                }
                if !value.is_null() {
                    kinds.entry(key.to_owned()).or_default().insert(kind(value), line);
                }
            });
        }
        assert!(found.is_empty(), "{found:#?}");
        let several: BTreeMap<_, _> = kinds.iter().filter(|(_, kinds)| kinds.len() > 1).collect();
        let is_new = |key: &str| KINDS.iter().all(|(known, _)| *known != key);
        let new: BTreeMap<_, _> = several.iter().filter(|(key, _)| is_new(key)).collect();
        assert!(new.is_empty(), "of several kinds: {new:#?}");
        assert!(kinds.len() > names_min, "only {} names were seen", kinds.len());
    }

    /// Starts a command in the background, and waits until its socket exists.
    fn start(&mut self, line: &str, socket: &str) {
        let mut command = self.command(line);
        let log = fs::File::create(self.dir.path().join(format!("{socket}.log"))).expect("a file");
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("weir");
        self.children.push(child);
        let (path, begin) = (self.dir.path().join(socket), Instant::now());
        while !path.exists() {
            let log = self.dir.path().join(format!("{socket}.log"));
            let says = || fs::read_to_string(&log).unwrap_or_default();
            assert!(begin.elapsed() < Duration::from_secs(60), "{line}: {}", says());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Calls `tell` with the key of the object that contains a field, the field's key, and its value, for every field.
fn walk(value: &Value, within: &str, tell: &mut impl FnMut(&str, &str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !NAMED_BY_OTHERS.contains(&within) {
                    tell(within, key, value);
                }
                walk(value, key, tell);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| walk(value, within, tell)),
        _ => {}
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Rules that a field violates.
fn faults(is_of_daemon: bool, within: &str, key: &str, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !key.starts_with(|c: char| c.is_ascii_lowercase()) || !key.chars().all(is_snake) {
        faults.push("is no snake_case".to_owned());
    }
    // The keys of `drops` are the names of places.
    if within != "drops"
        && !(is_of_daemon && OF_PROTOCOL.contains(&key))
        && let Some((_, word)) = SYNONYMS.iter().find(|(word, _)| *word == key)
    {
        faults.push(format!("is called {word}"));
    }
    let ends = |ends: &[&str]| ends.iter().any(|end| key.ends_with(end));
    let is_count = value.is_u64() || value.is_null();
    if ends(&["_bytes", "_mib", "_frames", "_ns"]) && !is_count && !value.is_object() {
        faults.push(format!("is no whole number: {value}"));
    }
    let is_measure = value.is_number() || value.is_null() || NAMED_BY_OTHERS.contains(&key);
    if ends(&["_s", "_ms", "_us", "_pps", "_bps"]) && !is_measure {
        faults.push(format!("is no number: {value}"));
    }
    let is_yes_or_no = value.is_boolean() || value.is_null();
    if ["is_", "has_"].iter().any(|start| key.starts_with(start)) && !is_yes_or_no {
        faults.push(format!("is neither true nor false: {value}"));
    }
    // A number with a fraction is a measured value, so its name must contain a unit.
    let units = ["_s", "_ms", "_us", "pps", "gbps", "_bps", "_per_second", "_share"];
    let has_unit = ends(&units) || ends(&["_percent", "_cores"]) || UNIT_BESIDE.contains(&key);
    if value.is_f64() && !has_unit {
        faults.push(format!("has no unit: {value}"));
    }
    // Values of settings are texts as the kernel writes them.
    let is_plain = within != "settings";
    if is_plain && value.as_str().is_some_and(|it| it == "true" || it.parse::<f64>().is_ok()) {
        faults.push(format!("is text: {value}"));
    }
    faults
}

#[test]
fn json_has_one_vocabulary() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = "[sources.made]\nsource = \"gen:size=64,rate=1kpps\"\neverybody = true\n";
    fs::write(dir.path().join("weir.toml"), config).expect("a file");
    let (children, objects) = (Vec::new(), Vec::new());
    let mut bench = Bench { dir, end: None, children, objects };
    bench.run("capture gen:size=64,rate=10kpps --duration 300ms --json --json-every 100ms --quiet");
    bench.run("capture gen:size=64,frames=1000 --json --write DIR/rec/ --compress zstd");
    bench.run("capture gen:size=64,frames=1000 --json --write DIR/made.pcapng");
    bench.run("capture --list-interfaces --json");
    bench.run("extract DIR/rec udp --json --write DIR/out.pcapng");
    bench.run("index DIR/rec --check --json");
    bench.run("flows file:DIR/made.pcapng --biflow --json");
    bench.run("doctor --json");
    bench.run("lab copiers --duration 100ms --json");
    bench.start("serve --config DIR/weir.toml --socket DIR/daemon", "daemon");
    let line = "capture host:made --socket DIR/daemon --feed a:udp --control DIR/control";
    bench.start(line, "control");
    bench.run("status --control DIR/control --json");
    bench.run("status --socket DIR/daemon --json");
    bench.run("vm list --socket DIR/daemon --json");
    bench.run("lab reread made --duration 0s --socket DIR/daemon --json");
    let line =
        "capture gen:rate=1kpps --write DIR/back/ --on-trigger signal --control DIR/back-control";
    bench.start(line, "back-control");
    bench.run("trigger --control DIR/back-control --json");
    bench.run("filter udp --feed a --control DIR/control --json");
    bench.run("block 10.0.0.1 --feed a --for 1h --control DIR/control --json");
    bench.run("block 10.0.0.0/24 --feed a --socket DIR/daemon --json");
    bench.run("capture host:made --socket DIR/daemon --frames 10 --json");

    bench.run("lab churn --feeds 3 --consumers 3 --json");
    bench.run("lab disk DIR --rounds 1 --duration 0.1s --block-sizes 1MiB --json -");
    bench.run("vm check web1 --config DIR/weir.toml --socket DIR/daemon --json");
    bench.judge(150);
}

#[test]
fn root_json_has_one_vocabulary() {
    if !require_root("root_json_has_one_vocabulary") {
        return;
    }
    let bed = Testbed::builder().gro(true).build().expect("a testbed");
    let dir = tempfile::tempdir().expect("a folder");
    let (children, objects) = (Vec::new(), Vec::new());
    let mut bench = Bench { dir, end: Some(bed.tx.clone()), children, objects };
    bench.run("gen wtx0 --frames 1000 --size imix --flows 10 --json");
    bench.run("capture gen:frames=10 --write DIR/made.pcapng --json");
    bench.run("gen wtx0 --file DIR/made.pcapng --json");
    bench.run("attach file:DIR/made.pcapng --netdev weir0 --json");
    bench.end = Some(bed.rx.clone());
    for engine in ["bpf", "af_packet", "af_xdp --consume", "pcap"] {
        bench.run(&format!("capture wrx0 --duration 100ms --engine {engine} --json"));
    }
    bench.run("attach wrx0 --netdev weir0 --duration 100ms --json");
    bench.run("flows wrx0 --in-kernel --duration 100ms --json");
    bench.run("doctor wrx0 --monitoring-port --json");
    bench.run("lab churn --source bpf --feeds 3 --consumers 3 --json");
    bench.run("lab bench --only command --rounds 1 --duration 0.1s --json -");
    bench.judge(150);
}

/// The output of `weir` with these arguments.
fn weir(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).env("LC_ALL", "C").env_remove("WEIR_SOCKET").stdin(Stdio::null());
    command.output().expect("weir")
}

/// Every command that the help lists, with its subcommands.
fn verbs(of: &[String]) -> Vec<Vec<String>> {
    let words: Vec<&str> = of.iter().map(String::as_str).chain(["--help"]).collect();
    let help = String::from_utf8(weir(&words).stdout).expect("text");
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![of.to_vec()] };
    let rows = list.lines().take_while(|line| line.starts_with("  "));
    let names = rows
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.flat_map(|name| verbs(&[of, &[name.to_owned()]].concat())).collect()
}

/// Passes if the command ends with status 2, prints a reason, and prints nothing on standard output.
fn refused(words: &[&str]) {
    let output = weir(words);
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {says}");
    assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(says.contains("error: ") || says.contains("weir: "), "{words:?}: {says}");
    assert!(!says.contains("os error") && !says.contains("panicked"), "{words:?}: {says}");
}

#[test]
fn bad_input_ends_with_status_2_in_every_command() {
    let verbs = verbs(&[]);
    assert!(verbs.len() > 25, "{verbs:?}");
    for verb in &verbs {
        let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
        refused(&[&verb[..], &["--no-such-flag"]].concat());
        let help = weir(&[&verb[..], &["--help"]].concat());
        assert_eq!(help.status.code(), Some(0), "{verb:?}");
    }
    for line in [
        "no-such-verb",
        "capture",
        "capture file:/no/such/file --json",
        "capture no-such-iface0 --json",
        "capture gen: --filter no-such-word --json",
        "capture gen: -F /no/such/file",
        "capture gen: -c 1 --write /no/such/folder/a",
        "capture gen: -c 1 --write /no/such/folder/a/",
        "capture gen: -c 1 --ring-size 4KiB",
        "capture host:lan --socket /no/such/socket --json",
        "flows file:/no/such/file --json",
        "flows gen: --filter no-such-word --json",
        "attach file:/no/such/file --netdev weir0 --json",
        "extract /no/such/folder --json",
        "extract /no/such/folder --filter no-such-word --json",
        "extract udp",
        "index /no/such/folder --json",
        "status --socket /no/such/socket --json",
        "status --control /no/such/socket --json",
        "filter udp --control /no/such/socket --json",
        "trigger --control /no/such/socket --json",
        "block 10.0.0.1 --control /no/such/socket --json",
        "block no-address --control /no/such/socket --json",
        "vm list --socket /no/such/socket --json",
        "serve --config /no/such/file",
        "gen no-such-iface0 --json",
        "gen file:a --json",
        "gen lo --file /no/such/file",
        "run -- /no/such/program",
        "doctor file:a --json",
        "lab reread made --socket /no/such/socket --json",
    ] {
        refused(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>());
    }
}
