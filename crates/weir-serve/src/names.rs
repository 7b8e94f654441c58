//! Users and groups in the daemon's file, by name or id.

use std::fmt;

use nix::unistd::{Group, User};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The kernel's value for "no id".
const NOBODY: u32 = u32::MAX;

#[derive(Deserialize)]
#[serde(untagged, expecting = "a user or group is a name or an id")]
enum NameOrId {
    Id(i64),
    Name(String),
}

/// Reads a list. A name or an id alone is refused, with the list that the user probably means. The field is `what`, in
/// the plural.
struct List<'a> {
    what: &'a str,
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<NameOrId>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of names and ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<NameOrId>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Vec<NameOrId>, E> {
        Err(E::custom(format!("it is a list: write {}s = [{name:?}]", self.what)))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<Vec<NameOrId>, E> {
        Err(E::custom(format!("it is a list: write {}s = [{id}]", self.what)))
    }
}

/// Reads a list of users, and returns their ids.
///
/// # Errors
/// A user has a name that this machine does not know, or an impossible id.
pub fn users<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    ids(from, "user", |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))
}

/// Reads a list of groups, and returns their ids.
///
/// # Errors
/// As [`users`].
pub fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
    ids(from, "group", |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())))
}

fn ids<'de, D: Deserializer<'de>>(
    from: D,
    what: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<Vec<u32>, D::Error> {
    let given = from.deserialize_seq(List { what })?;
    let ids = given.into_iter().map(|given| id_of(given, what, &find));
    ids.collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn id_of(
    given: NameOrId,
    what: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    match given {
        NameOrId::Id(id) => match u32::try_from(id) {
            Ok(id) if id != NOBODY => Ok(id),
            _ => Err(format!("a {what}'s id is 0 to {}, not {id}", NOBODY - 1)),
        },
        NameOrId::Name(name) => match find(&name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => {
                Err(format!("there is no {what} '{name}' on this machine; an id works, too"))
            }
            Err(error) => Err(format!("looking for the {what} '{name}': {error}")),
        },
    }
}
