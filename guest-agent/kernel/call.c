// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Calls: the argument, what it points to, and what that points to are copied once, by the host's
 * table. Descriptors become numbers of the host's files. Which calls are permitted is the host's
 * decision; a call that the table does not have fails here.
 */
#include <linux/file.h>

#include "turnstile_nv.h"

/* NV_ERR_INVALID_ADDRESS, NV_ERR_NO_MEMORY. */
#define STATUS_INVALID_ADDRESS 0x1e
#define STATUS_NO_MEMORY 0x51
/* NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: memory of the program. */
#define CLASS_OS_DESCRIPTOR 0x71
#define FIELDS_MAX (TS_BUFFERS_MAX + 2)

struct ts_field {
	u32 part, at, width;
	u64 value;
};

struct ts_part {
	u64 address;
	u32 bytes;
	void *data;
};

struct ts_call {
	struct ts_file *file;
	const struct ts_row *row;
	/* Of the parameters. */
	const struct ts_row *params;
	u32 n_parts, n_fields;
	u32 bytes;
	struct ts_part part[TS_BUFFERS_MAX];
	/* Addresses and descriptors, which keep the program's values. */
	struct ts_field field[FIELDS_MAX];
	struct ts_ram *ram;
	bool ram_sent;
	/* Memory that the host wants with it. */
	u64 wanted;
};

static int add_part(struct ts_call *call, u64 address, u32 bytes)
{
	struct ts_part *part = &call->part[call->n_parts];

	if (call->n_parts == TS_BUFFERS_MAX || call->bytes + bytes > TS_BYTES_MAX)
		return -EINVAL;
	part->data = vmemdup_user(u64_to_user_ptr(address), bytes);
	if (IS_ERR(part->data))
		return PTR_ERR(part->data);
	part->address = address;
	part->bytes = bytes;
	call->bytes += bytes;
	call->n_parts++;
	return 0;
}

static int note(struct ts_call *call, u32 part, u32 at, u32 width)
{
	struct ts_field *field = &call->field[call->n_fields];
	void *data = call->part[part].data;

	if (call->n_fields == FIELDS_MAX)
		return -EINVAL;
	field->part = part;
	field->at = at;
	field->width = width;
	field->value = width == 8 ? ts_long(data, at) : ts_word(data, at);
	call->n_fields++;
	return 0;
}

/* The buffer of an address, if there is one. */
static int follow(struct ts_call *call, u32 part, u32 at, u32 bytes)
{
	u64 address = ts_long(call->part[part].data, at);
	int error = note(call, part, at, 8);

	if (error || !address || !bytes)
		return error;
	return add_part(call, address, bytes);
}

static int follow_params(struct ts_call *call)
{
	const struct ts_row *params = call->params;
	void *data = call->part[1].data;
	u64 count, bytes;
	int error = 0;
	u32 at;

	for (at = 0; at < params->n_buffers && !error; at++) {
		count = ts_word(data, params->buffer[at].count_at);
		if (params->buffer[at].squared)
			count *= count;
		if (count > TS_EMBEDDED_MAX)
			return -EINVAL;
		bytes = count * params->buffer[at].element_bytes;
		if (bytes > TS_EMBEDDED_MAX)
			return -EINVAL;
		error = follow(call, 1, params->buffer[at].at, bytes);
	}
	return error;
}

static int collect(struct ts_call *call, unsigned long argument)
{
	const struct ts_row *row = call->row;
	bool is_control = row->role == TS_ROLE_CONTROL;
	u32 given, bytes;
	void *top;
	int error;

	if (row->role == TS_ROLE_NOTHING)
		return 0;
	error = add_part(call, argument, row->bytes);
	if (error || row->params_at == TS_NONE)
		return error;
	top = call->part[0].data;
	call->params = ts_row(call->file->dev, is_control ? TS_ROW_CONTROL : TS_ROW_CLASS,
			      ts_word(top, row->select_at), 0);
	/* What the host does not know, it answers without the parameters. */
	if (!call->params)
		return 0;
	given = ts_word(top, row->size_at);
	bytes = call->params->bytes;
	if (bytes == TS_ANY && given > TS_UNKNOWN_MAX)
		return -EINVAL;
	if (bytes == TS_ANY)
		bytes = given;
	/* libcuda says 0 where a class has parameters of a known size. */
	if (given != bytes && (is_control || given))
		return -EINVAL;
	error = follow(call, 0, row->params_at, bytes);
	if (error)
		return error;
	bytes = call->n_parts == 2 ? bytes : 0;
	if (row->rights_at != TS_NONE)
		error = follow(call, 0, row->rights_at, row->rights_bytes);
	if (!error && bytes)
		error = follow_params(call);
	else
		call->params = NULL;
	return error;
}

/* Descriptors are ours, or there is no call. */
static int translate(struct ts_call *call)
{
	const struct ts_row *row = call->params ? call->params : call->row;
	u32 part = call->params ? 1 : 0, at;
	struct file *file;
	int fd, error;

	for (at = 0; at < row->n_files && call->n_parts; at++) {
		fd = ts_word(call->part[part].data, row->file[at].at);
		if (fd < 0)
			continue;
		error = note(call, part, row->file[at].at, row->file[at].width);
		if (error)
			return error;
		file = fget(fd);
		if (!file)
			return -EINVAL;
		error = -EINVAL;
		if (file->f_op == &ts_fops) {
			struct ts_file *other = file->private_data;

			ts_set_word(call->part[part].data, row->file[at].at, other->id);
			error = 0;
		}
		fput(file);
		if (error)
			return error;
	}
	return 0;
}

/* Puts the program's values back, and copies the buffers to it. */
static int give_back(struct ts_call *call)
{
	u32 at;

	for (at = 0; at < call->n_fields; at++) {
		struct ts_field *field = &call->field[at];
		void *data = call->part[field->part].data;

		if (field->width == 8)
			ts_set_long(data, field->at, field->value);
		else
			ts_set_word(data, field->at, field->value);
	}
	for (at = 0; at < call->n_parts; at++)
		if (copy_to_user(u64_to_user_ptr(call->part[at].address), call->part[at].data,
				 call->part[at].bytes))
			return -EFAULT;
	return 0;
}

static int answer(struct ts_call *call, u32 status)
{
	ts_set_word(call->part[0].data, call->row->status_at, status);
	return give_back(call);
}

/* Notes what the file maps next. RM_MAP_MEMORY: offset @16, length @24, address @32, file @48. */
static int map_ram(struct ts_call *call, struct ts_ram *ram)
{
	void *top = call->part[0].data;
	u64 offset = ts_long(top, 16), bytes = ts_long(top, 24), all = (u64)ram->count << PAGE_SHIFT;
	struct file *file;
	int error = -EINVAL;

	if (offset > all || bytes > all - offset || offset_in_page(offset) || ram->user) {
		ts_ram_put(ram);
		return answer(call, STATUS_INVALID_ADDRESS);
	}
	file = fget(ts_word(top, 48));
	if (file && file->f_op == &ts_fops) {
		struct ts_file *other = file->private_data;

		mutex_lock(&other->lock);
		swap(other->ram, ram);
		other->ram_offset = offset;
		other->ram_bytes = PAGE_ALIGN(bytes);
		mutex_unlock(&other->lock);
		/* It stands for the mapping, and is not an address. */
		ts_set_long(top, 32, (1ULL << 44) + offset);
		error = 0;
	}
	if (file)
		fput(file);
	if (ram)
		ts_ram_put(ram);
	return error ? error : answer(call, 0);
}

/* What concerns memory of the guest alone is answered here. 1: it is not. */
static int here(struct ts_call *call)
{
	void *top = call->part[0].data;
	struct ts_ram *ram;

	if (call->row->role != TS_ROLE_MAP && call->row->role != TS_ROLE_UNMAP)
		return 1;
	ram = ts_ram_of_object(call->file->dev, ts_word(top, 0), ts_word(top, 8));
	if (!ram)
		return 1;
	if (call->row->role == TS_ROLE_MAP)
		return map_ram(call, ram);
	ts_ram_put(ram);
	return answer(call, 0);
}

/* Memory of the guest that a call needs. RM_ALLOC_MEMORY: class @12, address @24, last byte @32. */
static int attach(struct ts_call *call)
{
	struct ts_device *dev = call->file->dev;
	const struct ts_row *params = call->params;
	void *top = call->n_parts ? call->part[0].data : NULL;
	void *data = call->n_parts > 1 ? call->part[1].data : NULL;
	struct ts_ram *ram = NULL;

	switch (call->row->role) {
	case TS_ROLE_REGISTER:
		if (ts_word(top, 12) == CLASS_OS_DESCRIPTOR)
			ram = ts_ram_pin(dev, ts_long(top, 24), ts_long(top, 32));
		break;
	case TS_ROLE_MAP:
		if (call->wanted)
			ram = ts_ram_pages(dev, call->wanted);
		break;
	case TS_ROLE_POOL:
		ram = ts_ram_pages(dev, ts_long(top, 8));
		break;
	case TS_ROLE_ALLOC:
		if (params && params->ram_bytes_at != TS_NONE)
			ram = ts_ram_pages(dev, ts_long(data, params->ram_bytes_at));
		break;
	default:
		break;
	}
	if (IS_ERR(ram))
		return PTR_ERR(ram);
	if (ram)
		kref_get(&ram->ref);
	call->ram = ram;
	return 0;
}

static struct ts_request *compose(struct ts_call *call, unsigned int cmd)
{
	u32 extents = call->ram ? call->ram->extents : 0, at;
	u32 bytes = sizeof(struct ts_header) + 4 * call->n_parts + 16 * extents + call->bytes;
	/* Some answers report what they release. */
	struct ts_request *request = ts_request_new(call->file->dev, TS_CALL, call->file->id,
						    bytes + 256);
	struct ts_header *header;
	char *to;

	if (!request)
		return NULL;
	header = ts_header(request);
	header->request = cmd;
	header->result = call->ram ? call->ram->token : 0;
	header->buffers = call->n_parts;
	header->extents = extents;
	to = (char *)(header + 1);
	for (at = 0; at < call->n_parts; at++, to += 4)
		ts_set_word(to, 0, call->part[at].bytes);
	if (call->ram)
		ts_ram_extents(call->ram, to);
	to += 16 * extents;
	for (at = 0; at < call->n_parts; at++, to += call->part[at - 1].bytes)
		memcpy(to, call->part[at].data, call->part[at].bytes);
	request->bytes = bytes;
	return request;
}

/* Takes the answer's buffers, which have the lengths of the request's. */
static int take(struct ts_call *call, struct ts_request *request)
{
	u32 at, bytes;
	void *data;

	if (ts_header(request)->buffers != call->n_parts)
		return -EIO;
	for (at = 0; at < call->n_parts; at++) {
		data = ts_buffer(request, at, &bytes);
		if (!data || bytes != call->part[at].bytes)
			return -EIO;
		memcpy(call->part[at].data, data, bytes);
	}
	return 0;
}

/* Takes note of a call that succeeded. */
static void done(struct ts_call *call)
{
	void *top = call->n_parts ? call->part[0].data : NULL;

	if (!top || call->row->status_at == TS_NONE || ts_word(top, call->row->status_at))
		return;
	if (call->row->role == TS_ROLE_FREE)
		ts_ram_unname(call->file->dev, ts_word(top, 0), ts_word(top, 8));
	if (!call->ram)
		return;
	if (call->row->role == TS_ROLE_POOL)
		ts_ram_place(call->ram, call->file->id, ts_long(top, 0));
	else
		ts_ram_name(call->ram, ts_word(top, 0), ts_word(top, 8));
}

static long forward(struct ts_call *call, unsigned int cmd)
{
	struct ts_request *request = compose(call, cmd);
	long result;
	int error;

	if (!request)
		return -ENOMEM;
	error = ts_submit(request, true);
	if (error) {
		ts_request_free(request);
		return error;
	}
	/* From here on the host gives the memory back. */
	call->ram_sent = true;
	error = ts_wait(request);
	if (error == -EINTR)
		return error;
	result = ts_header(request)->result;
	if (error) {
		result = error == -EPROTO ? -EIO : error;
	} else if (result < 0) {
		error = ts_header(request)->error;
		if (error == ENOBUFS)
			call->wanted = ts_header(request)->a;
		result = error > 0 && error < MAX_ERRNO ? -error : -EIO;
	} else {
		error = take(call, request);
		if (!error) {
			done(call);
			error = give_back(call);
		}
		/* Memory of the GPU that is memory of the guest now is mapped as such. */
		if (!error && call->ram && call->row->role == TS_ROLE_MAP)
			error = here(call);
		if (error)
			result = error;
	}
	ts_request_free(request);
	return result;
}

static const struct ts_row *row_of(struct ts_file *file, unsigned int cmd)
{
	if (file->node == TS_NODE_UVM)
		return ts_row(file->dev, TS_ROW_UVM, cmd, 0);
	if (_IOC_TYPE(cmd) != 'F' || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE))
		return NULL;
	return ts_row(file->dev, TS_ROW_ESCAPE, _IOC_NR(cmd), _IOC_SIZE(cmd));
}

long ts_ioctl(struct file *file, unsigned int cmd, unsigned long argument)
{
	struct ts_file *own = file->private_data;
	const struct ts_row *row = row_of(own, cmd);
	struct ts_call *call;
	long result;
	u32 at;

	if (READ_ONCE(own->dev->lost))
		return -EIO;
	if (!row)
		return -EINVAL;
	call = kzalloc(sizeof(*call), GFP_KERNEL_ACCOUNT);
	if (!call)
		return -ENOMEM;
	call->file = own;
	call->row = row;
	result = collect(call, argument);
	if (!result && call->n_parts)
		result = here(call);
	else if (!result)
		result = 1;
	if (result != 1)
		goto out;
	result = translate(call);
again:
	if (!result)
		result = attach(call);
	if (result == -EFAULT || result == -ENOMEM) {
		/* As the driver answers where there is no such memory, or none is left. */
		if (row->status_at != TS_NONE && call->n_parts)
			result = answer(call, result == -EFAULT ? STATUS_INVALID_ADDRESS :
								  STATUS_NO_MEMORY);
		goto out;
	}
	if (!result)
		result = forward(call, cmd);
	if (result == -ENOBUFS && call->wanted && !call->ram) {
		result = 0;
		goto again;
	}
out:
	if (call->ram) {
		if (!call->ram_sent)
			ts_ram_release(own->dev, call->ram->token);
		ts_ram_put(call->ram);
	}
	for (at = 0; at < call->n_parts; at++)
		kvfree(call->part[at].data);
	kfree(call);
	return result;
}
