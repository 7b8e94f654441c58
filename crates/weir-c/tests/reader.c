/* What the tests run: reads host:SOURCE in one of several ways and prints what it came to, `name value` a line. */
#define _POSIX_C_SOURCE 200809L

#include <weir.h>

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LONG 60000

static weir_feed *feed;

static void fail(const char *doing)
{
    printf("failed %s: %s\n", doing, feed ? weir_error(feed) : "");
    fflush(stdout);
    exit(1);
}

static void print_result(const char *what, int result)
{
    printf("%s %d %s\n", what, result, weir_error(feed));
}

static void open_feed(const char *name, const struct weir_options *options)
{
    char error[400];

    if (weir_open(&feed, name, options, error, sizeof(error)) != 0) {
        printf("failed open: %s\n", error);
        exit(1);
    }
}

static void print_statistics(void)
{
    const struct weir_statistics *s;
    uint64_t dropped = 0;
    size_t i;

    if (weir_get_statistics(feed, &s) != 0)
        fail("statistics");
    for (i = 0; i < s->drop_count; i++) {
        dropped += s->drops[i].frames;
        if (strlen(s->drops[i].name) == 0)
            fail("a drop without a name");
    }
    if (dropped != s->dropped)
        fail("the sum of drops");
    if (s->missed_before == WEIR_UNKNOWN)
        printf("missed_before unknown\n");
    printf("offered %" PRIu64 "\nfiltered %" PRIu64 "\nblocked %" PRIu64 "\nsampled %" PRIu64 "\ncaptured %" PRIu64
           "\ndropped %" PRIu64 "\ndelivered %" PRIu64 "\nlapped %" PRIu64 "\nlives %" PRIu64 "\n",
           s->offered, s->filtered, s->blocked, s->sampled, s->captured, s->dropped, s->delivered, s->lapped, s->lives);
}

/* Reads to the end, or `most` frames. */
static uint64_t read_frames(uint64_t most)
{
    const struct weir_frame *frame;
    uint64_t frames = 0, bytes = 0, inbound = 0, last_ns = 0;
    int result = 1;

    while (frames < most && (result = weir_next_frame(feed, &frame, LONG)) > 0) {
        if (frame->length > frame->wire_length || frame->time_ns < last_ns)
            fail("a frame of no sense");
        inbound += (frame->flags & WEIR_INBOUND) != 0;
        if (frames == 0)
            printf("interface %s\nfirst %" PRIu64 "\n", weir_interface_name(feed, frame->interface), frame->time_ns);
        last_ns = frame->time_ns;
        /* Every byte can be read. */
        for (uint32_t i = 0; i < frame->length; i++)
            bytes += frame->data[i] == 0;
        frames++;
    }
    if (result <= 0 && result != WEIR_END)
        fail("next frame");
    printf("frames %" PRIu64 "\nzeros %" PRIu64 "\ninbound %" PRIu64 "\n", frames, bytes, inbound);
    return frames;
}

static void write_blocks(const char *path)
{
    const struct weir_block *block;
    const uint8_t *header;
    size_t bytes;
    uint64_t frames = 0, blocks = 0;
    FILE *file = fopen(path, "w");
    int result;

    if (!file)
        fail("open a file");
    while ((result = weir_next_block(feed, &block, LONG)) > 0) {
        fwrite(block->head, 1, block->head_bytes, file);
        fwrite(block->data, 1, block->bytes, file);
        frames += block->frames;
        blocks++;
    }
    if (result != WEIR_END)
        fail("next block");
    if (weir_pcapng_header(feed, &header, &bytes) != 0 || bytes < 28)
        fail("header");
    fclose(file);
    printf("frames %" PRIu64 "\nblocks %" PRIu64 "\n", frames, blocks);
}

/* One call for each time that the descriptor is readable: nothing is drained. */
static void read_with_poll(void)
{
    const struct weir_frame *frame;
    struct pollfd wait = {weir_fd(feed), POLLIN, 0};
    uint64_t frames = 0, nothing = 0;
    int result;

    if (wait.fd < 0)
        fail("fd");
    do {
        if (poll(&wait, 1, LONG) != 1)
            fail("poll");
        result = weir_next_frame(feed, &frame, 0);
        frames += result == 1;
        nothing += result == 0;
        if (result == 0 && poll(&wait, 1, 0) == 1 && nothing > frames + 10000)
            fail("it spins");
    } while (result >= 0);
    if (result != WEIR_END || poll(&wait, 1, 0) != 1)
        fail("the end");
    printf("frames %" PRIu64 "\n", frames);
}

static void on_alarm(int number)
{
    (void)number;
    weir_break(feed);
}

static void be_interrupted(void)
{
    const struct weir_frame *frame;
    struct sigaction action;
    int result;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    if (weir_start(feed) != 0)
        fail("start");
    alarm(1);
    /* Nothing comes. */
    while ((result = weir_next_frame(feed, &frame, -1)) > 0)
        ;
    printf("result %d\n", result);
    printf("then %d\n", weir_next_frame(feed, &frame, 20));
    weir_break(feed);
    printf("ahead %d\n", weir_next_frame(feed, &frame, -1));
    printf("again %d\n", weir_next_frame(feed, &frame, 0));
}

/* Both sides of a fork read on from the same frame. */
static void read_in_fork(void)
{
    const struct weir_frame *frame;
    struct pollfd wait = {-1, POLLIN, 0};
    int status;
    pid_t child;

    for (int i = 0; i < 10; i++)
        if (weir_next_frame(feed, &frame, LONG) != 1)
            fail("next frame");
    fflush(stdout);
    child = fork();
    if (child == 0) {
        printf("child 1\n");
        print_statistics();
        wait.fd = weir_fd(feed);
        if (wait.fd < 0 || poll(&wait, 1, LONG) != 1)
            fail("poll in the child");
        read_frames(500);
        weir_close(feed);
        fflush(stdout);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child");
    printf("parent 1\n");
    read_frames(500);
    print_statistics();
}

/* Reads until frames like these, or nothing, come. */
static void wait_for(int wants_frames)
{
    const struct weir_block *block;

    for (int i = 0; i < 1000; i++) {
        int result = weir_next_block(feed, &block, wants_frames ? LONG : 100);
        if (result < 0)
            fail("next block");
        if (result == wants_frames)
            return;
    }
    fail("frames still come, or none");
}

static void change(void)
{
    const char *entries[] = {"2001:db8::/32", "192.0.2.1", "tcp 192.0.2.1:1 10.0.0.1:2"};
    const struct weir_statistics *s;

    wait_for(1);
    if (weir_set_filter(feed, "tcp port 9") != 0)
        fail("filter");
    wait_for(0);
    print_result("wrong", weir_set_filter(feed, "no such filter"));
    if (weir_set_filter(feed, NULL) != 0)
        fail("filter");
    wait_for(1);
    print_result("expires", weir_block_entries(feed, entries, 3, 1));
    if (weir_block_entries(feed, entries, 3, 1000) != 0)
        fail("block for a second");
    wait_for(0);
    wait_for(1);
    if (weir_block_entries(feed, entries, 3, 0) != 0)
        fail("block");
    wait_for(0);
    if (weir_get_statistics(feed, &s) != 0 || s->blocked == 0 || s->filtered == 0)
        fail("statistics");
    entries[2] = "no entry";
    print_result("entry", weir_block_entries(feed, entries, 3, 0));
    if (weir_unblock_entries(feed, entries, 2) != 0)
        fail("unblock");
    wait_for(1);
    printf("changed 1\n");
}

static void refused(const char *name, const char *socket)
{
    struct weir_options options = weir_default_options();
    char error[400], cut[8];
    int result;

    result = weir_open(&feed, "eth0", NULL, error, sizeof(error));
    printf("name %d %s\n", result, error);
    result = weir_open(&feed, "host:none", NULL, error, sizeof(error));
    printf("source %d %s\n", result, error);
    options.socket = socket;
    result = weir_open(&feed, name, &options, error, sizeof(error));
    printf("socket %d %s\n", result, error);
    result = weir_open(&feed, name, &options, cut, sizeof(cut));
    printf("cut %d %s\n", result, cut);
    options.socket = NULL;
    options.filter = "no such filter";
    open_feed(name, &options);
    print_result("filter", weir_start(feed));
    /* It can be mended. */
    printf("mended %d\n", weir_set_filter(feed, "") + weir_start(feed));
    printf("null %d %d\n", weir_next_frame(feed, NULL, 0), weir_next_frame(NULL, NULL, 0));
    weir_close(NULL);
}

static void list(void)
{
    const struct weir_source *sources, *source;
    char error[400];

    printf("count %d\n", weir_list_sources(&sources, NULL, error, sizeof(error)));
    for (source = sources; source; source = source->next)
        printf("source %s %u %u\n", source->name, source->snaplen, source->link_type);
    weir_sources_free(sources);
}

/* Says when it has read its first frames, and reads on until it has read frames of two daemons. */
static void outlive(void)
{
    const struct weir_block *block;
    const struct weir_statistics *s;

    wait_for(1);
    printf("reading 1\n");
    fflush(stdout);
    do {
        if (weir_next_block(feed, &block, LONG) != 1)
            fail("next block");
        if (weir_get_statistics(feed, &s) != 0)
            continue;
    } while (s->lives < 2);
    wait_for(1);
}

static atomic_int taken;
static atomic_int is_reading;
static char reading_thread[100];
static int takes_blocks;

/* Forever: only the library's calls are cancellation points. */
static void *read_on(void *unused)
{
    const struct weir_frame *frame;
    const struct weir_block *block;
    int result;

    if (readlink("/proc/thread-self", reading_thread, sizeof(reading_thread) - 1) < 0)
        fail("thread");
    is_reading = 1;
    while ((result = takes_blocks ? weir_next_block(feed, &block, -1) : weir_next_frame(feed, &frame, -1)) > 0)
        taken++;
    fail("read in a thread");
    return unused;
}

static int is_asleep(void)
{
    char path[200], state = 0;
    FILE *file;

    if (!is_reading)
        return 0;
    snprintf(path, sizeof(path), "/proc/%s/stat", reading_thread);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
        fail(path);
    fclose(file);
    return state == 'S';
}

/* A thread that reads is cancelled, while nothing comes and while frames flow, and its feed is read on. */
static void cancel(const char *name)
{
    int cancelled;

    /* A thread that is not cancelled is waited for no longer. */
    alarm(60);
    for (cancelled = 0; cancelled < 12; cancelled++) {
        const struct timespec pace = {0, 150 * 1000 * 1000};
        int is_idle = cancelled % 2;
        pthread_t thread;
        void *result;

        /* The daemon opens and changes 20 feeds a second for a user. */
        nanosleep(&pace, NULL);
        takes_blocks = cancelled % 4 > 1;
        taken = is_reading = 0;
        if (weir_set_filter(feed, is_idle ? "tcp port 9" : "") != 0 || weir_start(feed) != 0)
            fail("filter");
        /* What came before the filter. */
        if (is_idle)
            wait_for(0);
        if (pthread_create(&thread, NULL, read_on, NULL) != 0)
            fail("thread");
        while (is_idle ? !is_asleep() : taken < 20)
            sched_yield();
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            fail("cancel");
        if (weir_set_filter(feed, "") != 0)
            fail("filter");
        wait_for(1);
        if (cancelled % 4 == 3) {
            weir_close(feed);
            open_feed(name, NULL);
            wait_for(1);
        }
    }
    printf("cancelled %d\n", cancelled);
}

int main(int argc, char **argv)
{
    struct weir_options options = weir_default_options();
    const char *way = argc > 1 ? argv[1] : "";
    const char *name = argc > 2 ? argv[2] : "";
    const char *more = argc > 3 ? argv[3] : "";

    if (weir_version() < WEIR_VERSION)
        return 2;
    if (!strcmp(way, "refused")) {
        refused(name, more);
    } else if (!strcmp(way, "list")) {
        list();
        return 0;
    } else if (!strcmp(way, "filter")) {
        options.filter = more;
        options.snaplen = 64;
        open_feed(name, &options);
        read_frames(UINT64_MAX);
    } else if (!strcmp(way, "frames")) {
        open_feed(name, NULL);
        if (weir_start(feed) != 0)
            fail("start");
        printf("link_type %d\n", weir_link_type(feed));
        fflush(stdout);
        read_frames(*more ? strtoull(more, NULL, 10) : UINT64_MAX);
    } else if (!strcmp(way, "blocks")) {
        options.flags = WEIR_BLOCKS;
        open_feed(name, &options);
        write_blocks(more);
    } else if (!strcmp(way, "poll")) {
        open_feed(name, NULL);
        read_with_poll();
    } else if (!strcmp(way, "break")) {
        options.filter = "tcp port 9";
        open_feed(name, &options);
        be_interrupted();
    } else if (!strcmp(way, "fork")) {
        open_feed(name, NULL);
        read_in_fork();
    } else if (!strcmp(way, "setuid")) {
        open_feed(name, NULL);
        if (setgid(65534) != 0 || setuid(65534) != 0)
            fail("setuid");
        read_frames(UINT64_MAX);
    } else if (!strcmp(way, "change")) {
        options.feed_name = "changing";
        open_feed(name, &options);
        change();
    } else if (!strcmp(way, "cancel")) {
        open_feed(name, NULL);
        cancel(name);
    } else if (!strcmp(way, "outlive")) {
        open_feed(name, NULL);
        outlive();
    } else {
        return 2;
    }
    print_statistics();
    weir_close(feed);
    return 0;
}
