// Makes calls with the NVIDIA driver's numbers on /dev/null, which refuses them: what a launcher learns from is the asking.
//   actor CLIENT [FILE]
// Makes a group and a channel under that client (hexadecimal), waits until FILE is there, makes one more channel, and
// ends with 7, or with the error of a call that /dev/null did not get.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static unsigned client;

static void alloc(unsigned parent, unsigned handle, unsigned class, void *params)
{
    uint64_t at = (uint64_t)(uintptr_t)params;
    uint32_t call[8] = {client, parent, handle, class, (uint32_t)at, (uint32_t)(at >> 32)};
    int null = open("/dev/null", O_RDWR);
    if (ioctl(null, 0xc020462bul, call) == 0 || errno != ENOTTY)
        exit(errno);
    close(null);
}

int main(int count, char **words)
{
    uint32_t params[8] = {0, 0, 0, 1};
    client = (unsigned)strtoul(words[1], NULL, 16);
    alloc(0x5c000001, 0x10, 0xa06c, params);
    alloc(0x10, 0x11, 0xc86f, NULL);
    while (count > 2 && access(words[2], F_OK) != 0)
        usleep(1000);
    alloc(0x10, 0x12, 0xc86f, NULL);
    return 7;
}
