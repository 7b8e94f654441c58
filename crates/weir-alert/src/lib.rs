//! Alerts that other tools write, line by line, and what to block because of them.
//!
//! | module | what it has |
//! |---|---|
//! | [`eve`] | a line of Suricata's EVE JSON, and the alert in it |
//! | [`rules`] | which alerts count |
//! | [`lines`] | bytes cut into lines, none longer than a limit |
//! | [`followed_file`] | a file that grows, is renamed and made anew, or is cut |
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
