/* The header as a C program sees it: it compiles, the library links, and without a device opening says so. */
#include "turnstile_guest.h"

#include <errno.h>
#include <stdio.h>

#ifndef __cplusplus
_Static_assert(sizeof(struct turnstile_kernel) == 12, "three words");
_Static_assert(sizeof(struct turnstile_usage) == 32, "three long words and two words");
#endif

static int run(struct turnstile_gpu *gpu, const char *ptx, size_t bytes)
{
	const uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
	struct turnstile_kernel kernel;
	struct turnstile_usage usage;
	uint32_t module, data[32] = {0};
	uint64_t params[2] = {0, 0};
	int rc;

	if ((rc = turnstile_load(gpu, ptx, bytes, &module)) || (rc = turnstile_find(gpu, module, "kernel", &kernel)) ||
	    (rc = turnstile_allocate(gpu, sizeof(data), &params[0])) ||
	    (rc = turnstile_copy_in(gpu, params[0], data, sizeof(data))) ||
	    (rc = turnstile_launch(gpu, kernel, grid, block, 0, params)) || (rc = turnstile_finish(gpu)) ||
	    (rc = turnstile_copy_out(gpu, params[0], data, sizeof(data))) || (rc = turnstile_free(gpu, params[0])))
		return rc;
	return turnstile_usage(gpu, &usage);
}

int main(void)
{
	struct turnstile_gpu *gpu = NULL;
	uint32_t module;
	int rc = turnstile_open(&gpu);

	if (rc == 0) {
		rc = run(gpu, "", 0);
		turnstile_close(gpu);
		printf("device %d\n", rc);
		return 0;
	}
	turnstile_close(NULL);
	/* No handle is a fault of the caller's, and not one that ends the program. */
	printf("%s %s\n", rc == -ENODEV ? "ENODEV" : "another error", run(NULL, "", 0) == -EINVAL ? "EINVAL" : "no EINVAL");
	return turnstile_load(NULL, NULL, 0, &module) == -EINVAL ? 0 : 1;
}
