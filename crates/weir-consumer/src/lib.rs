//! Common parts of all consumers: reading rings one by one or merged by time, counting frames, and sinks.
//!
//! | module | contents |
//! |---|---|
//! | [`source`] | the feeds that a consumer reads, and how they change while it runs |
//! | [`consumer`] | the trait of consumers, and their errors |
//! | [`account`] | frames delivered, lapped, left, by consumer and by interface |
//! | [`lanes`], [`cursor`] | the rings of a consumer, and one of them, with the position to which it is read |
//! | [`limits`] | how much memory a slow consumer may hold |
//! | [`null`] | counts frames in place |
//! | [`merge`] | several rings read as one stream in time stamp order |
//! | [`numbering`] | numbers of interfaces in an output of several rings |
//! | [`ordered`] | passes that stream to a sink |
//! | [`sink`] | the trait of outputs for merged frames |
//! | [`thread`] | a consumer on its own thread |
//! | [`pull`] | a consumer that its caller drives |
#![forbid(unsafe_code)]

pub mod account;
pub mod consumer;
mod counted;
pub mod cursor;
#[cfg(test)]
mod joining_tests;
pub mod lanes;
pub mod limits;
pub mod merge;
pub mod null;
pub mod numbering;
pub mod ordered;
pub mod pull;
pub mod sink;
pub mod source;
mod stalled;
#[cfg(test)]
mod testing;
pub mod thread;
mod upkeep;
mod waiting;

pub use account::{Delivered, Taken};
pub use consumer::{Consumer, ConsumerError, Step};
pub use counted::{Count, write_counted};
pub use cursor::{Cursor, Skip};
pub use lanes::{Lanes, Rings};
pub use merge::{Merge, Turn};
pub use null::Null;
pub use numbering::{Numbering, OutputInterface};
pub use ordered::Ordered;
pub use pull::{Pull, Pulled};
pub use sink::{Run, Sink};
pub use source::{Begin, FeedChange, FrameSource, JoinedFeed, Static};
pub use stalled::Stalled;
