/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * weir.h - frames of a daemon (`weir serve`), read from the memory that it shares.
 *
 *     weir_feed *feed;
 *     const struct weir_frame *frame;
 *     char error[256];
 *
 *     if (weir_open(&feed, "host:eth0", NULL, error, sizeof(error)) < 0)
 *         errx(1, "%s", error);
 *     while (weir_next_frame(feed, &frame, -1) > 0)
 *         printf("%u bytes\n", frame->wire_length);
 *     weir_close(feed);
 *
 * Link with -lweir (pkg-config: weir).
 *
 * VERSIONS. WEIR_VERSION is that of this interface, not of the program `weir`, and follows semver.org:
 *   major  programs must be changed; the library gets another soname (libweir.so.2)
 *   minor  something was added: functions, members at the end of structs, constants
 *   patch  something was fixed
 * A program that was built with 1.x runs with every 1.y that has the functions it uses. weir_version() returns the
 * version of the loaded library. Members are only ever added at the end of a struct. The library allocates the
 * structs that it returns, so use them by pointer. The program allocates struct weir_options; its `size` tells the
 * library which members the program knows. struct weir_drop never grows.
 *
 * RESULTS. Functions that return int return 0 or more if they succeed, else one of enum weir_result, which are all
 * negative; weir_error() then has the text. Later versions may have further results: treat every unknown negative
 * number as an error. The library prints nothing, and throws no exceptions.
 *
 * THREADS. Only one thread at a time may use a feed, but not always the same one. weir_break() may be called at any
 * time by any thread and by signal handlers, until weir_close() is called. Different feeds are independent. The
 * library has a thread for each feed, which blocks all signals.
 * A thread may be cancelled (pthread_cancel(), deferred) in weir_next_frame() and weir_next_block(): before they take
 * frames or begin to wait; while they wait for frames, within 250 ms; while they wait for the daemon's answer, once
 * it has answered (within 30 s). The feed does not change, and other threads may use it. No other function of the
 * library is a cancellation point.
 *
 * PROCESSES. weir_open() connects with the rights that the program has then. The program may drop its rights or
 * chroot after that. After fork() the child may go on with the feed: its first call connects again, by the socket's
 * path and with the child's rights, and reads on where the parent was. Parent and child then read independently. In
 * the child, weir_fd() returns another descriptor. weir_close() in the child does not close the parent's feed.
 *
 * THE DAEMON. If the daemon ends, the library waits for it. When it is back, the feed goes on; frames that came in
 * between were not captured. statistics->lives counts the daemon's lives. Entries of weir_block_entries() are lost
 * with the daemon; the filter is kept.
 *
 * TIMEOUTS are milliseconds: 0 does not wait, -1 (and any other negative number) waits without a limit.
 *
 * Strings are UTF-8 and end with NUL.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_VERSION_MAJOR 1
#define WEIR_VERSION_MINOR 0
#define WEIR_VERSION_PATCH 0
#define WEIR_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

/* WEIR_VERSION of the loaded library. */
uint32_t weir_version(void);

/* A feed: the frames of one source that a filter selects, cut to a length. */
typedef struct weir_feed weir_feed;

enum weir_result {
    WEIR_END = -1,               /* the source has ended, and all its frames were read */
    WEIR_INTERRUPTED = -2,       /* weir_break() was called, or a signal handler has run: call again to go on */
    WEIR_ERROR_ARGUMENT = -3,    /* an argument is wrong */
    WEIR_ERROR_DAEMON = -4,      /* the daemon cannot be reached, or does not answer */
    WEIR_ERROR_NO_SOURCE = -5,   /* the daemon has no such source for this user */
    WEIR_ERROR_REFUSED = -6,     /* the daemon refuses the request: a wrong filter or entry, one feed too many */
    WEIR_ERROR_GONE = -7,        /* the daemon has closed the feed: the interface is gone, a right was withdrawn */
    WEIR_ERROR_UNSUPPORTED = -8, /* this library or this daemon cannot do that */
    WEIR_ERROR_SYSTEM = -9,      /* the system has no descriptors or no memory left */
    WEIR_ERROR_CORRUPT = -10,    /* the daemon's answer or its memory is inconsistent */
    WEIR_ERROR_INTERNAL = -11    /* a bug in the library; the feed can only be closed */
};

/* ---- Opening ---- */

enum weir_direction {
    WEIR_BOTH = 0, /* received and sent */
    WEIR_IN = 1,   /* received */
    WEIR_OUT = 2   /* sent */
};

/* options.flags */
#define WEIR_OWN_RINGS 1u /* memory that no other reader shares: a change of filter or entries repeats no frames */
#define WEIR_BLOCKS 2u    /* blocks of up to 256 KiB instead of 16 KiB: for programs that read blocks, not frames */

/* Zero is the default of each member. Make the struct with weir_default_options(). */
struct weir_options {
    size_t size;           /* sizeof(struct weir_options) */
    const char *socket;    /* path of the daemon's socket; NULL: $WEIR_SOCKET, else /run/weir/weir.sock */
    const char *filter;    /* an expression of pcap-filter(7); NULL or "": all frames */
    const char *feed_name; /* other processes may block entries by it; implies WEIR_OWN_RINGS; NULL: none */
    uint32_t snaplen;      /* most bytes kept of a frame; 0: as many as the daemon allows */
    int direction;         /* enum weir_direction */
    uint32_t sample;       /* one frame of so many; 0: all */
    uint32_t flows;        /* all frames of one flow of so many; 0: all */
    uint32_t flags;        /* WEIR_OWN_RINGS, WEIR_BLOCKS */
    uint32_t reserved;     /* 0 */
};

static inline struct weir_options weir_default_options(void)
{
    struct weir_options options;

    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    return options;
}

/*
 * Connects to the daemon and finds the source. `name` is host:SOURCE, with a source of the daemon's file;
 * host:SOURCE@2/4 is the second of four shards of its flows, host:SOURCE@q2 an RX queue. `options` may be NULL.
 * Programs that run with more rights than their caller (set-user-ID, set-group-ID, file capabilities) ignore
 * $WEIR_SOCKET. On failure *feed is NULL, and `error` (which may be NULL, with size 0) has the text.
 *
 * The capture begins with weir_start(), or with the first call that reads, changes the feed, or asks for its pcapng
 * header. A wrong filter is reported only then.
 */
int weir_open(weir_feed **feed, const char *name, const struct weir_options *options, char *error, size_t error_size);

/* Starts the capture. Does nothing if it has begun. */
int weir_start(weir_feed *feed);

/* Closes the feed and frees everything that the library has returned for it. NULL is allowed. */
void weir_close(weir_feed *feed);

/* The text of the last error; "" if there was none. Valid until the next call with this feed that fails. */
const char *weir_error(const weir_feed *feed);

/* ---- Frames ---- */

/* frame->flags. Neither INBOUND nor OUTBOUND: the direction is not known. */
#define WEIR_INBOUND 0x1u            /* it was received */
#define WEIR_OUTBOUND 0x2u           /* it was sent */
#define WEIR_CHECKSUM_NOT_READY 0x200u /* the NIC is to compute checksums: they are not filled in yet */
#define WEIR_SUPER_FRAME 0x800u      /* several frames of the wire in one, made by an offload; longer than the MTU */

#define WEIR_NO_QUEUE UINT32_MAX

struct weir_frame {
    const uint8_t *data;  /* from the link-layer header on, without FCS */
    uint32_t length;      /* bytes at data: what was kept */
    uint32_t wire_length; /* bytes on the wire; more than `length` if it was cut */
    uint64_t time_ns;     /* when it was captured: nanoseconds since 1970-01-01 00:00:00 UTC */
    uint32_t interface;   /* number of its interface: weir_interface_name() */
    uint32_t flags;       /* WEIR_INBOUND and so on */
    uint32_t queue;       /* RX queue of the NIC, or WEIR_NO_QUEUE */
};

/*
 * The next frame, in order of time. 1: *frame points to it; it and its data are valid until the next call of
 * weir_next_frame(), weir_next_block() or weir_close() with this feed. 0: none came in time.
 *
 * Most calls take no lock, read no clock, and make no system call.
 */
int weir_next_frame(weir_feed *feed, const struct weir_frame **frame, int timeout_ms);

/* Frames in the form of a pcapng file (draft-ietf-opsawg-pcapng). */
struct weir_block {
    const uint8_t *data; /* Enhanced Packet Blocks end to end, little-endian */
    size_t bytes;        /* at data */
    uint64_t frames;     /* number of frames */
    /* Bytes that a file needs before `data` and that no earlier block had: a section header, interfaces. */
    const uint8_t *head;
    size_t head_bytes;   /* mostly 0 */
};

/*
 * The next available frames: one or more. 1: *block points to them, and is valid as long as with weir_next_frame().
 * 0: none came in time. Each frame is returned once, by weir_next_frame() or in a block.
 *
 * To write a pcapng file, write `head` and then `data` of every block.
 */
int weir_next_block(weir_feed *feed, const struct weir_block **block, int timeout_ms);

/*
 * The section header and the descriptions of all interfaces so far, for the beginning of another file. The `head` of
 * later blocks has only what is not in it. Valid until the next call of this function or weir_close().
 */
int weir_pcapng_header(weir_feed *feed, const uint8_t **header, size_t *bytes);

/*
 * The pcap link type of the frames (LINKTYPE_..., 1 is Ethernet): before the first frame, as far as the daemon knows
 * it.
 */
int weir_link_type(const weir_feed *feed);

/* The name of the interface with this number; NULL if no frame has had the number yet. Valid until weir_close(). */
const char *weir_interface_name(weir_feed *feed, uint32_t interface);

/* ---- Waiting in an event loop, and being interrupted ---- */

/*
 * A descriptor for poll(), select() and epoll. It is readable unless the last call that reads has returned 0 and
 * nothing has come since. So: wait for it, and call weir_next_frame() or weir_next_block() with timeout 0, once or
 * until it returns 0. (With EPOLLET: until it returns 0.) It may be readable although no frame is there. It belongs
 * to the feed: do not read from it, and do not close it. Negative: an error.
 */
int weir_fd(weir_feed *feed);

/*
 * Makes the running call that reads return WEIR_INTERRUPTED; if none is running, the next one. Any thread and signal
 * handlers may call this.
 */
void weir_break(weir_feed *feed);

/* ---- Changing the feed ---- */

/*
 * Sets another filter; NULL or "" takes all frames. Before the capture begins, it replaces the filter of weir_open().
 * Later it applies to frames that are captured from then on: frames that were captured before still come. If others
 * read the same memory (see WEIR_OWN_RINGS), the feed moves to memory of its own, and frames that both filters take
 * may come twice.
 */
int weir_set_filter(weir_feed *feed, const char *filter);

/*
 * Blocks frames that match these entries, where they are captured: addresses, networks and flows as `weir block`
 * takes them, such as "192.0.2.7", "2001:db8::/32", "tcp 192.0.2.7:443 198.51.100.9:50000". Entries expire after
 * `expires_ms` (1,000 to 2,592,000,000: 30 days), at most a second later; 0: they stay until they are unblocked. If
 * an entry exists already, the later end holds. If the call fails, a part of a long list may be in force. Other
 * readers are not affected, as with weir_set_filter().
 */
int weir_block_entries(weir_feed *feed, const char *const *entries, size_t count, uint64_t expires_ms);

/* Removes entries. */
int weir_unblock_entries(weir_feed *feed, const char *const *entries, size_t count);

/* ---- What became of every frame ---- */

#define WEIR_UNKNOWN UINT64_MAX

struct weir_drop {
    const char *name; /* the place, as docs/ledger.md explains it, such as "kernel" */
    uint64_t frames;
};

/*
 * Counts of frames since the feed was opened. If the daemon was restarted, they are sums over all its lives.
 * At the daemon:     offered = filtered + blocked + sampled + captured + dropped
 * In this process:   captured = delivered + lapped + frames that were not read yet
 * While frames come, these counts are not of the same moment.
 */
struct weir_statistics {
    uint64_t offered;            /* came to the place of capture */
    uint64_t filtered;           /* excluded by the filter, or of another part or direction */
    uint64_t blocked;            /* excluded by blocked entries */
    uint64_t sampled;            /* excluded by sampling */
    uint64_t captured;           /* written to memory */
    uint64_t dropped;            /* lost at the host: the sum of `drops` */
    const struct weir_drop *drops;
    size_t drop_count;           /* number of drops */
    uint64_t missed_before;      /* lost by the NIC or driver, not in `offered`; WEIR_UNKNOWN if nothing counts them */
    uint64_t delivered;          /* returned by weir_next_frame() and weir_next_block() */
    uint64_t lapped;             /* overwritten before this process had read them: it was too slow */
    uint64_t late;               /* delivered, but not in order of time */
    uint64_t lives;              /* lives of the daemon that the feed has read from */
    uint64_t kept_bytes;         /* bytes kept of the captured frames */
    uint64_t wire_bytes;         /* bytes of the captured frames on the wire */
    uint64_t super_frames;       /* captured frames with WEIR_SUPER_FRAME */
    int filtered_uncounted;      /* not 0: a filter in the kernel excluded further frames, which are not in `offered` */
};

/* Asks the daemon. *statistics is valid until the next call of this function or weir_close(). */
int weir_get_statistics(weir_feed *feed, const struct weir_statistics **statistics);

/* ---- Sources ---- */

/* A source of the daemon that this user may open. */
struct weir_source {
    const struct weir_source *next; /* or NULL */
    const char *name;   /* for weir_open(): host:eth0 */
    uint32_t snaplen;   /* most bytes kept of a frame */
    uint32_t link_type; /* while the source is closed, the expected one */
};

/*
 * The sources of the daemon at `socket` (NULL as in struct weir_options). Returns their number; *sources is the first
 * one, or NULL. Free the list with weir_sources_free().
 */
int weir_list_sources(const struct weir_source **sources, const char *socket, char *error, size_t error_size);

void weir_sources_free(const struct weir_source *sources);

#ifdef __cplusplus
}
#endif

#endif
