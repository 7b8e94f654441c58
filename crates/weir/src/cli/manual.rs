//! Examples and exit statuses of each verb, for its help and its man page.

/// A command line, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Example {
    /// The line as typed into a shell.
    pub line: &'static str,
    /// The effect of the line.
    pub does: &'static str,
}

const fn example(line: &'static str, does: &'static str) -> Example {
    Example { line, does }
}

/// Examples by the words after `weir`. A test checks each line against the flags of this build.
const EXAMPLES: [(&str, &[Example]); 25] = [
    (
        "capture",
        &[
            example("weir capture eth0", "count frames; the ledger comes at Ctrl-C"),
            example("weir capture eth0 --print -c 10", "ten frames as lines of text"),
            example("weir capture eth0 --write out.pcapng --filter 'tcp port 80'", "a file"),
            example("weir capture eth0 --write dumps/ --quota 20GiB", "record; see weir extract"),
            example("weir capture eth0 --write - | wireshark -k -i -", "into a pipe"),
            example("weir capture any --follow --print", "all interfaces, also new ones"),
            example("weir capture file:out.pcapng --print", "read a file; needs no rights"),
            example("weir capture eth0 --duration 10s --json --fail-on-loss", "for scripts"),
            example("weir capture eth0 -w dumps/ --metrics 127.0.0.1:9100", "for Prometheus"),
        ],
    ),
    (
        "serve",
        &[
            example("weir serve", "with the sources of /etc/weir/weir.toml"),
            example("weir serve --config weir.toml --socket ./weir.sock", "to try a file"),
        ],
    ),
    (
        "guest",
        &[
            example("weir guest", "by the virtio-serial port org.weir.0, for root"),
            example("weir guest --users alice", "let alice read, too"),
        ],
    ),
    (
        "status",
        &[
            example("weir status", "of the daemon"),
            example("weir status --control weir.sock", "how a capture goes, and how fast"),
        ],
    ),
    (
        "vm prepare",
        &[
            example("weir vm prepare web1", "plain QEMU: options to add"),
            example("weir vm prepare web1 --vsock", "vhost-device-vsock in place of a serial port"),
            example("weir vm prepare web1 --libvirt", "the XML to add, and what is there already"),
            example("weir vm prepare web1 --libvirt --apply", "change the domain: virsh define"),
        ],
    ),
    ("vm check", &[example("weir vm check web1", "what prevents its guest from reading feeds")]),
    ("vm list", &[example("weir vm list", "state, feeds and memory of each guest")]),
    ("vm detach", &[example("weir vm detach web1 --within 30s", "before a migration")]),
    ("vm attach", &[example("weir vm attach web1", "after it")]),
    (
        "run",
        &[
            example("weir run -- tcpdump -ni host:eth0 'udp port 53'", "tcpdump, unchanged"),
            example("weir run -- suricata -c suricata.yaml --pcap=host:eth0", "Suricata"),
            example(
                "weir run --feed ids -- suricata -c suricata.yaml --pcap=host:eth0",
                "on a feed that `weir block --feed ids` changes",
            ),
        ],
    ),
    (
        "extract",
        &[
            example("weir extract dumps/ --from -5m -w out.pcapng", "the last five minutes"),
            example("weir extract dumps/ host 10.0.0.1 -w - | tshark -r -", "a host"),
            example("weir extract dumps/ --flow 1:mAXT6aO4kEhrDCQ0EqLqe3xIVLc= --stats", "a flow"),
        ],
    ),
    (
        "index",
        &[
            example("weir index dumps/", "mend what a killed recorder left"),
            example("weir index dumps/ --check", "only say what would be done"),
        ],
    ),
    (
        "flows",
        &[
            example("weir flows eth0", "a live table"),
            example("weir flows eth0 --http 127.0.0.1:8080", "a page, and metrics"),
            example("weir flows eth0 --export ipfix://10.0.0.9 --plain", "to a collector"),
            example("weir flows eth0 --in-kernel --export parquet:flows", "no frame is copied"),
            example("weir flows file:out.pcapng --plain", "of a file; needs no rights"),
        ],
    ),
    (
        "attach",
        &[
            example("weir attach eth0 --netdev weir0", "then: tcpdump -i weir0"),
            example(
                "weir attach host:eth0 --netdev weir0 --into docker:ids --wait-for-reader",
                "into a container; begin when a tool listens",
            ),
        ],
    ),
    (
        "filter",
        &[
            example("weir capture eth0 --control weir.sock", "in one terminal"),
            example("weir filter udp port 53 --control weir.sock", "in another"),
        ],
    ),
    (
        "trigger",
        &[
            example(
                "weir capture eth0 --write dumps/ --on-trigger signal --save-before 30s --control weir.sock",
                "in one terminal",
            ),
            example("weir trigger --control weir.sock", "in another, once something has happened"),
        ],
    ),
    (
        "block",
        &[
            example("weir block 10.0.0.1 --for 10m --feed ids", "an address, at the daemon"),
            example("weir block 'tcp 10.0.0.1:80 10.0.0.2:4711' --control weir.sock", "a flow"),
            example("weir block --from eve.json --follow --feed ids", "what raises alerts"),
            example("weir block --feed ids", "show the list"),
        ],
    ),
    (
        "gen",
        &[
            example("weir gen eth0 --rate 1Mpps --duration 10s", "64-byte frames"),
            example("weir gen eth0 --size imix --flows 1000 --frames 1M", "a mix of sizes"),
            example("weir gen eth0 --file trace.pcap --speed 2x", "a file, twice as fast"),
        ],
    ),
    (
        "demo",
        &[
            example("weir demo", "as root: live traffic between two namespaces"),
            example("weir demo --replay", "the bundled trace; needs no rights"),
        ],
    ),
    (
        "doctor",
        &[
            example("weir doctor eth0", "whether and how eth0 can be captured"),
            example("weir doctor eth0 --monitoring-port --apply", "apply the settings"),
            example("weir doctor eth0 --undo", "restore them"),
        ],
    ),
    (
        "lab bench",
        &[
            example("weir lab bench --quick", "does it work here"),
            example("weir lab bench --only wire --rounds 3", "one part"),
        ],
    ),
    ("lab soak", &[example("weir lab soak --duration 30s", "each engine at each frame size")]),
    ("lab disk", &[example("weir lab disk /var/tmp", "what this disk takes")]),
    (
        "lab simulate",
        &[
            example("weir lab simulate --seeds 100", "a hundred runs"),
            example("weir lab simulate --seed 17 --shrink", "one of them again, made small"),
        ],
    ),
    ("pages", &[example("weir pages pages/", "then: man pages/weir-capture.1")]),
];

/// Returns the examples of the verb with these words after `weir`; empty if the verb has none.
pub fn examples(verb: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == verb).map_or(&[], |(_, examples)| examples)
}

/// Returns the exit statuses of a verb with their meanings, in order.
pub fn exit_statuses(verb: &str) -> Vec<(&'static str, &'static str)> {
    let (done, found) = match verb {
        "run" => {
            return vec![
                ("2", "The tool could not be started."),
                (
                    "other",
                    "The tool is started in place of weir, so its exit status is the tool's.",
                ),
            ];
        }
        "capture" | "attach" | "flows" => {
            ("It ran to its end.", "Frames were lost, and --fail-on-loss was given.")
        }
        "index" => ("Done.", "--check found something to do."),
        "vm check" => ("Nothing prevents the guest from reading feeds.", "Something does."),
        "gen" => ("Done.", "Frames of --file could not be sent."),
        "doctor" => ("Weir can capture here.", ""),
        "lab soak" | "lab simulate" | "demo" => ("Every frame was accounted for.", ""),
        _ => ("Done.", ""),
    };
    let failed = match verb {
        "doctor" => "Weir cannot capture here, or a setting could not be changed.",
        "lab soak" | "lab simulate" | "demo" => {
            "A ledger did not close, or it could not run to the end."
        }
        _ => "It could not run, or not to the end; the reason is on standard error.",
    };
    let statuses = [("0", done), ("1", found), ("2", failed)];
    statuses.into_iter().filter(|(_, meaning)| !meaning.is_empty()).collect()
}

/// Returns the section `Examples:` for the help of a verb, if the verb has any examples.
pub fn examples_in_help(verb: &str) -> Option<String> {
    let examples = examples(verb);
    // The note of a longer example is on the next line, so that most lines fit into a terminal of usual width.
    let width =
        examples.iter().map(|it| it.line.len()).filter(|&len| len <= LINE).max().unwrap_or(0);
    let lines = examples.iter().map(|Example { line, does }| match line.len() {
        ..=LINE => format!("  {line:width$}  # {does}\n"),
        _ => format!("  {line}\n  {:width$}  # {does}\n", ""),
    });
    (!examples.is_empty()).then(|| format!("Examples:\n{}", lines.collect::<String>().trim_end()))
}

/// The most characters of an example that has its note on the same line.
const LINE: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line, as a shell with quotes of one kind sees them, up to a pipe.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for c in line.split(" | ").next().unwrap_or_default().chars() {
            match c {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        assert!(!is_quoted, "{line}");
        words.push(word);
        words
    }

    #[test]
    fn every_example_is_a_command_line_of_this_build() {
        assert_eq!(words("weir block 'tcp a b' -x | y"), ["weir", "block", "tcp a b", "-x"]);
        let parse = |line| super::super::command().try_get_matches_from(words(line));
        assert!(parse("weir capture eth0 --no-such-flag").is_err());
        for Example { line, .. } in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            assert!(line.starts_with("weir "), "{line}");
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn every_verb_that_is_shown_has_examples_and_no_other() {
        let mut cli = super::super::command();
        cli.build();
        let mut verbs = Vec::new();
        for verb in cli.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let parts = verb.get_subcommands().filter(|part| part.get_name() != "help");
            let parts: Vec<_> =
                parts.map(|it| format!("{} {}", verb.get_name(), it.get_name())).collect();
            match &parts[..] {
                [] => verbs.push(verb.get_name().to_owned()),
                parts => verbs.extend(parts.iter().cloned()),
            }
        }
        // Parts of `weir lab` that are for whoever changes Weir explain themselves in their help.
        verbs.retain(|verb| {
            verb != "help"
                && !verb.starts_with("help ")
                && (!verb.starts_with("lab ") || !examples(verb).is_empty())
        });
        let mut named = EXAMPLES.map(|(name, _)| name.to_owned());
        verbs.sort();
        named.sort();
        assert_eq!(verbs, named);
    }
}
