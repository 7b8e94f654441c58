/*
 * A program that cancels its thread that reads, and goes on: cancel NAME WAY
 *
 * WAY is how the thread reads: loop, dispatch, next or next_ex; callback: by loop, and is cancelled in the callback;
 * disabled: by loop, with cancellation disabled, until pcap_breakloop. Each way is tried several times while no frame
 * comes, and while frames flow. On an interface of this machine nothing comes: that is the real libpcap's.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pcap/pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 3, PATIENCE_S = 20 };

static const char *way;
static pcap_t *handle;
static atomic_long handed;
static atomic_int thread_id;
static int cleaned_up;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "cancel: %s: %s: %s\n", way, what, why);
	exit(1);
}

static void set_filter(const char *text)
{
	struct bpf_program program;

	if (pcap_compile(handle, &program, text, 1, PCAP_NETMASK_UNKNOWN) || pcap_setfilter(handle, &program))
		fail(text, pcap_geterr(handle));
	pcap_freecode(&program);
}

static void open_feed(const char *name)
{
	char error[PCAP_ERRBUF_SIZE] = "";

	handle = pcap_create(name, error);
	if (!handle)
		fail(name, error);
	if (pcap_activate(handle) < 0)
		fail(name, pcap_geterr(handle));
}

static void take(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data)
{
	(void)user, (void)header, (void)data;
	handed++;
	if (!strcmp(way, "callback"))
		pthread_testcancel();
}

static void clean_up(void *unused)
{
	(void)unused;
	cleaned_up = 1;
}

/* Forever: none of these calls gives way to others. */
static void *read_on(void *unused)
{
	struct pcap_pkthdr *header, own;
	const unsigned char *data;
	int status = 0, state;

	if (!strcmp(way, "disabled"))
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_cleanup_push(clean_up, NULL);
	thread_id = gettid();
	while (status >= 0) {
		if (!strcmp(way, "next"))
			handed += pcap_next(handle, &own) != NULL;
		else if (!strcmp(way, "next_ex"))
			handed += (status = pcap_next_ex(handle, &header, &data)) == 1;
		else if (!strcmp(way, "dispatch"))
			status = pcap_dispatch(handle, -1, take, NULL);
		else
			status = pcap_loop(handle, -1, take, NULL);
	}
	pthread_cleanup_pop(0);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	if (status != PCAP_ERROR_BREAK || strcmp(way, "disabled") || state != PTHREAD_CANCEL_DISABLE)
		fail("the thread was not cancelled", pcap_geterr(handle));
	return unused;
}

static int is_asleep(int thread)
{
	char path[100], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
		fail(path, strerror(errno));
	fclose(file);
	return state == 'S';
}

static int threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	int count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count - 2;
}

static void cancel_a_reader(int is_idle)
{
	struct timespec until;
	pthread_t thread;
	void *result;

	handed = thread_id = cleaned_up = 0;
	set_filter(is_idle ? "tcp port 9" : "");
	if (pthread_create(&thread, NULL, read_on, NULL))
		fail("thread", "it does not start");
	while (!thread_id || (is_idle ? !is_asleep(thread_id) : handed < 1000))
		sched_yield();
	pthread_cancel(thread);
	clock_gettime(CLOCK_REALTIME, &until);
	if (!strcmp(way, "disabled")) {
		/* It would be cancelled within this time. */
		until.tv_sec += 1;
		if (pthread_timedjoin_np(thread, &result, &until) != ETIMEDOUT)
			fail("join", "a thread that disabled cancellation was cancelled");
		pcap_breakloop(handle);
	}
	until.tv_sec += PATIENCE_S;
	if (pthread_timedjoin_np(thread, &result, &until))
		fail(is_idle ? "idle" : "busy", "the thread was not cancelled");
	if (strcmp(way, "disabled") && (result != PTHREAD_CANCELED || !cleaned_up))
		fail("join", "it ended otherwise, or not by its cleanup handlers");
}

static void read_frames(int count)
{
	struct pcap_pkthdr *header;
	const unsigned char *data;
	int status;

	while (count > 0) {
		status = pcap_next_ex(handle, &header, &data);
		if (status < 0)
			fail("read", pcap_geterr(handle));
		count -= status;
	}
}

int main(int argc, char **argv)
{
	int round, rounds, is_of_a_daemon;

	if (argc != 3)
		return 2;
	way = argv[2];
	is_of_a_daemon = !strncmp(argv[1], "host:", 5);
	rounds = !strcmp(way, "disabled") ? 1 : ROUNDS;
	for (round = 0; round < 2 * rounds; round++) {
		/* The daemon opens and changes 20 feeds a second for a user. */
		usleep(200 * 1000);
		open_feed(argv[1]);
		/* Nobody comes to the callback while nothing comes. */
		cancel_a_reader(!is_of_a_daemon || (round % 2 == 0 && strcmp(way, "callback")));
		if (!is_of_a_daemon) {
			pcap_close(handle);
			continue;
		}
		/* Others read on, and another handle is as good. */
		set_filter("");
		read_frames(100);
		pcap_close(handle);
		if (threads() != 1)
			fail("close", "a thread of the library is left");
		open_feed(argv[1]);
		read_frames(100);
		pcap_close(handle);
	}
	printf("%d\n", round);
	return 0;
}
