// Makes the driver's calls on /dev/null under a filter that lets them return 0 without being made, with an environment and
// descriptors as programs that clean up have them. Ends with 5.
//   answered [FILE]     waits for FILE before it frees what it made
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char **words) {
    struct sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_ioctl},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[1])},
        {BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xff00},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 'F' << 8},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 99;
    /* Others are made, whatever is in the place of a request: an address on the stack, say, once in 256 times. */
    if (syscall(SYS_access, "/", 'F' << 8) != -1 || errno != EINVAL)
        return 95;
    clearenv();
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    int null = open("/dev/null", O_RDWR);
    uint32_t group[8] = {0, 0, 0, 9};
    uint64_t at = (uint64_t)(uintptr_t)group;
    uint32_t make[8] = {0xc1d00001, 1, 0x10, 0xa06c, (uint32_t)at, (uint32_t)(at >> 32)};
    uint32_t channel[12] = {0xc1d00001, 0x10, 0x11, 0xc86f};
    uint32_t control[8] = {0};
    uint32_t end[4] = {0xc1d00001, 1, 0x10, 0};
    errno = 77;
    if (ioctl(null, 0xc020462bul, make) || ioctl(null, 0xc030462bul, channel) || errno != 77)
        return 98;
    while (count > 1 && access(words[1], F_OK) != 0)
        usleep(1000);
    errno = 77;
    if (ioctl(null, 0xc020462aul, control) || ioctl(null, 0xc0104629ul, end) || errno != 77)
        return 96;
    /* Others go through with their own error. */
    return ioctl(null, TIOCGWINSZ, group) == -1 && errno == ENOTTY ? 5 : 97;
}
