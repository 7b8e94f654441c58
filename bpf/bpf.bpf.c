// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The bpf engine: its programs copy frames from the driver's buffer or the skb into the CPU's ring, as pcapng records.
 * At TC ingress and egress, frames pass on. At XDP, the program may drop them after that.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ring.h"
#include "control.h"
#include "members.h"
#include "block.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Most feeds of one hook. A feed's *place* is its number there. Each feed that takes a frame costs the CPU one copy. */
#define WEIR_FEEDS_MAX 17

struct weir_feed {
	__u32 snaplen;
	__u32 one_in;		/* of the frames that the feed chose, one in this many is kept */
	__u32 flows_one_in;	/* of the flows, one in this many is kept, with all its frames */
	__u32 shard_index;	/* the feed chooses only frames of this shard */
	__u32 shard_of;		/* number of shards; 1: all frames belong to the shard */
	__u32 queue;		/* the feed chooses only frames of this RX queue; all ones: of all queues */
	__u32 list;		/* number of its block list; stays the same if the feed moves to another place */
};

#define WEIR_ANY_QUEUE 0xffffffffu

/* Most bytes that bpf_xdp_load_bytes() reads. Source: bpf_xdp_pointer(), net/core/filter.c. */
#define WEIR_XDP_LOAD_MAX 0xffff

/*
 * Set before loading. Each generation of a program with filters has its own map of these constants. A place whose bit
 * is neither in `wanted_in` nor in `wanted_out` is free.
 */
const volatile __u32 block_mask;	/* data blocks of a ring - 1 */
const volatile struct weir_feed feed_of[WEIR_FEEDS_MAX];
const volatile __u32 only;		/* the place of the only feed, plus 1: its writer is inline; 0: several feeds */
const volatile __u32 shard_of;		/* number of shards, if each feed is a different shard; else 0 */
const volatile __u32 shard_place[WEIR_FEEDS_MAX];	/* the place of each shard's feed; WEIR_FEEDS_MAX: none */
const volatile __u32 generation;	/* below WEIR_GENERATIONS: decides which words count offered frames */
const volatile __u32 rings_per_feed;	/* highest possible CPU + 1 */
const volatile __u32 wanted_in;		/* feeds that take received frames, a bit each */
const volatile __u32 wanted_out;	/* feeds that take sent frames, a bit each */
const volatile __u32 by_flow;		/* whether a feed selects by the flow's hash */
const volatile __u32 by_queue;		/* whether a feed selects by the RX queue */
const volatile __u32 may_block;	/* whether feeds have block lists, which may be empty */
const volatile __u32 with_filters;	/* whether weir_judge_*() decides which feeds want a frame */
const volatile __u32 chooses;		/* whether a feed excludes frames: then the frames of each feed are counted */
const volatile __u32 with_flags;	/* whether to write epb_flags */
const volatile __u32 with_queue;	/* whether to write epb_queue */
const volatile __u32 consume;		/* XDP: whether to drop frames after capturing them */
const volatile __u32 several;		/* TC: whether there are interfaces by pattern, each with its own counts */

struct weir_ring_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 5);		/* in fact: 1 + data blocks */
	__uint(key_size, 4);
	__uint(value_size, WEIR_BLOCK_BYTES);
};

/* The rings by number. User space creates this map and those in it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);		/* in fact: places x rings_per_feed */
	__uint(key_size, 4);
	__uint(value_size, 4);
	__array(values, struct weir_ring_map);
} rings SEC(".maps");

/* [0] is shared by all CPUs. [1 + ring] belongs to that ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);		/* set before loading: 1 + rings */
	__type(key, __u32);
	__type(value, struct weir_control);
} control SEC(".maps");

/* Wakes the owner with the number of the ring: a sleeper's threshold has been reached, or another quarter has begun. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} doorbell SEC(".maps");

/* The flow key of the frame; not valid before `looked` is set. */
struct found_key {
	struct weir_flow_key key;
	__u64 looked;
};

static __always_inline long load(void *ctx, enum weir_hook hook, __u32 from, void *to, __u64 len,
				 __u64 len_max)
{
	/*
	 * Checks 1 <= len <= len_max. clang would test both bounds at once on a copy, `len - 1`, and then use `len`,
	 * for which the verifier of Linux 6.1 knows no bounds. So `len` itself is decremented, tested and incremented.
	 */
	len -= 1;
	weir_opaque(len);
	if (len > len_max - 1)
		return -1;
	weir_opaque(len);
	len += 1;
	if (hook == WEIR_TC)
		return bpf_skb_load_bytes(ctx, from, to, len);
	return bpf_xdp_load_bytes(ctx, from, to, len);
}

/*
 * Copies up to 128 bytes without a helper call: 8 at a time, and the last 8, which may overlap. `caplen` is at least 8.
 * Returns non-zero if not all bytes are in the linear part.
 */
static __always_inline int copy_short(struct xdp_md *ctx, __u8 *to, __u64 caplen)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 last = caplen - 8;
	__u32 i;

#pragma unroll
	for (i = 0; i < 15; i++) {
		if (i * 8 >= last)
			break;
		if (data + i * 8 + 8 > end)
			return -1;
		*(__u64 *)(to + i * 8) = *(__u64 *)(data + i * 8);
	}
	/*
	 * Hides the bounds of `last` that the loop has shown: else the verifier follows the rest once for each loop
	 * exit.
	 */
	last = weir_caplen_of(to - WEIR_HEADER_BYTES) - 8;
	weir_opaque(last);
	if (last > 120)
		return -1;
	if (data + last + 8 > end)
		return -1;
	*(__u64 *)(to + last) = *(__u64 *)(data + last);
	return 0;
}

static __always_inline long copy_frame(void *ctx, enum weir_hook hook, __u8 *to, __u64 caplen,
				       __u32 caplen_max, __u32 tag)
{
	if (hook == WEIR_XDP && caplen_max == WEIR_CAPLEN_SMALL && !tag && caplen >= 8 && caplen <= 128 &&
	    copy_short(ctx, to, caplen) == 0)
		return 0;
	if (tag) {	/* put the tag back behind the addresses */
		long err = load(ctx, hook, 0, to, 12, 12);

		*(__u32 *)(to + 12) = tag;
		if (err || caplen <= 16)
			return err;
		return load(ctx, hook, 12, to + 16, caplen - 16, caplen_max - 16);
	}
	return load(ctx, hook, 0, to, caplen, caplen_max);
}

/* Wakes the owner if the block that was opened is the first of a quarter, and any reader waits for a threshold. */
static __always_inline void ring_for_quarter(__u32 number, __u64 opened)
{
	__u32 ring_line = number + 1;
	struct weir_control *line;

	if ((opened - 1) & (block_mask >> 2))
		return;
	line = bpf_map_lookup_elem(&control, &ring_line);
	if (line && *(volatile __u64 *)&line->armed != WEIR_AWAKE)
		bpf_ringbuf_output(&doorbell, &number, sizeof(number), BPF_RB_FORCE_WAKEUP);
}

/*
 * Opens the next block of a ring. This happens once for each MiB, so the cost of looking up the ring again is
 * negligible. Global, so that the kernel verifies the function once instead of once for each size class, which took two
 * fifths of a program's loading time.
 */
__noinline int weir_next_block(__u32 number, __u64 first_ns)
{
	void *ring = bpf_map_lookup_elem(&rings, &number), *meta;
	struct weir_writer *w;
	__u32 zero = 0;

	if (!ring)
		return -1;
	meta = bpf_map_lookup_elem(ring, &zero);
	if (!meta)
		return -1;
	w = meta + WEIR_WRITER_AT;
	if (weir_advance(ring, meta, w, block_mask, first_ns))
		return -1;
	ring_for_quarter(number, w->opened);
	return 0;
}

/* Writes one frame. Its size class is a constant, so that every bound is a constant, too. */
static __always_inline int write_class(void *ctx, enum weir_hook hook, __u32 number, void *ring,
				       void *meta, struct weir_writer *w, const struct weir_frame *frame,
				       __u32 interface, __u32 caplen_max)
{
	__u32 bytes = weir_record_bytes(frame->caplen, with_flags, frame->has_queue);
	__u64 caplen = frame->caplen;
	struct weir_entry *entry;
	__u8 *record;

	if (weir_is_full(w, WEIR_ROOM(caplen_max)) && weir_next_block(number, frame->ts_ns))
		return -1;
	record = weir_reserve(ring, meta, w, block_mask, WEIR_ROOM(caplen_max), &entry);
	if (!record)
		return -1;
	weir_put_header(record, frame, interface, bytes);
	if (copy_frame(ctx, hook, record + WEIR_HEADER_BYTES, caplen, caplen_max, frame->tag))
		return -1;
	caplen = weir_caplen_of(record);
	if (caplen > caplen_max)
		return -1;
	weir_put_tail(record, frame, caplen, bytes, with_flags, frame->has_queue);
	weir_commit(w, entry, frame, bytes);
	return 0;
}

/* Wakes the owner if a sleeper's threshold has been reached. */
static __always_inline void ring_doorbell(struct weir_control *line, __u64 ordinal, __u32 number)
{
	__u64 armed = *(volatile __u64 *)&line->armed;

	if (armed > ordinal || armed == line->rung)
		return;
	line->rung = armed;
	bpf_ringbuf_output(&doorbell, &number, sizeof(number), BPF_RB_FORCE_WAKEUP);
}

/*
 * Whether the feed's block list excludes the frame. `found` keeps the frame's key from one feed to the next. The key is
 * not computed while all lists are empty.
 */
static __always_inline int is_blocked(void *ctx, enum weir_hook hook, __u32 list,
				      const struct weir_frame *frame, struct found_key *found)
{
	struct weir_blocklist_front *front = weir_blocklist_of(list);

	if (!front)
		return 0;
	if (!found->looked) {
		found->looked = 1;
		weir_flow(ctx, hook, frame->tag & 0xffff, &found->key);
	}
	return weir_blocked(front, list, &found->key);
}

/* Whether the frame was received by the feed's queue. */
static __always_inline int is_of_queue(__u32 feed, const struct weir_frame *frame)
{
	if (feed >= WEIR_FEEDS_MAX)
		return 0;
	return !by_queue || feed_of[feed].queue == WEIR_ANY_QUEUE || feed_of[feed].queue == frame->queue;
}

/* Whether the frame belongs to the feed's queue and shard. Checked before a function is called for the feed. */
static __always_inline int is_of_part(__u32 feed, const struct weir_frame *frame)
{
	const volatile struct weir_feed *setup;

	if (feed >= WEIR_FEEDS_MAX || !is_of_queue(feed, frame))
		return 0;
	setup = &feed_of[feed];
	return !by_flow || setup->shard_of <= 1 ||
	       weir_shard_takes(frame->flow_hash, setup->shard_index, setup->shard_of);
}

/* Returns the place of the feed to whose shard the frame belongs. Every feed has one of `shard_of` shards. */
static __always_inline __u32 place_of_shard(__u64 flow_hash)
{
	__u64 shard = weir_shard_index(flow_hash, shard_of);

	weir_opaque(shard);
	return shard < WEIR_FEEDS_MAX ? shard_place[shard] : WEIR_FEEDS_MAX;
}

/*
 * Writes the frame into this CPU's ring of a feed whose filter takes the frame, unless the feed's block list or
 * sampling excludes it. Inline if there is one feed of one interface: returns are slow on kernels with mitigations for
 * them (SRSO, retbleed). `number` is the number of the ring, `line` is that ring's words in the control map, and
 * `interface` is the number of the frame's interface in the rings, 0 if the source has only one.
 */
static __always_inline void write_feed(void *ctx, enum weir_hook hook, __u32 feed, __u32 number,
				       struct weir_control *line, struct weir_frame *frame,
				       struct found_key *found, __u32 interface)
{
	const volatile struct weir_feed *setup;
	struct weir_writer *w;
	__u32 zero = 0;
	void *ring, *meta;
	int err;

	if (feed >= WEIR_FEEDS_MAX)
		return;
	setup = &feed_of[feed];
	if (chooses)
		line->chosen++;
	if (several)
		weir_count(number, interface, WEIR_CHOSEN);
	if (may_block && is_blocked(ctx, hook, setup->list, frame, found)) {
		line->blocked++;
		if (several)
			weir_count(number, interface, WEIR_BLOCKED);
		return;
	}
	if (by_flow && setup->flows_one_in > 1 &&
	    !weir_sample_takes(frame->flow_hash, setup->flows_one_in)) {
		line->sampled++;
		if (several)
			weir_count(number, interface, WEIR_SAMPLED);
		return;
	}
	if (setup->one_in > 1) {
		if (line->skip) {
			line->skip--;
			line->sampled++;
			if (several)
				weir_count(number, interface, WEIR_SAMPLED);
			return;
		}
		line->skip = setup->one_in - 1;
	}
	ring = bpf_map_lookup_elem(&rings, &number);
	if (!ring)
		return;
	meta = bpf_map_lookup_elem(ring, &zero);
	if (!meta)
		return;
	w = meta + WEIR_WRITER_AT;
	if (!frame->ts_ns) {
		struct weir_control *all = bpf_map_lookup_elem(&control, &zero);

		if (!all) {
			w->drops_unreadable++;
			return;
		}
		/* The first feed that keeps the frame stamps it for all feeds; if none does, the clock is not read. */
		frame->ts_ns = bpf_ktime_get_tai_ns() - all->tai_offset_ns;
	}
	frame->caplen = frame->wire_len < setup->snaplen ? frame->wire_len : setup->snaplen;
	/* A longer frame (BIG TCP, at generic XDP) is cut. */
	if (hook == WEIR_XDP && frame->caplen > WEIR_XDP_LOAD_MAX)
		frame->caplen = WEIR_XDP_LOAD_MAX;
	if (frame->caplen <= WEIR_CAPLEN_SMALL) {
		err = write_class(ctx, hook, number, ring, meta, w, frame, interface,
				  WEIR_CAPLEN_SMALL);
	} else if (frame->caplen <= WEIR_CAPLEN_JUMBO) {
		err = write_class(ctx, hook, number, ring, meta, w, frame, interface,
				  WEIR_CAPLEN_JUMBO);
	} else if (frame->caplen <= WEIR_CAPLEN_SUPER) {
		err = write_class(ctx, hook, number, ring, meta, w, frame, interface,
				  WEIR_CAPLEN_SUPER);
	} else if (frame->caplen <= WEIR_CAPLEN_BIG_TCP) {
		err = write_class(ctx, hook, number, ring, meta, w, frame, interface,
				  WEIR_CAPLEN_BIG_TCP);
	} else {
		if (frame->caplen > WEIR_CAPLEN_MAX)
			frame->caplen = WEIR_CAPLEN_MAX;
		err = write_class(ctx, hook, number, ring, meta, w, frame, interface,
				  WEIR_CAPLEN_MAX);
	}
	if (err) {
		w->drops_unreadable++;
		if (several)
			weir_count(number, interface, WEIR_UNREADABLE);
		return;
	}
	if (several)
		weir_count_written(number, interface, frame);
	ring_doorbell(line, w->ordinal, number);
}

/* Looks up the words of this CPU's ring of one of several feeds, and writes the frame. */
static __always_inline void write_one_of(void *ctx, enum weir_hook hook, __u32 feed,
					 struct weir_frame *frame, struct found_key *found,
					 __u32 interface)
{
	__u32 number = feed * rings_per_feed + bpf_get_smp_processor_id(), line_number = number + 1;
	struct weir_control *line = bpf_map_lookup_elem(&control, &line_number);

	if (line)
		write_feed(ctx, hook, feed, number, line, frame, found, interface);
}

/* Verified once, and called for each feed if there are several. */
__noinline int weir_write_tc(struct __sk_buff *skb, __u32 feed, struct weir_frame *frame,
			     struct found_key *found, __u32 interface)
{
	if (frame && found)
		write_one_of(skb, WEIR_TC, feed, frame, found, interface);
	return 0;
}

__noinline int weir_write_xdp(struct xdp_md *xdp, __u32 feed, struct weir_frame *frame,
			      struct found_key *found)
{
	if (frame && found)
		write_one_of(xdp, WEIR_XDP, feed, frame, found, 0);
	return 0;
}

/*
 * Returns which feeds' filters take the frame, a bit each. The owner replaces these bodies by the compiled filters
 * before it loads the program. To change the filters of a running program, it loads a new program and replaces the old
 * one (docs/decisions/0012-filters-in-the-program.md). Global, so that the kernel verifies these functions separately;
 * weak, so that clang does not rely on these bodies.
 */
__noinline __weak int weir_judge_tc(struct __sk_buff *skb)
{
	return -1;
}

/*
 * `tag` is the VLAN tag that the driver removed, in network byte order; 0: none. Filters see it as part of the frame.
 */
__noinline __weak int weir_judge_xdp(struct xdp_md *xdp, __u32 tag)
{
	return -1;
}

/* Returns the hash of the frame's flow, for shards and samples. Not inline, so that the key has its own stack frame. */
static __noinline __u64 flow_hash_tc(struct __sk_buff *skb, __u32 tag_protocol)
{
	struct weir_flow_key key;

	weir_flow(skb, WEIR_TC, tag_protocol, &key);
	return weir_shard_hash(&key);
}

static __noinline __u64 flow_hash_xdp(struct xdp_md *xdp, __u32 tag_protocol)
{
	struct weir_flow_key key;

	weir_flow(xdp, WEIR_XDP, tag_protocol, &key);
	return weir_shard_hash(&key);
}

/*
 * Returns 1 unless the number is 0, without a branch: after a branch, the verifier would follow the writer once for
 * each path to it.
 */
static __always_inline __u32 weir_is_set(__u32 number)
{
	__u64 below = -(__u64)number;

	weir_opaque(below);	/* clang knows the identity, and would branch */
	return below >> 63;
}

static __always_inline __u32 tag_of(__be16 protocol, __be16 tci, __u32 is_there)
{
	return (protocol | (__u32)tci << 16) & -is_there;
}

static __always_inline void describe_xdp(struct xdp_md *ctx, struct weir_frame *frame,
					 __u32 tag)
{
	*frame = (struct weir_frame){
		.wire_len = bpf_xdp_get_buff_len(ctx) + 4 * weir_is_set(tag),
		.flags = WEIR_FLAG_INBOUND,
		.queue = ctx->rx_queue_index,
		.has_queue = with_queue,
		.tag = tag,
	};
}

static __always_inline void capture(void *ctx, enum weir_hook hook, __u32 wanted,
				    struct weir_frame *frame, __u32 tag, __u32 interface)
{
	__u32 cpu = bpf_get_smp_processor_id(), line = cpu + 1, feed;
	struct weir_control *mine = bpf_map_lookup_elem(&control, &line), *mine_of_ring = mine;
	struct weir_came *own = 0;

	if (!mine)
		return;
	if (several) {
		own = weir_came_of(cpu, interface);
		if (!own)
			return;
	}
	/*
	 * Frames are counted at the hook, before anything decides about them. `busy` keeps runs that interrupt this one
	 * on this CPU from changing `offered_by`. Such runs can interrupt one another, so they add atomically. There
	 * are none at XDP, which runs with softirqs off.
	 */
	if (hook == WEIR_TC) {
		if (mine->busy) {
			__sync_fetch_and_add(&mine->nested_by[generation & (WEIR_GENERATIONS - 1)], 1);
			if (several)
				__sync_fetch_and_add(&own->nested[generation & (WEIR_GENERATIONS - 1)], 1);
			return;
		}
		mine->busy = 1;
		weir_barrier();
	}
	mine->offered_by[generation & (WEIR_GENERATIONS - 1)]++;
	if (several)
		own->judged[generation & (WEIR_GENERATIONS - 1)]++;
	if (with_filters) {
		if (hook == WEIR_TC)
			wanted &= weir_judge_tc(ctx);
		else
			wanted &= weir_judge_xdp(ctx, tag);
	}
	if (!wanted)
		goto done;
	/* Done only now, because often no feed wants the frame. */
	if (hook == WEIR_XDP)
		describe_xdp(ctx, frame, tag);
	if (by_flow) {
		frame->flow_hash = hook == WEIR_TC ? flow_hash_tc(ctx, tag & 0xffff)
						   : flow_hash_xdp(ctx, tag & 0xffff);
	}
	if (only && !several) {
		__u32 place = only - 1, number = place * rings_per_feed + cpu;
		struct found_key found;

		found.looked = 0;
		/*
		 * At the first place the ring's number is the CPU's number, so its line is `mine`, which counts offered
		 * frames.
		 */
		if (place) {
			__u32 ring_line = number + 1;

			mine_of_ring = bpf_map_lookup_elem(&control, &ring_line);
		}
		if (mine_of_ring && is_of_part(place, frame))
			write_feed(ctx, hook, place, number, mine_of_ring, frame, &found, 0);
	} else if (shard_of && !several) {
		/* At most one feed takes the frame, so the writer is inline here, too. */
		__u32 place = place_of_shard(frame->flow_hash), number, ring_line;
		struct found_key found;

		found.looked = 0;
		if (place >= WEIR_FEEDS_MAX || !(wanted >> place & 1) || !is_of_queue(place, frame))
			goto done;
		number = place * rings_per_feed + cpu;
		ring_line = number + 1;
		mine_of_ring = bpf_map_lookup_elem(&control, &ring_line);
		if (mine_of_ring)
			write_feed(ctx, hook, place, number, mine_of_ring, frame, &found, 0);
	} else {
		struct found_key found = {};

		for (feed = 0; feed < WEIR_FEEDS_MAX; feed++) {
			if (!(wanted >> feed))
				break;
			if (!(wanted & (1u << feed)) || !is_of_part(feed, frame))
				continue;
			if (hook == WEIR_TC)
				weir_write_tc(ctx, feed, frame, &found, interface);
			else
				weir_write_xdp(ctx, feed, frame, &found);
		}
	}
done:
	if (hook == WEIR_TC) {
		weir_barrier();
		mine->busy = 0;
	}
}

static __always_inline int tc(struct __sk_buff *skb, __u32 direction)
{
	/* No protocol means 802.1Q, as elsewhere in the kernel. */
	__u32 protocol = skb->vlan_proto, interface = 0;
	__u32 present = weir_is_set(skb->vlan_present);
	struct weir_frame frame = {
		.wire_len = skb->len + 4 * present,
		.flags = direction | weir_is_set(skb->gso_size) * WEIR_FLAG_SUPER_FRAME,
		.queue = WEIR_ANY_QUEUE,
	};

	if (several) {
		__u32 ifindex = skb->ifindex, *number;

		number = bpf_map_lookup_elem(&members, &ifindex);
		if (!number)
			return -1;	/* the interface has just left */
		interface = *number;
	}
	protocol |= bpf_htons(ETH_P_8021Q) & (weir_is_set(protocol) - 1);
	frame.tag = tag_of(protocol, bpf_htons(skb->vlan_tci), present);
	/* A received skb has the number of its queue plus one; 0: none. The queue of a sent skb is chosen later. */
	if ((with_queue || by_queue) && direction == WEIR_FLAG_INBOUND) {
		frame.has_queue = with_queue & weir_is_set(skb->queue_mapping);
		frame.queue = skb->queue_mapping - 1;	/* 0: WEIR_ANY_QUEUE */
	}
	capture(skb, WEIR_TC, direction == WEIR_FLAG_INBOUND ? wanted_in : wanted_out, &frame, frame.tag, interface);
	return -1;	/* TCX_NEXT, TC_ACT_UNSPEC: the next program decides */
}

SEC("tc")
int weir_tc_in(struct __sk_buff *skb)
{
	return tc(skb, WEIR_FLAG_INBOUND);
}

SEC("tc")
int weir_tc_out(struct __sk_buff *skb)
{
	return tc(skb, WEIR_FLAG_OUTBOUND);
}

static __always_inline int xdp(struct xdp_md *ctx, __u32 tag)
{
	struct weir_frame frame;

	capture(ctx, WEIR_XDP, wanted_in, &frame, tag, 0);
	return consume ? XDP_DROP : XDP_PASS;
}

SEC("xdp.frags")
int weir_xdp(struct xdp_md *ctx)
{
	return xdp(ctx, 0);
}

#define WEIR_EOPNOTSUPP 95	/* asm-generic/errno.h */

/* The VLAN tag that the driver removed from the frame (Linux 6.8). Needs a program bound to the device. */
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *vlan_proto,
					__u16 *vlan_tci) __ksym __weak;

SEC("xdp.frags")
int weir_xdp_tags(struct xdp_md *ctx)
{
	__be16 proto = 0;
	__u16 tci = 0;
	int err = bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci);

	if (err == -WEIR_EOPNOTSUPP) {
		__u32 zero = 0;
		struct weir_control *all = bpf_map_lookup_elem(&control, &zero);

		if (all)
			all->tags_unknown = 1;	/* the owner tells the user */
	}
	return xdp(ctx, tag_of(proto, bpf_htons(tci), 1 - weir_is_set(err)));
}

struct close_args {
	__u32 ring;
};

/*
 * Closes the open block, and marks the ring as closed. The owner, which cannot write a frozen ring itself, runs this
 * program once no other program writes the ring.
 */
SEC("syscall")
int weir_close(struct close_args *args)
{
	__u32 number = args->ring, zero = 0;
	struct weir_writer *w;
	void *ring, *meta;
	__u8 *block;
	__u64 at;

	ring = bpf_map_lookup_elem(&rings, &number);
	if (!ring)
		return -1;
	meta = bpf_map_lookup_elem(ring, &zero);
	if (!meta)
		return -1;
	w = meta + WEIR_WRITER_AT;
	at = w->offset;
	if (w->opened && at < WEIR_BLOCK_BYTES) {
		__u64 number = w->opened - 1;

		block = weir_block(ring, 1 + (number & block_mask));
		if (!block)
			return -1;
		weir_opaque(at);
		at &= ~3ull;
		if (at <= WEIR_BLOCK_BYTES - 12)
			weir_close_block(w, weir_entry_of(meta, number, block_mask), block, at);
	}
	weir_store_release(&w->closed, 1);
	return 0;
}

struct store_args {
	__u32 ring;
	__u32 index;	/* number of a word of block 0 */
	__u64 value;
};

/*
 * Stores a word of the pcapng header, or the word that counts the interfaces, with release ordering. The owner runs
 * this program to describe one more interface in a frozen ring (weir-ring, header.rs, `Append`). It cannot change any
 * other word.
 */
SEC("syscall")
int weir_store(struct store_args *args)
{
	__u32 number = args->ring, zero = 0;
	__u64 at = args->index;
	void *ring, *meta;

	ring = bpf_map_lookup_elem(&rings, &number);
	if (!ring)
		return -1;
	meta = bpf_map_lookup_elem(ring, &zero);
	if (!meta)
		return -1;
	at *= 8;
	weir_opaque(at);
	if (at >= WEIR_HEADER_AREA_BYTES && at != WEIR_INTERFACES_AT)
		return -1;
	weir_opaque(at);
	if (at > WEIR_INTERFACES_AT)
		return -1;
	weir_store_release(meta + at, args->value);	/* O, pairs with P in Ring::interfaces */
	return 0;
}
