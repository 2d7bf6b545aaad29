// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Requests to the device process. Many are in flight at a time, and they end in any order. A
 * request whose program is killed stays until it is answered: the host writes to its memory.
 */
#include <linux/interrupt.h>
#include <linux/sched/signal.h>

#include "turnstile_nv.h"

/* Room for the numbers of 500 pieces of memory. */
#define RELEASED_ROOM 8192
#define WATCH_INTERVAL HZ

static u32 queue_read(struct ts_device *dev, u32 at)
{
	return smp_load_acquire((u32 *)((char *)dev->queue + at));
}

static void queue_write(struct ts_device *dev, u32 at, u32 value)
{
	smp_store_release((u32 *)((char *)dev->queue + at), value);
}

/* Takes in what the host has released with an answer. */
static void take_released(struct ts_request *request)
{
	struct ts_device *dev = request->dev;
	struct ts_header *header = ts_header(request);
	char *at = (char *)(header + 1) + 4 * header->buffers;
	u32 count;

	for (count = 0; count < header->extents; count++)
		ts_ram_release(dev, ts_long(at, 16 * count));
	if (header->b)
		queue_work(ts_works, &dev->released);
}

/* What an answer means for those that did not wait for it. */
static void abandoned(struct work_struct *work)
{
	struct ts_request *request = container_of(work, struct ts_request, work);
	struct ts_header *header = ts_header(request);

	if (!request->error)
		take_released(request);
	if (!request->error && header->kind == TS_OPEN && header->result >= 0)
		ts_file_close(request->dev, header->file);
	ts_request_free(request);
}

struct ts_request *ts_request_new(struct ts_device *dev, enum ts_kind kind, u32 file, u32 room)
{
	struct ts_request *request = kzalloc(sizeof(*request), GFP_KERNEL_ACCOUNT);
	struct ts_header *header;

	if (!request)
		return NULL;
	if (ts_memory_new(dev, &request->memory, room)) {
		kfree(request);
		return NULL;
	}
	request->dev = dev;
	request->bytes = sizeof(*header);
	request->load = current->tgid % TS_LOADS;
	request->slot = -1;
	init_completion(&request->done);
	INIT_WORK(&request->work, abandoned);
	header = ts_header(request);
	header->magic = TS_MAGIC;
	header->kind = kind;
	header->file = file;
	kref_get(&dev->ref);
	return request;
}

void ts_request_free(struct ts_request *request)
{
	struct ts_device *dev = request->dev;

	if (request->error == -EIO && request->slot >= 0) {
		/* It was never answered: what has the device still writes to it until it is gone. */
		spin_lock_irq(&dev->lock);
		list_add(&request->link, &dev->kept);
		spin_unlock_irq(&dev->lock);
	} else {
		ts_memory_free(dev, &request->memory);
		kfree(request);
	}
	ts_device_put(dev);
}

static bool has_room(struct ts_request *request)
{
	struct ts_device *dev = request->dev;
	bool found = false;
	int slot;

	spin_lock_irq(&dev->lock);
	if (dev->lost) {
		found = true;
	} else if (dev->loads[request->load] < TS_LOAD_MAX) {
		for (slot = 0; slot < TS_SLOTS && dev->slots[slot]; slot++)
			;
		found = slot < TS_SLOTS;
		if (found) {
			dev->slots[slot] = request;
			dev->loads[request->load]++;
			request->slot = slot;
		}
	}
	spin_unlock_irq(&dev->lock);
	return found;
}

/* Puts a request into the queue. Fails only before that. */
int ts_submit(struct ts_request *request, bool killable)
{
	struct ts_device *dev = request->dev;
	struct ts_header *header = ts_header(request);
	struct ts_slot *slot;
	int error = 0;

	if (killable)
		error = wait_event_killable(dev->room, has_room(request));
	else
		wait_event(dev->room, has_room(request));
	if (error)
		return -EINTR;
	if (request->slot < 0)
		return -EIO;
	queue_delayed_work(ts_works, &dev->watch, WATCH_INTERVAL);
	header->body_bytes = request->bytes - sizeof(*header);
	ts_memory_sync(dev, &request->memory, true);
	spin_lock_irq(&dev->lock);
	if (dev->lost) {
		/* Answered with the others when the device was lost. */
		spin_unlock_irq(&dev->lock);
		return 0;
	}
	header->id = ++dev->next_id;
	slot = (struct ts_slot *)((char *)dev->queue + TS_QUEUE_SLOT_TABLE) + request->slot;
	slot->address = request->memory.dma;
	slot->bytes = request->bytes;
	slot->segments = request->memory.segments;
	slot->room = request->memory.bytes;
	slot->answer_bytes = 0;
	*(u32 *)((char *)dev->queue + TS_QUEUE_SUBMIT_RING + 4 * (dev->submitted % TS_SLOTS)) =
		request->slot;
	queue_write(dev, TS_QUEUE_SUBMITTED, ++dev->submitted);
	spin_unlock_irq(&dev->lock);
	down_read(&dev->registers);
	if (!READ_ONCE(dev->lost))
		writel(request->slot, dev->regs + TS_REG_KICK);
	up_read(&dev->registers);
	return 0;
}

/* Called with the lock. */
static void finish(struct ts_request *request, int error)
{
	struct ts_device *dev = request->dev;

	dev->slots[request->slot] = NULL;
	dev->loads[request->load]--;
	request->error = error;
	request->finished = true;
	if (request->abandoned)
		queue_work(ts_works, &request->work);
	else
		complete(&request->done);
}

/* Whether an answer has the form of one, within its memory. */
static bool is_answer(struct ts_request *request, u32 bytes)
{
	struct ts_header *header = ts_header(request);

	return bytes >= sizeof(*header) && bytes <= request->memory.bytes &&
	       header->magic == TS_MAGIC && header->buffers <= TS_BUFFERS_MAX &&
	       header->extents <= TS_EXTENTS_MAX && header->body_bytes == bytes - sizeof(*header) &&
	       header->body_bytes >= 4 * header->buffers + 16 * header->extents;
}

irqreturn_t ts_completions(int irq, void *data)
{
	struct ts_device *dev = data;
	struct ts_slot *slots = (struct ts_slot *)((char *)dev->queue + TS_QUEUE_SLOT_TABLE);
	struct ts_request *request;
	unsigned long flags;
	u32 slot;

	spin_lock_irqsave(&dev->lock, flags);
	while (!dev->lost && dev->completed != queue_read(dev, TS_QUEUE_COMPLETED)) {
		slot = *(u32 *)((char *)dev->queue + TS_QUEUE_COMPLETE_RING +
				4 * (dev->completed % TS_SLOTS));
		dev->completed++;
		request = slot < TS_SLOTS ? dev->slots[slot] : NULL;
		if (!request)
			continue;
		ts_memory_sync(dev, &request->memory, false);
		finish(request, is_answer(request, slots[slot].answer_bytes) ? 0 : -EPROTO);
	}
	spin_unlock_irqrestore(&dev->lock, flags);
	wake_up_all(&dev->room);
	return IRQ_HANDLED;
}

static void ready(struct ts_file *file)
{
	atomic_set(&file->ready, 1);
	wake_up_all(&file->wait);
}

irqreturn_t ts_events(int irq, void *data)
{
	struct ts_device *dev = data;
	struct ts_file *file;
	unsigned long id;
	u32 overflows;

	rcu_read_lock();
	while (dev->events != queue_read(dev, TS_QUEUE_EVENTS)) {
		id = *(u32 *)((char *)dev->queue + TS_QUEUE_EVENT_RING +
			      4 * (dev->events % TS_EVENTS));
		queue_write(dev, TS_QUEUE_EVENTS_SEEN, ++dev->events);
		file = xa_load(&dev->by_id, id);
		if (file)
			ready(file);
	}
	overflows = queue_read(dev, TS_QUEUE_OVERFLOWS);
	if (overflows != dev->overflows) {
		/* Events were dropped: each file may have had one. */
		dev->overflows = overflows;
		xa_for_each(&dev->by_id, id, file)
			ready(file);
	}
	rcu_read_unlock();
	return IRQ_HANDLED;
}

/* The device process is gone: nothing is answered any more. */
void ts_lose(struct ts_device *dev)
{
	struct ts_file *file;
	unsigned long id;
	int slot;

	spin_lock_irq(&dev->lock);
	if (!dev->lost)
		dev_warn(&dev->pdev->dev, "the device process is gone\n");
	dev->lost = true;
	for (slot = 0; slot < TS_SLOTS; slot++)
		if (dev->slots[slot])
			finish(dev->slots[slot], -EIO);
	spin_unlock_irq(&dev->lock);
	wake_up_all(&dev->room);
	rcu_read_lock();
	xa_for_each(&dev->by_id, id, file)
		wake_up_all(&file->wait);
	rcu_read_unlock();
}

bool ts_in_flight(struct ts_device *dev)
{
	bool found = false;
	int slot;

	spin_lock_irq(&dev->lock);
	for (slot = 0; slot < TS_SLOTS; slot++)
		found |= dev->slots[slot] != NULL;
	spin_unlock_irq(&dev->lock);
	return found;
}

bool ts_alive(struct ts_device *dev)
{
	u32 status;

	if (READ_ONCE(dev->lost))
		return false;
	down_read(&dev->registers);
	status = dev->lost ? 0 : readl(dev->regs + TS_REG_STATUS);
	up_read(&dev->registers);
	if ((status & (TS_STATUS_RUNNING | TS_STATUS_FAILED)) == TS_STATUS_RUNNING)
		return true;
	ts_lose(dev);
	return false;
}

/* What waits for its answer, until the program is killed. The request is then no longer its own. */
int ts_wait(struct ts_request *request)
{
	struct ts_device *dev = request->dev;
	long left;

	for (;;) {
		left = wait_for_completion_killable_timeout(&request->done, WATCH_INTERVAL);
		if (left > 0)
			break;
		if (left == 0) {
			ts_alive(dev);
			continue;
		}
		spin_lock_irq(&dev->lock);
		request->abandoned = !request->finished;
		spin_unlock_irq(&dev->lock);
		if (request->abandoned)
			return -EINTR;
		break;
	}
	if (request->error)
		return request->error;
	take_released(request);
	return 0;
}

/*
 * Sends a request and waits. 0: there is an answer, and the caller frees the request. Otherwise it
 * is freed already.
 */
int ts_ask(struct ts_request *request)
{
	int error = ts_submit(request, true);

	if (!error) {
		error = ts_wait(request);
		if (error == -EINTR)
			return error;
	}
	if (!error && ts_header(request)->result < 0) {
		error = ts_header(request)->error;
		error = error > 0 && error < MAX_ERRNO ? -error : -EIO;
	}
	if (error)
		ts_request_free(request);
	return error == -EPROTO ? -EIO : error;
}

void *ts_buffer(struct ts_request *request, u32 index, u32 *bytes)
{
	struct ts_header *header = ts_header(request);
	u64 offset = 4 * header->buffers + 16 * header->extents;
	u32 at;

	if (index >= header->buffers)
		return NULL;
	for (at = 0; at < index; at++)
		offset += ts_word(header + 1, 4 * at);
	*bytes = ts_word(header + 1, 4 * index);
	if (offset + *bytes > header->body_bytes)
		return NULL;
	return (char *)(header + 1) + offset;
}

/* Fetches what was released beyond the room of earlier answers. */
void ts_released(struct work_struct *work)
{
	struct ts_device *dev = container_of(work, struct ts_device, released);
	struct ts_request *request = ts_request_new(dev, TS_RELEASED, 0, RELEASED_ROOM);

	if (request && !ts_ask(request))
		ts_request_free(request);
}

int ts_queue_start(struct ts_device *dev)
{
	struct pci_dev *pdev = dev->pdev;
	int error;

	dev->queue = dma_alloc_coherent(&pdev->dev, TS_QUEUE_BYTES, &dev->queue_dma, GFP_KERNEL);
	if (!dev->queue)
		return -ENOMEM;
	error = request_irq(pci_irq_vector(pdev, TS_VECTOR_COMPLETIONS), ts_completions, 0,
			    "turnstile-nv", dev);
	if (error)
		goto no_completions;
	error = request_irq(pci_irq_vector(pdev, TS_VECTOR_EVENTS), ts_events, 0,
			    "turnstile-nv-events", dev);
	if (error)
		goto no_events;
	writel(lower_32_bits(dev->queue_dma), dev->regs + TS_REG_QUEUE_LOW);
	writel(upper_32_bits(dev->queue_dma), dev->regs + TS_REG_QUEUE_HIGH);
	writel(1, dev->regs + TS_REG_CONTROL);
	if (readl(dev->regs + TS_REG_STATUS) == TS_STATUS_RUNNING)
		return 0;
	error = -ENODEV;
	free_irq(pci_irq_vector(pdev, TS_VECTOR_EVENTS), dev);
no_events:
	free_irq(pci_irq_vector(pdev, TS_VECTOR_COMPLETIONS), dev);
no_completions:
	dma_free_coherent(&pdev->dev, TS_QUEUE_BYTES, dev->queue, dev->queue_dma);
	return error;
}

/* The write is answered once the host has closed all files and uses no memory of the guest. */
void ts_queue_stop(struct ts_device *dev)
{
	struct ts_request *request, *next;
	LIST_HEAD(kept);

	down_write(&dev->registers);
	writel(0, dev->regs + TS_REG_CONTROL);
	readl(dev->regs + TS_REG_STATUS);
	ts_lose(dev);
	up_write(&dev->registers);
	free_irq(pci_irq_vector(dev->pdev, TS_VECTOR_EVENTS), dev);
	free_irq(pci_irq_vector(dev->pdev, TS_VECTOR_COMPLETIONS), dev);
	spin_lock_irq(&dev->lock);
	list_splice_init(&dev->kept, &kept);
	spin_unlock_irq(&dev->lock);
	list_for_each_entry_safe(request, next, &kept, link) {
		ts_memory_free(dev, &request->memory);
		kfree(request);
	}
	dma_free_coherent(&dev->pdev->dev, TS_QUEUE_BYTES, dev->queue, dev->queue_dma);
}
