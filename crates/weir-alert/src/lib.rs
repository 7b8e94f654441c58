//! Reads alerts from files of other tools, line by line, and gives the entries to block because of them.
//!
//! | module | contents |
//! |---|---|
//! | [`eve`] | parses lines of Suricata's EVE JSON that are alerts |
//! | [`rules`] | rules that select the alerts that lead to an entry |
//! | [`lines`] | splits bytes into lines, none longer than a limit |
//! | [`followed_file`] | follows a file that grows, is truncated, or is renamed and created again |
//! | [`limits`] | limits for lines and texts |
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
