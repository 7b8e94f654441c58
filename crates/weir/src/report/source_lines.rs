//! Lines about a source, for people.

use weir_capture::Info;
use weir_capture::kernel::netns::Owner;

/// Returns a line with the engine and the reason why it was chosen. For a feed of a daemon, the daemon's own reason is
/// left out, because it was printed at the start.
pub fn engine_line(info: &Info) -> String {
    let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
    let of_daemon = info.why.split_once("; ").filter(|_| info.engine == "host");
    let why = of_daemon.map_or(info.why.as_str(), |(why, _)| why);
    match info.engine {
        "" => format!("{}:", info.source),
        engine => format!("{}: {engine}{hook} ({why})", info.source),
    }
}

/// Returns a line about the owner of an interface. If the owner of an interface of this network namespace is another
/// namespace, the interface is a veth whose peer is in that namespace.
pub fn owner_line(source: &str, owner: &Owner) -> Option<String> {
    match owner.kind {
        "netns" if source.starts_with("netns:") => None,
        // A daemon may have opened the interface in that namespace, or its other end.
        "netns" if source.starts_with("host:") => {
            Some(format!("  the interface or its other end is in {owner}"))
        }
        "netns" => Some(format!("  its other end is in {owner}")),
        _ => Some(format!("  of {owner}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_reason_is_not_said_again() {
        let why = "read from the daemon at s; it captures with bpf: the fastest here".to_owned();
        let info = Info { source: "host:a".into(), engine: "host", why, ..Info::default() };
        assert_eq!(engine_line(&info), "host:a: host (read from the daemon at s)");
        let own = Info { engine: "bpf", hook: Some("tc"), why: "a; b".into(), ..info };
        assert_eq!(engine_line(&own), "host:a: bpf at tc (a; b)");
    }

    #[test]
    fn a_namespace_is_where_the_other_end_is_and_is_not_said_twice() {
        let blue = Owner { kind: "netns", name: "blue".into(), ..Owner::default() };
        assert_eq!(owner_line("veth0", &blue).unwrap(), "  its other end is in netns blue");
        assert_eq!(owner_line("netns:blue/eth0", &blue), None);
        assert_eq!(
            owner_line("host:lan", &blue).unwrap(),
            "  the interface or its other end is in netns blue"
        );
        let web = Owner { kind: "container", name: "web".into(), ..Owner::default() };
        assert_eq!(owner_line("veth1", &web).unwrap(), "  of container web");
    }
}
