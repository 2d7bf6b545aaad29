// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The table of the driver's release, which the host sends at start. */
#include <linux/bsearch.h>
#include <linux/sort.h>
#include <linux/vmalloc.h>

#include "turnstile_nv.h"

#define TABLE_BYTES_MAX (256 << 10)

static int compare(const void *one, const void *other)
{
	const struct ts_row *a = one, *b = other;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	/* Escapes are known by their number and size. */
	if (a->kind != TS_ROW_ESCAPE || a->bytes == b->bytes)
		return 0;
	return a->bytes < b->bytes ? -1 : 1;
}

/* Whether `bytes` at `at` are within the row's structure. */
static bool within(const struct ts_row *row, u16 at, u32 bytes)
{
	return at == TS_NONE || (row->bytes != TS_ANY && at + bytes <= row->bytes);
}

static bool is_row(const struct ts_row *row)
{
	u32 at;
	bool good = row->kind <= TS_ROW_CONTROL && row->role <= TS_ROLE_FREE &&
		    row->n_buffers <= ARRAY_SIZE(row->buffer) &&
		    row->n_files <= ARRAY_SIZE(row->file) &&
		    (row->bytes <= TS_EMBEDDED_MAX || row->bytes == TS_ANY) &&
		    within(row, row->status_at, 4) && within(row, row->params_at, 8) &&
		    within(row, row->size_at, 4) && within(row, row->select_at, 4) &&
		    within(row, row->rights_at, 8) &&
		    within(row, row->ram_bytes_at, 8);

	if (row->kind < TS_ROW_CLASS)
		good = good && row->bytes <= 16384;
	switch (row->role) {
	case TS_ROLE_ALLOC:
	case TS_ROLE_CONTROL:
		good = good && row->params_at != TS_NONE && row->size_at != TS_NONE &&
		       row->select_at != TS_NONE && row->status_at != TS_NONE;
		break;
	case TS_ROLE_REGISTER:
	case TS_ROLE_MAP:
		good = good && row->bytes == 56 && row->status_at != TS_NONE;
		break;
	case TS_ROLE_UNMAP:
	case TS_ROLE_FREE:
	case TS_ROLE_POOL:
		good = good && row->bytes >= 16 && row->status_at != TS_NONE;
		break;
	}
	for (at = 0; good && at < row->n_buffers; at++)
		good = within(row, row->buffer[at].at, 8) && row->buffer[at].at != TS_NONE &&
		       within(row, row->buffer[at].count_at, 4) &&
		       row->buffer[at].count_at != TS_NONE;
	for (at = 0; good && at < row->n_files; at++)
		good = (row->file[at].width == 4 || row->file[at].width == 8) &&
		       row->file[at].at != TS_NONE &&
		       within(row, row->file[at].at, row->file[at].width);
	return good;
}

int ts_table_load(struct ts_device *dev)
{
	struct ts_request *request = ts_request_new(dev, TS_TABLE, 0, TABLE_BYTES_MAX);
	int error = request ? ts_ask(request) : -ENOMEM;
	void *bytes;
	u32 length, at;

	BUILD_BUG_ON(sizeof(struct ts_row) != 64);
	BUILD_BUG_ON(sizeof(struct ts_header) != 64);
	BUILD_BUG_ON(sizeof(struct ts_slot) != 32);
	if (error)
		return error;
	error = -EPROTO;
	bytes = ts_buffer(request, 0, &length);
	if (!bytes || !length || length % sizeof(*dev->rows))
		goto out;
	error = -ENOMEM;
	dev->rows = kvmalloc(length, GFP_KERNEL);
	if (!dev->rows)
		goto out;
	memcpy(dev->rows, bytes, length);
	dev->n_rows = length / sizeof(*dev->rows);
	error = 0;
	for (at = 0; at < dev->n_rows; at++) {
		if (!is_row(&dev->rows[at])) {
			dev_err(&dev->pdev->dev, "row %u of the table has another form\n", at);
			error = -EPROTO;
		}
	}
	sort(dev->rows, dev->n_rows, sizeof(*dev->rows), compare, NULL);
out:
	ts_request_free(request);
	return error;
}

const struct ts_row *ts_row(struct ts_device *dev, u8 kind, u32 number, u32 bytes)
{
	struct ts_row key = { .kind = kind, .number = number, .bytes = bytes };

	return bsearch(&key, dev->rows, dev->n_rows, sizeof(key), compare);
}
