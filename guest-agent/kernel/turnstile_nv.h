/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef TURNSTILE_NV_H
#define TURNSTILE_NV_H

#include <linux/completion.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "protocol.h"

#define TS_GPUS_MAX 16
/* Requests in flight of one program, by the hash of its number. */
#define TS_LOADS 64
#define TS_LOAD_MAX 32

/* Memory for one request and its answer. */
struct ts_memory {
	void *va;
	u32 bytes;
	/* Pieces of a long one, and their list in memory that the device reads. */
	struct page **pages;
	struct sg_table table;
	struct ts_extent *list;
	u32 segments;
	dma_addr_t dma;
};

struct ts_request {
	struct list_head link;
	struct ts_device *dev;
	struct ts_memory memory;
	u32 bytes;
	u32 load;
	int slot;
	bool finished;
	bool abandoned;
	int error;
	struct completion done;
	struct work_struct work;
};

/* Memory that the driver of the host has. */
struct ts_ram {
	struct kref ref;
	struct ts_device *dev;
	u32 token;
	bool user;
	unsigned long count;
	struct page **pages;
	struct sg_table table;
	u32 extents;
	/* Object of the driver. */
	struct hlist_node link;
	u32 client, handle;
	/* Of unified memory: its file and first address. */
	u32 file;
	u64 base;
};

struct ts_file {
	struct list_head link;
	struct rcu_head rcu;
	struct ts_device *dev;
	struct file *file;
	u32 node;
	u32 id;
	atomic_t ready;
	wait_queue_head_t wait;
	struct mutex lock;
	/* What is mapped next. */
	struct ts_ram *ram;
	u64 ram_offset;
	u64 ram_bytes;
	/* For its last message, which must not fail for want of memory. */
	struct ts_request *last;
};

struct ts_device {
	struct kref ref;
	struct pci_dev *pdev;
	void __iomem *regs;
	bool lost;
	/* Held while a register is accessed, and for good by the removal. */
	struct rw_semaphore registers;

	spinlock_t lock;
	void *queue;
	dma_addr_t queue_dma;
	u32 submitted, completed, events, overflows;
	struct ts_request *slots[TS_SLOTS];
	u32 loads[TS_LOADS];
	wait_queue_head_t room;
	/* Of requests whose answers never arrive. */
	struct list_head kept;

	struct ts_row *rows;
	u32 n_rows;

	struct mutex mutex;
	struct list_head files;
	struct xarray by_id;
	struct xarray ram;
	DECLARE_HASHTABLE(objects, 8);
	u64 next_id;

	struct delayed_work watch;
	struct work_struct released;
	u32 gpus;
	char version[64];
};

/* device.c */
extern struct workqueue_struct *ts_works;
extern struct ts_device *ts_device_get(void);
void ts_device_put(struct ts_device *dev);
void ts_lose(struct ts_device *dev);
bool ts_alive(struct ts_device *dev);
bool ts_in_flight(struct ts_device *dev);

/* queue.c */
int ts_queue_start(struct ts_device *dev);
void ts_queue_stop(struct ts_device *dev);
irqreturn_t ts_completions(int irq, void *data);
irqreturn_t ts_events(int irq, void *data);
struct ts_request *ts_request_new(struct ts_device *dev, enum ts_kind kind, u32 file, u32 room);
void ts_request_free(struct ts_request *request);
int ts_submit(struct ts_request *request, bool killable);
int ts_wait(struct ts_request *request);
int ts_ask(struct ts_request *request);
void ts_released(struct work_struct *work);

static inline struct ts_header *ts_header(struct ts_request *request)
{
	return request->memory.va;
}

/* The bytes of an answer's buffer; NULL if it has no such buffer. */
void *ts_buffer(struct ts_request *request, u32 index, u32 *bytes);

/* memory.c */
int ts_memory_new(struct ts_device *dev, struct ts_memory *memory, u32 bytes);
void ts_memory_free(struct ts_device *dev, struct ts_memory *memory);
void ts_memory_sync(struct ts_device *dev, struct ts_memory *memory, bool to_device);

/* table.c */
int ts_table_load(struct ts_device *dev);
const struct ts_row *ts_row(struct ts_device *dev, u8 kind, u32 number, u32 bytes);

/* ram.c */
struct ts_ram *ts_ram_pages(struct ts_device *dev, u64 bytes);
struct ts_ram *ts_ram_pin(struct ts_device *dev, u64 address, u64 last);
void ts_ram_put(struct ts_ram *ram);
void ts_ram_release(struct ts_device *dev, u32 token);
void ts_ram_release_all(struct ts_device *dev);
void ts_ram_name(struct ts_ram *ram, u32 client, u32 handle);
void ts_ram_unname(struct ts_device *dev, u32 client, u32 handle);
void ts_ram_place(struct ts_ram *ram, u32 file, u64 base);
struct ts_ram *ts_ram_of_object(struct ts_device *dev, u32 client, u32 handle);
struct ts_ram *ts_ram_at(struct ts_device *dev, u32 file, u64 base);
void ts_ram_extents(struct ts_ram *ram, void *out);
int ts_ram_insert(struct ts_ram *ram, struct vm_area_struct *vma, u64 offset);

/* files.c */
extern const struct file_operations ts_fops;
void ts_file_close(struct ts_device *dev, u32 id);

/* call.c, map.c */
long ts_ioctl(struct file *file, unsigned int request, unsigned long argument);
int ts_mmap(struct file *file, struct vm_area_struct *vma);

static inline void ts_vm_flags(struct vm_area_struct *vma, vm_flags_t flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static inline u32 ts_word(const void *bytes, u32 at)
{
	u32 value;

	memcpy(&value, (const char *)bytes + at, sizeof(value));
	return value;
}

static inline u64 ts_long(const void *bytes, u32 at)
{
	u64 value;

	memcpy(&value, (const char *)bytes + at, sizeof(value));
	return value;
}

static inline void ts_set_word(void *bytes, u32 at, u32 value)
{
	memcpy((char *)bytes + at, &value, sizeof(value));
}

static inline void ts_set_long(void *bytes, u32 at, u64 value)
{
	memcpy((char *)bytes + at, &value, sizeof(value));
}

#endif
