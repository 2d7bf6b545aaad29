/* The Turnstile GPU of a virtual machine, for programs of a stock Linux kernel (through vfio-pci, or as root). Link with libturnstile_guest_linux.a,
 * -lpthread -ldl. Functions return 0 or a negative errno, and say why on standard error. A handle belongs to one thread at a time. */
#ifndef TURNSTILE_GUEST_H
#define TURNSTILE_GUEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct turnstile_gpu;

struct turnstile_kernel {
	uint32_t module;
	uint32_t function;
	uint32_t param_bytes;
};

struct turnstile_usage {
	uint64_t compute_ns; /* charged */
	uint64_t copy_ns;
	uint64_t held_ns; /* held back with work queued */
	uint32_t weight;
	uint32_t admitted;
};

int turnstile_open(struct turnstile_gpu **gpu);
void turnstile_close(struct turnstile_gpu *gpu);
int turnstile_load(struct turnstile_gpu *gpu, const char *ptx, size_t bytes, uint32_t *module);
int turnstile_find(struct turnstile_gpu *gpu, uint32_t module, const char *name, struct turnstile_kernel *kernel);
int turnstile_allocate(struct turnstile_gpu *gpu, uint64_t bytes, uint64_t *va);
int turnstile_free(struct turnstile_gpu *gpu, uint64_t va);
int turnstile_copy_in(struct turnstile_gpu *gpu, uint64_t va, const void *from, size_t bytes);
int turnstile_copy_out(struct turnstile_gpu *gpu, uint64_t va, void *to, size_t bytes);
/* Parameters lie as in the kernel's .param space: each at a multiple of its size. */
int turnstile_launch(struct turnstile_gpu *gpu, struct turnstile_kernel kernel, const uint32_t grid[3],
		     const uint32_t block[3], uint32_t shared_bytes, const void *params);
int turnstile_finish(struct turnstile_gpu *gpu);
int turnstile_usage(struct turnstile_gpu *gpu, struct turnstile_usage *usage);

#ifdef __cplusplus
}
#endif
#endif
