// Loads that say when they ran: every launch leaves the time stamps of its first and last instruction, and the gaps in between in
// which it was off the engine. The work is a fixed number of turns of a xorshift generator, so that standing still is not work done.
// Time is %globaltimer, in nanoseconds. The PTX beside this is nvcc's (CUDA 13.0, V13.0.88):
//   nvcc -ptx -arch=compute_75 -O3 -o truth.ptx truth.cu
struct Span {
    unsigned long long begin, end;
};

// What the first thread writes gaps to; `count` goes on when there is no room.
struct Gaps {
    Span *spans;
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
            gaps.spans[index] = {last, now};
    }
    return now;
}

__device__ static void begin(Span *span)
{
    if (threadIdx.x == 0)
        atomicMin(&span->begin, now_ns());
}

__device__ static void end(Span *span, unsigned x, unsigned *sink)
{
    if (x == 0)
        *sink = x;
    // The block's last warp says when the block ended.
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(&span->end, now_ns());
}

// `turns` turns of every thread, `step` at a time.
extern "C" __global__ void truth_work(unsigned long long turns, unsigned step, Span *span, Gaps gaps, unsigned *sink)
{
    begin(span);
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x + 1;
    bool recorder = blockIdx.x == 0 && threadIdx.x == 0;
    unsigned long long last = now_ns();
    for (unsigned long long left = turns; left > 0;) {
        unsigned part = left < step ? (unsigned)left : step;
        x = churn(x, part);
        left -= part;
        if (recorder)
            last = step_ended(last, gaps);
    }
    end(span, x, sink);
}

// The same until the host sets `stop`, which one thread reads and passes on through `relay`.
extern "C" __global__ void truth_endless(const volatile unsigned *stop, volatile unsigned *relay, unsigned step, Span *span,
                                         Gaps gaps, unsigned *sink)
{
    begin(span);
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x + 1;
    bool recorder = blockIdx.x == 0 && threadIdx.x == 0;
    unsigned long long last = now_ns();
    while (*relay == 0) {
        x = churn(x, step);
        if (recorder) {
            last = step_ended(last, gaps);
            if (*stop != 0)
                *relay = 1;
        }
    }
    end(span, x, sink);
}

// Answers each count that the host writes to `ask` with the time, until `rounds` or for `limit_ns`. One thread.
extern "C" __global__ void truth_clock(const volatile unsigned *ask, volatile unsigned long long *time, volatile unsigned *answer,
                                       unsigned rounds, unsigned long long limit_ns, Span *span)
{
    begin(span);
    unsigned long long first = now_ns();
    for (unsigned round = 1; round <= rounds; round++) {
        unsigned long long now = first;
        while (*ask < round && now - first < limit_ns)
            now = now_ns();
        *time = now_ns();
        __threadfence_system();
        *answer = round;
    }
    end(span, 1, nullptr);
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
