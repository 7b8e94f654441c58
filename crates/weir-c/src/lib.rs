//! `libweir.so`: a feed of a daemon for C, and for whatever calls C. `include/weir.h` says what each function does;
//! this crate carries it out on a [`weir_client::FeedReader`].
//!
//! | module | what it has |
//! |---|---|
//! | `api` | the functions of a feed, as C sees them |
//! | `read` | those of them that read and wait |
//! | `feed` | a feed: the work of the functions |
//! | `handle` | the memory behind a `weir_feed *`: a feed, and what ends its waits |
//! | `unread` | the frames of a run that were not handed out yet |
//! | `options`, `frame`, `statistics`, `sources` | the structs of the header |
//! | `failure` | results and their texts |
//! | `text` | strings from C and to C |
//! | `guard` | no panic leaves the library |

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

/// `WEIR_VERSION` of the header: of this interface, not of the program.
const VERSION: u32 = 10_000;
