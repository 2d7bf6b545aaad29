// A library with the driver API's names whose GPU is none: memory lies in files of this process (memfd), so that chunks can be
// mapped, unmapped and handed on as the real ones are. Copies and kernels are done by the caller, and wait while somebody has the
// file that FAKE_ENGINE names locked: then the program is suspended. Built as libcuda.so.1; a mover can copy with it as well.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
typedef unsigned long long ptr;
enum { OK, INVALID = 1, FULL = 2, NOT_FOUND = 500 };
static int native_allocations;
/* What the program asks to know what reached this library. */
int fake_native_allocations(void) { return native_allocations; }
/* What is submitted is executed here, but never while the engine is another's; counted, so that it is seen. */
static void execute(void (*what)(void *), void *with) {
    static __thread int engine = -2;
    uint64_t count = 0;
    if (engine == -2) {
        const char *path = getenv("FAKE_ENGINE");
        engine = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    }
    while (engine >= 0 && flock(engine, LOCK_SH)) {}
    what(with);
    if (engine >= 0 && pread(engine, &count, 8, 0) >= 0) {
        count++;
        if (pwrite(engine, &count, 8, 0) != 8)
            abort();
    }
    if (engine >= 0)
        flock(engine, LOCK_UN);
}
struct copy { void *to; const void *from; size_t bytes; };
static void copy(void *with) { struct copy *it = with; memcpy(it->to, it->from, it->bytes); }
/* As the driver: addresses are looked at when it is called. */
static int is_mapped(ptr address, size_t bytes) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], rights[8];
    ptr from, to, at = address;
    while (maps && at < address + bytes && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %7s", &from, &to, rights) == 3 && from <= at && at < to && rights[0] == 'r')
            at = to;
    if (maps)
        fclose(maps);
    return at >= address + bytes;
}
static int copied(ptr on_device, void *to, const void *from, size_t bytes) {
    struct copy it = {to, from, bytes};
    if (!is_mapped(on_device, bytes))
        return INVALID;
    execute(copy, &it);
    return OK;
}
int cuMemcpyHtoD_v2(ptr to, const void *from, size_t bytes) { return copied(to, (void *)(uintptr_t)to, from, bytes); }
int cuMemcpyDtoH_v2(void *to, ptr from, size_t bytes) { return copied(from, to, (void *)(uintptr_t)from, bytes); }
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t bytes, void *stream) { (void)stream; return cuMemcpyHtoD_v2(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t bytes, void *stream) { (void)stream; return cuMemcpyDtoH_v2(to, from, bytes); }
int cuMemsetD32Async(ptr to, unsigned value, size_t words, void *stream) {
    (void)stream;
    for (size_t word = 0; word < words; word++)
        ((volatile unsigned *)(uintptr_t)to)[word] = value;
    return OK;
}
/* Kernels are functions of the program; the one parameter is theirs. */
int cuLaunchKernel(void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, void *stream,
                   void **parameters, void **extra) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)stream, (void)extra;
    execute((void (*)(void *))kernel, parameters);
    return OK;
}
int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return OK; }
int cuCtxSetCurrent(void *context) { return context ? OK : INVALID; }
int cuCtxGetDevice(int *device) { *device = 0; return OK; }
int cuCtxSynchronize(void) { return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 64ul << 30; return device ? INVALID : OK; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1; *total = 2; return OK; }
int cuMemAlloc_v2(ptr *out, size_t bytes) {
    void *memory = malloc(bytes);
    native_allocations++;
    *out = (ptr)(uintptr_t)memory;
    return memory ? OK : FULL;
}
int cuMemFree_v2(ptr address) { free((void *)(uintptr_t)address); native_allocations--; return OK; }
int cuMemAllocManaged(ptr *out, size_t bytes, unsigned flags) { (void)flags; return cuMemAlloc_v2(out, bytes); }
int cuMemGetAddressRange_v2(ptr *base, size_t *bytes, ptr address) { (void)base, (void)bytes, (void)address; return NOT_FOUND; }
int cuIpcGetMemHandle(void *handle, ptr address) { (void)handle, (void)address; return OK; }
int cuMemAddressReserve(ptr *out, size_t bytes, size_t alignment, ptr hint, unsigned long long flags) {
    (void)alignment, (void)hint, (void)flags;
    /* Whole granules, as the GPU's. */
    size_t granule = 2ul << 20;
    char *memory = mmap(0, bytes + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return FULL;
    *out = ((uintptr_t)memory + granule - 1) / granule * granule;
    return OK;
}
int cuMemAddressFree(ptr address, size_t bytes) { return munmap((void *)(uintptr_t)address, bytes) ? INVALID : OK; }
int cuMemCreate(ptr *handle, size_t bytes, const int *prop, unsigned long long flags) {
    if (!(prop[1] & 1) || flags)
        return INVALID; /* the library is to make it so that it can be exported */
    int fd = memfd_create("chunk", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, bytes))
        return FULL;
    *handle = fd;
    return OK;
}
int cuMemRelease(ptr handle) { return close((int)handle) ? INVALID : OK; }
/* At the end the driver waits for the GPU and lets nobody else call. */
static volatile int ending;
static void nothing(void *with) { (void)with; }
__attribute__((destructor)) static void end(void) {
    ending = 1;
    execute(nothing, 0);
    ending = 0;
}
static void wait_for_others(void) {
    while (ending)
        usleep(1000);
}
int cuMemMap(ptr address, size_t bytes, size_t offset, ptr handle, unsigned long long flags) {
    (void)flags;
    wait_for_others();
    void *at = (void *)(uintptr_t)address;
    return mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, offset) == at ? OK : INVALID;
}
int cuMemSetAccess(ptr address, size_t bytes, const int *access, size_t count) {
    return count == 1 && access[2] == 3 && !mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE) ? OK : INVALID;
}
int cuMemUnmap(ptr address, size_t bytes) {
    wait_for_others();
    void *at = (void *)(uintptr_t)address;
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at ? OK : INVALID;
}
int cuMemExportToShareableHandle(void *to, ptr handle, int kind, unsigned long long flags) {
    int fd = kind == 1 && !flags ? dup((int)handle) : -1;
    *(int *)to = fd;
    return fd < 0 ? INVALID : OK;
}
int cuMemImportFromShareableHandle(ptr *handle, void *os, int kind) {
    int fd = kind == 1 ? dup((int)(intptr_t)os) : -1;
    *handle = fd;
    return fd < 0 ? INVALID : OK;
}
int cuDeviceGetMemPool(void **pool, int device) { *pool = (void *)0x9000; return device ? INVALID : OK; }
int cuMemPoolGetAttribute(void *pool, int attribute, void *value) { (void)pool, (void)attribute; *(uint64_t *)value = 0; return OK; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { (void)pool, (void)attribute, (void)value; return OK; }
int cuMemPoolTrimTo(void *pool, size_t keep) { (void)pool, (void)keep; return OK; }
int cuMemAllocAsync(ptr *out, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(out, bytes); }
int cuMemFreeAsync(ptr address, void *stream) { (void)stream; return cuMemFree_v2(address); }
static int capturing;
int cuStreamBeginCapture_v2(void *stream, int mode) { (void)stream, (void)mode; capturing = 1; return OK; }
int cuStreamEndCapture(void *stream, void **graph) { (void)stream; capturing = 0; *graph = (void *)1; return OK; }
int cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = capturing; return OK; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return OK; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = (void *)7; return OK; }
int cuEventDestroy_v2(void *event) { (void)event; return OK; }
int cuEventRecord(void *event, void *stream) { (void)event, (void)stream; return OK; }
int cuEventQuery(void *event) { (void)event; return OK; }
int cuArrayCreate_v2(void **handle, const void *description) { (void)description; *handle = malloc(1); return OK; }
int cuArrayDestroy(void *handle) { free(handle); return OK; }
/* What a mover asks for beside. */
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuGetErrorName(int code, const char **name) { *name = code == FULL ? "OUT_OF_MEMORY" : "INVALID_VALUE"; return OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int nth) { *device = nth; return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute, (void)device; *value = 1; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)1; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
int cuCtxSetLimit(int limit, size_t value) { (void)limit, (void)value; return OK; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)4; return OK; }
int cuStreamDestroy_v2(void *stream) { (void)stream; return OK; }
int cuStreamQuery(void *stream) { (void)stream; return OK; }
int cuStreamSynchronize(void *stream) { (void)stream; return OK; }
int cuEventSynchronize(void *event) { (void)event; return OK; }
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) { (void)memory, (void)bytes, (void)flags; return OK; }
int cuMemHostUnregister(void *memory) { (void)memory; return OK; }
int cuMemGetAllocationGranularity(size_t *bytes, const void *prop, int option) { (void)prop, (void)option; *bytes = 2ul << 20; return OK; }
#define NONE(name) int name(void) { return 801; }
NONE(cuDeviceGetName) NONE(cuDeviceGetUuid_v2) NONE(cuModuleLoadDataEx) NONE(cuModuleUnload) NONE(cuModuleGetFunction)
NONE(cuFuncGetAttribute) NONE(cuFuncSetAttribute) NONE(cuStreamWriteValue64_v2) NONE(cuStreamWaitValue64_v2)
NONE(cuEventElapsedTime) NONE(cuMemHostAlloc) NONE(cuMemFreeHost) NONE(cuMemHostGetDevicePointer_v2) NONE(cuMemcpyDtoDAsync_v2)
int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status) {
    char name[64];
    (void)version, (void)flags;
    static void *self;
    if (!self)
        self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    snprintf(name, sizeof name, "%s_v2", symbol);
    *function = dlsym(self, name);
    if (!*function)
        *function = dlsym(self, symbol);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, 0);
}
