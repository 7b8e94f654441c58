//! Replaces functions of libpcap for names that begin with `host:`.
//!
//! A program that was started with this library preloaded (`weir run -- tcpdump -ni host:eth0`) calls libpcap as
//! always. This library opens `host:` names as feeds of the daemon; all other calls are passed to the real libpcap.
//!
//! ```text
//! program ── pcap_create("host:eth0") ──▶ create.rs ──▶ a Handle, which handles.rs finds by the program's pcap_t
//!        ── pcap_activate ─────────────▶ create.rs ──▶ FeedReader::connect, with the program's current rights
//!        ── pcap_setfilter ────────────▶ filter.rs ──▶ sent to the daemon, which applies it
//!        ── pcap_loop, dispatch, next ─▶ read.rs, frames.rs ▶ FeedReader::next copies and checks frames; callback
//!        ── pcap_stats ────────────────▶ describe.rs ▶ frames lapped here, and frames lost at the daemon
//!        ── pcap_create("eth0"), .. ───▶ real.rs ────▶ the real libpcap
//! ```
//!
//! The `pcap_t` that a program gets is one of the real libpcap, made by `pcap_open_dead`: so functions that are not
//! replaced here get a valid handle. `pcap_activate` makes a second one, with the link type, snapshot length and
//! precision, which are known then. It compiles filters and writes files ([`handles::Handle::inner`]).
//!
//! The library prints nothing, except for `pcap_perror`, and no panic leaves it ([`guard`]). Source of the functions'
//! meaning: the manual pages pcap(3PCAP) and following, of libpcap 1.10.

mod abi;
mod create;
mod describe;
mod devices;
mod filter;
mod frames;
mod guard;
mod handles;
mod read;
mod real;
mod waiting;
