// Loads that say when they ran: every launch leaves the time stamps of its first and last instruction, and the gaps in between in
// which it was off the engine. The work is a fixed number of turns of a xorshift generator, so that standing still is not work done.
// Time is %globaltimer, in nanoseconds. The PTX beside this is nvcc's (CUDA 13.0, V13.0.88):
//   nvcc -ptx -arch=compute_75 -O3 -o truth.ptx truth.cu
struct Launch {
    // Complement of the first block's beginning, so that zeroed memory is a launch that never ran.
    unsigned long long begin_complement;
    unsigned long long end;
    // Blocks that ended, but for the first.
    unsigned long long ended;
};

struct Gap {
    unsigned long long begin, end;
};

// What the recorder, the first thread of the first block, writes gaps to; `count` goes on when there is no room.
struct Gaps {
    Gap *gaps;
    unsigned *count;
    unsigned room;
    unsigned threshold_ns;
};

__device__ static unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

__device__ static unsigned churn(unsigned x, unsigned turns)
{
#pragma unroll 1
    for (unsigned i = 0; i < turns; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    return x;
}

// A jump of the clock between two steps is time off the engine.
__device__ static unsigned long long step_ended(unsigned long long last, const Gaps &gaps)
{
    unsigned long long now = now_ns();
    if (now - last > gaps.threshold_ns) {
        unsigned index = (*gaps.count)++;
        if (index < gaps.room)
            gaps.gaps[index] = {last, now};
    }
    return now;
}

__device__ static bool is_recorder()
{
    return blockIdx.x == 0 && threadIdx.x == 0;
}

// Returns when the recorder last knew the time. Other blocks may have begun before the engine was taken from all of them, and its own after that.
__device__ static unsigned long long begin(Launch *launch, const Gaps &gaps)
{
    unsigned long long now = now_ns();
    if (threadIdx.x == 0)
        atomicMax(&launch->begin_complement, ~now);
    if (is_recorder())
        now = step_ended(~*(volatile unsigned long long *)&launch->begin_complement, gaps);
    return now;
}

// The recorder stays until all other blocks have ended: a gap after its own work would be missed.
__device__ static void end(Launch *launch, unsigned long long last, const Gaps &gaps, unsigned x, unsigned *sink)
{
    if (x == 0)
        *sink = x;
    __syncthreads();
    if (is_recorder())
        while (*(volatile unsigned long long *)&launch->ended < gridDim.x - 1)
            last = step_ended(last, gaps);
    if (threadIdx.x == 0) {
        atomicMax(&launch->end, is_recorder() ? step_ended(last, gaps) : now_ns());
        if (blockIdx.x != 0)
            atomicAdd(&launch->ended, 1ull);
    }
}

// `turns` turns of every thread, `step` at a time.
extern "C" __global__ void truth_work(unsigned long long turns, unsigned step, Launch *launch, Gaps gaps, unsigned *sink)
{
    unsigned long long last = begin(launch, gaps);
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x + 1;
    for (unsigned long long left = turns; left > 0;) {
        unsigned part = left < step ? (unsigned)left : step;
        x = churn(x, part);
        left -= part;
        if (is_recorder())
            last = step_ended(last, gaps);
    }
    end(launch, last, gaps, x, sink);
}

// The same until the host sets `stop`, which the recorder reads and passes on through `relay`.
extern "C" __global__ void truth_endless(const volatile unsigned long long *stop, volatile unsigned *relay, unsigned step,
                                         Launch *launch, Gaps gaps, unsigned *sink)
{
    unsigned long long last = begin(launch, gaps);
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x + 1;
    while (*relay == 0) {
        x = churn(x, step);
        if (is_recorder()) {
            last = step_ended(last, gaps);
            if (*stop != 0)
                *relay = 1;
        }
    }
    end(launch, last, gaps, x, sink);
}

// Answers each count that the host writes to `ask` with the time, until `rounds`; gives up after `limit_ns` of silence. One thread.
extern "C" __global__ void truth_clock(const volatile unsigned long long *ask, volatile unsigned long long *time,
                                       volatile unsigned long long *answer, unsigned rounds, unsigned long long limit_ns,
                                       Launch *launch, Gaps gaps)
{
    unsigned long long last = begin(launch, gaps);
    for (unsigned long long round = 1; round <= rounds; round++) {
        unsigned long long first = last;
        while (*ask < round && last - first < limit_ns)
            last = step_ended(last, gaps);
        if (*ask < round)
            break;
        *time = now_ns();
        __threadfence_system();
        *answer = round;
        __threadfence_system();
    }
    atomicMax(&launch->end, step_ended(last, gaps));
}

// The smallest step of the clock that `rounds` readings show.
extern "C" __global__ void truth_resolution(unsigned rounds, unsigned long long *smallest_ns)
{
    unsigned long long smallest = ~0ull, last = now_ns();
    for (unsigned round = 0; round < rounds; round++) {
        unsigned long long now = now_ns();
        if (now != last && now - last < smallest)
            smallest = now - last;
        last = now;
    }
    *smallest_ns = smallest;
}
