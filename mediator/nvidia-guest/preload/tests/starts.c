// What libcuda does at its start, without a GPU: files, objects, memory, a channel, a doorbell.
//   starts run | starts hold | starts foreign CLIENT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); exit(1); } } while (0)
#define ESCAPE(number, bytes) _IOC(_IOC_READ | _IOC_WRITE, 'F', number, bytes)

static int control, gpu;
static uint32_t client;

static uint32_t alloc(uint32_t parent, uint32_t handle, uint32_t class, void *params) {
    uint32_t top[12] = {client, parent, handle, class};
    *(uint64_t *)(top + 4) = (uintptr_t)params;
    CHECK(ioctl(control, ESCAPE(0x2b, 48), top) == 0);
    CHECK(*(uint64_t *)(top + 4) == (uintptr_t)params);
    if (class == 0x41) client = top[2];
    return top[10];
}

static uint32_t call(uint32_t object, uint32_t command, uint32_t flags, void *params, uint32_t bytes) {
    uint32_t top[8] = {client, object, command, flags};
    *(uint64_t *)(top + 4) = (uintptr_t)params;
    top[6] = bytes;
    if (ioctl(control, ESCAPE(0x2a, 32), top) != 0) return 0xffff0000 | errno;
    return top[7];
}

static void *map(uint32_t parent, uint32_t memory, uint64_t bytes, int protection) {
    int file = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && ioctl(file, ESCAPE(0xc9, 4), &control) == 0);
    uint32_t top[14] = {client, parent, memory};
    *(uint64_t *)(top + 6) = bytes;
    top[12] = file;
    CHECK(ioctl(control, ESCAPE(0x4e, 56), top) == 0 && top[10] == 0 && top[12] == (uint32_t)file);
    void *address = mmap(0, bytes, protection, MAP_SHARED, file, 0);
    CHECK(address != MAP_FAILED);
    return address;
}

static void memory(uint32_t handle, uint32_t class, uint32_t attributes, uint64_t bytes) {
    char params[128] = {0};
    memcpy(params + 24, &attributes, 4);
    memcpy(params + 64, &bytes, 8);
    CHECK(alloc(0x5c000001, handle, class, params) == 0);
}

int main(int count, char **words) {
    struct stat status;
    CHECK(stat("/dev/nvidiactl", &status) == 0 && S_ISCHR(status.st_mode) && major(status.st_rdev) == 195);
    CHECK(stat("/dev/nvidia7", &status) == -1 && errno == ENOENT);
    CHECK(open("/dev/nvidia7", O_RDWR) == -1);
    control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    gpu = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    CHECK(control >= 0 && gpu >= 0);
    CHECK(fstat(gpu, &status) == 0 && minor(status.st_rdev) == 0);
    CHECK(ioctl(gpu, ESCAPE(0xc9, 4), &control) == 0);
    CHECK(alloc(0, 0, 0x41, 0) == 0 && client != 0);
    if (!strcmp(words[1], "foreign")) {
        // In each place where a call names a client.
        uint32_t other = strtoul(words[2], 0, 16), own = client;
        client = other;
        CHECK(call(other, 0x20800102, 0, malloc(564), 564) == (0xffff0000 | EPERM));
        uint32_t freed[4] = {other, 0, other};
        CHECK(ioctl(control, ESCAPE(0x29, 16), freed) == -1 && errno == EPERM);
        client = own;
        uint32_t copied[7] = {own, own, 0x5c000009, other, 0x5c000001};
        CHECK(ioctl(control, ESCAPE(0x34, 28), copied) == -1 && errno == EPERM);
        uint32_t device[14] = {0, other};
        uint32_t top[12] = {own, own, 0x5c000001, 0x80};
        *(uint64_t *)(top + 4) = (uintptr_t)device;
        CHECK(ioctl(control, ESCAPE(0x2b, 48), top) == -1 && errno == EPERM);
        int uvm = open("/dev/nvidia-uvm", O_RDWR);
        static char mapped[9264];
        memcpy(mapped + 9248, &control, 4);
        memcpy(mapped + 9252, &other, 4);
        CHECK(ioctl(uvm, 33, mapped) == -1 && errno == EPERM);
        puts("refused");
        return 0;
    }
    char device[56] = {0};
    uint32_t zero = 0;
    CHECK(alloc(client, 0x5c000001, 0x80, device) == 0);
    CHECK(alloc(0x5c000001, 0x5c000002, 0x2080, &zero) == 0);

    // Memory that the driver would map is guest RAM: two mappings show the same.
    memory(0x5c000003, 0x3e, 0, 8192);
    uint32_t *one = map(0x5c000001, 0x5c000003, 8192, PROT_READ | PROT_WRITE);
    uint32_t *two = map(0x5c000001, 0x5c000003, 8192, PROT_READ);
    one[1500] = 77;
    CHECK(two[1500] == 77);
    // GPU memory that the GPU has mapped already has no mapping.
    memory(0x5c000004, 0x40, 0x18000000, 2 << 20);
    static char mapped[9264];
    uint32_t named = 0x5c000004;
    int unified = open("/dev/nvidia-uvm", O_RDWR);
    memcpy(mapped + 9248, &control, 4);
    memcpy(mapped + 9252, &client, 4);
    memcpy(mapped + 9256, &named, 4);
    CHECK(unified >= 0 && ioctl(unified, 33, mapped) == 0 && close(unified) == 0);
    uint32_t top[14] = {client, 0x5c000001, 0x5c000004};
    top[6] = 2 << 20;
    top[12] = gpu;
    CHECK(ioctl(control, ESCAPE(0x4e, 56), top) == 0 && top[10] == 0x56);

    // A channel, whose doorbell advances it.
    memory(0x5c000005, 0x40, 0x18000000, 2 << 20);
    char *userd = map(0x5c000001, 0x5c000005, 2 << 20, PROT_READ | PROT_WRITE);
    uint32_t group[5] = {0, 0, 0, 1}, channel[92] = {0}, token = 0;
    CHECK(alloc(0x5c000001, 0x5c000006, 0xa06c, group) == 0);
    channel[8] = 0x5c000005;
    channel[16] = 0x2000;
    CHECK(alloc(0x5c000006, 0x5c000007, 0xc86f, channel) == 0);
    CHECK(call(0x5c000007, 0xc36f0108, 0, &token, 4) == 0 && token != 0);
    char bar1[2] = {1, 0};
    CHECK(alloc(0x5c000002, 0x5c000008, 0xc661, bar1) == 0);
    volatile uint32_t *doorbell = map(0x5c000002, 0x5c000008, 0x10000, PROT_WRITE);
    volatile uint32_t *get = (void *)(userd + 0x2088), *put = (void *)(userd + 0x208c);
    *put = 3;
    doorbell[0x90 / 4] = token;
    for (int tries = 0; *get != 3; tries++) {
        CHECK(tries < 20000);
        usleep(500);
    }

    // The driver's shared page is a copy.
    CHECK(alloc(0x5c000002, 0x5c00000a, 0xde, device) == 0);
    CHECK(!memcmp(map(0x5c000002, 0x5c00000a, 0xa30, PROT_READ), "stand-in", 8));

    // Registered memory keeps its content, and a child's writes are the child's.
    char *pages = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 0; at < 1 << 20; at++) pages[at] = at * 7;
    uint32_t registered[14] = {client, 0x5c000001, 0x5c00000b, 0x71, 0x40001010};
    *(uint64_t *)(registered + 6) = (uintptr_t)pages + 100;
    *(uint64_t *)(registered + 8) = 900000;
    registered[12] = -1;
    CHECK(ioctl(gpu, ESCAPE(0x27, 56), registered) == 0 && registered[10] == 0);
    CHECK(*(uint64_t *)(registered + 6) == (uintptr_t)pages + 100);
    for (int at = 0; at < 1 << 20; at++) CHECK(pages[at] == (char)(at * 7));
    pid_t child = fork();
    if (child == 0) {
        CHECK(pages[5] == 35 && ioctl(control, ESCAPE(0xc9, 4), &zero) == -1);
        pages[5] = 1;
        control = open("/dev/nvidiactl", O_RDWR);
        client = 0;
        CHECK(control >= 0 && alloc(0, 0, 0x41, 0) == 0);
        _exit(0);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && ended == 0 && pages[5] == 35);

    // Memory that is shared with other processes is registered where it is.
    char name[64];
    mkdir("/dev/shm", 0777); // A small guest has none.
    snprintf(name, sizeof name, "/dev/shm/turnstile-starts-%d", getpid());
    int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && ftruncate(file, 1 << 20) == 0);
    char *shared = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED && close(file) == 0);
    shared[5] = 35;
    uint32_t between[14] = {client, 0x5c000001, 0x5c00000d, 0x71, 0x40001010};
    *(uint64_t *)(between + 6) = (uintptr_t)shared + 4096;
    *(uint64_t *)(between + 8) = 8191;
    between[12] = -1;
    CHECK(ioctl(gpu, ESCAPE(0x27, 56), between) == 0 && between[10] == 0);
    file = open(name, O_RDWR);
    char byte;
    CHECK(pread(file, &byte, 1, 5) == 1 && byte == 35 && close(file) == 0);
    CHECK(unlink(name) == 0);

    // A child that shares the memory closes its own copy alone.
    child = vfork();
    if (child == 0) {
        close(control);
        _exit(0);
    }
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);

    // What is not in the table.
    CHECK(call(0x5c000002, 0x2080110b, 0, malloc(536), 536) == 0x56);
    CHECK(alloc(0x5c000002, 0x5c00000c, 0xb2cc, device) == 0x56);
    CHECK(call(0x5c000002, 0x20800102, 4, malloc(564), 564) == (0xffff0000 | EINVAL));
    CHECK(call(0x5c000002, 0x20800102, 0, malloc(564), 560) == (0xffff0000 | EINVAL));
    CHECK(ioctl(control, ESCAPE(0xd3, 16), device) == -1 && errno == EINVAL);
    int uvm = dup(open("/dev/nvidia-uvm", O_RDWR));
    CHECK(uvm >= 0 && ioctl(uvm, 62, device) == -1 && errno == EINVAL);
    uint64_t flags[2] = {0};
    CHECK(ioctl(uvm, 0x30000001, flags) == 0 && flags[0] == 0);
    struct pollfd waited = {gpu, POLLIN | POLLPRI, 0};
    CHECK(poll(&waited, 1, 0) == 0);
    puts("started");
    fflush(stdout);
    if (!strcmp(words[1], "hold")) pause();
    uint32_t freed[4] = {client, 0, client};
    CHECK(ioctl(control, ESCAPE(0x29, 16), freed) == 0 && freed[3] == 0);
    return 0;
}
