// What the guest module has to do beyond libcuda's start, against the stand-in driver.
//   nodes loop TIMES | poll | fork | two | kill TIMES | pins TIMES | withheld | slow THREADS | limits FILES MIB | gone
// Each prints "ok NAME" if all was right, and ends with 1 otherwise.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); exit(1); } } while (0)
#define ESCAPE(number, bytes) _IOC(_IOC_READ | _IOC_WRITE, 'F', number, bytes)

// Handles, as libcuda counts them.
enum { DEVICE = 0x5c000001, SUBDEVICE, USERD, GROUP, CHANNEL, DOORBELLS, MEMORY };

static int control, gpu;
static uint32_t client;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint32_t alloc(uint32_t parent, uint32_t handle, uint32_t class, void *params) {
    uint32_t top[12] = {client, parent, handle, class};
    memcpy(top + 4, &params, 8);
    CHECK(ioctl(control, ESCAPE(0x2b, 48), top) == 0);
    if (class == 0x41) client = top[2];
    return top[10];
}

static uint32_t memory(uint32_t handle, uint32_t class, uint32_t attributes, uint64_t bytes) {
    char params[128] = {0};
    memcpy(params + 24, &attributes, 4);
    memcpy(params + 64, &bytes, 8);
    return alloc(DEVICE, handle, class, params);
}

static int release(uint32_t handle) {
    uint32_t top[4] = {client, 0, handle};
    return ioctl(control, ESCAPE(0x29, 16), top) == 0 && top[3] == 0;
}

// Registers memory of the program; returns the status.
static uint32_t pin(uint32_t handle, void *address, uint64_t bytes) {
    uint32_t top[14] = {client, DEVICE, handle, 0x71, 0x40001010};
    uint64_t last = bytes - 1;
    memcpy(top + 6, &address, 8);
    memcpy(top + 8, &last, 8);
    top[12] = -1;
    CHECK(ioctl(gpu, ESCAPE(0x27, 56), top) == 0);
    return top[10];
}

static void *map(uint32_t parent, uint32_t handle, uint64_t bytes, int protection) {
    int file = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && ioctl(file, ESCAPE(0xc9, 4), &control) == 0);
    uint32_t top[14] = {client, parent, handle};
    memcpy(top + 6, &bytes, 8);
    top[12] = file;
    CHECK(ioctl(control, ESCAPE(0x4e, 56), top) == 0 && top[10] == 0);
    void *address = mmap(0, bytes, protection, MAP_SHARED, file, 0);
    CHECK(address != MAP_FAILED);
    close(file);
    return address;
}

static void begin(void) {
    char device[56] = {0};
    uint32_t zero = 0;
    control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    gpu = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
    CHECK(control >= 0 && gpu >= 0 && ioctl(gpu, ESCAPE(0xc9, 4), &control) == 0);
    client = 0;
    CHECK(alloc(0, 0, 0x41, 0) == 0);
    CHECK(alloc(client, DEVICE, 0x80, device) == 0);
    CHECK(alloc(DEVICE, SUBDEVICE, 0x2080, &zero) == 0);
}

struct channel {
    volatile uint32_t *doorbell, *get, *put;
    uint32_t token;
};

static struct channel channel(void) {
    uint32_t group[5] = {0, 0, 0, 1}, params[92] = {0}, top[8] = {client, CHANNEL, 0xc36f0108};
    char bar1[2] = {1, 0};
    struct channel made = {0};
    CHECK(memory(USERD, 0x40, 0, 2 << 20) == 0);
    char *userd = map(DEVICE, USERD, 2 << 20, PROT_READ | PROT_WRITE);
    CHECK(alloc(DEVICE, GROUP, 0xa06c, group) == 0);
    params[8] = USERD;
    params[16] = 0x2000;
    CHECK(alloc(GROUP, CHANNEL, 0xc86f, params) == 0);
    void *token = &made.token;
    memcpy(top + 4, &token, 8);
    top[6] = 4;
    CHECK(ioctl(control, ESCAPE(0x2a, 32), top) == 0 && top[7] == 0);
    CHECK(alloc(SUBDEVICE, DOORBELLS, 0xc661, bar1) == 0);
    made.doorbell = map(SUBDEVICE, DOORBELLS, 0x10000, PROT_WRITE);
    made.get = (void *)(userd + 0x2088);
    made.put = (void *)(userd + 0x208c);
    return made;
}

// The stand-in reads a window once a millisecond, and a store can replace another's before: it is
// repeated, as a program would not.
static void ring(struct channel *to, uint32_t put) {
    *to->put = put;
    for (double since = now(); *to->get != put;) {
        to->doorbell[0x90 / 4] = to->token;
        CHECK(now() - since < 20);
        usleep(200);
    }
}

static void loop(int times) {
    begin();
    struct channel own = channel();
    double since = now();
    for (int time = 1; time <= times; time++) ring(&own, time);
    fprintf(stderr, "loop: %.2f ms a turn\n", (now() - since) / times * 1e3);
}

static void polls(void) {
    begin();
    struct channel own = channel();
    uint32_t event[4] = {client, DEVICE, gpu};
    CHECK(ioctl(control, ESCAPE(0xce, 16), event) == 0 && event[3] == 0 && event[2] == (uint32_t)gpu);
    struct pollfd waited = {gpu, POLLIN | POLLPRI, 0};
    CHECK(poll(&waited, 1, 0) == 0);
    for (int time = 1; time < 20; time++) {
        // A late event of the turn before may be there.
        while (poll(&waited, 1, 20) == 1);
        *own.put = time;
        own.doorbell[0x90 / 4] = own.token;
        CHECK(poll(&waited, 1, 5000) == 1 && waited.revents & POLLPRI);
        CHECK(*own.get == (uint32_t)time);
        CHECK(poll(&waited, 1, 0) == 0);
    }
}

// A pid's end with this status.
static void ended(pid_t pid, int wanted) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == wanted);
}

static int send_file(int socket, int file) {
    char byte = 0, space[CMSG_SPACE(4)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(head), &file, 4);
    return sendmsg(socket, &message, 0);
}

static int receive_file(int socket) {
    char byte, space[CMSG_SPACE(4)];
    int file = -1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    CHECK(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), 4);
    return file;
}

static int is_file(int file) {
    return ioctl(file, ESCAPE(0xd6, 8), (uint64_t[1]){0}) == 0;
}

static void forks(void) {
    begin();
    struct channel own = channel();
    int copy = dup(control), sockets[2];
    CHECK(copy >= 0 && !(fcntl(copy, F_GETFD) & FD_CLOEXEC));
    // A child has the files, the object and the doorbell; its end closes nothing of the parent's.
    pid_t child = fork();
    if (child == 0) {
        CHECK(is_file(control) && ioctl(gpu, ESCAPE(0xc9, 4), &control) == 0);
        ring(&own, 1);
        close(control);
        _exit(0);
    }
    ended(child, 0);
    CHECK(*own.get == 1);
    ring(&own, 2);
    // A new program has what is not closed by exec.
    child = fork();
    if (child == 0) {
        char kept[16], closed[16];
        sprintf(kept, "%d", copy);
        sprintf(closed, "%d", control);
        execl("/proc/self/exe", "nodes", "inherited", kept, closed, NULL);
        _exit(1);
    }
    ended(child, 0);
    // A file that is passed on stays when its first owner closes it.
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    child = fork();
    if (child == 0) {
        int passed = receive_file(sockets[1]);
        char byte;
        CHECK(read(sockets[1], &byte, 1) == 1 && is_file(passed));
        _exit(0);
    }
    int other = open("/dev/nvidiactl", O_RDWR);
    CHECK(send_file(sockets[0], other) == 1);
    close(other);
    CHECK(!is_file(other) && write(sockets[0], "", 1) == 1);
    ended(child, 0);
    CHECK(is_file(control));
}

static void two(void) {
    pid_t pids[4];
    for (int at = 0; at < 4; at++) {
        pids[at] = fork();
        if (pids[at] == 0) {
            loop(40);
            _exit(0);
        }
    }
    for (int at = 0; at < 4; at++) ended(pids[at], 0);
}

// Pins of the kernel, of all programs: those that are not released.
static long pinned(void) {
    long acquired = 0, released = 0, value;
    char line[128];
    // The counters of all processors are summed up then.
    int refresh = open("/proc/sys/vm/stat_refresh", O_WRONLY);
    CHECK(refresh >= 0 && write(refresh, "1", 1) == 1);
    close(refresh);
    FILE *file = fopen("/proc/vmstat", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "nr_foll_pin_acquired %ld", &value) == 1) acquired = value;
        if (sscanf(line, "nr_foll_pin_released %ld", &value) == 1) released = value;
    }
    fclose(file);
    return acquired - released;
}

static void until_pinned(long wanted) {
    for (double since = now(); pinned() != wanted; usleep(5000)) CHECK(now() - since < 5);
}

#define BYTES (32 << 20)

static void *pages(void) {
    char *address = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(address != MAP_FAILED);
    for (int at = 0; at < BYTES; at += 4096) address[at] = at >> 12;
    return address;
}

// A program that is killed in the middle of calls, with memory of both kinds.
static void victim(void) {
    begin();
    void *address = pages();
    write(1, "", 1);
    for (;;) {
        CHECK(pin(MEMORY, address, BYTES) == 0);
        CHECK(memory(MEMORY + 1, 0x3e, 0, 16 << 20) == 0);
        *(int *)map(DEVICE, MEMORY + 1, 16 << 20, PROT_READ | PROT_WRITE) = 1;
        CHECK(release(MEMORY) && release(MEMORY + 1));
    }
}

static void kills(int times) {
    long before = pinned();
    srand(times);
    for (int time = 0; time < times; time++) {
        int pipes[2];
        char byte;
        CHECK(pipe(pipes) == 0);
        pid_t child = fork();
        if (child == 0) {
            dup2(pipes[1], 1);
            victim();
        }
        close(pipes[1]);
        CHECK(read(pipes[0], &byte, 1) == 1);
        usleep(rand() % 40000);
        kill(child, SIGKILL);
        ended(child, SIGKILL);
        close(pipes[0]);
    }
    until_pinned(before);
}

static void pins(int times) {
    begin();
    char *address = pages();
    long before = pinned();
    for (int time = 0; time < times; time++) {
        CHECK(pin(MEMORY, address + 100, BYTES - 5000) == 0);
        CHECK(pinned() > before);
        CHECK(release(MEMORY) && pinned() == before);
    }
    for (int at = 0; at < BYTES; at += 4096) CHECK(address[at] == (char)(at >> 12));
    // Closing frees what is left.
    CHECK(pin(MEMORY, address, BYTES) == 0);
    close(gpu);
    close(control);
    until_pinned(before);
}

// Memory that unified memory has duplicated stays until its range is freed.
static void withheld(void) {
    begin();
    char *address = pages(), params[9264] = {0};
    long before = pinned();
    int uvm = open("/dev/nvidia-uvm", O_RDWR);
    uint64_t range[3] = {0x7000000000, BYTES}, flags[2] = {0};
    uint32_t handle = MEMORY;
    CHECK(uvm >= 0 && ioctl(uvm, 0x30000001, flags) == 0 && flags[0] == 0);
    CHECK(pin(MEMORY, address, BYTES) == 0);
    CHECK(ioctl(uvm, 73, range) == 0);
    memcpy(params, range, 16);
    memcpy(params + 9248, &control, 4);
    memcpy(params + 9252, &client, 4);
    memcpy(params + 9256, &handle, 4);
    CHECK(ioctl(uvm, 33, params) == 0);
    int own;
    memcpy(&own, params + 9248, 4);
    CHECK(own == control);
    CHECK(release(MEMORY) && pinned() > before);
    CHECK(ioctl(uvm, 34, range) == 0 && pinned() == before);
    // A handle that is used again is the new object, though the old one's memory is in use.
    handle = MEMORY + 1;
    memcpy(params + 9256, &handle, 4);
    CHECK(memory(handle, 0x3e, 0, 8192) == 0);
    char *old = map(DEVICE, handle, 8192, PROT_READ | PROT_WRITE);
    memset(old, 7, 8192);
    CHECK(ioctl(uvm, 33, params) == 0 && release(handle) && memory(handle, 0x40, 0, 8192) == 0);
    char *new = map(DEVICE, handle, 8192, PROT_READ | PROT_WRITE);
    CHECK(new[0] == 0 && new[8191] == 0 && old[8191] == 7);
    CHECK(ioctl(uvm, 34, range) == 0 && old[0] == 7);
    handle = MEMORY;
    memcpy(params + 9256, &handle, 4);
    // The same if the file is closed instead.
    CHECK(pin(MEMORY, address, BYTES) == 0 && ioctl(uvm, 33, params) == 0);
    CHECK(release(MEMORY) && pinned() > before);
    close(uvm);
    until_pinned(before);
}

static void *registers(void *unused) {
    (void)unused;
    int uvm = open("/dev/nvidia-uvm", O_RDWR);
    char params[40] = {0};
    memcpy(params + 24, &control, 4);
    memcpy(params + 28, &client, 4);
    CHECK(uvm >= 0 && ioctl(uvm, 37, params) == 0);
    close(uvm);
    return NULL;
}

// A call that takes long holds up no other.
static void slow(int threads) {
    begin();
    double since = now();
    registers(NULL);
    double one = now() - since, longest = 0;
    pthread_t ids[64];
    since = now();
    for (int at = 0; at < threads; at++) CHECK(pthread_create(&ids[at], NULL, registers, NULL) == 0);
    while (now() - since < one / 2) {
        double begun = now();
        CHECK(is_file(control));
        if (now() - begun > longest) longest = now() - begun;
    }
    for (int at = 0; at < threads; at++) pthread_join(ids[at], NULL);
    double all = now() - since;
    fprintf(stderr, "slow: one %.0f ms, %d together %.0f ms, others at most %.1f ms\n", one * 1e3, threads, all * 1e3, longest * 1e3);
    CHECK(all < one * threads / 2 && longest < one);
}

static void limits(int files, int mib) {
    begin();
    uint64_t long_list[5] = {0};
    uint32_t top[8] = {client, client, 0x101};
    // Buffers of more than 1 MiB, addresses that are none, memory that is read-only or not there.
    void *params = long_list;
    *(uint32_t *)long_list = 2 << 20;
    long_list[1] = long_list[2] = long_list[3] = (uintptr_t)long_list;
    memcpy(top + 4, &params, 8);
    top[6] = 40;
    CHECK(ioctl(control, ESCAPE(0x2a, 32), top) == -1 && errno == EINVAL);
    *(uint32_t *)long_list = 64;
    long_list[1] = 8;
    CHECK(ioctl(control, ESCAPE(0x2a, 32), top) == -1 && errno == EFAULT);
    CHECK(ioctl(control, ESCAPE(0x2a, 32), NULL) == -1 && errno == EFAULT);
    CHECK(ioctl(control, ESCAPE(0x2a, 24), top) == -1 && errno == EINVAL);
    char *fixed = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pin(MEMORY, fixed, 8192) == 0x1e);
    munmap(fixed + 4096, 4096);
    mprotect(fixed, 4096, PROT_READ | PROT_WRITE);
    CHECK(pin(MEMORY, fixed, 8192) == 0x1e && pin(MEMORY, (void *)~0xfffUL, 4096) == 0x1e);
    CHECK(pin(MEMORY, fixed, 0) == 0x1e && pin(MEMORY, fixed, 4096) == 0);
    // Descriptors that are not ours.
    int other = open("/dev/null", O_RDWR);
    CHECK(ioctl(gpu, ESCAPE(0xc9, 4), &other) == -1 && errno == EINVAL);
    // An object's mapping is not longer than the object.
    CHECK(memory(MEMORY + 1, 0x3e, 0, 8192) == 0);
    uint32_t beyond[14] = {client, DEVICE, MEMORY + 1};
    uint64_t bytes = 12288;
    memcpy(beyond + 6, &bytes, 8);
    beyond[12] = gpu;
    CHECK(ioctl(control, ESCAPE(0x4e, 56), beyond) == 0 && beyond[10] == 0x1e);
    CHECK(mmap(0, 4096, PROT_READ, MAP_SHARED, gpu, 0) == MAP_FAILED);
    char *once = map(DEVICE, MEMORY + 1, 8192, PROT_READ | PROT_WRITE);
    once[8191] = 1;
    CHECK(release(MEMORY + 1) && once[8191] == 1);
    // More than the VM may pin, and than it has.
    int done = 0;
    while (done < mib && memory(MEMORY + 2 + done, 0x3e, 0, 1 << 20) == 0) done++;
    CHECK(done > 0 && done < mib);
    CHECK(memory(MEMORY + 2 + done, 0x3e, 0, 1ULL << 50) == 0x51);
    for (int at = 0; at < done; at++) CHECK(release(MEMORY + 2 + at));
    CHECK(memory(MEMORY + 2, 0x3e, 0, 1 << 20) == 0);
    // More files than the VM may have.
    struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
    int opened = 0, last;
    while ((last = open("/dev/nvidiactl", O_RDWR)) >= 0) CHECK(++opened <= files);
    CHECK(errno == ENOMEM && opened > 2);
}

// Calls that take long, so that one is in flight. (QEMU 11.1.3 can abort if its server ends while a
// register is accessed; here that is a small part of the time.)
static void *blocked(void *unused) {
    (void)unused;
    int uvm = open("/dev/nvidia-uvm", O_RDWR);
    char params[40] = {0};
    memcpy(params + 24, &control, 4);
    memcpy(params + 28, &client, 4);
    CHECK(uvm >= 0);
    while (ioctl(uvm, 37, params) == 0);
    CHECK(errno == EIO);
    return NULL;
}

static void user_of_gone(void) {
    begin();
    CHECK(pin(MEMORY, pages(), BYTES) == 0);
    struct channel own = channel();
    pthread_t caller;
    struct pollfd waited = {gpu, POLLIN, 0};
    CHECK(pthread_create(&caller, NULL, blocked, NULL) == 0);
    puts("held");
    fflush(stdout);
    double since = now();
    CHECK(poll(&waited, 1, 20000) == 1 && waited.revents & POLLHUP);
    fprintf(stderr, "gone: noticed after %.1f s\n", now() - since);
    pthread_join(caller, NULL);
    CHECK(open("/dev/nvidiactl", O_RDWR) == -1 && errno == EIO);
    CHECK(mmap(0, 4096, PROT_READ, MAP_SHARED, gpu, 0) == MAP_FAILED && errno == EIO);
    // The window stays, and its stores are harmless.
    own.doorbell[0x90 / 4] = own.token;
}

// The test ends the device process when it reads "held". What it had is given back after its users.
static void gone(void) {
    long before = pinned();
    pid_t child = fork();
    if (child == 0) {
        user_of_gone();
        exit(0);
    }
    ended(child, 0);
    CHECK(pinned() > before);
    until_pinned(before);
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    int number = count > 2 ? atoi(words[2]) : 0, second = count > 3 ? atoi(words[3]) : 0;
    if (!strcmp(name, "loop")) loop(number);
    else if (!strcmp(name, "poll")) polls();
    else if (!strcmp(name, "fork")) forks();
    else if (!strcmp(name, "inherited")) CHECK(is_file(number) && !is_file(second));
    else if (!strcmp(name, "two")) two();
    else if (!strcmp(name, "kill")) kills(number);
    else if (!strcmp(name, "pins")) pins(number);
    else if (!strcmp(name, "withheld")) withheld();
    else if (!strcmp(name, "slow")) slow(number);
    else if (!strcmp(name, "limits")) limits(number, second);
    else if (!strcmp(name, "gone")) gone();
    else return 2;
    printf("ok %s\n", name);
    return 0;
}
