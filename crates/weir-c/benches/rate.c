/*
 * Frames a second through the library, and the processor time of each:
 *
 *     make build
 *     printf '[sources.made]\nsource = "gen:"\neverybody = true\n' >/tmp/made.toml
 *     target/release/weir serve --config /tmp/made.toml --socket /tmp/made.sock &
 *     cc -O2 -Icrates/weir-c/include crates/weir-c/benches/rate.c -Ltarget/release -lweir -o /tmp/rate
 *     ln -s libweir.so target/release/libweir.so.1
 *     LD_LIBRARY_PATH=target/release WEIR_SOCKET=/tmp/made.sock /tmp/rate host:made frames 5
 *
 * The generator runs as fast as it can beside it, so frames that are lapped are no failure here.
 */
#define _POSIX_C_SOURCE 200809L

#include <weir.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct weir_options options = weir_default_options();
    int is_blocks = argc > 2 && strcmp(argv[2], "blocks") == 0;
    double limit = argc > 3 ? atof(argv[3]) : 5, begin, cpu, elapsed;
    const struct weir_statistics *statistics;
    const struct weir_frame *frame;
    const struct weir_block *block;
    uint64_t frames = 0, bytes = 0;
    char error[300];
    weir_feed *feed;
    int result;

    options.flags = is_blocks ? WEIR_BLOCKS : 0;
    if (argc < 2 || weir_open(&feed, argv[1], &options, error, sizeof(error)) < 0) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: rate host:SOURCE [frames|blocks [SECONDS]]" : error);
        return 2;
    }
    weir_start(feed);
    begin = seconds_of(CLOCK_MONOTONIC);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    do {
        if (is_blocks) {
            result = weir_next_block(feed, &block, 1000);
            frames += result > 0 ? block->frames : 0;
            bytes += result > 0 ? block->bytes : 0;
        } else {
            /* The clock is looked at once in 4,096 frames. */
            do {
                result = weir_next_frame(feed, &frame, 1000);
                frames += result > 0;
                bytes += result > 0 ? frame->wire_length : 0;
            } while (result > 0 && frames % 4096 != 0);
        }
        elapsed = seconds_of(CLOCK_MONOTONIC) - begin;
    } while (result >= 0 && elapsed < limit);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (weir_get_statistics(feed, &statistics) < 0)
        return 2;
    printf("%.2f million frames/s, %.1f ns of processor time each (%" PRIu64 " bytes); delivered %" PRIu64
           ", lapped %" PRIu64 "\n",
           (double)frames / elapsed / 1e6, cpu / (double)frames * 1e9, bytes, statistics->delivered, statistics->lapped);
    weir_close(feed);
    return 0;
}
