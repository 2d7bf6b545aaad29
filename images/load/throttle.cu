// A load like NEON's Throttle: kernels of a given length, so many in flight, for so many seconds. Driver API and PTX only.
//   throttle KERNEL_US SECONDS [IN_FLIGHT [SLEEP_US]]
// Prints its process id, the kernels that finished in each second, and all of them. A kernel counts cycles of its SM, which stand still while
// it is not on the engine.
#include <cuda.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

static const char *spin = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %begin, %now, %passed, %cycles;
    .reg .pred %more;
    ld.param.u64 %cycles, [cycles];
    mov.u64 %begin, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %passed, %now, %begin;
    setp.lt.u64 %more, %passed, %cycles;
    @%more bra again;
    ret;
}
)";

static void check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        const char *name = "unknown";
        cuGetErrorName(result, &name);
        fprintf(stderr, "%s: %s\n", what, name);
        exit(1);
    }
}

int main(int count, char **words)
{
    if (count < 3) {
        fprintf(stderr, "usage: throttle KERNEL_US SECONDS [IN_FLIGHT [SLEEP_US]]\n");
        return 2;
    }
    double kernel_us = atof(words[1]), seconds = atof(words[2]);
    int in_flight = count > 3 ? atoi(words[3]) : 1;
    int sleep_us = count > 4 ? atoi(words[4]) : 0;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, spin), "cuModuleLoadData");
    check(cuModuleGetFunction(&function, module, "spin"), "cuModuleGetFunction");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    int khz = 0, processors = 0;
    check(cuDeviceGetAttribute(&khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device), "clock rate");
    check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "processors");
    unsigned long long cycles = (unsigned long long)(kernel_us * khz / 1000);
    void *arguments[] = {&cycles};
    auto launch = [&] {
        // One wave that fills the GPU: 8 blocks of 256 threads on each processor.
        check(cuLaunchKernel(function, 8 * processors, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
    };
    launch();
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    printf("throttle pid %d ready\n", getpid());
    fflush(stdout);
    long kernels = 0, told = 0;
    int second = 1;
    auto begin = std::chrono::steady_clock::now();
    auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    while (passed() < seconds) {
        for (int i = 0; i < in_flight; i++)
            launch();
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
        kernels += in_flight;
        if (passed() >= second) {
            printf("second %d kernels %ld\n", second++, kernels - told);
            fflush(stdout);
            told = kernels;
        }
        if (sleep_us)
            usleep(sleep_us);
    }
    double length = passed();
    printf("throttle pid %d: %g us, %d in flight: %ld kernels in %.2f s, %.1f per second, %.1f %% of the time\n", getpid(),
           kernel_us, in_flight, kernels, length, kernels / length, kernels * kernel_us / length / 1e4);
    return 0;
}
