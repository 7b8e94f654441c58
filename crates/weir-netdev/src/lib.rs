//! A network interface that shows frames to packet sockets, and to nobody else.
//!
//! [`Netdev`] makes a tap interface. Packet sockets (tcpdump, Suricata) see the frames that are fed into the interface,
//! and a program at TC then drops them, so no network stack answers. Frames that are sent into the interface are
//! dropped and counted. The interface is removed when its `Netdev` is dropped, or when the process ends for any reason.
//!
//! | module | contents |
//! |---|---|
//! | [`name`] | names that an interface may have |
//! | `tap` | the tap interface, and frames that are written one by one |
//! | `link` | sets the interface up: MTU, no addresses, up |
//! | `backlog` | waits for frames that another CPU handles (RPS) |
//! | `pending` | counts frames that were sent and have not been seen yet |
//! | `programs` | the programs at TC and of the tap, and the one by which frames are received |
//! | `staged` | the memory that the programs and this process share |
//! | [`netdev`] | the interface, made of all these parts |

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
