//! libpcap's functions, for names that begin with `host:`.
//!
//! A program that was started with this library preloaded (`weir run -- tcpdump -ni host:eth0`) calls libpcap as it
//! always does. Names of a daemon's feeds are opened here; everything else goes to the real libpcap, untouched.
//!
//! ```text
//! program ── pcap_create("host:eth0") ──▶ create.rs ──▶ a Handle, in handles.rs by the pcap_t that the program gets
//!        ── pcap_activate ─────────────▶ create.rs ──▶ FeedReader::connect: with the rights of now
//!        ── pcap_setfilter ────────────▶ filter.rs ──▶ travels to the daemon, and acts there
//!        ── pcap_loop, dispatch, next ─▶ read.rs, frames.rs ▶ FeedReader::next: copied, confirmed, then the callback
//!        ── pcap_stats ────────────────▶ describe.rs ▶ lapped here, and what the daemon lost
//!        ── pcap_create("eth0"), .. ───▶ real.rs ────▶ the real libpcap
//! ```
//!
//! The `pcap_t` that a program gets is a real one, made by `pcap_open_dead`: a function that is not replaced here finds
//! a valid handle. A second one of its kind, which has the link type, the snapshot length and the precision that are
//! known after `pcap_activate`, compiles filters and writes files ([`handles::Handle::inner`]).
//!
//! Nothing is printed, and no panic leaves this library ([`guard`]). Source of the functions' meaning: the manual pages
//! pcap(3PCAP) and following, of libpcap 1.10.

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
