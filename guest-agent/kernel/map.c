// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Mappings: memory of the guest, the doorbell windows, and the driver's shared page as a copy. */
#include "turnstile_nv.h"

static int map_window(struct ts_device *dev, struct vm_area_struct *vma, int bar)
{
	u64 bytes = vma->vm_end - vma->vm_start;

	if (vma->vm_pgoff || bytes != TS_WINDOW_BYTES || pci_resource_len(dev->pdev, bar) < bytes)
		return -EINVAL;
	ts_vm_flags(vma, VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	return io_remap_pfn_range(vma, vma->vm_start,
				  pci_resource_start(dev->pdev, bar) >> PAGE_SHIFT, bytes,
				  vma->vm_page_prot);
}

static int map_copy(struct vm_area_struct *vma, const void *bytes, u32 length)
{
	struct page *page;
	int error;

	if (vma->vm_flags & VM_WRITE || vma_pages(vma) != 1 || length > PAGE_SIZE)
		return -EINVAL;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return -ENOMEM;
	memcpy(page_address(page), bytes, length);
	error = vm_insert_page(vma, vma->vm_start, page);
	put_page(page);
	return error;
}

/* What the host says about the file's mapping. */
static int map_as_host(struct ts_file *own, struct vm_area_struct *vma)
{
	struct ts_request *request = ts_request_new(own->dev, TS_MAP, own->id, 2 * PAGE_SIZE);
	u64 window;
	void *bytes;
	u32 length;
	int error;

	if (!request)
		return -ENOMEM;
	ts_header(request)->a = vma->vm_end - vma->vm_start;
	error = ts_ask(request);
	if (error)
		return error;
	window = ts_header(request)->a;
	bytes = ts_buffer(request, 0, &length);
	if (window == 1 || window == 2)
		error = map_window(own->dev, vma,
				   window == 1 ? TS_BAR_WINDOW : TS_BAR_WINDOW_BAR1);
	else
		error = bytes ? map_copy(vma, bytes, length) : -ENXIO;
	ts_request_free(request);
	return error;
}

/* Managed memory: pages of the guest, which the GPU reads over the bus. */
static int map_managed(struct ts_file *own, struct vm_area_struct *vma)
{
	struct ts_device *dev = own->dev;
	u64 base = vma->vm_start, bytes = vma->vm_end - base;
	struct ts_ram *ram = ts_ram_pages(dev, bytes);
	struct ts_request *request;
	u64 length;
	u32 token;
	int error;

	if (IS_ERR(ram))
		return PTR_ERR(ram);
	token = ram->token;
	length = sizeof(struct ts_header) + 16ULL * ram->extents;
	request = ts_request_new(dev, TS_MANAGED, own->id, length);
	if (!request) {
		ts_ram_release(dev, token);
		return -ENOMEM;
	}
	kref_get(&ram->ref);
	ts_header(request)->a = base;
	ts_header(request)->b = bytes;
	ts_header(request)->result = token;
	ts_header(request)->extents = ram->extents;
	ts_ram_extents(ram, ts_header(request) + 1);
	request->bytes = length;
	error = ts_submit(request, true);
	if (error) {
		/* The host has never seen it. */
		ts_request_free(request);
		ts_ram_release(dev, token);
		goto out;
	}
	error = ts_wait(request);
	if (error == -EINTR)
		goto out;
	if (!error && (ts_header(request)->result < 0 || ts_header(request)->a))
		error = -ENOMEM;
	ts_request_free(request);
	if (!error)
		error = ts_ram_insert(ram, vma, 0);
out:
	ts_ram_put(ram);
	return error;
}

static int map_unified(struct ts_file *own, struct vm_area_struct *vma)
{
	u64 base = vma->vm_start;
	struct ts_ram *pool;
	int error;

	if ((u64)vma->vm_pgoff << PAGE_SHIFT != base || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	pool = ts_ram_at(own->dev, own->id, base);
	if (!pool)
		return map_managed(own, vma);
	error = pool->count == vma_pages(vma) ? ts_ram_insert(pool, vma, 0) : -EINVAL;
	ts_ram_put(pool);
	return error;
}

int ts_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ts_file *own = file->private_data;
	int error = 0;

	if (READ_ONCE(own->dev->lost))
		return -EIO;
	if (own->node == TS_NODE_UVM)
		return map_unified(own, vma);
	mutex_lock(&own->lock);
	if (own->ram && (vma->vm_pgoff || vma->vm_end - vma->vm_start > own->ram_bytes))
		error = -EINVAL;
	else if (own->ram)
		error = ts_ram_insert(own->ram, vma, own->ram_offset);
	else
		error = map_as_host(own, vma);
	mutex_unlock(&own->lock);
	return error;
}
