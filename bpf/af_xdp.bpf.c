// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The program of the engine af_xdp. It redirects the frames of a queue to the queue's socket. In front of each frame it
 * puts a few words that only the hook knows: the timestamp, and the VLAN tag that the driver removed.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "control.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define WEIR_EOPNOTSUPP 95	/* asm-generic/errno.h */

/* Set before loading. */
const volatile __u32 with_words;	/* put words in front of frames; without them the copier stamps frames */
const volatile __u32 takes_parts;	/* sockets take frames in several parts (Linux 6.6) */
const volatile __u32 with_filters;	/* whether weir_judge_xsk() decides if any feed wants a frame */

/* The sockets, by RX queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);		/* set before loading: queues of the interface */
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* [0] is shared by all CPUs, [1 + cpu] belongs to that CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);		/* set before loading: 2 + the highest possible CPU */
	__type(key, __u32);
	__type(value, struct weir_control);
} control SEC(".maps");

/* The words in front of a frame. In Rust: crates/weir-capture/src/engines/af_xdp/words.rs. */
struct weir_words {
	__u64 ts_ns;	/* nanoseconds since the Unix epoch */
	__u32 tag;	/* protocol and TCI as on the wire */
	__u32 kind;	/* WEIR_WORDS, WEIR_WORDS_TAG */
};

#define WEIR_WORDS 0x57656970u
#define WEIR_WORDS_TAG 1u

/* The VLAN tag that the driver removed from the frame (Linux 6.8). Needs a program bound to the device. */
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *vlan_proto,
					__u16 *vlan_tci) __ksym __weak;

/*
 * Returns which feeds want the frame, a bit each. The owner replaces this body by the filters, as in bpf.bpf.c. `tag`
 * is the VLAN tag that the driver removed from the frame, in network byte order; 0: none.
 */
__noinline __weak int weir_judge_xsk(struct xdp_md *xdp, __u32 tag)
{
	return -1;
}

static __always_inline int steer(struct xdp_md *ctx, const struct weir_words *words,
				 struct weir_control *all)
{
	__u32 queue = ctx->rx_queue_index;
	__u32 line = bpf_get_smp_processor_id() + 1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int before_us = (long)data - (long)ctx->data_meta;
	struct weir_control *mine;
	struct weir_words *before;

	/*
	 * Frames of other queues pass. So do frames that come when the owner is about to detach: veth clears its RX
	 * queues while the program still runs, and the redirect then fails uncounted.
	 */
	if (*(volatile __u64 *)&all->closed || !bpf_map_lookup_elem(&sockets, &queue))
		return XDP_PASS;
	mine = bpf_map_lookup_elem(&control, &line);
	if (!mine)
		return XDP_PASS;
	/* Needs no atomics: XDP runs with softirqs off, so no other run on this CPU interrupts this one. */
	mine->offered++;
	if (!takes_parts && bpf_xdp_get_buff_len(ctx) != end - data) {
		/* Older kernels drop a frame in several parts after the redirect, and do not count it. */
		mine->in_parts++;
		return XDP_PASS;
	}
	if (with_filters && !weir_judge_xsk(ctx, words->kind & WEIR_WORDS_TAG ? words->tag : 0)) {
		mine->unwanted++;
		return XDP_DROP;	/* the stack gets no frame of this queue, wanted or not */
	}
	/* Remove metadata of other programs, because the copier expects the words directly before the frame. */
	if (with_words && before_us)
		bpf_xdp_adjust_meta(ctx, before_us);
	if (with_words && bpf_xdp_adjust_meta(ctx, -(int)sizeof(*words)) == 0) {
		before = (void *)(long)ctx->data_meta;
		if ((void *)(before + 1) > (void *)(long)ctx->data)
			return XDP_ABORTED;
		*before = *words;
		before->ts_ns = bpf_ktime_get_tai_ns() - all->tai_offset_ns;
	}
	return bpf_redirect_map(&sockets, queue, XDP_PASS);
}

SEC("xdp.frags")
int weir_xsk(struct xdp_md *ctx)
{
	struct weir_words words = { .kind = WEIR_WORDS };
	__u32 zero = 0;
	struct weir_control *all = bpf_map_lookup_elem(&control, &zero);

	if (!all)
		return XDP_PASS;
	return steer(ctx, &words, all);
}

SEC("xdp.frags")
int weir_xsk_tags(struct xdp_md *ctx)
{
	struct weir_words words = { .kind = WEIR_WORDS };
	__u32 zero = 0;
	struct weir_control *all = bpf_map_lookup_elem(&control, &zero);
	__be16 proto = 0;
	__u16 tci = 0;
	int err;

	if (!all)
		return XDP_PASS;
	err = bpf_xdp_metadata_rx_vlan_tag(ctx, &proto, &tci);
	if (err == -WEIR_EOPNOTSUPP)
		all->tags_unknown = 1;	/* the owner tells the user */
	if (err == 0) {
		words.kind |= WEIR_WORDS_TAG;
		words.tag = proto | (__u32)bpf_htons(tci) << 16;
	}
	return steer(ctx, &words, all);
}
