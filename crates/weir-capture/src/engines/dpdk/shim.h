/* The functions by which Rust calls DPDK, whose receive path is inline C. ffi.rs has the same structs. */
#ifndef WEIR_DPDK_SHIM_H
#define WEIR_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Bits of weir_frame.flags. */
#define WEIR_STAMPED 1u /* `stamp` is set: the driver's time stamp */
#define WEIR_VLAN 2u    /* `tci` is set: a VLAN tag that was removed from the frame */
#define WEIR_QINQ 4u    /* `tci_outer` is set: a removed tag that was in front of `tci` */
#define WEIR_PARTS 8u   /* `data` is only the first segment; see weir_gather */

struct weir_frame {
	const uint8_t *data; /* first segment; valid until weir_free */
	uint64_t stamp;
	uint32_t caplen;   /* bytes at `data` */
	uint32_t wire_len; /* bytes of all segments */
	uint32_t flags;
	uint16_t tci;
	uint16_t tci_outer;
};
_Static_assert(sizeof(struct weir_frame) == 32, "shared with Rust");

struct weir_facts {
	char driver[64];
	char device[64];
	uint32_t virtual_device; /* 1: a vdev, without hardware */
	uint32_t max_rx_queues;
	uint32_t min_rx_bufsize;
	uint32_t can_stamp;
	uint32_t can_scatter;
};
_Static_assert(sizeof(struct weir_facts) == 148, "shared with Rust");

struct weir_port_setup {
	uint32_t queues;
	uint32_t descriptors; /* of each queue; the driver's value is written back */
	uint32_t mbufs;
	uint32_t room_bytes; /* space for frame bytes in an mbuf */
	uint32_t stamps;     /* 1: the driver sets time stamps */
	uint32_t scatter;    /* 1: frames may take several mbufs */
};
_Static_assert(sizeof(struct weir_port_setup) == 24, "shared with Rust");

struct weir_port {
	uint64_t stamp_flag; /* bit of ol_flags; 0: drivers set no time stamps */
	int32_t stamp_offset;
	uint16_t id;
};
_Static_assert(sizeof(struct weir_port) == 16, "shared with Rust");

struct weir_counts {
	uint64_t packets;
	uint64_t missed;
	uint64_t errors;
	uint64_t no_mbuf;
};

/* Functions that return int return 0 or more, or a negative errno. weir_said returns DPDK's messages. */
int weir_init(int argc, char **argv);
size_t weir_said(char *text, size_t room);

int weir_probe(const char *devargs, uint16_t *id);
int weir_facts(uint16_t id, struct weir_facts *facts);
int weir_setup(uint16_t id, struct weir_port_setup *setup, void **pool);
int weir_start(uint16_t id, struct weir_port *port);
int weir_promiscuous(uint16_t id, int on);
int weir_mtu(uint16_t id, uint16_t mtu);
int weir_counts(uint16_t id, struct weir_counts *counts);
int weir_is_removed(uint16_t id);
int weir_link_down(uint16_t id);
int weir_close(uint16_t id, void *pool);

void weir_enter(void);
void weir_leave(void);
uint16_t weir_burst(const struct weir_port *port, uint16_t queue, void **mbufs, struct weir_frame *frames,
		    uint16_t room);
uint32_t weir_gather(const void *mbuf, uint8_t *bytes, uint32_t room);
void weir_free(void **mbufs, uint16_t count);

/* For tests: puts a frame into the ring of this name, in segments of `part` bytes. */
struct weir_made {
	const uint8_t *data;
	uint64_t stamp;
	uint32_t len;
	uint32_t part;
	uint32_t flags;
	uint16_t tci;
	uint16_t tci_outer;
};
int weir_make(const char *ring, void *pool, const struct weir_made *made);

#endif
