// Kernels of a given length. Thread 0 leaves `token` in out[slot], so that a launch can be told from its neighbours.
__device__ static unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// Occupies the engine for `ns` nanoseconds, asleep for most of it (a sleep lasts at most twice what was asked for).
extern "C" __global__ void spin(unsigned long long ns, unsigned *out, unsigned slot, unsigned token)
{
    unsigned long long start = now_ns();
    for (;;) {
        unsigned long long gone = now_ns() - start;
        if (gone >= ns)
            break;
        unsigned long long half = (ns - gone) / 2;
        __nanosleep(half < 1000000 ? (unsigned)half : 1000000);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[slot] = token;
}

// The same without sleeping: turns of a xorshift generator, `turns` of them.
extern "C" __global__ void churn(unsigned turns, unsigned *out, unsigned slot, unsigned token)
{
    unsigned x = token | 1;
    for (unsigned i = 0; i < turns; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[slot] = x;
}
