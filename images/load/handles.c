// Preloaded into an unmodified CUDA program: appends the channels that the driver hands out to the file that
// TURNSTILE_HANDLES names. Nothing of it is on the launch path: a running program makes no calls of these kinds.
//   + PID CLIENT HANDLE CLASS PARENT ENGINE   (hexadecimal but for PID; ENGINE is a group's, or a channel's own)
//   - PID CLIENT HANDLE
// SOURCE: facts of open-gpu-kernel-modules 580.159.04: nv_escape.h, nvos.h (NVOS00, NVOS21, NVOS64),
// alloc/alloc_channel.h (NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: engineType at byte 12).
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FREE = 0x29, ALLOC = 0x2b, NVOS21_BYTES = 32, GROUP = 0xa06c, CHANNEL_LOW = 0x6f };

static int out = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TURNSTILE_HANDLES");
    if (path)
        out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void say(const char *line, int length)
{
    if (length > 0 && write(out, line, (size_t)length) != length)
        out = -1;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    long result = syscall(SYS_ioctl, fd, request, argument);
    if (out < 0 || result != 0 || ((request >> 8) & 0xff) != 'F')
        return (int)result;
    const uint32_t *word = argument;
    unsigned bytes = (request >> 16) & 0x3fff;
    char line[128];
    if ((request & 0xff) == ALLOC && bytes >= NVOS21_BYTES) {
        // NVOS64 has an address and flags more in front of its status.
        uint32_t status = bytes == NVOS21_BYTES ? word[7] : word[10];
        uint32_t class = word[3];
        if (status == 0 && (class == GROUP || (class & 0xff) == CHANNEL_LOW)) {
            const uint32_t *params = (const uint32_t *)(uintptr_t)((uint64_t)word[5] << 32 | word[4]);
            uint32_t engine = class == GROUP && params ? params[3] : 0;
            say(line, snprintf(line, sizeof line, "+ %d %x %x %x %x %x\n", getpid(), word[0], word[2], class, word[1],
                               engine));
        }
    } else if ((request & 0xff) == FREE && bytes >= 16 && word[3] == 0) {
        say(line, snprintf(line, sizeof line, "- %d %x %x\n", getpid(), word[0], word[2]));
    }
    return (int)result;
}
