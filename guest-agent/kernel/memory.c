// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Memory of requests: one piece, or pages that the device reads by a list of them. */
#include <linux/vmalloc.h>

#include "turnstile_nv.h"

/* Up to here, a request has one piece. */
#define SMALL_BYTES 8192

static int memory_large(struct ts_device *dev, struct ts_memory *memory)
{
	unsigned int count = memory->bytes >> PAGE_SHIFT, at;
	struct device *device = &dev->pdev->dev;
	struct scatterlist *piece;
	int error = -ENOMEM;

	memory->va = __vmalloc(memory->bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	memory->pages = kvmalloc_array(count, sizeof(*memory->pages), GFP_KERNEL_ACCOUNT);
	if (!memory->va || !memory->pages)
		goto no_pages;
	for (at = 0; at < count; at++)
		memory->pages[at] = vmalloc_to_page((char *)memory->va + ((size_t)at << PAGE_SHIFT));
	error = sg_alloc_table_from_pages(&memory->table, memory->pages, count, 0, memory->bytes,
					  GFP_KERNEL);
	if (error)
		goto no_pages;
	error = dma_map_sgtable(device, &memory->table, DMA_BIDIRECTIONAL, 0);
	if (error)
		goto no_map;
	memory->segments = memory->table.nents;
	memory->list = dma_alloc_coherent(device, memory->segments * sizeof(*memory->list),
					  &memory->dma, GFP_KERNEL);
	if (!memory->list) {
		error = -ENOMEM;
		goto no_list;
	}
	for_each_sgtable_dma_sg(&memory->table, piece, at) {
		memory->list[at].address = sg_dma_address(piece);
		memory->list[at].bytes = sg_dma_len(piece);
	}
	return 0;
no_list:
	dma_unmap_sgtable(device, &memory->table, DMA_BIDIRECTIONAL, 0);
no_map:
	sg_free_table(&memory->table);
no_pages:
	kvfree(memory->pages);
	vfree(memory->va);
	return error;
}

int ts_memory_new(struct ts_device *dev, struct ts_memory *memory, u32 bytes)
{
	memory->bytes = PAGE_ALIGN(bytes);
	if (memory->bytes > SMALL_BYTES)
		return memory_large(dev, memory);
	memory->va = kzalloc(memory->bytes, GFP_KERNEL_ACCOUNT);
	if (!memory->va)
		return -ENOMEM;
	memory->dma = dma_map_single(&dev->pdev->dev, memory->va, memory->bytes, DMA_BIDIRECTIONAL);
	if (dma_mapping_error(&dev->pdev->dev, memory->dma)) {
		kfree(memory->va);
		return -ENOMEM;
	}
	return 0;
}

void ts_memory_free(struct ts_device *dev, struct ts_memory *memory)
{
	struct device *device = &dev->pdev->dev;

	if (!memory->segments) {
		dma_unmap_single(device, memory->dma, memory->bytes, DMA_BIDIRECTIONAL);
		kfree(memory->va);
		return;
	}
	dma_free_coherent(device, memory->segments * sizeof(*memory->list), memory->list,
			  memory->dma);
	dma_unmap_sgtable(device, &memory->table, DMA_BIDIRECTIONAL, 0);
	sg_free_table(&memory->table);
	kvfree(memory->pages);
	vfree(memory->va);
}

void ts_memory_sync(struct ts_device *dev, struct ts_memory *memory, bool to_device)
{
	struct device *device = &dev->pdev->dev;

	if (!memory->segments && to_device)
		dma_sync_single_for_device(device, memory->dma, memory->bytes, DMA_BIDIRECTIONAL);
	else if (!memory->segments)
		dma_sync_single_for_cpu(device, memory->dma, memory->bytes, DMA_BIDIRECTIONAL);
	else if (to_device)
		dma_sync_sgtable_for_device(device, &memory->table, DMA_BIDIRECTIONAL);
	else
		dma_sync_sgtable_for_cpu(device, &memory->table, DMA_BIDIRECTIONAL);
}
