//! What every consumer needs: rings read one by one or merged by time, the account of what was taken, and
//! sinks.
//!
//! | module | what it does |
//! |---|---|
//! | [`consumer`] | the trait of whatever takes frames, and how it fails |
//! | [`account`] | frames delivered, lapped, left, by consumer and by interface |
//! | [`null`] | counts frames where they lie |
//! | [`merge`] | several rings read as one stream in timestamp order |
//! | [`numbering`] | numbers of interfaces in an output of several rings |
//! | [`ordered`] | hands that stream to a sink |
//! | [`sink`] | where merged frames go |
//! | [`thread`] | a consumer on a thread of its own |
//! | [`waiting`] | pauses and sleeps of a consumer that found nothing |
#![forbid(unsafe_code)]

pub mod account;
pub mod consumer;
mod counted;
pub mod merge;
pub mod null;
pub mod numbering;
pub mod ordered;
pub mod sink;
mod stalled;
pub mod thread;
pub mod waiting;

pub use account::{Delivered, Taken};
pub use consumer::{Consumer, ConsumerError, Step};
pub use counted::{Count, write_counted};
pub use merge::{Merge, Turn};
pub use null::Null;
pub use numbering::Numbering;
pub use ordered::Ordered;
pub use sink::Sink;
pub use stalled::Stalled;
pub use waiting::Waiting;
