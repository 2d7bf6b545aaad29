/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the module and the device process exchange. The same numbers are in the Rust crates
 * turnstile-abi (cuda) and turnstile-nvidia-guest (proto, abi); a test there compares them.
 * All words have the byte order of the machine.
 */
#ifndef TS_PROTOCOL_H
#define TS_PROTOCOL_H

#include <linux/types.h>

#define TS_VENDOR_ID 0x7a51
#define TS_DEVICE_ID 0x0003
#define TS_VECTORS 2
#define TS_VECTOR_COMPLETIONS 0
#define TS_VECTOR_EVENTS 1
/* Doorbell windows: without and with the mapping through BAR 1 of the GPU. */
#define TS_BAR_WINDOW 2
#define TS_BAR_WINDOW_BAR1 4
#define TS_WINDOW_BYTES 0x10000

/* Registers of BAR 0. */
#define TS_REG_IDENTITY 0x00
#define TS_REG_VERSION 0x04
#define TS_REG_STATUS 0x08
#define TS_REG_QUEUE_LOW 0x10
#define TS_REG_QUEUE_HIGH 0x14
#define TS_REG_CONTROL 0x18
#define TS_REG_KICK 0x20
#define TS_IDENTITY_VALUE 0x55435354
#define TS_VERSION_VALUE 1
#define TS_STATUS_RUNNING 1
#define TS_STATUS_FAILED 2

/* The queue: one block of memory of the guest. Indices count up without end. */
#define TS_QUEUE_BYTES 8192
#define TS_SLOTS 128
#define TS_EVENTS 256
#define TS_QUEUE_SUBMITTED 0
#define TS_QUEUE_COMPLETED 64
#define TS_QUEUE_EVENTS 68
#define TS_QUEUE_OVERFLOWS 72
#define TS_QUEUE_EVENTS_SEEN 128
#define TS_QUEUE_SUBMIT_RING 256
#define TS_QUEUE_COMPLETE_RING 768
#define TS_QUEUE_EVENT_RING 1280
#define TS_QUEUE_SLOT_TABLE 4096

/* A request's place: memory of `room` bytes at `address`, or in `segments` pieces listed there. */
struct ts_slot {
	__u64 address;
	__u32 bytes;
	__u32 segments;
	__u32 room;
	__u32 answer_bytes;
	__u64 reserved;
};

/* A piece of guest memory, by its DMA address. */
struct ts_extent {
	__u64 address;
	__u64 bytes;
};

/* A message: header, lengths of the buffers, extents, bytes of the buffers. */
#define TS_PROTOCOL 1
#define TS_MAGIC 0x31475354
#define TS_BUFFERS_MAX 16
#define TS_BYTES_MAX (4 << 20)
#define TS_EXTENTS_MAX 65536

enum ts_kind {
	TS_HELLO = 1,
	TS_OPEN = 2,
	TS_CLOSE = 3,
	TS_CALL = 4,
	TS_MAP = 5,
	TS_MANAGED = 6,
	TS_STAT = 7,
	TS_TABLE = 8,
	TS_RELEASED = 9,
};

struct ts_header {
	__u32 magic;
	__u32 kind;
	__u32 file;
	__u32 request;
	__u64 id;
	/* Of a request with extents: the number of its memory. */
	__s32 result;
	__s32 error;
	__u64 a;
	__u64 b;
	__u32 buffers;
	__u32 extents;
	__u32 body_bytes;
	__u32 reserved;
};

#define TS_NODE_CONTROL 0x100
#define TS_NODE_UVM 0x101

/* A row of the table. Offsets are in bytes; TS_NONE is none. */
#define TS_NONE 0xffff
#define TS_ANY 0xffffffff

enum ts_row_kind { TS_ROW_ESCAPE, TS_ROW_UVM, TS_ROW_CLASS, TS_ROW_CONTROL };

enum ts_role {
	TS_ROLE_PLAIN,
	TS_ROLE_ALLOC,		/* makes an object; its class has a row */
	TS_ROLE_CONTROL,	/* its number has a row */
	TS_ROLE_REGISTER,	/* registers memory of the program */
	TS_ROLE_MAP,
	TS_ROLE_UNMAP,
	TS_ROLE_POOL,		/* a range of unified memory, which is mapped next */
	TS_ROLE_NOTHING,	/* has no argument */
	TS_ROLE_FREE,
};

struct ts_row {
	__u8 kind;
	__u8 role;
	__u8 n_buffers;
	__u8 n_files;
	__u32 number;
	/* Of the argument or the parameters; TS_ANY: up to a page. */
	__u32 bytes;
	__u32 reserved;
	__u16 status_at;
	/* Address and length of the parameters, and the word that selects their row. */
	__u16 params_at;
	__u16 size_at;
	__u16 select_at;
	__u16 rights_at;
	__u16 rights_bytes;
	/* Objects of this class are memory of the guest; this is its length. */
	__u16 ram_bytes_at;
	__u16 reserved_too;
	struct {
		__u16 at;
		__u16 count_at;
		__u16 element_bytes;
		__u16 squared;
	} buffer[3];
	struct {
		__u16 at;
		__u16 width;
	} file[2];
};

#define TS_EMBEDDED_MAX (1 << 20)
#define TS_UNKNOWN_MAX 4096

#endif
