// Is on the engine until it is told to leave, or for a time at most. Time is %globaltimer, in nanoseconds. The PTX beside this is
// nvcc's (CUDA 13.0, V13.0.88):
//   nvcc -ptx -arch=compute_75 -O3 -o preemptor.ptx preemptor.cu

__device__ static unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

// One thread. `asked` says which visit is wanted: one that nobody asked for ends at once. Says in `here` which visit this is, and stays until
// `left` says that it is over.
extern "C" __global__ void preemptor(volatile unsigned long long *here, const volatile unsigned long long *asked,
                                 const volatile unsigned long long *left, unsigned long long visit,
                                 unsigned long long most_ns)
{
    const unsigned long long begin = now_ns();
    if (*asked < visit)
        return;
    *here = visit;
    __threadfence_system();
    while (*left < visit && now_ns() - begin < most_ns) {
    }
}
