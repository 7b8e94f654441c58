/*
 * A program that captures by libpcap and knows nothing of Weir: reader NAME FILE WAY COUNT [FILTER [FILTER]]
 *
 * It writes COUNT frames (0: until SIGINT) of NAME to FILE, and prints what pcap_stats says. WAY is how it reads:
 * loop, dispatch, select (without blocking), epoll, next, next_ex; or loop behind something else:
 *   fork    the handle is opened by the parent, and read by the child
 *   forksel the same, with select; as daemons do that put themselves into the background
 *   split   both read: the parent the first half, the child the rest
 *   setuid  as another user, who may not connect any more
 *   thread  another thread ends it after 200 ms
 *   alarm   a signal handler ends it after 200 ms
 *   refilter  the second FILTER is set behind half of the frames
 *   repoll  the FILTERs are set in turn, one behind every 100 frames, and frames asked for without waiting; the bytes
 *           of a frame say by which it was chosen
 *   cut     as refilter until SIGINT, with frames cut to 64 bytes
 *   busy    its callback asks for statistics, and closes the handle at the end
 *   nested  its callback reads the next frame itself
 *   usr1    SIGUSR1 has its handler ask for statistics, as tcpdump's does
 *   inject  it tries to send
 */
#include <errno.h>
#include <pcap/pcap.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

static pcap_t *handle;
static pcap_dumper_t *dumper;
static long count, handed;
static const char *way;
static int is_closed;
static long wake_ups;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "reader: %s: %s\n", what, why);
	exit(1);
}

static void check(int status, const char *what)
{
	if (status < 0)
		fail(what, pcap_geterr(handle));
}

static void stop(int signal)
{
	(void)signal;
	pcap_breakloop(handle);
}

static void ask(int signal)
{
	struct pcap_stat stat;

	(void)signal;
	if (pcap_stats(handle, &stat))
		_exit(3);
	if (write(2, "asked\n", 6) != 6)
		_exit(4);
}

static void *stop_later(void *unused)
{
	usleep(200 * 1000);
	pcap_breakloop(handle);
	return unused;
}

static void take(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data)
{
	struct pcap_stat stat;
	struct pcap_pkthdr own;
	const unsigned char *next;

	(void)user;
	pcap_dump((unsigned char *)dumper, header, data);
	handed++;
	if (!strcmp(way, "nested") && handed % 2) {
		next = pcap_next(handle, &own);
		if (next) {
			pcap_dump((unsigned char *)dumper, &own, next);
			handed++;
		}
	}
	/* pcap_loop counts what it handed over itself. */
	if (!strcmp(way, "nested") && handed == count)
		pcap_breakloop(handle);
	if (strcmp(way, "busy"))
		return;
	if (handed % 100 == 1) {
		check(pcap_stats(handle, &stat), "statistics in a callback");
		/* A hundred frames take less time than the one for which the daemon's answer is reused. */
		if (stat.ps_recv < handed)
			fail("statistics in a callback", "fewer frames than it was handed");
	}
	if (handed == count) {
		pcap_close(handle);
		is_closed = 1;
	}
}

static void set_filter(const char *text)
{
	struct bpf_program program;

	check(pcap_compile(handle, &program, text, 1, PCAP_NETMASK_UNKNOWN), "compile");
	check(pcap_setfilter(handle, &program), "setfilter");
	pcap_freecode(&program);
}

static int left(void)
{
	return count ? (int)(count - handed) : -1;
}

/* 1: it goes on. */
static int read_some(void)
{
	struct pcap_pkthdr *header, own;
	const unsigned char *data;
	static int empty;
	int status;

	if (!strcmp(way, "next")) {
		data = pcap_next(handle, &own);
		if (data)
			take(NULL, &own, data);
		/* It does not tell a time-out from an end. */
		return data || empty++ < 600;
	}
	if (!strcmp(way, "next_ex")) {
		status = pcap_next_ex(handle, &header, &data);
		if (status == 1)
			take(NULL, header, data);
	} else {
		status = pcap_dispatch(handle, left(), take, NULL);
	}
	if (status == PCAP_ERROR_BREAK)
		return 0;
	check(status, "read");
	return 1;
}

static void wait_for_frames(void)
{
	wake_ups++;
	static int epoll = -1;
	struct epoll_event event = { .events = EPOLLIN };
	int fd = pcap_get_selectable_fd(handle);
	fd_set set;

	if (fd < 0)
		fail("descriptor", pcap_geterr(handle));
	if (!strcmp(way, "epoll")) {
		if (epoll < 0) {
			epoll = epoll_create1(0);
			epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
		}
		if (epoll_wait(epoll, &event, 1, 60000) == 0)
			fail("epoll", "nothing in 60 s");
	} else if (!strcmp(way, "select") || !strcmp(way, "forksel")) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (select(fd + 1, &set, NULL, NULL, &(struct timeval){ 60, 0 }) == 0)
			fail("select", "nothing in 60 s");
	}
}

/* Frames by the second byte of their UDP source port: even ones by the first filter, odd ones by the second. */
static void set_filters_in_turn(char **filters)
{
	struct pcap_pkthdr *header;
	const unsigned char *data;
	char error[PCAP_ERRBUF_SIZE];
	int turn = 0, status;

	if (pcap_setnonblock(handle, 1, error))
		fail("setnonblock", error);
	while (handed < count) {
		status = pcap_next_ex(handle, &header, &data);
		check(status, "read");
		if (status == 0)
			continue;
		if (data[35] % 2 != turn)
			fail("filter", "a frame of before its change");
		take(NULL, header, data);
		if (handed % 100 == 0) {
			turn = !turn;
			set_filter(filters[turn]);
		}
	}
}

static void read_all(void)
{
	int polls = !strcmp(way, "select") || !strcmp(way, "epoll") || !strcmp(way, "forksel");
	char error[PCAP_ERRBUF_SIZE];
	int status;

	if (polls || !strcmp(way, "dispatch") || !strncmp(way, "next", 4)) {
		if (polls && pcap_setnonblock(handle, 1, error))
			fail("setnonblock", error);
		while (!count || handed < count) {
			wait_for_frames();
			if (!read_some())
				break;
		}
		/* A second of waiting, some hundred frames a second: one that is always readable wakes a million times. */
		if (wake_ups > 50000)
			fail("waiting", "it woke more than 50,000 times");
		return;
	}
	status = pcap_loop(handle, left(), take, NULL);
	if (status != PCAP_ERROR_BREAK && !is_closed)
		check(status, "loop");
}

int main(int argc, char **argv)
{
	char error[PCAP_ERRBUF_SIZE] = "";
	struct sigaction action = { .sa_handler = stop };
	struct pcap_stat stat;
	pthread_t thread;
	pid_t child = 0;
	long whole;
	int status, snaplen, is_refiltered;

	if (argc < 5)
		fail("usage", "reader NAME FILE WAY COUNT [FILTER [FILTER]]");
	way = argv[3];
	whole = count = atol(argv[4]);
	handle = pcap_create(argv[1], error);
	if (!handle)
		fail("create", error);
	snaplen = strcmp(way, "cut") ? 65535 : 64;
	check(pcap_set_snaplen(handle, snaplen), "snaplen");
	check(pcap_set_promisc(handle, 1), "promisc");
	check(pcap_set_timeout(handle, 100), "timeout");
	check(pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_NANO), "precision");
	if (pcap_datalink(handle) != PCAP_ERROR_NOT_ACTIVATED)
		fail("datalink", "there is one before it is activated");
	check(pcap_activate(handle), "activate");
	if (pcap_set_snaplen(handle, 100) != PCAP_ERROR_ACTIVATED)
		fail("snaplen", "it can be set once it is activated");
	if (pcap_datalink(handle) != DLT_EN10MB || pcap_snapshot(handle) != snaplen)
		fail("datalink", "another link type or snapshot length");
	if (pcap_get_tstamp_precision(handle) != PCAP_TSTAMP_PRECISION_NANO)
		fail("precision", "it is not kept");
	if (!strcmp(way, "inject")) {
		if (pcap_inject(handle, "no", 2) != -1 || pcap_sendpacket(handle, (void *)"no", 2) != -1)
			fail("inject", "it can send");
		fail("inject", pcap_geterr(handle));
	}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	action.sa_handler = ask;
	sigaction(SIGUSR1, &action, NULL);
	if (argc > 5)
		set_filter(argv[5]);
	if (!strcmp(way, "forksel") && pcap_get_selectable_fd(handle) < 0)
		fail("descriptor", pcap_geterr(handle));
	if (!strncmp(way, "fork", 4)) {
		child = fork();
		if (child) {
			waitpid(child, &status, 0);
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		}
	}
	dumper = pcap_dump_open(handle, argv[2]);
	if (!dumper)
		fail(argv[2], pcap_geterr(handle));
	if (!strcmp(way, "setuid") && setuid(65534))
		fail("setuid", strerror(errno));
	fprintf(stderr, "reader: reads\n");
	if (!strcmp(way, "thread"))
		pthread_create(&thread, NULL, stop_later, NULL);
	if (!strcmp(way, "alarm"))
		ualarm(200 * 1000, 0);
	is_refiltered = !strcmp(way, "refilter") || !strcmp(way, "cut");
	if (!strcmp(way, "split") || is_refiltered)
		count /= 2;
	if (!strcmp(way, "repoll"))
		set_filters_in_turn(argv + 5);
	else
		read_all();
	if (is_refiltered) {
		set_filter(argv[6]);
		fprintf(stderr, "reader: filters anew\n");
		count = strcmp(way, "cut") ? whole : 0;
		read_all();
	}
	if (!strcmp(way, "split")) {
		pcap_dump_flush(dumper);
		child = fork();
		if (child) {
			waitpid(child, &status, 0);
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		}
		count = whole;
		read_all();
	}
	if (!is_closed) {
		check(pcap_stats(handle, &stat), "stats");
		printf("%u %u %u\n", stat.ps_recv, stat.ps_drop, stat.ps_ifdrop);
	}
	printf("%ld\n", handed);
	pcap_dump_close(dumper);
	if (!is_closed)
		pcap_close(handle);
	return 0;
}
