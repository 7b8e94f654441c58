//! `libweir.so`: feeds of a daemon for C, and for other languages that can call C. `include/weir.h` specifies the
//! functions; this crate implements them with a [`weir_client::FeedReader`].
//!
//! | module | contents |
//! |---|---|
//! | `api` | the C functions of a feed |
//! | `read` | the C functions that read and wait |
//! | `feed` | a feed: implements the functions |
//! | `handle` | the memory behind a `weir_feed *`: a feed, and the interrupter of its waits |
//! | `unread` | the frames of a run that were not handed out yet |
//! | `options`, `frame`, `statistics`, `sources` | the structs of the header |
//! | `failure` | results and their texts |
//! | `text` | strings from C and to C |
//! | `guard` | catches panics, so that none leaves the library |

mod api;
mod failure;
mod feed;
mod frame;
mod guard;
mod handle;
mod options;
mod read;
mod sources;
mod statistics;
mod text;
mod unread;

/// `WEIR_VERSION` of the header: the version of this interface, not of the program.
const VERSION: u32 = 10_000;
