//! A network interface that shows frames to packet sockets, and to nobody else.
//!
//! [`Netdev`] makes a tap interface. The interface receives the frames that it is fed with: packet sockets see them
//! (tcpdump, Suricata), and a program at TC then drops them, so no network stack answers. Frames that are sent into
//! the interface are dropped and counted. The interface is gone with its `Netdev`, whatever ends the process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`name`] | names that an interface may have |
//! | `tap` | the tap interface, and frames that are written one by one |
//! | `link` | how it is set up: MTU, no addresses, up |
//! | `backlog` | frames that another CPU is to handle (RPS) |
//! | `pending` | frames that were let out and have not been seen yet |
//! | `programs` | the program at TC, and the one by which frames come in |
//! | `staged` | the memory that the programs and this process share |
//! | [`netdev`] | all of it together |

mod backlog;
pub mod error;
mod link;
pub mod name;
pub mod netdev;
mod pending;
mod programs;
mod staged;
mod tap;

pub use error::NetdevError;
pub use name::NetdevName;
pub use netdev::{Counts, Netdev};
