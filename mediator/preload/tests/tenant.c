// A CUDA program of a kind: gets at the driver's functions by the way that its first argument names, allocates, and checks that
// what it writes stays where it is while somebody moves its memory.
//   tenant linked|dlsym|runtime FOLDER      runs until FOLDER/stop is there; ends with 5
//   tenant linked limits                    asks for more than it may have
//   tenant linked work SEED STEPS MIB NAP   allocates, frees, copies and computes at random, in at most so many MiB; sleeps for
//                                           NAP ms now and then; says what came of it, and ends with 5
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long long ptr;
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(90); } } while (0)
static int (*alloc)(ptr *, size_t), (*release)(ptr), (*info)(size_t *, size_t *), (*range)(ptr *, size_t *, ptr);
static int (*alloc_async)(ptr *, size_t, void *), (*free_async)(ptr, void *), (*managed)(ptr *, size_t, unsigned);
static int (*ipc)(void *, ptr), (*total)(size_t *, int), (*array)(void **, const void *), (*no_array)(void *);
static int (*begin)(void *, int), (*end)(void *, void **), (*natives)(void);
static int (*make)(ptr *, size_t, const int *, unsigned long long), (*let_go)(ptr), (*reserve)(ptr *, size_t, size_t, ptr, unsigned long long);
static int (*map)(ptr, size_t, size_t, ptr, unsigned long long), (*unmap)(ptr, size_t), (*permit)(ptr, size_t, const int *, size_t);
static int (*to_device)(ptr, const void *, size_t), (*to_host)(void *, ptr, size_t);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static const char *names[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemGetAddressRange", "cuMemAllocAsync", "cuMemFreeAsync",
    "cuMemAllocManaged", "cuIpcGetMemHandle", "cuDeviceTotalMem", "cuArrayCreate", "cuArrayDestroy", "cuStreamBeginCapture",
    "cuStreamEndCapture", "cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
    "cuMemcpyHtoD", "cuMemcpyDtoH", "cuLaunchKernel"};
static void *const places[] = {&alloc, &release, &info, &range, &alloc_async, &free_async, &managed, &ipc, &total, &array, &no_array,
    &begin, &end, &make, &let_go, &reserve, &map, &unmap, &permit, &to_device, &to_host, &launch};
#ifdef LINKED
extern int cuMemAlloc_v2(), cuMemFree_v2(), cuMemGetInfo_v2(), cuMemGetAddressRange_v2(), cuMemAllocAsync(), cuMemFreeAsync(),
    cuMemAllocManaged(), cuIpcGetMemHandle(), cuDeviceTotalMem_v2(), cuArrayCreate_v2(), cuArrayDestroy(), cuStreamBeginCapture_v2(),
    cuStreamEndCapture(), cuMemCreate(), cuMemRelease(), cuMemAddressReserve(), cuMemMap(), cuMemUnmap(), cuMemSetAccess(), cuMemcpyHtoD_v2(),
    cuMemcpyDtoH_v2(), cuLaunchKernel();
static void *const linked[] = {cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2, cuMemGetAddressRange_v2, cuMemAllocAsync, cuMemFreeAsync,
    cuMemAllocManaged, cuIpcGetMemHandle, cuDeviceTotalMem_v2, cuArrayCreate_v2, cuArrayDestroy, cuStreamBeginCapture_v2,
    cuStreamEndCapture, cuMemCreate, cuMemRelease, cuMemAddressReserve, cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemcpyHtoD_v2,
    cuMemcpyDtoH_v2, cuLaunchKernel};
#endif
static void find(const char *way) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
    natives = dlsym(library, "fake_native_allocations");
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
        void **place = places[at];
        char name[64];
        snprintf(name, sizeof name, "%s_v2", names[at]);
        if (!strcmp(way, "dlsym")) {
            *place = dlsym(library, name);
            if (!*place)
                *place = dlsym(library, names[at]);
        } else if (!strcmp(way, "runtime")) {
            /* As the CUDA runtime does. */
            int (*get)(const char *, void **, int, unsigned long long, int *) = dlsym(library, "cuGetProcAddress_v2");
            int (*again)(const char *, void **, int, unsigned long long, int *) = 0;
            int status;
            CHECK(get && !get("cuGetProcAddress", (void **)&again, 12000, 0, &status) && again);
            CHECK(!again(names[at], place, 12000, 0, &status));
        }
#ifdef LINKED
        else
            *place = linked[at];
#endif
        CHECK(*place);
    }
}
/* Something that depends on the place, at both ends. */
static void fill(ptr at, size_t bytes, int round) {
    uint64_t *words = (uint64_t *)(uintptr_t)at;
    for (size_t word = 0; word < bytes / 8; word += 1 + word / 4)
        words[word] = at * 31 + word + round;
    words[bytes / 8 - 1] = ~at;
}
static void verify(ptr at, size_t bytes, int round) {
    volatile uint64_t *words = (uint64_t *)(uintptr_t)at;
    for (size_t word = 0; word < bytes / 8 - 1; word += 1 + word / 4)
        CHECK(words[word] == at * 31 + word + round);
    CHECK(words[bytes / 8 - 1] == ~at);
}
static void limits(void) {
    size_t free_bytes, all, most;
    ptr at, second;
    CHECK(!total(&most, 0) && most == 16 << 20);
    CHECK(!alloc(&at, 10 << 20));
    CHECK(!info(&free_bytes, &all) && all == 16 << 20 && free_bytes == 6 << 20);
    CHECK(alloc(&second, 8 << 20) == 2 && "out of memory");
    CHECK(!alloc(&second, 6 << 20) && natives() == 0);
    CHECK(alloc(&at, 100) == 2);
    CHECK(!release(second) && !alloc(&at, 100) && !release(at));
    exit(5);
}
/* A block of GPU memory, and what ought to be in it: words of a sequence that begins with this. */
struct block { ptr at; size_t bytes; uint64_t first; };
static uint64_t chance = 1;
static uint64_t some(uint64_t below) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return chance % below;
}
static uint64_t *host(struct block *block) {
    uint64_t *words = malloc(block->bytes);
    CHECK(words);
    for (size_t word = 0; word < block->bytes / 8; word++)
        words[word] = block->first + word * 0x9e3779b97f4a7c15ul;
    return words;
}
/* The kernel: on the GPU's memory. */
static void kernel(void *with) {
    struct block *block = *(void **)with;
    volatile uint64_t *words = (uint64_t *)(uintptr_t)block->at;
    for (size_t word = 0; word < block->bytes / 8; word++) {
        CHECK(words[word] == block->first + word * 0x9e3779b97f4a7c15ul);
        words[word] += 7;
    }
}
static int work(char **words) {
    enum { BLOCKS = 6 };
    struct block blocks[BLOCKS] = {0};
    chance = strtoull(words[0], 0, 10) * 2 + 1;
    size_t steps = strtoul(words[1], 0, 10), most = strtoul(words[2], 0, 10) << 20;
    unsigned nap = atoi(words[3]);
    uint64_t sum = 0;
    for (size_t step = 0; step < steps; step++) {
        struct block *block = &blocks[some(BLOCKS)];
        unsigned what = some(10);
        if (block->bytes && what == 0) {
            CHECK(!release(block->at));
            block->bytes = 0;
        } else if (!block->bytes) {
            block->bytes = (some(most / BLOCKS) & ~7ul) + 8;
            block->first = chance;
            CHECK(!alloc(&block->at, block->bytes));
            uint64_t *mine = host(block);
            CHECK(!to_device(block->at, mine, block->bytes));
            free(mine);
        } else if (what < 3) {
            uint64_t *mine = host(block), *theirs = malloc(block->bytes);
            CHECK(theirs && !to_host(theirs, block->at, block->bytes) && !memcmp(mine, theirs, block->bytes));
            sum = sum * 31 + theirs[block->bytes / 8 - 1];
            free(mine), free(theirs);
        } else {
            void *parameter = block, *parameters[] = {parameter};
            CHECK(!launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
            block->first += 7;
        }
        if (nap && some(50) == 0)
            usleep(nap * 1000);
    }
    printf("%016lx\n", (unsigned long)sum);
    return 5;
}
enum { SIZES = 9 };
static const size_t sizes[SIZES] = {64, 4096, 1 << 20, (1 << 20) + 8, 2 << 20, 3000000 / 8 * 8, 20 << 20, 512, 8};
int main(int count, char **words) {
    CHECK(count >= 3);
    alarm(count > 3 ? 300 : 60); /* whatever the test does */
    /* Programs clean up. */
    unsetenv("TURNSTILE_MEMORY");
    find(words[1]);
    if (!strcmp(words[2], "limits"))
        limits();
    if (!strcmp(words[2], "work")) {
        CHECK(count == 7);
        return work(words + 3);
    }
    ptr at[SIZES], base, again;
    size_t bytes;
    for (int one = 0; one < SIZES; one++) {
        CHECK(!(one % 2 ? alloc_async(&at[one], sizes[one], (void *)3) : alloc(&at[one], sizes[one])));
        CHECK(!range(&base, &bytes, at[one] + sizes[one] - 1) && base == at[one] && bytes >= sizes[one] && at[one] % 256 == 0);
        fill(at[one], sizes[one], 0);
    }
    CHECK(natives() == 0);
    /* What cannot move: counted, or refused. */
    char handle[64];
    CHECK(ipc(handle, at[0]) == 801);
    size_t description[3] = {1024, 1024, 0x0000000400000020ul};
    void *texture;
    CHECK(!array(&texture, description) && !managed(&again, 4096, 1) && natives() == 1);
    fill(again, 4096, 0);
    CHECK(!release(again) && natives() == 0);
    /* Stream-ordered: back at once in its own stream. */
    CHECK(!free_async(at[3], (void *)3) && !alloc_async(&again, sizes[3], (void *)3) && again == at[3]);
    fill(at[3], sizes[3], 0);
    /* Nodes of a graph are the driver's; what is freed meanwhile waits. */
    ptr node, freed;
    void *graph;
    CHECK(!alloc(&freed, 5 << 20) && !begin((void *)3, 0) && !alloc_async(&node, 4096, (void *)3) && natives() == 1);
    CHECK(!release(freed) && !range(&base, &bytes, freed) && !end((void *)3, &graph) && !release(node));
    /* Its own mappings. */
    int prop[8] = {1, 0, 1, 0}, rights[3] = {1, 0, 3};
    ptr held, mapped;
    CHECK(!make(&held, 4 << 20, prop, 0) && !reserve(&mapped, 4 << 20, 0, 0, 0) && !map(mapped, 4 << 20, 0, held, 0));
    CHECK(!permit(mapped, 4 << 20, rights, 1));
    fill(mapped, 4 << 20, 0);
    char stop[4096], go[4096], turn[4096];
    snprintf(stop, sizeof stop, "%s/stop", words[2]);
    for (int round = 0; access(stop, F_OK); round++) {
        snprintf(go, sizeof go, "%s/go-%d", words[2], round);
        snprintf(turn, sizeof turn, "%s/round-%d", words[2], round);
        close(open(turn, O_CREAT | O_CLOEXEC, 0600));
        /* Its memory moves now: on a GPU it would not run. */
        while (access(go, F_OK) && access(stop, F_OK))
            usleep(500);
        for (int one = 0; one < SIZES; one++) {
            verify(at[one], sizes[one], round);
            fill(at[one], sizes[one], round + 1);
        }
        verify(mapped, 4 << 20, round);
        fill(mapped, 4 << 20, round + 1);
    }
    CHECK(!unmap(mapped, 4 << 20) && !let_go(held) && !no_array(texture));
    for (int one = 0; one < SIZES; one++)
        CHECK(!(one % 2 ? free_async(at[one], (void *)3) : release(at[one])));
    CHECK(natives() == 0);
    return 5;
}
