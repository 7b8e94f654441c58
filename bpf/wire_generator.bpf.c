// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The two ends of generated traffic. `weir_gen` makes numbered frames and sends them; it is run by BPF_PROG_TEST_RUN
 * with BPF_F_TEST_XDP_LIVE_FRAMES. `weir_sink` counts and drops them at a receiving interface. User space loads one of
 * the two.
 *
 * crates/weir-lab/src/generator/template.rs describes the frames, and makes the same frames for AF_PACKET. Change both
 * together; a test compares them byte by byte.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define AT_PROTOCOLS 12		/* EtherType */
#define AT_IP_BYTES 16
#define AT_CHECK 24
#define AT_SADDR 26
#define AT_SPORT 34
#define AT_UDP_BYTES 38
#define AT_NUMBER 42
#define AT_STAMP 50
#define AT_END 58		/* within every frame: the smallest has 60 bytes */

/* Set before loading, constant afterwards. */
const volatile __u32 out_ifindex;
const volatile __u32 with_stamp;
const volatile __u64 flow_count;	/* 0: each frame has its own flow, of 2^32 flows */
const volatile __u32 check_base;	/* sum of the IP header without the source address */
const volatile __u64 header[5];		/* frame bytes 0..40 */

/*
 * Frame sizes without FCS, by frame number modulo `turn_frames`. If `turn_frames` is 0, all frames have the same size.
 */
#define TURN_MAX 4096		/* as in generator/sizes.rs */
const volatile __u32 turn_frames;
const volatile __u32 largest_bytes;	/* of the frame that the program gets, and of `header` and `check_base` */
const volatile __u16 turn_bytes[TURN_MAX];

/* The number of the next frame. Only one thread runs the program, so this needs no atomics. */
__u64 next_number;

/* murmur3's 32-bit finalizer: each step can be undone, so no two inputs share an output. */
static __always_inline __u32 mix32(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h;
}

SEC("xdp")
int weir_gen(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 number, flow;
	__u32 mixed, saddr, sum, bytes = 0;

	if (data + AT_END > data_end)
		return XDP_ABORTED;
	number = next_number++;
	if (turn_frames) {
		bytes = turn_bytes[(number % turn_frames) & (TURN_MAX - 1)];
		if (bpf_xdp_adjust_tail(ctx, (int)bytes - (int)largest_bytes))
			return XDP_ABORTED;
		data = (void *)(long)ctx->data;
		data_end = (void *)(long)ctx->data_end;
		if (data + AT_END > data_end)
			return XDP_ABORTED;
	}
	if (flow_count == 0)
		flow = number;
	else if (flow_count == 1)
		flow = 0;
	else
		flow = number % flow_count;
	mixed = mix32((__u32)flow + 1);
	/* 17 bits of 198.18.0.0/15 (RFC 2544), 15 bits of the ports from 32768 on. */
	saddr = 0xc6120000 | (mixed >> 15);
	sum = check_base + (saddr >> 16) + (saddr & 0xffff);
	if (turn_frames)
		sum -= largest_bytes - bytes;	/* the IP length, which is part of check_base */
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);

	/*
	 * The kernel reuses the pages of a call and fills them only once. Meanwhile a receiver may have changed a frame
	 * (a router the time to live, a bridge the VLAN), so all bytes up to the payload are written each time. The
	 * accesses are unaligned, which BPF allows on x86-64 and arm64.
	 */
	*(__u64 *)(data + 0) = header[0];
	*(__u64 *)(data + 8) = header[1];
	*(__u64 *)(data + 16) = header[2];
	*(__u64 *)(data + 24) = header[3];
	*(__u64 *)(data + 32) = header[4];
	*(__u16 *)(data + 40) = 0;
	if (turn_frames) {
		*(__u16 *)(data + AT_IP_BYTES) = bpf_htons(bytes - 14);
		*(__u16 *)(data + AT_UDP_BYTES) = bpf_htons(bytes - 34);
	}
	*(__u16 *)(data + AT_CHECK) = bpf_htons(~sum & 0xffff);
	*(__u32 *)(data + AT_SADDR) = bpf_htonl(saddr);
	*(__u16 *)(data + AT_SPORT) = bpf_htons(0x8000 | (mixed & 0x7fff));
	*(__u64 *)(data + AT_NUMBER) = bpf_cpu_to_be64(number);
	if (with_stamp)
		*(__u64 *)(data + AT_STAMP) = bpf_cpu_to_be64(bpf_ktime_get_tai_ns());
	return bpf_redirect(out_ifindex, 0);
}

/*
 * The layout of frames to addresses that the user chose. crates/weir-frame/src/datagram.rs makes the same frames for
 * AF_PACKET. The layout is constant when the program is loaded, so the verifier knows every offset.
 */
struct form {
	__u32 payload_at;	/* the end of the headers: 42 to 70, even */
	__u32 udp_at;
	__u32 source_at;	/* the last four bytes of the source address */
	__u32 ip_check_at;	/* 0: IPv6 */
	__u32 ip_bytes_at;
	__u32 ip_bytes_less;	/* bytes of the frame that IP's length field does not count */
	__u32 varies_source;
	__u32 varies_port;
	__u32 has_number;
	__u32 ip_sum;		/* sum of the IP header without the parts that depend on flow and number */
	__u32 udp_sum;
};
_Static_assert(sizeof(struct form) == 44, "shared with Rust");
const volatile struct form form;
const volatile __u64 headers[8];	/* the headers, as far as they fill whole words */
const volatile __u16 headers_end[3];	/* the rest of the headers */

static __always_inline __u64 words(__u64 number)
{
	return (number >> 48) + (number >> 32 & 0xffff) + (number >> 16 & 0xffff) + (number & 0xffff);
}

static __always_inline __u16 checksum(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return bpf_htons(~sum & 0xffff);
}

SEC("xdp")
int weir_gen_addressed(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 number, flow, ip_sum, udp_sum, stamp;
	__u32 end = form.payload_at, source, port, bytes = 0, i;
	__u16 check;

	if (form.has_number)
		end += with_stamp ? 16 : 8;
	if (data + end > data_end)
		return XDP_ABORTED;
	number = next_number++;
	if (turn_frames) {
		bytes = turn_bytes[(number % turn_frames) & (TURN_MAX - 1)];
		if (bpf_xdp_adjust_tail(ctx, (int)bytes - (int)largest_bytes))
			return XDP_ABORTED;
		data = (void *)(long)ctx->data;
		data_end = (void *)(long)ctx->data_end;
		if (data + end > data_end)
			return XDP_ABORTED;
	}
	flow = flow_count ? number % flow_count : number;
	if (form.varies_source && form.varies_port) {
		port = mix32((__u32)flow + 1);
		source = 0xc6120000 | (port >> 15);
	} else {
		port = (__u32)flow;
		source = 0xc6120000 | (port & 0x1ffff);
	}
	port = 0x8000 | (port & 0x7fff);
	ip_sum = form.ip_sum;
	udp_sum = form.udp_sum;

	/* All bytes up to the payload are written, as in weir_gen. */
#pragma unroll
	for (i = 0; i < 8; i++)
		if (8 * i + 8 <= form.payload_at)
			*(__u64 *)(data + 8 * i) = headers[i];
#pragma unroll
	for (i = 0; i < 3; i++)
		if ((form.payload_at & ~7) + 2 * i < form.payload_at)
			*(__u16 *)(data + (form.payload_at & ~7) + 2 * i) = headers_end[i];
	if (turn_frames) {
		*(__u16 *)(data + form.ip_bytes_at) = bpf_htons(bytes - form.ip_bytes_less);
		*(__u16 *)(data + form.udp_at + 4) = bpf_htons(bytes - form.udp_at);
		ip_sum -= largest_bytes - bytes;
		udp_sum -= 2 * (largest_bytes - bytes);	/* pseudo-header and UDP header */
	}
	if (form.varies_source) {
		*(__u32 *)(data + form.source_at) = bpf_htonl(source);
		ip_sum += (source >> 16) + (source & 0xffff);
		udp_sum += (source >> 16) + (source & 0xffff);
	}
	if (form.varies_port) {
		*(__u16 *)(data + form.udp_at) = bpf_htons(port);
		udp_sum += port;
	}
	if (form.has_number) {
		*(__u64 *)(data + form.payload_at) = bpf_cpu_to_be64(number);
		udp_sum += words(number);
		if (with_stamp) {
			stamp = bpf_ktime_get_tai_ns();
			*(__u64 *)(data + form.payload_at + 8) = bpf_cpu_to_be64(stamp);
			udp_sum += words(stamp);
		}
	}
	if (form.ip_check_at)
		*(__u16 *)(data + form.ip_check_at) = checksum(ip_sum);
	check = checksum(udp_sum);
	*(__u16 *)(data + form.udp_at + 6) = check ? check : 0xffff;
	return bpf_redirect(out_ifindex, 0);
}

/* Counts of one CPU. crates/weir-lab/src/generator/sink.rs has the same layout. */
struct sink_counts {
	__u64 frames;
	__u64 bytes;		/* without FCS */
	__u64 foreign;		/* frames that are not from the generator; no other field includes them */
	__u64 sum;		/* sum of the frame numbers, modulo 2^64 */
	__u64 lowest;
	__u64 highest;
	__u64 jumps;		/* frames whose number is not the last one plus one */
	__u64 flows;		/* 5-tuples seen for the first time, if `sink_with_flows` is set */
	__u64 flows_full;	/* new 5-tuples for which the table had no space */
	__u64 last;
};
_Static_assert(sizeof(struct sink_counts) == 80, "shared with Rust");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink_counts);
} sink_counts SEC(".maps");

struct flow_tuple {
	__u32 saddr;
	__u32 daddr;
	__u32 ports;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);	/* set before loading */
	__type(key, struct flow_tuple);
	__type(value, __u8);
} sink_flows SEC(".maps");

const volatile __u32 sink_with_flows;

static __always_inline void sink_flow(struct sink_counts *counts, void *data)
{
	struct flow_tuple tuple = {
		.saddr = *(__u32 *)(data + AT_SADDR),
		.daddr = *(__u32 *)(data + AT_SADDR + 4),
		.ports = *(__u32 *)(data + AT_SPORT),
	};
	__u8 one = 1;

	if (bpf_map_lookup_elem(&sink_flows, &tuple))
		return;
	if (bpf_map_update_elem(&sink_flows, &tuple, &one, BPF_NOEXIST) == 0)
		counts->flows++;
	else
		counts->flows_full++;
}

SEC("xdp.frags")
int weir_sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct sink_counts *counts;
	__u32 zero = 0;
	__u64 number;

	counts = bpf_map_lookup_elem(&sink_counts, &zero);
	if (!counts)
		return XDP_ABORTED;
	/* Expected: IPv4 without options, UDP, and the generator's destination port. */
	if (data + AT_END > data_end || *(__u16 *)(data + AT_PROTOCOLS) != bpf_htons(0x0800) ||
	    *(__u8 *)(data + 14) != 0x45 || *(__u8 *)(data + 23) != 17 ||
	    *(__u16 *)(data + AT_SPORT + 2) != bpf_htons(9)) {
		counts->foreign++;
		return XDP_DROP;
	}
	number = bpf_be64_to_cpu(*(__u64 *)(data + AT_NUMBER));
	if (counts->frames == 0 || number < counts->lowest)
		counts->lowest = number;
	if (number > counts->highest)
		counts->highest = number;
	if (counts->frames != 0 && number != counts->last + 1)
		counts->jumps++;
	counts->last = number;
	counts->sum += number;
	counts->frames++;
	counts->bytes += bpf_xdp_get_buff_len(ctx);
	if (sink_with_flows)
		sink_flow(counts, data);
	return XDP_DROP;
}
