// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Open files. Each is a file of the device process, which it closes with the last descriptor: dup,
 * fork, exec and passing of descriptors need nothing of their own.
 */
#include "turnstile_nv.h"

/* Room of a close's answer: 250 numbers of memory that it releases. */
#define CLOSE_ROOM 4096

static u32 node_of(struct inode *inode)
{
	if (imajor(inode) != 195)
		return iminor(inode) == 0 ? TS_NODE_UVM : U32_MAX;
	return iminor(inode) == 255 ? TS_NODE_CONTROL : iminor(inode);
}

static int ts_open(struct inode *inode, struct file *file)
{
	struct ts_device *dev = ts_device_get();
	u32 node = node_of(inode);
	struct ts_request *request;
	struct ts_file *own;
	int error = -ENOMEM;

	if (!dev)
		return -ENODEV;
	own = kzalloc(sizeof(*own), GFP_KERNEL_ACCOUNT);
	if (!own)
		goto no_file;
	own->dev = dev;
	own->file = file;
	own->node = node;
	mutex_init(&own->lock);
	init_waitqueue_head(&own->wait);
	own->last = ts_request_new(dev, TS_CLOSE, 0, CLOSE_ROOM);
	if (!own->last)
		goto no_last;
	request = ts_request_new(dev, TS_OPEN, 0, PAGE_SIZE);
	if (!request)
		goto no_request;
	ts_header(request)->a = node;
	error = ts_ask(request);
	if (error)
		goto no_request;
	own->id = ts_header(request)->file;
	ts_request_free(request);
	error = xa_err(xa_store_irq(&dev->by_id, own->id, own, GFP_KERNEL_ACCOUNT));
	if (error) {
		ts_file_close(dev, own->id);
		goto no_request;
	}
	ts_header(own->last)->file = own->id;
	mutex_lock(&dev->mutex);
	list_add(&own->link, &dev->files);
	mutex_unlock(&dev->mutex);
	file->private_data = own;
	return nonseekable_open(inode, file);
no_request:
	ts_request_free(own->last);
no_last:
	kfree(own);
no_file:
	ts_device_put(dev);
	return error;
}

static void close_without_waiting(struct ts_request *request)
{
	request->abandoned = true;
	if (ts_submit(request, false))
		ts_request_free(request);
}

/* Closes a file of the device process that no descriptor stands for. */
void ts_file_close(struct ts_device *dev, u32 id)
{
	struct ts_request *request = ts_request_new(dev, TS_CLOSE, id, CLOSE_ROOM);

	if (request)
		close_without_waiting(request);
}

static int ts_release(struct inode *inode, struct file *file)
{
	struct ts_file *own = file->private_data;
	struct ts_device *dev = own->dev;
	struct ts_request *last = own->last;

	xa_erase_irq(&dev->by_id, own->id);
	mutex_lock(&dev->mutex);
	list_del(&own->link);
	if (list_empty(&dev->files) && READ_ONCE(dev->lost))
		mod_delayed_work(ts_works, &dev->watch, 2 * HZ);
	mutex_unlock(&dev->mutex);
	if (own->ram)
		ts_ram_put(own->ram);
	/* A program that is killed waits for nothing. */
	if (fatal_signal_pending(current) || (current->flags & PF_EXITING))
		close_without_waiting(last);
	else if (ts_submit(last, false))
		ts_request_free(last);
	else if (ts_wait(last) != -EINTR)
		ts_request_free(last);
	kfree_rcu(own, rcu);
	ts_device_put(dev);
	return 0;
}

/* As the driver does: looking at an event takes it. */
static __poll_t ts_poll(struct file *file, poll_table *table)
{
	struct ts_file *own = file->private_data;

	poll_wait(file, &own->wait, table);
	if (READ_ONCE(own->dev->lost))
		return EPOLLHUP | EPOLLERR;
	return atomic_xchg(&own->ready, 0) ? EPOLLIN | EPOLLPRI | EPOLLRDNORM : 0;
}

const struct file_operations ts_fops = {
	.owner = THIS_MODULE,
	.open = ts_open,
	.release = ts_release,
	.unlocked_ioctl = ts_ioctl,
	.mmap = ts_mmap,
	.poll = ts_poll,
};
