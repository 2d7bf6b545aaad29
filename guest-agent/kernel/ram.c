// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory of the guest that the driver of the host has: pages of the kernel where the driver would
 * have given its own, and pages of programs. Each has a number. It is given back when the host
 * reports that number, and not before: the GPU may write to it until then.
 */
#include <linux/scatterlist.h>

#include "turnstile_nv.h"

#define LARGE_ORDER 9
#define BYTES_MAX (1ULL << 40)
#define PAGES_GFP (GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN)

static u32 object_key(u32 client, u32 handle)
{
	return client * 31 + handle;
}

static struct ts_ram *ram_new(struct ts_device *dev, u64 bytes)
{
	struct ts_ram *ram;

	if (!bytes || bytes > BYTES_MAX)
		return NULL;
	ram = kzalloc(sizeof(*ram), GFP_KERNEL_ACCOUNT);
	if (!ram)
		return NULL;
	kref_init(&ram->ref);
	INIT_HLIST_NODE(&ram->link);
	ram->dev = dev;
	ram->count = PAGE_ALIGN(bytes) >> PAGE_SHIFT;
	ram->pages = kvcalloc(ram->count, sizeof(*ram->pages), GFP_KERNEL_ACCOUNT);
	if (!ram->pages) {
		kfree(ram);
		return NULL;
	}
	kref_get(&dev->ref);
	return ram;
}

static void ram_destroy(struct kref *ref)
{
	struct ts_ram *ram = container_of(ref, struct ts_ram, ref);
	struct ts_device *dev = ram->dev;
	unsigned long at;

	if (ram->user) {
		unpin_user_pages_dirty_lock(ram->pages, ram->count, true);
	} else {
		for (at = 0; at < ram->count && ram->pages[at]; at++)
			put_page(ram->pages[at]);
	}
	kvfree(ram->pages);
	kfree(ram);
	ts_device_put(dev);
}

void ts_ram_put(struct ts_ram *ram)
{
	kref_put(&ram->ref, ram_destroy);
}

/* Makes the pages reachable for the device, and numbers them. */
static int ram_map(struct ts_ram *ram)
{
	struct ts_device *dev = ram->dev;
	int error;

	error = sg_alloc_table_from_pages(&ram->table, ram->pages, ram->count, 0,
					  (unsigned long)ram->count << PAGE_SHIFT,
					  GFP_KERNEL_ACCOUNT);
	if (error)
		return error;
	error = dma_map_sgtable(&dev->pdev->dev, &ram->table, DMA_BIDIRECTIONAL, 0);
	if (error)
		goto no_map;
	ram->extents = ram->table.nents;
	error = -ENOMEM;
	if (ram->extents > TS_EXTENTS_MAX)
		goto no_number;
	error = xa_alloc(&dev->ram, &ram->token, ram, XA_LIMIT(1, INT_MAX), GFP_KERNEL_ACCOUNT);
	if (!error)
		return 0;
no_number:
	dma_unmap_sgtable(&dev->pdev->dev, &ram->table, DMA_BIDIRECTIONAL, 0);
no_map:
	sg_free_table(&ram->table);
	return error;
}

/* Zeroed pages of the kernel, in large pieces where there are any. */
struct ts_ram *ts_ram_pages(struct ts_device *dev, u64 bytes)
{
	struct ts_ram *ram = ram_new(dev, bytes);
	unsigned long at = 0, in_piece;
	unsigned int order = LARGE_ORDER;
	struct page *page;

	if (!ram)
		return ERR_PTR(-ENOMEM);
	while (at < ram->count) {
		while (order && (1UL << order) > ram->count - at)
			order--;
		page = alloc_pages(PAGES_GFP | (order ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL),
				   order);
		if (!page && order) {
			order--;
			continue;
		}
		if (!page || fatal_signal_pending(current)) {
			if (page)
				__free_pages(page, order);
			ts_ram_put(ram);
			return ERR_PTR(-ENOMEM);
		}
		/* Each page has a count of its own, as mappings need. */
		if (order)
			split_page(page, order);
		for (in_piece = 0; in_piece < 1UL << order; in_piece++)
			ram->pages[at++] = page + in_piece;
	}
	if (ram_map(ram)) {
		ts_ram_put(ram);
		return ERR_PTR(-ENOMEM);
	}
	return ram;
}

/* Pages of the program from `address` to `address + last`. */
struct ts_ram *ts_ram_pin(struct ts_device *dev, u64 address, u64 last)
{
	u64 from = address & PAGE_MASK, bytes;
	struct ts_ram *ram;
	long got;
	int error;

	if (last >= BYTES_MAX || address > TASK_SIZE_MAX - last)
		return ERR_PTR(-EFAULT);
	bytes = PAGE_ALIGN(address + last + 1) - from;
	ram = ram_new(dev, bytes);
	if (!ram)
		return ERR_PTR(-ENOMEM);
	got = pin_user_pages_fast(from, ram->count, FOLL_WRITE | FOLL_LONGTERM, ram->pages);
	if (got != ram->count) {
		if (got > 0)
			unpin_user_pages(ram->pages, got);
		ram->count = 0;
		ts_ram_put(ram);
		return ERR_PTR(-EFAULT);
	}
	ram->user = true;
	error = ram_map(ram);
	if (error) {
		ts_ram_put(ram);
		return ERR_PTR(error);
	}
	return ram;
}

/* The host does not use it any more, or never did. */
void ts_ram_release(struct ts_device *dev, u32 token)
{
	struct ts_ram *ram;

	mutex_lock(&dev->mutex);
	ram = xa_erase(&dev->ram, token);
	if (ram && !hlist_unhashed(&ram->link))
		hash_del(&ram->link);
	mutex_unlock(&dev->mutex);
	if (!ram)
		return;
	dma_unmap_sgtable(&dev->pdev->dev, &ram->table, DMA_BIDIRECTIONAL, 0);
	sg_free_table(&ram->table);
	ts_ram_put(ram);
}

void ts_ram_release_all(struct ts_device *dev)
{
	struct ts_ram *ram;
	unsigned long token;

	xa_for_each(&dev->ram, token, ram)
		ts_ram_release(dev, token);
}

/* The object is freed. Its memory may still be in use, and be released later. */
void ts_ram_unname(struct ts_device *dev, u32 client, u32 handle)
{
	struct ts_ram *ram;
	struct hlist_node *next;

	mutex_lock(&dev->mutex);
	hash_for_each_possible_safe(dev->objects, ram, next, link, object_key(client, handle))
		if (ram->client == client && ram->handle == handle)
			hash_del(&ram->link);
	mutex_unlock(&dev->mutex);
}

/* It is the memory of an object from now on. A handle that was used before has a new meaning. */
void ts_ram_name(struct ts_ram *ram, u32 client, u32 handle)
{
	struct ts_device *dev = ram->dev;
	u32 key = object_key(client, handle);

	ts_ram_unname(dev, client, handle);
	mutex_lock(&dev->mutex);
	/* The host may have released it already. */
	if (xa_load(&dev->ram, ram->token) == ram) {
		ram->client = client;
		ram->handle = handle;
		hash_add(dev->objects, &ram->link, key);
	}
	mutex_unlock(&dev->mutex);
}

void ts_ram_place(struct ts_ram *ram, u32 file, u64 base)
{
	mutex_lock(&ram->dev->mutex);
	ram->file = file;
	ram->base = base;
	mutex_unlock(&ram->dev->mutex);
}

/* With a reference. */
struct ts_ram *ts_ram_of_object(struct ts_device *dev, u32 client, u32 handle)
{
	struct ts_ram *ram, *found = NULL;

	mutex_lock(&dev->mutex);
	hash_for_each_possible(dev->objects, ram, link, object_key(client, handle))
		if (ram->client == client && ram->handle == handle)
			found = ram;
	if (found)
		kref_get(&found->ref);
	mutex_unlock(&dev->mutex);
	return found;
}

/* With a reference. */
struct ts_ram *ts_ram_at(struct ts_device *dev, u32 file, u64 base)
{
	struct ts_ram *ram, *found = NULL;
	unsigned long token;

	mutex_lock(&dev->mutex);
	xa_for_each(&dev->ram, token, ram) {
		if (ram->file == file && ram->base == base && base) {
			kref_get(&ram->ref);
			found = ram;
			break;
		}
	}
	mutex_unlock(&dev->mutex);
	return found;
}

void ts_ram_extents(struct ts_ram *ram, void *out)
{
	struct scatterlist *piece;
	u32 at;

	for_each_sgtable_dma_sg(&ram->table, piece, at) {
		ts_set_long(out, 16 * at, sg_dma_address(piece));
		ts_set_long(out, 16 * at + 8, sg_dma_len(piece));
	}
}

int ts_ram_insert(struct ts_ram *ram, struct vm_area_struct *vma, u64 offset)
{
	unsigned long count = vma_pages(vma), first = offset >> PAGE_SHIFT;

	if (ram->user || first > ram->count || count > ram->count - first)
		return -EINVAL;
	ts_vm_flags(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return vm_insert_pages(vma, vma->vm_start, ram->pages + first, &count);
}
