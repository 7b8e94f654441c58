//! A flag has one meaning in all commands: its value has one name, and it has one short form.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;

use super::command;

/// Flags whose values have another name in some command, and why.
const VALUES: [(&str, &str); 6] = [
    ("feed", "capture makes a feed, with its filter; others name one of the daemon's"),
    ("file", "gen sends a trace; filter and block read text"),
    ("from", "extract begins at a time; block reads alerts from a file"),
    ("json", "lab bench and lab disk write a file beside their tables"),
    ("vlan", "gen sends tags with these numbers; flows keeps VLANs apart"),
    ("vsock", "guest connects to a port; vm prepare adds a device"),
];

/// Flags with a short form in some commands only, and why.
const SHORT_FORMS: [(&str, &str); 1] = [(
    "filter",
    "-f of extract; -f of tcpdump, which the short forms of capture follow, is no filter",
)];

type Flags = BTreeMap<String, BTreeSet<String>>;

/// The long flags of all commands that are not hidden, each with the results of `tell`.
fn flags(tell: fn(&clap::Arg) -> String) -> Flags {
    let (mut found, mut root) = (Flags::new(), command());
    root.build();
    let mut commands: Vec<&Command> = vec![&root];
    while let Some(verb) = commands.pop() {
        commands.extend(verb.get_subcommands().filter(|part| !part.is_hide_set()));
        for argument in verb.get_arguments().filter(|argument| !argument.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                found.entry(long.to_owned()).or_default().insert(tell(argument));
            }
        }
    }
    found
}

/// Asserts that the flags with several forms are those for which there is a reason.
fn only(found: &Flags, reasons: &[(&str, &str)]) {
    let several: BTreeSet<&str> =
        found.iter().filter(|(_, forms)| forms.len() > 1).map(|(flag, _)| flag.as_str()).collect();
    let named: BTreeSet<&str> = reasons.iter().map(|(flag, _)| *flag).collect();
    let new: BTreeMap<_, _> =
        several.difference(&named).map(|&flag| (flag, &found[flag])).collect();
    assert!(new.is_empty(), "of several forms: {new:#?}");
    let gone: Vec<_> = named.difference(&several).collect();
    assert!(gone.is_empty(), "of one form by now: {gone:?}");
}

#[test]
fn a_flag_takes_values_of_one_name() {
    let value = |argument: &clap::Arg| {
        let takes = argument.get_action().takes_values();
        let names = argument.get_value_names().unwrap_or_default();
        if takes { names.join(" ") } else { String::new() }
    };
    only(&flags(value), &VALUES);
}

#[test]
fn a_flag_has_one_short_form() {
    let short = |argument: &clap::Arg| argument.get_short().map(String::from).unwrap_or_default();
    only(&flags(short), &SHORT_FORMS);
}

/// Durations are `--duration` everywhere. `weir lab` also accepts `--seconds`, hidden, whose values have units, too.
#[test]
fn old_names_are_taken_and_not_shown() {
    let lines = [
        "weir lab soak _ 1s",
        "weir lab disk / _ 1s",
        "weir lab bench _ 1s",
        "weir lab copiers _ 1s",
        "weir lab reread x _ 1s",
    ];
    for line in lines {
        for name in ["--duration", "--seconds"] {
            let line = line.replace('_', name);
            let parsed = command().try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
    assert!(!flags(|_| String::new()).contains_key("seconds"));
}

#[test]
fn an_unknown_flag_is_not_offered_as_the_name_of_an_interface() {
    for flag in ["-#", "-Z"] {
        let error = command().try_get_matches_from(["weir", "capture", "eth0", flag]).unwrap_err();
        assert!(error.to_string().contains("as a value"), "{error}");
        let told = crate::cli::without_wrong_tips(error).to_string();
        assert!(told.contains(&format!("'{flag}'")) && !told.contains("tip:"), "{told}");
    }
}

#[test]
fn no_other_engine_is_offered_in_place_of_xdp() {
    let words = ["weir", "capture", "eth0", "--engine", "xdp"];
    let error = command().try_get_matches_from(words).unwrap_err();
    assert!(error.to_string().contains("tip:"), "{error}");
    let told = crate::cli::without_wrong_tips(error).to_string();
    assert!(told.contains("'xdp'") && !told.contains("tip:"), "{told}");
}
