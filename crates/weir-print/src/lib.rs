//! Frames as lines of text, in the words of tcpdump: the output of `weir capture --print`.
//!
//! ```text
//! IP 10.0.0.1.4242 > 10.0.0.2.80: Flags [S], seq 1, win 65535, options [mss 1460], length 0
//! vlan 100, p 3, IP6 fe80::1 > ff02::1:ff00:2: ICMP6, neighbor solicitation, who has fe80::2, length 32
//! ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 46
//! IP 10.0.0.1.40000 > 10.0.0.53.53: 4660+ A? example.com. (29)
//! ```
//!
//! A frame is walked once: each header writes its words and says which header is next. Every frame is
//! described alone: sequence numbers are absolute, because relative ones need a table of connections, which outside
//! traffic could fill. Nothing is allocated but for DNS messages; any bytes give one line, without control characters.
//!
//! | module | what it writes |
//! |---|---|
//! | `link` | Ethernet, Linux cooked, PPP, loopback; the ethertype and 802.2 decide what follows |
//! | `net` | IPv4, IPv6, ARP, MPLS, LLDP, STP |
//! | `transport` | TCP, UDP, ICMP, ICMPv6 and others above IP; GRE, VXLAN, GENEVE |
//! | `app` | DNS |
//! | [`Clock`] | the time before a line, and the date when it changes |
//! | [`Dump`] | a frame's bytes below its line |
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
