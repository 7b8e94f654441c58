/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * weir.h - frames of a daemon (`weir serve`), read out of the memory that it shares.
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
 *   major  a program has to be changed; the library gets another soname (libweir.so.2)
 *   minor  something was added: functions, members at the end of structs, constants
 *   patch  something was mended
 * A program that was built with 1.x runs with every 1.y that has what it uses. weir_version() tells which one it got.
 * Members are only ever added at the end of a struct. Structs that the library hands out lie in its memory, so use them
 * by pointer. Of struct weir_options, which the program makes, `size` says which members it knows.
 * struct weir_drop never grows.
 *
 * RESULTS. Functions that return int return 0 or more if they did what was asked, else one of enum weir_result, which are
 * all negative; weir_error() has the text then. More of them may come: take every negative number that you do not know
 * for an error. Nothing is printed, and nothing is thrown.
 *
 * THREADS. A feed is used by one thread at a time; another may take it over. weir_break() may be called at any time by
 * any thread and by signal handlers, until weir_close() is called. Different feeds have nothing in common. Each feed has a
 * thread of the library's, which blocks all signals.
 * A thread may be cancelled (pthread_cancel(), deferred) in weir_next_frame() and weir_next_block(): before they take frames
 * or wait, and at most 250 ms later while they wait for frames; while the daemon is asked, once it has answered (within
 * 30 s). The feed stays as it was, and other threads may use it. No other
 * function of the library is a cancellation point.
 *
 * PROCESSES. weir_open() connects with the rights of then. The program may drop its rights or chroot after that. After
 * fork() the child may go on with the feed: its first call connects again, by the socket's path and with the child's rights,
 * and reads on where the parent was. Parent and child then read independently. In the child weir_fd() is another one.
 * weir_close() in the child leaves the parent's feed alone.
 *
 * THE DAEMON. One that ends is waited for. When it is there again, the feed is read on; what came in between was captured
 * by nobody. statistics->lives says how often. Entries of weir_block_entries() are gone with it; the filter stays.
 *
 * TIMEOUTS are milliseconds: 0 does not wait, -1 (and any other negative number) waits for as long as it takes.
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

/* WEIR_VERSION of the library that the program got. */
uint32_t weir_version(void);

/* A feed: frames of one source, chosen by a filter and cut to a length. */
typedef struct weir_feed weir_feed;

enum weir_result {
    WEIR_END = -1,               /* the source has come to its end, and every frame was read */
    WEIR_INTERRUPTED = -2,       /* weir_break(), or a signal handler has run: call again to go on */
    WEIR_ERROR_ARGUMENT = -3,    /* an argument is wrong */
    WEIR_ERROR_DAEMON = -4,      /* the daemon cannot be reached, or does not answer */
    WEIR_ERROR_NO_SOURCE = -5,   /* the daemon has no such source for this user */
    WEIR_ERROR_REFUSED = -6,     /* the daemon says no: to a filter, an entry, one feed too many */
    WEIR_ERROR_GONE = -7,        /* the daemon has closed the feed: the interface is gone, a right was withdrawn */
    WEIR_ERROR_UNSUPPORTED = -8, /* this library or this daemon cannot do that */
    WEIR_ERROR_SYSTEM = -9,      /* the system says no: no descriptors, no memory */
    WEIR_ERROR_CORRUPT = -10,    /* the daemon's answer or its memory makes no sense */
    WEIR_ERROR_INTERNAL = -11    /* a bug of the library; the feed can only be closed */
};

/* ---- Opening ---- */

enum weir_direction {
    WEIR_BOTH = 0, /* received and sent */
    WEIR_IN = 1,   /* received */
    WEIR_OUT = 2   /* sent */
};

/* options.flags */
#define WEIR_OWN_RINGS 1u /* memory that no other reader shares: filter and entries change without repeats */
#define WEIR_BLOCKS 2u    /* blocks of up to 256 KiB instead of 16: for programs that take blocks, not frames */

/* All zero is the default of each. Make one with weir_default_options(). */
struct weir_options {
    size_t size;           /* sizeof(struct weir_options) */
    const char *socket;    /* where the daemon listens; NULL: $WEIR_SOCKET, else /run/weir/weir.sock */
    const char *filter;    /* which frames, in the language of pcap-filter(7); NULL or "": all */
    const char *feed_name; /* by which other processes of this user may block entries; has memory of its own; NULL: none */
    uint32_t snaplen;      /* most bytes kept of a frame; 0: as many as the daemon allows */
    int direction;         /* enum weir_direction */
    uint32_t sample;       /* one frame of so many; 0: all */
    uint32_t flows;        /* all frames of one flow of so many; 0: all */
    uint32_t flags;        /* WEIR_OWN_RINGS, WEIR_BLOCKS */
};

static inline struct weir_options weir_default_options(void)
{
    struct weir_options options;

    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    return options;
}

/*
 * Connects to the daemon and finds the source. `name` is host:SOURCE, with a source of the daemon's file; host:SOURCE@2/4
 * is the second of four shards of its flows, host:SOURCE@q2 an RX queue. `options` may be NULL. $WEIR_SOCKET is not
 * looked at by set-user-ID programs. On failure *feed is NULL and `error` (which may be NULL, with size 0) has the text.
 *
 * Frames are captured for the feed from weir_start() on, or from the first call that reads, changes it, or asks for its
 * pcapng header; a wrong filter is found then.
 */
int weir_open(weir_feed **feed, const char *name, const struct weir_options *options, char *error, size_t error_size);

/* Has frames captured from now on. Does nothing if that is so. */
int weir_start(weir_feed *feed);

/* Lets go of everything, also of what the library has handed out for this feed. NULL is allowed. */
void weir_close(weir_feed *feed);

/* Why the last call failed; "" before any has. There until the next call with this feed that fails. */
const char *weir_error(const weir_feed *feed);

/* ---- Frames ---- */

/* frame->flags. Neither INBOUND nor OUTBOUND: the direction is not known. */
#define WEIR_INBOUND 0x1u            /* it was received */
#define WEIR_OUTBOUND 0x2u           /* it was sent */
#define WEIR_CHECKSUM_NOT_READY 0x200u /* checksums are left to the NIC: they are not filled in */
#define WEIR_SUPER_FRAME 0x800u      /* many frames of the wire in one, by an offload; longer than the MTU */

#define WEIR_NO_QUEUE UINT32_MAX

struct weir_frame {
    const uint8_t *data;  /* from the link-layer header on, without FCS */
    uint32_t length;      /* bytes at data: what was kept */
    uint32_t wire_length; /* bytes on the wire; more than `length` if it was cut */
    uint64_t time_ns;     /* when it was captured: nanoseconds since 1970-01-01 00:00:00 UTC */
    uint32_t interface;   /* of weir_interface_name() */
    uint32_t flags;       /* WEIR_INBOUND and so on */
    uint32_t queue;       /* RX queue of the NIC, or WEIR_NO_QUEUE */
};

/*
 * The next frame, in the order of time. 1: *frame points to it; it and its data are there until the next call of
 * weir_next_frame(), weir_next_block() or weir_close() with this feed. 0: none came in time.
 *
 * Most calls take no lock, no look at a clock and no system call.
 */
int weir_next_frame(weir_feed *feed, const struct weir_frame **frame, int timeout_ms);

/* Frames as pcapng (draft-ietf-opsawg-pcapng) has them in a file. */
struct weir_block {
    const uint8_t *data; /* Enhanced Packet Blocks end to end, little-endian */
    size_t bytes;        /* at data */
    uint64_t frames;     /* how many */
    /* What a file must have before them and was not handed out yet: a section header, descriptions of interfaces. */
    const uint8_t *head;
    size_t head_bytes;   /* 0, most times */
};

/*
 * The next frames that are there: one or more. 1: *block points to them; for how long, and 0, as with weir_next_frame().
 * The same frames are given once, as frames or in blocks.
 *
 * A program that writes `head` and then `data` of every block has written a pcapng file.
 */
int weir_next_block(weir_feed *feed, const struct weir_block **block, int timeout_ms);

/*
 * The section header and the descriptions of all interfaces so far, to begin another file with. Only what is not in it
 * is in the `head` of later blocks. There until the next call of this function or weir_close().
 */
int weir_pcapng_header(weir_feed *feed, const uint8_t **header, size_t *bytes);

/*
 * The pcap link type of the frames (LINKTYPE_..., 1 is Ethernet): before the first frame, as far as the daemon knows it.
 */
int weir_link_type(const weir_feed *feed);

/* The name of the interface that frames have by this number; NULL if no frame has had it yet. There until weir_close(). */
const char *weir_interface_name(weir_feed *feed, uint32_t interface);

/* ---- Waiting in an event loop, and being interrupted ---- */

/*
 * A descriptor for poll(), select() and epoll. It is readable unless the last call that reads has returned 0 and nothing has
 * come since. So: wait for it, and call weir_next_frame() or weir_next_block() with timeout 0, once or until it returns 0.
 * (With EPOLLET: until it returns 0.) It may be readable for nothing. It belongs to the feed: do not read or close it.
 * Negative: an error.
 */
int weir_fd(weir_feed *feed);

/*
 * Has the call that reads, if one is under way, return WEIR_INTERRUPTED, else the next one. Any thread may, and signal
 * handlers.
 */
void weir_break(weir_feed *feed);

/* ---- Changing which frames come ---- */

/*
 * Another filter; NULL or "" takes all. Before the feed is open it is that of the opening. Later it holds for what is
 * captured from then on: frames that were captured before still come. If others read the same memory (see
 * WEIR_OWN_RINGS), the feed moves to memory of its own, and frames that both filters take may come twice meanwhile.
 */
int weir_set_filter(weir_feed *feed, const char *filter);

/*
 * Leaves out frames by these entries, at the capture: addresses, networks and flows as `weir block` takes them, such as
 * "192.0.2.7", "2001:db8::/32", "tcp 192.0.2.7:443 198.51.100.9:50000". They end after `expires_ms`
 * (1,000 to 2,592,000,000: 30 days), at most a second later; 0: when they are unblocked. Of one that is there the later end
 * counts. If it fails, some of a long list may be in force. Other readers are not touched, as with weir_set_filter().
 */
int weir_block_entries(weir_feed *feed, const char *const *entries, size_t count, uint64_t expires_ms);

/* Takes entries back. */
int weir_unblock_entries(weir_feed *feed, const char *const *entries, size_t count);

/* ---- What became of every frame ---- */

#define WEIR_UNKNOWN UINT64_MAX

struct weir_drop {
    const char *name; /* the place, as docs/ledger.md explains it, such as "kernel" */
    uint64_t frames;
};

/*
 * Frames, since the feed was opened; of all daemons that it had.
 * At the daemon:     offered = filtered + blocked + sampled + captured + dropped
 * In this process:   captured = delivered + lapped + what was not read yet
 * While frames come, these counts are not of one instant.
 */
struct weir_statistics {
    uint64_t offered;            /* came to the place of capture */
    uint64_t filtered;           /* left out by the filter or the direction */
    uint64_t blocked;            /* left out by entries */
    uint64_t sampled;            /* left out by sampling */
    uint64_t captured;           /* written to memory */
    uint64_t dropped;            /* lost at the host: the sum of `drops` */
    const struct weir_drop *drops;
    size_t drop_count;           /* at drops */
    uint64_t missed_before;      /* lost by the NIC or its driver, not in `offered`; WEIR_UNKNOWN if nobody counts them */
    uint64_t delivered;          /* handed out by weir_next_frame() and weir_next_block() */
    uint64_t lapped;             /* overwritten before this process had read them: it was too slow */
    uint64_t late;               /* of those delivered: out of the order of time */
    uint64_t lives;              /* daemons that the feed had, one after the other */
    uint64_t kept_bytes;         /* bytes kept of those captured */
    uint64_t wire_bytes;         /* bytes of those captured on the wire */
    uint64_t super_frames;       /* of those captured: WEIR_SUPER_FRAME */
    int filtered_uncounted;      /* not 0: a filter in the kernel left out others, which `offered` does not have either */
};

/* Asks the daemon. *statistics is there until the next call of this function or weir_close(). */
int weir_get_statistics(weir_feed *feed, const struct weir_statistics **statistics);

/* ---- Sources ---- */

/* A source of the daemon that this user may open; the next one, or NULL. */
struct weir_source {
    const struct weir_source *next;
    const char *name;   /* for weir_open(): host:eth0 */
    uint32_t snaplen;   /* most bytes kept of a frame */
    uint32_t link_type; /* as far as it is known while the source is closed */
};

/*
 * The sources of the daemon at `socket` (NULL as in struct weir_options). Returns how many there are; *sources is the
 * first one, or NULL, and is to be given to weir_sources_free().
 */
int weir_list_sources(const struct weir_source **sources, const char *socket, char *error, size_t error_size);

void weir_sources_free(const struct weir_source *sources);

#ifdef __cplusplus
}
#endif

#endif
