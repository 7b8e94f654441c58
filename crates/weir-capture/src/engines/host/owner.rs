//! Converts the owner of frames from and to the daemon's form.

use weir_client::protocol;

use crate::kernel::netns::Owner;

impl From<&Owner> for protocol::Owner {
    fn from(owner: &Owner) -> protocol::Owner {
        let Owner { kind, name, id, image, pid, netns } = owner.clone();
        protocol::Owner { kind: kind.to_owned(), name, id, image, pid, netns }
    }
}

impl From<protocol::Owner> for Owner {
    fn from(told: protocol::Owner) -> Owner {
        let protocol::Owner { kind, name, id, image, pid, netns } = told;
        let (name, id, image) =
            (one_line(&name), id.as_deref().map(one_line), image.as_deref().map(one_line));
        let known = KINDS.iter().find(|known| **known == kind);
        Owner { kind: known.copied().unwrap_or("other"), name, id, image, pid, netns }
    }
}

/// The kinds of owners that this build knows. Another kind becomes `other`.
const KINDS: [&str; 5] = ["container", "pod", "vm", "process", "netns"];

/// Most characters of a text that are kept. A daemon may report any text, which is then shown in reports and on
/// terminals.
const CHARS_MAX: usize = 256;

fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_travels_and_cannot_break_a_line() {
        let owner = Owner {
            kind: "container",
            name: "web".into(),
            id: Some("3f2a".into()),
            image: Some("nginx:1".into()),
            pid: Some(7),
            netns: 4_026_531_840,
        };
        assert_eq!(Owner::from(protocol::Owner::from(&owner)), owner);
        let hostile =
            protocol::Owner { name: "a\n\x1b[2Jb".repeat(1000), ..protocol::Owner::from(&owner) };
        let name = Owner::from(hostile).name;
        assert!(name.starts_with("a[2Jba") && name.chars().count() == CHARS_MAX, "{name}");
    }
}
