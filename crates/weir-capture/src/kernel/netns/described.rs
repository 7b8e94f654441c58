//! The owner of frames, parsed from the description of an interface.
//!
//! Rings and files contain nothing else about an owner, so readers of a daemon's rings parse this text.

use super::Owner;

/// Kinds of owners: the word in descriptions, and [`Owner::kind`].
const KINDS: [(&str, &str); 5] = [
    ("container ", "container"),
    ("pod ", "pod"),
    ("VM ", "vm"),
    ("process ", "process"),
    ("netns ", "netns"),
];

impl Owner {
    /// Parses the owner at the beginning of an interface's description, if there is one: kind, name, and its id or
    /// process id, if given.
    #[must_use]
    pub fn described(description: &str) -> Option<Owner> {
        let first = description.split(", feed ").next()?;
        let (kind, rest) =
            KINDS.iter().find_map(|(said, kind)| Some((*kind, first.strip_prefix(said)?)))?;
        let (name, id) = match rest.find(" (") {
            Some(at) => (&rest[..at], rest[at + 2..].split([')', ',']).next()),
            None => (rest.split(", ").next()?, None),
        };
        let is_id = matches!(kind, "container" | "pod");
        let pid = id.filter(|_| !is_id).and_then(|id| id.parse().ok());
        let id = id.filter(|_| is_id).map(str::to_owned);
        (!name.is_empty()).then(|| Owner {
            kind,
            name: name.to_owned(),
            id,
            pid,
            ..Owner::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_description_says_is_read_back() {
        let owner = |kind, name: &str, id: Option<&str>, pid| Owner {
            kind,
            name: name.to_owned(),
            id: id.map(str::to_owned),
            pid,
            ..Owner::default()
        };
        let image = Some("nginx:1".to_owned());
        for (said, read) in [
            (
                owner("container", "web", Some("3f2a91c0d7e4aa"), Some(7)),
                owner("container", "web", Some("3f2a91c0d7e4"), None),
            ),
            (
                Owner {
                    image: image.clone(),
                    ..owner("container", "web", Some("3f2a91c0d7e4aa"), None)
                },
                owner("container", "web", Some("3f2a91c0d7e4"), None),
            ),
            (
                Owner { image, ..owner("container", "3f2a91c0d7e4", Some("3f2a91c0d7e4aa"), None) },
                owner("container", "3f2a91c0d7e4", None, None),
            ),
            (
                owner("pod", "shop/web-0", Some("0123456789abcdef"), None),
                owner("pod", "shop/web-0", Some("0123456789ab"), None),
            ),
            (owner("vm", "my db", None, Some(12)), owner("vm", "my db", None, None)),
            (owner("process", "nginx", None, Some(12)), owner("process", "nginx", None, Some(12))),
            (owner("netns", "blue", None, None), owner("netns", "blue", None, None)),
        ] {
            for rest in ["", ", feed web", ", feed odd (name)"] {
                let text = format!("{said}{rest}");
                assert_eq!(Owner::described(&text).as_ref(), Some(&read), "{text}");
            }
        }
        for text in ["", "feed web", "container", "VMs", "eth0 (nice)", "pod "] {
            assert_eq!(Owner::described(text), None, "{text}");
        }
    }
}
