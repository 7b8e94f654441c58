//! Alerts that other tools write, line by line, and the entries to block because of them.
//!
//! | module | contents |
//! |---|---|
//! | [`eve`] | a line of Suricata's EVE JSON, and the alert in it |
//! | [`rules`] | selection of the alerts that lead to an entry |
//! | [`lines`] | bytes split into lines, none longer than a limit |
//! | [`followed_file`] | a file that grows, is renamed and created again, or is truncated |
//! | [`limits`] | how long a line may be |
#![forbid(unsafe_code)]

pub mod eve;
pub mod followed_file;
pub mod limits;
pub mod lines;
pub mod rules;

pub use eve::{Alert, What};
pub use followed_file::FollowedFile;
pub use lines::{Line, Lines};
pub use rules::Rules;
