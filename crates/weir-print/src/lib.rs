//! Prints frames as lines of text, in the format of tcpdump: the output of `weir capture --print`.
//!
//! ```text
//! IP 10.0.0.1.4242 > 10.0.0.2.80: Flags [S], seq 1, win 65535, options [mss 1460], length 0
//! vlan 100, p 3, IP6 fe80::1 > ff02::1:ff00:2: ICMP6, neighbor solicitation, who has fe80::2, length 32
//! ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 46
//! IP 10.0.0.1.40000 > 10.0.0.53.53: 4660+ A? example.com. (29)
//! ```
//!
//! A frame is parsed once, from the outermost header inwards: the function for a header writes its text and returns
//! the next header. Earlier frames do not change the text of a frame: sequence numbers are absolute, because relative
//! ones need a table of connections, which outside traffic could fill. Parsing allocates memory only for DNS messages.
//! Any bytes result in one line without control characters.
//!
//! | module or type | output |
//! |---|---|
//! | `link` | Ethernet, Linux cooked, PPP, loopback; selects the next header by ethertype or 802.2 header |
//! | `net` | IPv4, IPv6, ARP, MPLS, LLDP, STP |
//! | `transport` | TCP, UDP, ICMP, ICMPv6 and others above IP; GRE, VXLAN, GENEVE |
//! | `app` | DNS |
//! | [`Clock`] | the time at the beginning of a line; a line with the date when the day changes |
//! | [`Dump`] | selects the bytes of a frame that are shown below its line |
#![forbid(unsafe_code)]

mod app;
mod bytes;
mod clock;
mod dump;
mod frame;
mod hosts;
pub mod limits;
mod line;
mod link;
mod net;
mod next;
mod options;
mod paint;
mod text;
mod transport;

pub use clock::{Clock, TimeFormat};
pub use frame::{Frame, write_line};
pub use link::has_direction;
pub use options::{Dump, DumpForm, Options};
pub use paint::{Paint, end as end_paint};
