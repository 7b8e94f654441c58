// A ring of the same layout in C, for comparison with Weir's: one writer, and one reader that copies.
//
//     peer FRAME_BYTES SECONDS WRITER_CPU READER_CPU
//
// prints `written delivered lapped held seconds`. Records, blocks and index are those of weir_ring::geometry: a pcapng
// Enhanced Packet Block for each frame, blocks of 1 MiB, an index entry of eight words for each block. The header of a
// ring is left out. Writer and reader work as in Weir's bench: frames are published 64 at a time; the writer waits when
// it is half a ring ahead of its reader; the reader stays 16 KiB behind a moving writer, copies up to 16 KiB at a time,
// checks that the block has not changed meanwhile, and only then parses its copy. Bytes are copied by memcpy, whose
// implementation the C library selects for the processor. By the C standard that is a data race, which compilers have
// tolerated so far; therefore Weir does not use memcpy.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { BLOCK = 1 << 20, BLOCKS = 64, BURST = 64, LOOK = 4096, CHUNK = 16384, DISTANCE = 16384 };
enum { EPB = 6, PADDING = (int)0x80005745, HEADER = 28 };
// The smallest size class of weir_ring::geometry, with options and a padding block. No longer frame is written here.
enum { CAPLEN_MAX = 2048, ROOM = CAPLEN_MAX + 52 + 12 };

struct entry {
	_Atomic uint64_t seq, committed, frames, first_ordinal, first_ns, last_ns;
	uint64_t unused[2];
};

struct ring {
	struct entry index[BLOCKS];
	_Alignas(64) _Atomic uint64_t opened, ordinal, kept_bytes, wire_bytes, closed;
	_Alignas(4096) uint8_t blocks[BLOCKS][BLOCK];
};

static struct ring *ring;
// `seen`: frames that the reader has read, or the maximum once it has ended.
static _Alignas(64) _Atomic uint64_t seen;
static uint64_t delivered, lapped;
static int reader_cpu;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

struct writer {
	uint64_t block, frames, in_block, kept_bytes, wire_bytes, ns;
	uint32_t at;
	int is_open;
};

static void publish(struct writer *w)
{
	struct entry *entry = &ring->index[w->block % BLOCKS];
	if (!w->is_open)
		return;
	atomic_store_explicit(&entry->frames, w->in_block, memory_order_relaxed);
	atomic_store_explicit(&entry->last_ns, w->ns, memory_order_relaxed);
	atomic_store_explicit(&entry->committed, w->at, memory_order_release);
	atomic_store_explicit(&ring->kept_bytes, w->kept_bytes, memory_order_relaxed);
	atomic_store_explicit(&ring->wire_bytes, w->wire_bytes, memory_order_relaxed);
	atomic_store_explicit(&ring->ordinal, w->frames, memory_order_release);
}

static void close_block(struct writer *w)
{
	uint32_t left = BLOCK - w->at, words[2] = { PADDING, left };
	uint8_t *begin = ring->blocks[w->block % BLOCKS] + w->at;
	if (!w->is_open)
		return;
	memset(begin, 0, left);
	memcpy(begin, words, 8);
	memcpy(begin + left - 4, &left, 4);
	w->at = BLOCK;
	publish(w);
	w->block++;
	w->is_open = 0;
}

static void open_block(struct writer *w)
{
	struct entry *entry;
	close_block(w);
	entry = &ring->index[w->block % BLOCKS];
	atomic_store_explicit(&entry->seq, 2 * w->block + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&entry->committed, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->frames, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->first_ordinal, w->frames, memory_order_relaxed);
	atomic_store_explicit(&entry->first_ns, w->ns, memory_order_relaxed);
	atomic_store_explicit(&entry->last_ns, w->ns, memory_order_relaxed);
	atomic_store_explicit(&entry->seq, 2 * w->block + 2, memory_order_release);
	atomic_store_explicit(&ring->opened, w->block + 1, memory_order_release);
	w->is_open = 1;
	w->at = 0;
	w->in_block = 0;
}

static void push(struct writer *w, const uint8_t *frame, uint32_t caplen)
{
	uint32_t padded = (caplen + 3) & ~3u, bytes = HEADER + padded + 4, zero = 0;
	uint32_t header[7];
	uint8_t *to;
	if (!w->is_open || w->at + ROOM > BLOCK)
		open_block(w);
	to = ring->blocks[w->block % BLOCKS] + w->at;
	header[0] = EPB;
	header[1] = bytes;
	header[2] = 0;
	header[3] = w->ns >> 32;
	header[4] = w->ns;
	header[5] = caplen;
	header[6] = caplen;
	memcpy(to, header, HEADER);
	memcpy(to + HEADER + padded - 4, &zero, 4);
	memcpy(to + HEADER, frame, caplen);
	memcpy(to + bytes - 4, &bytes, 4);
	w->at += bytes;
	w->in_block++;
	w->frames++;
	w->kept_bytes += caplen;
	w->wire_bytes += caplen;
}

static void burst(struct writer *w, const uint8_t *frame, uint32_t caplen)
{
	for (int i = 0; i < BURST; i++) {
		w->ns += 10;
		push(w, frame, caplen);
	}
	publish(w);
}

// Walks the copied records: counts the frames that are complete, and their bytes.
static uint32_t walk(const uint8_t *copy, uint32_t bytes, uint32_t *used)
{
	uint32_t at = 0, frames = 0, head[7], tail;
	while (bytes - at >= HEADER + 4) {
		memcpy(head, copy + at, HEADER);
		if (head[0] != EPB || head[1] % 4 || head[1] > bytes - at ||
		    head[1] < HEADER + 4 + (uint64_t)head[5])
			break;
		memcpy(&tail, copy + at + head[1] - 4, 4);
		if (tail != head[1])
			break;
		at += head[1];
		frames++;
	}
	*used = at;
	return frames;
}

// Reads from the writer's present position to the end.
static void *read_all(void *writer)
{
	static _Alignas(64) uint8_t copy[CHUNK];
	const struct writer *begin = writer;
	uint64_t ordinal = begin->frames, block = begin->block, last = 0;
	uint32_t at = begin->at;
	pin(reader_cpu);
	for (;;) {
		struct entry *entry = &ring->index[block % BLOCKS];
		uint64_t seq = atomic_load_explicit(&entry->seq, memory_order_acquire), committed, until;
		uint32_t bytes, used, frames;
		if (seq > 2 * block + 2)
			goto lapped;
		if (seq < 2 * block + 2) {
			if (atomic_load_explicit(&ring->closed, memory_order_acquire) &&
			    atomic_load_explicit(&ring->opened, memory_order_acquire) <= block)
				break;
			usleep(50);
			continue;
		}
		committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
		until = committed;
		if (committed != last && committed != BLOCK)
			until = committed < DISTANCE ? 0 : committed - DISTANCE;
		if (until <= at && at < BLOCK) {
			last = committed;
			usleep(50);
			continue;
		}
		bytes = until - at < CHUNK ? until - at : CHUNK;
		memcpy(copy, ring->blocks[block % BLOCKS] + at, bytes);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&entry->seq, memory_order_relaxed) != 2 * block + 2)
			goto lapped;
		frames = walk(copy, bytes, &used);
		if (frames == 0) {
			// The padding at the end of a closed block, or a record that ends too close to the writer.
			if (committed == BLOCK) {
				block++;
				at = 0;
				last = 0;
			} else {
				last = committed;
				usleep(50);
			}
			continue;
		}
		at += used;
		ordinal += frames;
		delivered += frames;
		atomic_store_explicit(&seen, ordinal, memory_order_relaxed);
		continue;
lapped:
		block = atomic_load_explicit(&ring->opened, memory_order_acquire) - 1 - BLOCKS / 2;
		entry = &ring->index[block % BLOCKS];
		lapped += atomic_load_explicit(&entry->first_ordinal, memory_order_acquire) - ordinal;
		ordinal = atomic_load_explicit(&entry->first_ordinal, memory_order_acquire);
		at = 0;
		last = 0;
	}
	atomic_store_explicit(&seen, UINT64_MAX, memory_order_relaxed);
	return NULL;
}

static uint64_t ahead(const struct writer *w)
{
	uint64_t had = atomic_load_explicit(&seen, memory_order_relaxed);
	return w->frames > had ? w->frames - had : 0;
}

// Maps the ring in huge pages if the machine has them, as Weir does.
static void map_ring(void)
{
	const size_t huge = 2 << 20, bytes = sizeof(struct ring);
	int fd = memfd_create("peer", MFD_CLOEXEC);
	char *room, *at;
	if (fd < 0 || ftruncate(fd, bytes))
		die("memfd");
	room = mmap(NULL, bytes + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		die("memory");
	at = (char *)(((uintptr_t)room + huge - 1) & ~(uintptr_t)(huge - 1));
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		die("memory");
	for (size_t offset = 0; offset < bytes; offset += huge)
		*(volatile char *)(at + offset) = 0;
	// If the kernel refuses huge pages, ordinary pages are used.
	madvise(at, bytes / huge * huge, MADV_COLLAPSE);
	ring = (struct ring *)at;
	memset(ring, 0, bytes);
}

int main(int count, char **arguments)
{
	struct writer w = { .ns = 1000000000 }, begun;
	uint64_t first, held = 0, written, ahead_max;
	uint32_t caplen;
	uint8_t *frame;
	pthread_t reader;
	double seconds, begin;

	if (count != 5) {
		fprintf(stderr, "usage: peer FRAME_BYTES SECONDS WRITER_CPU READER_CPU\n");
		return 2;
	}
	caplen = atoi(arguments[1]);
	seconds = atof(arguments[2]);
	reader_cpu = atoi(arguments[4]);
	if (caplen < 4 || caplen > CAPLEN_MAX || seconds <= 0) {
		fprintf(stderr, "frames of 4 to 2048 bytes, for more than 0 seconds\n");
		return 2;
	}
	map_ring();
	frame = malloc(caplen);
	if (!frame)
		die("memory");
	memset(frame, 0x5a, caplen);
	pin(atoi(arguments[3]));
	// Fill the ring once, so that every page is allocated.
	while (w.block <= BLOCKS)
		burst(&w, frame, caplen);
	begun = w;
	first = w.frames;
	atomic_store(&seen, first);
	if (pthread_create(&reader, NULL, read_all, &begun))
		die("pthread_create");
	ahead_max = (uint64_t)BLOCKS * BLOCK / 2 / (HEADER + ((caplen + 3) & ~3u) + 4);
	begin = now();
	while (now() - begin < seconds) {
		for (int i = 0; i < LOOK / BURST; i++) {
			// The compiler must not make assumptions about the contents of the frame.
			__asm__ volatile("" : "+r"(frame) : : "memory");
			burst(&w, frame, caplen);
		}
		held += ahead(&w) > ahead_max;
		while (ahead(&w) > ahead_max)
			sched_yield();
	}
	written = w.frames - first;
	close_block(&w);
	atomic_store_explicit(&ring->closed, 1, memory_order_release);
	pthread_join(reader, NULL);
	printf("%llu %llu %llu %llu %.6f\n", (unsigned long long)written, (unsigned long long)delivered,
	       (unsigned long long)lapped, (unsigned long long)held, now() - begin);
	return 0;
}
